"""A convolutional stem in checkpoints: fitted to other channels, and refused by formats that cannot hold it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoints.small import small_checkpoint, small_config
from vitlab.checkpoints import convert, load, save
from vitlab.config import ConvStem
from vitlab.errors import CheckpointError


@pytest.fixture(params=["group", "batch"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = small_config(conv_stem=ConvStem(widths=(16, 24), units=(1, 2), norm=request.param), patch_size=(2, 2), channels=3)
    save(small_checkpoint(config), tmp_path / "stem.safetensors")
    return tmp_path / "stem.safetensors"


@torch.no_grad()
def test_one_grey_channel_is_answered_as_the_same_grey_in_three(saved: Path) -> None:
    colour, grey = load(saved), load(saved, channels=1)
    grey_B1HW = torch.randn(2, 1, *colour.config.image_size, generator=torch.Generator().manual_seed(0))
    wanted_BC = colour.model(grey_B1HW.expand(-1, 3, -1, -1))
    torch.testing.assert_close(grey.model(grey_B1HW), wanted_BC, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("form", "name"), [("timm", "out.safetensors"), ("jax-npz", "out.npz"), ("huggingface", "out")])
def test_a_format_that_cannot_hold_a_conv_stem_refuses_it_by_name(form: str, name: str, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="conv_stem"):
        convert(saved, tmp_path / name, to=form)
