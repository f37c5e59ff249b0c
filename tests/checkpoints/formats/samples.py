"""Small models of every option, with random weights, and the passage of a model through a format without a disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import FORMATS, LAYOUTS
from vitlab.checkpoints.formats.contract import Hints, Reading, Written, native_shapes
from vitlab.config import (
    ConvNeXtConfig,
    EfficientNetConfig,
    ModelConfig,
    Numerics,
    Position,
    Preprocess,
    RecurrentConfig,
    ResNetConfig,
    ResNetStem,
    SwinConfig,
    ViTConfig,
    variant,
)
from vitlab.config.efficientnet import BASE
from vitlab.config.vit_parts import FeedForward, Norm

# What a format holds that holds no plain ViT.
PLAIN = {"bit-npz": "resnet", "swin": "swin", "convnext": "convnext", "openai-clip": "clip", "dinov2": "dinov2"}
State = dict[str, Tensor]


def mini() -> ViTConfig:
    """ViT-Mini/8 at 32 pixels with 5 classes."""
    config = variant("ViT-Mini/8", num_classes=5)
    assert isinstance(config, ViTConfig)
    return config


# As deep as B0, with its kernels and strides, which timm's tensors do not all show.
SEVEN = tuple((2 if stage.blocks > 1 else 1, stage.kernel, stage.stride, min(stage.expansion, 2), 8) for stage in BASE)
EXACT = Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic-plain")
BARE = Position(prefix=False)
OPTIONS: dict[str, ModelConfig] = {
    "plain": mini(),
    "no head": replace(mini(), num_classes=0),
    "hidden layer": replace(mini(), representation_width=48),
    "hidden layer, no head": replace(mini(), representation_width=48, num_classes=0),
    "mean": replace(mini(), pool="mean", class_token=False),
    "mean, norm after": replace(mini(), pool="mean", class_token=False, norm_after_pool=True),
    "mean, norm after, class token": replace(mini(), pool="mean", norm_after_pool=True),
    "mean, class token": replace(mini(), pool="mean"),
    "token, norm after": replace(mini(), norm_after_pool=True),
    "map": replace(mini(), pool="map", class_token=False),
    "map, no head": replace(mini(), pool="map", class_token=False, num_classes=0),
    "map, class token": replace(mini(), pool="map"),
    "distilled": replace(mini(), distill_token=True),
    "distilled, no head": replace(mini(), distill_token=True, num_classes=0),
    "one register": replace(mini(), register_tokens=1),
    "four registers": replace(mini(), register_tokens=4),
    "four registers, bare positions": replace(mini(), register_tokens=4, position=BARE),
    "bare positions": replace(mini(), position=BARE),
    "no positions": replace(mini(), position=Position(kind="none")),
    "sine positions": replace(mini(), position=Position(kind="sincos-2d", prefix=False)),
    "2-d positions": replace(mini(), position=Position(kind="learned-2d")),
    "relative positions": replace(mini(), position=Position(kind="relative")),
    "positions at every layer": replace(mini(), position=Position(place="every")),
    "local": replace(mini(), attention="local", window=3),
    "axial": replace(mini(), attention="axial"),
    "layer scale": replace(mini(), layer_scale=1e-5),
    "no qkv bias": replace(mini(), qkv_bias=False),
    "other grid": replace(mini(), image_size=(24, 56)),
    "other patch": replace(mini(), patch_size=(8, 4), image_size=(32, 16)),
    "one channel": replace(mini(), channels=1),
    "exact gelu, hf eps": replace(mini(), numerics=Numerics(gelu="exact", norm_eps=1e-12, resize="bicubic")),
    "hybrid": replace(mini(), stem=ResNetStem(blocks=(2, 1), width=32), patch_size=(1, 1)),
    "hybrid root": replace(mini(), stem=ResNetStem(blocks=(), width=32), patch_size=(2, 2)),
    "clip": replace(
        mini(),
        heads=1,
        num_classes=0,
        projection_width=24,
        norm=Norm(before=True),
        numerics=Numerics(gelu="quick", norm_eps=1e-5, resize="bicubic"),
    ),
    "dinov2": replace(mini(), heads=1, num_classes=0, layer_scale=1e-5, numerics=EXACT, dynamic_size=True),
    "dinov2, registers": replace(
        mini(),
        heads=1,
        num_classes=0,
        layer_scale=1e-5,
        register_tokens=4,
        position=Position(registers=False),
        mlp=FeedForward(gated=True),
        numerics=replace(EXACT, resize="bicubic"),
        dynamic_size=True,
    ),
    "resnet": ResNetConfig(blocks=(1, 2), stage_widths=(128, 256), root_width=32, num_classes=5),
    "resnet, no head": ResNetConfig(blocks=(1, 2), stage_widths=(128, 256), root_width=32, num_classes=0),
    "swin": SwinConfig(width=24, depths=(2, 1), heads=(2, 4), window=(4, 4), image_size=(32, 32), num_classes=5),
    "swin, no head, rectangle": SwinConfig(
        width=24, depths=(1, 1, 1), heads=(2, 2, 4), window=(5, 5), image_size=(24, 88), num_classes=0, qkv_bias=False
    ),
    "convnext": ConvNeXtConfig(depths=(1, 2), widths=(16, 24), image_size=(40, 32), num_classes=5),
    "convnext, no scale": ConvNeXtConfig(depths=(1, 1), widths=(16, 24), layer_scale=0.0, channels=1, num_classes=0),
    "efficientnet": EfficientNetConfig(stages=SEVEN, stem_width=8, head_width=32, image_size=(33, 36), num_classes=5),
    "efficientnet, half": EfficientNetConfig(
        stages=SEVEN, stem_width=8, head_width=32, num_classes=0, padding="half", norm_eps=1e-5, channels=4
    ),
    "lstm": RecurrentConfig(cell="lstm", width=32, depth=2, patch_size=(8, 8), image_size=(32, 32), num_classes=5),
    "rnn": RecurrentConfig(cell="rnn", width=32, depth=1, patch_size=(8, 4), image_size=(30, 21), num_classes=0, pool="mean"),
    "resnet, one channel": ResNetConfig(blocks=(1, 1, 2), stage_widths=(128, 128, 256), channels=1, num_classes=3),
}

COMMON = {"plain", "no head", "one channel", "exact gelu, hf eps"}
FLAX = COMMON | {"hidden layer", "hidden layer, no head", "mean", "other grid", "other patch"}
SWINS, CONVNEXTS = {"swin", "swin, no head, rectangle"}, {"convnext", "convnext, no scale"}
# The options that each format can express; it refuses the others.
CAN: dict[str, set[str]] = {
    "jax-npz": FLAX | {"hybrid", "hybrid root"},
    "big-vision": (FLAX - {"other grid"}) | {"map", "map, no head", "bare positions", "sine positions"},
    "timm": FLAX
    | {"mean, norm after", "mean, norm after, class token", "mean, class token", "map", "map, no head"}
    | {"map, class token"}
    | {"distilled", "distilled, no head", "one register", "four registers", "four registers, bare positions"}
    | {"bare positions", "no positions", "layer scale", "no qkv bias", "hybrid", "hybrid root", "dinov2"}
    | {"resnet", "resnet, no head", "resnet, one channel"}
    | SWINS
    | CONVNEXTS
    | {"efficientnet", "efficientnet, half"},
    "huggingface": COMMON
    | {
        "hidden layer, no head",
        "distilled",
        "one register",
        "no qkv bias",
        "other grid",
        "other patch",
        "mean",
        "map, no head",
        "clip",
        "dinov2",
        "dinov2, registers",
    }
    | {"resnet", "resnet, no head", "resnet, one channel", "swin", "convnext", "convnext, no scale"},
    "torchvision": COMMON | {"hidden layer", "hidden layer, no head"},
    "bit-npz": {"resnet", "resnet, no head", "resnet, one channel"},
    "swin": SWINS,
    "convnext": CONVNEXTS,
    "dinov2": {"dinov2", "dinov2, registers"},
    "openai-clip": {"clip"},
}


def random_state(config: ModelConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> State:
    """Weights of that model, every number its own."""
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(shape, generator=generator).to(dtype) for key, shape in native_shapes(config).items()}


def written(name: str, config: ModelConfig, state: State, labels: tuple[str, ...] | None = None) -> Written:
    """The model in that format."""
    return LAYOUTS[name].write(state, config, fed(config), labels)


def fed(config: ModelConfig) -> Preprocess:
    """Preprocessing for that model."""
    return Preprocess(image_size=config.image_size, resize="squash", mean=(0.5,) * config.channels, std=(0.25,) * config.channels)


def raw_of(tensors: State, **beside: object) -> RawFile:
    """A file as read, `metadata=`, `sidecar=` and `preprocessor=` beside its tensors."""
    raw = RawFile(path=Path("weights.file"), tensors=tensors, metadata={}, sidecar=None, preprocessor=None)
    return replace(raw, **beside)  # type: ignore[arg-type]


def file_of(given: Written, *, folder: bool) -> RawFile:
    """What reading the written file gives, with its sidecars where it stands in a folder."""
    if not folder:
        return raw_of(given.tensors, metadata=given.metadata)
    beside = {"sidecar": given.sidecars.get("config.json"), "preprocessor": given.sidecars.get("preprocessor_config.json")}
    return raw_of(given.tensors, metadata=given.metadata, **beside)


def read(raw: RawFile, hints: Hints | None = None) -> Reading:
    """Read by the one format whose layout it is."""
    (name,) = [name for name, layout in FORMATS.items() if layout.matches(raw)]
    reading = FORMATS[name].read(raw, hints or Hints())
    assert reading.format == name
    return reading


def same(one: State, other: State) -> bool:
    """Whether two states have the same keys, types and bits."""
    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]) for key in one
    )
