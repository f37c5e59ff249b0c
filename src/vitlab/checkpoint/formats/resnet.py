"""What is common to the two layouts of BiT ResNets: their config from widths, and their numerics."""

from __future__ import annotations

from dataclasses import dataclass

from vitlab.checkpoint.formats.contract import Told
from vitlab.checkpoint.formats.express import not_of
from vitlab.checkpoint.formats.infer import making, numerics_of
from vitlab.config.model import PROFILES, ModelConfig, ResNetConfig
from vitlab.errors import CheckpointError

IMAGE_SIZE = (224, 224)  # where nothing says: a ResNet takes any
ROOT, WIDTHS = 64, (256, 512, 1024, 2048)  # channels of the published models at width factor 1
EPS = {"official": 1e-10, "timm": 1e-8}  # what is added to a weight's variance, by profile


def only_resnet(config: ModelConfig, name: str) -> ResNetConfig:
    """The config where it is a BiT ResNet's; CheckpointError for the other kinds of model."""
    if not isinstance(config, ResNetConfig):
        raise not_of(name, "BiT ResNets", config)
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a file's keys and shapes show: units and output channels of each stage, the root's channels, the picture's, classes."""

    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    root: int
    channels: int
    classes: int


def resnet_config(sizes: Sizes, told: Told, *, official: bool, where: str) -> tuple[ResNetConfig, list[str]]:
    """The config of a ResNet of those sizes, computed as the told profile's code does, else as the format's."""
    if told.heads is not None or told.grid is not None:
        raise CheckpointError(f"{where} holds a ResNet: it has neither heads nor a grid to be told")
    numerics_of(told, PROFILES["official"])  # refuses a profile nobody knows
    profile = told.profile if told.profile in EPS else "official" if official else "timm"
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
    """Notes where the format's own readers compute otherwise than this model is configured to."""
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
