"""The images of a study: one pack to pre-train on and one to transfer to, small enough for many runs.

    images = prepare(Path("runs/scaling"), PackPlan(data="cifar10.npz"))
    subset(images, count=1000, seed=0)      # nested: the first 1,000 of the order that the seed draws

Each image is scaled and cropped to one size once, so that no run decodes it again. The packs are written to `OUT/data` and reused
when the study is resumed.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import DecodeLimits, Preprocess, Split, SplitRule
from vitlab.config.overrides import DataFacts
from vitlab.config.serialize import to_json
from vitlab.data.dataset import Dataset, ImageDataset, listed
from vitlab.data.opening import open_dataset
from vitlab.data.readers.joined import JoinedEntry, Taken, names_digest, open_member, write_joined
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import ConfigError, DataError, at_least
from vitlab.evaluation.features import labels_of
from vitlab.evaluation.frozen import draw
from vitlab.io.atomic import write_bytes, write_text
from vitlab.io.display import ProgressCallback, silent
from vitlab.io.files import read_bytes
from vitlab.training.plan import survey

LETTERS = "synthetic:kind=strokes,classes=100,image_size=32,variety=0.5"
"""The built-in images to pre-train on; `digits` are those to transfer to."""
_HELD_OUT = 0.3  # of the classes, if no other dataset to transfer to is given
_FEWEST_CLASSES = 2  # of a pack
_RULE = SplitRule(val=0.05, test=0.1)  # where the data declares no splits
_SEED = 0  # of the choice of images, if there are more than the plan takes
_PLAN = "images.json"
_SPLITS: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """What is taken from `data` and from `transfer`, as pixels of `side` x `side`.

    `data` None takes synthetic letters and transfers to digits. `transfer` None holds out the last three tenths of the classes of
    `data`. The other numbers are the most images that are taken: `train`, `val` and `test` of `data`; of `transfer`, `each` of a
    class to train on (a quarter of that to validate), and `test`.
    """

    data: str | None = None
    transfer: str | None = None
    side: int = 32
    train: int = 32_000
    val: int = 500
    test: int = 3_000
    each: int = 200

    def __post_init__(self) -> None:
        at_least("side", self.side, 8, 512)
        for name in ("train", "val", "test", "each"):
            at_least(name, getattr(self, name), 1)
        if self.transfer is not None and self.data is None:
            raise ConfigError("transfer needs data to pre-train on", hint="give `data` too")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyImages:
    """The two packs of a study, and sentences about how they were made."""

    pretrain: DataFacts
    transfer: DataFacts
    notes: tuple[str, ...]


def prepare(out: Path, plan: PackPlan, *, progress: ProgressCallback = silent) -> StudyImages:
    """Write both packs to `out/data`, unless they are there. DataError if that folder holds those of another plan."""
    folder = out / "data"
    described = json.dumps(to_json(plan), indent=2)
    known = folder / _PLAN
    if known.exists():
        before = json.loads(read_bytes(known))
        if before.pop("images", None) is None or before != json.loads(described):
            raise DataError(f"{folder} holds the images of a study with other data or another budget", hint="choose another `out`")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        counts = _write(folder, plan, progress)
        write_text(known, json.dumps({**json.loads(described), "images": counts}, indent=2))
    pretrain, transfer = (survey(str(folder / f"{name}.npz")) for name in ("pretrain", "transfer"))
    return StudyImages(pretrain=pretrain, transfer=transfer, notes=tuple(_notes(plan, pretrain, transfer)))


def subset(images: StudyImages, *, count: int, seed: int) -> DataFacts:
    """`count` training images of the pack to pre-train on, the first of the order that `seed` draws; all of val and test."""
    there = images.pretrain.images
    if count > there:
        raise ConfigError(f"{count:,} images to pre-train on are more than the {there:,} there are", hint="use smaller sizes")
    order = np.random.default_rng([_SEED, seed]).permutation(there)
    return _part(images.pretrain, np.sort(order[:count]), f"pretrain-{count}-{seed}")


def few(images: StudyImages, *, shots: int, seed: int) -> DataFacts:
    """`shots` training images of each class of the pack to transfer to, as `seed` draws them; all of val and test."""
    labels_N = labels_of(open_dataset(images.transfer.dataset, split="train"))
    orders = draw(labels_N, classes=images.transfer.classes, seed=seed)
    return _part(images.transfer, np.sort(np.concatenate([order[:shots] for order in orders])), f"transfer-{shots}-{seed}")


def _part(pack: DataFacts, rows: NDArray[np.int64], name: str) -> DataFacts:
    """Some training images of a pack, and its other splits, as a dataset of its own."""
    path = Path(pack.dataset).with_name(f"{name}.json")
    if not path.exists():
        entries = [JoinedEntry(dataset=pack.dataset, split=split, as_split=split) for split in _SPLITS if split in pack.splits]
        opened = [open_member(entry) for entry in entries]
        taken = [Taken(rows=rows.astype(np.int64)) if entry.as_split == "train" else None for entry in entries]
        named = [replace(entry, names=names_digest(dataset)) for entry, dataset in zip(entries, opened, strict=True)]
        write_joined(path, opened[0].labels, list(zip(named, taken, strict=True)))
    return replace(pack, dataset=f"joined:{path}", images=len(rows))


def _notes(plan: PackPlan, pretrain: DataFacts, transfer: DataFacts) -> list[str]:
    data = "synthetic images" if (plan.data or LETTERS).startswith("synthetic") else plan.data
    other = "digits" if plan.data is None else plan.transfer or f"the last {transfer.classes} classes of the same data"
    return [
        f"pre-training: {pretrain.images:,} images of {pretrain.classes} classes of {data}, {plan.side} px",
        f"transfer: to {other}, {transfer.images:,} images of {transfer.classes} classes to fine-tune on",
    ]


def _write(folder: Path, plan: PackPlan, progress: ProgressCallback) -> dict[str, int]:
    """Write both packs; the number of images in each of their splits."""
    spec, other = plan.data or LETTERS, plan.transfer or ("digits" if plan.data is None else None)
    whole = open_dataset(spec, split="all")
    if whole.multi_label:
        raise DataError(f"{spec}: a study needs images of one class each")
    channels = survey(spec, dataset=whole).channels
    kept, held = _classes(whole.labels, spec, hold_out=other is None)
    most = {"train": plan.train, "val": plan.val, "test": plan.test}
    counts = _write_pack(folder / "pretrain.npz", spec, kept, most, plan.side, channels, progress)
    labels = held if other is None else open_dataset(other, split="all").labels
    few = {"train": plan.each * len(labels), "val": max(1, plan.each // 4) * len(labels), "test": plan.test}
    counts |= _write_pack(folder / "transfer.npz", other or spec, labels, few, plan.side, channels, progress)
    return counts


def _classes(labels: tuple[str, ...], spec: str, *, hold_out: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes to pre-train on, and those that are held out to transfer to."""
    held = max(_FEWEST_CLASSES, math.ceil(_HELD_OUT * len(labels))) if hold_out else 0
    if len(labels) - held < _FEWEST_CLASSES:
        raise DataError(
            f"{spec} has {len(labels)} classes, too few to hold some out for the transfer",
            hint="name another dataset with `transfer`",
        )
    return labels[: len(labels) - held], labels[len(labels) - held :]


def _write_pack(
    path: Path, spec: str, labels: tuple[str, ...], most: dict[str, int], side: int, channels: int, progress: ProgressCallback
) -> dict[str, int]:
    """Write the images of these classes, at most so many of each split, and count them."""
    rule = _RULE
    declared = open_dataset(spec, split="all", rule=rule)
    splits: dict[str, Split] = {"train": "train", "val": "val", "test": "test"}
    if isinstance(declared, ImageDataset) and set(declared.splits.tolist()) == {0, 1}:  # a val split, but no test split
        splits["test"] = "val"
        splits.pop("val")
        rule = SplitRule(val=0.0)
    transform = EvaluationTransform(
        preprocess=Preprocess(
            image_size=(side, side), resize_to=side, interpolation="bicubic", mean=(0.5,) * channels, std=(0.5,) * channels
        ),
        limits=DecodeLimits(),
    )
    arrays: dict[str, NDArray[np.generic]] = {"classes": np.array(labels)}
    counts = dict[str, int]()
    for name, split in splits.items():
        dataset = open_dataset(spec, split=split, rule=rule)
        chosen, codes_N = _chosen(dataset, labels, most[name], spec)
        pixels_NHWC = np.empty((len(chosen), side, side, channels), np.uint8)
        for place, index in enumerate(chosen.tolist()):
            sample = dataset.read(index)
            pixels_NHWC[place] = transform.apply(sample.content, name=sample.name)
            if place % 500 == 0 or place + 1 == len(chosen):
                progress(f"{path.stem}: {name} images", place + 1, len(chosen))
        arrays |= {f"{name}_images": pixels_NHWC, f"{name}_labels": codes_N}
        counts[f"{path.stem} {name}"] = len(chosen)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    write_bytes(path, file.getvalue())
    return counts


def _chosen(dataset: Dataset, labels: tuple[str, ...], most: int, spec: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """At most so many images of these classes, drawn at random and equally often, and the class of each."""
    code_of = {label: code for code, label in enumerate(labels)}
    new_C = np.array([code_of.get(label, -1) for label in dataset.labels], np.int64)
    codes_N = new_C[labels_of(dataset)]
    found = np.random.default_rng(_SEED).permutation(np.flatnonzero(codes_N >= 0))
    turn_N = np.zeros(len(found), np.int64)  # the first image of each class, then the second of each, ...
    for code in range(len(labels)):
        of_class = np.flatnonzero(codes_N[found] == code)
        turn_N[of_class] = np.arange(len(of_class))
    chosen = np.sort(found[np.argsort(turn_N, kind="stable")[:most]])
    if not len(chosen):
        raise DataError(f"{spec}: a split has no image of the classes {listed(labels)}")
    return chosen, codes_N[chosen]
