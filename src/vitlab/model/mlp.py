"""The MLP of equation 3: two dense layers with a GELU between them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.model import Gelu
from vitlab.model.by_hand import mlp


class Mlp(nn.Module):
    """Dense, GELU, dropout, dense, dropout; the GELU is the error-function form or the authors' tanh approximation."""

    def __init__(self, width: int, hidden: int, *, gelu: Gelu, dropout: float) -> None:
        super().__init__()
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)
        self.by_hand = False  # True: the backward pass is vitlab's own where there is no dropout, for less time on a processor

    def forward(self, x_BND: Tensor) -> Tensor:
        if self.by_hand and not (self.training and self.dropout.p):
            return mlp(x_BND, self.up, self.down, self.approximate)
        hidden_BNM: Tensor = self.dropout(F.gelu(self.up(x_BND), approximate=self.approximate))
        y_BND: Tensor = self.dropout(self.down(hidden_BNM))
        return y_BND
