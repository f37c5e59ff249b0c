"""Where a patch thinks it is: how alike its position is to every other's (Fig. 7 centre, Fig. 10).

Axes: G x J patches down and across, N = G J, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from vitlab.errors import ConfigError
from vitlab.inspect.asking import Floats, as_floats, chosen_layers, needs_attention


def position_similarity(model: nn.Module, *, layer: int = 0) -> Floats:
    """The cosine of each patch's position with all others', (G, J, G, J), from -1 to 1: `[row, column]` is that patch's tile.

    `layer` matters only where each layer has a table of its own.
    """
    vit = needs_attention(model, "position similarity")
    position = vit.config.position
    chosen_layers(len(vit.encoder.blocks), [layer])
    if position.kind == "none":
        raise ConfigError("the model has no positions: its patches are a set")
    if position.kind == "relative":
        raise ConfigError("the model knows offsets between patches, and no patch has a position of its own to compare")
    g, j = vit.config.grid
    with torch.inference_mode():
        table_1ND = vit.position.added(layer % len(vit.encoder.blocks), (g, j))
        if table_1ND is None:
            raise ConfigError(f"positions enter before the first layer only, not at layer {layer}", hint="layer=0")
        unit_ND = F.normalize(table_1ND[0, vit.config.prefix_tokens :].double(), dim=1)
        return as_floats((unit_ND @ unit_ND.T).view(g, j, g, j))
