"""What a recipe needs to know before a run begins: of the pictures, of the checkpoint, of this machine. Nothing is decided here."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterable

import numpy as np
import torch

from vitlab.checkpoint import describe
from vitlab.config.source import SplitRule
from vitlab.config.wish import DataFacts, Machine, StartFacts
from vitlab.data.decode import decode
from vitlab.data.generated import GeneratedSource
from vitlab.data.listed import PARTS, ListedSource
from vitlab.data.source import Source, open_source
from vitlab.errors import DataError

_LOOKED_AT = 16  # pictures, for their size and colour


def survey(spec: str, *, rule: SplitRule | None = None) -> DataFacts:
    """The facts of the data that `spec` names.

    The number of pictures to learn from is exact where the data declares its parts; where they are made by `rule`, it is what
    the shares come to, since to divide them every picture would have to be read.
    """
    rule = rule or SplitRule()
    whole = open_source(spec, split="all", rule=rule)
    if isinstance(whole, GeneratedSource):
        train = len(open_source(spec, split="train", rule=rule))
        parts: tuple[str, ...] = ("train", *(["val"] if rule.val else []), *(["test"] if rule.test else []))
    else:
        assert isinstance(whole, ListedSource)
        train, parts = _divided(whole, rule, spec)
    channels, side = _looks(whole)
    return DataFacts(
        source=spec,
        pictures=max(train, 1),
        classes=len(whole.labels),
        channels=channels,
        side=side,
        multi_label=whole.multi_label,
        imbalance=_imbalance(whole),
        parts=parts,
    )


def _divided(whole: ListedSource, rule: SplitRule, spec: str) -> tuple[int, tuple[str, ...]]:
    """How many pictures are for training, and which parts there are."""
    counts = {part: int(np.count_nonzero(whole.parts == number)) for number, part in enumerate(PARTS)}
    declared = {part for part, count in counts.items() if count}
    if declared and "train" not in declared:
        raise DataError(f"{spec} has no train part: it declares {' and '.join(sorted(declared))}")
    made = {"val"} if declared and "val" not in declared else set() if declared else {"val", "test"}
    shares = {"val": rule.val, "test": rule.test}
    pool = counts["train"] if declared else len(whole)
    held = sum(shares[part] for part in made)
    present = {"train"} | declared | {part for part in made if shares[part]}
    return round(pool * (1 - held)), tuple(part for part in PARTS if part in present)


def _looks(source: Source) -> tuple[int, int]:
    """Channels (1 where all pictures looked at are grey, else 3) and the median of their shorter sides in pixels."""
    colours, sides = [], []
    for index in np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(int)).tolist():
        example = source[index]
        try:
            image_HWC = decode(example.content, name=example.name) if isinstance(example.content, bytes) else example.content
        except DataError:
            continue  # one that cannot be read is told when its turn comes
        sides.append(min(image_HWC.shape[:2]))
        colours.append(_has_colour(image_HWC))
    if not sides:
        raise DataError(f"none of {_LOOKED_AT} pictures could be read", hint="`vitlab data check` lists what is wrong")
    return (3 if any(colours) else 1), round(statistics.median(sides))


def _has_colour(image_HWC: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bool:
    """Whether channels differ anywhere by more than what compression does."""
    if image_HWC.shape[2] < 3:
        return False
    rgb = image_HWC[..., :3].astype(np.int16)
    return bool((rgb.max(axis=2) - rgb.min(axis=2)).max() > 8)


def _imbalance(source: Source) -> float:
    """The largest class over the smallest that has a picture at all."""
    if isinstance(source, GeneratedSource) or not source.labels:
        return 1.0
    counts = np.bincount([code for index in range(len(source)) for code in _codes(source.label(index))])
    present = counts[counts > 0]
    return float(present.max() / present.min()) if present.size else 1.0


def _codes(label: int | tuple[int, ...] | None) -> Iterable[int]:
    return () if label is None else label if isinstance(label, tuple) else (label,)


def start_facts(path: str) -> StartFacts:
    """What the checkpoint at a path, or at `hub:owner/name`, holds, from its headers."""
    said = describe(path)
    return StartFacts(path=path, model=said.config, preprocess=said.preprocess)


def this_machine() -> Machine:
    """The cores this process may use, and whether there is an accelerator."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return Machine(cores=cores, accelerator=torch.cuda.is_available())
