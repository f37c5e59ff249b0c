"""Backward passes written out by hand, for training on a processor: autograd's own numbers, with fewer walks through memory.

Left to itself, autograd copies the gradients of q, k and v together before it goes on, gives the GELU's gradient an array of its
own, and sums a bias's gradient slower than a product with ones does. Together that is 2 to 4 % of an update of a ViT of width 192.
The training loop asks for it (`vitlab.training.cpu.back_by_hand`); it cannot be differentiated twice.

Axes: B batch, N tokens, T = B N rows, D width, E width of one of the parts, M hidden width of the MLP.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def mlp(x_BND: Tensor, up: nn.Linear, down: nn.Linear, approximate: str) -> Tensor:
    """down(GELU(up(x))), eq. 3 without dropout."""
    return cast("Tensor", _Mlp.apply(x_BND, up.weight, up.bias, down.weight, down.bias, approximate))  # type: ignore[no-untyped-call]


def in_parts(x_BND: Tensor, linear: nn.Linear, parts: int) -> tuple[Tensor, ...]:
    """linear(x) cut along its width into equal parts, each (B, N, E): q, k and v of eq. 5."""
    return cast("tuple[Tensor, ...]", _InParts.apply(x_BND, linear.weight, linear.bias, parts))  # type: ignore[no-untyped-call]


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, up_MD: Tensor, up_M: Tensor, down_DM: Tensor, down_D: Tensor, approximate: str) -> Tensor:
        hidden_BNM = F.linear(x_BND, up_MD, up_M)
        active_BNM = F.gelu(hidden_BNM, approximate=approximate)
        ctx.save_for_backward(x_BND, hidden_BNM, active_BNM, up_MD, down_DM)
        ctx.approximate = approximate
        return F.linear(active_BNM, down_DM, down_D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BND: Tensor) -> tuple[Tensor | None, ...]:
        x_BND, hidden_BNM, active_BNM, up_MD, down_DM = ctx.saved_tensors
        for_x, for_up, for_up_bias, for_down, for_down_bias, _ = ctx.needs_input_grad
        x_TD, hidden_TM, active_TM = x_BND.flatten(0, -2), hidden_BNM.flatten(0, -2), active_BNM.flatten(0, -2)
        grad_TD = grad_BND.flatten(0, -2)
        down_grad_DM = grad_TD.t() @ active_TM if for_down else None
        down_grad_D = _column_sums(grad_TD) if for_down_bias else None
        if not (for_x or for_up or for_up_bias):
            return None, None, None, down_grad_DM, down_grad_D, None
        hidden_grad_TM = grad_TD @ down_DM
        torch.ops.aten.gelu_backward.grad_input(hidden_grad_TM, hidden_TM, approximate=ctx.approximate, grad_input=hidden_grad_TM)
        x_grad_BND = (hidden_grad_TM @ up_MD).view_as(x_BND) if for_x else None
        up_grad_MD = hidden_grad_TM.t() @ x_TD if for_up else None
        up_grad_M = _column_sums(hidden_grad_TM) if for_up_bias else None
        return x_grad_BND, up_grad_MD, up_grad_M, down_grad_DM, down_grad_D, None


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, weight: Tensor, bias: Tensor | None, parts: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x_BND, weight)
        return F.linear(x_BND, weight, bias).chunk(parts, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads_BNE: Tensor) -> tuple[Tensor | None, ...]:
        x_BND, weight = ctx.saved_tensors
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        x_TD, parts_TE = x_BND.flatten(0, -2), [grad_BNE.flatten(0, -2) for grad_BNE in grads_BNE]
        weights_ED = weight.chunk(len(parts_TE))
        x_grad_TD: Tensor | None = None
        if for_x:
            x_grad_TD = parts_TE[0] @ weights_ED[0]
            for part_TE, weight_ED in zip(parts_TE[1:], weights_ED[1:], strict=True):
                x_grad_TD.addmm_(part_TE, weight_ED)
        weight_grad = torch.empty_like(weight) if for_weight else None
        if weight_grad is not None:
            for part_TE, into_ED in zip(parts_TE, weight_grad.chunk(len(parts_TE)), strict=True):
                torch.mm(part_TE.t(), x_TD, out=into_ED)
        bias_grad = torch.cat([_column_sums(part_TE) for part_TE in parts_TE]) if for_bias else None
        return None if x_grad_TD is None else x_grad_TD.view_as(x_BND), weight_grad, bias_grad, None


def _column_sums(grad_TE: Tensor) -> Tensor:
    return torch.mv(grad_TE.t(), grad_TE.new_ones(len(grad_TE)))
