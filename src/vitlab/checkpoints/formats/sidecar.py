"""Typed values of a config.json of another library: the value, None if it is absent, or an error that names it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from vitlab.checkpoints.formats import sidecar
from vitlab.checkpoints.formats.contract import Row
from vitlab.checkpoints.formats.infer import HALF, UNUSED, cropped, described, per_channel, squashed
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.serialize import Json
from vitlab.errors import CheckpointError

Sidecar = Mapping[str, object]
LIMIT = 1e30


def whole(data: Sidecar, key: str) -> int | None:
    """A whole number of at least 0."""
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(key, value, "a whole number")
    return value


def number(data: Sidecar, key: str) -> float | None:
    """Any number."""
    value = data.get(key)
    if value is None:
        return None
    if (found := _finite(value)) is None:
        raise _wrong(key, value, "a number")
    return found


def text(data: Sidecar, key: str) -> str | None:
    """A string."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _wrong(key, value, "a string")
    return value


def flag(data: Sidecar, key: str, default: bool) -> bool:
    """True or false."""
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(key, value, "true or false")
    return value


def numbers(data: Sidecar, key: str) -> tuple[float, ...] | None:
    """A list of numbers; one number alone is a list of one."""
    value = data.get(key)
    if value is None:
        return None
    items = list(value) if isinstance(value, list | tuple) else [value]
    found = [finite for item in items if (finite := _finite(item)) is not None]
    if not items or len(found) != len(items):
        raise _wrong(key, value, "a list of numbers")
    return tuple(found)


def wholes(data: Sidecar, key: str) -> tuple[int, ...] | None:
    """A list of whole numbers of at least 0."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(type(item) is int and item >= 0 for item in value):
        raise _wrong(key, value, "a list of whole numbers")
    return tuple(value)


def size(data: Sidecar, key: str) -> tuple[int, int] | None:
    """(height, width), from one number, from two, or from an object with `height` and `width`."""
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, dict):
        value = [value.get("height"), value.get("width")]
    sides = list(value) if isinstance(value, list | tuple) else [value, value]
    found = [side for side in sides if isinstance(side, int) and not isinstance(side, bool) and side > 0]
    if len(sides) != 2 or len(found) != 2:
        raise _wrong(key, data.get(key), "a size in pixels")
    return found[0], found[1]


def within(data: Sidecar, key: str) -> Sidecar:
    """An object; empty if it is absent."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(key, value, "an object")
    return value


def names(value: object, count: int, *, key: str) -> tuple[str, ...] | None:
    """Class names in the order of the logits, from a list or from an object by number; None if there are not `count`."""
    if isinstance(value, dict):
        listed = [value.get(str(i), value.get(i)) for i in range(count)] if len(value) == count else []
    elif isinstance(value, list | tuple):
        listed = list(value)
    else:
        raise _wrong(key, value, "a list or an object of names")
    if len(listed) != count or not all(isinstance(name, str) for name in listed):
        return None
    return tuple(str(name) for name in listed)


def _finite(value: object) -> float | None:
    """A finite number below 1e30; not true or false."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and -LIMIT < value < LIMIT
    return float(value) if real and isinstance(value, int | float) else None


def _wrong(key: str, value: object, wanted: str) -> CheckpointError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return CheckpointError(f"the JSON file says {key}={shown}, which is not {wanted}")


# --- the JSON files of a Hugging Face folder ----------------------------------------------------------------------------------

Tensors = dict[str, Tensor]

_PLACEHOLDER = re.compile(r"LABEL_\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A model of transformers as read: its config, its tensors under transformers' names, their rows, and notes."""

    config: ModelConfig
    tensors: Tensors
    rows: list[Row]
    notes: list[str]


def expect(data: Sidecar, values: Mapping[str, Json], *, where: str) -> None:
    """Refuse a config.json with another value of a setting that the tensors do not show; an absent one is transformers' default."""
    for name, value in values.items():
        if name in data and data[name] != value:
            raise CheckpointError(
                f"{where}: config.json says {name}={str(data[name])[:60]!r}, which vitlab does not have",
                hint=f"{name}={value!r} it has",
            )


def cannot_write(what: str) -> CheckpointError:
    """The error for a model that transformers cannot build."""
    return CheckpointError(f"huggingface cannot express {what}", hint="the native format holds every model: `to=native`")


# Names of the classes.


def labels_of(data: Sidecar, classes: int) -> tuple[tuple[str, ...] | None, list[str]]:
    """The names of the classes from `id2label`; LABEL_0, LABEL_1, ... are placeholders and count as none."""
    value = data.get("id2label")
    if value is None or not classes:
        return None, []
    labels = sidecar.names(value, classes, key="id2label")
    if labels is None:
        return None, [f"config.json's id2label does not name the {classes} classes: left out"]
    return (None, []) if all(_PLACEHOLDER.fullmatch(label) for label in labels) else (labels, [])


def labels_json(labels: tuple[str, ...] | None, classes: int) -> dict[str, Json]:
    """`id2label` and `label2id`, from which transformers knows the number of classes."""
    if not classes:
        return {}
    names = labels or tuple(f"LABEL_{i}" for i in range(classes))
    return {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {name: i for i, name in enumerate(names)}}


def one_or_two(size: tuple[int, int]) -> Json:
    """A size as transformers writes it: one number if both are equal."""
    return size[0] if size[0] == size[1] else list(size)


# preprocessor_config.json.

RESAMPLE: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers


Usual = Literal["crop", "squash", "clip", "fit"]
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def guessed(config: ModelConfig, usual: Usual) -> tuple[Preprocess, list[str]]:
    """The preprocessing where there is no preprocessor_config.json.

    `crop` as in the ImageNet evaluation, `squash` with pixels to [-1, 1], `clip` the whole short side with CLIP's mean and std,
    `fit` a detector's.
    """
    size, channels = config.image_size, config.channels
    match usual:
        case "crop":
            preprocess = cropped(size, channels, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
        case "squash":
            preprocess = squashed(size, channels, interpolation="bilinear")
        case "clip":
            preprocess = cropped(size, channels, interpolation="bicubic", mean=CLIP_MEAN, std=CLIP_STD)
            preprocess = replace(preprocess, resize_to=max(size))
        case "fit":
            preprocess = fitting((min(size), max(size)), channels, IMAGENET_MEAN, IMAGENET_STD)
    return preprocess, [f"preprocessing is a guess ({described(preprocess)}): there is no preprocessor_config.json"]


def fitting(edges: tuple[int, int], channels: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Preprocess:
    """A detector's: the whole image, its shorter and longer side bounded by `edges`."""
    return Preprocess(
        image_size=edges,
        resize="fit",
        resize_to=UNUSED,
        interpolation="bilinear",
        mean=per_channel(mean, channels),
        std=per_channel(std, channels),
    )


def detector_preprocess_of(data: Sidecar, config: ModelConfig) -> tuple[Preprocess, list[str]]:
    """The preprocessing in a YOLOS's preprocessor_config.json: `size` with both edges, or a number beside `max_size`."""
    given = data.get("size")
    edges: Sidecar = given if isinstance(given, dict) else {"shortest_edge": given, "longest_edge": data.get("max_size")}
    short, long = sidecar.whole(edges, "shortest_edge"), sidecar.whole(edges, "longest_edge")
    if short is None:
        _, notes = preprocess_of(data, config, any_size=True)
        preprocess, _ = guessed(config, "fit")
        return preprocess, [*notes, f"preprocessor_config.json has no shortest edge: {described(preprocess)} is a guess"]
    fed, notes = preprocess_of({key: value for key, value in data.items() if key != "size"}, config, any_size=True)
    return replace(fed, image_size=(short, max(short, long or 1333)), resize="fit", resize_to=UNUSED), notes


def preprocess_of(data: Sidecar, config: ModelConfig, *, any_size: bool) -> tuple[Preprocess, list[str]]:
    """The preprocessing in a preprocessor_config.json, with notes of what vitlab does differently.

    With `any_size` the model takes images of the size stated there, else of its own size.
    """
    notes: list[str] = []
    resample = sidecar.whole(data, "resample")
    if resample is not None and resample not in RESAMPLE:
        notes.append(f"preprocessor_config.json says resample={resample}: bicubic is used")
    factor = sidecar.number(data, "rescale_factor")
    if not sidecar.flag(data, "do_rescale", True) or (factor is not None and abs(factor * 255 - 1) > 1e-3):
        notes.append("preprocessor_config.json does not scale pixels by 1/255: mean and std are used as if it did")
    mean, std = _normalisation(data, config.channels)
    image_size, short_side = _sizes(data, config.image_size, notes, any_size=any_size)
    return (
        Preprocess(
            image_size=image_size,
            resize="squash" if short_side is None else "short-side",
            resize_to=UNUSED if short_side is None else max(short_side, max(image_size)),
            interpolation=RESAMPLE.get(2 if resample is None else resample, "bicubic"),
            mean=mean,
            std=std,
        ),
        notes,
    )


def image_size_in(data: Sidecar) -> Json:
    """The image size that a preprocessor_config.json makes, None if it does not say."""
    given = data.get("crop_size") or data.get("size")
    edge = given.get("shortest_edge") if isinstance(given, dict) else None
    found = sidecar.size({"size": edge or given}, "size")
    return None if found is None else list(found)


def preprocessor_json(preprocess: Preprocess) -> tuple[Json, list[str]]:
    """A preprocessor_config.json for transformers, or None if it has no such preprocessing; with notes."""
    if preprocess.resize == "pad":
        return None, ["no preprocessor_config.json: transformers has none that fits the image inside and pads"]
    notes = []
    if preprocess.interpolation == "tf-bilinear":
        notes.append("transformers scales with antialiasing, TensorFlow's bilinear of this model without: pixels will differ")
    size: dict[str, Json] = {"height": preprocess.image_size[0], "width": preprocess.image_size[1]}
    crop = preprocess.resize == "short-side"
    kind = "BitImageProcessor" if crop else "ViTImageProcessor"
    if preprocess.resize == "fit":
        kind, size = "YolosImageProcessor", {"shortest_edge": preprocess.image_size[0], "longest_edge": preprocess.image_size[1]}
    data: dict[str, Json] = {
        "image_processor_type": kind,
        "do_resize": True,
        "size": {"shortest_edge": preprocess.resize_to} if crop else size,
        "resample": 3 if preprocess.interpolation == "bicubic" else 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
    if crop:
        data |= {"do_center_crop": True, "crop_size": size}
    return data, notes


def _normalisation(data: Sidecar, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not sidecar.flag(data, "do_normalize", True):
        return (0.0,) * channels, (1.0,) * channels
    mean, std = sidecar.numbers(data, "image_mean") or HALF, sidecar.numbers(data, "image_std") or HALF
    if len(mean) != channels or len(std) != channels:
        return per_channel((), channels), per_channel((), channels)
    if _processor(data).startswith("EfficientNet") and sidecar.flag(data, "include_top", True):
        std = tuple(value * value for value in std)  # transformers divides by it once more for the classifier
    return mean, std


def _sizes(data: Sidecar, image_size: tuple[int, int], notes: list[str], *, any_size: bool) -> tuple[tuple[int, int], int | None]:
    """The image size that the model gets, and the pixels that the short side is scaled to, None if the image is squashed."""
    crops = sidecar.flag(data, "do_center_crop", "crop_size" in data)
    given = data.get("size")
    edge = sidecar.whole(given, "shortest_edge") if isinstance(given, dict) else None
    if edge is not None and _processor(data).startswith("ConvNext"):
        return _convnext_sizes(edge, sidecar.number(data, "crop_pct"))
    if edge is not None:
        seen = sidecar.size(data, "crop_size") if crops else None
        if any_size and seen is not None:
            return seen, edge
        if seen not in (None, image_size):
            notes.append(f"preprocessor_config.json crops {seen}, and the model sees {image_size}: fed with that")
        return image_size, edge
    stated = sidecar.size(data, "size")
    if crops and stated is not None:
        notes.append(
            f"preprocessor_config.json squashes to {stated[0]}x{stated[1]} before the crop; here the short side is scaled"
            f" to {min(stated)}, as DeiT's own code does"
        )
        return image_size, min(stated)
    if any_size and stated is not None:
        return stated, None
    if stated not in (None, image_size):
        notes.append(f"preprocessor_config.json says {stated}, and the model sees {image_size}: fed with that")
    return image_size, None


def _convnext_sizes(edge: int, fraction: float | None) -> tuple[tuple[int, int], int | None]:
    """ConvNeXt's: below 384 pixels the fraction `crop_pct` of the short side is cropped, from 384 on the image is squashed."""
    return (edge, edge), int(edge / (fraction or 224 / 256)) if edge < 384 else None


def _processor(data: Sidecar) -> str:
    return sidecar.text(data, "image_processor_type") or sidecar.text(data, "feature_extractor_type") or ""
