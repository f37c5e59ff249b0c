"""Fitted lines are those of the points, intervals hold what made the points, and one seed has no deviation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vitlab.studies.fits import Cell, crossing, difference, fit, log_ratio, percent


def line(slope: float, at_zero: float, places: tuple[float, ...] = (3.0, 4.0, 5.0), *, total: int = 10**9) -> list[Cell]:
    """Cells on a line in percent; a test set so large that its noise is nothing."""
    return [Cell(x=x, accuracies=((at_zero + slope * x) / 100,) * 3, total=total) for x in places]


def test_a_line_through_points_on_a_line_is_that_line() -> None:
    found = fit(line(4.0, 20.0), seed=0)
    assert found.slope == pytest.approx(4.0)
    assert found.at(3.5) == pytest.approx(34.0)
    gain = found.gain()
    assert gain.low <= gain.value <= gain.high
    assert gain.high - gain.low < 0.02


def test_two_lines_cross_where_they_meet_and_parallel_ones_nowhere() -> None:
    one, other = fit(line(10.0, 0.0), seed=0), fit(line(5.0, 20.0), seed=1)
    met = crossing(one, other)
    assert met is not None
    assert met.value == pytest.approx(4.0)
    assert met.low < 4.0 < met.high
    assert crossing(fit(line(5.0, 0.0, total=500), seed=0), fit(line(5.0, 20.0, total=500), seed=1)) is None


def test_the_ratio_at_equal_accuracy_is_the_distance_between_two_lines() -> None:
    one, other = fit(line(10.0, 0.0), seed=0), fit(line(10.0, -5.0), seed=1)
    ratio = log_ratio(one, other, accuracy=40.0)
    assert ratio is not None
    assert 10**ratio.value == pytest.approx(math.sqrt(10))
    assert ratio.sign == 1
    assert log_ratio(one, fit(line(-1.0, 40.0), seed=1), accuracy=40.0) is None


def test_a_difference_is_certain_only_if_it_is_larger_than_the_noise() -> None:
    assert difference((0.6, 0.61, 0.62), (0.5, 0.51, 0.52), total=10_000).sign == 1
    assert difference((0.5, 0.51, 0.52), (0.6, 0.61, 0.62), total=10_000).sign == -1
    assert difference((0.5, 0.6, 0.7), (0.52, 0.61, 0.68), total=10_000).sign == 0
    assert difference((0.52,), (0.5,), total=100).sign == 0  # the noise of 100 images is 5 points


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(60):
        cells = [
            Cell(x=float(x), accuracies=tuple((0.3 + 0.05 * x + rng.normal(0, 0.01, 8)).tolist()), total=10**6) for x in range(4)
        ]
        gain = fit(cells, seed=1).gain()
        held += gain.low <= 5.0 <= gain.high
    assert held >= 48  # 95 % of 60, less what eight seeds cost and chance


def test_no_deviation_is_printed_for_one_seed() -> None:
    assert percent((0.5,)) == "50.0 %"
    assert percent((0.5, 0.6)) == "55.0 ± 7.1 %"
