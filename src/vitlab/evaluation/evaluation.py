"""A checkpoint judged by a source: run once over every image, then all numbers out of the answers.

Axes: K classes of the data.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import DecodeLimits, Split, SplitRule
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.serialize import Json, from_json
from vitlab.data.batch import Batch
from vitlab.data.dataset import PARTS, UNDECLARED, Dataset, Label, ListedDataset
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.synthetic.dataset import SyntheticDataset
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.classify import Answers, Classification, Judged, MultiLabel, answer, classify, classify_multi_label, judge
from vitlab.evaluation.corruptions import CorruptedTransform
from vitlab.evaluation.label_mapping import Targets
from vitlab.io.atomic import replacing
from vitlab.io.progress import ProgressCallback, silent
from vitlab.objective.metrics import top_classes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """What was asked, answered and found. `judged` is None where an image may have several classes.

    `real` are the right classes by image of the source, where they were given.
    """

    result: Classification | MultiLabel
    answers: Answers
    judged: Judged | None
    targets: Targets
    real: Sequence[Sequence[int]] | None = None


def evaluate(
    checkpoint: Checkpoint,
    dataset: Dataset,
    targets: Targets,
    *,
    real: Sequence[Sequence[int]] | None = None,
    view: EvaluationTransform | CorruptedTransform | None = None,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    tell: ProgressCallback = silent,
) -> Evaluation:
    """Judge a checkpoint by every image of a source that has a class.

    `targets` says which classes of the model are right for which of the data. `real` holds, for each image of the source, the
    classes that are really right, perhaps none. Images of a class that is mapped to nothing are not asked about.
    `view` is what the model sees of an image, where that is not the checkpoint's preprocessing of it.
    """
    refuse_unlabelled(checkpoint, dataset, targets)
    view = EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits()) if view is None else view
    answers = answers_of(checkpoint, dataset, view, config=config, tell=tell)
    if dataset.multi_label:
        if not targets.one_each:
            raise DataError("a mapping is for images of one class, and these may have several")
        if real is not None:
            raise DataError("ReaL labels are for images of one class, and these may have several")
        failed_AK = np.zeros((len(answers.failures), len(targets.labels)), np.bool_)
        for row, failure in enumerate(answers.failures):
            failed_AK[row, list(_several(dataset.label(failure.index)))] = True
        found = classify_multi_label(answers, targets, failed_AK=failed_AK, config=config)
        return Evaluation(result=found, answers=answers, judged=None, targets=targets)
    answers = _mapped(answers, dataset, targets)
    judged = judge(answers, targets)
    indices = [*answers.indices_N.tolist(), *(failure.index for failure in answers.failures)]
    result = classify(
        answers,
        judged,
        targets,
        failed_labels=[_one(dataset.label(failure.index)) for failure in answers.failures],
        real=None if real is None else [real[index] for index in indices],
        config=config,
    )
    return Evaluation(result=result, answers=answers, judged=judged, targets=targets, real=real)


def answers_of(
    checkpoint: Checkpoint,
    dataset: Dataset,
    view: EvaluationTransform | CorruptedTransform,
    *,
    config: EvaluateConfig,
    tell: ProgressCallback = silent,
) -> Answers:
    """The checkpoint's answers to every image of a source."""
    seed, what = (view.seed, view.called) if isinstance(view, CorruptedTransform) else (0, "evaluating")
    loader = Loader(dataset, view.feed(), config=config.loader(seed=seed), train=False)
    device = next(checkpoint.model.parameters()).device
    with loader.batches() as batches:
        return answer(checkpoint.model, _told(batches, len(dataset), what, tell), checkpoint.preprocess, device=device)


def refuse_unlabelled(checkpoint: Checkpoint, dataset: Dataset, targets: Targets) -> None:
    """Refuse, before any image is read, a model without classes and images without a label."""
    if not checkpoint.config.num_classes:
        raise DataError("the checkpoint has no head: it gives features and no classes", hint="fine-tune it, or use vitlab embed")
    assert dataset.labels == targets.labels, "targets are made for the source's classes"
    if dataset.multi_label:
        return
    unknown = [index for index in range(len(dataset)) if dataset.label(index) is None]
    if unknown:
        raise DataError(
            f"{len(unknown):,} of {len(dataset):,} images have no label, the first {name_in(dataset, unknown[0])}",
            hint="evaluate a part of the data that has labels; vitlab predict answers for the others",
        )


def name_in(dataset: Dataset, index: int) -> str:
    """What an image is called, without reading it where the source can say."""
    return dataset.name(index) if isinstance(dataset, ListedDataset) else dataset[index].name


def _mapped(answers: Answers, dataset: Dataset, targets: Targets) -> Answers:
    """Without the images whose class is mapped to nothing."""
    if all(targets.right):
        return answers
    kept_N = np.array([bool(targets.right[label]) for label in answers.labels.tolist()], np.bool_)
    if not kept_N.any():
        raise DataError("every image that could be read is of a class that the mapping leaves out")
    return replace(
        answers,
        logits_NC=answers.logits_NC[kept_N],
        labels=answers.labels[kept_N],
        indices_N=answers.indices_N[kept_N],
        failures=tuple(failure for failure in answers.failures if targets.right[_one(dataset.label(failure.index))]),
    )


def _told(batches: Iterator[Batch], total: int, what: str, tell: ProgressCallback) -> Iterator[Batch]:
    """The batches, telling after each how many images have been answered."""
    done = 0
    tell(what, done, total)
    for batch in batches:
        yield batch
        done += batch.n_asked
        tell(what, done, total)


def _one(label: Label) -> int:
    assert isinstance(label, int), "images without a label are refused before any is read"
    return label


def _several(label: Label) -> tuple[int, ...]:
    assert isinstance(label, tuple), "a multi-label source gives tuples"
    return label


# Which images a model is judged by when nobody says: those it was not trained on, as far as can be known.


def open_part(
    spec: str, split: Split | None, checkpoint: Checkpoint, *, label_column: str | None = None
) -> tuple[Dataset, tuple[str, ...]]:
    """The images to evaluate by, and what was decided, a sentence each.

    Where `split` is None: the declared `test`, else the declared `val`. Data that declares no part is taken whole, unless the
    checkpoint was trained on it: then its held-out `test` is taken, by the rule of that training.
    """
    rule = trained_on(spec, checkpoint)
    if split is not None:
        dataset = open_dataset(spec, split=split, rule=rule, label_column=label_column)
        return dataset, _notes(dataset)
    whole = open_dataset(spec, split="all", label_column=label_column)
    if isinstance(whole, SyntheticDataset):
        return open_dataset(spec, split="test", rule=rule), ("evaluated by the test part",)
    assert isinstance(whole, ListedDataset)
    declared = {PARTS[part] for part in set(whole.parts.tolist()) - {UNDECLARED}}
    chosen: Split
    if declared:
        chosen = "test" if "test" in declared else "val" if "val" in declared else "all"
        note = (
            f"evaluated by the {chosen} part" if chosen != "all" else "the data declares a train part alone: all of it is evaluated"
        )
    elif rule is not None:
        chosen, note = "test", "the model was trained on this data: evaluated by the test part, which training never sees"
    else:
        chosen, note = "all", f"the data declares no parts: all {len(whole):,} images are evaluated"
    if chosen == "test" and whole.labels and _unlabelled(whole, chosen) and "val" in declared:
        chosen, note = "val", "the test part has no labels: evaluated by the val part"
    dataset = whole if chosen == "all" else open_dataset(spec, split=chosen, rule=rule, label_column=label_column)
    return dataset, (*_notes(dataset), note)


def _notes(dataset: Dataset) -> tuple[str, ...]:
    return dataset.notes if isinstance(dataset, ListedDataset) else ()


def _unlabelled(whole: ListedDataset, part: str) -> bool:
    return any(whole.label(int(index)) is None for index in (whole.parts == PARTS.index(part)).nonzero()[0][:1])


def trained_on(spec: str, checkpoint: Checkpoint) -> SplitRule | None:
    """The rule by which the run that made the checkpoint divided this same data, or None where it was other data."""
    data = (checkpoint.recipe or {}).get("data")
    if not isinstance(data, dict) or not _same(spec, data.get("dataset")):
        return None
    try:
        rule = from_json(SplitRule, data.get("rule", {}), where="recipe.data.rule")
    except ConfigError:
        return SplitRule()
    assert isinstance(rule, SplitRule)
    return rule


def _same(spec: str, other: Json) -> bool:
    return isinstance(other, str) and (spec == other or Path(spec).resolve() == Path(other).resolve())


# One line for each image, as CSV: what it is, what the model chose, how sure it was, and what could not be read.

Row = Sequence[str | int]

_LINE_BYTES = 200  # about, for the message of a full disk


def write_per_image(path: Path, evaluation: Evaluation, dataset: Dataset) -> None:
    """Write the CSV; it appears whole or not at all.

    Columns: name, label, chosen, confidence, right (1 or 0), rank (how many classes the model held for likelier than the right
    one), loss, real (whether the choice is one of the ReaL labels; empty without any), error (why the image could not be
    read; the rest is then empty). Where an image may have several classes: name, labels (parted by |), best, logit, error.
    """
    answers, targets = evaluation.answers, evaluation.targets
    rows = (
        _multi_label_row(answers, targets, dataset)
        if evaluation.judged is None
        else _one_row(answers, evaluation.judged, targets, dataset, evaluation.real)
    )
    with replacing(path, needed=_LINE_BYTES * answers.asked) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        text.flush()
        text.detach()  # the file is not the wrapper's to close


def _one_row(
    answers: Answers, judged: Judged, targets: Targets, dataset: Dataset, real: Sequence[Sequence[int]] | None
) -> Iterator[Row]:
    yield ["name", "label", "chosen", "confidence", "right", "rank", "loss", "real", "error"]
    for row, index in enumerate(answers.indices_N.tolist()):
        chosen, rank = int(judged.chosen_N[row]), int(judged.rank_N[row])
        classes = None if real is None else real[index]
        yield [
            name_in(dataset, index),
            targets.labels[int(answers.labels[row])],
            targets.names[chosen],
            f"{judged.confidence_N[row]:.6f}",
            int(rank == 0),
            rank,
            f"{judged.loss_N[row]:.6f}",
            int(chosen in classes) if classes else "",
            "",
        ]
    for failure in answers.failures:
        label = dataset.label(failure.index)
        assert isinstance(label, int)
        yield [failure.name, targets.labels[label], "", "", 0, "", "", "", failure.reason]


def _multi_label_row(answers: Answers, targets: Targets, dataset: Dataset) -> Iterator[Row]:
    yield ["name", "labels", "best", "logit", "error"]
    for row, index in enumerate(answers.indices_N.tolist()):
        best = int(top_classes(answers.logits_NC[row : row + 1], 1)[0, 0])
        labels = _named(dataset.label(index), targets)
        yield [name_in(dataset, index), labels, targets.names[best], f"{answers.logits_NC[row, best]:.6f}", ""]
    for failure in answers.failures:
        yield [failure.name, _named(dataset.label(failure.index), targets), "", "", failure.reason]


def _named(label: object, targets: Targets) -> str:
    assert isinstance(label, tuple)
    return "|".join(targets.labels[code] for code in label)


# How much of its accuracy a model keeps when images are corrupted.

_MANY = 500  # images, from which starting processes for each corruption pays


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """One share for each corruption (row) and severity (column): top-1 accuracy, or mean average precision of several classes.

    `clean` is the same of the images as they are.
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
    dataset: Dataset,
    clean: Evaluation,
    *,
    corruptions: Sequence[str],
    severities: Sequence[int],
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    tell: ProgressCallback = silent,
) -> Robustness:
    """Evaluate once more for every corruption and severity; `clean` is the evaluation of the images as they are.

    An image's corruption depends on its index in the source, the corruption and the severity alone.
    """
    if not corruptions or not severities:
        raise ConfigError("there is no corruption or no severity to evaluate")
    plain = EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits())
    if config.workers and len(dataset) >= _MANY:
        config = replace(config, worker_kind="process")  # corrupting is work for the interpreter, which threads share
    config = replace(config, resamples=0)
    rows = []
    for name in corruptions:
        values = []
        for severity in severities:
            view = CorruptedTransform(view=plain, corruption=name, severity=severity)
            found = evaluate(checkpoint, dataset, clean.targets, view=view, config=config, tell=tell)
            values.append(first_measure(found)[1])
        rows.append((name, tuple(values)))
    measure, value = first_measure(clean)
    return Robustness(measure=measure, clean=value, severities=tuple(severities), rows=tuple(rows))


def first_measure(evaluation: Evaluation) -> tuple[str, float]:
    """The name and value of the number one looks at first."""
    return next(evaluation.result.measures())
