"""Results come in order, and no more of them are made in advance than asked for."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from vitlab.io.machine import chunks, prefetched


@pytest.mark.parametrize("threads", [1, 3, None])
def test_results_are_those_of_map_in_order(threads: int | None) -> None:
    with closing(prefetched(lambda number: number**2, range(50), threads=threads)) as results:
        assert list(results) == [number**2 for number in range(50)]


def test_at_most_depth_items_are_started_before_they_are_taken() -> None:
    started: list[int] = []
    with closing(prefetched(started.append, range(100), threads=2, depth=5)) as results:
        for taken, _ in enumerate(results, start=1):
            assert len(started) <= taken + 5
            if taken == 20:
                break
    assert len(started) <= 26


def test_an_error_is_raised_at_the_place_of_its_item_and_the_threads_end() -> None:
    before = threading.active_count()

    def work(number: int) -> int:
        if number == 7:
            raise ValueError("seven")
        return number

    taken: list[int] = []
    with pytest.raises(ValueError, match="seven"), closing(prefetched(work, range(20), threads=3)) as results:
        taken.extend(results)
    with closing(prefetched(work, range(20), threads=3)) as results:
        assert [next(results) for _ in range(7)] == list(range(7))
        with pytest.raises(ValueError, match="seven"):
            next(results)
    assert threading.active_count() == before


def test_chunks_are_consecutive_and_end_at_the_count() -> None:
    assert [list(chunk) for chunk in chunks(7, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(chunks(0, 3)) == []
