"""The life of worker processes, as they see it: one keeper that loads what is needed, and the workers it forks.

The keeper is a fresh interpreter that has never started a thread, so its forks are safe, begin at once, and share its memory.
Elsewhere than on Linux, where system libraries start threads of their own, every worker is a fresh interpreter itself.

`told` is what the caller says: the numbers of the inherited files `control`, `memory`, `recipe` and of each worker's
connection, the layout of the memory, the number of the first worker, and whether to fork.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Filler, Pixels, Report
from vitlab.data.sampler import Picks
from vitlab.data.workers.threads import Progress, part

# What the caller and its worker processes share: rows of images, the picks to fill them with, and the workers' progress.
#
# Axes: S batches under way, B rows of a batch, H height, W width, C channels.


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things are in the shared memory: rows of images and picks for `slots` batches, and the workers' progress."""

    slots: int
    rows: int
    shape: tuple[int, int, int]
    workers: int

    @property
    def image_bytes(self) -> int:
        """All images; the rest begins at the next multiple of 64."""
        height, width, channels = self.shape
        return -(-self.slots * self.rows * height * width * channels // 64) * 64

    @property
    def pick_bytes(self) -> int:
        """All picks."""
        return self.slots * 3 * self.rows * 8

    @property
    def total_bytes(self) -> int:
        """What to ask the system for; never nothing."""
        return self.image_bytes + self.pick_bytes + Progress.bytes_for(self.workers)


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
        self.progress = Progress.over(memory[after + layout.pick_bytes :], layout.workers)

    def picks(self, slot: int, count: int) -> Picks:
        """The picks of the first rows of a slot."""
        index_B, epoch_B, repeat_B = self.picks_S3B[slot, :, :count]
        return Picks(index_B=index_B, epoch_B=epoch_B, repeat_B=repeat_B)


Task = tuple[int, int, int, int]
"""Batch, slot, first row, last row + 1: from the caller to a worker."""

Reply = tuple[int, int, Report]
"""Batch, first row, what became of it: from a worker to the caller."""

News = tuple[str, int, int, str, str]
"""From the keeper to the caller: ("broken", 0, 0, what went wrong, traceback); ("ready", worker, process, "", "") for each
worker; ("ended", worker, exit code or minus the signal, "", "")."""


def run(told: dict[str, Any]) -> None:
    """Load the view and the source, and work until the caller closes the connections or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to answer
    control = Connection(told["control"])
    shared = Shared(told["memory"], Layout(**{**told["layout"], "shape": tuple(told["layout"]["shape"])}))
    try:
        with mmap.mmap(told["recipe"], 0, access=mmap.ACCESS_READ) as recipe:
            filler: Filler = pickle.loads(recipe)  # noqa: S301 (written by our own caller, to memory without a name)
    except Exception as error:  # noqa: BLE001 (whatever it is must reach the caller)
        control.send(("broken", 0, 0, f"{type(error).__name__}: {error}", traceback.format_exc()))
        return
    if told["fork"]:
        _keep(told, control, filler, shared)
    else:
        with suppress(OSError):
            control.send(("ready", told["first"], os.getpid(), "", ""))
        _serve(told["first"], Connection(told["connections"][0]), filler, shared)


def _keep(told: dict[str, Any], control: Connection, filler: Filler, shared: Shared) -> None:
    """Fork the workers, tell of each that ends, and end them all when the caller is gone or wants no more."""
    gc.collect()
    gc.freeze()  # or the first collection in each worker would copy every page it counts on
    workers: dict[int, int] = {}
    for number, descriptor in enumerate(told["connections"]):
        pid = os.fork()
        if pid == 0:
            try:
                control.close()
                for other in told["connections"]:
                    if other != descriptor:  # or a worker's end would go unnoticed as long as another held its connection
                        os.close(other)
                _serve(number, Connection(descriptor), filler, shared)
            finally:  # it does not come back; if it does, it must not go on as a second keeper
                traceback.print_exc()
                os._exit(1)
        workers[pid] = number
    for descriptor in told["connections"]:
        os.close(descriptor)
    with suppress(OSError):  # a caller that stopped before we were ready wants no more, which is noticed next
        for pid, number in workers.items():
            control.send(("ready", number, pid, "", ""))
    threading.Thread(target=_end_with_caller, args=(control, workers), daemon=True).start()
    while workers:
        pid, status = os.waitpid(-1, 0)
        with suppress(OSError):  # the caller may be gone
            control.send(("ended", workers.pop(pid), os.waitstatus_to_exitcode(status), "", ""))
    os._exit(0)


def _end_with_caller(control: Connection, workers: dict[int, int]) -> None:
    with suppress(EOFError, OSError):
        control.recv()  # nothing is ever sent: it ends when the caller closes its side, or dies
    for pid in list(workers):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it has nothing to save, and what hangs would not listen to anything milder


def _serve(number: int, connection: Connection, filler: Filler, shared: Shared) -> None:
    """Fill rows until the connection closes."""
    tasks: SimpleQueue[Task] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, tasks), daemon=True).start()
    telling = shared.progress.told_by(number)
    while True:
        batch, slot, start, stop = tasks.get()
        picks = part(shared.picks(slot, stop), start, stop)
        report = filler.fill(picks, shared.images_SBHWC[slot, start:stop], telling)
        reply: Reply = (batch, start, report)
        try:
            connection.send(reply)
        except OSError:
            os._exit(0)


def _listen(connection: Connection, tasks: SimpleQueue[Task]) -> None:
    """Take tasks as they come; end the process when the caller is gone, even if an image hangs at that moment."""
    while True:
        try:
            tasks.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)
