"""Parts of ViTs beyond the paper's: the kinds of GELU, SwiGLU (Shazeer 2020), a norm inside (EVA-02, BEiT-3), the norms of a ViT;
and the heads of detection tokens.

Axes: B batch, N tokens, D width, M hidden width, Q detection tokens, C classes of which the last is "no object", 4 the box: centre
across and down, width and height, as fractions of the image.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.vit import Gelu, ViTConfig
from vitlab.models.model import Draw, zero

AnyNorm = nn.LayerNorm | nn.RMSNorm


def make_norm(config: ViTConfig, width: int | None = None) -> AnyNorm:
    """The norm that the config asks for, of its width or another."""
    kind = nn.LayerNorm if config.norm.kind == "layer" else nn.RMSNorm
    return kind(width or config.width, eps=config.numerics.norm_eps)


def gelu(x: Tensor, kind: Gelu) -> Tensor:
    """The exact GELU, its tanh approximation, or the quick one of OpenAI's CLIP."""
    if kind == "quick":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if kind == "tanh" else "none")


class MlpVariant(nn.Module):
    """Dense, GELU or gate, norm, dense. With a gate, `up` holds the gate's rows above the values'."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        form, hidden = config.mlp, config.mlp_width
        self.gelu, self.gated = config.numerics.gelu, form.gated
        self.up = nn.Linear(config.width, 2 * hidden if form.gated else hidden, bias=form.bias)
        self.norm = make_norm(config, hidden) if form.norm else None
        self.down = nn.Linear(hidden, config.width, bias=form.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BND: Tensor) -> Tensor:
        hidden_BNM = self.dropout(self.activated(self.up(x_BND)))
        if self.norm is not None:
            hidden_BNM = self.norm(hidden_BNM)
        y_BND: Tensor = self.dropout(self.down(hidden_BNM))
        return y_BND

    def activated(self, up_BNM: Tensor) -> Tensor:
        """The hidden values, (B, N, M), from the first dense layer's output."""
        if not self.gated:
            return gelu(up_BNM, self.gelu)
        gate_BNM, value_BNM = up_BNM.chunk(2, dim=-1)
        return F.silu(gate_BNM) * value_BNM


# --- detection tokens (YOLOS, Fang et al. 2021): each says a class and a box --------------------------------------------------


class Detections(NamedTuple):
    """What the detection tokens of each image say."""

    logits_BQC: Tensor
    boxes_BQ4: Tensor


class DetectionHead(nn.Module):
    """Two MLPs of three dense layers over each detection token: the logits of its class, and its box."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.classes = nn.ModuleList(nn.Linear(width, outputs) for outputs in (width, width, classes))
        self.boxes = nn.ModuleList(nn.Linear(width, outputs) for outputs in (width, width, 4))

    def forward(self, z_BQD: Tensor) -> Detections:
        return Detections(logits_BQC=_through(self.classes, z_BQD), boxes_BQ4=_through(self.boxes, z_BQD).sigmoid())


def _through(layers: nn.ModuleList, x_BQD: Tensor) -> Tensor:
    first, second, last = layers
    y_BQD: Tensor = last(F.relu(second(F.relu(first(x_BQD)))))
    return y_BQD


def init_detection(head: DetectionHead, draw: Draw) -> None:
    """Xavier-uniform weights and biases of zero."""
    for dense in (*head.classes, *head.boxes):
        assert isinstance(dense, nn.Linear)
        draw.xavier_uniform(dense.weight)
        zero(dense.bias)
