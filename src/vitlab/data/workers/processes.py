"""The pool of worker processes, which share only the memory that images are written to.

Workers are never forks of the caller, whose torch threads may hold locks that a fork would wait for forever. One fresh
interpreter, the launcher, imports what the transform needs while the caller continues, and forks the workers (worker.py). The
launcher has its own process group, so that Ctrl-C reaches the caller alone. Launcher and workers end at once when the caller ends,
for whatever reason; the memory has no name in a file system, so nothing is left behind.

Each worker has its own connection and no lock is shared. So a worker may be killed at any moment without blocking the others or
the caller, which notices because the connection closes.

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

from vitlab.data.batch import Filler, Report, WorkerTraceback
from vitlab.data.dataset import Pixels
from vitlab.data.sampler import Picks
from vitlab.data.workers.threads import Watch, pieces
from vitlab.data.workers.worker import Layout, News, Reply, Shared, Task
from vitlab.errors import ConfigError, DataError
from vitlab.io.machine import nameless_file

_BOOT = (
    "import json, sys; settings = json.loads(sys.argv[1]); sys.path[:] = settings.pop('path'); "
    "from vitlab.data.workers.worker import run; run(settings)"
)
# One worker uses one core: threads of a library would only compete with the other workers.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")
_START_SECONDS = 120.0  # to import what the transform needs, also from a busy disk
_END_SECONDS = 5.0

_HOW_TO_SEND = (
    "define it at the top level of a module, not in the script or in a function; or set worker_kind=thread, which needs no pickling"
)
_KILLED = {
    "SIGKILL": "the system does this when memory runs out: use fewer workers, a smaller prefetch or batch_size",
    "SIGSEGV": "the image may crash its decoder: try it alone, and report it to the decoder's authors",
    "SIGBUS": "a mapped file may have been truncated, or memory ran out",
}


class Processes:
    """A pool of worker processes.

    `slots` batches of at most `rows` rows can be in progress at once. `keep` are open files that the filler refers to by number.
    `fork` forks the workers from one fresh interpreter; otherwise each worker is a fresh interpreter.
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
        self._launchers: list[_Launcher] = []
        self._workers: list[_Worker] = []
        payload = _pickled(filler)
        with nameless_file() as memory, nameless_file() as pickled:
            memory.truncate(self._layout.total_bytes)
            pickled.write(payload)
            pickled.flush()
            self._shared = Shared(memory.fileno(), self._layout)
            self._watch = Watch(self._shared.status, workers, "process")
            files = {"memory": memory.fileno(), "filler": pickled.fileno()}
            try:
                for group in [range(workers)] if fork else [range(number, number + 1) for number in range(workers)]:
                    self._start_launcher(group, files, keep, fork=fork)
            except BaseException:
                self.close()
                raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids; waits until they are known."""
        deadline = time.monotonic() + _START_SECONDS
        while any(worker.pid == 0 for worker in self._workers) and time.monotonic() < deadline:
            self._receive(0.1)
        return tuple(worker.pid for worker in self._workers)

    def start(self, number: int, picks: Picks) -> None:
        """Give each piece to the worker with the least to do."""
        slot = number % self._layout.slots
        assert all(other % self._layout.slots != slot for other in self._batches), "more batches in progress than slots"
        cuts = pieces(len(picks), len(self._workers))
        self._batches[number] = _Unfinished(rows=len(picks), missing=len(cuts), reports={})
        self._shared.picks_S3B[slot, :, : len(picks)] = picks.index_B, picks.epoch_B, picks.repeat_B
        for start, stop in cuts:
            worker = min(self._workers, key=lambda worker: self._watch.owed[worker.number])
            task: Task = (number, slot, start, stop)
            with suppress(OSError):  # `finish` reports a dead worker
                # This never blocks for long: tasks are small and few, and the worker reads them at once.
                worker.connection.send(task)
            self._watch.began(worker.number)

    def finish(self, number: int) -> tuple[Pixels, list[Report]]:
        """Wait for the last piece; the images are a copy, so the slot is free again. DataError if a worker died or hangs."""
        batch = self._batches[number]
        self._receive(0)  # even if nothing is missing: a dead worker is reported now
        while batch.missing:
            self._receive(self._watch.patience(self._limit))
        del self._batches[number]
        images_BHWC = self._shared.images_SBHWC[number % self._layout.slots, : batch.rows].copy()
        return images_BHWC, [batch.reports[start] for start in sorted(batch.reports)]

    def forget(self) -> None:
        """Wait for all pieces that were handed out; until then workers may write to the slots."""
        self._receive(0)
        while any(self._watch.owed):
            self._receive(self._watch.patience(self._limit))
        self._batches.clear()

    def close(self) -> None:
        """End all workers: the launcher kills them when its connection closes; if it does not, it is killed too."""
        if self._closed:
            return
        self._closed = True
        for connection in self._connections():
            connection.close()
        for launcher in self._launchers:
            if not launcher.forks:
                launcher.process.kill()
            try:
                launcher.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(launcher.process.pid, signal.SIGKILL)
                launcher.process.wait()

    def _start_launcher(self, group: range, files: dict[str, int], keep: Sequence[int], *, fork: bool) -> None:
        """Start a fresh interpreter, with connections to it and to its workers."""
        control, their_control = Pipe()
        theirs: list[Connection] = []
        for number in group:
            ours, their = Pipe()
            theirs.append(their)
            self._workers.append(_Worker(number=number, launcher=len(self._launchers), connection=ours))
        settings = {
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
                [sys.executable, "-c", _BOOT, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a transform prints is not data
                pass_fds=(their_control.fileno(), *(their.fileno() for their in theirs), *files.values(), *keep),
                process_group=0,
                env={**os.environ, **_ONE_THREAD},
            )
        finally:
            for their in (their_control, *theirs):
                their.close()
        self._launchers.append(_Launcher(process=process, connection=control, forks=fork))

    @property
    def _limit(self) -> float:
        return self._timeout if all(worker.pid for worker in self._workers) else max(self._timeout, _START_SECONDS)

    def _receive(self, patience: float) -> None:
        """Receive what is there, waiting at most `patience` seconds; DataError if a worker died or hangs."""
        there = wait(self._connections(), patience)
        for launcher in self._launchers:
            if launcher.connection in there:
                self._hear_launcher(launcher)
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
        return [launcher.connection for launcher in self._launchers] + [worker.connection for worker in self._workers]

    def _hear_launcher(self, launcher: _Launcher) -> None:
        """Receive one message of a launcher; DataError or ConfigError if it reports a problem."""
        try:
            news: News = launcher.connection.recv()
        except (EOFError, OSError):
            if not launcher.forks:
                raise self._died(self._workers[self._launchers.index(launcher)]) from None
            code = launcher.process.wait()
            raise DataError(f"the process {launcher.process.pid} that starts the workers {_end(code)}", hint=_hint(code)) from None
        kind, number, value, wrong, where = news
        if kind == "broken":
            raise ConfigError(
                f"a worker process could not load the transform or the dataset: {wrong}", hint=_HOW_TO_SEND
            ) from WorkerTraceback(where)
        worker = self._workers[number]
        if kind == "ready":
            worker.pid = value
            self._watch.woke(number)
        elif kind == "fetcher ended":
            raise DataError(f"the process that fetches images for worker {number} {_end(value)}", hint=_hint(value))
        else:
            worker.code = value
            raise self._died(worker)

    def _died(self, worker: _Worker) -> DataError:
        """The error for a dead worker: how it ended, and at which image."""
        launcher = self._launchers[worker.launcher]
        deadline = time.monotonic() + _END_SECONDS
        if not launcher.forks:
            worker.code = launcher.process.wait()
        while worker.code is None and launcher.connection.poll(max(0.0, deadline - time.monotonic())):
            try:
                kind, number, value, _, _ = launcher.connection.recv()
            except (EOFError, OSError):
                break
            if kind == "ended":
                self._workers[number].code = value
        doing = self._shared.status.doing(worker.number)
        who = f"worker {worker.number} (process {worker.pid if launcher.forks else launcher.process.pid})"
        return DataError(f"{who} {_end(worker.code)} {doing}", hint=_hint(worker.code))


@dataclass(slots=True, kw_only=True, eq=False)
class _Launcher:
    process: subprocess.Popen[bytes]
    connection: Connection
    forks: bool


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    number: int
    launcher: int
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
    return _KILLED.get(_signal(code)) if code is not None and code < 0 else "its output is above"


def _signal(code: int) -> str:
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def _pickled(filler: Filler) -> bytes:
    if os.name != "posix":
        raise ConfigError("worker processes need a POSIX system", hint="set worker_kind=thread")
    try:
        return pickle.dumps(filler, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the transform or the dataset cannot be pickled for a worker process: {error}", hint=_HOW_TO_SEND
        ) from error
