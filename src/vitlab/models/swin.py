"""Swin Transformer (Liu et al. 2021): attention within windows that shift by half a window from block to block.

Axes: B batch, C channels or classes, G x J cells of a map (down, across), W windows, N cells of a window, D width, H heads,
K width of a head, O offsets between two cells of a window.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitlab.config.swin import SwinConfig
from vitlab.errors import ConfigError
from vitlab.models.model import Draw, Family, Model, init_head, init_norm, zero
from vitlab.models.record import Record
from vitlab.models.vit import Mlp, PatchEmbedding, drop_path_rates, residual_branch

Pair = tuple[int, int]
FAR = -100.0  # added to the logit of two cells that are neighbours only because of the shift: the authors' number


class WindowAttention(nn.Module):
    """Multi-head attention among the cells of each window, with a learned bias for each head and offset."""

    def __init__(self, config: SwinConfig, stage: int) -> None:
        super().__init__()
        width = config.widths[stage]
        self.heads = config.heads[stage]
        self.window = config.windows[stage]
        self.offset_bias = nn.Parameter(torch.empty((2 * self.window[0] - 1) * (2 * self.window[1] - 1), self.heads))
        self.qkv = nn.Linear(width, 3 * width, bias=config.qkv_bias)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(config.dropout)
        self.index_NN: Tensor
        self.register_buffer("index_NN", offset_index(self.window), persistent=False)

    def forward(self, x_BWND: Tensor, far_WNN: Tensor | None) -> Tensor:
        b, w, n, d = x_BWND.shape
        qkv_BWN3HK = self.qkv(x_BWND).view(b, w, n, 3, self.heads, d // self.heads)
        # M = windows x heads on one axis, so that one bias serves the whole batch.
        q_BMNK, k_BMNK, v_BMNK = (part_BWNHK.transpose(2, 3).flatten(1, 2) for part_BWNHK in qkv_BWN3HK.unbind(3))
        bias_1HNN = self.bias_HNN()[None]
        bias_WHNN = bias_1HNN.expand(w, -1, -1, -1) if far_WNN is None else bias_1HNN + far_WNN[:, None]
        bias_1MNN = bias_WHNN.reshape(1, w * self.heads, n, n).to(q_BMNK.dtype)
        y_BMNK = F.scaled_dot_product_attention(q_BMNK, k_BMNK, v_BMNK, attn_mask=bias_1MNN)  # softmax(q k / sqrt(K) + bias) v
        # flatten, not reshape: torch.export would turn reshape into a view that fits this kernel's memory layout alone.
        y_BWND = y_BMNK.view(b, w, self.heads, n, -1).transpose(2, 3).flatten(3)
        x_BWND = self.dropout(self.out(y_BWND))
        return x_BWND

    def bias_HNN(self) -> Tensor:
        """What is added to the logits of each two cells of a window."""
        n = self.index_NN.shape[0]
        return self.offset_bias[self.index_NN.flatten()].view(n, n, self.heads).permute(2, 0, 1)


class Block(nn.Module):
    """z' = WindowAttention(LN(z)) + z and MLP(LN(z')) + z'; every second block of a stage with shifted windows."""

    def __init__(self, config: SwinConfig, stage: int, number: int, drop: float) -> None:
        super().__init__()
        width = config.widths[stage]
        self.window = config.windows[stage]
        self.shifted = number % 2 == 1
        self.pad_first = config.pad_first
        self.norm1 = nn.LayerNorm(width, eps=config.norm_eps)
        self.attention = WindowAttention(config, stage)
        self.norm2 = nn.LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(width, width * config.mlp_ratio, gelu="exact", dropout=config.dropout)
        self.drop = drop

    def forward(self, z_BGJD: Tensor) -> Tensor:
        drop = self.drop if self.training else 0.0
        z_BGJD = z_BGJD + residual_branch(self._attended(self.norm1(z_BGJD)), None, drop)
        return z_BGJD + residual_branch(self.mlp(self.norm2(z_BGJD)), None, drop)

    def _attended(self, x_BGJD: Tensor) -> Tensor:
        _, g, j, _ = x_BGJD.shape
        down, across = self.window
        shift = shift_of((g, j), self.window) if self.shifted else (0, 0)
        back, whole = (-shift[0], -shift[1]), (0, 0, 0, -j % across, 0, -g % down)
        # The authors' detectors pad first; timm shifts first, so that cells of opposite edges see each other.
        x_BGJD = _rolled(F.pad(x_BGJD, whole), back) if self.pad_first else F.pad(_rolled(x_BGJD, back), whole)
        padded = (x_BGJD.shape[1], x_BGJD.shape[2])
        far_WNN = far_apart(padded, self.window, shift, x_BGJD.device) if any(shift) else None
        y_BWND = self.attention(windowed(x_BGJD, self.window), far_WNN)
        y_BGJD = unwindowed(y_BWND, self.window, padded)
        if self.pad_first:
            return _rolled(y_BGJD, shift)[:, :g, :j]
        return _rolled(y_BGJD[:, :g, :j], shift)


class Merge(nn.Module):
    """Four neighbours become one cell of twice the width; an odd edge is filled with zeros."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width, eps=eps)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, z_BGJD: Tensor) -> Tensor:
        _, g, j, _ = z_BGJD.shape
        z_BGJD = F.pad(z_BGJD, (0, 0, 0, j % 2, 0, g % 2))
        b, g, j, d = z_BGJD.shape
        # The authors put the four in the order upper left, lower left, upper right, lower right.
        four_BGJD = z_BGJD.view(b, g // 2, 2, j // 2, 2, d).permute(0, 1, 3, 4, 2, 5).flatten(3)
        merged_BGJD: Tensor = self.reduction(self.norm(four_BGJD))
        return merged_BGJD


class Stage(nn.Module):
    """Blocks; every stage but the first merges patches before them."""

    def __init__(self, config: SwinConfig, stage: int, drops: list[float]) -> None:
        super().__init__()
        self.merge = Merge(config.widths[stage - 1], config.norm_eps) if stage else None
        self.blocks = nn.ModuleList(Block(config, stage, number, drop) for number, drop in enumerate(drops))

    def forward(self, z_BGJD: Tensor) -> Tensor:
        if self.merge is not None:
            z_BGJD = self.merge(z_BGJD)
        for block in self.blocks:
            z_BGJD = block(z_BGJD)
        return z_BGJD


class Swin(Model):
    """Normalised images (B, C, H, W) of any size to logits (B, classes); `config.image_size` is the size it was built for."""

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.config: SwinConfig = config
        self.recompute = False
        self.patches = PatchEmbedding(config.channels, config.width, config.patch_size, pad=True)
        self.patch_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        drops = drop_path_rates(config.drop_path, config.depths)
        self.stages = nn.ModuleList(Stage(config, stage, rates) for stage, rates in enumerate(drops))
        self.norm = nn.LayerNorm(config.feature_width, eps=config.norm_eps)
        self.head: nn.Linear | None = nn.Linear(config.feature_width, config.num_classes) if config.num_classes else None

    def forward(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """Logits (B, classes) of normalised images; without a head (`num_classes` 0) the features."""
        y_BD = self.features(images_BCHW, record)
        return y_BD if self.head is None else self.head(y_BD)

    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        """What the head sees, (B, D): the mean over places of the last stage's cells, normalised."""
        if images_BCHW.ndim != 4:
            raise ConfigError(f"images are (batch, channels, height, width), not of shape {tuple(images_BCHW.shape)}")
        batch, channels, height, width = images_BCHW.shape
        if channels != self.config.channels:
            raise ConfigError(f"the images have {channels} channels and the model takes {self.config.channels}")
        if record is not None:
            record.refuse_attention("a Swin Transformer", "attends within windows, which are not recorded")
            record.start(len(self.stages))
        (g, j), *_ = self.config.grids_of((height, width))
        z_BGJD: Tensor = self.dropout(self.patch_norm(self.patches(images_BCHW).view(batch, g, j, -1)))
        for index, stage in enumerate(self.stages):
            again = self.recompute and torch.is_grad_enabled()
            z_BGJD = checkpoint(stage, z_BGJD, use_reentrant=False) if again else stage(z_BGJD)
            if record is not None:
                maps_BDGJ = z_BGJD.permute(0, 3, 1, 2)
                record.keep_maps(index, maps_BDGJ)
                z_BGJD = maps_BDGJ.permute(0, 2, 3, 1)  # the same values, computed from the maps: gradients reach them
        y_BD: Tensor = self.norm(z_BGJD).mean(dim=(1, 2))
        return y_BD


def init_swin(model: Swin, draw: Draw) -> None:
    """The authors' initial values: N(0, 0.02) cut at +-2; the patch embedding has torch's default."""
    for module in model.modules():
        match module:
            case WindowAttention():
                draw.trunc_normal(module.offset_bias, 0.02)
            case PatchEmbedding():
                assert module.bias is not None
                draw.torch_default(module.weight, module.bias)
            case nn.Linear():
                draw.trunc_normal(module.weight, 0.02)
                zero(module.bias)
            case nn.LayerNorm():
                init_norm(module)
            case _:
                pass
    init_head(model.head, model.config.head_bias)


def fit_windows(state: dict[str, Tensor], config: SwinConfig, target: SwinConfig) -> list[str]:
    """Fit a state dict in place to the windows of `target`, by resizing their tables of offset biases; a note for each change."""
    notes = []
    for stage, (old, new) in enumerate(zip(config.windows, target.windows, strict=True)):
        if old != new:
            for block in range(config.depths[stage]):
                key = f"stages.{stage}.blocks.{block}.attention.offset_bias"
                state[key] = resize_offsets(state[key], old, new)
            sizes = f"windows of {new[0]}x{new[1]} instead of {old[0]}x{old[1]} patches"
            notes.append(f"stage {stage}: {sizes}, their offset biases resized (bicubic)")
    return notes


def resize_offsets(table_OH: Tensor, window: Pair, other: Pair) -> Tensor:
    """A table of one bias for each offset and head, for another window: bicubic, as the authors of Swin load it."""
    down, across = 2 * window[0] - 1, 2 * window[1] - 1
    size = (2 * other[0] - 1, 2 * other[1] - 1)
    maps_1HGJ = table_OH.float().T.reshape(1, -1, down, across)
    resized_1HGJ = F.interpolate(maps_1HGJ, size, mode="bicubic", align_corners=False)
    return resized_1HGJ.reshape(table_OH.shape[1], -1).T.contiguous().to(table_OH.dtype)


def offset_index(window: Pair) -> Tensor:
    """For each two cells of a window the row of the bias table for their offset, (N, N), always on the CPU."""
    down, across = window
    with torch.device("cpu"):
        rows_N = torch.arange(down).repeat_interleave(across)
        columns_N = torch.arange(across).repeat(down)
    up_NN = rows_N[:, None] - rows_N[None] + down - 1
    aside_NN = columns_N[:, None] - columns_N[None] + across - 1
    return up_NN * (2 * across - 1) + aside_NN


def shift_of(grid: Pair, window: Pair) -> Pair:
    """Half a window along each axis that has more than one window."""
    return tuple(side // 2 if cells > side else 0 for cells, side in zip(grid, window, strict=True))  # type: ignore[return-value]


def far_apart(grid: Pair, window: Pair, shift: Pair, device: torch.device) -> Tensor:
    """(W, N, N): 0 if two cells of a window were neighbours before the map was rolled by `shift`, else FAR."""
    regions = []
    for cells, side, rolled in zip(grid, window, shift, strict=True):
        places = torch.arange(cells, device=device)
        regions.append((places >= cells - side).int() + (places >= cells - rolled).int() if rolled else torch.zeros_like(places))
    region_1GJ1 = (3 * regions[0][:, None] + regions[1][None])[None, :, :, None]
    region_WN = windowed(region_1GJ1, window)[0, :, :, 0]
    return torch.where(region_WN[:, :, None] == region_WN[:, None], 0.0, FAR)


def windowed(x_BGJD: Tensor, window: Pair) -> Tensor:
    """Cut a map into windows in reading order, and each window into cells in reading order: (B, W, N, D)."""
    b, g, j, d = x_BGJD.shape
    down, across = window
    x_BWND = x_BGJD.view(b, g // down, down, j // across, across, d).transpose(2, 3).reshape(b, -1, down * across, d)
    return x_BWND


def unwindowed(x_BWND: Tensor, window: Pair, grid: Pair) -> Tensor:
    """The inverse of `windowed`: (B, G, J, D)."""
    b, _, _, d = x_BWND.shape
    down, across = window
    x_BGJD = x_BWND.view(b, grid[0] // down, grid[1] // across, down, across, d).transpose(2, 3).reshape(b, *grid, d)
    return x_BGJD


def _rolled(x_BGJD: Tensor, shift: Pair) -> Tensor:
    return torch.roll(x_BGJD, shifts=shift, dims=(1, 2)) if any(shift) else x_BGJD


FAMILY = Family(
    model=Swin,
    initialise=init_swin,
    layers=(r"stages\.(\d+)\.blocks\.(\d+)\.", r"stages\.(\d+)\.merge\."),
    hidden=(r"stages\.\d+\.blocks\.\d+\.(?:attention|mlp)\.",),
    sharded=(Block,),
    refit=fit_windows,
)
