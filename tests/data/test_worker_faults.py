"""Workers that die, hang or are interrupted: a clear error at once, no wait, and nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import processes
from tests.data.stamps import SHAPE, DieAt, HangAt, Stamps, stamp
from tests.data.test_loader import assert_same
from vitlab.config.loader import LoaderConfig, WorkerKind
from vitlab.data.batch import Feed, Filler, View
from vitlab.data.loader import Loader, Stream
from vitlab.data.order import InTurn
from vitlab.data.workers.processes import Processes
from vitlab.errors import DataError

CONFIG = LoaderConfig(batch_size=8, workers=2, seed=5, cache="none")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="worker processes need a POSIX system")


def started(config: LoaderConfig = CONFIG, *, view: View = stamp) -> Stream:
    return Loader(Stamps(count=40), Feed(view=view, shape=SHAPE), config=config, train=False).batches()


def pids(stream: Stream) -> tuple[int, ...]:
    assert isinstance(stream.pool, Processes)
    return stream.pool.pids


def is_running(pid: int) -> bool:
    """Whether a process exists and is more than a corpse nobody has buried yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def soon(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def in_shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


@pytest.mark.parametrize("when", ["at the start", "while idle", "in the next batch"])
def test_a_killed_worker_is_told_of_at_once(when: str) -> None:
    stream = started(replace(CONFIG, timeout=60.0))
    if when != "at the start":
        next(stream)
    if when == "while idle":
        time.sleep(0.2)  # all that may be made ahead has been made
    victim, other = pids(stream)
    os.kill(victim, signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(DataError, match=rf"worker 0 \(process {victim}\) was killed by SIGKILL") as caught:
        list(stream)
    assert time.monotonic() - begin < 5
    assert "memory" in (caught.value.hint or "")
    assert not is_running(other)
    assert list(stream) == []  # closed, not broken


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGKILL])
def test_a_worker_that_a_picture_kills_names_the_picture(how: signal.Signals) -> None:
    with started(view=DieAt(19, how)) as stream:
        assert len(next(stream)) == 8
        with pytest.raises(DataError, match=rf"was killed by {how.name} at stamp-19.png \(index 19\)"):
            list(stream)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_worker_that_hangs_is_named_when_its_time_is_up(kind: WorkerKind) -> None:
    config = replace(CONFIG, timeout=0.5, worker_kind=kind)
    with started(config, view=HangAt(19)) as stream:
        assert len(next(stream)) == 8
        next(stream)
        begin = time.monotonic()
        with pytest.raises(
            DataError, match=rf"worker \d \({kind}\) hangs at stamp-19.png \(index 19\): no sign of life for [01]\.\d s"
        ):
            next(stream)
        assert time.monotonic() - begin < 3


def test_a_stopped_worker_counts_as_hanging() -> None:
    with started(replace(CONFIG, timeout=0.5)) as stream:
        next(stream)
        for pid in pids(stream):
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DataError, match="hangs"):
            list(stream)
        assert not any(is_running(pid) for pid in pids(stream))


def test_a_pause_of_the_caller_is_not_taken_for_a_hang() -> None:
    with started(replace(CONFIG, timeout=1.0)) as stream:
        next(stream)
        time.sleep(1.3)
        assert len(list(stream)) == 4


def loader() -> Loader:
    return Loader(Stamps(count=40), Feed(view=stamp, shape=SHAPE), config=CONFIG, train=False)


def test_the_next_stream_finds_the_workers_of_the_last() -> None:
    with loader() as made:
        first = made.batches()
        whole = list(first)
        early = made.batches()
        assert pids(early) == pids(first)
        next(early)
        early.close()  # with work under way that nobody will ask for
        again = made.batches()
        assert pids(again) == pids(first)
        assert_same(list(again), whole)
        one, other = made.batches(), made.batches(8)
        assert set(pids(one)).isdisjoint(pids(other))
        assert_same([*list(one)[:1], *other], whole)
        assert all(map(is_running, pids(one)))
    assert not any(map(is_running, (*pids(one), *pids(other))))
    with pytest.raises(DataError, match="closed"):
        made.batches()


def test_workers_end_when_the_loader_is_closed_or_nobody_holds_it() -> None:
    made = loader()
    ended, going = made.batches(), made.batches()
    next(ended), next(going)
    ended.close()
    made.close()
    assert not any(map(is_running, pids(ended)))
    assert all(map(is_running, pids(going)))  # somebody is at it still
    going.close()
    going.close()
    assert not any(map(is_running, pids(going)))
    assert list(going) == []

    forgotten = started()
    workers = pids(forgotten)
    next(forgotten)
    del forgotten
    gc.collect()
    assert not any(map(is_running, workers))

    unused = loader()
    workers = pids(unused.batches())
    list(unused)
    del unused
    gc.collect()
    assert not any(map(is_running, workers))


def test_a_worker_that_died_while_it_waited_is_told_of_by_the_next_stream() -> None:
    with loader() as made:
        stream = made.batches()
        list(stream)
        os.kill(pids(stream)[1], signal.SIGKILL)
        with pytest.raises(DataError, match=r"worker 1 .* was killed by SIGKILL"):
            list(made.batches())
        assert len(list(made.batches())) == 5  # and the one after that starts afresh


def test_the_death_of_the_process_that_forked_the_workers_is_told_of_and_leaves_none() -> None:
    stream = started()
    workers = pids(stream)
    assert isinstance(stream.pool, Processes)
    keeper = stream.pool._keepers[0].process.pid
    os.kill(keeper, signal.SIGKILL)
    with pytest.raises(DataError, match=f"the process {keeper} that starts the workers was killed by SIGKILL"):
        list(stream)
    assert soon(lambda: not any(map(is_running, workers)))


def unforked(view: View = stamp) -> Processes:
    """Workers as they are where forks are not safe: each a fresh interpreter."""
    filler = Filler(source=Stamps(count=40), view=view, shape=SHAPE, seed=5, replace=False, patient=False)
    return Processes(filler, workers=2, timeout=60.0, slots=1, rows=8, fork=False)


def test_workers_that_are_no_forks_give_the_same_batches_and_end_as_others_do() -> None:
    order = InTurn(length=40)
    pool = unforked()
    for number, batch in enumerate(started()):
        pool.start(number, order.picks(8 * number, 8 * number + 8))
        images_BHWC, _ = pool.finish(number)
        np.testing.assert_array_equal(images_BHWC, batch.images_BHWC)
    victim, other = pool.pids
    assert is_running(victim)
    assert is_running(other)
    os.kill(victim, signal.SIGKILL)
    pool.start(9, order.picks(0, 8))
    with pytest.raises(DataError, match=rf"worker 0 \(process {victim}\) was killed by SIGKILL"):
        pool.finish(9)
    pool.close()
    assert not is_running(other)


def test_a_picture_that_kills_a_worker_that_is_no_fork_is_named_too() -> None:
    pool = unforked(DieAt(5, signal.SIGSEGV))
    pool.start(0, InTurn(length=40).picks(0, 8))
    with pytest.raises(DataError, match=r"was killed by SIGSEGV at stamp-5.png"):
        pool.finish(0)
    pool.close()


def test_streams_leave_no_open_file_behind() -> None:
    list(started())
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        list(started())
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


SCRIPT = """
    import sys, time
    from tests.data.stamps import SHAPE, HangAt, Stamps, printing, stamp
    from vitlab.config.loader import LoaderConfig
    from vitlab.data.batch import Feed
    from vitlab.data.loader import Loader

    config = LoaderConfig(batch_size=8, workers=2, cache="none", timeout=60.0)
    stream = Loader(Stamps(count=40), Feed(view={view}, shape=SHAPE), config=config, train=True).batches()
    print(*stream.pool.pids, flush=True)
    next(stream)
    print("going", flush=True)
    for batch in stream:
        {body}
"""


def script(checkout: Path, *, view: str = "stamp", body: str = "time.sleep(0.01)") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT).format(view=view, body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        start_new_session=True,  # a process group as a terminal would give it
    )


def first_words(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert process.stdout.readline() == "going\n"
    assert len(workers) == 2
    assert all(map(is_running, workers))
    return workers


@pytest.mark.parametrize("view", ["stamp", "HangAt(30)"])  # in the training step, and while waiting for a batch
def test_ctrl_c_leaves_no_worker_and_no_shared_memory(checkout: Path, view: str) -> None:
    before = in_shared_memory()
    process = script(checkout, view=view)
    workers = first_words(process)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: to the whole group
    _, talk = process.communicate(timeout=10)
    assert process.returncode != 0
    assert talk.count("Traceback") == 1  # the caller's own, none of a worker
    assert talk.strip().endswith("KeyboardInterrupt")
    assert soon(lambda: not any(map(is_running, workers)))
    assert in_shared_memory() <= before


@pytest.mark.parametrize("view", ["stamp", "HangAt(30)"])  # also a worker that hangs at that moment
def test_workers_end_when_their_caller_is_killed(checkout: Path, view: str) -> None:
    before = in_shared_memory()
    process = script(checkout, view=view)
    workers = first_words(process)
    process.kill()
    process.communicate(timeout=10)
    assert soon(lambda: not any(map(is_running, workers)))
    assert in_shared_memory() <= before


def test_what_a_view_prints_is_talk_and_not_data(checkout: Path) -> None:
    process = script(checkout, view="printing", body="sys.exit(3)")
    out, talk = process.communicate(timeout=20)
    assert process.returncode == 3
    assert out.endswith("\ngoing\n")
    assert "said by a view" in talk
    assert "said by a view" not in out


def test_a_view_that_lives_in_the_script_is_refused_with_a_way_out(checkout: Path) -> None:
    code = """
        from tests.data.stamps import SHAPE, Stamps, stamp
        from vitlab.config.loader import LoaderConfig
        from vitlab.data.batch import Feed
        from vitlab.data.loader import Loader
        from vitlab.errors import ConfigError

        def own(example, rng):
            return stamp(example, rng)

        def first(kind):
            config = LoaderConfig(batch_size=8, workers=2, cache="none", worker_kind=kind)
            return next(Loader(Stamps(count=40), Feed(view=own, shape=SHAPE), config=config, train=True).batches())

        assert len(first("thread")) == 8
        try:
            first("process")
        except ConfigError as error:
            print(error)
    """
    done = processes.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=checkout,
        env={"PYTHONPATH": str(checkout)},
    )
    assert "could not open the view or the source" in done.stdout
    assert "worker_kind=thread" in done.stdout
