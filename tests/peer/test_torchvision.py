"""torchvision's own VisionTransformer, both ways."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.checkpoint.formats.samples import OPTIONS
from tests.peer.compare import TOLERANCE, distance, pictures, randomised, saved
from vitlab.checkpoint import convert, load
from vitlab.config import ViTConfig, variant
from vitlab.config.model import with_profile
from vitlab.errors import CheckpointError

pytestmark = pytest.mark.peer


def test_a_published_torchvision_model_is_recognised_and_gives_its_logits(vision_transformer: ModuleType, tmp_path: Path) -> None:
    theirs = randomised(vision_transformer.vit_b_16(weights=None, image_size=64))
    torch.save(theirs.state_dict(), tmp_path / "vit_b_16.pth")
    checkpoint = load(tmp_path / "vit_b_16.pth")
    assert checkpoint.format == "torchvision"
    assert checkpoint.config == variant("ViT-B/16", image_size=64, profile="torchvision")
    assert distance(checkpoint.model, theirs, pictures(checkpoint.config)) < TOLERANCE


@pytest.mark.parametrize("hidden", [None, 48])
def test_a_small_torchvision_model_gives_its_logits(vision_transformer: ModuleType, hidden: int | None, tmp_path: Path) -> None:
    theirs = randomised(
        vision_transformer.VisionTransformer(
            image_size=32,
            patch_size=8,
            num_layers=2,
            num_heads=4,
            hidden_dim=64,
            mlp_dim=96,
            num_classes=5,
            representation_size=hidden,
        )
    )
    torch.save(theirs.state_dict(), tmp_path / "model.pth")
    checkpoint = load(tmp_path / "model.pth", heads=4)
    assert distance(checkpoint.model, theirs, pictures(checkpoint.config)) < TOLERANCE


def torchvision_model(vision_transformer: ModuleType, config: ViTConfig) -> Any:
    """The empty model that the notes of a conversion describe."""
    model = vision_transformer.VisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_width,
        num_classes=config.num_classes or 1,
        representation_size=config.representation_width or None,
    )
    if config.channels != 3:
        model.conv_proj = nn.Conv2d(config.channels, config.width, config.patch_size, stride=config.patch_size)
    if not config.num_classes:
        model.heads.head = nn.Identity()
    return model


@pytest.mark.parametrize("option", [name for name in OPTIONS if "resnet" not in name])
def test_what_is_written_for_torchvision_loads_strictly_and_answers_alike(
    vision_transformer: ModuleType, option: str, tmp_path: Path
) -> None:
    config = OPTIONS[option]
    assert isinstance(config, ViTConfig)
    config = with_profile(config, "torchvision")
    ours = saved(tmp_path / "native.safetensors", config)
    try:
        convert(tmp_path / "native.safetensors", tmp_path / "tv.safetensors", to="torchvision")
    except CheckpointError:
        assert not (tmp_path / "tv.safetensors").exists()
        return
    theirs = torchvision_model(vision_transformer, config)
    theirs.load_state_dict(load_file(tmp_path / "tv.safetensors"), strict=True)
    assert distance(ours.model, theirs.eval(), pictures(config)) < TOLERANCE


@pytest.mark.parametrize("option", ["plain", "no head", "hidden layer", "one channel"])
def test_these_options_are_among_those_that_torchvision_can_be_given(option: str, tmp_path: Path) -> None:
    saved(tmp_path / "native.safetensors", OPTIONS[option])
    convert(tmp_path / "native.safetensors", tmp_path / "tv.safetensors", to="torchvision")  # or the test above proves nothing
