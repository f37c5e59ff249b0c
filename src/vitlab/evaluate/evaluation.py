"""A checkpoint judged by a source: run once over every picture, then all numbers out of the answers.

Axes: K classes of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitlab.checkpoint.contents import Checkpoint
from vitlab.config.decode import DecodeLimits
from vitlab.config.evaluate import EvaluateConfig
from vitlab.data.batch import Batch
from vitlab.data.care.progress import Tell, silent
from vitlab.data.labels import Label
from vitlab.data.listed import ListedSource
from vitlab.data.loader import Loader
from vitlab.data.source import Source
from vitlab.data.view import EvaluationView
from vitlab.errors import DataError
from vitlab.evaluate.answers import Answers, answer
from vitlab.evaluate.classify import Classification, Judged, MultiLabel, classify, classify_multi_label, judge
from vitlab.evaluate.corruptions import CorruptedView
from vitlab.evaluate.mapping import Targets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """What was asked, answered and found. `judged` is None where a picture may have several classes.

    `real` are the right classes by picture of the source, where they were given.
    """

    result: Classification | MultiLabel
    answers: Answers
    judged: Judged | None
    targets: Targets
    real: Sequence[Sequence[int]] | None = None


def evaluate(
    checkpoint: Checkpoint,
    source: Source,
    targets: Targets,
    *,
    real: Sequence[Sequence[int]] | None = None,
    view: EvaluationView | CorruptedView | None = None,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    tell: Tell = silent,
) -> Evaluation:
    """Judge a checkpoint by every picture of a source that has a class.

    `targets` says which classes of the model are right for which of the data. `real` holds, for each picture of the source, the
    classes that are really right, perhaps none. Pictures of a class that is mapped to nothing are not asked about.
    `view` is what the model sees of a picture, where that is not the checkpoint's preprocessing of it.
    """
    refuse_unlabelled(checkpoint, source, targets)
    view = EvaluationView(preprocess=checkpoint.preprocess, limits=DecodeLimits()) if view is None else view
    answers = answers_of(checkpoint, source, view, config=config, tell=tell)
    if source.multi_label:
        if not targets.one_each:
            raise DataError("a mapping is for pictures of one class, and these may have several")
        if real is not None:
            raise DataError("ReaL labels are for pictures of one class, and these may have several")
        failed_AK = np.zeros((len(answers.failures), len(targets.labels)), np.bool_)
        for row, failure in enumerate(answers.failures):
            failed_AK[row, list(_several(source.label(failure.index)))] = True
        found = classify_multi_label(answers, targets, failed_AK=failed_AK, config=config)
        return Evaluation(result=found, answers=answers, judged=None, targets=targets)
    answers = _mapped(answers, source, targets)
    judged = judge(answers, targets)
    indices = [*answers.indices_N.tolist(), *(failure.index for failure in answers.failures)]
    result = classify(
        answers,
        judged,
        targets,
        failed_labels=[_one(source.label(failure.index)) for failure in answers.failures],
        real=None if real is None else [real[index] for index in indices],
        config=config,
    )
    return Evaluation(result=result, answers=answers, judged=judged, targets=targets, real=real)


def answers_of(
    checkpoint: Checkpoint,
    source: Source,
    view: EvaluationView | CorruptedView,
    *,
    config: EvaluateConfig,
    tell: Tell = silent,
) -> Answers:
    """The checkpoint's answers to every picture of a source."""
    seed, what = (view.seed, view.called) if isinstance(view, CorruptedView) else (0, "evaluating")
    loader = Loader(source, view.feed(), config=config.loader(seed=seed), train=False)
    device = next(checkpoint.model.parameters()).device
    with loader.batches() as batches:
        return answer(checkpoint.model, _told(batches, len(source), what, tell), checkpoint.preprocess, device=device)


def refuse_unlabelled(checkpoint: Checkpoint, source: Source, targets: Targets) -> None:
    """Refuse, before any picture is read, a model without classes and pictures without a label."""
    if not checkpoint.config.num_classes:
        raise DataError("the checkpoint has no head: it gives features and no classes", hint="fine-tune it, or use vitlab embed")
    assert source.labels == targets.labels, "targets are made for the source's classes"
    if source.multi_label:
        return
    unknown = [index for index in range(len(source)) if source.label(index) is None]
    if unknown:
        raise DataError(
            f"{len(unknown):,} of {len(source):,} pictures have no label, the first {name_in(source, unknown[0])}",
            hint="evaluate a part of the data that has labels; vitlab predict answers for the others",
        )


def name_in(source: Source, index: int) -> str:
    """What a picture is called, without reading it where the source can say."""
    return source.name(index) if isinstance(source, ListedSource) else source[index].name


def _mapped(answers: Answers, source: Source, targets: Targets) -> Answers:
    """Without the pictures whose class is mapped to nothing."""
    if all(targets.right):
        return answers
    kept_N = np.array([bool(targets.right[label]) for label in answers.labels.tolist()], np.bool_)
    if not kept_N.any():
        raise DataError("every picture that could be read is of a class that the mapping leaves out")
    return replace(
        answers,
        logits_NC=answers.logits_NC[kept_N],
        labels=answers.labels[kept_N],
        indices_N=answers.indices_N[kept_N],
        failures=tuple(failure for failure in answers.failures if targets.right[_one(source.label(failure.index))]),
    )


def _told(batches: Iterator[Batch], total: int, what: str, tell: Tell) -> Iterator[Batch]:
    """The batches, telling after each how many pictures have been answered."""
    done = 0
    tell(what, done, total)
    for batch in batches:
        yield batch
        done += batch.n_asked
        tell(what, done, total)


def _one(label: Label) -> int:
    assert isinstance(label, int), "pictures without a label are refused before any is read"
    return label


def _several(label: Label) -> tuple[int, ...]:
    assert isinstance(label, tuple), "a multi-label source gives tuples"
    return label
