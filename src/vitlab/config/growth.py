"""Pictures that grow in the course of a run: small ones at first, for many cheap updates, and the model's own size at the end."""

from __future__ import annotations

from itertools import pairwise

from vitlab.errors import ConfigError

Growth = tuple[tuple[float, float], ...]


def check_growth(growth: Growth) -> None:
    """ConfigError unless `growth` is empty, or begins at 0, rises in both numbers and ends at the full size."""
    if not growth:
        return
    shares, scales = [share for share, _ in growth], [scale for _, scale in growth]
    if shares[0] != 0 or not all(0 <= before < after < 1 for before, after in pairwise([*shares])):
        raise ConfigError(f"growth={growth}: the shares of the steps must begin with 0, rise, and stay below 1")
    if scales[-1] != 1 or not all(0 < before < after for before, after in pairwise(scales)) or scales[0] <= 0:
        raise ConfigError(f"growth={growth}: the scales must be above 0, rise, and end with 1, the size the model is used at")


def scale_at(step: int, *, steps: int, growth: Growth) -> float:
    """The scale of the pictures of update number `step`, counted from 0: a pure function, so nothing is saved to go on."""
    return next((scale for share, scale in reversed(growth) if step >= share * steps), 1.0)


def scaled(image_size: tuple[int, int], scale: float) -> tuple[int, int]:
    """A size in pixels at that scale."""
    return max(1, round(image_size[0] * scale)), max(1, round(image_size[1] * scale))


def mean_area(growth: Growth) -> float:
    """The pixels of a run's pictures as a share of those of full-size ones, about its share of the time too."""
    ends = [*(share for share, _ in growth[1:]), 1.0]
    return sum((end - share) * scale**2 for (share, scale), end in zip(growth, ends, strict=True)) if growth else 1.0
