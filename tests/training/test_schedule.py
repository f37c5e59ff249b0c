"""The learning rate and the averaging decay over the steps."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from vitlab.config.train import Average, Schedule
from vitlab.training.optim import averaging_decay, learning_rate


def rates(schedule: Schedule, steps: int = 100) -> list[float]:
    return [learning_rate(step, peak=1.0, steps=steps, schedule=schedule) for step in range(steps)]


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_the_warm_up_rises_evenly_to_the_peak(kind: str) -> None:
    found = rates(Schedule(kind=kind, warmup=10))  # type: ignore[arg-type]
    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(found) == pytest.approx(1)


def test_the_linear_schedule_falls_evenly_to_its_end() -> None:
    found = rates(Schedule(kind="linear", warmup=20, end=0.2))
    falls = [before - after for before, after in pairwise(found[20:])]
    assert falls == pytest.approx([0.8 / 80] * 79)
    assert found[-1] == pytest.approx(0.2 + 0.8 / 80)


def test_the_cosine_is_half_way_down_in_the_middle() -> None:
    found = rates(Schedule(kind="cosine"))
    assert found[50] == pytest.approx(0.5)
    assert found[25] == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert found == sorted(found, reverse=True)


def test_the_averaging_decay_warms_up() -> None:
    average = Average(decay=0.99)
    found = [averaging_decay(step, average) for step in range(2000)]
    assert found[0] == pytest.approx(2 / 11)
    assert found == sorted(found)
    assert found[-1] == 0.99
    assert averaging_decay(0, Average(decay=0.99, warmup=False)) == 0.99
