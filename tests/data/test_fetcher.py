"""The process that fetches images for a worker: the same batches and errors as without it, and it ends with its worker."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.stamps import SHAPE, DieAt, FarContents, stamp
from tests.data.test_loader import assert_same
from tests.processes import children, eventually, is_running
from vitlab.config.data import LoaderConfig
from vitlab.data.batch import Pipeline, Transform
from vitlab.data.loader import Loader, Stream
from vitlab.data.worker_processes import Processes
from vitlab.errors import DataError

CONFIG = LoaderConfig(batch_size=8, workers=2, seed=5, cache="none", worker_kind="process", timeout=240.0)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers fetch for themselves where they are no forks")


def loader(contents: FarContents, config: LoaderConfig = CONFIG, *, view: Transform = stamp, train: bool = True) -> Loader:
    return Loader(contents.dataset(), Pipeline(transform=view, shape=SHAPE), config=config, train=train)


def reads(diary: Path) -> dict[int, list[int]]:
    """The rows that each process has read."""
    found: dict[int, list[int]] = {}
    for line in diary.read_text(encoding="utf-8").splitlines():
        process, row = map(int, line.split())
        found.setdefault(process, []).append(row)
    return found


def family(stream: Stream) -> tuple[tuple[int, ...], list[int]]:
    """The workers and the fetchers."""
    assert isinstance(stream.pool, Processes)
    workers = stream.pool.pids
    return workers, [child for child in children(stream.pool._launchers[0].process.pid) if child not in workers]


def test_batches_are_those_without_workers_and_no_worker_reads(tmp_path: Path) -> None:
    ours, theirs = FarContents(diary=tmp_path / "ours"), FarContents(diary=tmp_path / "theirs")
    with loader(ours) as made, loader(theirs, replace(CONFIG, workers=0)) as plain:
        with made.batches() as stream, plain.batches() as other:
            batches = [next(stream) for _ in range(7)]
            assert_same(batches, [next(other) for _ in range(7)])
            workers, fetchers = family(stream)
        with made.batches(16) as later:  # the same workers, after batches that nobody took
            assert_same([next(later) for _ in range(5)], batches[2:])
    read = reads(ours.diary)
    assert len(workers) == len(fetchers) == 2
    assert set(read) == set(fetchers)
    assert not any(map(is_running, (*workers, *fetchers)))


def test_each_image_of_an_evaluation_is_read_once(tmp_path: Path) -> None:
    far = FarContents(diary=tmp_path / "diary")
    with loader(far, train=False) as made:
        assert sum(len(batch) for batch in made) == 40
    rows = [row for process in reads(far.diary).values() for row in process]
    assert Counter(rows) == Counter(range(40))


def test_a_broken_image_is_replaced_as_without_workers(tmp_path: Path) -> None:
    config = replace(CONFIG, corrupt="skip", corrupt_budget=0.5)
    broken = frozenset({0, 7, 19, 33})
    ours = FarContents(diary=tmp_path / "ours", missing=broken)
    theirs = FarContents(diary=tmp_path / "theirs", missing=broken)
    made, plain = loader(ours, config), loader(theirs, replace(config, workers=0))
    with made, plain, made.batches() as stream, plain.batches() as other:
        assert_same([next(stream) for _ in range(10)], [next(other) for _ in range(10)])
        assert stream.failures == other.failures
        assert {failure.index for failure in stream.failures} == broken
        workers, fetchers = family(stream)
    read = reads(ours.diary)
    assert set(read) <= {*workers, *fetchers}
    assert any(worker in read for worker in workers)  # a replacement is read where it is needed


@pytest.mark.parametrize(
    ("what", "sentence", "hint"),
    [("missing", "cut off", "corrupt"), ("unreachable", "the server is gone", "find it"), ("mistaken", "ZeroDivisionError", "bug")],
)
def test_an_error_of_the_fetcher_is_that_of_the_worker(what: str, sentence: str, hint: str, tmp_path: Path) -> None:
    far = FarContents(diary=tmp_path / "diary", **{what: frozenset({12})})
    with loader(far, train=False) as made, made.batches() as stream:
        assert len(next(stream)) == 8
        with pytest.raises(DataError, match=sentence) as caught:
            list(stream)
    assert hint in str(caught.value.hint)


def test_a_killed_fetcher_is_reported_of_and_nothing_is_left(tmp_path: Path) -> None:
    with loader(FarContents(diary=tmp_path / "diary")) as made, made.batches() as stream:
        next(stream)
        workers, fetchers = family(stream)
        os.kill(fetchers[0], signal.SIGKILL)
        ended = r"the process that fetches images for (this worker has ended|worker \d was killed by SIGKILL)"
        with pytest.raises(DataError, match=ended):
            list(stream)
    eventually(lambda: not any(map(is_running, (*workers, *fetchers))))


def test_a_killed_worker_is_named_and_its_fetcher_ends(tmp_path: Path) -> None:
    made = loader(FarContents(diary=tmp_path / "diary"), view=DieAt(19, signal.SIGKILL), train=False)
    with made, made.batches() as stream:
        workers, fetchers = family(stream)
        with pytest.raises(DataError, match=r"worker \d \(process \d+\) was killed by SIGKILL at stamp-19.png"):
            list(stream)
    eventually(lambda: not any(map(is_running, (*workers, *fetchers))))
