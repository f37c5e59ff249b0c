"""Model configs refuse nonsense at birth, and name the field."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from vitlab.config import Numerics, Position, Preprocess, ResNetConfig, ResNetStem, ViTConfig, variant
from vitlab.config.vit import PROFILES, with_profile
from vitlab.errors import ConfigError


def base() -> ViTConfig:
    config = variant("ViT-B/16")
    assert isinstance(config, ViTConfig)
    return config


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heads": 7}, "heads=7"),
        ({"depth": 0}, "depth=0"),
        ({"num_classes": -1}, "num_classes=-1"),
        ({"pool": "max"}, "pool='max'"),
        ({"attention": "globl"}, "attention='globl'"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"image_size": (0, 224)}, "image_size"),
        ({"image_size": (224, 224, 3)}, "image_size"),
        ({"image_size": (230, 224)}, "image_size=230x224"),
        ({"class_token": False}, "class_token=True"),
        ({"distill_token": True, "pool": "mean"}, "distill_token"),
        ({"distill_token": True, "representation_width": 768}, "representation_width"),
        ({"attention": "local", "window": 4}, "window=4"),
        ({"patch_dropout": 0.5, "attention": "axial"}, "patch_dropout"),
        ({"patch_dropout": 0.5, "position": Position(place="every")}, "patch_dropout"),
        ({"attention": "axial", "position": Position(kind="relative")}, "relative"),
        ({"pool": "map", "norm_after_pool": True}, "norm_after_pool"),
        ({"width": 762, "heads": 3, "position": Position(kind="sincos-2d")}, "sincos-2d"),
        ({"width": 765, "heads": 3, "position": Position(kind="sincos-1d")}, "sincos-1d"),
        ({"width": 765, "heads": 3, "position": Position(kind="learned-2d")}, "learned-2d"),
    ],
)
def test_an_impossible_vit_is_refused_by_the_name_of_its_field(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(base(), **changes)
    assert named in caught.value.message


@pytest.mark.parametrize(
    "make",
    [
        lambda: Position(kind="learnt"),  # type: ignore[arg-type]
        lambda: Numerics(norm_eps=0),
        lambda: ResNetStem(width=40),
        lambda: ResNetStem(blocks=(3, 0)),
        lambda: ResNetConfig(blocks=(3, 4)),
        lambda: Preprocess(resize_to=200),
        lambda: Preprocess(mean=(0.5,)),
        lambda: Preprocess(std=(0.0, 1.0, 1.0)),
        lambda: Preprocess(interpolation="nearest"),  # type: ignore[arg-type]
        lambda: with_profile(base(), "flax"),
    ],
)
def test_other_configs_refuse_nonsense_too(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_a_size_the_patch_does_not_divide_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        replace(base(), image_size=(230, 250))
    assert caught.value.hint is not None
    assert "224x256" in caught.value.hint
    assert replace(base(), image_size=(230, 250), pad=True).grid == (15, 16)


def test_one_number_stands_for_a_square() -> None:
    assert ViTConfig(width=8, depth=1, heads=1, mlp_width=8, patch_size=4, image_size=8).grid == (2, 2)  # type: ignore[arg-type]


def test_a_config_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        base().width = 5  # type: ignore[misc]


def test_the_profiles_differ_where_their_codes_do() -> None:
    assert (PROFILES["official"].gelu, PROFILES["official"].resize) == ("tanh", "official")
    assert (PROFILES["timm"].gelu, PROFILES["timm"].norm_eps) == ("exact", 1e-6)
    assert PROFILES["huggingface"].norm_eps == 1e-12
    assert with_profile(base(), "timm").numerics == PROFILES["timm"]
