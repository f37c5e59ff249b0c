"""A real DeiT-Ti under timm's names, through every format that can hold it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitlab.checkpoints import convert, load
from vitlab.config import variant

pytestmark = pytest.mark.data


def test_the_real_deit_is_recognised_and_survives_every_format_to_the_bit(data_folder: Path, tmp_path: Path) -> None:
    source = data_folder / "deit_tiny_patch16_224.npz"
    start = load(source)
    assert start.format == "timm"
    assert start.config == variant("ViT-Ti/16", profile="timm")
    place: Path = source
    for step, to in enumerate(("native", "huggingface", "jax-npz", "big-vision", "torchvision", "timm", "native")):
        ending = ".npz" if to in ("jax-npz", "big-vision") else "" if to == "huggingface" else ".safetensors"
        following = tmp_path / f"{step}{ending}"
        convert(place, following, to=to, heads=3)
        place = following
    end = load(place, profile="timm")
    first, last = start.model.state_dict(), end.model.state_dict()
    assert first.keys() == last.keys()
    assert all(torch.equal(first[key], last[key]) for key in first)
    images_BCHW = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(start.model(images_BCHW), end.model(images_BCHW))
