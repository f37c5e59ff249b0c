"""From the encoder's tokens to one vector: the class token, the mean of the patches, or attention by a learned probe.

Axes: B batch, N tokens, D width, H heads, K width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.model import ViTConfig
from vitlab.model.mlp import Mlp


class MapPool(nn.Module):
    """Multihead attention pooling (Zhai et al. 2021): one learned probe asks all patches, then an MLP beside a residual."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width, numerics = config.width, config.numerics
        self.heads = config.heads
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=numerics.norm_eps)
        self.mlp = Mlp(width, config.mlp_width, gelu=numerics.gelu, dropout=config.dropout)

    def forward(self, z_BND: Tensor) -> Tensor:
        return self.answered(F.scaled_dot_product_attention(*self.asked(z_BND)))

    def asked(self, z_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The probe's query (B, H, 1, K), and each token's key and value (B, H, N, K)."""
        q_1H1K = self.query(self.probe).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv_BN2HK = self.key_value(z_BND).unflatten(-1, (2, self.heads, -1))
        k_BHNK, v_BHNK = kv_BN2HK.permute(2, 0, 3, 1, 4).unbind(0)
        return q_1H1K.expand(z_BND.shape[0], -1, -1, -1), k_BHNK, v_BHNK

    def answered(self, y_BH1K: Tensor) -> Tensor:
        """What is made of the values the probe got, (B, D)."""
        y_BD: Tensor = self.out(y_BH1K.flatten(1))
        y_BD = y_BD + self.mlp(self.norm(y_BD))
        return y_BD
