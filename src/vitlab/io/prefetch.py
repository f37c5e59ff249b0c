"""Prefetch: threads work ahead of the consumer; results come in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def chunks(count: int, size: int) -> Iterator[range]:
    """The numbers from 0 to `count` - 1 in ranges of `size`."""
    return (range(start, min(start + size, count)) for start in range(0, count, size))


def prefetched(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None, depth: int | None = None
) -> Generator[Result, None, None]:
    """`work(item)` for each item, in order, computed by `threads` (None: one per CPU) with at most `depth` results ahead.

    `depth` None is twice the number of threads. Use it within `contextlib.closing`, which ends the threads when the consumer
    stops early. Otherwise the garbage collector would wait for them in whichever thread it runs, possibly one of them.
    """
    threads = threads or os.cpu_count() or 1
    waiting = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="prefetch") as pool:
        running = deque(pool.submit(work, item) for item in islice(waiting, depth or 2 * threads))
        try:
            while running:
                yield running.popleft().result()
                running.extend(pool.submit(work, item) for item in islice(waiting, 1))
        finally:
            for future in running:
                future.cancel()
