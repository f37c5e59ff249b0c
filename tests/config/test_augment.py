"""Augmentation and decoding settings refuse nonsense by name, and the presets are those of the paper."""

from __future__ import annotations

from typing import Any

import pytest

from vitlab.config.data import AUGREG, Augment, DecodeLimits, augreg
from vitlab.config.serialize import from_text, to_text
from vitlab.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_size", 0),
        ("image_size", (224, 224, 3)),
        ("crop", "inceptoin"),
        ("interpolation", "lanczos"),
        ("area", (0.0, 1.0)),
        ("area", (0.5, 0.2)),
        ("area", (0.5, 1.5)),
        ("area", (0.5, 0.6, 0.7)),
        ("aspect", (0.0, 1.0)),
        ("aspect", (1.0, float("inf"))),
        ("aspect", (float("nan"), 1.0)),
        ("padding", -1),
        ("flip", 1.5),
        ("flip", -0.1),
        ("randaugment", (0, 5)),
        ("randaugment", (2, -1)),
        ("randaugment", (2, 31)),
        ("randaugment", (2.5, 9)),
        ("randaugment", (2,)),
        ("brightness", -0.1),
        ("contrast", float("nan")),
        ("saturation", float("inf")),
        ("hue", 0.6),
        ("erase", 2),
        ("erase_area", (0.1, 2.0)),
        ("erase_aspect", (3.0, 0.3)),
        ("erase_fill", "black"),
        ("mixup", -0.2),
        ("cutmix", float("inf")),
        ("fill", 256),
        ("fill", -1),
    ],
)
def test_nonsense_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        Augment(**{field: value})


def test_a_random_crop_must_fit_into_what_it_is_cut_from() -> None:
    with pytest.raises(ConfigError, match="resize_to"):
        Augment(crop="random", image_size=(224, 300), resize_to=256)
    assert Augment(crop="inception", image_size=(300, 300), resize_to=256).image_size == (300, 300)


def test_a_typing_error_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        Augment(crop="inceptoin")  # type: ignore[arg-type]
    assert caught.value.hint == "did you mean inception?"
    with pytest.raises(ConfigError) as caught:
        augreg("lite1")
    assert "light1" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "randaugment", "mixup"),
    [
        ("none", None, 0),
        ("light1", (2, 0), 0),
        ("light2", (2, 10), 0.2),
        ("medium1", (2, 15), 0.2),
        ("medium2", (2, 15), 0.5),
        ("strong1", (2, 20), 0.5),
        ("strong2", (2, 20), 0.8),
    ],
)
def test_the_presets_are_those_of_augreg(name: str, randaugment: tuple[int, int] | None, mixup: float) -> None:
    config = augreg(name, image_size=384)
    assert (config.randaugment, config.mixup, config.image_size) == (randaugment, mixup, (384, 384))
    assert (config.crop, config.area, config.flip) == ("inception", (0.05, 1.0), 0.5)
    assert config.mixes == (mixup > 0)
    assert len(AUGREG) == 7


@pytest.mark.parametrize(
    "config", [*AUGREG.values(), Augment(crop="pad", padding=2, image_size=(32, 32)), Augment(randaugment=(1, 7.5))]
)
def test_a_config_comes_back_from_its_text(config: Augment) -> None:
    assert from_text(Augment, to_text(config)) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("formats", ()),
        ("formats", ("jpeg", "psd")),
        ("formats", "jpeg"),
        ("max_pixels", 0),
        ("max_pixels", 1.5),
        ("max_pixels", True),
        ("jpeg_decoder", "turbo"),
    ],
)
def test_limits_that_limit_nothing_or_everything_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        DecodeLimits(**{field: value})


def test_limits_come_back_from_their_text() -> None:
    limits = DecodeLimits(formats=("jpeg", "tiff"), max_pixels=10**6, jpeg_decoder="pillow")
    assert from_text(DecodeLimits, to_text(limits)) == limits
