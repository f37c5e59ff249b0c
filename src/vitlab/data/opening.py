"""The one spelling by which every dataset is opened."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vitlab.config.data import Split, SplitRule, SyntheticConfig
from vitlab.data.dataset import Dataset
from vitlab.errors import DataError, choice, did_you_mean
from vitlab.io.names import printable


def open_dataset(
    spec: str | Path,
    *,
    split: Split = "train",
    rule: SplitRule | None = None,
    label_column: str | None = None,
    generated: SyntheticConfig | None = None,
) -> Dataset:
    """The images of one part of the data that `spec` names, as it is spelled on every command line.

    `PATH` is recognised by what it holds: class folders (with train/, val/, test/ or without), a zip of them, a CSV or JSON
    lines list, tar shards (also a glob, braces or several joined by `::`), an .npz pack, Parquet, CIFAR or SVHN files.
    `KIND:PATH` says the kind: folder, images (no labels), zip, manifest, shards, parquet, npz, mnist, fashion-mnist, kmnist,
    cifar10, cifar100, cifar100-coarse, svhn. `digits` and `generated` are built in (folders of these names are `./digits`);
    `generated:kind=strokes,classes=100` sets fields of GeneratedConfig.

    `split` is `train`, `val`, `train+val`, `test` or `all`; `rule` makes the parts the data does not declare.
    `label_column` chooses among several columns of labels (of a list, shards' JSON or Parquet). `generated` configures the
    generated set, whose parts are images of the same classes with other numbers.

    One DataError at the start names everything that is wrong with the data. What was left out or decided is in `notes`
    of every source but the generated one.
    """
    choice("split", split, Split)
    rule = rule or SplitRule()
    if isinstance(spec, str) and spec.startswith("generated:"):
        return _generated(_configured(spec.removeprefix("generated:")), split, rule)
    if spec == "generated":
        return _generated(generated or SyntheticConfig(), split, rule)
    if generated is not None:
        raise DataError(f"a generated set is configured, and {printable(str(spec))} is another one", hint="say generated")
    from vitlab.data.split import take_split

    if spec == "digits":
        from vitlab.data.digits import open_digits

        return take_split(open_digits(), split, rule, where="digits")
    from vitlab.data.readers.recognise import open_kind, parse_spec, recognise

    text = str(spec)
    if not text or "\0" in text:
        raise DataError("data has no name", hint="a folder, digits, generated, or cifar10:/path")
    try:
        kind, place = parse_spec(text) if isinstance(spec, str) else (recognise(text), text)
        whole = open_kind(kind, place, label_column=label_column)
    except OSError as error:
        raise DataError(f"{printable(str(error.filename or text))} cannot be read: {error.strerror}") from error
    return take_split(whole, split, rule, where=printable(text))


def _generated(config: SyntheticConfig, split: Split, rule: SplitRule) -> Dataset:
    """The set itself is `train`; `val` and `test` are the images that come after it, in proportion, at least one a class."""
    from vitlab.data.synthetic.dataset import SyntheticDataset

    counts = {
        "train": config.examples,
        "val": max(1, round(config.examples * rule.val)) if rule.val else 0,
        "test": max(1, round(config.examples * rule.test)) if rule.test else 0,
    }
    wanted = list(counts) if split == "all" else split.split("+")
    first = config.first + sum(counts[name] for name in counts if list(counts).index(name) < list(counts).index(wanted[0]))
    examples = sum(counts[name] for name in wanted)
    if not examples:
        raise DataError(f"generated has no {split} part: its share is 0", hint=f"give {split} a share")
    return SyntheticDataset(replace(config, first=first, examples=examples))


def _configured(text: str) -> SyntheticConfig:
    """`kind=strokes,classes=100,image_size=64` as the config it spells; what is not said keeps its default."""
    known = {field.name: field.default for field in fields(SyntheticConfig)}
    values: dict[str, Any] = {}
    for pair in text.split(","):
        name, equals, value = (word.strip() for word in pair.partition("="))
        if name not in known or not equals:
            hint = did_you_mean(name, list(known)) or f"settings are {', '.join(known)}"
            raise DataError(f"generated has no setting spelled '{printable(pair)}'", hint=hint)
        try:
            if name == "kind":
                values[name] = value
            elif name == "image_size":
                values[name] = tuple(int(side) for side in value.split("x")) if "x" in value else int(value)
            else:
                values[name] = float(value) if isinstance(known[name], float) else int(value)
        except ValueError as error:
            raise DataError(f"generated: {name}={printable(value)} is no number") from error
    return SyntheticConfig(**values)
