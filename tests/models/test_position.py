"""Positions and their interpolation, against scipy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from vitlab.config.vit import Position, PositionResize, ViTConfig
from vitlab.models.position import Positions, resize_grid, sincos, sincos_1d

GRIDS = [
    ((14, 14), (24, 24)),
    ((7, 7), (12, 12)),
    ((16, 16), (37, 37)),
    ((24, 24), (14, 14)),
    ((3, 7), (5, 4)),
    ((14, 14), (7, 28)),
]


@pytest.mark.parametrize(("grid", "to"), GRIDS)
def test_the_official_interpolation_is_scipy_zoom_of_order_one(grid: tuple[int, int], to: tuple[int, int]) -> None:
    table = torch.randn(1, grid[0] * grid[1], 6, generator=torch.Generator().manual_seed(0))
    zoom = (to[0] / grid[0], to[1] / grid[1], 1)
    expected = ndimage.zoom(table[0].view(*grid, 6).numpy().astype(np.float64), zoom, order=1)
    got = resize_grid(table, grid, to, "official")
    np.testing.assert_allclose(got[0].view(*to, 6).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("how", ["official", "bicubic"])
@pytest.mark.parametrize(("grid", "to"), GRIDS)
def test_constant_positions_stay_constant(grid: tuple[int, int], to: tuple[int, int], how: PositionResize) -> None:
    table = torch.full((2, grid[0] * grid[1], 3), 0.7)
    torch.testing.assert_close(resize_grid(table, grid, to, how), torch.full((2, to[0] * to[1], 3), 0.7))


@pytest.mark.parametrize("how", ["official", "bicubic"])
def test_turning_the_grid_and_interpolating_commute(how: PositionResize) -> None:
    table = torch.randn(1, 15, 4)
    turned = table.view(1, 3, 5, 4).transpose(1, 2).reshape(1, 15, 4)
    upright = resize_grid(table, (3, 5), (6, 8), how).view(6, 8, 4)
    torch.testing.assert_close(resize_grid(turned, (5, 3), (8, 6), how).view(8, 6, 4), upright.transpose(0, 1))


def test_the_same_number_of_tokens_in_another_shape_is_another_table() -> None:
    table = torch.randn(1, 196, 4)
    assert not torch.allclose(resize_grid(table, (14, 14), (7, 28), "official"), table, atol=0.1)


def test_waves_of_place_depend_on_row_in_one_half_and_column_in_the_other() -> None:
    waves = sincos((3, 4), 16)[0].view(3, 4, 16)
    assert torch.equal(waves[0, :, :8], waves[2, :, :8])
    assert torch.equal(waves[:, 0, 8:], waves[:, 3, 8:])
    torch.testing.assert_close(waves[1, 2, 0], torch.tensor(2.0).sin())
    torch.testing.assert_close(waves[1, 2, 8], torch.tensor(1.0).sin())
    torch.testing.assert_close(waves.square().sum(-1), torch.full((3, 4), 8.0))


def test_one_dimensional_waves_are_those_of_the_place_in_reading_order() -> None:
    grid, width = (3, 5), 8
    waves_ND = sincos_1d(grid, width)[0]
    for row, column, i in ((0, 0, 0), (0, 4, 1), (1, 0, 0), (2, 3, 3)):
        angle = (row * grid[1] + column) / 10_000 ** (2 * i / width)
        assert float(waves_ND[row * grid[1] + column, i]) == pytest.approx(math.sin(angle), abs=1e-6)
        assert float(waves_ND[row * grid[1] + column, width // 2 + i]) == pytest.approx(math.cos(angle), abs=1e-6)


def test_fixed_waves_are_computed_anew_on_another_grid() -> None:
    for kind, waves in (("sincos-1d", sincos_1d), ("sincos-2d", sincos)):
        size = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "patch_size": (8, 8), "image_size": (32, 32)}
        positions = Positions(ViTConfig(**size, position=Position(kind=kind)))  # type: ignore[arg-type]
        assert not list(positions.parameters())
        for grid in ((4, 4), (2, 7)):
            added_1ND = positions.added(0, grid)
            assert added_1ND is not None
            assert torch.equal(added_1ND[:, 1:], waves(grid, 16))
            assert not added_1ND[:, :1].any()
