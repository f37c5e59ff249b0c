"""timm's Swin, ConvNeXt and EfficientNet: which of them a file holds, by its tensors and its config.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from vitlab.checkpoints.formats import convnext, swin
from vitlab.checkpoints.formats.contract import Found, Hints, not_of
from vitlab.checkpoints.formats.convnext import convnext_config, convnext_rows
from vitlab.checkpoints.formats.efficientnet import efficientnet_config, efficientnet_rows, is_efficientnet, without_counters
from vitlab.checkpoints.formats.infer import making, numerics_of
from vitlab.checkpoints.formats.sidecar import Sidecar, number, size, text, within
from vitlab.checkpoints.formats.swin import swin_config, swin_rows, without_computed
from vitlab.checkpoints.formats.timm_sidecar import image_size_of, refuse_unseen
from vitlab.checkpoints.table import Row
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.efficientnet import EfficientNetConfig, Padding
from vitlab.config.model import ModelConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import PROFILES

Tensors = dict[str, Tensor]
# ConvNeXts whose LayerNorms have another eps than the authors': depths, widths -> eps. This one is ConvNeXt-XXL, of CLIP.
EPS: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {((3, 4, 30, 3), (384, 768, 1536, 3072)): 1e-5}


def holds_other_family(tensors: Tensors) -> bool:
    """Whether the tensors carry timm's names of a Swin, a ConvNeXt or an EfficientNet."""
    if swin.names_of(tensors) is swin.TIMM:
        return True
    return _is_timms(convnext.names_of(tensors)) or is_efficientnet(tensors)


def find_other_family(tensors: Tensors, hints: Hints, stated: ModelConfig | None, beside: Sidecar | None, *, where: str) -> Found:
    """The model in a file if `holds_other_family`; `stated` is the config of vitlab's own header, `beside` timm's config.json."""
    numerics_of(hints, PROFILES["timm"])  # refuses a profile nobody knows
    said = stated.image_size if stated is not None else image_size_of(beside) if beside is not None else None
    if swin.names_of(tensors) is swin.TIMM:
        tensors = without_computed(tensors)
        if beside is not None:
            refuse_unseen(beside, "swin")
        window = stated.window if isinstance(stated, SwinConfig) else None
        if beside is not None and isinstance(within(beside, "model_args").get("window_size"), list):
            window = size(within(beside, "model_args"), "window_size")
        told_beside = swin.Said(image_size=said, window=window)
        windowed, notes = swin_config(tensors, swin.TIMM, hints, told_beside, where=where)
        return Found(config=replace(windowed, pad_first=hints.profile == "official"), tensors=tensors, notes=tuple(notes))
    names = convnext.names_of(tensors)
    if names is not None:
        plain, notes = convnext_config(tensors, names, hints, said, where=where)
        eps = EPS.get((plain.depths, plain.widths), plain.norm_eps)
        if beside is not None:
            refuse_unseen(beside, "convnext")
            eps = number(within(beside, "model_args"), "norm_eps") or eps
        with making(where):
            return Found(config=replace(plain, norm_eps=eps), tensors=tensors, notes=tuple(notes))
    stages = tuple(stage.stride for stage in stated.plan) if isinstance(stated, EfficientNetConfig) else None
    padding: Padding | None = stated.padding if isinstance(stated, EfficientNetConfig) else None
    if beside is not None:
        refuse_unseen(beside, "efficientnet")
        padding = "same" if (text(beside, "architecture") or "").startswith("tf_") else "half"
    if hints.profile is not None:
        padding = "same" if hints.profile == "official" else "half"
    tensors = without_counters(tensors)
    net, notes = efficientnet_config(tensors, hints, said, strides=stages, padding=padding, where=where)
    return Found(config=net, tensors=tensors, notes=tuple(notes))


def family_rows(config: ModelConfig, tensors: Tensors | None = None) -> Iterator[Row]:
    """The rows of a model under timm's names; `tensors` are those of the file, which may have older names."""
    match config:
        case SwinConfig():
            return swin_rows(config, swin.TIMM)
        case ConvNeXtConfig():
            names = None if tensors is None else convnext.names_of(tensors)
            return convnext_rows(config, names or convnext.TIMM)
        case EfficientNetConfig():
            return efficientnet_rows(config)
        case _:
            raise not_of("timm", "ViTs, ResNets, Swins, ConvNeXts and EfficientNets", config)


def family_notes(config: ModelConfig) -> list[str]:
    """Notes of where timm computes something else than this model."""
    match config:
        case SwinConfig():
            notes = _swin_notes(config)
            if config.norm_eps != 1e-5:
                notes.append(f"this model's norm_eps is {config.norm_eps:g} and timm uses 1e-05: its logits will differ slightly")
            return notes
        case ConvNeXtConfig() if config.last_norm_eps not in (None, config.norm_eps):
            return [
                f"this model's last norm has eps {config.last_norm_eps:g} and timm uses {config.norm_eps:g}: logits differ slightly"
            ]
        case EfficientNetConfig() if config.padding == "uneven":
            return [
                "this model pads as transformers does, one cell less before than after, and timm does not: its logits will differ"
            ]
        case _:
            return []


def _swin_notes(config: SwinConfig) -> list[str]:
    padded = any(
        g % w for grid, window in zip(config.grids, config.windows, strict=True) for g, w in zip(grid, window, strict=True)
    )
    if padded and config.pad_first:
        return ["this model pads its maps and then shifts them, and timm shifts them first: its logits will differ"]
    return []


def _is_timms(names: convnext.Names | None) -> bool:
    return names is not None and names.block == convnext.TIMM.block
