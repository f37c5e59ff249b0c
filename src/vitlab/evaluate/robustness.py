"""How much of its accuracy a model keeps when pictures are corrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitlab.checkpoint.contents import Checkpoint
from vitlab.config.decode import DecodeLimits
from vitlab.config.evaluate import EvaluateConfig
from vitlab.data.care.progress import Tell, silent
from vitlab.data.source import Source
from vitlab.data.view import EvaluationView
from vitlab.errors import ConfigError
from vitlab.evaluate.corruptions import CorruptedView
from vitlab.evaluate.evaluation import Evaluation, evaluate

_MANY = 500  # pictures, from which starting processes for each corruption pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """One share for each corruption (row) and severity (column): top-1 accuracy, or mean average precision of several classes.

    `clean` is the same of the pictures as they are.
    """

    measure: str
    clean: float
    severities: tuple[int, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]

    @property
    def mean(self) -> float:
        """Over all corruptions and severities, each counting alike."""
        return float(np.mean([values for _, values in self.rows]))


def robustness(
    checkpoint: Checkpoint,
    source: Source,
    clean: Evaluation,
    *,
    corruptions: Sequence[str],
    severities: Sequence[int],
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    tell: Tell = silent,
) -> Robustness:
    """Evaluate once more for every corruption and severity; `clean` is the evaluation of the pictures as they are.

    A picture's corruption depends on its index in the source, the corruption and the severity alone.
    """
    if not corruptions or not severities:
        raise ConfigError("there is no corruption or no severity to evaluate")
    plain = EvaluationView(preprocess=checkpoint.preprocess, limits=DecodeLimits())
    if config.workers and len(source) >= _MANY:
        config = replace(config, worker_kind="process")  # corrupting is work for the interpreter, which threads share
    config = replace(config, resamples=0)
    rows = []
    for name in corruptions:
        values = []
        for severity in severities:
            view = CorruptedView(view=plain, corruption=name, severity=severity)
            found = evaluate(checkpoint, source, clean.targets, view=view, config=config, tell=tell)
            values.append(first_measure(found)[1])
        rows.append((name, tuple(values)))
    measure, value = first_measure(clean)
    return Robustness(measure=measure, clean=value, severities=tuple(severities), rows=tuple(rows))


def first_measure(evaluation: Evaluation) -> tuple[str, float]:
    """The name and value of the number one looks at first."""
    return next(evaluation.result.measures())
