"""What a teacher thinks of images without labels, and which of them its word is taken for.

Axes: N images, B rows of a batch, C classes, K classes kept of each image.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.dataset import ImageDataset, SoftLabels, align_labels
from vitlab.errors import DataError
from vitlab.evaluation.evaluation import engine_for
from vitlab.inference.engine import Engine
from vitlab.io.atomic import write_bytes
from vitlab.studies.config import NoisyStudentConfig

KEPT = 16
"""Classes kept of a soft label; the shares of the rest, of which there may be thousands, are too small to matter."""

_AT_ONCE = 4096  # images in one file: what is done again after a kill


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opinions:
    """The likeliest classes of each image, the likeliest first, and their probabilities; all 0 where it could not be read."""

    codes_NK: NDArray[np.int32]
    probabilities_NK: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.codes_NK)

    @property
    def confidence_N(self) -> NDArray[np.float32]:
        """The probability of the likeliest class."""
        return self.probabilities_NK[:, 0]

    @property
    def unreadable(self) -> int:
        """Images nothing is known of."""
        return int(np.count_nonzero(self.confidence_N == 0))

    def labels(self, rows: NDArray[np.int64], *, hard: bool) -> SoftLabels:
        """As labels of these images: what is kept of the probabilities, to add up to 1 again; or the likeliest class alone."""
        if hard:
            return SoftLabels(codes_NK=self.codes_NK[rows, :1], probabilities_NK=np.ones((len(rows), 1), np.float32))
        probabilities_NK = self.probabilities_NK[rows]
        return SoftLabels(codes_NK=self.codes_NK[rows], probabilities_NK=probabilities_NK / probabilities_NK.sum(1, keepdims=True))


def opinions(
    teacher: Checkpoint, pool: ImageDataset, classes: tuple[str, ...], folder: Path, *, config: EvaluateConfig
) -> Iterator[tuple[int, Opinions | None]]:
    """Ask the teacher about every image, without noise; how many are done, and at the end everything.

    What is done is kept in `folder` and not done again.
    """
    place_C = _places(teacher, classes)
    folder.mkdir(parents=True, exist_ok=True)
    parts, engine = [], engine_for(teacher, config)
    for start in range(0, len(pool), _AT_ONCE):
        rows = np.arange(start, min(start + _AT_ONCE, len(pool)))
        path = folder / f"part-{start // _AT_ONCE:05d}.npz"
        part = _kept(path, len(rows))
        if part is None:
            asked = _Asked(len(rows), min(KEPT, len(classes)))
            for done in asked.ask(engine, pool.take(rows), place_C, config):
                yield start + done, None
            part = asked.opinions
            file = io.BytesIO()
            np.savez(file, codes=part.codes_NK, shares=part.probabilities_NK)
            write_bytes(path, file.getvalue())
        parts.append(part)
        yield start + len(rows), None
    codes, shares = (np.concatenate([getattr(part, name) for part in parts]) for name in ("codes_NK", "probabilities_NK"))
    yield len(pool), Opinions(codes_NK=codes, probabilities_NK=shares)


def choose(found: Opinions, config: NoisyStudentConfig) -> NDArray[np.int64]:
    """The images whose label is taken: sure enough, and of each class the surest, in the order of the pool."""
    sure = np.flatnonzero((found.confidence_N >= config.threshold) & (found.confidence_N > 0))
    if config.per_class is None:
        return sure
    # Of equally sure ones the first.
    by_confidence = sure[np.argsort(-found.confidence_N[sure], kind="stable")]
    codes = found.codes_NK[by_confidence, 0]
    chosen = [by_confidence[codes == code][: config.per_class] for code in np.unique(codes)]
    return np.sort(np.concatenate(chosen)) if chosen else sure


def _places(teacher: Checkpoint, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """The teacher's number of each class."""
    if teacher.labels is None:
        if teacher.config.num_classes != len(classes):
            raise DataError(f"the teacher has {teacher.config.num_classes:,} classes and the data {len(classes):,}")
        return np.arange(len(classes))
    return np.array(align_labels(classes, teacher.labels, reorder=True), np.int64)


def _kept(path: Path, count: int) -> Opinions | None:
    try:
        with path.open("rb") as file:  # numpy leaves it open where it is damaged
            stored = np.load(file, allow_pickle=False)
            found = Opinions(codes_NK=stored["codes"], probabilities_NK=stored["shares"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None  # not there, or not whole: it is made again
    return found if len(found) == count else None


class _Asked:
    """Answers as they come in."""

    def __init__(self, count: int, kept: int) -> None:
        self.opinions = Opinions(codes_NK=np.zeros((count, kept), np.int32), probabilities_NK=np.zeros((count, kept), np.float32))

    def ask(self, engine: Engine, pool: ImageDataset, place_C: NDArray[np.int64], config: EvaluateConfig) -> Iterator[int]:
        """Fill in the pseudo-label of each image that can be read; how many images are done."""
        places = torch.from_numpy(place_C)
        kept = self.opinions.codes_NK.shape[1]
        done = 0
        for batch, outputs in engine.run_dataset(pool, loader=config.loader()):
            if outputs is not None:
                shares_BK, codes_BK = torch.from_numpy(outputs.logits_BK)[:, places].softmax(-1).topk(kept, dim=-1)
                self.opinions.codes_NK[batch.index_B] = codes_BK.numpy()
                self.opinions.probabilities_NK[batch.index_B] = shares_BK.numpy()
            done += batch.n_asked
            yield done
