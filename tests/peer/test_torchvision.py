"""torchvision's own VisionTransformer, both ways."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.checkpoints.formats.samples import CAN, OPTIONS
from tests.peer.compare import TOLERANCE, distance, images, randomised, saved, shapes_only
from vitlab.checkpoints import convert, load
from vitlab.checkpoints.containers.read import RawFile
from vitlab.checkpoints.formats import FORMATS, Hints
from vitlab.config import ViTConfig, variant
from vitlab.config.vit import with_profile


def test_a_published_torchvision_model_is_recognised_and_gives_its_logits(vision_transformer: ModuleType, tmp_path: Path) -> None:
    theirs = randomised(vision_transformer.vit_b_16(weights=None, image_size=64))
    torch.save(theirs.state_dict(), tmp_path / "vit_b_16.pth")
    checkpoint = load(tmp_path / "vit_b_16.pth")
    assert checkpoint.format == "torchvision"
    assert checkpoint.config == variant("ViT-B/16", image_size=64, profile="torchvision")
    assert distance(checkpoint.model, theirs, images(checkpoint.config)) < TOLERANCE


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
    assert distance(checkpoint.model, theirs, images(checkpoint.config)) < TOLERANCE


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


@pytest.mark.parametrize("option", sorted(CAN["torchvision"]))
def test_what_is_written_for_torchvision_loads_strictly_and_answers_alike(
    vision_transformer: ModuleType, option: str, tmp_path: Path
) -> None:
    config = OPTIONS[option]
    assert isinstance(config, ViTConfig)
    config = with_profile(config, "torchvision")
    ours = saved(tmp_path / "native.safetensors", config)
    convert(tmp_path / "native.safetensors", tmp_path / "tv.safetensors", to="torchvision")
    theirs = torchvision_model(vision_transformer, config)
    theirs.load_state_dict(load_file(tmp_path / "tv.safetensors"), strict=True)
    assert distance(ours.model, theirs.eval(), images(config)) < TOLERANCE


VITS = {"vit_b_16": "ViT-B/16", "vit_b_32": "ViT-B/32", "vit_l_16": "ViT-L/16", "vit_l_32": "ViT-L/32", "vit_h_14": "ViT-H/14"}
OTHERS = ("swin_t", "swin_v2_t", "convnext_tiny", "efficientnet_b0", "efficientnet_v2_s", "maxvit_t", "resnet50", "vgg11")


@pytest.mark.parametrize("name", [*VITS, *OTHERS])
def test_every_vit_of_torchvision_is_read_as_its_variant_and_other_families_are_not_taken_for_one(
    torchvision_models: ModuleType, name: str
) -> None:
    with shapes_only():
        tensors = torchvision_models.get_model(name, weights=None).state_dict()
    raw = RawFile(path=Path(name), tensors=tensors, metadata={}, sidecar=None, preprocessor=None)
    read = [layout.read(raw, Hints()).config for layout in FORMATS.values() if layout.matches(raw)]
    assert read == ([variant(VITS[name], profile="torchvision")] if name in VITS else [])
