"""Gradient-weighted attention (Chefer et al. 2021): which patches speak for one class, and not only what was looked at.

Axes: B batch, H heads, N tokens, K width of a head, R some of the N queries, C classes, G x J patches down and across.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitlab.inspect.asking import (
    Floats,
    a_class_each,
    as_floats,
    at_rest,
    batches,
    bytes_kept,
    chosen_classes,
    needs_attention,
    needs_head,
    on_grid,
)
from vitlab.inspect.rollout import pool_reads, through
from vitlab.model.attention import Gaze, weights
from vitlab.model.record import Record
from vitlab.model.vit import ViT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighted:
    """A layer's attention times what the class's logit gains by more of it; losses count as nothing.

    The fused kernel never shows its attention A, but what it makes of it, A V, has a gradient, and that of A is that times V
    transposed: exact, and any rows of it without the others.
    """

    gaze: Gaze
    values_BHNK: Tensor
    gradient_BHNK: Tensor

    def rows(self, first: int, last: int) -> Tensor:
        """Gains of the tokens `first` to `last` - 1 by looking at each, (B, H, R, N), none below 0."""
        gain_BHRN = self.gradient_BHNK[:, :, first:last].float() @ self.values_BHNK.float().transpose(-2, -1)
        return (gain_BHRN * self.gaze.rows(first, last)).relu()


def relevance(model: nn.Module, images_BCHW: Tensor, classes: int | Sequence[int] | None = None) -> Floats:
    """How much each patch speaks for a class, (B, G, J), of no unit and at least 0.

    `classes` is one for all pictures or one for each; None is what the model finds likeliest. Layer by layer, attention times its
    gradient, negative parts left out and heads averaged, is added to what came before; it is read where the pool reads.
    """
    vit = needs_attention(model, "gradient-weighted attention")
    needs_head(vit, "gradient-weighted attention")
    wanted = a_class_each(classes, len(images_BCHW))
    maps, done = [], 0
    with at_rest(vit):
        for part_BCHW in batches(vit, images_BCHW, bytes_each=4 * bytes_kept(vit, images_BCHW, len(vit.encoder.blocks))):
            own = None if wanted is None else wanted[done : done + len(part_BCHW)]
            done += len(part_BCHW)
            row_BN = _relevance(vit, part_BCHW, own)
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            maps.append(on_grid(row_BN[:, vit.config.prefix_tokens :], grid).cpu())
    return as_floats(torch.cat(maps))


def _relevance(vit: ViT, images_BCHW: Tensor, classes: Sequence[int] | None) -> Tensor:
    record = Record(attention=False, gazes=True)
    with torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller is in
        z_BND = vit.encoded(images_BCHW.clone().detach().requires_grad_(), record)
        if vit.pool is None:
            probe_BH1N, logits_BC = None, vit.answered(z_BND)
        else:
            q_BH1K, k_BHNK, v_BHNK = vit.pool.asked(z_BND[:, vit.config.prefix_tokens :])
            probe_BH1N = weights(q_BH1K, k_BHNK, None)
            features_BD = vit.represented(vit.pool.answered(probe_BH1N @ v_BHNK))
            assert vit.head is not None, "needs_head was asked"
            logits_BC = vit.head(features_BD)
        chosen_B = chosen_classes(logits_BC, classes)
        told = logits_BC.gather(1, chosen_B[:, None]).sum()
        mixed = [gaze.mixed_BHNK for gaze in record.gazes if gaze.mixed_BHNK is not None]
        values = [gaze.values_BHNK for gaze in record.gazes if gaze.values_BHNK is not None]
        gradients = torch.autograd.grad(told, mixed if probe_BH1N is None else [*mixed, probe_BH1N])
    with torch.inference_mode():
        parts = zip(record.gazes, values, gradients[: len(mixed)], strict=True)
        layers = [Weighted(gaze=gaze, values_BHNK=value, gradient_BHNK=own) for gaze, value, own in parts]
        if probe_BH1N is None:
            start_B1N = row_B1N = pool_reads(vit, z_BND)
        else:
            gain_BHN = (gradients[-1] * probe_BH1N).relu()[:, :, 0]
            row_B1N = torch.nn.functional.pad(gain_BHN.mean(1), (vit.config.prefix_tokens, 0))[:, None].float()
            start_B1N = torch.zeros_like(row_B1N)
        for layer in reversed(layers):
            row_B1N = row_B1N + through(row_B1N, layer)
        return (row_B1N - start_B1N)[:, 0]  # what the pool reads of itself says nothing of the class
