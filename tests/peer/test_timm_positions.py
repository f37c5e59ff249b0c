"""Positions interpolated to another grid: vitlab's `bicubic` is timm's own, in both of the ways in which timm does it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.peer.compare import TOLERANCE, distance, images, randomised
from vitlab.checkpoints import load

SIZE = {"patch_size": 4, "embed_dim": 64, "depth": 2, "num_heads": 1, "num_classes": 5}
SIZES = [(40, 40), (16, 16), (12, 36), (20, 56), (8, 128)]  # from 32x32; the last has as many patches in another shape
KINDS: dict[str, dict[str, Any]] = {
    "token": {},
    "registers": {"reg_tokens": 4, "no_embed_class": True},
    "mean": {"class_token": False, "global_pool": "avg"},
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("kind", KINDS)
def test_positions_fitted_once_or_at_run_time_are_those_of_timms_dynamic_size(
    timm: ModuleType, kind: str, size: tuple[int, int], tmp_path: Path
) -> None:
    theirs = randomised(timm.create_model("vit_base_patch16_224", img_size=32, dynamic_img_size=True, **SIZE, **KINDS[kind]))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    fitted = load(tmp_path / "model.safetensors", image_size=size)
    moving = load(tmp_path / "model.safetensors", dynamic_size=True)
    images_BCHW = images(fitted.config)
    assert distance(fitted.model, theirs, images_BCHW) < TOLERANCE
    assert distance(moving.model, theirs, images_BCHW) < TOLERANCE


def loaded_by_timm(timm: ModuleType, folder: Path, size: tuple[int, int]) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A random model for 32x32 pixels, saved by timm into the folder, and what timm's loader makes of it for another size."""
    small = randomised(timm.create_model("vit_base_patch16_224", img_size=32, **SIZE))
    timm.models.save_for_hf(small, folder, model_args={"img_size": 32, **SIZE}, safe_serialization=True)
    return small, timm.create_model(f"local-dir:{folder}", pretrained=True, img_size=size).eval()


@pytest.mark.parametrize("size", SIZES[:-1], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_timm_model_made_for_another_size_loads_the_positions_that_fit_makes(
    timm: ModuleType, size: tuple[int, int], tmp_path: Path
) -> None:
    _, theirs = loaded_by_timm(timm, tmp_path, size)
    ours = load(tmp_path, image_size=size)
    table_1ND = ours.model.state_dict()["position.table"]
    assert (theirs.pos_embed - table_1ND).abs().max() < 5e-6  # timm works in single precision, vitlab in double
    assert distance(ours.model, theirs, images(ours.config)) < TOLERANCE


def test_as_many_patches_in_another_shape_are_interpolated_here_and_not_by_timms_loader(timm: ModuleType, tmp_path: Path) -> None:
    small, theirs = loaded_by_timm(timm, tmp_path, (8, 128))
    assert torch.equal(theirs.pos_embed, small.pos_embed)  # type: ignore[arg-type]  # the trap: rows of 8 read as rows of 32
    ours = load(tmp_path, image_size=(8, 128))
    assert distance(ours.model, theirs, images(ours.config)) > 0.1
