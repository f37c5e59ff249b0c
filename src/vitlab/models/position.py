"""Position embeddings: the kinds of Table 8, and their interpolation to another grid.

Axes: L tables (one, or one a layer), P prefix tokens, N patches = G x J down and across, D width, M = 2 N - 1 offsets.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.vit import PositionResize, ViTConfig
from vitlab.errors import ConfigError

Grid = tuple[int, int]


class Positions(nn.Module):
    """The position embeddings of a ViT; their parameters depend on `config.position`."""

    table: nn.Parameter
    rows: nn.Parameter
    columns: nn.Parameter
    prefix: nn.Parameter
    offsets: nn.Parameter
    waves: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.kind, self.place = config.position.kind, config.position.place
        self.grid, self.resize = config.grid, config.numerics.resize
        self.prefix_tokens = config.prefix_tokens
        self.prefix_placed = config.position.prefix
        tables = config.layers if self.place == "every" else 1
        placed = self.prefix_tokens if self.prefix_placed else 0
        g, j = self.grid
        width = config.width
        if self.kind == "learned-1d":
            self.table = nn.Parameter(torch.empty(tables, placed + g * j, width))
        elif self.kind == "learned-2d":
            self.rows = nn.Parameter(torch.empty(tables, g, width // 2))
            self.columns = nn.Parameter(torch.empty(tables, j, width // 2))
            if placed:
                self.prefix = nn.Parameter(torch.empty(tables, placed, width))
        elif self.kind == "relative":
            self.offsets = nn.Parameter(torch.empty(tables, 2 * g * j - 1, width))
        elif self.kind == "sincos-2d":
            self.register_buffer("waves", sincos(self.grid, width), persistent=False)

    def added(self, layer: int, grid: Grid) -> Tensor | None:
        """E_pos of equation 1, (1, P + N, D): what is added to the tokens that enter this layer, or None."""
        if self.kind in ("none", "relative") or (self.place == "stem" and layer > 0):
            return None
        which = layer if self.place == "every" else 0
        if self.kind == "learned-1d":
            return self._padded(self._fitted(self.table[which : which + 1], grid))
        if self.kind == "learned-2d":
            return self._two_halves(which, grid)
        waves = self.waves if grid == self.grid else sincos(grid, self.waves.shape[-1]).to(self.waves)
        return self._padded(waves)

    def offset_keys(self, layer: int, grid: Grid) -> Tensor | None:
        """Embeddings of the offsets -(N-1) .. N-1 between two patches in reading order, (M, D), or None."""
        if self.kind != "relative" or (self.place == "stem" and layer > 0):
            return None
        if grid != self.grid:
            raise ConfigError(f"relative positions of a {self.grid[0]}x{self.grid[1]} grid have no meaning on {grid[0]}x{grid[1]}")
        return self.offsets[layer if self.place == "every" else 0]

    def _fitted(self, table_LND: Tensor, grid: Grid) -> Tensor:
        if grid == self.grid:
            return table_LND
        placed = table_LND.shape[1] - self.grid[0] * self.grid[1]
        patches_LND = resize_grid(table_LND[:, placed:], self.grid, grid, self.resize)
        return torch.cat([table_LND[:, :placed], patches_LND], dim=1)

    def _two_halves(self, which: int, grid: Grid) -> Tensor:
        rows_1GD, columns_1JD = self.rows[which : which + 1], self.columns[which : which + 1]
        if grid != self.grid:
            rows_1GD = resize_grid(rows_1GD, (self.grid[0], 1), (grid[0], 1), self.resize)
            columns_1JD = resize_grid(columns_1JD, (1, self.grid[1]), (1, grid[1]), self.resize)
        g, j = grid
        halves = rows_1GD[:, :, None].expand(-1, g, j, -1), columns_1JD[:, None].expand(-1, g, j, -1)
        table_1ND = torch.cat(halves, dim=-1).flatten(1, 2)
        if self.prefix_placed and self.prefix_tokens:
            return torch.cat([self.prefix[which : which + 1], table_1ND], dim=1)
        return self._padded(table_1ND)

    def _padded(self, table_1ND: Tensor) -> Tensor:
        """Zeros for prefix tokens that have no position of their own."""
        placed_already = self.prefix_placed and self.kind == "learned-1d"
        return table_1ND if placed_already else F.pad(table_1ND, (0, 0, self.prefix_tokens, 0))


def sincos(grid: Grid, width: int, temperature: float = 10_000.0) -> Tensor:
    """Fixed waves of column and row at width/4 frequencies, (1, N, D), on the CPU: sine and cosine of each."""
    frequency_D = temperature ** -(torch.arange(width // 4, dtype=torch.float64, device="cpu") / max(width // 4 - 1, 1))
    y_N = torch.arange(grid[0], dtype=torch.float64, device="cpu").repeat_interleave(grid[1])
    x_N = torch.arange(grid[1], dtype=torch.float64, device="cpu").repeat(grid[0])
    x_ND, y_ND = x_N[:, None] * frequency_D, y_N[:, None] * frequency_D
    return torch.cat([x_ND.sin(), x_ND.cos(), y_ND.sin(), y_ND.cos()], dim=1)[None].float()


def resize_grid(table_LND: Tensor, grid: Grid, to: Grid, how: PositionResize) -> Tensor:
    """Positions of a grid interpolated to another (section 3.2), for any two grids, square or not.

    `official` is bilinear with the corners kept in place, which is what the authors' scipy.ndimage.zoom of order 1 computes;
    `bicubic` is timm's: antialiased, corners not aligned.
    """
    image_LDGJ = table_LND.double().view(-1, *grid, table_LND.shape[-1]).permute(0, 3, 1, 2)
    if how == "official":
        image_LDGJ = F.interpolate(image_LDGJ, to, mode="bilinear", align_corners=True)
    else:
        image_LDGJ = F.interpolate(image_LDGJ, to, mode="bicubic", align_corners=False, antialias=True)
    return image_LDGJ.permute(0, 2, 3, 1).flatten(1, 2).to(table_LND.dtype)
