"""What the layouts of BiT ResNets share: the config from the widths, and the numerics; timm's and transformers' rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from vitlab.checkpoints.formats.contract import Hints, not_of
from vitlab.checkpoints.formats.infer import count, making, numerics_of, outputs, shape_of, stem_of
from vitlab.checkpoints.table import Row, layer, same, shaped
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.stems import ResNetStem
from vitlab.config.vit import PROFILES
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
