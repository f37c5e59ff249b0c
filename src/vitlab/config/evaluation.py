"""Settings of evaluation: of a classifier, and of frozen features by few-shot, k-NN, linear probe and VTAB."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from vitlab.config.data import CorruptPolicy, LoaderConfig, WorkerKind
from vitlab.errors import ConfigError, at_least, choice

BackendName = Literal["auto", "torch", "compile", "onnxruntime", "openvino"]
Tta = Literal["mirror", "crops"]  # test-time augmentation


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Evaluation. Batch size, workers and backend change its speed and, except for the last bits of the logits, nothing else.

    `corrupt` is for images that cannot be read: `fail` stops at the first, `skip` counts each as wrong and reports it.
    `bins` are those of the calibration error. `resamples` are drawn, from `seed`, for 95 % intervals of means; 0 for no intervals.
    `backend`, `device`, `merge` and `tta` are those of the inference engine. `precision` asks for the threshold of the confidence
    above which this fraction of the predictions is correct.
    """

    batch_size: int = 64
    workers: int = 2
    worker_kind: WorkerKind = "thread"
    corrupt: CorruptPolicy = "fail"
    bins: int = 15
    resamples: int = 1000
    seed: int = 0
    backend: BackendName = "auto"
    device: str = "auto"
    merge: int = 0
    tta: Tta | None = None
    precision: float | None = None

    def __post_init__(self) -> None:
        if self.precision is not None and not 0 < self.precision <= 1:
            raise ConfigError(f"precision={self.precision} must be above 0 and at most 1", hint="0.95 is 95 %")
        at_least("batch_size", self.batch_size, 1)
        at_least("workers", self.workers, 0)
        at_least("bins", self.bins, 1)
        at_least("resamples", self.resamples, 0)
        at_least("seed", self.seed, 0)
        at_least("merge", self.merge, 0)
        choice("backend", self.backend, BackendName)
        if self.tta is not None:
            choice("tta", self.tta, Tta)
        choice("corrupt", self.corrupt, CorruptPolicy)
        choice("worker_kind", self.worker_kind, WorkerKind)

    def loader(self, *, seed: int = 0) -> LoaderConfig:
        """The loader's settings; `seed` is for random transforms."""
        return LoaderConfig(
            batch_size=self.batch_size,
            workers=self.workers,
            worker_kind=self.worker_kind,
            corrupt=self.corrupt,
            corrupt_budget=0.999999,  # each counts as wrong, so too many show in the result
            seed=seed,
            cache="none",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShotConfig:
    """Linear classification from a few images per class, in closed form; the defaults are those of the paper and big_vision.

    `shots` are images per class; each of `seeds` draws others; `l2` is the weight of the squared coefficients, bias included.
    """

    shots: tuple[int, ...] = (1, 5, 10, 25)
    seeds: tuple[int, ...] = (0, 1, 2)
    l2: float = 2.0**10

    def __post_init__(self) -> None:
        _increasing("shots", self.shots)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds={self.seeds} must be one or more different numbers")
        at_least("seeds", min(self.seeds), 0)
        _positive("l2", self.l2)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnnConfig:
    """Classification by the `k` nearest training images, by cosine similarity, each weighted by exp(cosine / `temperature`)."""

    k: tuple[int, ...] = (1, 5, 10, 20, 100)
    temperature: float = 0.07  # Wu et al. 2018, and DINO

    def __post_init__(self) -> None:
        _increasing("k", self.k)
        _positive("temperature", self.temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """Multinomial logistic regression to convergence; its regularisation is chosen on held-out images, as in CLIP.

    The strength is searched from `l2_low` to `l2_high` on a grid of `per_decade` points per decade: first every second decade,
    then around the best by halving. A fit has converged when no entry of the gradient of the mean loss exceeds `tolerance`;
    after `most_steps` of L-BFGS it is reported as not converged.
    """

    l2_low: float = 1e-6
    l2_high: float = 1e6
    per_decade: int = 8
    tolerance: float = 1e-5
    most_steps: int = 2000

    def __post_init__(self) -> None:
        _positive("l2_low", self.l2_low)
        _positive("l2_high", self.l2_high)
        if self.l2_low > self.l2_high:
            raise ConfigError(f"l2_low={self.l2_low} is above l2_high={self.l2_high}")
        at_least("per_decade", self.per_decade, 1)
        _positive("tolerance", self.tolerance)
        at_least("most_steps", self.most_steps, 1)

    def grid(self) -> tuple[float, ...]:
        """Every strength of the search, weakest first."""
        low, high = math.log10(self.l2_low), math.log10(self.l2_high)
        steps = max(0, round((high - low) * self.per_decade))
        return tuple(10 ** (low + (high - low) * step / max(1, steps)) for step in range(steps + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class VtabConfig:
    """VTAB-1k: `train` and `val` images of each task, and its whole test split, or the first `test` images of it."""

    train: int = 800
    val: int = 200
    test: int | None = None
    probe: ProbeConfig = field(default_factory=ProbeConfig)

    def __post_init__(self) -> None:
        at_least("train", self.train, 1)
        at_least("val", self.val, 1)
        if self.test is not None:
            at_least("test", self.test, 1)


def _increasing(name: str, values: Sequence[int]) -> None:
    if not values or values[0] < 1 or any(b <= a for a, b in pairwise(values)):
        raise ConfigError(f"{name}={tuple(values)} must be whole numbers of at least 1, each larger than the one before")


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{name}={value} must be a positive number")
