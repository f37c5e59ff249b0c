"""Who does the work of a batch: the caller itself, or threads. Processes stand next door, in processes.py.

Each is a pool with the same three verbs, and gives the same bits: a batch is cut into pieces, whoever is free takes one, and
every row has its place.

Axes: B rows of a batch, H height, W width, C channels; P workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Filler, Pixels, Report
from vitlab.data.sampler import Picks
from vitlab.errors import DataError
from vitlab.io.names import printable

_NAME_BYTES = 240
_SMALL_PIECE = 16  # rows; handing out a piece costs about as much as viewing one small image
_PIECES_A_WORKER = 4  # per batch, so that a slow image delays its own piece only
_JOIN_SECONDS = 0.5


class Pool(Protocol):
    """Works on batches by number; at most as many at once as it was made for."""

    background: bool
    """Whether work goes on while the caller does something else."""

    def start(self, number: int, picks: Picks) -> None:
        """Begin with a batch; returns at once where work goes on in the background."""
        ...

    def finish(self, number: int) -> tuple[Pixels, list[Report]]:
        """The batch's images [B, H, W, C] and the reports on its rows, in order; DataError where a worker died or hangs."""
        ...

    def forget(self) -> None:
        """Give up all batches under way, waiting until nobody works on them; then other batches may be started."""
        ...

    def close(self) -> None:
        """End all workers, whatever they are doing. May be called twice."""
        ...


class InCaller:
    """No workers: a batch is made when it is asked for."""

    background = False

    def __init__(self, filler: Filler) -> None:
        self._filler = filler
        self._picks: dict[int, Picks] = {}

    def start(self, number: int, picks: Picks) -> None:
        """Only remembered."""
        self._picks[number] = picks

    def finish(self, number: int) -> tuple[Pixels, list[Report]]:
        """Made here and now."""
        picks = self._picks.pop(number)
        images_BHWC = np.empty((len(picks), *self._filler.shape), np.uint8)
        return images_BHWC, [self._filler.fill(picks, images_BHWC, _nobody)]

    def forget(self) -> None:
        """Nothing is under way but plans."""
        self._picks.clear()

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Progress:
    """What each worker is doing, readable by all: since when (seconds of the monotonic clock), on which image, called what."""

    since_P: NDArray[np.float64]
    index_P: NDArray[np.int64]
    name_P: NDArray[np.bytes_]

    @staticmethod
    def bytes_for(workers: int) -> int:
        """How much memory it takes."""
        return workers * (16 + _NAME_BYTES)

    @classmethod
    def over(cls, memory: bytearray | memoryview, workers: int) -> Progress:
        """In memory that may be shared, beginning with zeros."""
        return cls(
            since_P=np.frombuffer(memory, np.float64, workers),
            index_P=np.frombuffer(memory, np.int64, workers, 8 * workers),
            name_P=np.frombuffer(memory, f"S{_NAME_BYTES}", workers, 16 * workers),
        )

    def told_by(self, worker: int) -> Callable[[int, str], None]:
        """What the worker calls with each image, before and after it knows the name."""

        def telling(index: int, name: str) -> None:
            self.index_P[worker] = index
            self.name_P[worker] = name.encode("utf-8", "replace")[-_NAME_BYTES:]  # a path's end says more than its start
            self.since_P[worker] = time.monotonic()

        return telling

    def doing(self, worker: int) -> str:
        """What it is, or was last, busy with, in words."""
        if not self.since_P[worker]:
            return "before its first image"
        name = bytes(self.name_P[worker]).decode("utf-8", "replace")
        return f"at {printable(name)} (index {self.index_P[worker]})"


class Threads:
    """Workers that are threads of this process: decoding and resizing release the interpreter's lock, Python code does not."""

    background = True

    def __init__(self, filler: Filler, *, workers: int, timeout: float) -> None:
        self._filler = filler
        self._timeout = timeout
        self._progress = Progress.over(bytearray(Progress.bytes_for(workers)), workers)
        self._watch = Watch(self._progress, workers, "thread")
        self._work: SimpleQueue[_Piece | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[int, _Piece, Report | None]] = SimpleQueue()
        self._batches: dict[int, _Unfinished] = {}
        self._closed = threading.Event()
        self._threads = [
            # Daemons, so that one that hangs cannot keep the program from ending.
            threading.Thread(target=self._serve, args=(worker,), name=f"loader-{worker}", daemon=True)
            for worker in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, number: int, picks: Picks) -> None:
        """Cut into pieces that any thread may take."""
        cuts = pieces(len(picks), len(self._threads))
        images_BHWC = np.empty((len(picks), *self._filler.shape), np.uint8)
        self._batches[number] = _Unfinished(images_BHWC=images_BHWC, reports={}, missing=len(cuts))
        for start, stop in cuts:
            self._work.put(_Piece(number=number, start=start, picks=part(picks, start, stop)))

    def finish(self, number: int) -> tuple[Pixels, list[Report]]:
        """Waits for the last piece, or for a thread to hang."""
        batch = self._batches[number]
        while batch.missing:
            self._receive()
        del self._batches[number]
        return batch.images_BHWC, batch.in_order()

    def forget(self) -> None:
        """Waits for the pieces that were begun; the others are taken back."""
        with suppress(Empty):
            while (piece := self._work.get_nowait()) is not None:
                self._batches[piece.number].missing -= 1
        while any(batch.missing for batch in self._batches.values()):
            self._receive()
        self._batches.clear()

    def close(self) -> None:
        """Threads end after the piece they are at; one that hangs is left behind."""
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
        telling = self._progress.told_by(worker)
        while (piece := self._work.get()) is not None and not self._closed.is_set():
            self._done.put((worker, piece, None))
            images_BHWC = self._batches[piece.number].images_BHWC[piece.start : piece.start + len(piece.picks)]
            self._done.put((worker, piece, self._filler.fill(piece.picks, images_BHWC, telling)))


class Watch:
    """Tells a worker that hangs from one that is busy: by the time since it was last seen to begin or end anything."""

    def __init__(self, progress: Progress, workers: int, kind: str) -> None:
        self._progress = progress
        self._kind = kind
        self.owed = [0] * workers
        """Pieces each worker has been given and not returned."""
        self._seen = [time.monotonic()] * workers

    def woke(self, worker: int) -> None:
        """It is ready for its first image."""
        self._seen[worker] = time.monotonic()

    def began(self, worker: int) -> None:
        """It has been given a piece."""
        if not self.owed[worker]:
            self._seen[worker] = time.monotonic()
        self.owed[worker] += 1

    def ended(self, worker: int) -> None:
        """It has returned one."""
        self._seen[worker] = time.monotonic()
        self.owed[worker] -= 1

    def patience(self, timeout: float) -> float:
        """Seconds until the first worker could be found hanging; at most the timeout."""
        late = [self._idle(worker) for worker, owed in enumerate(self.owed) if owed]
        return max(0.01, timeout - max(late, default=0.0))

    def refuse_hanging(self, timeout: float) -> None:
        """DataError that names the worker and its image, if one has not moved for `timeout` seconds."""
        for worker, owed in enumerate(self.owed):
            if owed and (idle := self._idle(worker)) >= timeout:
                raise DataError(
                    f"worker {worker} ({self._kind}) hangs {self._progress.doing(worker)}: no sign of life for {idle:.1f} s",
                    hint=f"is the disk still there? an image may take timeout={timeout:g} seconds",
                )

    def _idle(self, worker: int) -> float:
        return time.monotonic() - max(self._seen[worker], float(self._progress.since_P[worker]))


def pieces(count: int, workers: int) -> list[tuple[int, int]]:
    """Rows `start` to `stop` of each piece of a batch: work for every worker, and more pieces than workers where it is much."""
    number = min(count, max(workers, min(-(-count // _SMALL_PIECE), workers * _PIECES_A_WORKER)))
    return [(count * piece // number, count * (piece + 1) // number) for piece in range(number)]


def part(picks: Picks, start: int, stop: int) -> Picks:
    """Rows `start` to `stop`."""
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


def _nobody(index: int, name: str) -> None:
    """Nobody watches the caller."""
