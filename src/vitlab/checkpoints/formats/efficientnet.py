"""timm's EfficientNets; those it calls tf_efficientnet_... hold the TensorFlow authors' weights, Noisy Student's among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from vitlab.checkpoints.formats.contract import Hints, Row, layer, same, shaped
from vitlab.checkpoints.formats.infer import count, making, outputs, shape_of
from vitlab.config.efficientnet import BASE, SCALES, EfficientNetConfig, Padding, efficientnet
from vitlab.errors import CheckpointError

PLAIN = (("depthwise", "conv_dw", "bn1"), ("project", "conv_pw", "bn2"))
EXPANDED = (("expand", "conv_pw", "bn1"), ("depthwise", "conv_dw", "bn2"), ("project", "conv_pwl", "bn3"))
COUNTER = ".num_batches_tracked"  # which torch's BatchNorm counts and, with a fixed momentum, never reads


def is_efficientnet(tensors: dict[str, Tensor]) -> bool:
    """Whether these are the names of timm's EfficientNet, with squeeze and excitation in its first block."""
    return (
        "conv_stem.weight" in tensors and "blocks.0.0.conv_dw.weight" in tensors and "blocks.0.0.se.conv_reduce.weight" in tensors
    )


def without_counters(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without BatchNorm's counters."""
    return {key: tensor for key, tensor in tensors.items() if not key.endswith(COUNTER)}


def efficientnet_config(
    tensors: dict[str, Tensor],
    hints: Hints,
    said: tuple[int, int] | None,
    *,
    strides: tuple[int, ...] | None,
    padding: Padding | None,
    where: str,
) -> tuple[EfficientNetConfig, list[str]]:
    """The EfficientNet of a file. The tensors show neither strides nor padding: seven stages are assumed to be B0's, and the
    padding TensorFlow's, unless a config says otherwise."""
    if hints.heads is not None or hints.grid is not None:
        raise CheckpointError(f"{where} holds an EfficientNet: it has no heads and no grid to give")
    stem, channels, _, _ = shape_of(tensors, "conv_stem.weight", 4, where=where)
    stages = count(tensors, "blocks.{}.", where=where)
    if strides is None or len(strides) != stages:
        if stages != len(BASE):
            raise CheckpointError(f"{where} has {stages} stages and does not say their strides", hint="EfficientNets have 7 stages")
        strides = tuple(stage.stride for stage in BASE)
    inputs, plan = stem, list[tuple[int, int, int, int, int]]()
    for s in range(stages):
        first = f"blocks.{s}.0"
        inner, _, kernel, _ = shape_of(tensors, f"{first}.conv_dw.weight", 4, where=where)
        last = f"{first}.conv_pwl.weight" if f"{first}.conv_pwl.weight" in tensors else f"{first}.conv_pw.weight"
        width = shape_of(tensors, last, 4, where=where)[0]
        blocks = count(tensors, f"blocks.{s}.{{}}.", where=where)
        plan.append((blocks, kernel, strides[s], max(inner // inputs, 1), width))
        inputs = width
    squeezed = shape_of(tensors, "blocks.0.0.se.conv_reduce.weight", 4, where=where)[0]
    with making(where):
        config = EfficientNetConfig(
            stages=tuple(plan),
            stem_width=stem,
            head_width=shape_of(tensors, "conv_head.weight", 4, where=where)[0],
            squeeze=min(squeezed / stem, 1.0),
            image_size=said or (224, 224),
            channels=channels,
            num_classes=outputs(tensors, ("classifier.weight", "classifier.bias"), 0),
            padding=padding or "same",
            norm_eps=1e-5 if padding == "half" else 1e-3,
        )
    return _named(config, said, padding)


def _named(
    config: EfficientNetConfig, said: tuple[int, int] | None, padding: Padding | None
) -> tuple[EfficientNetConfig, list[str]]:
    """The config with the image size and dropout of the published model of this shape, and notes of guesses."""
    notes = []
    name = (config.name or "").removeprefix("EfficientNet-")
    known = efficientnet(name) if name in SCALES else None
    size = said or (known or config).image_size
    if said is None:
        notes.append(f"image_size={size[0]}x{size[1]} is a guess: an EfficientNet takes any, and the file does not say")
    if padding is None:
        notes.append(
            "padding and norm_eps are a guess, as for tf_efficientnet_... (TensorFlow's SAME, 1e-3): the file does not say;"
            " for a model that timm trained itself (half a kernel, 1e-5) tell it profile='timm'"
        )
    return replace(config, image_size=size, dropout=(known or config).dropout), notes


def efficientnet_rows(config: EfficientNetConfig) -> Iterator[Row]:
    """The rows of an EfficientNet."""
    yield same("stem.weight", "conv_stem.weight")
    yield from _norm("stem_norm", "bn1")
    inputs = config.stem_width
    for s, stage in enumerate(config.plan):
        for u in range(stage.blocks):
            ours, theirs, inner = f"stages.{s}.{u}", f"blocks.{s}.{u}", inputs * stage.expansion
            plain = stage.expansion == 1  # timm's block without expansion counts its layers from the depthwise one
            for mine, conv, norm in PLAIN if plain else EXPANDED:
                yield same(f"{ours}.{mine}.weight", f"{theirs}.{conv}.weight")
                yield from _norm(f"{ours}.{mine}_norm", f"{theirs}.{norm}")
            for mine, conv, outs in (("reduce", "conv_reduce", config.squeezed(inputs)), ("expand", "conv_expand", inner)):
                dense, foreign = f"{ours}.squeeze.{mine}", f"{theirs}.se.{conv}"
                yield shaped(f"{dense}.weight", f"{foreign}.weight", (outs, -1), (outs, -1, 1, 1))
                yield same(f"{dense}.bias", f"{foreign}.bias")
            inputs = stage.width
    yield same("last.weight", "conv_head.weight")
    yield from _norm("last_norm", "bn2")
    if config.num_classes:
        yield from layer("head", "classifier")


def _norm(ours: str, theirs: str) -> Iterator[Row]:
    yield from layer(ours, theirs)
    for part in ("running_mean", "running_var"):
        yield same(f"{ours}.{part}", f"{theirs}.{part}")
