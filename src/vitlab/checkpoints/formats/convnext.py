"""ConvNeXts: the layouts of the authors, of timm and of transformers; and the authors' files (facebookresearch/ConvNeXt), torch
files with the weights under "model".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats.contract import Found, Hints, Reading, Row, State, Written, layer, not_of, same, shaped
from vitlab.checkpoints.formats.header import adopted_family, header_of, reading_of, written_of
from vitlab.checkpoints.formats.infer import count, making, numerics_of, outputs, shape_of, unwrapped
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.vit import PROFILES
from vitlab.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What each part is called; `{s}` and `{b}` stand for the numbers of stage and block.

    `convolved`: the MLPs are 1x1 convolutions, as in some of timm's smaller models.
    """

    stem: tuple[str, str]
    halved: tuple[str, str]
    block: str
    depthwise: str
    mlp: tuple[str, str]
    norm: str
    head: str
    block_norm: str = "norm"
    scale: str = "gamma"
    convolved: bool = False


AUTHORS = Names(
    stem=("downsample_layers.0.0", "downsample_layers.0.1"),
    halved=("downsample_layers.{s}.0", "downsample_layers.{s}.1"),
    block="stages.{s}.{b}",
    depthwise="dwconv",
    mlp=("pwconv1", "pwconv2"),
    norm="norm",
    head="head",
)
TIMM = Names(
    stem=("stem.0", "stem.1"),
    halved=("stages.{s}.downsample.0", "stages.{s}.downsample.1"),
    block="stages.{s}.blocks.{b}",
    depthwise="conv_dw",
    mlp=("mlp.fc1", "mlp.fc2"),
    norm="head.norm",
    head="head.fc",
)
HUGGINGFACE = Names(
    stem=("convnext.embeddings.patch_embeddings", "convnext.embeddings.layernorm"),
    halved=("convnext.encoder.stages.{s}.downsampling_layer.0", "convnext.encoder.stages.{s}.downsampling_layer.1"),
    block="convnext.encoder.stages.{s}.layers.{b}",
    depthwise="dwconv",
    mlp=("pwconv1", "pwconv2"),
    norm="convnext.layernorm",
    head="classifier",
    block_norm="layernorm",
    scale="layer_scale_parameter",
)


def names_of(tensors: dict[str, Tensor]) -> Names | None:
    """Whose names these are; None if they are not those of the authors' or timm's ConvNeXt."""
    for names in (AUTHORS, TIMM):
        if f"{names.stem[0]}.weight" in tensors and f"{_block(names, 0, 0)}.{names.depthwise}.weight" in tensors:
            first = tensors.get(f"{_block(names, 0, 0)}.{names.mlp[0]}.weight")
            return names if first is None or first.ndim != 4 else replace(names, convolved=True)
    return None


def convnext_config(
    tensors: dict[str, Tensor], names: Names, hints: Hints, said: tuple[int, int] | None, *, where: str
) -> tuple[ConvNeXtConfig, list[str]]:
    """The ConvNeXt of a file; `said` is the image size of a config."""
    if hints.heads is not None or hints.grid is not None:
        raise CheckpointError(f"{where} holds a ConvNeXt: it has no heads and no grid to give")
    _, channels, patch, _ = shape_of(tensors, f"{names.stem[0]}.weight", 4, where=where)
    stages = count(tensors, names.block.partition("{s}")[0] + "{}.", where=where)
    depths = tuple(count(tensors, names.block.format(s=s, b="{}") + ".", where=where) for s in range(stages))
    kernels = [shape_of(tensors, f"{_block(names, s, 0)}.{names.depthwise}.weight", 4, where=where) for s in range(stages)]
    hidden = shape_of(tensors, f"{_block(names, 0, 0)}.{names.mlp[0]}.weight", 4 if names.convolved else 2, where=where)[0]
    size = said or (224, 224)
    with making(where):
        config = ConvNeXtConfig(
            depths=depths,
            widths=tuple(width for width, *_ in kernels),
            kernel=kernels[0][2],
            patch_size=patch,
            mlp_ratio=max(hidden // kernels[0][0], 1),
            image_size=size,
            channels=channels,
            num_classes=outputs(tensors, (f"{names.head}.weight", f"{names.head}.bias"), 0),
            layer_scale=1e-6 if any(key.endswith(f".{names.scale}") for key in tensors) else 0.0,
        )
    note = f"image_size={size[0]}x{size[1]} is a guess: a ConvNeXt takes others, and the file does not say"
    return config, [note] if said is None else []


def convnext_rows(config: ConvNeXtConfig, names: Names) -> Iterator[Row]:
    """The rows of a ConvNeXt under these names."""
    yield from layer("patches", names.stem[0])
    yield from layer("patch_norm", names.stem[1])
    for s, (blocks, width) in enumerate(zip(config.depths, config.widths, strict=True)):
        if s:
            yield from layer(f"stages.{s}.halved.norm", names.halved[0].format(s=s))
            yield from layer(f"stages.{s}.halved.conv", names.halved[1].format(s=s))
        for b in range(blocks):
            ours, theirs = f"stages.{s}.blocks.{b}", _block(names, s, b)
            yield from layer(f"{ours}.depthwise", f"{theirs}.{names.depthwise}")
            yield from layer(f"{ours}.norm", f"{theirs}.{names.block_norm}")
            for part, other, outs in (("up", names.mlp[0], width * config.mlp_ratio), ("down", names.mlp[1], width)):
                mine, foreign = f"{ours}.mlp.{part}", f"{theirs}.{other}"
                if names.convolved:
                    yield shaped(f"{mine}.weight", f"{foreign}.weight", (outs, -1), (outs, -1, 1, 1))
                else:
                    yield same(f"{mine}.weight", f"{foreign}.weight")
                yield same(f"{mine}.bias", f"{foreign}.bias")
            if config.layer_scale:
                yield same(f"{ours}.scale", f"{theirs}.{names.scale}")
    yield from layer("norm", names.norm)
    if config.num_classes:
        yield from layer("head", names.head)


def _block(names: Names, stage: int, block: int) -> str:
    return names.block.format(s=stage, b=block)


# --- the authors' files -------------------------------------------------------------------------------------------------------

FORMAT = "convnext"


def matches(raw: RawFile) -> bool:
    """Whether the tensors carry the names of the authors' ConvNeXt."""
    names = names_of(unwrapped(raw)[0])
    return names is not None and names.block == AUTHORS.block


def read(raw: RawFile, hints: Hints) -> Reading:
    """The model of an authors' file."""
    tensors, notes = unwrapped(raw)
    numerics_of(hints, PROFILES["official"])  # refuses a profile nobody knows
    where, header, names = raw.path.name, header_of(raw), names_of(tensors)
    assert names is not None
    said = None if header is None else header.config.image_size
    config, guessed = convnext_config(tensors, names, hints, said, where=where)
    if header is not None:
        config = adopted_family(config, header, where=where)
    return reading_of(raw, Found(config=config, tensors=tensors, notes=tuple(guessed)), convnext_rows(config, names), FORMAT, notes)


def write(state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
    """The model under the authors' names."""
    if not isinstance(config, ConvNeXtConfig):
        raise not_of(FORMAT, "ConvNeXts", config)
    return written_of(state, config, convnext_rows(config, AUTHORS), preprocess, labels)
