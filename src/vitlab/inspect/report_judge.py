"""A run's model judged by pictures it has not learned from: the numbers, the worst mistakes, and the data itself in short.

Axes: N pictures with an answer, B pictures shown, H height, W width, C channels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.checkpoint.contents import Checkpoint
from vitlab.config.decode import DecodeLimits
from vitlab.config.evaluate import EvaluateConfig
from vitlab.config.source import Split
from vitlab.data.care.progress import Tell, silent
from vitlab.data.generated import GeneratedSource
from vitlab.data.normalise import normalise
from vitlab.data.source import Source, open_source
from vitlab.data.view import EvaluationView
from vitlab.errors import DataError, VitlabError
from vitlab.evaluate.evaluation import Evaluation, evaluate, name_in
from vitlab.evaluate.mapping import match_by_name
from vitlab.evaluate.part import open_part
from vitlab.inspect.report_run import RunRecord

Pixels = NDArray[np.uint8]

_PARTS: tuple[Split, ...] = ("train", "val", "test")
_MOST_READ = 50_000  # pictures that are read for a fingerprint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shot:
    """A picture as the model saw it, what it is and what it was taken for, with what confidence."""

    index: int
    name: str
    pixels_HWC: Pixels
    label: str
    said: str
    confidence: float

    @property
    def right(self) -> bool:
        """Whether it was taken for what it is."""
        return self.label == self.said


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgement:
    """What came of judging: `part` says by which pictures, `notes` what was decided on the way."""

    found: Evaluation
    source: Source
    part: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """A data set in short. `counts` are pictures of each class in the part that was learned from; `fingerprint` is None where that
    would mean to read too many of them."""

    source: str
    parts: dict[str, int]
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    fingerprint: str | None


def judged_run(record: RunRecord, checkpoint: Checkpoint, *, split: Split | None = None, tell: Tell = silent) -> Judgement:
    """Judge by the test part of the run's data where there is one, else by its val part."""
    data = record.run.data
    if split is None:
        source, notes = open_part(data.source, None, checkpoint)
    else:
        source, notes = open_source(data.source, split=split, rule=data.rule), (f"evaluated by the {split} part",)
    targets = match_by_name(source.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
    config = EvaluateConfig(corrupt="skip", workers=0 if len(source) < 2000 else 2)
    found = evaluate(checkpoint, source, targets, config=config, tell=tell)
    said = [word for word in ("test", "val") if any(f"the {word} part" in note for note in notes)]
    part: str = split or (said[0] if said else "all")
    return Judgement(found=found, source=source, part=part, notes=(*notes, *targets.notes))


def worst(judgement: Judgement, checkpoint: Checkpoint, *, count: int) -> list[Shot]:
    """The mistakes that were made with the most confidence."""
    return _shots(judgement, checkpoint, count, right=False)


def surest(judgement: Judgement, checkpoint: Checkpoint, *, count: int) -> list[Shot]:
    """Pictures told right, one of each class in turn, the surest of each first."""
    return _shots(judgement, checkpoint, count, right=True)


def _shots(judgement: Judgement, checkpoint: Checkpoint, count: int, *, right: bool) -> list[Shot]:
    judged, answers, targets = judgement.found.judged, judgement.found.answers, judgement.found.targets
    assert judged is not None
    rows = np.flatnonzero((judged.rank_N == 0) == right)
    rows = rows[np.argsort(-judged.confidence_N[rows], kind="stable")]
    if right:  # the classes in turn
        turn = Counter[int]()
        places = []
        for row in rows:
            label = int(answers.labels[row])
            places.append((turn[label], label))
            turn[label] += 1
        rows = rows[sorted(range(len(rows)), key=lambda place: places[place])]
    view = EvaluationView(preprocess=checkpoint.preprocess, limits=DecodeLimits())
    made = []
    for row in rows[:count].tolist():
        index = int(answers.indices_N[row])
        example = judgement.source[index]
        made.append(
            Shot(
                index=index,
                name=name_in(judgement.source, index),
                pixels_HWC=view.see(example.content, name=example.name),
                label=targets.labels[int(answers.labels[row])],
                said=targets.names[int(judged.chosen_N[row])],
                confidence=float(judged.confidence_N[row]),
            )
        )
    return made


def as_batch(shots: list[Shot], checkpoint: Checkpoint) -> torch.Tensor:
    """The pictures as the model takes them, (B, C, H, W)."""
    images_BHWC = torch.from_numpy(np.stack([shot.pixels_HWC for shot in shots]))
    weights = next(checkpoint.model.parameters())
    return normalise(images_BHWC, checkpoint.preprocess, weights.dtype).to(weights.device)


def data_card(record: RunRecord) -> DataCard | None:
    """The run's data in short, or None where it is not there any more."""
    data = record.run.data
    parts: dict[str, int] = {}
    learned: Source | None = None
    for split in _PARTS:
        try:
            source = open_source(data.source, split=split, rule=data.rule)
        except DataError:
            continue  # a part that is neither declared nor made
        parts[split] = len(source)
    try:
        learned = open_source(data.source, split=data.train_split, rule=data.rule)
    except VitlabError:
        return None
    if data.train_split not in _PARTS:
        parts = {f"{data.train_split} (learned from)": len(learned), "test": parts.get("test", 0)}
    counts = Counter[int]()
    for index in range(len(learned)):
        label = learned.label(index)
        counts.update(label if isinstance(label, tuple) else () if label is None else (label,))
    return DataCard(
        source=data.source,
        parts={name: count for name, count in parts.items() if count},
        classes=learned.labels,
        counts=tuple(counts[place] for place in range(len(learned.labels))),
        fingerprint=learned.fingerprint() if len(learned) <= _MOST_READ or isinstance(learned, GeneratedSource) else None,
    )
