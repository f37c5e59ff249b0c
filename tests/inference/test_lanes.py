"""Slices of a batch side by side: every row once, in order, and torch's own number of threads left as it was."""

from __future__ import annotations

import threading

import pytest
import torch

from tests import processes
from vitlab.inference.backends import Lanes, fixed_slices, slices, started


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 4, 7])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 33])
def test_slices_hold_every_row_once_in_order_and_no_more_than_allowed(count: int, most: int, lanes: int) -> None:
    for parts in (slices(count, lanes=lanes, most=most), fixed_slices(count, most)):
        assert [row for part in parts for row in range(part.start, part.stop)] == list(range(count))
        assert max(part.stop - part.start for part in parts) <= most


def test_lanes_share_the_slices_evenly() -> None:
    assert [part.stop - part.start for part in slices(16, lanes=2, most=16)] == [8, 8]
    assert len(slices(17, lanes=2, most=4)) % 2 == 0
    assert [part.stop - part.start for part in fixed_slices(7, 4)] == [4, 3]
    assert [part.stop - part.start for part in fixed_slices(6, 4)] == [4, 1, 1]


def test_lanes_compute_with_one_thread_each_and_leave_the_callers_number_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)  # more than one, or nothing is shown
    lanes = Lanes(2)
    together = threading.Barrier(2, timeout=processes.LIMIT)

    def work(item: int) -> tuple[int, int]:
        together.wait()  # which only two threads at once can pass
        return item * 2, torch.get_num_threads()

    assert lanes.map(work, [1, 2]) == [(2, 1), (4, 1)]
    assert torch.get_num_threads() == 3
    assert started(1, threads=2).submit(torch.get_num_threads).result() == 2
    torch.set_num_threads(before)
    assert Lanes(2).map(lambda item: threading.current_thread().name, [0]) == [threading.current_thread().name]


def test_an_error_in_a_lane_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        Lanes(2).map(lambda item: 1 // item, [1, 0])
