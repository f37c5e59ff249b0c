"""BiT ResNets, also as the stem of a hybrid: the layouts of timm and of transformers; and the files of the authors
(google-research/big_transfer, TensorFlow), an .npz of `resnet/...` arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import (
    Hints,
    Reading,
    Row,
    State,
    Written,
    kernel,
    layer,
    native_shapes,
    not_of,
    same,
    shaped,
    to_ours,
    to_theirs,
)
from vitlab.checkpoints.formats.infer import (
    count,
    described,
    lost,
    making,
    numerics_of,
    outputs,
    shape_of,
    squashed,
    stem_of,
    zero_head,
)
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.vit import PROFILES
from vitlab.config.vit_parts import ResNetStem
from vitlab.errors import CheckpointError

IMAGE_SIZE = (224, 224)  # where nothing says: a ResNet takes any
ROOT, WIDTHS = 64, (256, 512, 1024, 2048)  # channels of the published models at width factor 1
EPS = {"official": 1e-10, "timm": 1e-8}  # what is added to a weight's variance, by profile


def only_resnet(config: ModelConfig, name: str) -> ResNetConfig:
    """The config, if it is a BiT ResNet's; CheckpointError for other families."""
    if not isinstance(config, ResNetConfig):
        raise not_of(name, "BiT ResNets", config)
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a file's keys and shapes show: units and output channels of each stage, the root's channels, the image's, classes."""

    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    root: int
    channels: int
    classes: int


def resnet_config(sizes: Sizes, hints: Hints, *, official: bool, where: str) -> tuple[ResNetConfig, list[str]]:
    """The config of a ResNet of those sizes, with the numerics of the profile, if one is given, else of the format."""
    if hints.heads is not None or hints.grid is not None:
        raise CheckpointError(f"{where} holds a ResNet: it has no heads and no grid to give")
    numerics_of(hints, PROFILES["official"])  # refuses a profile nobody knows
    profile = hints.profile if hints.profile in EPS else "official" if official else "timm"
    assert profile is not None
    factor = sizes.root // ROOT if sizes.root % ROOT == 0 else 0
    standard = factor > 0 and sizes.widths == tuple(width * factor for width in WIDTHS)
    with making(where):
        config = ResNetConfig(
            blocks=sizes.blocks,
            width_factor=factor if standard else 1,
            root_width=ROOT if standard else sizes.root,
            stage_widths=WIDTHS if standard else sizes.widths,
            image_size=IMAGE_SIZE,
            channels=sizes.channels,
            num_classes=sizes.classes,
            standardise_eps=EPS[profile],
        )
    return config, [f"image_size={IMAGE_SIZE[0]}x{IMAGE_SIZE[1]} is a guess: a ResNet takes any, and the file does not say"]


def resnet_notes(config: ResNetConfig, *, official: bool, reader: str) -> list[str]:
    """Notes of where the format's own readers compute something else than this model."""
    implied = (
        ("standardise_eps", config.standardise_eps, EPS["official" if official else "timm"]),
        ("norm_eps", config.norm_eps, 1e-5),
        ("groups", config.groups, 32),
    )
    return [
        f"this model's {name} is {mine:g} and {reader} uses {theirs:g}: its logits will differ slightly"
        for name, mine, theirs in implied
        if mine != theirs
    ]


# timm's ResNetV2 layout: a hybrid's stem (post-activation) and the BiT ResNets (pre-activation).

BACKBONE = "patch_embed.backbone"


def has_stem(tensors: dict[str, Tensor]) -> bool:
    """Whether a timm ViT is a hybrid."""
    return any(key.startswith(f"{BACKBONE}.") for key in tensors)


def stem_config(tensors: dict[str, Tensor], hints: Hints, *, where: str) -> tuple[ResNetStem, int]:
    """A hybrid's ResNet and the channels of the images it takes."""
    bare = f"{BACKBONE}.conv.weight" in tensors  # the root alone has no stem of its own
    root = f"{BACKBONE}.conv.weight" if bare else f"{BACKBONE}.stem.conv.weight"
    width, channels, _, _ = shape_of(tensors, root, 4, where=where)
    stages = 0 if bare else count(tensors, f"{BACKBONE}.stages.{{}}.", where=where)
    units = tuple(count(tensors, f"{BACKBONE}.stages.{s}.blocks.{{}}.", where=where) for s in range(stages))
    with making(where):
        return stem_of(hints, units, width, official=False), channels


def stem_rows(stem: ResNetStem) -> Iterator[Row]:
    """The rows of a hybrid's ResNet."""
    root = f"{BACKBONE}.stem" if stem.blocks else BACKBONE
    yield same("stem.root.weight", f"{root}.conv.weight")
    yield from layer("stem.root_norm", f"{root}.norm")
    for s, units in enumerate(stem.blocks):
        for u in range(units):
            ours, theirs = f"stem.stages.{s}.{u}", f"{BACKBONE}.stages.{s}.blocks.{u}"
            yield from _unit(ours, theirs)
            if u == 0:
                yield same(f"{ours}.shortcut.weight", f"{theirs}.downsample.conv.weight")
                yield from layer(f"{ours}.shortcut_norm", f"{theirs}.downsample.norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class BitNames:
    """What the parts of a BiT ResNet are called; `{s}` stands for the number of the stage, `convolved` for a 1x1 head."""

    root: str
    units: str
    norm: str
    head: str
    convolved: bool


TIMM = BitNames(root="stem.conv", units="stages.{s}.blocks", norm="norm", head="head.fc", convolved=True)
HUGGINGFACE = BitNames(
    root="bit.embedder.convolution", units="bit.encoder.stages.{s}.layers", norm="bit.norm", head="classifier.1", convolved=False
)


def bit_config(tensors: dict[str, Tensor], hints: Hints, *, names: BitNames = TIMM, where: str) -> tuple[ResNetConfig, list[str]]:
    """The BiT ResNet in a file with timm's or transformers' names."""
    root, channels, _, _ = shape_of(tensors, f"{names.root}.weight", 4, where=where)
    stages = count(tensors, names.units.partition("{s}")[0] + "{}.", where=where)
    prefixes = [names.units.format(s=s) for s in range(stages)]
    units = tuple(count(tensors, f"{prefix}.{{}}.", where=where) for prefix in prefixes)
    widths = tuple(shape_of(tensors, f"{prefix}.0.conv3.weight", 4, where=where)[0] for prefix in prefixes)
    classes = outputs(tensors, (f"{names.head}.weight", f"{names.head}.bias"), 0)
    sizes = Sizes(blocks=units, widths=widths, root=root, channels=channels, classes=classes)
    return resnet_config(sizes, hints, official=False, where=where)


def bit_rows(config: ResNetConfig, names: BitNames = TIMM) -> Iterator[Row]:
    """The rows of a BiT ResNet."""
    yield same("root.weight", f"{names.root}.weight")
    for s, units in enumerate(config.blocks):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"{names.units.format(s=s)}.{u}"
            yield from _unit(ours, theirs)
            if u == 0:
                yield same(f"{ours}.shortcut.weight", f"{theirs}.downsample.conv.weight")
    yield from layer("norm", names.norm)
    if config.num_classes and names.convolved:
        yield shaped("head.weight", f"{names.head}.weight", (config.num_classes, -1), (config.num_classes, -1, 1, 1))
        yield same("head.bias", f"{names.head}.bias")
    elif config.num_classes:
        yield from layer("head", names.head)


def _unit(ours: str, theirs: str) -> Iterator[Row]:
    for n in (1, 2, 3):
        yield same(f"{ours}.conv{n}.weight", f"{theirs}.conv{n}.weight")
        yield from layer(f"{ours}.norm{n}", f"{theirs}.norm{n}")


# --- the authors' files -------------------------------------------------------------------------------------------------------

FORMAT = "bit-npz"
READER = "the authors' TensorFlow code"
NPZ_ROOT = "resnet/root_block/standardized_conv2d/kernel"
HEAD = "resnet/head/conv2d"
BRANCHES = ("a", "b", "c")  # the three convolutions of a unit

_NUMBERED = re.compile(r"/(standardized_conv2d|group_norm|conv2d)_\d+(?=/)")


def matches(raw: RawFile) -> bool:
    """Whether the file has the layout of the BiT authors."""
    return any(_plain(key) == NPZ_ROOT for key in raw.tensors if key.startswith("resnet/root_block/"))


def read(raw: RawFile, hints: Hints) -> Reading:
    """The ResNet of an official BiT file."""
    where, tensors = raw.path.name, _tidied(raw.tensors, raw.path.name)
    stages = count(tensors, "resnet/block{}/", where=where, first=1)
    units = tuple(count(tensors, f"resnet/block{s + 1}/unit{{}}/", where=where, first=1) for s in range(stages))
    _, _, channels, root = shape_of(tensors, NPZ_ROOT, 4, where=where)
    widths = tuple(
        shape_of(tensors, f"resnet/block{s + 1}/unit01/c/standardized_conv2d/kernel", 4, where=where)[-1] for s in range(stages)
    )
    classes = outputs(tensors, (f"{HEAD}/kernel", f"{HEAD}/bias"), -1)
    sizes = Sizes(blocks=units, widths=widths, root=root, channels=channels, classes=classes)
    config, notes = resnet_config(sizes, hints, official=True, where=where)
    state = to_ours(tensors, list(_rows(config)), native_shapes(config), where=where)
    preprocess = _feeding(config)
    guess = f"preprocessing is that of the authors' code ({described(preprocess)}): the file does not say"
    return Reading(
        format=FORMAT,
        config=config,
        state=state,
        preprocess=preprocess,
        notes=(*notes, *zero_head(state), guess),
    )


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The ResNet as an official BiT file."""
    resnet = only_resnet(config, FORMAT)
    notes = resnet_notes(resnet, official=True, reader=READER)
    notes += lost(preprocess, labels, assumed=_feeding(resnet), name=FORMAT)
    if resnet.image_size != IMAGE_SIZE:
        notes.append(f"{FORMAT} cannot store the image size {resnet.image_size[0]}x{resnet.image_size[1]}")
    tensors = to_theirs(state, list(_rows(resnet)), native_shapes(resnet))
    return Written(container="npz", tensors=tensors, weights_name="model.npz", notes=tuple(notes))


def _feeding(config: ResNetConfig) -> Preprocess:
    return squashed(config.image_size, config.channels, interpolation="tf-bilinear")


def _rows(config: ResNetConfig) -> Iterator[Row]:
    yield kernel("root.weight", NPZ_ROOT)
    for s, units in enumerate(config.blocks):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"resnet/block{s + 1}/unit{u + 1:02d}"
            for n, branch in enumerate(BRANCHES, start=1):
                yield kernel(f"{ours}.conv{n}.weight", f"{theirs}/{branch}/standardized_conv2d/kernel")
                yield from _group_norm(f"{ours}.norm{n}", f"{theirs}/{branch}/group_norm")
            if u == 0:
                yield kernel(f"{ours}.shortcut.weight", f"{theirs}/a/proj/standardized_conv2d/kernel")
    yield from _group_norm("norm", "resnet/group_norm")
    if config.num_classes:
        yield Row(
            ours=("head.weight",),
            theirs=(f"{HEAD}/kernel",),
            to_ours=lambda kernels_11DC: [kernels_11DC[0].flatten(0, 2).T],
            to_theirs=lambda weights_CD: [weights_CD[0].T[None, None]],
        )
        yield same("head.bias", f"{HEAD}/bias")


def _group_norm(ours: str, theirs: str) -> Iterator[Row]:
    yield same(f"{ours}.weight", f"{theirs}/gamma")
    yield same(f"{ours}.bias", f"{theirs}/beta")


def _plain(key: str) -> str:
    """Names without the numbers that TensorFlow adds in some files (`standardized_conv2d_17`)."""
    return _NUMBERED.sub(r"/\1", key)


def _tidied(tensors: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Plain names, and group norms as (C,): some files keep them as (1, 1, 1, C)."""
    tidy: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name = _plain(key)
        if name in tidy:
            raise CheckpointError(f"{where} holds {name} twice, once as {key}")
        flat = name.endswith(("/gamma", "/beta")) and tensor.ndim == 4 and tensor.shape[:3] == (1, 1, 1)
        tidy[name] = tensor.flatten() if flat else tensor
    return tidy
