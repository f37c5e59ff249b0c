"""Logits recorded from the peers' own code: the authors' Flax, timm and transformers, on miniature random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vitlab.checkpoints import convert, load
from vitlab.config.vit import ViTConfig

GOLDEN = Path(__file__).parents[2] / "golden"
OFFICIAL: dict[str, tuple[dict[str, Any], float, int]] = {  # name: what to ask for, tolerance, heads
    "vit_token": ({}, 1e-5, 4),
    "vit_prelogits": ({}, 1e-5, 3),
    "vit_gap": ({}, 1e-5, 2),
    "vit_hires": ({"image_size": 56, "interpolation": "official"}, 1e-5, 4),
    "hybrid": ({}, 2e-5, 4),
    "hybrid_patch2": ({}, 2e-5, 2),
}
PEERS: dict[str, tuple[dict[str, Any], float, str]] = {  # name: what to ask for, tolerance, the format it is in
    "timm_vit.safetensors": ({}, 1e-5, "timm"),
    "timm_vit_rect.safetensors": ({"grid": (3, 7)}, 1e-5, "timm"),
    "timm_vit_gap.safetensors": ({}, 1e-5, "timm"),
    "timm_deit_distilled.safetensors": ({}, 1e-5, "timm"),
    "timm_hybrid.safetensors": ({}, 2e-5, "timm"),
    "timm_bit.safetensors": ({"image_size": 64}, 2e-5, "timm"),
    "timm_swin.safetensors": ({"image_size": 64}, 2e-6, "timm"),
    "timm_swin_pad.safetensors": ({}, 2e-6, "timm"),
    "timm_convnext.safetensors": ({"image_size": 64}, 2e-6, "timm"),
    "timm_efficientnet.safetensors": ({"image_size": 67}, 2e-6, "timm"),
    "hf_vit": ({}, 1e-5, "huggingface"),
    "hf_vit_module_names.safetensors": ({}, 1e-5, "huggingface"),
}


def official_case(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    expected = np.load(GOLDEN / "official" / f"{name}.expected.npz")
    return torch.from_numpy(expected["images_BHWC"]).permute(0, 3, 1, 2), torch.from_numpy(expected["logits_BC"])


def peer_case(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    stem = "hf_vit" if name.startswith("hf_vit") else name.removesuffix(".safetensors")
    expected = load_file(GOLDEN / "peers" / f"{stem}.expected.safetensors")
    return expected["images_BCHW"], expected["logits_BC"]


def worst(model: torch.nn.Module, case: tuple[torch.Tensor, torch.Tensor]) -> float:
    images_BCHW, logits_BC = case
    with torch.no_grad():
        return float((model(images_BCHW) - logits_BC).abs().max())


@pytest.mark.parametrize("name", OFFICIAL)
def test_an_official_file_gives_the_logits_of_the_authors_code(name: str) -> None:
    asked, tolerance, heads = OFFICIAL[name]
    checkpoint = load(GOLDEN / "official" / f"{name}.npz", **asked)
    assert checkpoint.format == "jax-npz"
    assert isinstance(checkpoint.config, ViTConfig)
    assert checkpoint.config.heads == heads
    assert worst(checkpoint.model, official_case(name)) < tolerance


@pytest.mark.parametrize("name", PEERS)
def test_a_peers_file_gives_the_logits_of_that_peers_code(name: str) -> None:
    asked, tolerance, layout = PEERS[name]
    checkpoint = load(GOLDEN / "peers" / name, **asked)
    assert checkpoint.format == layout
    assert worst(checkpoint.model, peer_case(name)) < tolerance


def test_the_wrong_position_interpolation_would_be_noticed() -> None:
    checkpoint = load(GOLDEN / "official" / "vit_hires.npz", image_size=56, interpolation="bicubic")
    assert worst(checkpoint.model, official_case("vit_hires")) > 1e-3


def test_the_wrong_numerics_would_be_noticed() -> None:
    checkpoint = load(GOLDEN / "official" / "vit_token.npz", profile="timm")
    assert worst(checkpoint.model, official_case("vit_token")) > 1e-5


@pytest.mark.parametrize("name", ["vit_token", "vit_prelogits", "vit_gap", "hybrid", "hybrid_patch2"])
def test_an_official_file_through_timm_and_back_still_gives_the_authors_logits_to_the_bit(name: str, tmp_path: Path) -> None:
    source = GOLDEN / "official" / f"{name}.npz"
    convert(source, tmp_path / "there.safetensors", to="timm")
    convert(tmp_path / "there.safetensors", tmp_path / "back.npz", to="jax-npz")
    images_BCHW, _ = official_case(name)
    with torch.no_grad():
        assert torch.equal(load(source).model(images_BCHW), load(tmp_path / "back.npz").model(images_BCHW))
        assert torch.equal(load(source).model(images_BCHW), load(tmp_path / "there.safetensors").model(images_BCHW))


@pytest.mark.parametrize("to", ["jax-npz", "big-vision", "timm", "torchvision"])
def test_a_hugging_face_folder_through_every_other_format_gives_the_same_logits_in_its_profile(to: str, tmp_path: Path) -> None:
    ending = ".npz" if to in ("jax-npz", "big-vision") else ".safetensors"
    convert(GOLDEN / "peers" / "hf_vit", tmp_path / f"there{ending}", to=to)
    convert(tmp_path / f"there{ending}", tmp_path / "back", to="huggingface", profile="huggingface")
    assert worst(load(tmp_path / "back").model, peer_case("hf_vit")) < 1e-5
    before, after = load(GOLDEN / "peers" / "hf_vit"), load(tmp_path / "back")
    images_BCHW, _ = peer_case("hf_vit")
    with torch.no_grad():
        assert torch.equal(before.model(images_BCHW), after.model(images_BCHW))


def test_a_bit_resnet_of_timm_written_as_the_authors_file_gives_the_same_logits_in_timms_profile(tmp_path: Path) -> None:
    convert(GOLDEN / "peers" / "timm_bit.safetensors", tmp_path / "bit.npz", to="bit-npz")
    checkpoint = load(tmp_path / "bit.npz", image_size=64, profile="timm")
    assert worst(checkpoint.model, peer_case("timm_bit.safetensors")) < 2e-5
