"""timm's ResNetV2 layout: a hybrid's stem (post-activation) and the BiT ResNets (pre-activation)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from vitlab.checkpoint.formats.contract import Told
from vitlab.checkpoint.formats.infer import count, making, outputs, shape_of, stem_of
from vitlab.checkpoint.formats.resnet import Sizes, resnet_config
from vitlab.checkpoint.table import Row, layer, same, shaped
from vitlab.config.model import ResNetConfig, ResNetStem

BACKBONE = "patch_embed.backbone"


def has_stem(tensors: dict[str, Tensor]) -> bool:
    """Whether a timm ViT is a hybrid."""
    return any(key.startswith(f"{BACKBONE}.") for key in tensors)


def stem_config(tensors: dict[str, Tensor], told: Told, *, where: str) -> tuple[ResNetStem, int]:
    """A hybrid's ResNet and the channels of the pictures it takes."""
    bare = f"{BACKBONE}.conv.weight" in tensors  # the root alone has no stem of its own
    root = f"{BACKBONE}.conv.weight" if bare else f"{BACKBONE}.stem.conv.weight"
    width, channels, _, _ = shape_of(tensors, root, 4, where=where)
    stages = 0 if bare else count(tensors, f"{BACKBONE}.stages.{{}}.", where=where)
    units = tuple(count(tensors, f"{BACKBONE}.stages.{s}.blocks.{{}}.", where=where) for s in range(stages))
    with making(where):
        return stem_of(told, units, width, official=False), channels


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


def bit_config(tensors: dict[str, Tensor], told: Told, *, where: str) -> tuple[ResNetConfig, list[str]]:
    """The BiT ResNet in a timm file."""
    root, channels, _, _ = shape_of(tensors, "stem.conv.weight", 4, where=where)
    stages = count(tensors, "stages.{}.", where=where)
    units = tuple(count(tensors, f"stages.{s}.blocks.{{}}.", where=where) for s in range(stages))
    widths = tuple(shape_of(tensors, f"stages.{s}.blocks.0.conv3.weight", 4, where=where)[0] for s in range(stages))
    classes = outputs(tensors, ("head.fc.weight", "head.fc.bias"), 0)
    sizes = Sizes(blocks=units, widths=widths, root=root, channels=channels, classes=classes)
    return resnet_config(sizes, told, official=False, where=where)


def bit_rows(config: ResNetConfig) -> Iterator[Row]:
    """The rows of a BiT ResNet."""
    yield same("root.weight", "stem.conv.weight")
    for s, units in enumerate(config.blocks):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"stages.{s}.blocks.{u}"
            yield from _unit(ours, theirs)
            if u == 0:
                yield same(f"{ours}.shortcut.weight", f"{theirs}.downsample.conv.weight")
    yield from layer("norm", "norm")
    if config.num_classes:
        yield shaped("head.weight", "head.fc.weight", (config.num_classes, -1), (config.num_classes, -1, 1, 1))
        yield same("head.bias", "head.fc.bias")


def _unit(ours: str, theirs: str) -> Iterator[Row]:
    for n in (1, 2, 3):
        yield same(f"{ours}.conv{n}.weight", f"{theirs}.conv{n}.weight")
        yield from layer(f"{ours}.norm{n}", f"{theirs}.norm{n}")
