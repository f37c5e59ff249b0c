"""How a model is judged: batches, workers, and how sure the numbers are."""

from __future__ import annotations

from dataclasses import dataclass

from vitlab.config.check import at_least, choice
from vitlab.config.loader import CorruptPolicy, LoaderConfig, WorkerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Evaluation. `batch_size`, `workers` and `worker_kind` change its speed and, but for the last bits of logits, nothing else.

    `corrupt` is for pictures that cannot be read: `fail` stops at the first, `skip` counts each as wrong and reports it.
    `bins` are those of the calibration error. `resamples` are drawn, from `seed`, for each 95 % interval; 0 for no intervals.
    """

    batch_size: int = 64
    workers: int = 2
    worker_kind: WorkerKind = "thread"
    corrupt: CorruptPolicy = "fail"
    bins: int = 15
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("batch_size", self.batch_size, 1)
        at_least("workers", self.workers, 0)
        at_least("bins", self.bins, 1)
        at_least("resamples", self.resamples, 0)
        at_least("seed", self.seed, 0)
        choice("corrupt", self.corrupt, CorruptPolicy)
        choice("worker_kind", self.worker_kind, WorkerKind)

    def loader(self, *, seed: int = 0) -> LoaderConfig:
        """The loader's part of it; `seed` is for views that are random."""
        return LoaderConfig(
            batch_size=self.batch_size,
            workers=self.workers,
            worker_kind=self.worker_kind,
            corrupt=self.corrupt,
            corrupt_budget=0.999999,  # each is counted as wrong: what too many are shows in the result
            seed=seed,
            cache="none",
        )
