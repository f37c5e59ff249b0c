"""Names of earlier releases and their current names: the one table of renamed things.

Files of version 0.1 (run.json, checkpoint headers, events.jsonl, results of studies) stay readable: their readers translate
names by this table. An old command-line option is accepted for one release, with a one-line notice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitlab.errors import ConfigError

OLD_FAMILY = "kind"
"""The old key of a model config's `family`."""

FIELDS: dict[str, dict[str, str]] = {
    "Chosen": {"right": "accuracy"},
    "ConvNeXtConfig": {OLD_FAMILY: "family"},
    "Counts": {"right": "correct", "of": "total"},
    "Distill": {"share": "weight"},
    "EfficientNetConfig": {OLD_FAMILY: "family"},
    "JoinedEntry": {"source": "dataset", "part": "as_split"},
    "Masked": {"share": "fraction"},
    "NoisyStudentConfig": {"labelled_share": "labelled_fraction"},
    "Progress": {"unseen": "evaluation_due", "in_a_row": "skipped_in_a_row"},
    "RecurrentConfig": {OLD_FAMILY: "family"},
    "ResNetConfig": {OLD_FAMILY: "family"},
    "RunData": {"source": "dataset"},
    "Score": {"pictures": "images", "right": "correct", "judged_by": "split", "pseudo_right": "pseudo_accuracy"},
    "Shard": {"pictures": "images"},
    "SwinConfig": {OLD_FAMILY: "family"},
    "TrainConfig": {"growth": "progressive_resizing"},
    "ViTConfig": {OLD_FAMILY: "family", "early": "conv_stem"},
}
"""Name of a dataclass that is stored as JSON -> its old keys -> its keys of today."""

EVENTS: dict[str, str] = {"pictures": "images", "rate": "lr"}
"""Old keys of the lines of events.jsonl -> keys of today."""

EVENT_NAMES: dict[str, str] = {"shrunk": "micro-batch-reduced"}
"""Old names of events in events.jsonl -> names of today."""

READERS: dict[str, str] = {"pictures": "images", "generated": "synthetic"}
"""Old prefixes or names of a dataset (`pictures:photos/`, `generated`) -> those of today."""

OPTIONS: dict[str, dict[str, str]] = {
    "predict": {"--csv": "--format=csv", "--parquet": "--out"},
    "finetune": {"--rates": "--lrs", "--val-share": "--val-fraction", "--test-share": "--test-fraction"}
    | {"--tensorboard": "--track=tensorboard"},
    "pretrain": {"--data": "", "--val-share": "--val-fraction", "--test-share": "--test-fraction"}
    | {"--tensorboard": "--track=tensorboard"},
    "train": {"--config": "", "--tensorboard": "--track=tensorboard"},
    "study noisy-student": {"--labelled-share": "--labelled-fraction"},
    "study positions": {"--pictures": "--images"},
    "study transfer": {"--letters": "--images"},
}
"""Verb -> its old options -> its options of today; an empty one for what is now given by its place."""

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "learning-rate": ("lr",),
    "base-lr": ("lr",),
    "learning-rates": ("lrs",),
    "num-epochs": ("epochs",),
    "max-epochs": ("epochs",),
    "max-steps": ("steps",),
    "bs": ("batch-size",),
    "train-batch-size": ("batch-size",),
    "per-device-train-batch-size": ("batch-size",),
    "grad-accum-steps": ("micro-batch",),
    "gradient-accumulation-steps": ("micro-batch",),
    "img-size": ("image-size",),
    "imgsz": ("image-size",),
    "input-size": ("image-size",),
    "resolution": ("image-size",),
    "pretrained": ("from",),
    "start": ("from",),
    "checkpoint": ("from",),
    "initial-checkpoint": ("from",),
    "model-name-or-path": ("from",),
    "out": ("per-image",),
    "output": ("out", "per-image"),
    "output-dir": ("out",),
    "project": ("out",),
    "num-workers": ("workers",),
    "gpu": ("device",),
    "amp": ("precision",),
    "fp16": ("precision",),
    "bf16": ("precision",),
    "aa": ("preset",),
    "log-wandb": ("track",),
    "report-to": ("track",),
    "force": ("overwrite",),
    "topk": ("top",),
    "predictions": ("per-image",),
    "results-file": ("per-image", "out"),
}
"""What options are called in timm, transformers, Ultralytics and Lightning -> their names here."""


def current(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON of the dataclass called `name`, with the keys of today. A key given twice, by its old and new name, is refused."""
    return _translated(FIELDS.get(name, {}), data)


def current_event(data: Mapping[str, Any]) -> dict[str, Any]:
    """A line of events.jsonl with the names of today."""
    line = _translated(EVENTS, data)
    name = line.get("event")
    return {**line, "event": EVENT_NAMES.get(name, name)} if isinstance(name, str) else line


def current_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a run as a checkpoint carries it, with the keys of today in its `data`."""
    data = recipe.get("data")
    if not isinstance(data, dict):
        return dict(recipe)
    data = current("RunData", data)
    if isinstance(data.get("dataset"), str):
        data["dataset"] = current_dataset(data["dataset"])
    return {**recipe, "data": data}


def current_dataset(spec: str) -> str:
    """A dataset as the command line spells it, with the prefix or name (and settings of `synthetic`) of today."""
    prefix, colon, rest = spec.partition(":")
    if prefix == "generated":
        rest = re.sub(r"(^|,)\s*examples\s*=", r"\1samples_per_class=", rest)
    elif not colon:
        return spec
    return f"{READERS.get(prefix, prefix)}{colon}{rest}"


def _translated(table: Mapping[str, str], data: Mapping[str, Any]) -> dict[str, Any]:
    for old, new in table.items():
        if old in data and new in data:
            raise ConfigError(f"{old} is the old name of {new}, and both are given", hint=f"leave {old} out")
    return {table.get(key, key): value for key, value in data.items()}
