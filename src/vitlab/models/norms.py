"""The norms of a ViT: LayerNorm as in the paper, or RMSNorm."""

from __future__ import annotations

from torch import nn

from vitlab.config.vit import ViTConfig

AnyNorm = nn.LayerNorm | nn.RMSNorm


def make_norm(config: ViTConfig, width: int | None = None) -> AnyNorm:
    """The norm that the config asks for, of its width or another."""
    kind = nn.LayerNorm if config.norm.kind == "layer" else nn.RMSNorm
    return kind(width or config.width, eps=config.numerics.norm_eps)
