"""The Transformer encoder: layer upon layer, and the LayerNorm at its end.

Axes: B batch, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.config.model import ViTConfig
from vitlab.model.attention import Scene, neighbours
from vitlab.model.position import Grid, Positions
from vitlab.model.record import Record


class Encoder(nn.Module):
    """Runs the blocks it is given; positions enter at every layer where the config says so."""

    def __init__(self, config: ViTConfig, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.window = config.window if config.attention == "local" else None
        self.prefix = config.prefix_tokens
        self.blocks = nn.ModuleList(blocks)
        self.recompute = False
        self.norm = None if config.norm_after_pool else nn.LayerNorm(config.width, eps=config.numerics.norm_eps)

    def forward(
        self, z_BND: Tensor, position: Positions, grid: Grid, record: Record | None = None, read: int | None = None
    ) -> Tensor:
        """All tokens, or only the first `read` of them."""
        mask_NN = None if self.window is None else neighbours(self.window, grid, self.prefix, z_BND.device)
        if record is not None:
            record.start(len(self.blocks))
        for layer, block in enumerate(self.blocks):
            if layer > 0 and (added_1ND := position.added(layer, grid)) is not None:
                z_BND = z_BND + added_1ND  # Table 8: positions at each layer; the first has them from eq. 1
            offsets_MD = position.offset_keys(layer, grid)
            scene = Scene(layer=layer, grid=grid, prefix=self.prefix, mask_NN=mask_NN, offsets_MD=offsets_MD)
            if read is not None and layer == len(self.blocks) - 1:
                if record is not None and record.sees(layer):
                    record.keep_tokens(layer, block(z_BND, scene, record))  # beside it, so that recording changes no bit
                scene, record = replace(scene, read=read), None
            z_BND = self.run(block, z_BND, scene, record)
            if record is not None:
                record.keep_tokens(layer, z_BND)
        return z_BND if self.norm is None else self.norm(z_BND)

    def run(self, block: nn.Module, z_BND: Tensor, scene: Scene, record: Record | None) -> Tensor:
        """One layer; where `recompute`, its activations are computed again for the backward pass instead of being kept."""
        if self.recompute and torch.is_grad_enabled() and record is None:
            z_BND = checkpoint(block, z_BND, scene, use_reentrant=False)
        else:
            z_BND = block(z_BND, scene, record)
        return z_BND
