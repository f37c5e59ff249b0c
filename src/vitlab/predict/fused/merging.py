"""Token merging at inference (Bolya et al. 2023, "Token Merging: Your ViT But Faster"): the most alike pairs of patches,
r a layer, become one token each, the mean of both weighted by how many patches each stands for.

Pairs are found among two halves, every second patch in each: cheap, and no chains. Prefix tokens are never merged. A token that
stands for s patches counts s times in attention. With r = 0 nothing changes.

Axes: B batch, N tokens, T = B N rows, P patches, A and E the two halves of these, R patches that go and S those of A that stay,
D width, H heads, K width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitlab.config.model import ViTConfig

_TOGETHER = 3  # layers


def why_not_merged(config: ViTConfig) -> str | None:
    """Why tokens of this model cannot be merged, or None where they can."""
    if config.pool == "map":
        return "its attention pooling asks patches one by one"
    if config.position.place != "stem" and config.position.kind != "none":
        return "its positions are added at every layer, and merged patches have none"
    return None


def schedule(layers: int, merge: int) -> tuple[int, ...]:
    """Pairs to merge in each layer but the last, `merge` on average: those of three layers are merged at once, in the middle one.

    As accurate as some in every layer, for a third of the sorting.
    """
    steps = layers - 1
    counts = [0] * steps
    for first in range(0, steps, _TOGETHER):
        end = min(first + _TOGETHER, steps)
        counts[min(first + _TOGETHER // 2, end - 1)] = merge * (end - first)
    return tuple(counts)


def merged_count(tokens: int, prefix: int, most: int) -> int:
    """How many pairs a layer merges: `most`, or as many as the smaller half has."""
    return max(0, min(most, (tokens - prefix) // 2))


def merge(z_BND: Tensor, k_HBNK: Tensor, size_BN: Tensor, *, count: int, prefix: int) -> tuple[Tensor, Tensor]:
    """Tokens and their sizes after `count` merges: those tokens whose keys are most alike, the mean over heads, become one.

    Prefix tokens come first as before, then the patches of the first half that are left, the least alike last in line to go, then
    those of the second. In operators that every runtime has: tokens move by their rows in memory, and sums are a small product.
    """
    b, n, d = z_BND.shape
    key_BPK = k_HBNK.sum(0)[:, prefix:]
    key_BPK = key_BPK * key_BPK.square().sum(-1, keepdim=True).clamp_min(1e-24).rsqrt()
    alike_BAE = key_BPK[:, ::2] @ key_BPK[:, 1::2].transpose(1, 2)
    most_BA, partner_BA = alike_BAE.max(-1)
    order_BA = most_BA.argsort(dim=-1, descending=True)  # once, so that whoever goes does not also stay
    gone_BR, kept_BS = order_BA[:, :count], order_BA[:, count:]
    begin_B1 = n * torch.arange(b, device=z_BND.device)[:, None]
    go, stay = (prefix + 2 * gone_BR + begin_B1).flatten(), (prefix + 2 * kept_BS + begin_B1).flatten()
    flat_TD, size_T = z_BND.reshape(-1, d), size_BN.reshape(-1)
    going_BR1, going_BRD = size_T.index_select(0, go).view(b, count, 1), flat_TD.index_select(0, go).view(b, count, d)
    second_BED, size_BE1 = z_BND[:, prefix + 1 :: 2], size_BN[:, prefix + 1 :: 2, None]
    place_E1 = torch.arange(alike_BAE.shape[2], device=z_BND.device)[:, None]
    joins_BER = (partner_BA.gather(1, gone_BR)[:, None] == place_E1).to(z_BND.dtype)
    after_BE1 = size_BE1 + joins_BER @ going_BR1
    mean_BED = (second_BED * size_BE1 + joins_BER @ (going_BRD * going_BR1)) / after_BE1
    left = kept_BS.shape[1]
    return (
        torch.cat([z_BND[:, :prefix], flat_TD.index_select(0, stay).view(b, left, d), mean_BED], dim=1),
        torch.cat([size_BN[:, :prefix], size_T.index_select(0, stay).view(b, left), after_BE1[:, :, 0]], dim=1),
    )


def weighed(z_BND: Tensor, size_BN: Tensor, prefix: int) -> Tensor:
    """Tokens times what they stand for, so that the plain mean of them is the mean over patches."""
    size_BP = size_BN[:, prefix:]
    factor_BP1 = (size_BP * (size_BP.shape[1] / size_BP.sum(1, keepdim=True)))[:, :, None]
    return torch.cat([z_BND[:, :prefix], z_BND[:, prefix:] * factor_BP1], dim=1)
