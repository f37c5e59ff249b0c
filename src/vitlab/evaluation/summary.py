"""`vitlab.evaluate` behind its options: the checkpoint's own head, or classifiers trained on its features, on any data.

Axes: N images, C classes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints import Checkpoint
from vitlab.config.data import Preprocess, Split
from vitlab.config.evaluation import EvaluateConfig, FewShotConfig, KnnConfig, ProbeConfig, VtabConfig
from vitlab.config.hardware import Cut, RayConfig
from vitlab.config.published import PublishedAccuracy, published_accuracies, published_vtab
from vitlab.config.serialize import to_json
from vitlab.data.batch import Failure, label_array
from vitlab.data.dataset import Dataset
from vitlab.errors import DataError, UsageError
from vitlab.evaluation.classification import Labels, Logits
from vitlab.evaluation.corruptions import chosen_corruptions
from vitlab.evaluation.evaluation import (
    Evaluation,
    Robustness,
    evaluate,
    name_in,
    open_split,
    refuse_detector,
    robustness,
    write_per_image,
)
from vitlab.evaluation.frozen import FrozenConfig, FrozenEvaluation, evaluate_frozen, open_train_test
from vitlab.evaluation.label_mapping import Targets, match_by_file, match_by_name, read_real
from vitlab.evaluation.vtab import Vtab, vtab, with_vtab_preprocess
from vitlab.inference.engine import Engine, Predictor
from vitlab.inference.on_ray import (
    DatasetSource,
    ModelSettings,
    ReadBatch,
    Tables,
    chunk_counts,
    dataset_digest,
    job_facts,
    note_resumed,
    run_on_ray,
    table_bytes,
)
from vitlab.inference.results import MARK_LENGTH, load_pyarrow
from vitlab.io.atomic import only_writer
from vitlab.io.display import ProgressCallback, Table
from vitlab.io.parts import Chunk, open_parts

_log = logging.getLogger("vitlab")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of an evaluation, as `vitlab.evaluate` documents them."""

    data: str | None
    split: Split | None
    label_column: str | None
    config: EvaluateConfig
    subset: bool
    mapping: Path | None
    real: str | None
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    per_image: Path | None
    fewshot: bool
    knn: bool
    probe: bool
    vtab: Path | None
    shots: tuple[int, ...]
    seeds: int
    neighbours: tuple[int, ...] | None
    vtab_test: int | None
    vtab_splits: Path | None
    cache: bool
    own_resize: bool
    ray: RayConfig | None = None
    parts: Path | None = None

    @property
    def learns(self) -> bool:
        """Whether classifiers are trained on the features, in place of evaluating the checkpoint's head."""
        return self.fewshot or self.knn or self.probe or self.vtab is not None

    @property
    def vtab_config(self) -> VtabConfig:
        """VTAB's splits."""
        return VtabConfig(test=self.vtab_test)

    def check(self) -> None:
        """Refuse, before a model is loaded, options that contradict each other."""
        if self.subset and self.mapping is not None:
            raise UsageError("`subset` and `mapping` are two ways to match classes", hint="leave one out")
        if self.ray is not None:
            for name in ("fewshot", "knn", "probe", "vtab", "corruptions"):
                if getattr(self, name):
                    raise UsageError(f"`{name}` runs in one process, and not on Ray", hint="leave `engine` out")
        if self.corruptions and self.config.tta == "crops":
            raise UsageError("corruptions are made for one crop of each image", hint="leave `tta` out")
        if self.learns:
            for name in ("merge", "tta"):
                if getattr(self.config, name):
                    raise UsageError(f"`{name}` is for the checkpoint's own head, but other classifiers are evaluated here")
            for name in ("subset", "mapping", "real", "corruptions", "per_image"):
                if getattr(self, name):
                    raise UsageError(f"`{name}` is for the checkpoint's own head, but other classifiers are evaluated here")
        if self.vtab is not None:
            if self.data is not None:
                raise UsageError("`vtab` is in place of data", hint="leave data out")
            for name in ("fewshot", "knn", "probe", "split", "label_column"):
                if getattr(self, name):
                    raise UsageError(f"`{name}` is for data, but `vtab` has its own protocol")
        elif self.data is None:
            raise UsageError("there is no data to evaluate on", hint="give it after the model: a folder, a zip, digits, ...")
        chosen_corruptions(self.corruptions)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EvaluationSummary:
    """An evaluation: `top1`, `top5`, `loss`, `metrics`; everything is in `evaluation`.

    `robustness` is set with corruptions; `features` with fewshot, knn or probe and `vtab` with vtab, in place of `evaluation`.
    `published` are the accuracies that were published for this model, fine-tuned, on this dataset.
    """

    model: str
    data: str
    preprocess: Preprocess
    evaluation: Evaluation | None = None
    robustness: Robustness | None = None
    features: FrozenEvaluation | None = None
    vtab: Vtab | None = None
    published: tuple[PublishedAccuracy, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def top1(self) -> float:
        """Top-1 accuracy, from 0 to 1."""
        return self._evaluation().top1

    @property
    def top5(self) -> float | None:
        """Top-5 accuracy, from 0 to 1; None for a model with 5 classes or fewer."""
        return self._evaluation().top5

    @property
    def loss(self) -> float:
        """Cross-entropy in nats per image."""
        return self._evaluation().loss

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric by name; accuracies are from 0 to 1."""
        if self.evaluation is not None:
            return self.evaluation.metrics
        assert self.features is not None, "vtab has its own table"
        return self.features.metrics

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Images that could not be read; they count as wrong."""
        if self.evaluation is not None:
            return self.evaluation.logits.failures
        return () if self.features is None else self.features.failures

    def _evaluation(self) -> Evaluation:
        if self.evaluation is None:
            raise UsageError("the features were evaluated and not the head", hint="see .features or .vtab")
        return self.evaluation

    def _parts(self) -> list[Any]:
        beside = Table(entry.row() for entry in self.published) if self.published else None
        return [part for part in (self.evaluation, beside, self.robustness, self.features, self.vtab) if part is not None]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        found: dict[str, Any] = {"checkpoint": self.model, "vtab" if self.vtab is not None else "data": self.data}
        for part in (self.evaluation, self.features, self.vtab):
            found |= {} if part is None else part.to_json()
        if self.robustness is not None:
            found["robustness"] = self.robustness.to_json()
        found["published"] = to_json(self.published)
        return {**found, "preprocess": to_json(self.preprocess), "notes": list(self.notes)}

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._parts()))

    def _repr_html_(self) -> str:
        return "".join(part._repr_html_() for part in self._parts())


def summarise(checkpoint: Checkpoint, asked: Asked, *, name: str, progress: ProgressCallback) -> EvaluationSummary:
    """Run the evaluation."""
    refuse_detector(checkpoint)
    if asked.vtab is not None:
        return _vtab(checkpoint, asked, asked.vtab, name=name, progress=progress)
    assert asked.data is not None, "checked before"
    if asked.learns:
        return _features(checkpoint, asked, asked.data, name=name, progress=progress)
    with nullcontext() if asked.per_image is None else only_writer(asked.per_image):
        return _head(checkpoint, asked, asked.data, name=name, progress=progress)


def _head(checkpoint: Checkpoint, asked: Asked, data: str, *, name: str, progress: ProgressCallback) -> EvaluationSummary:
    dataset, notes = open_split(data, asked.split, checkpoint, label_column=asked.label_column)
    targets = _targets(checkpoint, dataset, asked)
    found = evaluate(
        checkpoint,
        dataset,
        targets,
        real=_real(checkpoint, dataset, targets, asked),
        config=asked.config,
        logits=None if asked.ray is None else partial(_asked_on_ray, checkpoint, dataset, asked, asked.ray, progress),
        progress=progress,
    )
    if asked.per_image is not None:
        write_per_image(asked.per_image, found, dataset)
    harder = None
    if asked.corruptions:
        harder = robustness(
            checkpoint,
            dataset,
            found,
            corruptions=chosen_corruptions(asked.corruptions),
            severities=asked.severities,
            config=asked.config,
            progress=progress,
        )
    whole = not asked.subset and asked.mapping is None and asked.split not in ("train", "train+val")
    return EvaluationSummary(
        model=name,
        data=data,
        preprocess=checkpoint.preprocess,
        evaluation=found,
        robustness=harder,
        published=published_accuracies(checkpoint.config, data, real=asked.real is not None) if whole else (),
        notes=(*checkpoint.notes, *notes, *targets.notes),
    )


def _asked_on_ray(checkpoint: Checkpoint, dataset: Dataset, asked: Asked, config: RayConfig, progress: ProgressCallback) -> Logits:
    return logits_on_ray(
        checkpoint, dataset, evaluation=asked.config, config=config, parts=asked.parts, progress=progress, notify=_log.info
    )


def _targets(checkpoint: Checkpoint, dataset: Dataset, asked: Asked) -> Targets:
    classes = checkpoint.config.num_classes
    if asked.mapping is not None:
        return match_by_file(asked.mapping, dataset.labels, checkpoint.labels, classes=classes)
    return match_by_name(dataset.labels, checkpoint.labels, classes=classes, subset=asked.subset)


def _real(checkpoint: Checkpoint, dataset: Dataset, targets: Targets, asked: Asked) -> Sequence[Sequence[int]] | None:
    if asked.real is None:
        return None
    names = [name_in(dataset, index) for index in range(len(dataset))]
    return read_real(asked.real, names, targets.names, classes=checkpoint.config.num_classes)


def _features(checkpoint: Checkpoint, asked: Asked, data: str, *, name: str, progress: ProgressCallback) -> EvaluationSummary:
    pair = open_train_test(data, asked.split, checkpoint, label_column=asked.label_column)
    several = asked.neighbours or tuple(k for k in KnnConfig().k if k <= len(pair.train))
    wanted = FrozenConfig(
        few_shot=FewShotConfig(shots=asked.shots, seeds=tuple(range(asked.seeds))) if asked.fewshot else None,
        knn=KnnConfig(k=several) if asked.knn else None,
        probe=ProbeConfig() if asked.probe else None,
    )
    found = evaluate_frozen(checkpoint, pair, wanted, config=asked.config, cache=asked.cache, progress=progress)
    counted = (
        f"{found.classes:,} classes; {found.train_images:,} training images, {found.test_images:,} test images;"
        f" {found.read:,} features extracted, {found.cached:,} cached"
    )
    return EvaluationSummary(
        model=name, data=data, preprocess=checkpoint.preprocess, features=found, notes=(*checkpoint.notes, *found.notes, counted)
    )


def _vtab(checkpoint: Checkpoint, asked: Asked, folder: Path, *, name: str, progress: ProgressCallback) -> EvaluationSummary:
    seen = with_vtab_preprocess(checkpoint) if asked.own_resize else checkpoint
    config = asked.vtab_config
    cut = () if config.test is None else (f"evaluated on at most {config.test:,} test images of each task",)
    found = vtab(seen, folder, config, splits=asked.vtab_splits, reading=asked.config, cache=asked.cache, progress=progress)
    return EvaluationSummary(
        model=name,
        data=str(folder),
        preprocess=seen.preprocess,
        vtab=found,
        published=published_vtab(checkpoint.config),
        notes=(*seen.notes, *found.notes(), *cut),
    )


# --- on Ray -------------------------------------------------------------------------------------------------------------------
# The logits of a dataset from a Ray cluster, from which an evaluation computes its metrics as after a run in one process.
#
# A part is a Parquet file with a row for each image: index, logits (null if it could not be read), and then an error: its name and
# the reason, as JSON.

_RAY_PARTS = Tables(group=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsTable:
    """A row for each image of a chunk."""

    classes: int

    def chunk(self, predictor: Predictor, batches: Sequence[ReadBatch]) -> Chunk:
        """Index and logits, or why the image could not be read."""
        arrow = load_pyarrow()[0]
        indices: list[int] = []
        flat: list[NDArray[np.float32]] = []
        failures: list[tuple[int, str, str]] = []
        run = predictor.engine.run_read([batch.images for batch in batches])
        for read, (batch, outputs) in zip(batches, run, strict=True):
            failed = {failure.index for failure in batch.failed}
            failures += ((read.first + failure.index, failure.name, failure.reason) for failure in batch.failed)
            if outputs is not None:
                indices += (read.first + place for place in range(len(batch.names)) if place not in failed)
                flat.append(outputs.logits_BK.reshape(-1))
        logits_M = np.concatenate(flat) if flat else np.zeros(0, np.float32)
        good = arrow.table(
            {
                "index": arrow.array(indices, arrow.int64()),
                "logits": arrow.FixedSizeListArray.from_arrays(arrow.array(logits_M, arrow.float32()), self.classes),
                "error": arrow.nulls(len(indices), arrow.string()),
            }
        )
        bad = arrow.table(
            {
                "index": arrow.array([index for index, _, _ in failures], arrow.int64()),
                "logits": arrow.nulls(len(failures), arrow.list_(arrow.float32(), self.classes)),
                "error": arrow.array([json.dumps([name, reason]) for _, name, reason in failures], arrow.string()),
            }
        )
        table = arrow.concat_tables([good, bad])
        return Chunk(content=table_bytes(table), rows=table.num_rows, failures=tuple((name, why) for _, name, why in failures))


def logits_on_ray(
    checkpoint: Checkpoint,
    dataset: Dataset,
    *,
    evaluation: EvaluateConfig,
    config: RayConfig,
    parts: Path | None,
    progress: ProgressCallback,
    notify: Callable[[str], None],
) -> Logits:
    """The logits of every image of a dataset; `parts` is a folder that the same call resumes (None: a temporary one)."""
    settings = ModelSettings(
        batch_size=evaluation.batch_size,
        backend=evaluation.backend,
        merge=evaluation.merge,
        tta=evaluation.tta,
        device=evaluation.device,
    )
    engine = Engine(checkpoint, backend="torch", device="cpu", merge=evaluation.merge, tta=evaluation.tta)
    cut = Cut(images=len(dataset), batch_size=evaluation.batch_size, part_size=config.part_size)
    job = job_facts("evaluate", engine.digest[:MARK_LENGTH], dataset_digest(dataset), cut, settings)
    source = DatasetSource(
        dataset=dataset, transform=engine.transform, loader=replace(evaluation, workers=0).loader(), base=str(Path.cwd())
    )
    work = LogitsTable(classes=checkpoint.config.num_classes)
    with ExitStack() as stack:
        folder = parts or Path(stack.enter_context(TemporaryDirectory(prefix="vitlab-parts-")))
        opened = stack.enter_context(open_parts(folder, job, chunk_counts(cut), _RAY_PARTS))
        note_resumed(opened, notify)
        run_on_ray(
            checkpoint,
            source,
            work,
            cut,
            opened,
            settings=settings,
            config=config,
            description="evaluating",
            progress=progress,
        )
        return _gathered_logits(opened.paths, dataset, work.classes)


def _gathered_logits(paths: Sequence[Path], dataset: Dataset, classes: int) -> Logits:
    """What `collect_logits` gives after a run in one process."""
    _, parquet = load_pyarrow()
    logits, indices, failures = list[NDArray[np.float32]](), list[NDArray[np.int64]](), list[Failure]()
    for path in paths:
        table = parquet.read_table(path)
        good: Any = table.filter(table["error"].is_null())
        for row in table.filter(table["error"].is_valid()).select(["index", "error"]).to_pylist():
            name, reason = json.loads(row["error"])
            failures.append(Failure(index=row["index"], name=name, reason=reason))
        flat_M = good["logits"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        logits.append(np.asarray(flat_M, np.float32).reshape(good.num_rows, classes))
        indices.append(np.asarray(good["index"].to_numpy(), np.int64))
    logits_NC, indices_N = np.concatenate(logits), np.concatenate(indices)
    if not len(indices_N):
        raise DataError(f"none of {len(failures):,} images could be read; the first: {failures[0]}")
    labels: Labels = label_array(
        [dataset.label(index) for index in indices_N.tolist()], len(dataset.labels), multi_label=dataset.multi_label
    )
    return Logits(logits_NC=logits_NC, labels=labels, indices_N=indices_N, failures=tuple(failures))
