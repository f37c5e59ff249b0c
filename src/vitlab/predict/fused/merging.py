"""Token merging at inference (Bolya et al. 2023, "Token Merging: Your ViT But Faster"): in every layer the r most alike pairs of
patches become one token each, the mean of both weighted by how many patches each stands for.

Pairs are found among two halves, every second patch in each: cheap, and no chains. Prefix tokens are never merged. A token that
stands for s patches counts s times in attention. With r = 0 nothing changes.

Axes: B batch, N tokens, T = B N rows, P patches, A and E the two halves of these, R patches that go and S those of A that stay,
D width, H heads, K width of a head.
"""

from __future__ import annotations

import torch
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


def merge(z_BND: Tensor, k_HBNK: Tensor, size_BN: Tensor, *, count: int, prefix: int) -> tuple[Tensor, Tensor]:
    """Tokens and their sizes after `count` merges: those tokens whose keys are most alike, the mean over heads, become one.

    Prefix tokens come first as before, then the patches of the first half that are left, then those of the second. Tokens move by
    their rows in memory, which costs a third of gathering them picture by picture.
    """
    b, n, d = z_BND.shape
    key_BPK = k_HBNK.sum(0)[:, prefix:]
    key_BPK = key_BPK * key_BPK.square().sum(-1, keepdim=True).clamp_min_(1e-24).rsqrt_()
    alike_BAE = key_BPK[:, ::2] @ key_BPK[:, 1::2].transpose(1, 2)
    most_BA, partner_BA = alike_BAE.max(-1)
    order_BA = most_BA.argsort(stable=True, dim=-1, descending=True)
    gone_BR, kept_BS = order_BA[:, :count], order_BA[:, count:].sort(-1).values
    picture_B1 = torch.arange(b)[:, None]
    second_E = torch.arange(prefix + 1, n, 2)
    rows_BN = torch.cat([torch.arange(prefix).expand(b, -1), prefix + 2 * kept_BS, second_E.expand(b, -1)], dim=1) + n * picture_B1
    left = rows_BN.shape[1]
    from_BR = prefix + 2 * gone_BR + n * picture_B1
    to_BR = left - len(second_E) + partner_BA.gather(1, gone_BR) + left * picture_B1
    rows, origin, target = rows_BN.flatten(), from_BR.flatten(), to_BR.flatten()
    size, flat_TD = size_BN.flatten(), z_BND.reshape(-1, d)
    before, going = size.index_select(0, rows), size.index_select(0, origin)
    after = before.index_add(0, target, going)
    merged_TD = flat_TD.index_select(0, rows).mul_((before / after)[:, None])
    share = going / after.index_select(0, target)
    merged_TD.index_add_(0, target, flat_TD.index_select(0, origin).mul_(share[:, None]))
    return merged_TD.view(b, left, d), after.view(b, left)
