"""Worker processes of the loader: their pool, the workers, and the fetchers beside them. They share only the memory of the images.

Workers are never forks of the caller, whose torch threads may hold locks that a fork would wait for forever. One fresh
interpreter, the launcher, imports what the transform needs while the caller continues, and forks the workers. The launcher has
its own process group, so that Ctrl-C reaches the caller alone. Launcher and workers end at once when the caller ends, for
whatever reason; the memory has no name in a file system, so nothing is left behind.

Each worker has its own connection and no lock is shared. So a worker may be killed at any moment without blocking the others or
the caller, which notices because the connection closes.

Axes: S batches in progress, B rows of a batch, H height, W width, C channels.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Filler, Report, WorkerTraceback
from vitlab.data.dataset import Contents, ImageDataset, Pixels, RemoteReadable
from vitlab.data.sampler import Picks
from vitlab.data.worker_threads import Watch, WorkerStatus, pieces, rows_of
from vitlab.errors import ConfigError, DataError, StorageError, VitlabError
from vitlab.io.digests import Digests
from vitlab.io.machine import nameless_file

_BOOT = (
    "import json, sys; settings = json.loads(sys.argv[1]); sys.path[:] = settings.pop('path'); "
    "from vitlab.data.worker_processes import run; run(settings)"
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


# --- what caller and workers share -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of the shared memory: images and picks for `slots` batches, and the workers' status."""

    slots: int
    rows: int
    shape: tuple[int, int, int]
    workers: int

    @property
    def image_bytes(self) -> int:
        """Bytes of all images; the rest begins at the next multiple of 64."""
        height, width, channels = self.shape
        return -(-self.slots * self.rows * height * width * channels // 64) * 64

    @property
    def pick_bytes(self) -> int:
        """Bytes of all picks."""
        return self.slots * 3 * self.rows * 8

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole memory; never 0."""
        return self.image_bytes + self.pick_bytes + WorkerStatus.bytes_for(self.workers)


class Shared:
    """The shared memory as arrays."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        memory = memoryview(mmap.mmap(descriptor, layout.total_bytes))
        height, width, channels = layout.shape
        count = layout.slots * layout.rows * height * width * channels
        self.images_SBHWC: Pixels = np.frombuffer(memory, np.uint8, count).reshape(layout.slots, layout.rows, *layout.shape)
        after = layout.image_bytes
        picks = np.frombuffer(memory, np.int64, layout.slots * 3 * layout.rows, after)
        self.picks_S3B: NDArray[np.int64] = picks.reshape(layout.slots, 3, layout.rows)
        self.status = WorkerStatus.over(memory[after + layout.pick_bytes :], layout.workers)

    def picks(self, slot: int, count: int) -> Picks:
        """The picks of the first `count` rows of a slot."""
        index_B, epoch_B, repeat_B = self.picks_S3B[slot, :, :count]
        return Picks(index_B=index_B, epoch_B=epoch_B, repeat_B=repeat_B)


Task = tuple[int, int, int, int]
"""Batch, slot, first row, last row + 1: from the caller to a worker."""

Reply = tuple[int, int, Report]
"""Batch, first row, report: from a worker to the caller."""

News = tuple[str, int, int, str, str]
"""From the launcher to the caller: ("broken", 0, 0, message, traceback); ("ready", worker, process, "", "") for each worker;
("ended", worker, exit code or minus the signal, "", ""); ("fetcher ended", worker, the same, "", "")."""


# --- launcher and workers ----------------------------------------------------------------------------------------------------

# Inside the launcher and the workers. The launcher is a fresh interpreter that has never started a thread, so its forks are
# safe, start at once, and share its memory. On other systems than Linux, whose libraries start threads, every worker is a fresh
# interpreter.
#
# `settings` come from the caller: the numbers of the inherited files `control`, `memory`, `filler` and of each worker's connection,
# the layout of the memory, the number of the first worker, and whether to fork. If the images are on a server, the launcher also
# forks a fetcher for each worker; a worker that is a fresh interpreter reads from the server itself, in threads.


def run(settings: dict[str, Any]) -> None:
    """Load the transform and the dataset, and work until the caller closes the connections or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    control = Connection(settings["control"])
    shared = Shared(settings["memory"], Layout(**{**settings["layout"], "shape": tuple(settings["layout"]["shape"])}))
    try:
        with mmap.mmap(settings["filler"], 0, access=mmap.ACCESS_READ) as pickled:
            filler: Filler = pickle.loads(pickled)  # noqa: S301 (written by our own caller, to memory without a name)
    except Exception as error:  # noqa: BLE001 (any error must reach the caller)
        control.send(("broken", 0, 0, f"{type(error).__name__}: {error}", traceback.format_exc()))
        return
    if settings["fork"]:
        _launch(settings, control, filler, shared)
    else:
        with suppress(OSError):
            control.send(("ready", settings["first"], os.getpid(), "", ""))
        _serve(settings["first"], Connection(settings["connections"][0]), filler, shared)


def _launch(settings: dict[str, Any], control: Connection, filler: Filler, shared: Shared) -> None:
    """Fork the workers, report each that ends, and end them all when the caller closes its connection."""
    gc.collect()
    gc.freeze()  # else the first collection in each worker would copy every page
    workers: dict[int, int] = {}
    fetchers: dict[int, int] = {}
    remote = needs_fetcher(filler)
    for number, descriptor in enumerate(settings["connections"]):
        # Else the end of a process is not noticed while another one holds its connection.
        others = [other for other in (settings["control"], *settings["connections"]) if other != descriptor]
        pair = socket.socketpair() if remote else None
        workers[_forked(_work, number, descriptor, others, filler, shared, pair)] = number
        if pair is not None:
            fetchers[_forked(_fetch, [*others, descriptor], filler, pair)] = number
            for end in pair:
                end.close()
    for descriptor in settings["connections"]:
        os.close(descriptor)
    with suppress(OSError):  # the caller may have stopped already, which is noticed next
        for pid, number in workers.items():
            control.send(("ready", number, pid, "", ""))
    threading.Thread(target=_end_with_caller, args=(control, workers), daemon=True).start()
    while workers:
        pid, status = os.waitpid(-1, 0)
        code = os.waitstatus_to_exitcode(status)
        with suppress(OSError):  # the caller may be gone
            if pid in workers:
                control.send(("ended", workers.pop(pid), code, "", ""))
            elif (number := fetchers.pop(pid)) in workers.values() and code:
                control.send(("fetcher ended", number, code, "", ""))
    for pid in fetchers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)


def _forked(serve: Callable[..., None], *arguments: object) -> int:
    """The process id of a fork that calls `serve`, which does not return."""
    pid = os.fork()
    if pid == 0:
        try:
            serve(*arguments)
        finally:  # if it does, this process must not become a second launcher
            traceback.print_exc()
            os._exit(1)
    return pid


def _work(
    number: int,
    descriptor: int,
    others: Sequence[int],
    filler: Filler,
    shared: Shared,
    pair: tuple[socket.socket, socket.socket] | None,
) -> None:
    """What a worker does; `others` are open files of other processes."""
    for other in others:
        os.close(other)
    if pair is None:
        _serve(number, Connection(descriptor), filler, shared)
        return
    ours, theirs = pair
    theirs.close()
    assert isinstance(filler.dataset, ImageDataset)
    fetched = FetchedContents(filler.dataset.contents, ours)
    filler = replace(filler, dataset=replace(filler.dataset, contents=fetched))
    _serve(number, Connection(descriptor), filler, shared, fetched.begin_piece)


def _fetch(others: Sequence[int], filler: Filler, pair: tuple[socket.socket, socket.socket]) -> None:
    """What a fetcher does."""
    for other in others:
        os.close(other)
    theirs, ours = pair
    theirs.close()
    _serve_fetches(filler, ours)


def _end_with_caller(control: Connection, workers: dict[int, int]) -> None:
    with suppress(EOFError, OSError):
        control.recv()  # nothing is ever sent: this returns when the caller closes its side, or dies
    for pid in list(workers):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it has nothing to save, and a hanging worker ignores other signals


def _serve(number: int, connection: Connection, filler: Filler, shared: Shared, on_task: Callable[[], None] = lambda: None) -> None:
    """Fill rows until the connection closes; `on_task` is called before each task."""
    tasks: SimpleQueue[Task] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, tasks, filler, shared), daemon=True).start()
    on_image = shared.status.reporter(number)
    while True:
        batch, slot, start, stop = tasks.get()
        picks = rows_of(shared.picks(slot, stop), start, stop)
        on_task()
        report = filler.fill(picks, shared.images_SBHWC[slot, start:stop], on_image)
        reply: Reply = (batch, start, report)
        try:
            connection.send(reply)
        except OSError:
            os._exit(0)


def _listen(connection: Connection, tasks: SimpleQueue[Task], filler: Filler, shared: Shared) -> None:
    """Receive tasks; end the process when the caller is gone, even if an image hangs at that moment.

    Tasks come as many batches ahead as the loader prefetches, so images on a server are on their way before they are needed.
    """
    while True:
        try:
            task: Task = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        _, slot, start, stop = task
        filler.expect(rows_of(shared.picks(slot, stop), start, stop))
        tasks.put(task)


# --- the fetcher: a process beside a worker that reads images from a server for it -------------------------------------------

# Requests, checksums and the cache need the interpreter's lock many times for each image. In the worker's own interpreter they
# would stop the thread that decodes again and again; in the fetcher they run on another core, and the worker receives the bytes
# of its images, in the order in which it needs them, as cheaply as from a file.
#
# Both are forks of the launcher and are joined by a socket. The worker sends rows; for each of them it receives a head
# (`_HEAD`) and the bytes, or a pickled error. The fetcher ends when the socket closes.

_COUNT = struct.Struct("<q")  # rows of a request, each of which follows as such a number
_HEAD = struct.Struct("<?q")  # whether these are the bytes of an image, not an error; their number
_BUFFER = 2**20  # bytes that the socket may hold, if the system allows it


def needs_fetcher(filler: Filler) -> bool:
    """Whether the images are on a server."""
    dataset = filler.dataset
    return isinstance(dataset, ImageDataset) and isinstance(dataset.contents, RemoteReadable) and dataset.is_remote


def _serve_fetches(filler: Filler, connection: socket.socket) -> None:
    """Read what the worker asks for until it closes the connection, then end the process."""
    dataset = filler.dataset
    assert isinstance(dataset, ImageDataset)
    contents = dataset.contents
    assert isinstance(contents, RemoteReadable)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    rows: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_send_all, args=(dataset.contents, rows, connection), daemon=True).start()
    while True:
        try:
            (count,) = _COUNT.unpack(_received(connection, _COUNT.size))
            asked = struct.unpack(f"<{count}q", _received(connection, count * _COUNT.size))
        except (EOFError, OSError):
            os._exit(0)
        contents.expect(asked)
        for row in asked:
            rows.put(row)


def _send_all(contents: Contents, rows: SimpleQueue[int], connection: socket.socket) -> None:
    while True:
        good, data = _read(contents, rows.get())
        try:
            connection.sendall(_HEAD.pack(good, len(data)) + data)
        except OSError:
            os._exit(0)  # the worker is gone


def _read(contents: Contents, row: int) -> tuple[bool, bytes]:
    try:
        content = contents.read(row)
        assert isinstance(content, bytes), "images on a server are files"
    except (VitlabError, OSError) as error:
        return False, pickle.dumps(error)
    except Exception:  # noqa: BLE001 (a bug: the worker reads the row itself and has all of the traceback)
        return False, b""
    return True, content


class FetchedContents:
    """The contents of a dataset, whose expected rows come from the fetcher at the other end of a connection.

    One thread expects pieces of batches; another begins and reads them, in the same order.
    """

    def __init__(self, contents: Contents, connection: socket.socket) -> None:
        self._contents = contents
        self._connection = connection
        self._pieces: deque[tuple[int, ...]] = deque()
        self._piece: deque[int] = deque()  # the rows of this piece that are not received

    def name(self, row: int) -> str:
        """Where an image comes from."""
        return self._contents.name(row)

    def expect(self, rows: Sequence[int]) -> None:
        """Ask for the rows of a piece."""
        self._pieces.append(tuple(rows))
        with suppress(OSError):  # `read` reports that the fetcher has ended
            self._connection.sendall(struct.pack(f"<{len(rows) + 1}q", len(rows), *rows))

    def begin_piece(self) -> None:
        """From now on, the rows of the next piece are read. What was not read of the one before is dropped."""
        with suppress(StorageError):  # `read` reports that the fetcher has ended
            while self._piece:
                self._receive()
        self._piece = deque(self._pieces.popleft())

    def read(self, row: int) -> bytes:
        """The bytes of an image: from the fetcher if it is the next one of the piece; else they are read here."""
        good, data = self._receive() if self._piece and self._piece[0] == row else (False, b"")
        if good:
            return data
        if data:
            raise pickle.loads(data)  # noqa: S301 (made by our own fetcher, at the other end of a socket without a name)
        content = self._contents.read(row)
        assert isinstance(content, bytes), "images on a server are files"
        return content

    def _receive(self) -> tuple[bool, bytes]:
        self._piece.popleft()
        try:
            good, length = _HEAD.unpack(_received(self._connection, _HEAD.size))
            return good, _received(self._connection, length)
        except (EOFError, OSError):
            raise StorageError(
                "the process that fetches images for this worker has ended",
                hint="its output is above; if there is none, memory ran out: use fewer workers, a smaller prefetch or batch_size",
            ) from None

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each file's content."""
        return self._contents.digests(rows)

    def versions(self, rows: NDArray[np.int64]) -> Digests | None:
        """What the server says of each file."""
        assert isinstance(self._contents, RemoteReadable)
        return self._contents.versions(rows)


def _received(connection: socket.socket, length: int) -> bytes:
    """So many bytes; EOFError if the connection ends before."""
    data = connection.recv(length, socket.MSG_WAITALL) if length else b""
    while len(data) < length:
        more = connection.recv(length - len(data), socket.MSG_WAITALL)
        if not more:
            raise EOFError
        data += more
    return data
