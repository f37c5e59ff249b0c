"""A residual branch's layer scale and stochastic depth.

Axes: B batch, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rising(last: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates of stochastic depth for stages of that many blocks each: evenly from 0 at the first block to `last` at the last."""
    total, rates, begun = sum(depths), list[list[float]](), 0
    for blocks in depths:
        rates.append([last * block / max(total - 1, 1) for block in range(begun, begun + blocks)])
        begun += blocks
    return rates


def branch(y_BND: Tensor, scale_D: Tensor | None, drop: float) -> Tensor:
    """The branch times its layer scale, left out with probability `drop` for each picture, the others scaled up to match."""
    if scale_D is not None:
        y_BND = y_BND * scale_D
    if drop > 0:
        kept_B = torch.rand(y_BND.shape[0], device=y_BND.device) >= drop
        y_BND = y_BND * (kept_B / (1 - drop)).to(y_BND.dtype).view(-1, *[1] * (y_BND.ndim - 1))
    return y_BND
