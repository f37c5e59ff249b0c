"""The buffers of a folded ViT at work: every product goes into memory that is there already.

Axes: B batch, N tokens, T = B N rows, H heads, K width of a head, D width, M hidden width of the MLP, Q numbers of a patch,
S = H B maps of attention, of which as many are computed at a time as stay in the second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitlab.predict.fused.folded import Folded

_CACHED_MAPS = 400_000  # numbers of the maps of attention computed at a time: 1.6 MB, a second-level cache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Views of the buffers for some of the maps of attention."""

    q_SNK: Tensor
    kt_SKN: Tensor
    v_SNK: Tensor
    y_SNK: Tensor
    sum_S: Tensor
    sum_SN1: Tensor
    heads: slice
    maps_SNN: Tensor
    rows_SN: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Views:
    """Views of the buffers for a number of pictures."""

    patches_BQ: Tensor
    embedded_BD: Tensor
    z_TD: Tensor
    z_BND: Tensor
    y_TD: Tensor
    y_BNHK: Tensor
    mixed_BNHK: Tensor
    branch_TD: Tensor
    hidden_TM: Tensor
    qkv_3HTK: Tensor
    v_HBNK: Tensor
    q_HTK: Tensor
    k_BHNK: Tensor
    v_BHNK: Tensor
    q_BHNK: Tensor
    sums_BNH1: Tensor
    sums: Tensor
    parts: tuple[Part, ...]


class Workspace:
    """Buffers for up to `pictures` at once; one thread at a time may use it."""

    def __init__(self, folded: Folded, pictures: int) -> None:
        config, tokens = folded.config, folded.tokens
        self.pictures = pictures
        self._folded = folded
        rows, width = pictures * tokens, config.width
        patches = pictures * folded.grid[0] * folded.grid[1]
        numbers = 0 if folded.patch_QD is None else len(folded.patch_QD)
        self._patches = torch.empty(patches * numbers)
        self._z = torch.empty(rows * width)
        self._y = torch.empty(rows * width)
        self._mixed = torch.empty(rows * width)
        self._hidden = torch.empty(rows * max(config.mlp_width, width))
        self._qkv = torch.empty(3 * rows * width)
        self._sums = torch.empty(rows * config.heads)
        self._maps = torch.empty(max(tokens, min(_CACHED_MAPS, config.heads * rows * tokens)))
        self.ones_N = torch.ones(tokens)
        self._views: dict[tuple[int, int], Views] = {}

    def views(self, b: int, n: int) -> Views:
        """The buffers as tensors for b pictures of n tokens each."""
        if (b, n) not in self._views:
            self._views[b, n] = self._made(b, n)
        return self._views[b, n]

    def _made(self, b: int, n: int) -> Views:
        config = self._folded.config
        h, d = config.heads, config.width
        k, rows = d // h, b * n
        cells = b * self._folded.grid[0] * self._folded.grid[1]
        qkv = self._qkv[: 3 * rows * d]
        q_SNK, k_SNK, v_SNK = qkv.view(3, h * b, n, k).unbind(0)
        q_BHNK, k_BHNK, v_BHNK = (tensor.view(h, b, n, k).transpose(0, 1) for tensor in (q_SNK, k_SNK, v_SNK))
        mixed, sums, y = self._mixed[: rows * d], self._sums[: rows * h], self._y[: rows * d]
        mixed_SNK, maps = mixed.view(h * b, n, k), self._maps
        heads, lines = blocks(n, h * b)
        parts = []
        for first in range(0, h * b, heads):
            these = slice(first, min(first + heads, h * b))
            count = these.stop - first
            for top in range(0, n, lines):
                rows_of = slice(top, min(top + lines, n))
                high = rows_of.stop - top
                held = maps[: count * high * n]
                at = slice(first * n + top, (these.stop - 1) * n + rows_of.stop)  # one piece: rows are cut of one map alone
                parts.append(
                    Part(
                        q_SNK=q_SNK[these, rows_of],
                        kt_SKN=k_SNK[these].transpose(1, 2),
                        v_SNK=v_SNK[these],
                        y_SNK=mixed_SNK[these, rows_of],
                        sum_S=sums[at],
                        sum_SN1=sums[at].view(count, high, 1),
                        heads=these,
                        maps_SNN=held.view(count, high, n),
                        rows_SN=held.view(-1, n),
                    )
                )
        return Views(
            patches_BQ=self._patches.view(-1, max(1, len(self._patches) // max(1, self.pictures * cells // b)))[:cells],
            embedded_BD=self._hidden[: cells * d].view(cells, d),
            z_TD=self._z[: rows * d].view(rows, d),
            z_BND=self._z[: rows * d].view(b, n, d),
            y_TD=y.view(rows, d),
            y_BNHK=y.view(b, n, h, k),
            mixed_BNHK=mixed.view(h, b, n, k).permute(1, 2, 0, 3),
            branch_TD=mixed.view(rows, d),
            hidden_TM=self._hidden[: rows * config.mlp_width].view(rows, config.mlp_width),
            qkv_3HTK=qkv.view(3 * h, rows, k),
            v_HBNK=v_SNK.view(h, b, n, k),
            q_HTK=qkv[: rows * d].view(h, rows, k),
            k_BHNK=k_BHNK,
            v_BHNK=v_BHNK,
            q_BHNK=q_BHNK,
            sums_BNH1=sums.view(h, b, n, 1).permute(1, 2, 0, 3),
            sums=sums,
            parts=tuple(parts),
        )


def blocks(tokens: int, maps: int) -> tuple[int, int]:
    """How much of attention is computed at a time: so many whole maps, or of one map so many rows. What it takes grows linearly."""
    if tokens**2 <= _CACHED_MAPS:
        return min(maps, _CACHED_MAPS // tokens**2), tokens
    return 1, max(1, _CACHED_MAPS // tokens)
