"""The learning rate at each step: a pure function, so that nothing needs to be saved to go on."""

from __future__ import annotations

import math

from vitlab.config.train import Average, Schedule


def learning_rate(step: int, *, peak: float, steps: int, schedule: Schedule) -> float:
    """The rate of update number `step`, counted from 0: a linear rise from 0 over the warm-up, then the fall to `schedule.end`.

    The first update of a warm-up of w steps has peak / w, its last peak; the update before the end has nearly `end`.
    """
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    progress = (step - schedule.warmup) / max(steps - schedule.warmup, 1)
    match schedule.kind:
        case "constant":
            return peak
        case "linear":
            return schedule.end + (peak - schedule.end) * (1 - progress)
        case "cosine":
            return schedule.end + (peak - schedule.end) * (1 + math.cos(math.pi * progress)) / 2


def averaging_decay(step: int, average: Average) -> float:
    """The factor of the moving average after update number `step`, counted from 0."""
    return min(average.decay, (2 + step) / (11 + step)) if average.warmup else average.decay
