"""Token merging at inference (Bolya et al. 2023, "Token Merging: Your ViT But Faster"): in every layer the r most alike pairs of
patches become one token each, the mean of both weighted by how many patches each stands for.

Pairs are found among two halves, every second patch in each: cheap, and no chains. Prefix tokens are never merged. A token that
stands for s patches counts s times in attention. With r = 0 nothing changes.

Axes: B batch, N tokens, P patches among them, A and E the two halves of these, D width, H heads, K width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.config.model import ViTConfig


def why_not_merged(config: ViTConfig) -> str | None:
    """Why tokens of this model cannot be merged, or None where they can."""
    if config.pool == "map":
        return "its attention pooling asks patches one by one"
    if config.position.place != "stem" and config.position.kind != "none":
        return "its positions are added at every layer, and merged patches have none"
    return None


def merged_count(tokens: int, prefix: int, most: int) -> int:
    """How many pairs a layer merges: `most`, or as many as the smaller half has."""
    return min(most, (tokens - prefix) // 2)


def merge(z_BND: Tensor, k_BHNK: Tensor, size_BN: Tensor, *, count: int, prefix: int) -> tuple[Tensor, Tensor]:
    """Tokens and their sizes after `count` merges: those tokens whose keys are most alike, the mean over heads, become one.

    Prefix tokens come first as before, then the patches of the first half that are left, then those of the second.
    """
    key_BPK = F.normalize(k_BHNK[:, :, prefix:].mean(1), dim=-1)
    alike_BAE = key_BPK[:, ::2] @ key_BPK[:, 1::2].transpose(1, 2)
    most_BA, partner_BA = alike_BAE.max(-1)
    order_BA = most_BA.argsort(stable=True, dim=-1, descending=True)
    gone_BR, kept_BS = order_BA[:, :count], order_BA[:, count:].sort(-1).values
    to_BR = partner_BA.gather(1, gone_BR)
    first_BAD, second_BED = z_BND[:, prefix::2], z_BND[:, prefix + 1 :: 2]
    first_BA, second_BE = size_BN[:, prefix::2], size_BN[:, prefix + 1 :: 2]
    going_BR = first_BA.gather(1, gone_BR)
    total_BE = second_BE.scatter_add(1, to_BR, going_BR)
    sum_BED = (second_BED * second_BE[:, :, None]).scatter_add_(
        1, _wide(to_BR, z_BND), first_BAD.gather(1, _wide(gone_BR, z_BND)) * going_BR[:, :, None]
    )
    z_BND = torch.cat([z_BND[:, :prefix], first_BAD.gather(1, _wide(kept_BS, z_BND)), sum_BED / total_BE[:, :, None]], dim=1)
    size_BN = torch.cat([size_BN[:, :prefix], first_BA.gather(1, kept_BS), total_BE], dim=1)
    return z_BND, size_BN


def _wide(index_BR: Tensor, z_BND: Tensor) -> Tensor:
    return index_BR[:, :, None].expand(-1, -1, z_BND.shape[-1])
