"""The names of every architecture family, and their configs as JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitlab.config import ConvNeXtConfig, EfficientNetConfig, ModelConfig, RecurrentConfig, SwinConfig, ViTConfig, variant
from vitlab.config.model import MODEL_CONFIGS, NAMES
from vitlab.config.serialize import from_json, to_json
from vitlab.errors import ConfigError

OTHER_NAMES = [name for family in MODEL_CONFIGS if family is not ViTConfig for name in family.names]  # where case matters: ViT-g


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_name_is_the_name_of_what_it_names_in_any_case_of_letters(name: str) -> None:
    config = variant(name, num_classes=7, channels=1)
    assert config.name == name
    assert (config.num_classes, config.channels) == (7, 1)
    assert variant(name.lower(), num_classes=7, channels=1) == config


@pytest.mark.parametrize("name", NAMES)
def test_a_config_comes_back_from_its_text(name: str) -> None:
    config = variant(name)
    assert from_json(ModelConfig, to_json(config)) == config


@pytest.mark.parametrize(
    ("name", "image_size", "window", "called"),
    [
        ("Swin-B", None, 7, "Swin-B"),
        ("Swin-B", 384, 12, "Swin-B"),
        ("Swin-B-w12", 224, 12, "Swin-B-w12"),
        ("swin_b_w7", 384, 7, "Swin-B-w7"),
        ("Swin-T", (384, 768), 12, "Swin-T"),
        ("Swin-T", 256, 7, "Swin-T"),
    ],
)
def test_a_swins_window_follows_the_image_size_unless_it_is_said(
    name: str, image_size: int | tuple[int, int] | None, window: int, called: str
) -> None:
    config = variant(name, image_size=image_size)
    assert isinstance(config, SwinConfig)
    assert config.window == (window, window)
    assert config.name == called


def test_every_size_comes_with_its_own_images_and_dropout() -> None:
    config = variant("EfficientNet-B4")
    assert isinstance(config, EfficientNetConfig)
    assert (config.image_size, config.dropout) == ((380, 380), 0.4)
    assert variant("EfficientNet-L2").image_size == (800, 800)
    assert variant("EfficientNet-B4", image_size=224).image_size == (224, 224)


def test_a_recurrent_network_takes_any_patch() -> None:
    config = variant("RNN-S/8x4")
    assert isinstance(config, RecurrentConfig)
    assert (config.cell, config.patch_size, config.name) == ("rnn", (8, 4), "RNN-S/8x4")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Swim-T", "Swin-T"),
        ("Swin-X", "Swin-"),
        ("ConvNext-XXL", "ConvNeXt-XL"),
        ("EfficientNet-B9", "EfficientNet-B"),
        ("LSTM-S", "LSTM-S/16"),
    ],
)
def test_a_name_nearly_right_is_answered_with_the_right_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="no model called") as caught:
        variant(name)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", ["Swin-T-w0", "LSTM-S/0", "RNN-S/8x0"])
def test_a_window_or_patch_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        variant(name)


def test_what_only_a_vit_chooses_is_refused() -> None:
    with pytest.raises(ConfigError, match="options of a ViT"):
        variant("Swin-T", pool="mean")
    with pytest.raises(ConfigError, match="options of a ViT"):
        variant("LSTM-S/16", pad=True)


def test_a_model_of_another_size_has_no_name() -> None:
    assert replace(variant("ConvNeXt-T"), depths=(1, 1, 1, 1)).name is None  # type: ignore[arg-type]
    assert ConvNeXtConfig(depths=(1,), widths=(8,)).name is None
    assert EfficientNetConfig(stages=((1, 3, 1, 1, 8),)).name is None
    assert RecurrentConfig(cell="lstm", width=5, depth=1).name is None
    assert SwinConfig(width=32, depths=(2,), heads=(2,)).name is None
