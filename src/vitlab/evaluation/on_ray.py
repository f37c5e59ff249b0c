"""The logits of a dataset from a Ray cluster, from which an evaluation computes its metrics as after a run in one process.

A part is a Parquet file with a row for each image: index, logits (null if it could not be read), and then an error: its
name and the reason, as JSON.

Axes: N images, C classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints import Checkpoint
from vitlab.config.cluster import Cut, RayConfig
from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.batch import Failure, label_array
from vitlab.data.dataset import Dataset
from vitlab.errors import DataError
from vitlab.evaluation.classification import Labels, Logits
from vitlab.inference.engine import Engine
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
from vitlab.inference.predictor import Predictor
from vitlab.inference.results import MARK_LENGTH, load_pyarrow
from vitlab.io.parts import Chunk, open_parts
from vitlab.io.progress import ProgressCallback

_FORMAT = Tables(group=4096)


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
        batch_size=evaluation.batch_size, backend=evaluation.backend, merge=evaluation.merge, device=evaluation.device
    )
    engine = Engine(checkpoint, backend="torch", device="cpu", merge=evaluation.merge)
    cut = Cut(images=len(dataset), batch_size=evaluation.batch_size, part_size=config.part_size)
    job = job_facts("evaluate", engine.digest[:MARK_LENGTH], dataset_digest(dataset), cut, settings)
    source = DatasetSource(
        dataset=dataset, transform=engine.transform, loader=replace(evaluation, workers=0).loader(), base=str(Path.cwd())
    )
    work = LogitsTable(classes=checkpoint.config.num_classes)
    with ExitStack() as stack:
        folder = parts or Path(stack.enter_context(TemporaryDirectory(prefix="vitlab-parts-")))
        opened = stack.enter_context(open_parts(folder, job, chunk_counts(cut), _FORMAT))
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
        return _gathered(opened.paths, dataset, work.classes)


def _gathered(paths: Sequence[Path], dataset: Dataset, classes: int) -> Logits:
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
