"""Pictures to patches to vectors: the linear projection E of equation 1.

Axes: B batch, C channels, H W pixels, G x J patches down and across, P x Q pixels of a patch, N = G J tokens, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def cut(images_BCHW: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Patches in reading order, each a row of its C P Q values: (B, N, C P Q)."""
    b, c, h, w = images_BCHW.shape
    p, q = patch_size
    x_BCGPJQ = images_BCHW.reshape(b, c, h // p, p, w // q, q)
    return x_BCGPJQ.permute(0, 2, 4, 1, 3, 5).reshape(b, (h // p) * (w // q), c * p * q).contiguous()


class Patches(nn.Module):
    """The linear embedding of patches; `pad` fills the right and lower edge with zeros up to a whole patch."""

    def __init__(self, channels: int, width: int, patch_size: tuple[int, int], *, pad: bool) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.pad = pad
        self.weight = nn.Parameter(torch.empty(width, channels, *patch_size))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        if self.pad:
            p, q = self.patch_size
            images_BCHW = F.pad(images_BCHW, (0, -images_BCHW.shape[3] % q, 0, -images_BCHW.shape[2] % p))
        return F.linear(cut(images_BCHW, self.patch_size), self.weight.flatten(1), self.bias)  # x_p E of eq. 1
