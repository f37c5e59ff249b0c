"""Dense, GELU, dense on a processor, some hundred rows at a time, for training: what lies between stays in the processor's cache.

The same products as the plain layers', so the same outputs and the same gradient of the input, to the bit; the gradients of the
weights are added up tile by tile, another order of the same sum. The GELU is computed again on the way back instead of being
kept, which halves the memory of the hidden layer.

Axes: T rows (tokens of all pictures), R rows of a tile, D width, M hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ROWS = 832  # of 208 to 1,706 the fastest for widths of 192 to 768: a tile of 768 hidden numbers a row is 2.5 MB
_gelu = torch.ops.aten.gelu.out
_gelu_backward = torch.ops.aten.gelu_backward.grad_input


def can_tile(x_BND: Tensor) -> bool:
    """Whether tiling applies: float32 on a processor, with gradients, and not while a graph is traced."""
    plain = x_BND.device.type == "cpu" and x_BND.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return plain and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def tiled_mlp(x_BND: Tensor, up: nn.Linear, down: nn.Linear, approximate: str) -> Tensor:
    """`down(gelu(up(x)))`."""
    y_TD: Tensor = _Tiled.apply(x_BND.flatten(0, -2), up.weight, up.bias, down.weight, down.bias, approximate)
    return y_TD.view(x_BND.shape)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, up_MD: Tensor, up_M: Tensor, down_DM: Tensor, down_D: Tensor, approximate: str) -> Tensor:
        rows, hidden = len(x_TD), len(up_MD)
        hidden_TM, y_TD = x_TD.new_empty(rows, hidden), torch.empty_like(x_TD)
        active_RM = x_TD.new_empty(min(ROWS, rows), hidden)
        for start in range(0, rows, ROWS):
            here = slice(start, min(start + ROWS, rows))
            h_RM = hidden_TM[here]
            a_RM = active_RM[: len(h_RM)]
            torch.addmm(up_M, x_TD[here], up_MD.t(), out=h_RM)
            _gelu(h_RM, approximate=approximate, out=a_RM)
            torch.addmm(down_D, a_RM, down_DM.t(), out=y_TD[here])
        ctx.save_for_backward(x_TD, hidden_TM, up_MD, down_DM)
        ctx.approximate = approximate
        return y_TD

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, g_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, hidden_TM, up_MD, down_DM = ctx.saved_tensors
        rows, hidden = hidden_TM.shape
        g_TD = g_TD.contiguous()
        learn_x, learn_up, learn_up_bias, learn_down, learn_down_bias, _ = ctx.needs_input_grad
        g_x_TD = torch.empty_like(x_TD) if learn_x else None
        g_up_MD, g_up_M = torch.zeros_like(up_MD) if learn_up else None, up_MD.new_zeros(hidden) if learn_up_bias else None
        g_down_DM = torch.zeros_like(down_DM) if learn_down else None
        a_space_RM, g_space_RM = (x_TD.new_empty(min(ROWS, rows), hidden) for _ in range(2))
        for start in range(0, rows, ROWS):
            here = slice(start, min(start + ROWS, rows))
            h_RM, g_RD = hidden_TM[here], g_TD[here]
            if g_down_DM is not None:
                a_RM = a_space_RM[: len(h_RM)]
                _gelu(h_RM, approximate=ctx.approximate, out=a_RM)
                g_down_DM.addmm_(g_RD.t(), a_RM)
            g_RM = g_space_RM[: len(h_RM)]
            torch.mm(g_RD, down_DM, out=g_RM)
            _gelu_backward(g_RM, h_RM, approximate=ctx.approximate, grad_input=g_RM)
            if g_x_TD is not None:
                torch.mm(g_RM, up_MD, out=g_x_TD[here])
            if g_up_MD is not None:
                g_up_MD.addmm_(g_RM.t(), x_TD[here])
            if g_up_M is not None:
                g_up_M += g_RM.sum(0)
        return g_x_TD, g_up_MD, g_up_M, g_down_DM, g_TD.sum(0) if learn_down_bias else None, None
