"""Straight lines through the results of a study, with bootstrap intervals.

A cell has one accuracy for each seed. A resample draws the seeds of each cell with replacement, and adds the noise of a finite test
set to each accuracy. An interval is from the 2.5th to the 97.5th percentile of all resamples. With one seed, only the test set's
noise is left, and with three, the interval is somewhat too narrow.

Axes: R resamples, P points of a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 2000
_LOW, _HIGH = 2.5, 97.5
_UNDECIDED = 0.05  # of the resamples without a finite number make it unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The accuracies, 0 to 1, of one setting, one for each seed, on `total` test images; `x` is its place on the line."""

    x: float
    accuracies: tuple[float, ...]
    total: int

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.accuracies))

    def resampled(self, rng: np.random.Generator) -> Floats:
        """The mean accuracy in each resample, R numbers."""
        values = np.array(self.accuracies)
        drawn_RS = values[rng.integers(len(values), size=(RESAMPLES, len(values)))]
        noise_RS = rng.standard_normal(drawn_RS.shape) * np.sqrt(drawn_RS * (1 - drawn_RS) / self.total)
        mean_R: Floats = (drawn_RS + noise_RS).mean(1)
        return mean_R


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 if the whole interval is above or below 0, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    def text(self, form: str = ".1f") -> str:
        """`4.2 (3.1 to 5.3)`."""
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"

    def points(self) -> str:
        """`4.2 (3.1 to 5.3) points above`, or below."""
        if self.value >= 0:
            return f"{self.text()} points above"
        return f"{Estimate(value=-self.value, low=-self.high, high=-self.low).text()} points below"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """Accuracy in percent = `at_zero` + `slope` * x, and the same for each resample."""

    at_zero: float
    slope: float
    at_zero_R: Floats
    slope_R: Floats

    def gain(self) -> Estimate:
        """Points for each unit of x."""
        return _estimate(self.slope, self.slope_R)

    def at(self, x: float) -> float:
        """The line's accuracy in percent."""
        return self.at_zero + self.slope * x

    def above(self, other: Fit, x: float) -> Estimate:
        """By how many points this line is above another at x."""
        there_R = (self.at_zero_R + self.slope_R * x) - (other.at_zero_R + other.slope_R * x)
        return _estimate(self.at(x) - other.at(x), there_R)


def fit(cells: Sequence[Cell], *, seed: int) -> Fit:
    """The least-squares line through the means of at least two cells at different places."""
    rng = np.random.default_rng(seed)
    x_P = np.array([cell.x for cell in cells])
    y_P = 100 * np.array([cell.mean for cell in cells])
    y_RP = 100 * np.stack([cell.resampled(rng) for cell in cells], axis=1)
    away_P = x_P - x_P.mean()
    weight_P = away_P / (away_P**2).sum()
    slope, slope_R = float(y_P @ weight_P), y_RP @ weight_P
    return Fit(
        at_zero=float(y_P.mean()) - slope * float(x_P.mean()),
        slope=slope,
        at_zero_R=y_RP.mean(1) - slope_R * x_P.mean(),
        slope_R=slope_R,
    )


def crossing(one: Fit, other: Fit) -> Estimate | None:
    """Where two lines meet, or None if the resamples do not agree that they do."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x_R = (other.at_zero_R - one.at_zero_R) / (one.slope_R - other.slope_R)
    steeper = np.mean(one.slope_R > other.slope_R)
    if min(steeper, 1 - steeper) > _UNDECIDED or not np.isfinite(x_R).all():
        return None
    return _estimate((other.at_zero - one.at_zero) / (one.slope - other.slope), x_R)


def log_ratio(one: Fit, other: Fit, *, accuracy: float) -> Estimate | None:
    """The distance along x from `one` to `other` at an accuracy in percent; None unless both lines rise in the resamples."""
    if min(np.mean(one.slope_R > 0), np.mean(other.slope_R > 0)) < 1 - _UNDECIDED or min(one.slope, other.slope) <= 0:
        return None
    rising_R = (one.slope_R > 0) & (other.slope_R > 0)

    def reached(at_zero: Any, slope: Any) -> Any:
        return (accuracy - at_zero) / slope

    x_R = reached(other.at_zero_R, other.slope_R)[rising_R] - reached(one.at_zero_R, one.slope_R)[rising_R]
    return _estimate(reached(other.at_zero, other.slope) - reached(one.at_zero, one.slope), x_R)


def _estimate(value: float, value_R: Floats) -> Estimate:
    low, high = np.percentile(value_R, [_LOW, _HIGH]).tolist()
    return Estimate(value=float(value), low=low, high=high)


def difference(one: Sequence[float], other: Sequence[float], *, total: int) -> Estimate:
    """By how many points the accuracies `one`, one for each seed, are above `other` on `total` test images."""
    rng = np.random.default_rng(len(one))
    cells = [Cell(x=0.0, accuracies=tuple(values), total=total) for values in (one, other)]
    first_R, second_R = (cell.resampled(rng) for cell in cells)
    return _estimate(100 * (cells[0].mean - cells[1].mean), 100 * (first_R - second_R))


def percent(values: Sequence[float]) -> str:
    """The mean in percent and, of several seeds, the sample deviation between them."""
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * float(np.mean(values)):.1f}{spread} %"
