"""Workers that are processes: nothing shared but the memory the pictures are written to.

Each is a fresh interpreter, never a fork: a fork of a process whose torch threads hold locks can wait for them for ever, and a
fork server would import torch with the caller's script. A fresh one needs numpy and Pillow only and is ready in 0.2 s, while
the caller goes on. It lives in a process group of its own, so that Ctrl-C reaches the caller alone; it ends at once when the
caller does, however that ends; and the memory has no name in any file system that could be left behind.

Each worker has a connection of its own and no lock is shared, so a worker may be killed at any moment without stopping the
others or the caller; and the caller notices because the connection closes.

Axes: S batches under way, B rows of a batch, H height, W width, C channels.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Filler, Pixels, Report, WorkerTraceback
from vitlab.data.memory import nameless_file
from vitlab.data.order import Picks
from vitlab.data.workers import Progress, Watch, part, pieces
from vitlab.errors import ConfigError, DataError

_BOOT = (
    "import json, sys; told = json.loads(sys.argv[1]); sys.path[:] = told.pop('path'); "
    "from vitlab.data.processes import serve; serve(told)"
)
# One worker is one core's work: a library that starts threads of its own would only fight the other workers.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")
_START_SECONDS = 60.0  # to import what the view needs; a busy disk may take its time
_END_SECONDS = 5.0

_Task = tuple[int, int, int, int]  # batch, slot, first row, last row + 1
_Reply = tuple[int, int, Report]  # batch, first row
_Ready = tuple[None, str, str]  # what went wrong at the start and its traceback, both empty if nothing did


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things are in the shared memory: rows of pictures and picks for `slots` batches, and the workers' progress."""

    slots: int
    rows: int
    shape: tuple[int, int, int]
    workers: int

    @property
    def picture_bytes(self) -> int:
        """All pictures; the rest begins at the next multiple of 64."""
        height, width, channels = self.shape
        return -(-self.slots * self.rows * height * width * channels // 64) * 64

    @property
    def pick_bytes(self) -> int:
        """All picks."""
        return self.slots * 3 * self.rows * 8

    @property
    def total_bytes(self) -> int:
        """What to ask the system for; never nothing."""
        return self.picture_bytes + self.pick_bytes + Progress.bytes_for(self.workers)


class Shared:
    """The shared memory as arrays."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        memory = memoryview(mmap.mmap(descriptor, layout.total_bytes))
        height, width, channels = layout.shape
        count = layout.slots * layout.rows * height * width * channels
        self.images_SBHWC: Pixels = np.frombuffer(memory, np.uint8, count).reshape(layout.slots, layout.rows, *layout.shape)
        after = layout.picture_bytes
        picks = np.frombuffer(memory, np.int64, layout.slots * 3 * layout.rows, after)
        self.picks_S3B: NDArray[np.int64] = picks.reshape(layout.slots, 3, layout.rows)
        self.progress = Progress.over(memory[after + layout.pick_bytes :], layout.workers)

    def picks(self, slot: int, count: int) -> Picks:
        """The picks of the first rows of a slot."""
        index_B, epoch_B, repeat_B = self.picks_S3B[slot, :, :count]
        return Picks(index_B=index_B, epoch_B=epoch_B, repeat_B=repeat_B)


class Processes:
    """A pool of worker processes.

    `slots` batches of at most `rows` rows can be under way at once. `keep` are open files that the filler refers to by number.
    """

    background = True

    def __init__(self, filler: Filler, *, workers: int, timeout: float, slots: int, rows: int, keep: Sequence[int] = ()) -> None:
        self._timeout = timeout
        self._layout = Layout(slots=slots, rows=rows, shape=filler.shape, workers=workers)
        self._batches: dict[int, _Unfinished] = {}
        self._closed = False
        self._workers: list[_Worker] = []
        payload = _pickled(filler)
        with nameless_file() as memory, nameless_file() as recipe:
            memory.truncate(self._layout.total_bytes)
            recipe.write(payload)
            recipe.flush()
            self._shared = Shared(memory.fileno(), self._layout)
            self._watch = Watch(self._shared.progress, workers, "process")
            try:
                for number in range(workers):
                    self._workers.append(_started(number, self._layout, (memory.fileno(), recipe.fileno()), keep))
            except BaseException:
                self.close()
                raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process numbers."""
        return tuple(worker.process.pid for worker in self._workers)

    def start(self, number: int, picks: Picks) -> None:
        """Hand out the pieces, each to whoever has the least to do."""
        slot = number % self._layout.slots
        assert all(other % self._layout.slots != slot for other in self._batches), "more batches under way than slots"
        cuts = pieces(len(picks), len(self._workers))
        self._batches[number] = _Unfinished(rows=len(picks), missing=len(cuts), reports={})
        self._shared.picks_S3B[slot, :, : len(picks)] = picks.index_B, picks.epoch_B, picks.repeat_B
        for start, stop in cuts:
            worker = min(self._workers, key=lambda worker: self._watch.owed[worker.number])
            task: _Task = (number, slot, start, stop)
            with suppress(OSError):  # a worker that died is told of by `finish`
                # Never blocks for long: tasks are small, few are under way, and the worker reads them as they come.
                worker.connection.send(task)
            self._watch.began(worker.number)

    def finish(self, number: int) -> tuple[Pixels, list[Report]]:
        """Waits for the last piece, or for a worker to die or hang; the pictures are a copy, the slot is free again."""
        batch = self._batches[number]
        self._receive(0)  # also when nothing is missing: a worker that died is told of now
        while batch.missing:
            self._receive(self._watch.patience(self._limit))
        del self._batches[number]
        images_BHWC = self._shared.images_SBHWC[number % self._layout.slots, : batch.rows].copy()
        return images_BHWC, [batch.reports[start] for start in sorted(batch.reports)]

    def forget(self) -> None:
        """Waits for all pieces that were handed out: until then somebody may be writing to the slots."""
        self._receive(0)
        while any(self._watch.owed):
            self._receive(self._watch.patience(self._limit))
        self._batches.clear()

    def close(self) -> None:
        """Kill: a worker has nothing to save, and what hangs would not listen to anything milder."""
        if self._closed:
            return
        self._closed = True
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            worker.connection.close()

    @property
    def _limit(self) -> float:
        return self._timeout if all(worker.ready for worker in self._workers) else max(self._timeout, _START_SECONDS)

    def _receive(self, patience: float) -> None:
        """Take what the workers have sent, waiting at most `patience` seconds for the first; DataError where one died or hangs."""
        connections = {worker.connection: worker for worker in self._workers}
        there = wait(list(connections), patience)
        for connection in there:
            assert isinstance(connection, Connection)
            worker = connections[connection]
            try:
                message: _Reply | _Ready = connection.recv()
            except (EOFError, OSError):
                raise self._died(worker) from None
            if message[0] is None:
                self._note_ready(worker, message)
                continue
            number, start, report = message
            self._watch.ended(worker.number)
            self._batches[number].reports[start] = report
            self._batches[number].missing -= 1
        if not there:
            self._watch.refuse_hanging(self._limit)

    def _note_ready(self, worker: _Worker, message: _Ready) -> None:
        _, wrong, where = message
        if wrong:
            raise ConfigError(
                f"a worker process could not open the view or the source: {wrong}", hint=_HOW_TO_SEND
            ) from WorkerTraceback(where)
        worker.ready = True
        self._watch.woke(worker.number)

    def _died(self, worker: _Worker) -> DataError:
        try:
            code = worker.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it closed its connection and lives on
            worker.process.kill()
            code = worker.process.wait()
        who = f"worker {worker.number} (process {worker.process.pid})"
        doing = self._shared.progress.doing(worker.number)
        if code >= 0:
            return DataError(f"{who} ended with exit code {code} {doing}", hint="what it said is above")
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return DataError(f"{who} was killed by {name} {doing}", hint=_KILLED.get(name))


_HOW_TO_SEND = (
    "define it at the top of a module, not in the script or a function; or set worker_kind=thread, which needs no sending"
)
_KILLED = {
    "SIGKILL": "the system kills so when memory runs out: try fewer workers, a smaller prefetch or batch_size",
    "SIGSEGV": "that picture may break its decoder: try it alone, and report it to the decoder's authors",
    "SIGBUS": "a file it had mapped may have been cut short, or memory ran out",
}


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    connection: Connection
    ready: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class _Unfinished:
    rows: int
    missing: int
    reports: dict[int, Report]  # by first row


def serve(told: dict[str, Any]) -> None:
    """The life of a worker: open the view and the source, then fill rows until the caller closes the connection or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to answer
    connection = Connection(told["connection"])
    tasks: SimpleQueue[_Task] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, tasks), daemon=True).start()
    layout = told["layout"]
    shared = Shared(told["memory"], Layout(**{**layout, "shape": tuple(layout["shape"])}))
    try:
        with mmap.mmap(told["recipe"], 0, access=mmap.ACCESS_READ) as recipe:
            filler: Filler = pickle.loads(recipe)  # noqa: S301 (written by our own caller, to memory without a name)
    except Exception as error:  # noqa: BLE001 (whatever it is must reach the caller)
        connection.send((None, f"{type(error).__name__}: {error}", traceback.format_exc()))
        return
    connection.send((None, "", ""))
    telling = shared.progress.told_by(told["worker"])
    while True:
        number, slot, start, stop = tasks.get()
        picks = part(shared.picks(slot, stop), start, stop)
        report = filler.fill(picks, shared.images_SBHWC[slot, start:stop], telling)
        connection.send((number, start, report))


def _listen(connection: Connection, tasks: SimpleQueue[_Task]) -> None:
    """Take tasks as they come; end the process when the caller is gone, even if a picture hangs at that moment."""
    while True:
        try:
            tasks.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def _started(number: int, layout: Layout, files: tuple[int, int], keep: Sequence[int]) -> _Worker:
    ours, theirs = Pipe()
    memory, recipe = files
    told = {
        "path": [str(place) for place in sys.path],
        "worker": number,
        "connection": theirs.fileno(),
        "memory": memory,
        "recipe": recipe,
        "layout": asdict(layout),
    }
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a view prints is talk, not data
            pass_fds=(theirs.fileno(), memory, recipe, *keep),
            process_group=0,
            env={**os.environ, **_ONE_THREAD},
        )
    return _Worker(number=number, process=process, connection=ours)


def _pickled(filler: Filler) -> bytes:
    if os.name != "posix":
        raise ConfigError("worker processes need a POSIX system", hint="set worker_kind=thread")
    try:
        return pickle.dumps(filler, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"the view or the source cannot be sent to a worker process: {error}", hint=_HOW_TO_SEND) from error
