"""Workers that die, hang or are interrupted: a clear error at once, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import processes
from tests.data.stamps import SHAPE, DieAt, HangAt, Stamps, stamp
from tests.data.test_loader import assert_same
from tests.processes import LIMIT, eventually, is_running, shared_memory
from vitlab.config.data import LoaderConfig, WorkerKind
from vitlab.data.batch import Filler, Pipeline, Transform
from vitlab.data.loader import Loader, Stream
from vitlab.data.sampler import SequentialSampler
from vitlab.data.worker_processes import Processes
from vitlab.errors import DataError

CONFIG = LoaderConfig(batch_size=8, workers=2, seed=5, cache="none")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="worker processes need a POSIX system")


def started(config: LoaderConfig = CONFIG, *, view: Transform = stamp) -> Stream:
    return Loader(Stamps(count=40), Pipeline(transform=view, shape=SHAPE), config=config, train=False).batches()


def pids(stream: Stream) -> tuple[int, ...]:
    assert isinstance(stream.pool, Processes)
    return stream.pool.pids


def wait_for_replies(stream: Stream) -> None:
    """Until each worker has sent a reply that nobody has read yet."""
    assert isinstance(stream.pool, Processes)
    connections = [worker.connection for worker in stream.pool._workers]
    eventually(lambda: all(connection.poll() for connection in connections))


def assert_nothing_left(workers: Sequence[int], memory: set[str]) -> None:
    """The workers end, and shared memory is as it was before; what others have there comes and goes."""
    eventually(lambda: not any(map(is_running, workers)))
    eventually(lambda: shared_memory() <= memory)


@pytest.mark.parametrize("when", ["at the start", "while idle", "in the next batch"])
def test_a_killed_worker_is_reported_of_and_not_waited_for(when: str) -> None:
    stream = started(replace(CONFIG, timeout=3600.0))  # longer than a test may take
    if when != "at the start":
        next(stream)
    if when == "while idle":
        wait_for_replies(stream)
    victim, other = pids(stream)
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(DataError, match=rf"worker 0 \(process {victim}\) was killed by SIGKILL") as caught:
        list(stream)
    assert "memory" in (caught.value.hint or "")
    assert not is_running(other)
    assert list(stream) == []  # closed, not broken


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGKILL])
def test_a_worker_that_an_image_kills_names_the_image(how: signal.Signals) -> None:
    with started(view=DieAt(19, how)) as stream:
        assert len(next(stream)) == 8
        with pytest.raises(DataError, match=rf"was killed by {how.name} at stamp-19.png \(index 19\)"):
            list(stream)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_worker_that_hangs_is_named_when_its_time_is_up(kind: WorkerKind) -> None:
    config = replace(CONFIG, timeout=2.0, worker_kind=kind)
    with started(config, view=HangAt(19)) as stream:
        assert len(next(stream)) == 8
        next(stream)
        with pytest.raises(DataError, match=rf"worker \d \({kind}\) hangs at stamp-19.png \(index 19\): no progress for \d+\.\d s"):
            next(stream)


def test_a_stopped_worker_counts_as_hanging() -> None:
    with started(replace(CONFIG, timeout=2.0)) as stream:
        next(stream)
        for pid in pids(stream):
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DataError, match="hangs"):
            list(stream)
        assert not any(is_running(pid) for pid in pids(stream))


def test_a_pause_of_the_caller_is_not_taken_for_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.monotonic
    with started(replace(CONFIG, timeout=600.0)) as stream:
        next(stream)
        wait_for_replies(stream)
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600)  # the caller slept for an hour
        assert len(list(stream)) == 4


def loader() -> Loader:
    return Loader(Stamps(count=40), Pipeline(transform=stamp, shape=SHAPE), config=CONFIG, train=False)


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
    of_ended, of_going = pids(ended), pids(going)
    ended.close()
    made.close()
    assert not any(map(is_running, of_ended))
    assert all(map(is_running, of_going))  # somebody is at it still
    going.close()
    going.close()
    assert not any(map(is_running, of_going))
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


def test_a_worker_that_died_while_it_waited_is_reported_of_by_the_next_stream() -> None:
    with loader() as made:
        stream = made.batches()
        list(stream)
        os.kill(pids(stream)[1], signal.SIGKILL)
        with pytest.raises(DataError, match=r"worker 1 .* was killed by SIGKILL"):
            list(made.batches())
        assert len(list(made.batches())) == 5  # and the one after that starts afresh


def test_the_death_of_the_process_that_forked_the_workers_is_reported_of_and_leaves_none() -> None:
    stream = started()
    workers = pids(stream)
    assert isinstance(stream.pool, Processes)
    launcher = stream.pool._launchers[0].process.pid
    os.kill(launcher, signal.SIGKILL)
    eventually(lambda: not is_running(launcher))  # until then the workers, which need it no more, may read all images
    with pytest.raises(DataError, match=f"the process {launcher} that starts the workers was killed by SIGKILL"):
        list(stream)
    eventually(lambda: not any(map(is_running, workers)))


def unforked(view: Transform = stamp) -> Processes:
    """Workers as they are where forks are not safe: each a fresh interpreter."""
    filler = Filler(dataset=Stamps(count=40), transform=view, shape=SHAPE, seed=5, replace=False, skip=False)
    return Processes(filler, workers=2, timeout=60.0, slots=1, rows=8, fork=False)


def test_workers_that_are_no_forks_give_the_same_batches_and_end_as_others_do() -> None:
    order = SequentialSampler(length=40)
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


def test_an_image_that_kills_a_worker_that_is_no_fork_is_named_too() -> None:
    pool = unforked(DieAt(5, signal.SIGSEGV))
    pool.start(0, SequentialSampler(length=40).picks(0, 8))
    with pytest.raises(DataError, match=r"was killed by SIGSEGV at stamp-5.png"):
        pool.finish(0)
    pool.close()


def test_streams_leave_no_open_file_behind() -> None:
    list(started())
    gc.collect()  # what earlier tests left to be collected holds files too
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        list(started())
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


SCRIPT = """
    import sys, time
    from tests.data.stamps import SHAPE, HangAt, Stamps, printing, stamp
    from vitlab.config.data import LoaderConfig
    from vitlab.data.batch import Pipeline
    from vitlab.data.loader import Loader

    config = LoaderConfig(batch_size=8, workers=2, cache="none", timeout=60.0)
    stream = Loader(Stamps(count=40), Pipeline(transform={view}, shape=SHAPE), config=config, train=True).batches()
    print(*stream.pool.pids, flush=True)
    next(stream)
    print("going", flush=True)
    for batch in stream:
        {body}
"""


@contextmanager
def script(checkout: Path, *, view: str = "stamp", body: str = "time.sleep(0.01)") -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", textwrap.dedent(SCRIPT).format(view=view, body=body)]
    with processes.started(words, cwd=checkout, env={"PYTHONPATH": str(checkout)}) as process:
        yield process


def first_words(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    assert process.stdout.readline() == "going\n"
    assert len(workers) == 2
    assert all(map(is_running, workers))
    return workers


@pytest.mark.parametrize("view", ["stamp", "HangAt(30)"])  # in the training step, and while waiting for a batch
def test_ctrl_c_leaves_no_worker_and_no_shared_memory(checkout: Path, view: str) -> None:
    before = shared_memory()
    with script(checkout, view=view) as process:
        workers = first_words(process)
        time.sleep(0.2)  # it comes to wait
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: to the whole group
        _, talk = process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    assert talk.count("Traceback") == 1  # the caller's own, none of a worker
    assert talk.strip().endswith("KeyboardInterrupt")
    assert_nothing_left(workers, before)


@pytest.mark.parametrize("view", ["stamp", "HangAt(30)"])  # also a worker that hangs at that moment
def test_workers_end_when_their_caller_is_killed(checkout: Path, view: str) -> None:
    before = shared_memory()
    with script(checkout, view=view) as process:
        workers = first_words(process)
        process.kill()
        process.communicate(timeout=LIMIT)
    assert_nothing_left(workers, before)


def test_what_a_transform_prints_is_talk_and_not_data(checkout: Path) -> None:
    with script(checkout, view="printing", body="sys.exit(3)") as process:
        out, talk = process.communicate(timeout=LIMIT)
    assert process.returncode == 3
    assert out.endswith("\ngoing\n")
    assert "said by a view" in talk
    assert "said by a view" not in out


def test_a_transform_that_lives_in_the_script_is_refused_with_a_way_out(checkout: Path) -> None:
    code = """
        from tests.data.stamps import SHAPE, Stamps, stamp
        from vitlab.config.data import LoaderConfig
        from vitlab.data.batch import Pipeline
        from vitlab.data.loader import Loader
        from vitlab.errors import ConfigError

        def own(example, rng):
            return stamp(example, rng)

        def first(kind):
            config = LoaderConfig(batch_size=8, workers=2, cache="none", worker_kind=kind)
            return next(Loader(Stamps(count=40), Pipeline(transform=own, shape=SHAPE), config=config, train=True).batches())

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
    assert "could not load the transform or the dataset" in done.stdout
    assert "worker_kind=thread" in done.stdout
