"""Several threads that compute with one each: a batch in slices side by side, without the waits of threads that share a product."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


class Lanes:
    """`count` threads with one thread of torch each; with one lane, the caller's own thread as it is."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """work(item) for each, in order; a single item is worked on by the caller, with all of torch's threads."""
        if self.count == 1 or len(items) == 1:
            return [work(item) for item in items]
        if self._pool is None:
            self._pool = started(self.count)
        return list(self._pool.map(work, items))


def slices(count: int, *, lanes: int, most: int) -> list[slice]:
    """`count` rows in slices of at most `most`, as many for each lane as for the others where that can be."""
    if lanes == 1 or count == 1:
        size = most
    else:
        rounds = -(-count // (most * lanes))
        size = -(-count // (rounds * lanes))
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def started(count: int, *, threads: int = 1) -> ThreadPoolExecutor:
    """Threads that are all there and set to so many threads of torch each.

    `torch.set_num_threads` also sets what threads that come later begin with, the caller's among them: it is put back.
    """
    before = torch.get_num_threads()
    together = threading.Barrier(count + 1)
    pool = ThreadPoolExecutor(count, thread_name_prefix="lane", initializer=_own_number, initargs=(threads,))
    waiting = [pool.submit(together.wait) for _ in range(count)]
    together.wait()
    for one in waiting:
        one.result()
    torch.set_num_threads(before)
    return pool


def _own_number(threads: int) -> None:
    """A thread begins with the common number at its first question or product, and would forget one that was set before that."""
    torch.get_num_threads()
    torch.set_num_threads(threads)
