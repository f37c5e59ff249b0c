"""Attention filters values, and a feature depends on the pixels that its layers can reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from vitlab.config.model import variant
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.interpretation.attention import filtered_values
from vitlab.interpretation.features import field_distance, receptive_fields
from vitlab.models import Record, build
from vitlab.models.vit import ViT

MINI = ViTConfig(width=24, depth=2, heads=3, mlp_width=48, patch_size=(8, 8), image_size=(32, 40), num_classes=3)
RESNET = ResNetConfig(blocks=(1, 1), stage_widths=(128, 256), root_width=32, image_size=(64, 64), num_classes=3)


def images(size: tuple[int, int], count: int = 2) -> Tensor:
    return torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(1)) - 0.5


def test_filtered_values_are_the_attention_matrix_times_the_values() -> None:
    model = build(MINI, seed=0)
    assert isinstance(model, ViT)
    found = filtered_values(model, images((32, 40)), (1, 2), layer=1)
    record = Record(layers=[1])
    model.eval()
    with torch.no_grad():
        model.encode_images(images((32, 40)), record)
    (a_BHNN,) = record.attention_BHNN
    torch.testing.assert_close(found.filter_BHGJ.flatten(2), a_BHNN[:, :, 1 + 1 * 5 + 2, 1:])
    # The class token's value is not among those returned: it is what A v lacks without it, and the same for every patch.
    v_BHNK, mixed_BHNK = found.values_BHGJK.flatten(2, 3), found.filtered_BHGJK.flatten(2, 3)
    rest_BHNK = (mixed_BHNK - a_BHNN[:, :, 1:, 1:] @ v_BHNK) / a_BHNN[:, :, 1:, :1]
    torch.testing.assert_close(rest_BHNK, rest_BHNK[:, :, :1].expand_as(rest_BHNK), atol=2e-4, rtol=1e-3)


def test_a_convolution_depends_on_a_spot_and_a_patch_of_a_vit_on_the_whole_image() -> None:
    stages, spots_LHW = receptive_fields(build(RESNET, seed=0), images((64, 64)))
    layers, wide_LHW = receptive_fields(build(replace(MINI, image_size=(64, 64)), seed=0), images((64, 64)))
    assert (stages, layers) == ([0, 1], [0, 1])
    for field_HW in (*spots_LHW, *wide_LHW):
        assert field_HW.sum() == pytest.approx(1, abs=1e-4)
    assert (wide_LHW[0] > 0).all()
    assert field_distance(spots_LHW[0], (16, 16)) < field_distance(wide_LHW[0], (8, 8))


def test_a_patch_with_local_attention_sees_its_neighbours_and_nothing_else() -> None:
    config = variant("ViT-Mini/8", image_size=64)
    assert isinstance(config, ViTConfig)
    local = replace(config, attention="local", window=3, class_token=False, pool="mean")
    _, (field_HW, *_) = receptive_fields(build(local, seed=0), images((64, 64))[:, : local.channels])
    middle, rows = 64 // 8 // 2, np.nonzero(field_HW.sum(1))[0]
    assert (rows.min(), rows.max()) == ((middle - 1) * 8, (middle + 2) * 8 - 1)  # its own patch and the neighbours


def test_an_lstm_depends_on_nothing_that_it_has_not_read_yet() -> None:
    config = RecurrentConfig(cell="lstm", width=16, depth=1, patch_size=(8, 8), image_size=(32, 32), num_classes=2)
    _, (field_HW,) = receptive_fields(build(config, seed=0), images((32, 32)))
    assert field_HW[24:].sum() == 0  # below the row of the middle patch
    assert field_HW[16:24, 24:].sum() == 0  # to its right
    assert field_HW[:16].min() > 0


def test_a_chosen_layer_is_one_of_all() -> None:
    model = build(MINI, seed=0)
    _, all_LHW = receptive_fields(model, images((32, 40)))
    (chosen,), last_LHW = receptive_fields(model, images((32, 40)), layers=[-1])
    assert chosen == 1
    np.testing.assert_allclose(last_LHW[0], all_LHW[1], rtol=1e-5)
    with pytest.raises(ConfigError, match="no layer 7"):
        receptive_fields(model, images((32, 40)), layers=[7])
    with pytest.raises(ConfigError, match="own models"):
        receptive_fields(torch.nn.Linear(2, 2), images((32, 40)))


def test_the_distance_of_a_field_is_the_mean_distance_of_its_pixels() -> None:
    field_HW = np.zeros((16, 16), np.float32)
    field_HW[10, 2] = 1  # centre at 10.5, 2.5; the middle of a grid of 2 x 2 is the patch with centre 12, 12
    assert field_distance(field_HW, (2, 2)) == pytest.approx(np.hypot(1.5, 9.5))


def test_a_model_without_attention_has_no_filter() -> None:
    with pytest.raises(ConfigError, match="no attention"):
        filtered_values(build(RESNET, seed=0), images((64, 64)), (0, 0))
