"""Rollout and attention distance, against matrices of which the answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.interpretation.small import VITS, Dense, images, vit_of
from vitlab.interpretation.attention import apart, attention_distance, distance, pool_reads, roll, rollout
from vitlab.models import Record

each = pytest.mark.parametrize("name", VITS)


def random_attention(tokens: int, seed: int, heads: int = 2) -> torch.Tensor:
    return torch.randn(1, heads, tokens, tokens, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_the_rollout_of_identity_attention_is_the_identity() -> None:
    eye_BHNN = torch.eye(70).expand(1, 3, 70, 70)
    assert torch.equal(roll(torch.eye(70)[None], [Dense(eye_BHNN)] * 4), torch.eye(70)[None])


def test_rolling_rows_is_multiplying_the_matrices_with_the_identity_added_and_rows_of_sum_one() -> None:
    layers = [random_attention(70, seed) for seed in range(3)]
    whole = torch.eye(70)
    for attention_BHNN in layers:
        with_residual = attention_BHNN[0].mean(0) + torch.eye(70)
        whole = with_residual / with_residual.sum(-1, keepdim=True) @ whole
    torch.testing.assert_close(roll(torch.eye(70)[None], [Dense(layer) for layer in layers])[0], whole, atol=1e-6, rtol=0)


def test_without_renormalising_the_map_is_the_same_times_two_a_layer() -> None:
    layers = [random_attention(9, seed) for seed in range(3)]
    summed = torch.eye(9)
    for attention_BHNN in layers:
        summed = (attention_BHNN[0].mean(0) + torch.eye(9)) @ summed
    torch.testing.assert_close(roll(torch.eye(9)[None], [Dense(layer) for layer in layers])[0] * 2**3, summed)


@each
def test_the_rollout_of_a_model_is_that_of_its_recorded_attention(name: str) -> None:
    model, record = vit_of(name), Record()
    images_BCHW = images(model.config)
    with torch.inference_mode():
        z_BND = model.encode_images(images_BCHW, record)
        row_B1N = pool_reads(model, z_BND)
        for attention_BHNN in reversed(record.attention_BHNN):
            row_B1N = (row_B1N + row_B1N @ attention_BHNN.mean(1)) / 2
    expected = row_B1N[:, 0, model.config.prefix_tokens :].reshape(2, *model.config.grid)
    np.testing.assert_allclose(rollout(model, images_BCHW), expected, atol=1e-6)


@each
def test_what_the_pool_reads_and_what_patches_get_are_shares_of_one(name: str) -> None:
    model = vit_of(name)
    images_BCHW = images(model.config)
    with torch.inference_mode():
        torch.testing.assert_close(pool_reads(model, model.encode_images(images_BCHW)).sum(-1), torch.ones(2, 1))
    shares = rollout(model, images_BCHW).sum((1, 2))
    assert (shares > 0).all()
    assert (shares <= 1 + 1e-5).all()


def test_the_rollout_of_an_image_does_not_depend_on_its_company() -> None:
    model = vit_of("token")
    images_BCHW = images(model.config, 5)
    np.testing.assert_allclose(rollout(model, images_BCHW)[3:4], rollout(model, images_BCHW[3:4]), atol=1e-6)


@pytest.mark.parametrize(
    ("grid", "step", "prefix"), [((4, 4), (8, 8), 1), ((3, 5), (16, 8), 2), ((1, 1), (16, 16), 0), ((9, 9), (4, 4), 0)]
)
def test_the_distance_of_uniform_attention_is_the_mean_distance_of_two_patches(
    grid: tuple[int, int], step: tuple[int, int], prefix: int
) -> None:
    places = [(row * step[0], column * step[1]) for row in range(grid[0]) for column in range(grid[1])]
    total = sum(math.dist(here, there) for here in places for there in places)
    tokens = prefix + len(places)
    uniform = Dense(torch.full((2, 3, tokens, tokens), 1 / tokens))
    expected = total / len(places) / tokens  # prefix tokens take their share, and it is not given back
    torch.testing.assert_close(
        distance(uniform, grid, step, prefix), torch.full((2, 3), expected, dtype=torch.float64), rtol=1e-5, atol=0
    )


def test_on_a_line_the_distance_of_uniform_attention_has_its_closed_form() -> None:
    n = 30  # the mean of |i - j| over n x n is (n^2 - 1) / 3n
    uniform = Dense(torch.full((1, 1, n, n), 1 / n))
    assert distance(uniform, (1, n), (16, 16), 0).item() == pytest.approx(16 * (n**2 - 1) / (3 * n), rel=1e-6)


def test_attention_to_oneself_is_no_distance_and_to_the_neighbour_one_step() -> None:
    assert distance(Dense(torch.eye(26).expand(1, 2, 26, 26)), (5, 5), (16, 16), 1).tolist() == [[0, 0]]
    shifted = torch.zeros(1, 1, 7, 7)
    shifted[0, 0, range(6), range(1, 7)] = 1
    assert distance(Dense(shifted), (1, 7), (16, 12), 0).item() == pytest.approx(12 * 6 / 7)


@each
def test_the_distance_of_a_model_is_that_of_its_recorded_attention(name: str) -> None:
    model, record = vit_of(name), Record()
    images_BCHW = images(model.config, 3)
    with torch.inference_mode():
        model.encode_images(images_BCHW, record)
    prefix, grid = model.config.prefix_tokens, model.config.grid
    far_NN = apart(torch.arange(grid[0] * grid[1]), grid, model.config.step)
    direct = [(seen[:, :, prefix:, prefix:] * far_NN).sum(-1).mean((0, 2)) for seen in record.attention_BHNN]
    found = attention_distance(model, images_BCHW)
    assert found.shape == (model.config.layers, model.config.heads)
    np.testing.assert_allclose(found, torch.stack(direct), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(attention_distance(model, images_BCHW, layers=[-1]), found[-1:], rtol=1e-6)


def test_local_attention_looks_no_further_than_its_window() -> None:
    near = attention_distance(vit_of("local"), images(VITS["local"]))
    assert near.max() <= 8 * math.sqrt(2)
