"""`vitlab describe NAME` says what the library says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vitlab.cli.main import main
from vitlab.config.model import NAMES, ModelConfig, variant
from vitlab.config.serialize import from_json
from vitlab.config.vit import ViTConfig
from vitlab.models.cost import cost


def described(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["describe", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_is_described_with_its_name_cost_and_config(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, name)
    config = variant(name)
    assert found["name"] == name
    assert found["parameters"] == cost(config).parameters
    assert found["macs"] == cost(config).macs
    assert from_json(ModelConfig, found["config"]) == config


def test_the_options_reach_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, "L/16", "--image-size", "160x224", "--num-classes", "0", "--channels", "1")
    assert from_json(ModelConfig, found["config"]) == variant("ViT-L/16", image_size=(160, 224), num_classes=0, channels=1)
    assert found["grid"] == [10, 14]
    assert found["tokens"] == 141


@pytest.mark.parametrize("name", ["ViT-B/16", "R50+ViT-B/32", "BiT-R101x3"])
def test_the_table_and_the_json_have_the_same_values(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, name)
    assert main(["describe", name]) == 0
    captured = capsys.readouterr()
    heads = [line.split("  ")[0].replace(" ", "_") for line in captured.out.splitlines()]
    assert heads == [key for key in found if key != "config"]
    assert captured.err == ""


def test_every_setting_of_a_config_is_shown_or_default(capsys: pytest.CaptureFixture[str]) -> None:
    found = described(capsys, "R+ViT-Ti/16")
    assert found["family"] == "hybrid"
    config = variant("R+ViT-Ti/16")
    assert isinstance(config, ViTConfig)
    assert config.stem is not None
    assert found["stem"]["width"] == config.stem.width


def test_a_numerics_profile_is_called_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert described(capsys, "ViT-B/16")["profile"] == "official"
