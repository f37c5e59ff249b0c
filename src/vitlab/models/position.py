"""Positions: the kinds of Table 8, rotary positions and relative biases inside attention, and their fit to another grid.

Axes: L tables (one, or one a layer), P prefix tokens, N patches = G x J down and across (in attention: tokens), D width,
M = 2 N - 1 offsets in reading order, H heads, K width of a head, O = (2 G - 1) (2 J - 1) offsets down and across.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.vit import PositionResize, ViTConfig
from vitlab.config.vit_parts import Rotary
from vitlab.errors import ConfigError
from vitlab.models.model import Draw

Grid = tuple[int, int]


class Positions(nn.Module):
    """The positions of a ViT; their parameters depend on `config.position`."""

    table: nn.Parameter
    rows: nn.Parameter
    columns: nn.Parameter
    prefix: nn.Parameter
    offsets: nn.Parameter
    frequencies: nn.Parameter
    shared_bias: nn.Parameter
    waves: Tensor
    turn_2NK: Tensor
    offset_NN: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.kind, self.place = config.position.kind, config.position.place
        self.image_grid, self.resize = config.grid, config.numerics.resize
        self.grid = config.position.grid or config.grid
        self.prefix_tokens = config.prefix_tokens
        self.prefix_placed = config.position.prefix
        self.unplaced = 0 if config.position.registers else config.register_tokens
        self.rotary, self.bias_form = config.position.rotary, config.position.bias
        self.shares_bias = self.bias_form is not None and self.bias_form.shared
        tables, placed = config.layers if self.place == "every" else 1, config.placed_tokens
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
        elif self.kind in ("sincos-1d", "sincos-2d"):
            self.register_buffer("waves", self._waves(self.grid, width), persistent=False)
        self._make_rotary(config)
        self._make_bias(config)

    def _make_rotary(self, config: ViTConfig) -> None:
        if self.rotary is None:
            return
        width = config.width // config.heads
        if self.rotary.kind == "mixed":
            self.frequencies = nn.Parameter(torch.empty(2, config.depth, config.heads, width // 2))
        else:
            angles_NK = rotary_angles(self.rotary, self.image_grid, width)
            self.register_buffer("turn_2NK", cos_and_sin(angles_NK, self.prefix_tokens), persistent=False)

    def _make_bias(self, config: ViTConfig) -> None:
        form = self.bias_form
        if form is None:
            return
        self.register_buffer("offset_NN", offset_numbers(self.image_grid), persistent=False)
        layers = 1 if form.shared else config.depth
        if form.kind == "mlp":
            self.bias_mlps = nn.ModuleList(BiasMlp(form.hidden, config.heads) for _ in range(layers))
            return
        g, j = self.image_grid
        tables = [nn.Parameter(torch.empty((2 * g - 1) * (2 * j - 1) + 3, config.heads)) for _ in range(layers)]
        if form.shared:
            self.shared_bias = tables[0]
        else:
            self.bias = nn.ParameterList(tables)

    def added(self, layer: int, grid: Grid) -> Tensor | None:
        """E_pos of equation 1, (1, P + N, D): what is added to the tokens that enter this layer, or None."""
        if self.kind in ("none", "relative") or (self.place == "stem" and layer > 0):
            return None
        which = layer if self.place == "every" else 0
        if self.kind == "learned-1d":
            return self._padded(self._fitted(self.table[which : which + 1], grid))
        if self.kind == "learned-2d":
            return self._two_halves(which, grid)
        waves = self.waves if grid == self.grid else self._waves(grid, self.waves.shape[-1]).to(self.waves)
        return self._padded(waves)

    def offset_keys(self, layer: int, grid: Grid) -> Tensor | None:
        """Embeddings of the offsets -(N-1) .. N-1 between two patches in reading order, (M, D), or None."""
        if self.kind != "relative" or (self.place == "stem" and layer > 0):
            return None
        if grid != self.grid:
            raise ConfigError(f"relative positions of a {self.grid[0]}x{self.grid[1]} grid have no meaning on {grid[0]}x{grid[1]}")
        return self.offsets[layer if self.place == "every" else 0]

    def rotation(self, layer: int, grid: Grid) -> Rotation | None:
        """How this layer turns queries and keys, or None."""
        if self.rotary is None:
            return None
        if self.rotary.kind == "mixed":
            turn_2NK = cos_and_sin(mixed_angles(self.frequencies[:, layer], grid), self.prefix_tokens)
        elif grid == self.image_grid:
            turn_2NK = self.turn_2NK
        else:
            angles_NK = rotary_angles(self.rotary, grid, self.turn_2NK.shape[-1])
            turn_2NK = cos_and_sin(angles_NK, self.prefix_tokens).to(self.turn_2NK)
        return Rotation(cos_NK=turn_2NK[0], sin_NK=turn_2NK[1], halves=self.rotary.kind == "centred")

    def attention_bias(self, layer: int, grid: Grid) -> Tensor | None:
        """What this layer adds to its attention logits, (1, H, P + N, P + N), or None."""
        form = self.bias_form
        if form is None:
            return None
        offset_NN = self.offset_NN if grid == self.image_grid else offset_numbers(grid).to(self.offset_NN.device)
        which = 0 if form.shared else layer
        if form.kind == "mlp":
            bias_NNH = self.bias_mlps[which](grid)[offset_NN]
            return F.pad(bias_NNH.permute(2, 0, 1), (self.prefix_tokens, 0, self.prefix_tokens, 0))[None]
        table_OH = self.shared_bias if form.shared else self.bias[which]
        if grid != self.image_grid:
            table_OH = resize_bias(table_OH, self.image_grid, grid)
        return biased_by_table(table_OH, offset_NN)

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

    def _waves(self, grid: Grid, width: int) -> Tensor:
        return sincos(grid, width) if self.kind == "sincos-2d" else sincos_1d(grid, width)

    def _padded(self, table_1ND: Tensor) -> Tensor:
        """Zeros for prefix tokens that have no position of their own."""
        if not (self.prefix_placed and self.kind == "learned-1d"):
            return F.pad(table_1ND, (0, 0, self.prefix_tokens, 0))
        if not self.unplaced:
            return table_1ND
        placed = self.prefix_tokens - self.unplaced  # registers stand between the other prefix tokens and the patches
        return torch.cat([table_1ND[:, :placed], F.pad(table_1ND[:, placed:], (0, 0, self.unplaced, 0))], dim=1)


def sincos(grid: Grid, width: int, temperature: float = 10_000.0) -> Tensor:
    """Fixed waves of column and row at width/4 frequencies, (1, N, D), on the CPU: sine and cosine of each."""
    frequency_D = temperature ** -(torch.arange(width // 4, dtype=torch.float64, device="cpu") / max(width // 4 - 1, 1))
    y_N, x_N = rows_and_columns(grid)
    x_ND, y_ND = x_N[:, None] * frequency_D, y_N[:, None] * frequency_D
    return torch.cat([x_ND.sin(), x_ND.cos(), y_ND.sin(), y_ND.cos()], dim=1)[None].float()


def sincos_1d(grid: Grid, width: int, temperature: float = 10_000.0) -> Tensor:
    """Fixed waves of the place in reading order at width/2 frequencies (Vaswani et al. 2017), (1, N, D), on the CPU."""
    frequency_D = temperature ** -(torch.arange(width // 2, dtype=torch.float64, device="cpu") / (width // 2))
    angle_ND = torch.arange(grid[0] * grid[1], dtype=torch.float64, device="cpu")[:, None] * frequency_D
    return torch.cat([angle_ND.sin(), angle_ND.cos()], dim=1)[None].float()


def rows_and_columns(grid: Grid) -> tuple[Tensor, Tensor]:
    """The row and the column of each patch in reading order, (N,) of float64, on the CPU."""
    y_N = torch.arange(grid[0], dtype=torch.float64, device="cpu").repeat_interleave(grid[1])
    x_N = torch.arange(grid[1], dtype=torch.float64, device="cpu").repeat(grid[0])
    return y_N, x_N


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rotation:
    """Cosines and sines, (N, K) or (H, N, K), by which queries and keys are turned; those of prefix tokens are 1 and 0.

    A pair of values is turned by an angle: two neighbours, or with `halves` one of the first half and one of the second.
    """

    cos_NK: Tensor
    sin_NK: Tensor
    halves: bool

    def __call__(self, x_BHNK: Tensor) -> Tensor:
        """Queries or keys of all tokens, turned."""
        if self.halves:
            first, second = x_BHNK.chunk(2, dim=-1)
            quarter_BHNK = torch.cat([-second, first], dim=-1)
        else:
            quarter_BHNK = torch.stack([-x_BHNK[..., 1::2], x_BHNK[..., ::2]], dim=-1).flatten(-2)
        return x_BHNK * self.cos_NK.to(x_BHNK.dtype) + quarter_BHNK * self.sin_NK.to(x_BHNK.dtype)


def cos_and_sin(angles_NK: Tensor, prefix: int) -> Tensor:
    """Cosines and sines of these angles, with those of `prefix` tokens before them that are not turned, (2, P + N, K)."""
    angles_NK = F.pad(angles_NK, (0, 0, prefix, 0))
    return torch.stack([angles_NK.cos(), angles_NK.sin()])


def rotary_angles(rotary: Rotary, grid: Grid, width: int) -> Tensor:
    """The angle by which each value of a head is turned at each patch, (N, K), on the CPU; for axial and centred ones."""
    y_N, x_N = rows_and_columns(grid)
    if rotary.kind == "centred":
        y_N, x_N = (2 * math.pi * (2 * (place_N + 0.5) / side - 1) for place_N, side in ((y_N, grid[0]), (x_N, grid[1])))
    else:
        reference = rotary.reference or grid
        y_N, x_N = (
            (place_N + rotary.offset) * (wanted / side)
            for place_N, side, wanted in ((y_N, grid[0], reference[0]), (x_N, grid[1], reference[1]))
        )
    bands = rotary.temperature ** -(torch.arange(width // 4, dtype=torch.float64, device="cpu") / (width // 4))
    halves = (x_N, y_N) if rotary.columns_first else (y_N, x_N)
    angles_NK = torch.cat([place_N[:, None] * bands for place_N in halves], dim=1)  # one for each pair
    spread_NK = angles_NK.repeat(1, 2) if rotary.kind == "centred" else angles_NK.repeat_interleave(2, dim=1)
    return spread_NK.float()


def mixed_angles(frequencies_2HK: Tensor, grid: Grid) -> Tensor:
    """The same for one layer's learned frequencies of column and row, one for each pair of a head: (H, N, K)."""
    y_N, x_N = (place_N.to(frequencies_2HK) for place_N in rows_and_columns(grid))
    across_HK, down_HK = frequencies_2HK.unbind(0)
    angles_HNK = x_N[:, None] * across_HK[:, None] + y_N[:, None] * down_HK[:, None]
    return angles_HNK.repeat_interleave(2, dim=-1)


def init_frequencies(frequencies_2LHK: nn.Parameter, positions: Positions, draw: Draw) -> None:
    """Initial frequencies of mixed rotary positions: those of axial ones, with both axes turned by a random angle for each head."""
    assert positions.rotary is not None
    _, layers, heads, pairs = frequencies_2LHK.shape
    steps = torch.arange(pairs // 2, dtype=torch.float32, device="cpu") / (pairs // 2)
    size_K = positions.rotary.temperature**-steps
    angle_LH1 = torch.empty(layers, heads, 1, device="cpu")
    draw.uniform(angle_LH1, math.pi)
    for axis, wave in enumerate((torch.cos, torch.sin)):
        frequencies_2LHK[axis] = torch.cat([size_K * wave(angle_LH1), size_K * wave(angle_LH1 + math.pi / 2)], dim=-1)


def offset_numbers(grid: Grid) -> Tensor:
    """For each two patches the number of their offset in a table of (2 G - 1) x (2 J - 1), (N, N), on the CPU."""
    place_N = torch.arange(grid[0] * grid[1], device="cpu")
    row_N, column_N = place_N // grid[1], place_N % grid[1]
    down_NN, across_NN = row_N[:, None] - row_N + grid[0] - 1, column_N[:, None] - column_N + grid[1] - 1
    return down_NN * (2 * grid[1] - 1) + across_NN


def biased_by_table(table_OH: Tensor, offset_NN: Tensor) -> Tensor:
    """BEiT's bias, (1, H, 1 + N, 1 + N): the table's last rows are from the class token, to it, and from it to itself."""
    n = offset_NN.shape[0]
    from_class_H, to_class_H, itself_H = table_OH[-3:].unbind(0)
    bias_HNN = table_OH[offset_NN].permute(2, 0, 1)
    left_HN1 = to_class_H[:, None, None].expand(-1, n, 1)
    top_H1N = torch.cat([itself_H[:, None, None], from_class_H[:, None, None].expand(-1, 1, n)], dim=2)
    return torch.cat([top_H1N, torch.cat([left_HN1, bias_HNN], dim=2)], dim=1)[None]


class BiasMlp(nn.Module):
    """A head's bias for each offset down and across, from sign(d) log(1 + |d|) of both, by an MLP: (O, H) for any grid."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.up = nn.Linear(2, hidden)
        self.down = nn.Linear(hidden, heads)

    def forward(self, grid: Grid) -> Tensor:
        sides = (torch.arange(-(side - 1), side, dtype=torch.float64, device="cpu") for side in grid)
        down, across = (offsets.sign() * offsets.abs().log1p() for offsets in sides)
        pairs_O2: Tensor = torch.stack(torch.meshgrid(down, across, indexing="ij"), dim=-1).flatten(0, 1).to(self.up.weight)
        bias_OH: Tensor = self.down(F.relu(self.up(pairs_O2)))
        return bias_OH


def resize_grid(table_LND: Tensor, grid: Grid, to: Grid, how: PositionResize) -> Tensor:
    """Positions of a grid interpolated to another (section 3.2), for any two grids, square or not.

    `official` is bilinear with the corners kept in place, which is what the authors' scipy.ndimage.zoom of order 1 computes;
    `bicubic` is timm's: antialiased, corners not aligned. `bilinear` is the same with another kernel, `bicubic-plain` without
    antialiasing.
    """
    image_LDGJ = table_LND.double().view(-1, *grid, table_LND.shape[-1]).permute(0, 3, 1, 2)
    if how == "official":
        image_LDGJ = F.interpolate(image_LDGJ, to, mode="bilinear", align_corners=True)
    elif how == "bicubic-plain":
        image_LDGJ = F.interpolate(image_LDGJ, to, mode="bicubic", align_corners=False)
    else:
        image_LDGJ = F.interpolate(image_LDGJ, to, mode=how, align_corners=False, antialias=True)
    return image_LDGJ.permute(0, 2, 3, 1).flatten(1, 2).to(table_LND.dtype)


def resize_bias(table_OH: Tensor, grid: Grid, to: Grid) -> Tensor:
    """A table of relative biases for another grid, as BEiT's authors fit it; the class token's three rows stay.

    The old offsets are taken to stand at distances that grow geometrically and reach the new grid's edge, so that near offsets keep
    their biases; between them goes a cubic spline.
    """
    sides = [(2 * old - 1, 2 * new - 1) for old, new in zip(grid, to, strict=True)]
    down, across = (_spline_matrix(_geometric(old, new), new).to(table_OH.device) for old, new in sides)
    image_HGJ = table_OH[:-3].T.double().reshape(-1, sides[0][0], sides[1][0])
    resized_HGJ: Tensor = down @ image_HGJ @ across.T
    return torch.cat([resized_HGJ.flatten(1).T.to(table_OH.dtype), table_OH[-3:]])


def _geometric(old: int, new: int) -> Tensor:
    """Where the old offsets stand: 0, +-1, +-(1 + q), +-(1 + q + q^2), ..., with q such that the last reaches the new edge."""
    low, high, count = 1.01, 1.5, old // 2
    while high - low > 1e-6:
        ratio = (low + high) / 2
        if (1 - ratio**count) / (1 - ratio) > new // 2:
            high = ratio
        else:
            low = ratio
    steps = torch.cumsum(ratio ** torch.arange(count, dtype=torch.float64, device="cpu"), 0)
    return torch.cat([-steps.flip(0), torch.zeros(1, dtype=torch.float64, device="cpu"), steps])


def _spline_matrix(places_O: Tensor, new: int) -> Tensor:
    """The values at offsets -(new // 2) .. new // 2 of the cubic spline through values at `places_O`, as a matrix (new, O).

    The spline has a continuous third derivative at the second and the last but one place (not-a-knot), and is constant outside.
    Fewer than four places are joined by lines.
    """
    count = len(places_O)
    wanted = torch.arange(-(new // 2), new // 2 + 1, dtype=torch.float64, device="cpu").clamp(places_O[0], places_O[-1])
    if count == 1:
        return torch.ones(new, 1, dtype=torch.float64, device="cpu")
    left = (torch.searchsorted(places_O, wanted, right=True) - 1).clamp(0, count - 2)
    step = places_O.diff()
    eye = torch.eye(count, dtype=torch.float64, device="cpu")
    t = ((wanted - places_O[left]) / step[left])[:, None]
    lines = (1 - t) * eye[left] + t * eye[left + 1]
    if count < 4:
        return lines
    equations = torch.zeros(count, count, dtype=torch.float64, device="cpu")  # of the second derivatives at the places
    slopes = torch.zeros(count, count, dtype=torch.float64, device="cpu")
    for i in range(1, count - 1):
        equations[i, i - 1 : i + 2] = torch.stack([step[i - 1], 2 * (step[i - 1] + step[i]), step[i]])
        slopes[i] = 6 * ((eye[i + 1] - eye[i]) / step[i] - (eye[i] - eye[i - 1]) / step[i - 1])
    equations[0, :3] = torch.stack([step[1], -(step[0] + step[1]), step[0]])
    equations[-1, -3:] = torch.stack([step[-1], -(step[-2] + step[-1]), step[-2]])
    bend = torch.linalg.solve(equations, slopes)
    h = step[left][:, None]
    curve: Tensor = ((1 - t) ** 3 - (1 - t)) * bend[left] + (t**3 - t) * bend[left + 1]
    return lines + curve * h**2 / 6
