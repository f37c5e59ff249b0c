"""Names of models: what is accepted, and how a wrong one is answered."""

from __future__ import annotations

import pytest

from vitlab.config import ResNetConfig, ViTConfig, variant
from vitlab.config.model import NAMES
from vitlab.errors import ConfigError


@pytest.mark.parametrize("name", NAMES)
def test_a_published_name_and_its_config_are_two_ways_to_say_one_thing(name: str) -> None:
    assert variant(name).name == name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("L/16", "ViT-L/16"),
        ("vit_l_16", "ViT-L/16"),
        ("vit-ti/16", "ViT-Ti/16"),
        ("g/14", "ViT-g/14"),
        ("G/14", "ViT-G/14"),
        ("R50+B/16", "R50+ViT-B/16"),
        ("r26+s/32", "R26+ViT-S/32"),
        ("R152x4", "BiT-R152x4"),
        ("bit_r50x1", "BiT-R50x1"),
        ("ViT-B/16x8", "ViT-B/16x8"),
        ("ViT-B/32x32", "ViT-B/32"),
    ],
)
def test_other_spellings_of_one_model_mean_that_model(spelling: str, name: str) -> None:
    assert variant(spelling) == variant(name)


@pytest.mark.parametrize("spelling", ["vit_g_14", "vit-g/14", "VIT_G_14"])
def test_a_spelling_that_fits_two_models_is_refused_and_both_are_named(spelling: str) -> None:
    with pytest.raises(ConfigError, match="ViT-g/14 or ViT-G/14"):
        variant(spelling)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ViT-X/16", "ViT-"),
        ("vit_base_patch17_384", "vit_base_patch16_384"),
        ("BiT-R51x1", "BiT-R50x1"),
        ("R50+ViT-B/8", "ViT-B/"),
        ("", "vitlab models"),
        ("transformer", "vitlab models"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_known_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        variant(name)
    assert f"no model called {name!r}" in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_image_size_classes_and_channels_are_as_asked() -> None:
    config = variant("ViT-B/16", image_size=(160, 224), num_classes=10, channels=4)
    assert isinstance(config, ViTConfig)
    assert (config.image_size, config.num_classes, config.channels, config.grid) == ((160, 224), 10, 4, (10, 14))
    resnet = variant("BiT-R50x1", image_size=480, num_classes=2)
    assert isinstance(resnet, ResNetConfig)
    assert (resnet.image_size, resnet.num_classes) == ((480, 480), 2)


@pytest.mark.parametrize(("name", "step", "grid"), [("R50+ViT-B/16", 16, 14), ("R50+ViT-L/32", 32, 7), ("R+ViT-Ti/16", 32, 7)])
def test_a_hybrid_steps_over_the_image_by_stem_and_patch(name: str, step: int, grid: int) -> None:
    config = variant(name)
    assert isinstance(config, ViTConfig)
    assert (config.step, config.grid) == ((step, step), (grid, grid))


@pytest.mark.parametrize(("spelling", "width"), [("ViT-b/32", 384), ("ViT-B/32", 768), ("vit-b/32", 768), ("vit_b_32", 768)])
def test_the_half_width_model_of_figure_4_has_one_spelling(spelling: str, width: int) -> None:
    config = variant(spelling)
    assert isinstance(config, ViTConfig)
    assert (config.width, config.mlp_width, config.depth, config.heads) == (width, 4 * width, 12, 12)


def test_a_size_letter_alone_that_could_be_either_is_refused() -> None:
    with pytest.raises(ConfigError, match="ViT-B/32 or ViT-b/32"):
        variant("b/32")
