"""Which rank is missing or slow follows from what the ranks told."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from vitlab.training import pulse as pulses
from vitlab.training.distributed import World
from vitlab.training.pulse import LOST_CONTACT, Beat, Doing, Pulse, describe_missing, lost_contact, pulse, slow_ranks


def beats(*said: tuple[int, Doing, int]) -> list[Beat | None]:
    return [Beat(host=f"host-{'abcd'[rank]}", step=step, doing=doing, count=n) for rank, (step, doing, n) in enumerate(said)]


def later(readings: Sequence[Beat | None], *, silent: Sequence[int] = ()) -> list[Beat | None]:
    return [
        beat
        if beat is None or rank in silent
        else Beat(host=beat.host, step=beat.step, doing=beat.doing, count=beat.count + 2, failure=beat.failure)
        for rank, beat in enumerate(readings)
    ]


WAITING = beats((7, "exchanges gradients", 3), (7, "exchanges gradients", 3), (7, "exchanges gradients", 4))


def test_a_rank_whose_pulse_stands_still_is_named_with_its_host() -> None:
    said = describe_missing(WAITING, later(WAITING, silent=[2]))
    assert "rank 2 on host-c" in said
    assert "no sign of it since step 7" in said
    assert "host-a" not in said


def test_a_rank_that_never_told_anything_is_named() -> None:
    assert "rank 1 died" in describe_missing([WAITING[0], None], [*later(WAITING)[:1], None])


@pytest.mark.parametrize(("step", "doing"), [(7, "reads images"), (7, "computes"), (6, "exchanges gradients")])
def test_a_rank_that_is_behind_the_others_hangs_and_says_in_what(step: int, doing: Doing) -> None:
    behind = [*WAITING[:1], Beat(host="host-b", step=step, doing=doing, count=3, where="loader.py:12 in __next__")]
    said = describe_missing(behind, later(behind))
    assert said.startswith("rank 1 on host-b hangs")
    assert f"after step {step} it still {doing}" in said


def test_the_rank_that_failed_first_explains_the_failures_of_the_others() -> None:
    failed = beats((7, "failed", 3), (7, "failed", 3), (7, "exchanges gradients", 3))
    assert failed[0] is not None
    assert failed[1] is not None
    failed[0].failure, failed[1].failure = f"{LOST_CONTACT} after step 7", "cannot read 3.png"
    assert describe_missing(failed, later(failed, silent=[0, 1])) == "rank 1 on host-b failed: cannot read 3.png"


def test_ranks_that_all_wait_at_one_place_are_not_accused() -> None:
    assert describe_missing(WAITING, later(WAITING)).startswith("no rank is behind: all wait after step 7")


def test_of_many_missing_ranks_four_are_named_and_the_rest_is_counted() -> None:
    many = [Beat(host="far", step=2, doing="computes", count=1) for _ in range(9)]
    said = describe_missing(many, many)
    assert said.count("rank ") == 4
    assert said.endswith("and 5 more")


def test_only_errors_of_collectives_mean_that_contact_is_lost() -> None:
    assert lost_contact(torch.distributed.DistNetworkError("recv"))
    assert lost_contact(RuntimeError("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    assert not lost_contact(RuntimeError("shape mismatch"))
    assert not lost_contact(ValueError("/gloo/"))


def test_a_main_thread_hangs_when_it_has_not_moved_for_long_but_not_while_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(pulses, "time", SimpleNamespace(monotonic=lambda: now[0]))
    own = Pulse(World(), None, timeout=10)

    def moved(seconds: float, step: int, doing: Doing) -> None:
        now[0] += seconds
        own.at(step, doing)

    moved(0, 1, "computes")
    now[0] += 100
    assert not own.hangs()  # the first step may compile
    moved(0, 2, "computes")
    now[0] += 9
    assert not own.hangs()
    now[0] += 2
    assert own.hangs()
    own.at(2, "saves")
    now[0] += 100
    assert not own.hangs()
    moved(0, 3, "computes")
    moved(30, 4, "computes")  # a step of half a minute is normal here
    now[0] += 100
    assert not own.hangs()


def test_a_world_of_one_has_a_silent_pulse() -> None:
    with pulse(World(), timeout=1) as own:
        own.at(3, "computes")
        assert own.own.step == 3


def test_a_rank_is_slow_beyond_twice_the_median_and_by_more_than_a_trifle() -> None:
    assert slow_ranks([1.0, 1.0, 4.0, 0.5], least=0.1) == [(2, 4.0)]
    assert slow_ranks([1.0, 1.9], least=0.1) == []
    assert slow_ranks([1.0, 4.0], least=0.1) == [(1, 4.0)]  # of two ranks, too
    assert slow_ranks([0.001, 0.004, 0.001], least=0.1) == []
