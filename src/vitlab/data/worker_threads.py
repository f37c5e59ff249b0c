"""Pools that fill batches: in the caller, or in threads. worker_processes.py has the pool of worker processes.

All pools have the same interface and give the same bits: a batch is cut into pieces, a free worker takes the next one, and each
row has its fixed place.

Axes: B rows of a batch, H height, W width, C channels; P workers.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Filler, OnImage, Report
from vitlab.data.dataset import Pixels
from vitlab.data.sampler import Picks
from vitlab.errors import DataError
from vitlab.io.display import printable

_NAME_BYTES = 240
_SMALL_PIECE = 16  # rows; handing out a piece costs about as much as transforming one small image
_PIECES_A_WORKER = 4  # per batch, so that a slow image delays its own piece only
_JOIN_SECONDS = 0.5


class Pool(Protocol):
    """Fills batches, which have numbers."""

    background: bool
    """Whether it works while the caller does something else."""

    def start(self, number: int, picks: Picks) -> None:
        """Start a batch; returns at once."""
        ...

    def finish(self, number: int) -> tuple[Pixels, list[Report]]:
        """Wait for a batch: images [B, H, W, C] and the reports of its rows, in order; DataError if a worker died or hangs."""
        ...

    def forget(self) -> None:
        """Drop all batches in progress and wait until no worker uses them; then others can be started."""
        ...

    def close(self) -> None:
        """End all workers at once. May be called twice."""
        ...


class InCaller:
    """No workers: the caller fills a batch when it asks for it."""

    background = False

    def __init__(self, filler: Filler) -> None:
        self._filler = filler
        self._picks: dict[int, Picks] = {}

    def start(self, number: int, picks: Picks) -> None:
        """Remember the batch."""
        self._picks[number] = picks
        self._filler.expect(picks)

    def finish(self, number: int) -> tuple[Pixels, list[Report]]:
        """Fill the batch now."""
        picks = self._picks.pop(number)
        images_BHWC = np.empty((len(picks), *self._filler.shape), np.uint8)
        return images_BHWC, [self._filler.fill(picks, images_BHWC, _unwatched)]

    def forget(self) -> None:
        """Forget the batches."""
        self._picks.clear()

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerStatus:
    """What each worker is doing, in memory that may be shared: since when (monotonic seconds), the image's index and its name."""

    since_P: NDArray[np.float64]
    index_P: NDArray[np.int64]
    name_P: NDArray[np.bytes_]

    @staticmethod
    def bytes_for(workers: int) -> int:
        """Bytes of memory it takes."""
        return workers * (16 + _NAME_BYTES)

    @classmethod
    def over(cls, memory: bytearray | memoryview, workers: int) -> WorkerStatus:
        """A status in this memory, which starts with zeros."""
        return cls(
            since_P=np.frombuffer(memory, np.float64, workers),
            index_P=np.frombuffer(memory, np.int64, workers, 8 * workers),
            name_P=np.frombuffer(memory, f"S{_NAME_BYTES}", workers, 16 * workers),
        )

    def reporter(self, worker: int) -> OnImage:
        """The function that the worker calls with each image."""

        def on_image(index: int, name: str) -> None:
            self.index_P[worker] = index
            self.name_P[worker] = name.encode("utf-8", "replace")[-_NAME_BYTES:]  # a path's end says more than its start
            self.since_P[worker] = time.monotonic()

        return on_image

    def doing(self, worker: int) -> str:
        """What the worker is, or was last, doing, in words."""
        if not self.since_P[worker]:
            return "before its first image"
        name = bytes(self.name_P[worker]).decode("utf-8", "replace")
        return f"at {printable(name)} (index {self.index_P[worker]})"


class Threads:
    """A pool of threads: decoding and resizing release the interpreter's lock, Python code does not."""

    background = True

    def __init__(self, filler: Filler, *, workers: int, timeout: float) -> None:
        self._filler = filler
        self._timeout = timeout
        self._status = WorkerStatus.over(bytearray(WorkerStatus.bytes_for(workers)), workers)
        self._watch = Watch(self._status, workers, "thread")
        self._work: SimpleQueue[_Piece | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[int, _Piece, Report | None]] = SimpleQueue()
        self._batches: dict[int, _Unfinished] = {}
        self._closed = threading.Event()
        self._threads = [
            # Daemons, so that a hanging thread does not keep the program from ending.
            threading.Thread(target=self._serve, args=(worker,), name=f"loader-{worker}", daemon=True)
            for worker in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, number: int, picks: Picks) -> None:
        """Cut the batch into pieces that any thread may take."""
        self._filler.expect(picks)
        cuts = pieces(len(picks), len(self._threads))
        images_BHWC = np.empty((len(picks), *self._filler.shape), np.uint8)
        self._batches[number] = _Unfinished(images_BHWC=images_BHWC, reports={}, missing=len(cuts))
        for start, stop in cuts:
            self._work.put(_Piece(number=number, start=start, picks=rows_of(picks, start, stop)))

    def finish(self, number: int) -> tuple[Pixels, list[Report]]:
        """Wait for the last piece; DataError if a thread hangs."""
        batch = self._batches[number]
        while batch.missing:
            self._receive()
        del self._batches[number]
        return batch.images_BHWC, batch.in_order()

    def forget(self) -> None:
        """Take back the pieces that nobody has started, and wait for the others."""
        with suppress(Empty):
            while (piece := self._work.get_nowait()) is not None:
                self._batches[piece.number].missing -= 1
        while any(batch.missing for batch in self._batches.values()):
            self._receive()
        self._batches.clear()

    def close(self) -> None:
        """Threads end after their current piece; a hanging one is left behind."""
        if self._closed.is_set():
            return
        self._closed.set()
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _receive(self) -> None:
        try:
            worker, piece, report = self._done.get(timeout=self._watch.patience(self._timeout))
        except Empty:
            self._watch.refuse_hanging(self._timeout)
            return
        if report is None:
            self._watch.began(worker)
            return
        self._watch.ended(worker)
        self._batches[piece.number].reports[piece.start] = report
        self._batches[piece.number].missing -= 1

    def _serve(self, worker: int) -> None:
        on_image = self._status.reporter(worker)
        while (piece := self._work.get()) is not None and not self._closed.is_set():
            self._done.put((worker, piece, None))
            images_BHWC = self._batches[piece.number].images_BHWC[piece.start : piece.start + len(piece.picks)]
            self._done.put((worker, piece, self._filler.fill(piece.picks, images_BHWC, on_image)))


class Watch:
    """Detects hanging workers by the time since they last started or finished anything."""

    def __init__(self, status: WorkerStatus, workers: int, kind: str) -> None:
        self._status = status
        self._kind = kind
        self.owed = [0] * workers
        """Pieces that each worker has been given and has not returned."""
        self._seen = [time.monotonic()] * workers

    def woke(self, worker: int) -> None:
        """The worker is ready for its first image."""
        self._seen[worker] = time.monotonic()

    def began(self, worker: int) -> None:
        """The worker has been given a piece."""
        if not self.owed[worker]:
            self._seen[worker] = time.monotonic()
        self.owed[worker] += 1

    def ended(self, worker: int) -> None:
        """The worker has returned a piece."""
        self._seen[worker] = time.monotonic()
        self.owed[worker] -= 1

    def patience(self, timeout: float) -> float:
        """Seconds until a worker could be found hanging; at most the timeout."""
        late = [self._idle(worker) for worker, owed in enumerate(self.owed) if owed]
        return max(0.01, timeout - max(late, default=0.0))

    def refuse_hanging(self, timeout: float) -> None:
        """DataError with the worker and its image, if one has not moved for `timeout` seconds."""
        for worker, owed in enumerate(self.owed):
            if owed and (idle := self._idle(worker)) >= timeout:
                raise DataError(
                    f"worker {worker} ({self._kind}) hangs {self._status.doing(worker)}: no progress for {idle:.1f} s",
                    hint=f"check the disk, or raise timeout={timeout:g}, the seconds that one image may take",
                )

    def _idle(self, worker: int) -> float:
        return time.monotonic() - max(self._seen[worker], float(self._status.since_P[worker]))


def pieces(count: int, workers: int) -> list[tuple[int, int]]:
    """(start, stop) rows of each piece of a batch: at least one piece per worker, and more for large batches."""
    number = min(count, max(workers, min(-(-count // _SMALL_PIECE), workers * _PIECES_A_WORKER)))
    return [(count * piece // number, count * (piece + 1) // number) for piece in range(number)]


def rows_of(picks: Picks, start: int, stop: int) -> Picks:
    """The rows from `start` to `stop`."""
    return Picks(index_B=picks.index_B[start:stop], epoch_B=picks.epoch_B[start:stop], repeat_B=picks.repeat_B[start:stop])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Piece:
    number: int
    start: int
    picks: Picks


@dataclass(slots=True, kw_only=True, eq=False)
class _Unfinished:
    images_BHWC: Pixels
    reports: dict[int, Report]  # by first row
    missing: int

    def in_order(self) -> list[Report]:
        return [self.reports[start] for start in sorted(self.reports)]


def _unwatched(index: int, name: str) -> None:
    """The caller needs no watch."""
