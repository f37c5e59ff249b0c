"""timm's hybrids and BiT ResNets, both ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.peer.compare import CONVOLUTIONAL, distance, images, randomised, saved
from vitlab.checkpoints import convert, load
from vitlab.config import ResNetConfig, ResNetStem, ViTConfig, variant
from vitlab.config.vit import STEMS
from vitlab.errors import CheckpointError

SMALL = {"embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 5}
HYBRIDS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {  # timm's name: its size in pixels, and the stages of its ResNet
    "vit_tiny_r_s16_p8_224": ({"img_size": 64}, ()),
    "vit_small_r26_s32_224": ({"img_size": 96}, (2, 2, 2, 2)),
    "vit_base_r50_s16_224": ({"img_size": (48, 80)}, (3, 4, 9)),
    "vit_large_r50_s32_224": ({"img_size": 64, "in_chans": 1}, (3, 4, 6, 3)),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_timm_hybrid_gives_timms_logits(timm: ModuleType, name: str, tmp_path: Path) -> None:
    size, blocks = HYBRIDS[name]
    theirs = randomised(timm.create_model(name, **SMALL, **size))
    timm.models.save_for_hf(theirs, tmp_path, model_args={**SMALL, **size}, safe_serialization=True)
    checkpoint = load(tmp_path)
    assert isinstance(checkpoint.config, ViTConfig)
    assert checkpoint.config.stem is not None
    assert checkpoint.config.stem.blocks == blocks
    assert distance(checkpoint.model, theirs, images(checkpoint.config)) < CONVOLUTIONAL


def test_a_whole_published_hybrid_is_recognised_from_its_bare_state_dict(timm: ModuleType, tmp_path: Path) -> None:
    theirs = randomised(timm.create_model("vit_small_r26_s32_224"))
    torch.save(theirs.state_dict(), tmp_path / "model.pth")
    checkpoint = load(tmp_path / "model.pth")
    wanted = variant("R26+ViT-S/32", profile="timm")
    assert isinstance(wanted, ViTConfig)
    stem = ResNetStem(blocks=(2, 2, 2, 2), standardise="variance", standardise_eps=1e-8, norm_eps=1e-5)
    assert checkpoint.config == replace(wanted, stem=stem)
    assert distance(checkpoint.model, theirs, images(checkpoint.config)) < CONVOLUTIONAL


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", STEMS, ids=lambda name: f"{name[0]} {name[1]}" if isinstance(name, tuple) else None)
def test_every_hybrid_of_the_paper_is_built_and_loaded_by_timm_from_its_folder_and_answers_alike(
    timm: ModuleType, name: tuple[str, int], channels: int, tmp_path: Path
) -> None:
    stem, cells = STEMS[name]
    stem = replace(stem, standardise="variance", standardise_eps=1e-8, norm_eps=1e-5)  # as timm computes
    config = ViTConfig(
        width=64,
        depth=2,
        heads=4,
        mlp_width=96,
        patch_size=(cells, cells),
        image_size=(2 * stem.stride * cells, stem.stride * cells),
        num_classes=5,
        channels=channels,
        stem=stem,
    )
    ours = saved(tmp_path / "native.safetensors", config)
    assert not convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm")  # no notes: timm gets everything
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    assert distance(ours.model, theirs, images(config)) < CONVOLUTIONAL


def test_the_authors_way_of_standardising_is_said_and_makes_the_difference_that_is_said(timm: ModuleType, tmp_path: Path) -> None:
    config = variant("R26+ViT-S/32", image_size=64, num_classes=5)
    assert isinstance(config, ViTConfig)
    config = replace(config, depth=1)
    ours = saved(tmp_path / "native.safetensors", config)
    assert "stem differs from timm's" in " ".join(convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm"))
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    assert 0 < distance(ours.model, theirs, images(config)) < 0.05


def test_a_published_bit_resnet_of_timm_gives_timms_logits(timm: ModuleType, tmp_path: Path) -> None:
    theirs = randomised(timm.create_model("resnetv2_50x1_bit", num_classes=7))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    checkpoint = load(tmp_path / "model.safetensors")
    wanted = variant("BiT-R50x1", num_classes=7)
    assert isinstance(wanted, ResNetConfig)
    assert checkpoint.config == replace(wanted, standardise_eps=1e-8)
    assert distance(checkpoint.model, theirs, images(checkpoint.config, image_size=(96, 80))) < CONVOLUTIONAL


def test_a_bit_resnet_written_for_timm_is_built_and_loaded_by_timm_and_answers_alike(timm: ModuleType, tmp_path: Path) -> None:
    config = variant("BiT-R50x1", num_classes=5, image_size=64, channels=4)
    assert isinstance(config, ResNetConfig)
    ours = saved(tmp_path / "native.safetensors", replace(config, standardise_eps=1e-8))
    assert not convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    assert distance(ours.model, theirs, images(config)) < CONVOLUTIONAL


def test_a_resnet_that_timm_has_no_name_for_goes_into_its_class_but_not_into_a_folder(timm: ModuleType, tmp_path: Path) -> None:
    config = ResNetConfig(
        blocks=(1, 2), stage_widths=(128, 256), root_width=64, num_classes=5, image_size=(48, 48), standardise_eps=1e-8
    )
    ours = saved(tmp_path / "native.safetensors", config)
    with pytest.raises(CheckpointError, match="no model with this ResNet"):
        convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm")
    convert(tmp_path / "native.safetensors", tmp_path / "timm.safetensors", to="timm")
    resnetv2 = timm.models.resnetv2
    theirs = resnetv2.ResNetV2(
        layers=(1, 2),
        channels=(128, 256),
        num_classes=5,
        stem_type="fixed",
        stem_chs=64,
        conv_layer=lambda *sizes, **how: timm.layers.StdConv2d(*sizes, eps=1e-8, **how),
    )
    theirs.load_state_dict(load_file(tmp_path / "timm.safetensors"), strict=True)
    assert distance(ours.model, theirs.eval(), images(config)) < CONVOLUTIONAL
