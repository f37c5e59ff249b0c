"""A Swin Transformer for files of any image size: its maps are shifted, padded and cut into windows by indices of the graph.

    model = any_size_swin(checkpoint.model)

`vitlab.models.swin` decides by the size of a map whether to shift and pad it, and a traced file would keep the decisions of its
example. Here the maps of a batch are one list of cells, and tensors that the file computes from the sizes say which cell goes
where. The parameters are the model's own. No axis counts the windows of one image: torch.export takes an axis of length 1 for
another graph than a longer one.

Axes: B batch, C channels, G x J cells of a map (down, across), T cells of all maps in reading order, W windows of all maps, N cells
of a window, P = W x N places in windows, D width, H heads, K width of a head.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.models.record import Record
from vitlab.models.swin import FAR, Block, Merge, Stage, Swin, WindowAttention


def any_size_swin(model: Swin) -> Swin:
    """The same function with the same parameters, in operations that hold for every size of image."""
    made = copy.copy(model)
    made.__class__ = _AnySizeSwin
    return made.eval()


class _AnySizeSwin(Swin):
    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        assert record is None
        p, q = self.config.patch_size
        # With p - 1 rows of zeros below, a convolution of stride p sees each patch, and a last one that is not whole.
        padded_BCHW = F.pad(images_BCHW, (0, q - 1, 0, p - 1))
        map_BDGJ = F.conv2d(padded_BCHW, self.patches.weight, self.patches.bias, stride=(p, q))
        shape = _Shape(*map_BDGJ.shape[:1], *map_BDGJ.shape[2:])
        z_TD: Tensor = self.patch_norm(map_BDGJ.permute(0, 2, 3, 1).flatten(0, 2))
        for stage in self.stages:
            assert isinstance(stage, Stage)
            if stage.merge is not None:
                z_TD, shape = _merged(stage.merge, z_TD, shape)
            for block in stage.blocks:
                assert isinstance(block, Block)
                z_TD = z_TD + _attended(block, block.norm1(z_TD), shape)
                z_TD = z_TD + block.mlp(block.norm2(z_TD))
        y_BD: Tensor = self.norm(z_TD).view(shape.b, shape.g * shape.j, -1).mean(dim=1)
        return y_BD


class _Shape(NamedTuple):
    """Maps of a batch: how many, and their cells down and across."""

    b: int
    g: int
    j: int


def _tensor(size: int) -> Tensor:
    """A size as a tensor of the graph: a comparison of it or a remainder is then computed by the file."""
    return torch.arange(size + 1).amax(0)


def _taken(x_TD: Tensor, image_P: Tensor, row_P: Tensor, column_P: Tensor, shape: _Shape) -> Tensor:
    """The cells in those rows and columns of those images' maps; zeros where a row or column lies outside."""
    g, j = _tensor(shape.g), _tensor(shape.j)
    zeros = _tensor(x_TD.shape[0])  # the number of the row of zeros
    index_P = torch.where((row_P < g) & (column_P < j), (image_P * g + row_P) * j + column_P, zeros)
    return F.pad(x_TD, (0, 0, 0, 1)).index_select(0, index_P)


def _merged(merge: Merge, z_TD: Tensor, shape: _Shape) -> tuple[Tensor, _Shape]:
    """As `Merge`: the four are upper left, lower left, upper right, lower right."""
    half = _Shape(shape.b, (shape.g + 1) // 2, (shape.j + 1) // 2)
    cells, g, j = half.b * half.g * half.j, _tensor(half.g), _tensor(half.j)
    place_P = torch.arange(4 * cells)
    cell_P, part_P = place_P // 4, place_P % 4
    four_PD = _taken(z_TD, cell_P // j // g, 2 * (cell_P // j % g) + part_P % 2, 2 * (cell_P % j) + part_P // 2, shape)
    merged_TD: Tensor = merge.reduction(merge.norm(four_PD.view(cells, 4 * z_TD.shape[1])))
    return merged_TD, half


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Axis:
    """How the cells along one axis are shifted, padded and cut into windows of `side` cells."""

    side: int
    cells: Tensor
    padded: Tensor
    shift: Tensor
    pad_first: bool

    @classmethod
    def of(cls, cells: int, side: int, block: Block) -> _Axis:
        """As in `shift_of`: half a window, if there are several."""
        count, padded = _tensor(cells), _tensor(_windows(cells, side) * side)
        shift = torch.where(count > side, side // 2, 0) if block.shifted else torch.zeros_like(count)
        return cls(side=side, cells=count, padded=padded, shift=shift, pad_first=block.pad_first)

    def cell(self, place_P: Tensor) -> Tensor:
        """The cell at each place; `cells` or more where there is padding."""
        if self.pad_first:
            return (place_P + self.shift) % self.padded
        return torch.where(place_P < self.cells, (place_P + self.shift) % self.cells, self.cells)

    def place(self, cell_T: Tensor) -> Tensor:
        """The place of each cell."""
        around = self.padded if self.pad_first else self.cells
        return (cell_T - self.shift + around) % around

    def region(self, place_P: Tensor) -> Tensor:
        """As in `far_apart`: places of a window with different numbers are neighbours only because of the shift."""
        region_P = (place_P >= self.padded - self.side).int() + (place_P >= self.padded - self.shift).int()
        return torch.where(self.shift > 0, region_P, 0)


def _windows(cells: int, side: int) -> int:
    return (cells + side - 1) // side


def _attended(block: Block, x_TD: Tensor, shape: _Shape) -> Tensor:
    (b, g, j), (down, across) = shape, block.window
    rows, columns = _Axis.of(g, down, block), _Axis.of(j, across, block)
    n, count = down * across, b * _windows(g, down) * _windows(j, across)
    above, beside = rows.padded // down, columns.padded // across
    # The places in reading order within each window, the windows in reading order: the row and the column of each.
    place_P = torch.arange(count * n)
    window_P = place_P // n
    up_P = window_P // beside % above * down + place_P % n // across
    left_P = window_P % beside * across + place_P % across
    x_PD = _taken(x_TD, window_P // beside // above, rows.cell(up_P), columns.cell(left_P), shape)
    far_WNN = None
    if block.shifted:
        region_WN = (3 * rows.region(up_P) + columns.region(left_P)).view(count, n)
        far_WNN = torch.where(region_WN[:, :, None] == region_WN[:, None], 0.0, FAR)
    y_PD = _attention(block.attention, x_PD.view(count, n, -1), far_WNN).flatten(0, 1)
    cell_T, tall, wide = torch.arange(b * g * j), _tensor(g), _tensor(j)
    up_T, left_T = rows.place(cell_T // wide % tall), columns.place(cell_T % wide)
    window_T = (cell_T // wide // tall * above + up_T // down) * beside + left_T // across
    return y_PD.index_select(0, window_T * n + up_T % down * across + left_T % across)


def _attention(attention: WindowAttention, x_WND: Tensor, far_WNN: Tensor | None) -> Tensor:
    w, n, d = x_WND.shape
    qkv_WN3HK = attention.qkv(x_WND).view(w, n, 3, attention.heads, d // attention.heads)
    q_WHNK, k_WHNK, v_WHNK = (part_WNHK.transpose(1, 2) for part_WNHK in qkv_WN3HK.unbind(2))
    bias_1HNN = attention.bias_HNN()[None]
    bias_WHNN = bias_1HNN if far_WNN is None else bias_1HNN + far_WNN[:, None]
    y_WHNK = F.scaled_dot_product_attention(q_WHNK, k_WHNK, v_WHNK, attn_mask=bias_WHNN)
    y_WND: Tensor = attention.out(y_WHNK.transpose(1, 2).flatten(2))
    return y_WND
