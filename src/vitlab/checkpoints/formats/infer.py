"""What the keys and shapes of a file say about its model, and what has to be guessed: shared by all formats."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import Hints
from vitlab.config.data import Interpolation, Preprocess
from vitlab.config.vit import PROFILES, SIZES, Numerics
from vitlab.config.vit_parts import ResNetStem
from vitlab.errors import CheckpointError, ConfigError, did_you_mean

Tensors = Mapping[str, Tensor]

# (width, depth, mlp_width) -> heads, of models whose heads are not 64 wide; ViT-Mini and ViT-b have no public weights.
WIDE_HEADS: dict[tuple[int, int, int], int] = {
    (size.width, size.depth, size.mlp_width): size.heads
    for name, size in SIZES.items()
    if name not in ("Mini", "b") and size.width != 64 * size.heads
} | {
    (1536, 40, 6144): 16,  # SigLIP 2's g-opt
    (768, 8, 2304): 8,  # the "small" ViT of timm's first releases
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The grid of patches (down, across) of a position table, and whether its first rows are for the other tokens."""

    grid: tuple[int, int]
    prefix: bool
    notes: tuple[str, ...] = ()


def shape_of(tensors: Tensors, key: str, axes: int, *, where: str) -> tuple[int, ...]:
    """The shape of a tensor that everything else depends on; refused if it is absent, empty or has another number of axes."""
    if key not in tensors:
        raise CheckpointError(f"{where} has no {key}", hint="the file is incomplete")
    shape = tuple(tensors[key].shape)
    if len(shape) != axes or 0 in shape:
        raise CheckpointError(f"{where}: {key} is {shape} and should have {axes} axes, none of them empty")
    return shape


def outputs(tensors: Tensors, keys: tuple[str, ...], axis: int) -> int:
    """The width of an optional layer, from the first of its tensors that exists; 0 if there is no such layer."""
    return next((tensors[key].shape[axis] for key in keys if key in tensors and tensors[key].ndim), 0)


def count(tensors: Tensors, template: str, *, where: str, first: int = 0) -> int:
    """How many layers are numbered first, first + 1, ... at the `{}` of keys that begin with `template`; gaps are refused.

    The answer is bounded by the number of keys, whatever number a hostile key claims.
    """
    matcher = re.compile(re.escape(template).replace(r"\{\}", r"(\d{1,6})"))
    numbers = {int(found[1]) for key in tensors if (found := matcher.match(key))}
    absent = [number for number in range(first, first + len(numbers)) if number not in numbers]
    if absent:
        raise CheckpointError(
            f"{where}: of the keys {template}... number {absent[0]} is missing and number {max(numbers)} is there",
            hint="the file is incomplete",
        )
    return len(numbers)


def heads_of(width: int, depth: int, mlp_width: int, *, given: int | None, said: int | None, where: str) -> tuple[int, list[str]]:
    """Attention heads for a layout that does not store them, with a note if they are a guess.

    In order: the caller's argument, the file beside the tensors, the published model of that size, heads of width 64.
    """
    heads = given if given is not None else said
    if heads is not None:
        if heads < 1 or width % heads:
            raise CheckpointError(f"{where}: {heads} heads do not divide the width {width}")
        return heads, [f"heads={heads} as given, not {said} as in the config"] if said not in (None, heads) else []
    if (known := WIDE_HEADS.get((width, depth, mlp_width))) is not None:
        return known, [f"heads={known} is a guess from the published model of this size: the file does not say"]
    if width % 64:
        raise CheckpointError(
            f"{where} does not say how many heads its attention has, and its width {width} is not a multiple of 64",
            hint="tell it: heads=...",
        )
    return width // 64, [f"heads={width // 64} is a guess (width / 64): the file does not say"]


def places_of(
    rows: int, prefix: int, *, given: tuple[int, int] | None, said: tuple[int, int] | None, without: bool, where: str
) -> Places:
    """The grid of `rows` positions, without those of `prefix` class, distillation and register tokens.

    `given` is the caller's grid, which must fit; `said` is that of a file beside the tensors, used if it fits; else the grid is
    square. `without` allows a table that has rows for the patches alone.
    """
    counts = {rows - prefix: True} | ({rows: False} if without and prefix else {})  # patches -> are the prefix tokens in it
    possible = " or ".join(str(number) for number in counts)
    if given is not None:
        if (patches := given[0] * given[1]) not in counts:
            raise CheckpointError(f"{where}: grid={given[0]}x{given[1]} is {patches} patches, and the positions are for {possible}")
        return Places(grid=given, prefix=counts[patches])
    notes: tuple[str, ...] = ()
    if said is not None:
        if said[0] * said[1] in counts:
            return Places(grid=said, prefix=counts[said[0] * said[1]])
        notes = (f"the image size of the config makes {said[0]}x{said[1]} patches, but the positions are for {possible}: ignored",)
    square = {side: within for number, within in counts.items() if (side := _root(number))}
    if len(square) != 1:
        why = "no square grid" if not square else "either of two square grids"
        raise CheckpointError(
            f"{where}: the positions are for {possible} patches, which is {why}",
            hint="tell it the patches down and across: grid=(..., ...)",
        )
    ((side, within),) = square.items()
    return Places(grid=(side, side), prefix=within, notes=notes)


def numerics_of(hints: Hints, default: Numerics) -> Numerics:
    """The numerics of the profile, if one is given, else those of the format."""
    if hints.profile is None:
        return default
    if hints.profile not in PROFILES:
        hint = did_you_mean(hints.profile, list(PROFILES)) or f"one of {', '.join(PROFILES)}"
        raise ConfigError(f"no numerics profile called {hints.profile!r}", hint=hint)
    return PROFILES[hints.profile]


def stem_of(hints: Hints, blocks: tuple[int, ...], width: int, *, official: bool) -> ResNetStem:
    """A hybrid's stem of that size, with the numerics of the profile, if one is given, else of the format."""
    if hints.profile in ("official", "timm"):
        official = hints.profile == "official"
    if official:
        return ResNetStem(blocks=blocks, width=width, standardise="std", standardise_eps=1e-5, norm_eps=1e-6)
    return ResNetStem(blocks=blocks, width=width, standardise="variance", standardise_eps=1e-8, norm_eps=1e-5)


def image_size_of(grid: tuple[int, int], patch_size: tuple[int, int], stem: ResNetStem | None) -> tuple[int, int]:
    """Pixels (height, width) of an image with that grid of patches."""
    stride = 1 if stem is None else stem.stride
    return grid[0] * patch_size[0] * stride, grid[1] * patch_size[1] * stride


@contextmanager
def making(where: str) -> Iterator[None]:
    """Turn the error of an invalid config into one of the file that it was read from."""
    try:
        yield
    except ConfigError as error:
        raise CheckpointError(f"{where} describes a model that cannot be: {error.message}", hint=error.hint) from error


def unwrapped(raw: RawFile) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """A PyTorch state dict without what training code puts around the encoder.

    That is the prefix that DistributedDataParallel, torch.compile or Lightning put on every key; the other networks beside the
    encoder in checkpoints of DINO and MoCo v3; and the names by which EVA-02's authors call what timm calls otherwise.
    """
    tensors, notes = dict(raw.tensors), list[str]()
    while prefix := next(
        (word for word in ("module.", "_orig_mod.", "model.") if tensors and all(key.startswith(word) for key in tensors)), None
    ):
        tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
        notes.append(f"the prefix {prefix!r} was taken off every key")
    for encoder, beside in _ENCODERS.items():
        found = [key for key in tensors if key.startswith(encoder)]
        if found and all(key.startswith((encoder, *beside)) for key in tensors):
            inside = {key.removeprefix(encoder): tensors[key] for key in found}
            kept = {key: tensor for key, tensor in inside.items() if not _PROJECTOR.match(key)}
            left = sorted({key.partition(".")[0] for key in tensors if not key.startswith(encoder)})
            left += ["its projector"] if len(kept) < len(inside) else []
            tensors = kept
            notes.append(f"took {encoder.removesuffix('.')!r}" + (f"; left out {', '.join(left)}" if left else ""))
    packed = "blocks.0.mlp.w12.weight" in tensors and "blocks.0.ls1.gamma" not in tensors  # with it, a DINOv2
    if packed or any(key in tensors for key in ("blocks.0.mlp.w1.weight", "blocks.0.attn.inner_attn_ln.weight")):
        tensors = {_as_timms(key, tensors): tensor for key, tensor in tensors.items()}
        notes.append("the names of EVA-02's authors were read as timm's")
    return tensors, tuple(notes)


# The encoder in a checkpoint of self-supervised training, and what else such a checkpoint holds: MoCo v3; DINO, DINOv2 and iBOT.
_ENCODERS = {
    "base_encoder.": ("momentum_encoder.", "predictor."),
    "backbone.": ("head.", "dino_head.", "ibot_head."),
}
_PROJECTOR = re.compile(r"head\.\d+\.")  # MoCo v3 keeps its projector where the classifier was
EVAS = (  # a name of EVA-02's authors, and timm's
    (".attn.inner_attn_ln.", ".attn.norm."),
    (".mlp.ffn_ln.", ".mlp.norm."),
    (".mlp.w12.", ".mlp.fc1."),
    (".mlp.w1.", ".mlp.fc1_g."),
    (".mlp.w2.", ".mlp.fc1_x."),
    (".mlp.w3.", ".mlp.fc2."),
)


def _as_timms(key: str, tensors: Tensors) -> str:
    """A key of EVA-02's authors under timm's name."""
    for theirs, timms in EVAS:
        key = key.replace(theirs, timms)
    if key.endswith((".q_bias", ".v_bias")) and "blocks.0.attn.q_proj.weight" in tensors:
        key = f"{key[: -len('_bias')]}_proj.bias"
    return key


def zero_head(state: Tensors) -> list[str]:
    """A note if the classifier is all zeros, which gives every image the same logits."""
    head = state.get("head.weight")
    if head is None or head.is_meta or bool(head.any()):  # meta: only the file's header was read
        return []
    return ["head is all zeros: authors' 21k files have it so"]


def _root(number: int) -> int:
    """The square root of a positive square number, else 0."""
    root = math.isqrt(number) if number > 0 else 0
    return root if root * root == number else 0


# The preprocessing if the file does not state it: that of each format's own evaluation, for any size and channels.

SHARE = 0.875  # of the short side that a centre crop keeps: 224 of 256
UNUSED = Preprocess().resize_to  # where nothing is cropped
HALF = (0.5, 0.5, 0.5)  # pixels to [-1, 1]


def squashed(image_size: tuple[int, int], channels: int, *, interpolation: Interpolation) -> Preprocess:
    """Squashed to `image_size`, pixels scaled to [-1, 1]."""
    mean = per_channel(HALF, channels)
    return Preprocess(image_size=image_size, resize="squash", interpolation=interpolation, mean=mean, std=mean)


def cropped(
    image_size: tuple[int, int],
    channels: int,
    *,
    interpolation: Interpolation,
    mean: tuple[float, ...] = HALF,
    std: tuple[float, ...] = HALF,
) -> Preprocess:
    """The short side scaled to 8/7 of the longer side of `image_size`, then the centre."""
    return Preprocess(
        image_size=image_size,
        resize="short-side",
        resize_to=round(max(image_size) / SHARE),
        interpolation=interpolation,
        mean=per_channel(mean, channels),
        std=per_channel(std, channels),
    )


def naflex_note(preprocess: Preprocess) -> str:
    """For models that were trained on images of any aspect ratio."""
    return (
        f"NaFlex models take each image in its own aspect ratio; here all images of a batch have one size ({described(preprocess)})"
    )


def per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """The values, if there is one for each channel, else 0.5 for each: no others are published."""
    return values if len(values) == channels else (0.5,) * channels


def described(preprocess: Preprocess) -> str:
    """For a note: `short side to 256 bicubic, centre crop 224x224, mean (0.5, 0.5, 0.5), std (...)`."""
    size = f"{preprocess.image_size[0]}x{preprocess.image_size[1]}"
    how = {
        "short-side": f"short side to {preprocess.resize_to} {preprocess.interpolation}, centre crop {size}",
        "squash": f"squashed to {size} {preprocess.interpolation}",
        "pad": f"fitted into {size} {preprocess.interpolation}",
        "fit": f"short side to {preprocess.image_size[0]}, long side at most {preprocess.image_size[1]} {preprocess.interpolation}",
    }[preprocess.resize]
    if all(value == 0.5 for value in (*preprocess.mean, *preprocess.std)):
        return f"{how}, pixels to [-1, 1]"
    return f"{how}, mean {preprocess.mean}, std {preprocess.std}"


def lost(preprocess: Preprocess, labels: tuple[str, ...] | None, *, assumed: Preprocess, name: str) -> list[str]:
    """Notes of what a format cannot store: the labels, and preprocessing other than the one its readers assume."""
    notes = []
    if labels is not None:
        notes.append(f"{name} cannot store the {len(labels)} labels")
    if preprocess != assumed:
        notes.append(f"{name} cannot store the preprocessing ({described(preprocess)})")
    return notes
