"""What a checkpoint's features are worth on other images: few-shot, nearest neighbours and a linear probe in one go.

Features are made once for all of them, and only of the images that are needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Split, SplitRule
from vitlab.config.evaluation import EvaluateConfig, FewShotConfig, NeighboursConfig, ProbeConfig
from vitlab.data.batch import Failure
from vitlab.data.dataset import PARTS, Dataset, LabelTable, ListedDataset
from vitlab.data.opening import open_dataset
from vitlab.data.split import TRAIN, VAL, assign_parts
from vitlab.data.synthetic.dataset import SyntheticDataset
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.evaluation import trained_on
from vitlab.evaluation.features import Features, FeatureStore, Some, digests_of, features_of, labels_of, model_key
from vitlab.evaluation.few_shot import FewShot, drawn_by_any, fewshot
from vitlab.evaluation.knn import Neighbours, knn
from vitlab.evaluation.probe import Probe, probe
from vitlab.io.progress import ProgressCallback, silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Images to learn from and images to judge by, and what was decided on the way, a sentence each."""

    learn: Dataset
    judge: Dataset
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be found out; None leaves it out."""

    fewshot: FewShotConfig | None = None
    knn: NeighboursConfig | None = None
    probe: ProbeConfig | None = None

    def __post_init__(self) -> None:
        if self.fewshot is None and self.knn is None and self.probe is None:
            raise ConfigError("nothing is asked for", hint="fewshot, knn, probe, or several of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What was found. `learned` images were there to learn from and `judged` to judge by, `classes` of them.

    `read` features were made now and `recalled` were known; `seconds` says how long each part took.
    """

    classes: int
    learned: int
    judged: int
    read: int
    recalled: int
    fewshot: tuple[FewShot, ...] = ()
    knn: tuple[Neighbours, ...] = ()
    probe: Probe | None = None
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: dict[str, float]

    def measures(self) -> Iterator[tuple[str, float]]:
        """The accuracies, 0 to 1, by name."""
        for shot in self.fewshot:
            yield f"fewshot_{shot.shots}", shot.mean
        for found in self.knn:
            yield f"knn_{found.k}", found.accuracy
        if self.probe is not None:
            yield "probe", self.probe.accuracy


def open_pair(spec: str, split: Split | None, checkpoint: Checkpoint, *, label_column: str | None = None) -> Pair:
    """Images to judge by and, apart from them, images to learn from.

    Where `split` is None it is judged by the declared `test`, else by the declared `val`; data that declares no part is divided
    by the hash of its content. Whatever is not judged by and may be trained on is learned from.
    """
    rule = trained_on(spec, checkpoint) or SplitRule()
    whole = open_dataset(spec, split="all", label_column=label_column)
    declared = {PARTS[part] for part in set(whole.parts.tolist()) if part >= 0} if isinstance(whole, ListedDataset) else set()
    if split is None:
        split = "val" if "val" in declared and "test" not in declared else "test"
        if split == "test" and isinstance(whole, ListedDataset) and "val" in declared and _unlabelled(whole, split):
            split = "val"
    if split not in ("test", "val"):
        raise ConfigError(f"split={split} leaves nothing to learn from", hint="judge by test or by val")
    others: Split = "train+val" if split == "test" else "train"
    learn = open_dataset(spec, split=others, rule=rule, label_column=label_column)
    judge = open_dataset(spec, split=split, rule=rule, label_column=label_column)
    said = [] if isinstance(whole, SyntheticDataset) else _notes(learn, judge)
    words = "learned from every other image" if not declared else f"learned from {others}"
    return Pair(learn=learn, judge=judge, notes=(*said, f"{words}, judged by {split}"))


def transfer(
    checkpoint: Checkpoint,
    pair: Pair,
    asked: Asked,
    *,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    cache: bool = True,
    tell: ProgressCallback = silent,
) -> Transfer:
    """Find out what is asked; with `cache`, features are kept in the user's cache folder and found there the next time."""
    if pair.learn.labels != pair.judge.labels:
        raise DataError("the images learned from and those judged by have different classes")
    labels_N, _ = labels_of(pair.learn), labels_of(pair.judge)
    store = FeatureStore(model_key(checkpoint)) if cache else None
    clock = _Clock()
    needed = pair.learn
    if asked.knn is None and asked.probe is None and asked.fewshot is not None:
        drawn = drawn_by_any(labels_N, classes=len(pair.learn.labels), config=asked.fewshot)
        needed = Some(dataset=pair.learn, indices=drawn)
    learn = features_of(checkpoint, needed, config=config, store=store, what="learning images", tell=tell)
    if isinstance(needed, Some):
        learn = replace(learn, indices_N=needed.indices[learn.indices_N])
    judge = features_of(checkpoint, pair.judge, config=config, store=store, what="judging images", tell=tell)
    clock.read("features")
    shots = () if asked.fewshot is None else tuple(fewshot(learn, judge, asked.fewshot, labels=labels_N))
    clock.read("fewshot")
    neighbours = () if asked.knn is None else knn(learn, judge, asked.knn)
    clock.read("knn")
    fitted = None if asked.probe is None else _probed(learn, judge, pair.learn, asked.probe, tell)
    clock.read("probe")
    recalled = learn.recalled + judge.recalled
    return Transfer(
        classes=len(pair.learn.labels),
        learned=len(pair.learn),
        judged=judge.asked,
        read=len(learn) + len(judge) - recalled,
        recalled=recalled,
        fewshot=shots,
        knn=neighbours,
        probe=fitted,
        failures=(*learn.failures, *judge.failures),
        notes=tuple(dict.fromkeys((*pair.notes, *learn.notes, *judge.notes, *_short(shots)))),
        seconds=clock.seconds,
    )


def held_out(dataset: Dataset) -> NDArray[np.bool_]:
    """Which of the images learned from are held out to choose by: the declared `val`, else a tenth by the hash of content."""
    if isinstance(dataset, ListedDataset) and set(np.unique(dataset.parts).tolist()) == {TRAIN, VAL}:
        return np.asarray(dataset.parts == VAL)
    table = LabelTable(codes=labels_of(dataset).astype(np.int32))
    parts = assign_parts(digests_of(dataset), table, SplitRule(test=0), labels=dataset.labels, where="the images learned from")
    return np.asarray(parts == VAL)


def some_of(features: Features, chosen_N: NDArray[np.bool_]) -> Features:
    """The rows that are chosen; what could not be read belongs to none of them."""
    return replace(
        features,
        features_ND=features.features_ND[chosen_N],
        labels_N=features.labels_N[chosen_N],
        indices_N=features.indices_N[chosen_N],
        failures=(),
        recalled=0,
    )


def _probed(learn: Features, judge: Features, dataset: Dataset, config: ProbeConfig, tell: ProgressCallback) -> Probe:
    held_N = held_out(dataset)[learn.indices_N]
    if held_N.all() or not held_N.any():
        raise DataError("too few images can be read to hold some out, which the strength of a probe is chosen by")
    return probe(some_of(learn, ~held_N), some_of(learn, held_N), judge, config, told=lambda fits, _: tell("fits", fits, None))


def _short(shots: tuple[FewShot, ...]) -> Iterator[str]:
    for shot in shots:
        if shot.short:
            more = f" and {len(shot.short) - 3:,} more" if len(shot.short) > 3 else ""
            yield f"fewer than {shot.shots} images to draw: {', '.join(shot.short[:3])}{more}; they gave all they have"


def _notes(*datasets: Dataset) -> list[str]:
    return list(dict.fromkeys(note for dataset in datasets if isinstance(dataset, ListedDataset) for note in dataset.notes))


def _unlabelled(whole: ListedDataset, part: str) -> bool:
    first = np.flatnonzero(whole.parts == PARTS.index(part))[:1]
    return any(whole.label(int(index)) is None for index in first)


class _Clock:
    """Seconds since it was last read, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def read(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now
