"""Fitting weights to another grid, patch, number of channels or head."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from vitlab.checkpoints.reading import Wanted, fit, resize_channels
from vitlab.config import Position, ResNetConfig, ViTConfig, variant
from vitlab.config.model import ModelConfig
from vitlab.config.vit import PositionKind, PositionPlace
from vitlab.errors import CheckpointError, ConfigError
from vitlab.models import build
from vitlab.models.flexible import resize_patch
from vitlab.models.position import resize_grid


def mini() -> ViTConfig:
    config = variant("ViT-Mini/8", num_classes=5)
    assert isinstance(config, ViTConfig)
    return config


def state_of(config: ViTConfig | ResNetConfig) -> dict[str, torch.Tensor]:
    return {key: torch.randn_like(value) for key, value in build(config).state_dict().items()}


def loads(state: dict[str, torch.Tensor], config: ModelConfig) -> torch.nn.Module:
    model = build(config).eval()
    model.load_state_dict(state, strict=True)
    return model


def test_nothing_wanted_changes_nothing() -> None:
    state = state_of(mini())
    fitted, config, notes = fit(state, mini(), Wanted())
    assert config == mini()
    assert notes == ()
    assert all(fitted[key] is state[key] for key in state)


@pytest.mark.parametrize("place", ["stem", "every"])
@pytest.mark.parametrize("size", [(56, 56), (16, 64), (24, 40)])
def test_positions_follow_the_grid_also_at_the_same_number_of_tokens(size: tuple[int, int], place: PositionPlace) -> None:
    config = replace(mini(), position=Position(place=place))
    state = state_of(config)
    fitted, other, notes = fit(state, config, Wanted(image_size=size))
    grid = (size[0] // 8, size[1] // 8)
    assert isinstance(other, ViTConfig)
    assert other.grid == grid
    table = state["position.table"]
    assert torch.equal(fitted["position.table"][:, :1], table[:, :1])
    assert torch.equal(fitted["position.table"][:, 1:], resize_grid(table[:, 1:], (4, 4), grid, "official"))
    assert "interpolated from 4x4" in notes[0]
    assert loads(fitted, other)(torch.randn(1, 3, *size)).shape == (1, 5)


def test_a_fitted_model_equals_one_that_fits_as_it_runs() -> None:
    config = replace(mini(), dynamic_size=True)
    state, images_BCHW = state_of(config), torch.randn(2, 3, 40, 56)
    fitted, other, _ = fit(state, config, Wanted(image_size=(40, 56)))
    torch.testing.assert_close(loads(fitted, other)(images_BCHW), loads(state, config)(images_BCHW))


@pytest.mark.parametrize("kind", ["learned-2d", "sincos-1d", "sincos-2d", "none"])
def test_the_other_kinds_of_position_are_fitted_too(kind: PositionKind) -> None:
    config = replace(mini(), position=Position(kind=kind))
    fitted, other, notes = fit(state_of(config), config, Wanted(image_size=(48, 24)))
    assert notes
    assert loads(fitted, other)(torch.randn(1, 3, 48, 24)).shape == (1, 5)


def test_relative_positions_are_refused_on_another_grid() -> None:
    config = replace(mini(), position=Position(kind="relative"))
    with pytest.raises(CheckpointError, match="4x4 grid cannot be fitted to 2x8"):
        fit(state_of(config), config, Wanted(image_size=(16, 64)))


def test_the_way_of_interpolation_can_be_chosen_and_stays_in_the_config() -> None:
    state = state_of(mini())
    fitted, other, notes = fit(state, mini(), Wanted(image_size=(56, 56), interpolation="bicubic"))
    assert isinstance(other, ViTConfig)
    assert other.numerics.resize == "bicubic"
    assert "bicubic" in notes[0]
    assert not torch.equal(fitted["position.table"], fit(state, mini(), Wanted(image_size=(56, 56)))[0]["position.table"])


@pytest.mark.parametrize("size", [(8, 8), (12, 12), (16, 10)])
def test_a_grown_patch_kernel_answers_an_enlarged_patch_as_the_old_one_answered_the_patch(size: tuple[int, int]) -> None:
    kernel, patch = torch.randn(5, 3, 8, 8), torch.randn(4, 3, 8, 8)
    enlarged = F.interpolate(patch, size, mode="bilinear", align_corners=False)
    answer = torch.einsum("ochw,bchw->bo", kernel, patch)
    torch.testing.assert_close(torch.einsum("ochw,bchw->bo", resize_patch(kernel, size), enlarged), answer, atol=1e-4, rtol=1e-4)


def test_a_patch_kernel_grown_and_shrunk_again_is_nearly_itself() -> None:
    smooth = F.interpolate(torch.randn(5, 3, 3, 3), (8, 8), mode="bilinear", align_corners=True)
    back = resize_patch(resize_patch(smooth, (16, 16)), (8, 8))
    assert (back - smooth).norm() < 0.5 * smooth.norm()


def test_another_patch_size_keeps_the_image_and_changes_the_grid() -> None:
    fitted, other, notes = fit(state_of(mini()), mini(), Wanted(patch_size=(4, 8)))
    assert isinstance(other, ViTConfig)
    assert (other.image_size, other.grid) == ((32, 32), (8, 4))
    assert any("pseudo-inverse" in note for note in notes)
    assert loads(fitted, other)(torch.randn(1, 3, 32, 32)).shape == (1, 5)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 13])
def test_other_channels_answer_grey_images_as_before(channels: int) -> None:
    kernel, grey = torch.randn(6, 3, 8, 8), torch.randn(1, 1, 8, 8)
    before = F.conv2d(grey.expand(1, 3, 8, 8), kernel)
    torch.testing.assert_close(
        F.conv2d(grey.expand(1, channels, 8, 8), resize_channels(kernel, channels)), before, atol=1e-4, rtol=1e-4
    )


def test_new_channels_are_alike_and_a_fourth_beside_rgb_leaves_the_colours() -> None:
    kernel = torch.randn(6, 3, 8, 8)
    five = resize_channels(kernel, 5)
    torch.testing.assert_close(five, (kernel.sum(1, keepdim=True) / 5).expand(-1, 5, -1, -1))
    four = resize_channels(kernel, 4)
    torch.testing.assert_close(four[:, :3], 0.75 * kernel)
    torch.testing.assert_close(four[:, 3], 0.75 * kernel.mean(1))


def test_another_number_of_classes_replaces_the_whole_head_by_zeros() -> None:
    config = replace(mini(), representation_width=48)
    fitted, other, notes = fit(state_of(config), config, Wanted(num_classes=37))
    assert isinstance(other, ViTConfig)
    assert (other.num_classes, other.representation_width) == (37, 0)
    assert not any(key.startswith("representation") for key in fitted)
    assert not fitted["head.weight"].any()
    assert len(notes) == 2
    assert not loads(fitted, other)(torch.randn(1, 3, 32, 32)).any()


def test_the_same_number_of_classes_keeps_the_head_unless_a_new_one_is_asked_for() -> None:
    state = state_of(mini())
    assert fit(state, mini(), Wanted(num_classes=5))[0]["head.weight"] is state["head.weight"]
    assert not fit(state, mini(), Wanted(num_classes=5, new_head=True))[0]["head.weight"].any()


def test_a_distilled_model_gets_two_new_heads_and_no_classes_means_no_head() -> None:
    config = replace(mini(), distill_token=True)
    fitted, other, _ = fit(state_of(config), config, Wanted(num_classes=3))
    assert fitted["distill_head.weight"].shape == (3, 64)
    loads(fitted, other)
    fitted, other, _ = fit(state_of(config), config, Wanted(num_classes=0))
    assert not any("head" in key for key in fitted)
    loads(fitted, other)


def test_a_resnet_takes_another_head_and_channels_and_refuses_a_patch() -> None:
    config = ResNetConfig(blocks=(1, 1), stage_widths=(128, 256), root_width=32, num_classes=5)
    fitted, other, notes = fit(state_of(config), config, Wanted(num_classes=2, channels=1, image_size=(96, 64)))
    assert other.image_size == (96, 64)
    assert len(notes) == 2
    assert loads(fitted, other)(torch.randn(1, 1, 96, 64)).shape == (1, 2)
    with pytest.raises(CheckpointError, match="patch_size"):
        fit(state_of(config), config, Wanted(patch_size=(8, 8)))


def test_impossible_overrides_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a multiple"):
        fit(state_of(mini()), mini(), Wanted(image_size=(33, 32)))
    with pytest.raises(ConfigError, match="num_classes"):
        fit(state_of(mini()), mini(), Wanted(num_classes=-2))
