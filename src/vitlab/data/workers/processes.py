"""Workers that are processes: nothing shared but the memory the images are written to.

They are never forks of the caller, whose torch threads may hold locks that a fork would wait for for ever. One fresh interpreter
imports what the view needs (torch takes a second of that) while the caller goes on, and forks the workers; see worker_process.py.
It has a process group of its own, so that Ctrl-C reaches the caller alone; it and they end at once when the caller does,
however that ends; and the memory has no name in any file system that could be left behind.

Each worker has a connection of its own and no lock is shared, so a worker may be killed at any moment without stopping the
others or the caller; and the caller notices because the connection closes.

Axes: B rows of a batch, H height, W width, C channels.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from vitlab.data.batch import Filler, Pixels, Report, WorkerTraceback
from vitlab.data.sampler import Picks
from vitlab.data.workers.memory import nameless_file
from vitlab.data.workers.threads import Watch, pieces
from vitlab.data.workers.worker import Layout, News, Reply, Shared, Task
from vitlab.errors import ConfigError, DataError

_BOOT = (
    "import json, sys; told = json.loads(sys.argv[1]); sys.path[:] = told.pop('path'); "
    "from vitlab.data.workers.worker import run; run(told)"
)
# One worker is one core's work: a library that starts threads of its own would only fight the other workers.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")
_START_SECONDS = 120.0  # to import what the view needs; a busy disk may take its time
_END_SECONDS = 5.0

_HOW_TO_SEND = (
    "define it at the top of a module, not in the script or a function; or set worker_kind=thread, which needs no sending"
)
_KILLED = {
    "SIGKILL": "the system kills so when memory runs out: try fewer workers, a smaller prefetch or batch_size",
    "SIGSEGV": "that image may break its decoder: try it alone, and report it to the decoder's authors",
    "SIGBUS": "a file it had mapped may have been cut short, or memory ran out",
}


class Processes:
    """A pool of worker processes.

    `slots` batches of at most `rows` rows can be under way at once. `keep` are open files that the filler refers to by number.
    `fork` makes them forks of one fresh interpreter, rather than each a fresh one.
    """

    background = True

    def __init__(
        self,
        filler: Filler,
        *,
        workers: int,
        timeout: float,
        slots: int,
        rows: int,
        keep: Sequence[int] = (),
        fork: bool = sys.platform == "linux",
    ) -> None:
        self._timeout = timeout
        self._layout = Layout(slots=slots, rows=rows, shape=filler.shape, workers=workers)
        self._batches: dict[int, _Unfinished] = {}
        self._closed = False
        self._keepers: list[_Keeper] = []
        self._workers: list[_Worker] = []
        payload = _pickled(filler)
        with nameless_file() as memory, nameless_file() as recipe:
            memory.truncate(self._layout.total_bytes)
            recipe.write(payload)
            recipe.flush()
            self._shared = Shared(memory.fileno(), self._layout)
            self._watch = Watch(self._shared.progress, workers, "process")
            files = {"memory": memory.fileno(), "recipe": recipe.fileno()}
            try:
                for group in [range(workers)] if fork else [range(number, number + 1) for number in range(workers)]:
                    self._start_keeper(group, files, keep, fork=fork)
            except BaseException:
                self.close()
                raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process numbers; waits until they are known."""
        deadline = time.monotonic() + _START_SECONDS
        while any(worker.pid == 0 for worker in self._workers) and time.monotonic() < deadline:
            self._receive(0.1)
        return tuple(worker.pid for worker in self._workers)

    def start(self, number: int, picks: Picks) -> None:
        """Hand out the pieces, each to whoever has the least to do."""
        slot = number % self._layout.slots
        assert all(other % self._layout.slots != slot for other in self._batches), "more batches under way than slots"
        cuts = pieces(len(picks), len(self._workers))
        self._batches[number] = _Unfinished(rows=len(picks), missing=len(cuts), reports={})
        self._shared.picks_S3B[slot, :, : len(picks)] = picks.index_B, picks.epoch_B, picks.repeat_B
        for start, stop in cuts:
            worker = min(self._workers, key=lambda worker: self._watch.owed[worker.number])
            task: Task = (number, slot, start, stop)
            with suppress(OSError):  # a worker that died is told of by `finish`
                # Never blocks for long: tasks are small, few are under way, and the worker reads them as they come.
                worker.connection.send(task)
            self._watch.began(worker.number)

    def finish(self, number: int) -> tuple[Pixels, list[Report]]:
        """Waits for the last piece, or for a worker to die or hang; the images are a copy, the slot is free again."""
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
        """End them: a keeper kills and buries its workers when its connection closes; one that does not is killed itself."""
        if self._closed:
            return
        self._closed = True
        for connection in self._connections():
            connection.close()
        for checkpointer in self._keepers:
            if not checkpointer.forks:
                checkpointer.process.kill()
            try:
                checkpointer.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(checkpointer.process.pid, signal.SIGKILL)
                checkpointer.process.wait()

    def _start_keeper(self, group: range, files: dict[str, int], keep: Sequence[int], *, fork: bool) -> None:
        """One fresh interpreter and the connections to it and to its workers."""
        control, their_control = Pipe()
        theirs: list[Connection] = []
        for number in group:
            ours, their = Pipe()
            theirs.append(their)
            self._workers.append(_Worker(number=number, checkpointer=len(self._keepers), connection=ours))
        told = {
            **files,
            "path": [str(place) for place in sys.path],
            "control": their_control.fileno(),
            "connections": [their.fileno() for their in theirs],
            "layout": asdict(self._layout),
            "first": group[0],
            "fork": fork,
        }
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a view prints is talk, not data
                pass_fds=(their_control.fileno(), *(their.fileno() for their in theirs), *files.values(), *keep),
                process_group=0,
                env={**os.environ, **_ONE_THREAD},
            )
        finally:
            for their in (their_control, *theirs):
                their.close()
        self._keepers.append(_Keeper(process=process, connection=control, forks=fork))

    @property
    def _limit(self) -> float:
        return self._timeout if all(worker.pid for worker in self._workers) else max(self._timeout, _START_SECONDS)

    def _receive(self, patience: float) -> None:
        """Take what there is, waiting at most `patience` seconds for the first; DataError where a worker died or hangs."""
        there = wait(self._connections(), patience)
        for checkpointer in self._keepers:
            if checkpointer.connection in there:
                self._hear(checkpointer)
        for worker in self._workers:
            if worker.connection not in there:
                continue
            try:
                number, start, report = _replied(worker.connection)
            except (EOFError, OSError):
                raise self._died(worker) from None
            self._watch.ended(worker.number)
            self._batches[number].reports[start] = report
            self._batches[number].missing -= 1
        if not there:
            self._watch.refuse_hanging(self._limit)

    def _connections(self) -> list[Connection]:
        return [checkpointer.connection for checkpointer in self._keepers] + [worker.connection for worker in self._workers]

    def _hear(self, checkpointer: _Keeper) -> None:
        """Take one piece of news; DataError or ConfigError where it is bad."""
        try:
            news: News = checkpointer.connection.recv()
        except (EOFError, OSError):
            if not checkpointer.forks:
                raise self._died(self._workers[self._keepers.index(checkpointer)]) from None
            code = checkpointer.process.wait()
            raise DataError(
                f"the process {checkpointer.process.pid} that starts the workers {_end(code)}", hint=_hint(code)
            ) from None
        kind, number, value, wrong, where = news
        if kind == "broken":
            raise ConfigError(
                f"a worker process could not open the view or the source: {wrong}", hint=_HOW_TO_SEND
            ) from WorkerTraceback(where)
        worker = self._workers[number]
        if kind == "ready":
            worker.pid = value
            self._watch.woke(number)
        else:
            worker.code = value
            raise self._died(worker)

    def _died(self, worker: _Worker) -> DataError:
        """How and at what it ended."""
        checkpointer = self._keepers[worker.checkpointer]
        deadline = time.monotonic() + _END_SECONDS
        if not checkpointer.forks:
            worker.code = checkpointer.process.wait()
        while worker.code is None and checkpointer.connection.poll(max(0.0, deadline - time.monotonic())):
            try:
                kind, number, value, _, _ = checkpointer.connection.recv()
            except (EOFError, OSError):
                break
            if kind == "ended":
                self._workers[number].code = value
        doing = self._shared.progress.doing(worker.number)
        who = f"worker {worker.number} (process {worker.pid if checkpointer.forks else checkpointer.process.pid})"
        return DataError(f"{who} {_end(worker.code)} {doing}", hint=_hint(worker.code))


@dataclass(slots=True, kw_only=True, eq=False)
class _Keeper:
    process: subprocess.Popen[bytes]
    connection: Connection
    forks: bool


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    number: int
    checkpointer: int
    connection: Connection
    pid: int = 0  # until it is ready
    code: int | None = None  # until it has ended


@dataclass(slots=True, kw_only=True, eq=False)
class _Unfinished:
    rows: int
    missing: int
    reports: dict[int, Report]  # by first row


def _replied(connection: Connection) -> Reply:
    reply: Reply = connection.recv()
    return reply


def _end(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    return f"was killed by {_signal(code)}" if code < 0 else f"ended with exit code {code}"


def _hint(code: int | None) -> str | None:
    return _KILLED.get(_signal(code)) if code is not None and code < 0 else "what it said is above"


def _signal(code: int) -> str:
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def _pickled(filler: Filler) -> bytes:
    if os.name != "posix":
        raise ConfigError("worker processes need a POSIX system", hint="set worker_kind=thread")
    try:
        return pickle.dumps(filler, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"the view or the source cannot be sent to a worker process: {error}", hint=_HOW_TO_SEND) from error
