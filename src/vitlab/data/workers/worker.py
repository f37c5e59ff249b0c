"""Inside worker processes: a launcher that imports what is needed, and the workers that it forks.

The launcher is a fresh interpreter that has never started a thread, so its forks are safe, start at once, and share its memory.
On other systems than Linux, whose libraries start threads, every worker is a fresh interpreter.

`settings` come from the caller: the numbers of the inherited files `control`, `memory`, `filler` and of each worker's connection,
the layout of the memory, the number of the first worker, and whether to fork. If the images are on a server, the launcher also
forks a fetcher for each worker (fetcher.py); a worker that is a fresh interpreter reads from the server itself, in threads.

Axes: S batches in progress, B rows of a batch, H height, W width, C channels.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Filler, Report
from vitlab.data.dataset import ImageDataset, Pixels
from vitlab.data.sampler import Picks
from vitlab.data.workers import fetcher
from vitlab.data.workers.threads import WorkerStatus, rows_of


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
    remote = fetcher.needs_fetcher(filler)
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
    fetched = fetcher.FetchedContents(filler.dataset.contents, ours)
    filler = replace(filler, dataset=replace(filler.dataset, contents=fetched))
    _serve(number, Connection(descriptor), filler, shared, fetched.begin_piece)


def _fetch(others: Sequence[int], filler: Filler, pair: tuple[socket.socket, socket.socket]) -> None:
    """What a fetcher does."""
    for other in others:
        os.close(other)
    theirs, ours = pair
    theirs.close()
    fetcher.serve(filler, ours)


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
