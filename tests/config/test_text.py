"""Configs as JSON: what is written is accepted back, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitlab.config import ModelConfig, Position, Preprocess, ViTConfig, variant
from vitlab.config.model import NAMES
from vitlab.config.serialize import from_json, from_text, to_json, to_text
from vitlab.errors import ConfigError


@pytest.mark.parametrize("name", NAMES)
def test_a_model_config_survives_a_trip_through_text(name: str) -> None:
    config = variant(name, image_size=(448, 224))
    assert from_json(ModelConfig, json.loads(to_text(config))) == config


@given(
    place=st.sampled_from(["stem", "every", "shared"]),
    kind=st.sampled_from(["none", "learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d"]),
    dropout=st.floats(0, 0.99),
    classes=st.integers(0, 30_000),
)
def test_any_choice_survives_a_trip_through_text(place: Any, kind: Any, dropout: float, classes: int) -> None:
    base = variant("ViT-S/32")
    assert isinstance(base, ViTConfig)
    config = replace(base, position=Position(kind=kind, place=place), dropout=dropout, num_classes=classes)
    assert from_text(ViTConfig, to_text(config)) == config


def changed(**changes: Any) -> dict[str, Any]:
    data = to_json(variant("ViT-B/16"))
    assert isinstance(data, dict)
    return {key: value for key, value in (data | changes).items() if value != "absent"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(widht=3), "no setting called widht"),
        (changed(width="768"), "width should be a whole number"),
        (changed(width=768.0), "width should be a whole number"),
        (changed(pad=1), "pad should be true or false"),
        (changed(width="absent"), "needs width"),
        (changed(family="rnn"), "family='rnn' is not one of vit, resnet"),
        (changed(image_size=[224]), "image_size should be a list of 2"),
        (changed(image_size=[224, "224"]), "image_size[1] should be a whole number"),
        (changed(pool="max"), "pool='max' is not one of"),
        (changed(position={"kind": "learned"}), "position.kind='learned'"),
        (changed(position=7), "position should be an object"),
        (changed(heads=5), "width=768 is not a multiple of heads=5"),
        ([1, 2], "should be an object"),
    ],
)
def test_what_departs_from_the_schema_is_refused_by_place(data: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_json(ModelConfig, data)
    assert said in caught.value.message


def test_a_typo_is_answered_with_the_setting_that_was_meant() -> None:
    with pytest.raises(ConfigError) as caught:
        from_json(ModelConfig, changed(num_clases=3))
    assert caught.value.hint == "did you mean num_classes?"


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        from_text(Preprocess, "{")
