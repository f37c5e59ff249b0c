"""Work done by threads a little ahead of whoever takes the results, in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def chunks(count: int, size: int) -> Iterator[range]:
    """The numbers below `count`, in order, `size` at a time."""
    return (range(start, min(start + size, count)) for start in range(0, count, size))


def done_ahead(work: Callable[[range], list[T]], items: Iterable[range]) -> Generator[T, None, None]:
    """What `work` makes of each chunk, one after the other. Twice as many chunks as threads are under way at most.

    To be taken within `contextlib.closing`: whoever stops half-way must end the threads there and then. Left to the garbage
    collector, they would be waited for in whichever thread it happens to run, which can be one of them.
    """
    threads = os.cpu_count() or 1
    waiting = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        running = deque(pool.submit(work, chunk) for chunk in islice(waiting, 2 * threads))
        try:
            while running:
                yield from running.popleft().result()
                running.extend(pool.submit(work, chunk) for chunk in islice(waiting, 1))
        finally:
            for future in running:
                future.cancel()
