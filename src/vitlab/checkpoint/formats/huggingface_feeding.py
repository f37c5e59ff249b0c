"""Hugging Face's preprocessor_config.json, read and written: how its image processors feed a ViT."""

from __future__ import annotations

from vitlab.checkpoint.formats import sidecar
from vitlab.checkpoint.formats.feeding import HALF, UNUSED, cropped, described, per_channel, squashed
from vitlab.checkpoint.formats.sidecar import Sidecar
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocess
from vitlab.config.model import ViTConfig
from vitlab.config.text import Json

RESAMPLE: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def guessed(config: ViTConfig) -> tuple[Preprocess, list[str]]:
    """How transformers feeds such a model where no preprocessor_config.json says otherwise."""
    if config.distill_token or config.register_tokens:
        size, channels = config.image_size, config.channels
        preprocess = cropped(size, channels, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    else:
        preprocess = squashed(config.image_size, config.channels, interpolation="bilinear")
    return preprocess, [f"preprocessing is a guess ({described(preprocess)}): there is no preprocessor_config.json"]


def preprocess_of(data: Sidecar, config: ViTConfig) -> tuple[Preprocess, list[str]]:
    """What a preprocessor_config.json says, with notes where vitlab feeds otherwise."""
    notes: list[str] = []
    resample = sidecar.whole(data, "resample")
    if resample is not None and resample not in RESAMPLE:
        notes.append(f"preprocessor_config.json says resample={resample}: bicubic is used")
    factor = sidecar.number(data, "rescale_factor")
    if not sidecar.flag(data, "do_rescale", True) or (factor is not None and abs(factor * 255 - 1) > 1e-3):
        notes.append("preprocessor_config.json scales pixels otherwise than by 1/255: mean and std are taken as if it did not")
    mean, std = _normalisation(data, config.channels)
    short_side = _short_side(data, config.image_size, notes)
    return (
        Preprocess(
            image_size=config.image_size,
            resize="squash" if short_side is None else "short-side",
            resize_to=UNUSED if short_side is None else max(short_side, max(config.image_size)),
            interpolation=RESAMPLE.get(2 if resample is None else resample, "bicubic"),
            mean=mean,
            std=std,
        ),
        notes,
    )


def preprocessor_json(preprocess: Preprocess) -> tuple[Json, list[str]]:
    """A preprocessor_config.json for transformers, or None where it has no such preprocessing; with notes."""
    if preprocess.resize == "pad":
        return None, ["no preprocessor_config.json: transformers has none that fits the picture inside and pads"]
    notes = []
    if preprocess.interpolation == "tf-bilinear":
        notes.append("transformers scales with antialiasing, TensorFlow's bilinear of this model without: pixels will differ")
    size: dict[str, Json] = {"height": preprocess.image_size[0], "width": preprocess.image_size[1]}
    crop = preprocess.resize == "short-side"
    data: dict[str, Json] = {
        "image_processor_type": "BitImageProcessor" if crop else "ViTImageProcessor",
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
    return mean, std


def _short_side(data: Sidecar, image_size: tuple[int, int], notes: list[str]) -> int | None:
    """The pixels the short side is scaled to, None where the picture is squashed; adds to `notes` what is done otherwise."""
    crops = sidecar.flag(data, "do_center_crop", "crop_size" in data)
    given = data.get("size")
    edge = sidecar.whole(given, "shortest_edge") if isinstance(given, dict) else None
    if edge is not None:
        seen = sidecar.size(data, "crop_size") if crops else None
        if seen not in (None, image_size):
            notes.append(f"preprocessor_config.json crops {seen}, and the model sees {image_size}: fed with that")
        return edge
    stated = sidecar.size(data, "size")
    if crops and stated is not None:
        notes.append(
            f"preprocessor_config.json squashes to {stated[0]}x{stated[1]} before the crop; here the short side is scaled"
            f" to {min(stated)}, as DeiT's own code does"
        )
        return min(stated)
    if stated not in (None, image_size):
        notes.append(f"preprocessor_config.json says {stated}, and the model sees {image_size}: fed with that")
    return None
