"""Evaluate a checkpoint on a dataset: run the model once over every image, then compute all metrics from the logits.

    found = evaluate(checkpoint, dataset, targets)
    found.top1, found.metrics, found.to_json()       # printing it shows a table, in a terminal and in a notebook

`open_split` chooses the images: those the model was not trained on, as far as can be known. `robustness` repeats an evaluation on
corrupted images. `write_per_image` writes a line for each image.

Axes: K classes of the data.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import CorruptPolicy, Split, SplitRule, is_detector
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.serialize import Json, from_json, to_json
from vitlab.data.dataset import SPLITS, UNDECLARED, Dataset, ImageDataset, Label, Pixels
from vitlab.data.opening import open_dataset
from vitlab.data.synthetic import SyntheticDataset
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.classification import (
    SCORES,
    Accuracy,
    Classification,
    ClassScores,
    Logits,
    MultiLabel,
    PerImage,
    averaged,
    classify,
    classify_multi_label,
    collect_logits,
    compare_with_targets,
)
from vitlab.evaluation.corruptions import CorruptedTransform
from vitlab.evaluation.label_mapping import Targets
from vitlab.inference.backends import evaluating
from vitlab.inference.engine import Engine
from vitlab.inference.images import NamedImage
from vitlab.io.atomic import replacing
from vitlab.io.display import Block, Displayed, ProgressCallback, csv_cell, silent
from vitlab.objective.metrics import top_classes

_SHOWN = 10  # rows of a table of classes
_FEW = 5  # images; the accuracy of a class with fewer says nothing
_MANY = 500  # images; from here on starting processes for each corruption pays
_LINE_BYTES = 200  # of the CSV, about; for the message of a full disk

Row = Sequence[str | int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Evaluation(Displayed):
    """The result of an evaluation: metrics, and the logits they come from.

    `result` has every metric. `per_image` is None if an image may have several classes. `real` are the ReaL labels by the images'
    index in the dataset, if they were given.
    """

    result: Classification | MultiLabel
    logits: Logits
    per_image: PerImage | None
    targets: Targets
    real: Sequence[Sequence[int]] | None = None
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by name; accuracies are from 0 to 1."""
        return dict(self.result.measures())

    @property
    def top1(self) -> float:
        """Top-1 accuracy, from 0 to 1."""
        return self._single_label().top1.value

    @property
    def top5(self) -> float | None:
        """Top-5 accuracy, from 0 to 1; None for a model with 5 classes or fewer."""
        top5 = self._single_label().top5
        return None if top5 is None else top5.value

    @property
    def loss(self) -> float:
        """Cross-entropy in nats per image; with several classes per image, the sigmoid loss summed over classes."""
        return self.result.loss

    @property
    def mean_average_precision(self) -> float:
        """The mean over classes of average precision, where an image may have several classes."""
        if isinstance(self.result, Classification):
            raise DataError("images have one class each, so there is no mean average precision", hint="see top1")
        return self.result.mean_average_precision

    @property
    def headline(self) -> tuple[str, float]:
        """The name and value of the first metric: `top1` or `mean_average_precision`."""
        return next(self.result.measures())

    def _single_label(self) -> Classification:
        if not isinstance(self.result, Classification):
            raise DataError("images may have several classes, so there is no top-1 accuracy", hint="see mean_average_precision")
        return self.result

    def to_json(self) -> dict[str, Json]:
        """Every metric as plain values; what is not a number is null."""
        result = self.result
        values = _classification_json(result, self.targets) if isinstance(result, Classification) else _multi_label_json(result)
        failures: list[Json] = [{"name": failure.name, "reason": failure.reason} for failure in self.logits.failures]
        return values | {"failures": failures}

    def tables(self) -> Iterator[Block]:
        """The metrics, the classes with the lowest accuracy, and the most frequent confusions."""
        yield self._facts()
        yield from self._tables()

    def _facts(self) -> dict[str, Json]:
        result = self.result
        return _classification_facts(result) if isinstance(result, Classification) else _multi_label_facts(result)

    def _tables(self) -> Iterator[list[dict[str, Json]]]:
        if isinstance(self.result, Classification):
            found = [_worst_classes(self.result), _worst_confusions(self.result, self.targets)]
        else:
            worst = sorted(self.result.per_class, key=lambda row: (row[1] is None, row[1]))[:_SHOWN]
            found = [[{"class": label, "images": count, "average_precision": _percent(value)} for label, value, count in worst]]
        yield from (rows for rows in found if rows)


def evaluate(
    checkpoint: Checkpoint,
    dataset: Dataset,
    targets: Targets,
    *,
    real: Sequence[Sequence[int]] | None = None,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    engine: Engine | None = None,
    corruption: CorruptedTransform | None = None,
    logits: Callable[[], Logits] | None = None,
    progress: ProgressCallback = silent,
) -> Evaluation:
    """Evaluate a checkpoint on every image of a labelled dataset.

    `targets` says which classes of the model are correct for which class of the data; images of a class that maps to nothing are
    left out. `real` holds the ReaL labels of each image of the dataset, possibly none. `engine` is one for this checkpoint, if
    there is one already. `corruption` corrupts the images. `logits` computes the logits elsewhere, in place of a run here.
    """
    refuse_unlabelled(checkpoint, dataset, targets)
    if dataset.multi_label and not targets.one_to_one:
        raise DataError("a mapping needs one class per image, and these images may have several")
    if dataset.multi_label and real is not None:
        raise DataError("ReaL labels need one class per image, and these images may have several")
    with evaluating(checkpoint.model):
        engine = engine_for(checkpoint, config) if engine is None else engine
        found = _run(engine, dataset, config, corruption, progress) if logits is None else logits()
    if dataset.multi_label:
        failed_AK = np.zeros((len(found.failures), len(targets.labels)), np.bool_)
        for row, failure in enumerate(found.failures):
            failed_AK[row, list(_several(dataset.label(failure.index)))] = True
        result = classify_multi_label(found, targets, failed_AK=failed_AK, config=config)
        return Evaluation(result=result, logits=found, per_image=None, targets=targets, notes=engine.notes)
    found = _without_unmapped(found, dataset, targets)
    per_image = compare_with_targets(found, targets)
    indices = [*found.indices_N.tolist(), *(failure.index for failure in found.failures)]
    classified = classify(
        found,
        per_image,
        targets,
        failed_labels=[_one(dataset.label(failure.index)) for failure in found.failures],
        real=None if real is None else [real[index] for index in indices],
        config=config,
    )
    notes = engine.notes
    if config.precision is not None and classified.operating_point is None:
        notes = (*notes, f"no threshold: at no confidence are {_percent(config.precision)} of the predictions correct")
    return Evaluation(result=classified, logits=found, per_image=per_image, targets=targets, real=real, notes=notes)


def engine_for(checkpoint: Checkpoint, config: EvaluateConfig) -> Engine:
    """An engine with the settings of the config; a detector is refused."""
    refuse_detector(checkpoint)
    return Engine(checkpoint, backend=config.backend, device=config.device, merge=config.merge, tta=config.tta)


def _run(
    engine: Engine, dataset: Dataset, config: EvaluateConfig, corruption: CorruptedTransform | None, progress: ProgressCallback
) -> Logits:
    description, seed, pipeline = "evaluating", 0, None
    if corruption is not None:
        description, seed, pipeline = corruption.description, corruption.seed, corruption.pipeline()
    loader = config.loader(seed=seed)
    return collect_logits(engine.run_dataset(dataset, loader=loader, pipeline=pipeline, description=description, progress=progress))


def refuse_detector(checkpoint: Checkpoint) -> None:
    """DataError for a model that gives boxes."""
    if is_detector(checkpoint.config):
        raise DataError(
            "this model is an object detector (YOLOS): it gives boxes, and not the class of an image",
            hint="vitlab predict prints its boxes",
        )


def refuse_unlabelled(checkpoint: Checkpoint, dataset: Dataset, targets: Targets) -> None:
    """Refuse a model without classes and images without a label, before any image is read."""
    if not checkpoint.config.num_classes:
        raise DataError("the checkpoint has no head: it gives features, not classes", hint="fine-tune it, or use vitlab embed")
    assert dataset.labels == targets.labels, "targets are made for the dataset's classes"
    if dataset.multi_label:
        return
    unknown = [index for index in range(len(dataset)) if dataset.label(index) is None]
    if unknown:
        raise DataError(
            f"{len(unknown):,} of {len(dataset):,} images have no label, the first {name_in(dataset, unknown[0])}",
            hint="evaluate on a split that has labels; vitlab predict classifies images without labels",
        )


def name_in(dataset: Dataset, index: int) -> str:
    """The name of an image, without reading it if the dataset knows it."""
    return dataset.name(index) if isinstance(dataset, ImageDataset) else dataset.read(index).name


def _without_unmapped(found: Logits, dataset: Dataset, targets: Targets) -> Logits:
    """Without the images whose class maps to nothing."""
    if all(targets.correct):
        return found
    kept_N = np.array([bool(targets.correct[label]) for label in found.labels.tolist()], np.bool_)
    if not kept_N.any():
        raise DataError("every image that could be read has a class that the mapping leaves out")
    return replace(
        found,
        logits_NC=found.logits_NC[kept_N],
        labels=found.labels[kept_N],
        indices_N=found.indices_N[kept_N],
        failures=tuple(failure for failure in found.failures if targets.correct[_one(dataset.label(failure.index))]),
    )


def _one(label: Label) -> int:
    assert isinstance(label, int), "images without a label are refused before any is read"
    return label


def _several(label: Label) -> tuple[int, ...]:
    assert isinstance(label, tuple), "a multi-label dataset gives tuples"
    return label


def open_split(
    spec: str, split: Split | None, checkpoint: Checkpoint, *, label_column: str | None = None
) -> tuple[Dataset, tuple[str, ...]]:
    """The images to evaluate on, and what was decided, a sentence each.

    If `split` is None: the declared `test` split, else the declared `val`. Data without declared splits is evaluated whole, unless
    the checkpoint was trained on it: then its held-out test split is taken, by the rule of that training.
    """
    rule = trained_on(spec, checkpoint)
    if split is not None:
        dataset = open_dataset(spec, split=split, rule=rule, label_column=label_column)
        return dataset, (*_notes(dataset), *_seen(split, checkpoint, rule))
    whole = open_dataset(spec, split="all", label_column=label_column)
    if isinstance(whole, SyntheticDataset):
        return open_dataset(spec, split="test", rule=rule), ("evaluated on the test split",)
    assert isinstance(whole, ImageDataset)
    declared = {SPLITS[part] for part in set(whole.splits.tolist()) - {UNDECLARED}}
    chosen: Split
    if declared:
        chosen = "test" if "test" in declared else "val" if "val" in declared else "all"
        note = f"evaluated on the {chosen} split"
        if chosen == "all":
            note = "the data declares only a train split: all of it is evaluated"
    elif rule is not None:
        chosen, note = "test", "the model was trained on this data: evaluated on the test split, which is never trained on"
    else:
        chosen, note = "all", f"the data declares no splits: all {len(whole):,} images are evaluated"
    of_images = whole.masks is None and whole.boxes is None
    if chosen == "test" and whole.labels and of_images and first_is_unlabelled(whole, chosen) and "val" in declared:
        chosen, note = "val", "the test split has no labels: evaluated on the val split"
    dataset = whole if chosen == "all" else open_dataset(spec, split=chosen, rule=rule, label_column=label_column)
    return dataset, (*_notes(dataset), note)


def _seen(split: Split, checkpoint: Checkpoint, rule: SplitRule | None) -> tuple[str, ...]:
    """A note if the split has images that the checkpoint was trained on."""
    data = (checkpoint.recipe or {}).get("data")
    trained = str(data.get("train_split", "train")) if rule is not None and isinstance(data, dict) else ""
    if not trained or (split != "all" and set(split.split("+")).isdisjoint(trained.split("+"))):
        return ()
    return (f"the model was trained on the {trained} split of this data: its accuracy on new images may be lower",)


def _notes(dataset: Dataset) -> tuple[str, ...]:
    return dataset.notes if isinstance(dataset, ImageDataset) else ()


def first_is_unlabelled(whole: ImageDataset, split: str) -> bool:
    """Whether the first image of a declared split has no label."""
    return any(whole.label(int(index)) is None for index in np.flatnonzero(whole.splits == SPLITS.index(split))[:1])


def trained_on(spec: str, checkpoint: Checkpoint) -> SplitRule | None:
    """The rule by which the checkpoint's training split this same data, or None if it was trained on other data."""
    data = (checkpoint.recipe or {}).get("data")
    if not isinstance(data, dict) or not _same_data(spec, data.get("dataset")):
        return None
    try:
        rule = from_json(SplitRule, data.get("rule", {}), where="recipe.data.rule")
    except ConfigError:
        return SplitRule()
    assert isinstance(rule, SplitRule)
    return rule


def _same_data(spec: str, other: Json) -> bool:
    return isinstance(other, str) and (spec == other or Path(spec).resolve() == Path(other).resolve())


def write_per_image(path: Path, evaluation: Evaluation, dataset: Dataset) -> None:
    """Write a CSV with a line for each image; the file appears complete or not at all.

    Columns: name, label, predicted, confidence, correct (1 or 0), rank (how many classes the model ranks above the correct one),
    loss, real (whether the prediction is one of the ReaL labels; empty without any), error (why the image could not be read; the
    rest is then empty). If an image may have several classes: name, labels (joined by |), best, logit, error.
    """
    rows = _multi_label_rows(evaluation, dataset) if evaluation.per_image is None else _single_label_rows(evaluation, dataset)
    with replacing(path, needed=_LINE_BYTES * evaluation.logits.total) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        text.flush()
        text.detach()  # the file is not the wrapper's to close


def _single_label_rows(evaluation: Evaluation, dataset: Dataset) -> Iterator[Row]:
    found, targets, per_image = evaluation.logits, evaluation.targets, evaluation.per_image
    assert per_image is not None
    yield ["name", "label", "predicted", "confidence", "correct", "rank", "loss", "real", "error"]
    for row, index in enumerate(found.indices_N.tolist()):
        predicted, rank = int(per_image.predicted_N[row]), int(per_image.rank_N[row])
        classes = None if evaluation.real is None else evaluation.real[index]
        yield [
            csv_cell(name_in(dataset, index)),
            csv_cell(targets.labels[int(found.labels[row])]),
            csv_cell(targets.names[predicted]),
            f"{per_image.confidence_N[row]:.6f}",
            int(rank == 0),
            rank,
            f"{per_image.loss_N[row]:.6f}",
            int(predicted in classes) if classes else "",
            "",
        ]
    for failure in found.failures:
        label = csv_cell(targets.labels[_one(dataset.label(failure.index))])
        yield [csv_cell(failure.name), label, "", "", 0, "", "", "", csv_cell(failure.reason)]


def _multi_label_rows(evaluation: Evaluation, dataset: Dataset) -> Iterator[Row]:
    found, targets = evaluation.logits, evaluation.targets
    yield ["name", "labels", "best", "logit", "error"]
    for row, index in enumerate(found.indices_N.tolist()):
        best = int(top_classes(found.logits_NC[row : row + 1], 1)[0, 0])
        labels = _joined_labels(dataset.label(index), targets)
        name, predicted = csv_cell(name_in(dataset, index)), csv_cell(targets.names[best])
        yield [name, labels, predicted, f"{found.logits_NC[row, best]:.6f}", ""]
    for failure in found.failures:
        yield [csv_cell(failure.name), _joined_labels(dataset.label(failure.index), targets), "", "", csv_cell(failure.reason)]


def _joined_labels(label: Label, targets: Targets) -> str:
    return csv_cell("|".join(targets.labels[code] for code in _several(label)))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Robustness(Displayed):
    """One metric for each corruption (row) and severity (column): top-1 accuracy, or mean average precision. `clean` is without."""

    measure: str
    clean: float
    severities: tuple[int, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]

    @property
    def mean(self) -> float:
        """The mean over all corruptions and severities."""
        return float(np.mean([values for _, values in self.rows]))

    def to_json(self) -> dict[str, Json]:
        """Every value; what is not a number is null."""
        rows: list[Json] = [
            {"corruption": name, "values": [number(value) for value in values], "mean": number(sum(values) / len(values))}
            for name, values in self.rows
        ]
        return {
            "measure": self.measure,
            "clean": number(self.clean),
            "mean": number(self.mean),
            "severities": list(self.severities),
            "corruptions": rows,
        }

    def tables(self) -> Iterator[Block]:
        """A row for each corruption, and the means."""
        yield self._rows()
        yield self._facts()

    def _rows(self) -> list[dict[str, Json]]:
        rows: list[dict[str, Json]] = []
        for name, values in self.rows:
            row: dict[str, Json] = {"corruption": name}
            row |= {f"severity_{severity}": _percent(value) for severity, value in zip(self.severities, values, strict=True)}
            rows.append(row | {"mean": _percent(sum(values) / len(values))})
        return rows

    def _facts(self) -> dict[str, Json]:
        name = self.measure.replace("_", " ")
        return {
            f"{name} clean": _percent(self.clean),
            f"{name} corrupted": _percent(self.mean),
            "kept": _percent(self.mean / self.clean if self.clean else math.nan),
        }


def robustness(
    checkpoint: Checkpoint,
    dataset: Dataset,
    clean: Evaluation,
    *,
    corruptions: Sequence[str],
    severities: Sequence[int],
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    progress: ProgressCallback = silent,
) -> Robustness:
    """Evaluate once for every corruption and severity; `clean` is the evaluation of the images as they are.

    The corruption of an image depends only on its index in the dataset, the corruption and the severity.
    """
    if not corruptions or not severities:
        raise ConfigError("there is no corruption or no severity to evaluate")
    config = replace(config, resamples=0)
    if config.workers and len(dataset) >= _MANY:
        config = replace(config, worker_kind="process")  # corrupting is Python code, which threads cannot run side by side
    with evaluating(checkpoint.model):
        engine = engine_for(checkpoint, config)
        if checkpoint.preprocess.resize == "native":
            raise ConfigError("corruptions are made for images of one size", hint="resize='squash'")
        rows = []
        for name in corruptions:
            values = []
            for severity in severities:
                corruption = CorruptedTransform(transform=engine.transform, corruption=name, severity=severity)
                found = evaluate(
                    checkpoint, dataset, clean.targets, config=config, engine=engine, corruption=corruption, progress=progress
                )
                values.append(found.headline[1])
            rows.append((name, tuple(values)))
    measure, value = clean.headline
    return Robustness(measure=measure, clean=value, severities=tuple(severities), rows=tuple(rows))


def number(value: float | None) -> float | None:
    """The value for JSON, which has no nan and no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _classification_facts(result: Classification) -> dict[str, Json]:
    facts: dict[str, Json] = {"images": result.images}
    if result.unreadable:
        facts["unreadable"] = f"{result.unreadable:,}, counted as wrong"
    accuracies = {
        "top-1": result.top1,
        "top-5": result.top5,
        "ReaL": result.real,
        "top-1 among the data's classes": result.within_top1,
        "top-5 among the data's classes": result.within_top5,
    }
    for name, accuracy in accuracies.items():
        if accuracy is not None:
            counts = f"{accuracy.correct:,} of {accuracy.total:,}"
            facts[name] = f"{_percent(accuracy.value)}  {counts}{_interval_text(accuracy.interval)}"
    facts["mean of classes"] = _percent(result.mean_class_accuracy)
    facts["loss"] = f"{result.loss:.4f} nats per image{_interval_text(result.loss_interval, percent=False)}"
    facts["calibration error"] = _percent(result.calibration.error)
    if result.temperature is not None:
        facts["best temperature"] = f"{result.temperature:.3f}"
    if result.scores is not None:
        macro = averaged(result.scores)
        names = {"precision": "precision", "recall": "recall", "f1": "F1"}
        facts["macro average"] = ", ".join(f"{shown} {_percent(macro[name])}" for name, shown in names.items())
        facts["ranking"] = f"ROC-AUC {_percent(macro['roc_auc'])}, average precision {_percent(macro['average_precision'])}"
    if (point := result.operating_point) is not None:
        reach = f"{_percent(point.coverage)} of the images, of which {_percent(point.precision)} are correct"
        facts["threshold"] = f"a confidence of at least {point.threshold:.4f} keeps {reach}"
    return facts


def _multi_label_facts(result: MultiLabel) -> dict[str, Json]:
    facts: dict[str, Json] = {"images": result.images}
    if result.unreadable:
        facts["unreadable"] = f"{result.unreadable:,}, ranked last"
    facts["mean_average_precision"] = _percent(result.mean_average_precision) + _interval_text(result.interval)
    facts["loss"] = f"{result.loss:.4f} nats per image, over all classes"
    return facts


def _worst_classes(result: Classification) -> list[dict[str, Json]]:
    seen = [score for score in result.per_class if score.total >= _FEW]
    worst = sorted(seen, key=lambda score: (score.correct / score.total, -score.total, score.label))[:_SHOWN]
    if not worst or worst[0].correct == worst[0].total:
        return []
    scores = {} if result.scores is None else {score.label: score for score in result.scores}
    return [
        {"worst_class": score.label, "recall": _percent(score.correct / score.total)}
        | ({"precision": _percent(found.precision), "f1": _percent(found.f1)} if (found := scores.get(score.label)) else {})
        | {"of": score.total}
        for score in worst
    ]


def _worst_confusions(result: Classification, targets: Targets) -> list[dict[str, Json]]:
    labels, names = targets.labels, targets.names
    wrong = [triple for triple in result.confusion if triple[2] > 1 and labels[triple[0]] != names[triple[1]]]
    return [
        {"class": labels[label], "predicted": names[predicted], "times": count}
        for label, predicted, count in sorted(wrong, key=lambda triple: (-triple[2], triple[0], triple[1]))[:_SHOWN]
    ]


def _classification_json(result: Classification, targets: Targets) -> dict[str, Json]:
    bins = result.calibration
    accuracies: dict[str, Json] = {
        name: _accuracy_json(getattr(result, name)) for name in ("top1", "top5", "real", "within_top1", "within_top5")
    }
    return (
        {"images": result.images, "unreadable": result.unreadable}
        | accuracies
        | {
            "loss": number(result.loss),
            "loss_interval": _interval_json(result.loss_interval),
            "mean_class_accuracy": number(result.mean_class_accuracy),
            "calibration_error": number(bins.error),
            "calibration": [
                {"confidence": number(confidence), "accuracy": number(accuracy), "count": count}
                for confidence, accuracy, count in zip(bins.confidence, bins.accuracy, bins.count, strict=True)
            ],
            "temperature": number(result.temperature),
            "per_class": [
                {
                    "label": score.label,
                    "correct": score.correct,
                    "total": score.total,
                    "accuracy": score.correct / score.total if score.total else None,
                    **({} if result.scores is None else _scores_json(result.scores[place])),
                }
                for place, score in enumerate(result.per_class)
            ],
            "macro": None if result.scores is None else dict(averaged(result.scores)),
            "operating_point": to_json(result.operating_point),
            "classes": list(targets.names),
            "confusion": [{"label": label, "predicted": predicted, "count": count} for label, predicted, count in result.confusion],
        }
    )


def _scores_json(scores: ClassScores) -> dict[str, Json]:
    return {**{name: getattr(scores, name) for name in SCORES}, "predicted": scores.predicted}


def _multi_label_json(result: MultiLabel) -> dict[str, Json]:
    return {
        "images": result.images,
        "unreadable": result.unreadable,
        "mean_average_precision": number(result.mean_average_precision),
        "interval": _interval_json(result.interval),
        "loss": number(result.loss),
        "per_class": [
            {"label": label, "average_precision": number(value), "images": count} for label, value, count in result.per_class
        ],
    }


def _accuracy_json(accuracy: Accuracy | None) -> Json:
    if accuracy is None:
        return None
    return {
        "value": number(accuracy.value),
        "correct": accuracy.correct,
        "total": accuracy.total,
        "interval": _interval_json(accuracy.interval),
    }


def _interval_json(interval: tuple[float, float] | None) -> Json:
    return None if interval is None else [number(end) for end in interval]


def _percent(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.2f} %"


def _interval_text(interval: tuple[float, float] | None, *, percent: bool = True) -> str:
    if interval is None:
        return ""
    low, high = (f"{100 * end:.2f}" if percent else f"{end:.4f}" for end in interval)
    return f"  (95 %: {low} to {high})"


# --- what the evaluations of segmentation and detection have in common --------------------------------------------------------


def named_images(dataset: ImageDataset) -> Iterator[NamedImage]:
    """The images of a dataset, each with its name, read when its turn comes."""
    return (NamedImage(name=dataset.name(index), read=partial(content_of, dataset, index)) for index in range(len(dataset)))


def content_of(dataset: ImageDataset, index: int) -> bytes | Pixels:
    """An image before decoding."""
    return dataset.contents.read(int(dataset.rows[index]))


def unless_skipped(failure: str, corrupt: CorruptPolicy) -> str:
    """The failure itself if such images are skipped, else DataError."""
    if corrupt == "fail":
        raise DataError(failure, hint="repair or remove it, or set `corrupt=skip` to continue without such images")
    return failure


def write_lines(path: Path, header: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Write a CSV with a line for each image: its name and its cells."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows((csv_cell(name), *cells) for name, cells in rows)
    content = text.getvalue().encode("utf-8", "surrogateescape")
    with replacing(path, needed=len(content)) as file:
        file.write(content)


def known(value: float) -> float | None:
    """A number for JSON; None for nan."""
    return None if np.isnan(value) else value


def percent(value: float | None, digits: int, interval: tuple[float, float] | None = None) -> str:
    """A fraction for a table, - for nan and None; its interval behind it, if there is one."""
    said = "-" if value is None or np.isnan(value) else f"{100 * value:.{digits}f} %"
    return said if interval is None else f"{said} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
