"""`open_dataset`: the one function that opens every dataset, from a folder of images to CIFAR and synthetic data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlab.config.data import Preprocess, Split, SplitRule, SyntheticConfig
from vitlab.config.renamed import current_dataset
from vitlab.data.dataset import ImageDataset, Pixels
from vitlab.data.readers.joined import open_joined
from vitlab.data.readers.recognise import open_data, parse_spec
from vitlab.data.split import take_split
from vitlab.errors import DataError, choice, did_you_mean, pair
from vitlab.io.display import printable

if TYPE_CHECKING:
    from vitlab.data.synthetic import SyntheticDataset


def open_dataset(
    data: str | Path,
    *,
    split: Split = "train",
    image_size: int | tuple[int, int] | None = None,
    transform: Callable[[Pixels], Any] | None = None,
    label_column: str | None = None,
    rule: SplitRule | None = None,
    synthetic: SyntheticConfig | None = None,
) -> ImageDataset | SyntheticDataset:
    """Open one split of a dataset.

    `dataset[i]` is a sample (image, label, name) with `image` as uint8 RGB pixels [height, width, 3], so that torch's DataLoader
    takes the dataset as it is, if its images have one size; `image_size` makes them so.

    Args:
        data: a path, whose format is recognised by its content: class folders (with or without train/, val/, test/), a zip of
            them, a CSV or JSON Lines list, tar shards (also a glob, braces, or several joined by `::`), an .npz pack, Parquet,
            CIFAR or SVHN files. Folders, zips, lists, shards and Parquet may be at an address (s3://, gs://, az://, http(s)://,
            hf://). `READER:PATH` names the reader: folder, images (no labels), zip, manifest, shards, parquet,
            npz, masks, boxes, mnist, fashion-mnist, kmnist, cifar10, cifar100, cifar100-coarse, svhn, ... `digits` and `synthetic`
            are built in; `synthetic:kind=strokes,classes=100` sets fields of SyntheticConfig.
        split: `train`, `val`, `train+val`, `test` or `all`.
        image_size: pixels, or (height, width); scales the shorter side of each image and crops the centre.
        transform: a function of the pixels, applied to `dataset[i].image`, after `image_size`.
        label_column: the column of labels, if a list, Parquet or shards have several.
        rule: the fractions held out as `val` and `test`, if the data does not declare these splits.
        synthetic: the configuration of `synthetic`. Its splits share classes, and no image.

    Raises:
        DataError: one error names everything that is wrong with the data.
    """
    choice("split", split, Split)
    rule = rule or SplitRule()
    spec = current_dataset(data) if isinstance(data, str) else str(data)
    if not spec or "\0" in spec:
        raise DataError("data has no name", hint="give a folder, digits, synthetic, or cifar10:/path")
    applied = transform if image_size is None else _Resized(_centre_crop(image_size), transform)
    name, colon, settings = spec.partition(":")
    if isinstance(data, str) and name == "synthetic":
        from vitlab.data.synthetic import SyntheticDataset  # opening other datasets needs no Pillow

        config = _parsed(settings) if colon else synthetic or SyntheticConfig()
        return SyntheticDataset(_synthetic_split(config, split, rule), transform=applied)
    if synthetic is not None:
        raise DataError(f"synthetic is configured, but the data is {printable(spec)}", hint="set data to synthetic")
    dataset = take_split(_open_all(data, spec, label_column), split, rule, where=printable(spec))
    if (dataset.masks is not None or dataset.boxes is not None) and image_size is not None:
        raise DataError("image_size would change the images and not their masks or boxes", hint="open the dataset without it")
    return dataset if applied is None else replace(dataset, transform=applied)


def _open_all(data: str | Path, spec: str, label_column: str | None) -> ImageDataset:
    if isinstance(data, str) and spec.startswith("joined:"):
        return open_joined(Path(parse_spec(spec)[1]).expanduser())
    return open_data(data, label_column=label_column)


@dataclass(frozen=True, slots=True)
class _Resized:
    """Resizes and crops, then applies another transform. Picklable, if the other one is."""

    config: Preprocess
    then: Callable[[Pixels], Any] | None

    def __call__(self, image_HWC: Pixels) -> Any:
        from vitlab.data.transforms import preprocess  # opening a dataset needs no Pillow

        resized_HWC = preprocess(image_HWC, self.config)
        return resized_HWC if self.then is None else self.then(resized_HWC)


def _centre_crop(image_size: int | tuple[int, int]) -> Preprocess:
    size = pair("image_size", image_size)
    return Preprocess(image_size=size, resize="short-side", resize_to=max(size))


def _synthetic_split(config: SyntheticConfig, split: Split, rule: SplitRule) -> SyntheticConfig:
    """`train` is the set itself; `val` and `test` are the images after it, by their fractions, at least one per class."""
    counts = {
        "train": config.samples_per_class,
        "val": max(1, round(config.samples_per_class * rule.val)) if rule.val else 0,
        "test": max(1, round(config.samples_per_class * rule.test)) if rule.test else 0,
    }
    names = list(counts)
    wanted = names if split == "all" else split.split("+")
    first = config.first + sum(counts[name] for name in names[: names.index(wanted[0])])
    samples = sum(counts[name] for name in wanted)
    if not samples:
        raise DataError(f"synthetic has no {split} split: its fraction is 0", hint=f"set the fraction of {split}")
    return replace(config, first=first, samples_per_class=samples)


def _parsed(text: str) -> SyntheticConfig:
    """The config that `kind=strokes,classes=100,image_size=64` spells; other fields keep their defaults."""
    known = {field.name: field.default for field in fields(SyntheticConfig)}
    values: dict[str, Any] = {}
    for setting in text.split(","):
        name, equals, value = (word.strip() for word in setting.partition("="))
        if name not in known or not equals:
            hint = did_you_mean(name, list(known)) or f"settings are {', '.join(known)}"
            raise DataError(f"synthetic has no setting '{printable(setting)}'", hint=hint)
        try:
            if name == "kind":
                values[name] = value
            elif name == "image_size":
                values[name] = tuple(int(side) for side in value.split("x")) if "x" in value else int(value)
            else:
                values[name] = float(value) if isinstance(known[name], float) else int(value)
        except ValueError as error:
            raise DataError(f"synthetic: {name}={printable(value)} is not a number") from error
    return SyntheticConfig(**values)
