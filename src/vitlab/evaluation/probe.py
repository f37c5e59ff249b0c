"""A linear probe: multinomial logistic regression on whitened features, to convergence, its regularisation chosen as in CLIP.

By PyTorch's L-BFGS rather than scikit-learn's LogisticRegression: PyTorch is here anyhow, so that a probe needs no extra
package; a fit starts from the one before it, which a search over many strengths gains most from; and it is said how flat the
loss is where it stopped. Both minimise the same function, and a test holds them to the same probabilities.

Axes: N images learned from, D width of the features, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitlab.config.evaluation import ProbeConfig
from vitlab.errors import DataError
from vitlab.evaluation.features import Features, joined

_SMALLEST = 1e-5  # added to a deviation: a feature that never changes stays 0
_HISTORY = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linear:
    """A fitted rule: logits of K classes are ((x - mean) / deviation) @ weights + bias.

    `slope` is the largest entry of the gradient of the mean loss where the fit ended, after `steps`; `converged` whether that
    is below the tolerance.
    """

    mean_D: NDArray[np.float64]
    deviation_D: NDArray[np.float64]
    weights_DK: NDArray[np.float64]
    bias_K: NDArray[np.float64]
    l2: float
    slope: float
    steps: int
    converged: bool

    def logits(self, x_ND: NDArray[np.floating]) -> NDArray[np.float64]:
        """(N, K)"""
        logits_NK: NDArray[np.float64] = ((x_ND - self.mean_D) / self.deviation_D) @ self.weights_DK + self.bias_K
        return logits_NK


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """What a probe reached: `right` of `of` test images, the unreadable ones counted as wrong.

    `tried` lists each strength that was fitted with its accuracy on the held-out images, weakest first; `rule` is the fit to
    all training images with the strength that was best.
    """

    right: int
    of: int
    rule: Linear
    tried: tuple[tuple[float, float], ...]

    @property
    def accuracy(self) -> float:
        """0 to 1."""
        return self.right / self.of


def probe(
    train: Features,
    val: Features,
    test: Features,
    config: ProbeConfig = ProbeConfig(),  # noqa: B008 (a frozen value)
    *,
    told: Callable[[int, float], None] = lambda fits, l2: None,
) -> Probe:
    """Choose the strength on `val`, fit `train` and `val` together with it, and judge by `test`.

    `told` hears how many fits are done and at what strength.
    """
    if not train.names == val.names == test.names:
        raise DataError("the images learned from, chosen by and judged by have different classes")
    classes = len(train.names)
    grid = config.grid()
    tried: dict[int, tuple[float, float]] = {}
    before: list[Linear] = []

    def judged(place: int) -> tuple[float, float]:
        """Accuracy, and minus the loss to part those that are equal, on the held-out images."""
        if place not in tried:
            near = min(before, key=lambda rule: abs(np.log(rule.l2 / grid[place])), default=None)
            rule = fit(train, classes=classes, l2=grid[place], config=config, start=near)
            before.append(rule)
            tried[place] = _judged(rule, val)
            told(len(tried), grid[place])
        return tried[place]

    best = _searched(judged, len(grid), coarse=2 * config.per_decade)
    start = next(rule for rule in before if rule.l2 == grid[best])
    rule = fit(joined([train, val]), classes=classes, l2=grid[best], config=config, start=start)
    right = int(np.count_nonzero(rule.logits(test.features_ND).argmax(1) == test.labels_N))
    return Probe(right=right, of=test.asked, rule=rule, tried=tuple((grid[place], tried[place][0]) for place in sorted(tried)))


def _searched(judged: Callable[[int], tuple[float, float]], places: int, *, coarse: int) -> int:
    """The best place of a grid: every `coarse`-th from the strong end, then around the best at half the distance, and again."""
    last = places - 1
    best: int = max(sorted({*range(last, -1, -coarse), 0}, reverse=True), key=judged)
    step = coarse // 2
    while step >= 1:
        around = [place for place in (best, best + step, best - step) if 0 <= place <= last]
        best = max(around, key=judged)
        step //= 2
    return best


def fit(train: Features, *, classes: int, l2: float, config: ProbeConfig, start: Linear | None = None) -> Linear:
    """The rule that minimises the summed cross-entropy + l2 / 2 ||weights||^2; the bias is free.

    That is scikit-learn's C = 1 / l2. It is convex, so where it ends does not depend on `start`.
    """
    wide_ND = train.features_ND.astype(np.float64)
    mean_D, deviation_D = wide_ND.mean(0), wide_ND.std(0) + _SMALLEST
    x_ND = torch.from_numpy((wide_ND - mean_D) / deviation_D)
    labels_N = torch.from_numpy(train.labels_N)
    width = x_ND.shape[1]
    weights_DK = torch.zeros(width, classes, dtype=torch.float64) if start is None else torch.from_numpy(start.weights_DK.copy())
    bias_K = torch.zeros(classes, dtype=torch.float64) if start is None else torch.from_numpy(start.bias_K.copy())
    # Of the sum and not of the mean: L-BFGS drops updates whose curvature is below an absolute 1e-10.
    steps, slope = _minimise(x_ND, labels_N, weights_DK, bias_K, l2=l2, config=config)
    return Linear(
        mean_D=mean_D,
        deviation_D=deviation_D,
        weights_DK=weights_DK.numpy(),
        bias_K=bias_K.numpy(),
        l2=l2,
        slope=slope,
        steps=steps,
        converged=slope <= config.tolerance,
    )


def _minimise(
    x_ND: Tensor, labels_N: Tensor, weights_DK: Tensor, bias_K: Tensor, *, l2: float, config: ProbeConfig
) -> tuple[int, float]:
    """Change weights and bias in place; how many steps that took, and how steep the mean loss still is."""
    images = len(x_ND)
    optimiser = torch.optim.LBFGS(
        [weights_DK, bias_K],
        lr=1.0,
        max_iter=config.most_steps,
        max_eval=2 * config.most_steps,
        tolerance_grad=config.tolerance * images,
        tolerance_change=0.0,
        history_size=_HISTORY,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        # The gradient by hand: a softmax and two products, where autograd would keep and walk a graph each time.
        log_NK = F.log_softmax(torch.addmm(bias_K, x_ND, weights_DK), dim=1)
        error_NK = log_NK.exp()
        error_NK[torch.arange(images), labels_N] -= 1
        weights_DK.grad = x_ND.T @ error_NK + l2 * weights_DK
        bias_K.grad = error_NK.sum(0)
        return float(F.nll_loss(log_NK, labels_N, reduction="sum") + l2 / 2 * weights_DK.square().sum())

    with torch.no_grad():
        optimiser.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it so
        closure()
    assert weights_DK.grad is not None
    assert bias_K.grad is not None
    steepest = max(float(weights_DK.grad.abs().max()), float(bias_K.grad.abs().max()))
    return int(optimiser.state[weights_DK]["n_iter"]), steepest / images


def _judged(rule: Linear, val: Features) -> tuple[float, float]:
    logits_NK = torch.from_numpy(rule.logits(val.features_ND))
    labels_N = torch.from_numpy(val.labels_N)
    right = int((logits_NK.argmax(1) == labels_N).sum())
    return right / len(val), -float(F.cross_entropy(logits_NK, labels_N))
