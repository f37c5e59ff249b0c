"""The pulse of every rank: which rank died, hangs or is slow, and on which host.

A rank tells the others what it does through torchrun's key-value store: a few bytes now and then, over TCP and from a thread of its
own. It needs no collective and no GPU, so it works when a collective does not, with gloo and with NCCL. Nobody reads it before
something is wrong.

- With gloo a rank that waits too long gets an exception, and asks `missing` whom it waited for.
- With NCCL the waiting thread cannot be interrupted, so `watch` ends the process instead, before NCCL does.

Who is slow is found without the store: now and then the ranks compare how long each takes for its own work (`Stragglers`).
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore  # as torch.distributed has them, with types

from vitlab.config.serialize import from_json, to_json
from vitlab.training.distributed import World

Doing = Literal["starts", "reads images", "computes", "exchanges gradients", "evaluates", "saves", "failed", "ended"]

_ORDER: tuple[Doing, ...] = ("starts", "reads images", "computes", "exchanges gradients", "evaluates", "saves")
_EVERY = 2.0  # seconds between two beats, at most
_ANSWER = 10.0  # seconds in which the store must answer
_STEPS = 5.0  # work that takes so many times the longest before hangs
_SLOW = 2.0  # times the median: a rank that takes longer is named
_LEAST = 0.02  # of a step: less is not worth a word
_PROBE = 512  # side of the matrices that a rank multiplies to measure its speed
_PROBE_GPU = 4096
_COMPARED_EVERY = 50  # steps between two comparisons
HUNG = 1  # exit code; torchrun restarts after any but 0
LOST_CONTACT = "lost contact"
"""How the failure of a rank begins that failed because of another one."""


@dataclass(slots=True, kw_only=True)
class Beat:
    """What one rank tells the others: its host, where its run is, how often it has told that, and why it failed."""

    host: str
    step: int = 0
    doing: Doing = "starts"
    where: str = ""
    count: int = 0
    failure: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """Where the rank is, in an order: a smaller place is behind."""
        return self.step, _ORDER.index(self.doing) if self.doing in _ORDER else len(_ORDER)


class Store(Protocol):
    """What a pulse needs of torchrun's key-value store."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Pulse:
    """The pulse of this rank. `at` says what it does; `missing` says which ranks are not where the others are.

    `every` is the time between two beats in seconds. A world of one process has a pulse that nobody hears.
    """

    def __init__(self, world: World, store: Store | None, *, timeout: float) -> None:
        self.world = world
        self.timeout = timeout
        self.every = min(_EVERY, timeout / 4)
        self.own = Beat(host=socket.gethostname())
        self._store = store
        self._main = threading.get_ident()
        self._moved = time.monotonic()
        self._longest = 0.0
        self._known: int | None = None
        self._steps = -1  # complete ones
        self._asking = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, *, watch: bool) -> None:
        """Begin to beat; with `watch`, end the process when its main thread hangs."""
        if self._store is None:
            return
        self._tell()
        self._thread = threading.Thread(target=self._beat, args=(watch,), name="vitlab-pulse", daemon=True)
        self._thread.start()

    def at(self, step: int, doing: Doing) -> None:
        """This rank is after `step` steps and does this. Costs nothing: the thread tells it later."""
        now = time.monotonic()
        if self._steps > 0:  # the first step may compile
            self._longest = max(self._longest, now - self._moved)
        if step != self._known:
            self._steps += 1
        self._moved, self._known = now, step
        self.own.step, self.own.doing = step, doing

    def end(self, failure: str = "") -> None:
        """Tell the others that this rank ends, and why."""
        self._ended.set()
        if self._store is None:
            return
        self.own.doing, self.own.failure = ("failed" if failure else "ended"), failure
        try:
            self._tell()
        except RuntimeError:
            return  # the store is gone, and with it everybody who could read this
        if failure and self.world.is_main:  # whose process may hold the store: the others read it first
            time.sleep(3 * self.every)

    def _tell(self) -> None:
        assert self._store is not None
        self.own.count += 1
        if not self._asking:  # then it is here
            self.own.where = _location(self._main)
        self._store.set(str(self.world.rank), json.dumps(to_json(self.own)))

    def _beat(self, watch: bool) -> None:
        while not self._ended.wait(self.every):
            with suppress(RuntimeError):  # the main thread notices by itself that the others are gone
                self._tell()
            if watch and self.hangs():
                print(f"error: {self.missing()}", file=sys.stderr, flush=True)
                self.end("it waited in vain")
                os._exit(HUNG)

    def hangs(self) -> bool:
        """Whether the main thread has not moved for too long: the timeout, or several times its longest work so far."""
        if self.own.doing in ("starts", "saves", "failed", "ended") or self._steps < 1:
            return False  # a disk may be slow, and the first step may compile
        return time.monotonic() - self._moved > max(self.timeout, _STEPS * self._longest)

    def missing(self) -> str:
        """A sentence that names the ranks for which the others wait, with host and place; it takes a few beats."""
        if self._store is None:
            return "a rank is missing"
        self._asking = True
        first = self._read()
        if first is None:
            return "the store does not answer: the host of the rendezvous is gone or cut off"
        time.sleep(2.5 * self.every)
        second = self._read() or first
        return describe_missing(first, second)

    def _read(self) -> list[Beat | None] | None:
        """The last beat of every rank, None for one that never told; None if the store does not answer in time."""
        found: list[list[Beat | None]] = []

        def read() -> None:
            assert self._store is not None
            beats: list[Beat | None] = []
            for rank in range(self.world.ranks):
                key = str(rank)
                beats.append(from_json(Beat, json.loads(self._store.get(key))) if self._store.check([key]) else None)
            found.append(beats)

        thread = threading.Thread(target=_quietly, args=(read,), name="vitlab-pulse-reader", daemon=True)
        thread.start()
        thread.join(_ANSWER)
        return found[0] if found else None


def _quietly(work: Callable[[], None]) -> None:
    """Do the work; a store that is gone is the same as one that does not answer."""
    try:
        work()
    except RuntimeError:
        return


def describe_missing(first: Sequence[Beat | None], second: Sequence[Beat | None]) -> str:
    """Which ranks are missing, from two readings of all beats that are some beats apart.

    A rank that failed says so itself; one whose count stands still is dead, frozen or cut off; otherwise those that are behind
    the others hang. If all are at the same place, each says where.
    """
    beats = [beat or Beat(host="") for beat in second]
    failed = [rank for rank, beat in enumerate(beats) if beat.failure and not beat.failure.startswith(LOST_CONTACT)]
    if failed:
        return _listed(failed, [f"{_who(rank, second)} failed: {beats[rank].failure}" for rank in failed])
    silent = [
        rank
        for rank, (before, after) in enumerate(zip(first, second, strict=True))
        if after is None or (before is not None and before.count == after.count and after.doing not in ("failed", "ended"))
    ]
    if silent:
        why = "died, is frozen or is cut off: no sign of it since step"
        return _listed(silent, [f"{_who(rank, second)} {why} {beats[rank].step}" for rank in silent])
    present = [beat for beat in second if beat is not None and beat.doing != "ended"]
    ahead = max((beat.place for beat in present), default=(0, 0))
    behind = [rank for rank, beat in enumerate(second) if beat is not None and beat.doing != "ended" and beat.place < ahead]
    if behind:
        why = "hangs: after step"
        return _listed(behind, [f"{_who(rank, second)} {why} {beats[rank].step} it still {_doing(beats[rank])}" for rank in behind])
    places = sorted({beat.where for beat in present if beat.where})
    return f"no rank is behind: all wait after step {ahead[0]}, at {', '.join(places[:4]) or 'the same place'}"


def lost_contact(error: BaseException) -> bool:
    """Whether the error is that of a collective whose other ranks did not answer: gloo raises plain RuntimeErrors."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def _who(rank: int, beats: Sequence[Beat | None]) -> str:
    beat = beats[rank]
    return f"rank {rank}" if beat is None else f"rank {rank} on {beat.host}"


def _doing(beat: Beat) -> str:
    return f"{beat.doing} ({beat.where})" if beat.where else beat.doing


def _listed(ranks: Sequence[int], sentences: Sequence[str]) -> str:
    more = f"; and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return "; ".join(sentences[:4]) + more


def _location(thread: int) -> str:
    """Where a thread is in vitlab's code, or else in the program: `loader.py:210 in __next__`."""
    frame = sys._current_frames().get(thread)
    innermost = frame
    while frame is not None and f"{os.sep}vitlab{os.sep}" not in frame.f_code.co_filename:
        frame = frame.f_back
    found = frame or innermost
    return "" if found is None else f"{Path(found.f_code.co_filename).name}:{found.f_lineno} in {found.f_code.co_name}"


@contextmanager
def pulse(world: World, *, timeout: float) -> Iterator[Pulse]:
    """The pulse of this rank during the block; every rank must enter it."""
    store: Store | None = None
    if world.ranks > 1 and "MASTER_ADDR" in os.environ:
        token: list[str] = [f"{os.getpid()}-{time.time_ns()}"]
        dist.broadcast_object_list(token, src=0)  # a store may outlive a restart, and this process an earlier run
        store = _connected(f"vitlab-pulse-{token[0]}")
    own = Pulse(world, store, timeout=timeout)
    own.start(watch=world.device.type == "cuda")
    try:
        yield own
    finally:
        own.end()


def _connected(name: str) -> Store:
    """A connection of its own to torchrun's store: a thread that waits for an answer must not stop the main thread."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=_ANSWER), wait_for_workers=False)
    return PrefixStore(name, store)


class Stragglers:
    """Finds ranks that are slower than the others, by what each does alone: reading images, and computing.

    In a step all ranks wait for the slowest, so their times are equal; only the time before they wait differs. Computing is the
    time of the forward passes where a rank makes them alone (DDP on a CPU). Under FSDP, whose layers wait for other ranks, and on
    a GPU, which computes behind the back of the program, it is the time of one large matrix product.
    """

    def __init__(self, world: World, *, probe: bool) -> None:
        self.world = world
        self.hosts = world.gather(socket.gethostname())
        self._probe = probe or world.device.type != "cpu"
        self._read = self._computed = self._seconds = 0.0
        self._steps = 0
        self._named = set[tuple[int, str]]()

    def add(self, *, read: float, computed: float, seconds: float) -> list[str]:
        """Count one step; now and then all ranks compare, and get a sentence for each rank that has become slow."""
        self._read, self._computed, self._seconds = self._read + read, self._computed + computed, self._seconds + read + seconds
        self._steps += 1
        if self.world.ranks == 1 or self._steps % _COMPARED_EVERY:
            return []
        mine = [self._read / _COMPARED_EVERY, self._computed / _COMPARED_EVERY]
        if self._probe:
            mine[1] = matrix_product_seconds(self.world.device)
        least = _LEAST * self._seconds / _COMPARED_EVERY
        self._read = self._computed = self._seconds = 0.0
        all_RK = [torch.zeros(2, device=self.world.device) for _ in range(self.world.ranks)]
        dist.all_gather(all_RK, torch.tensor(mine, device=self.world.device))
        sentences = []
        for column, what in enumerate(("to read images", "for a matrix product" if self._probe else "to compute")):
            found = slow_ranks([float(row[column]) for row in all_RK], least=0.0 if what == "for a matrix product" else least)
            sentences += [
                f"rank {rank} on {self.hosts[rank]} takes {times:.1f}x the median of all ranks {what}, and the others wait for it"
                for rank, times in found
                if (rank, what) not in self._named
            ]
            self._named = {entry for entry in self._named if entry[1] != what} | {(rank, what) for rank, _ in found}
        return sentences


def slow_ranks(seconds_R: Sequence[float], *, least: float) -> list[tuple[int, float]]:
    """The ranks that take more than twice the median, with how many times; a difference below `least` seconds does not count.

    The median is the lower one: of two ranks one may be slow.
    """
    median = statistics.median_low(seconds_R)
    return [
        (rank, seconds / max(median, 1e-9))
        for rank, seconds in enumerate(seconds_R)
        if seconds > _SLOW * median and seconds - median > least
    ]


def matrix_product_seconds(device: torch.device) -> float:
    """Seconds of one matrix product on the device, the shortest of three: what the device can do, alone."""
    side = _PROBE if device.type == "cpu" else _PROBE_GPU
    a_NN, times = torch.ones(side, side, device=device), list[float]()
    for _ in range(3):
        began = time.perf_counter()
        total = (a_NN @ a_NN).sum().item()  # waits for the device
        times.append(time.perf_counter() - began)
        assert total > 0
    return min(times)
