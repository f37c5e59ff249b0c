"""Weights of Swin, ConvNeXt, EfficientNet and recurrent networks fitted to other sizes, windows, channels and classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vitlab.checkpoints import Checkpoint, describe, load, save
from vitlab.config import Preprocess, SwinConfig, variant
from vitlab.errors import CheckpointError
from vitlab.models import build
from vitlab.models.swin import resize_offsets

MINIS = ("Swin-Mini", "ConvNeXt-Mini", "EfficientNet-Mini", "LSTM-Mini/8")


def file_of(name: str, folder: Path) -> Path:
    config = variant(name, num_classes=5)
    model = build(config, seed=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    preprocess = Preprocess(image_size=config.image_size, resize_to=36)
    save(Checkpoint(model=model, config=config, preprocess=preprocess, labels=tuple("abcde")), folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.mark.parametrize("name", MINIS)
def test_a_saved_model_reads_back_bit_for_bit_and_its_description_counts_only_parameters(name: str, tmp_path: Path) -> None:
    path = file_of(name, tmp_path)
    first, again = load(path), load(path)
    images_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(first.model(images_BCHW), again.model(images_BCHW))
    assert describe(path).parameters == sum(parameter.numel() for parameter in first.model.parameters())


@pytest.mark.parametrize("name", MINIS)
def test_a_new_head_is_zeros_on_the_same_features_and_the_preprocessing_follows_the_size(name: str, tmp_path: Path) -> None:
    path = file_of(name, tmp_path)
    before, after = load(path), load(path, num_classes=3, image_size=(48, 64))
    assert after.config.num_classes == 3
    assert after.config.image_size == after.preprocess.image_size == (48, 64)
    assert after.labels is None
    images_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(before.model.features(images_BCHW), after.model.features(images_BCHW))
        assert after.model(images_BCHW).abs().max() == 0


@pytest.mark.parametrize("name", MINIS)
def test_grey_images_are_answered_as_the_same_grey_in_every_channel_was(name: str, tmp_path: Path) -> None:
    path = file_of(name, tmp_path)
    before, after = load(path), load(path, channels=1)
    grey_B1HW = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(after.model(grey_B1HW), before.model(grey_B1HW.expand(-1, 3, -1, -1)), atol=1e-4, rtol=1e-4)


def test_another_window_gets_tables_of_its_size_and_it_is_said(tmp_path: Path) -> None:
    checkpoint = load(file_of("Swin-Mini", tmp_path), image_size=64, window=8)
    assert isinstance(checkpoint.config, SwinConfig)
    assert checkpoint.config.windows == ((8, 8), (8, 8))
    assert checkpoint.model.state_dict()["stages.0.blocks.0.attention.offset_bias"].shape == (15 * 15, 2)
    assert any("windows of 8x8 instead of 4x4" in note for note in checkpoint.notes)


def test_a_smaller_image_makes_smaller_windows_of_those_stages_alone(tmp_path: Path) -> None:
    checkpoint = load(file_of("Swin-Mini", tmp_path), image_size=(16, 32))
    assert isinstance(checkpoint.config, SwinConfig)
    assert checkpoint.config.windows == ((4, 4), (2, 4))
    assert [note for note in checkpoint.notes if "windows" in note] == [
        "stage 1: windows of 2x4 instead of 4x4 patches, their offset biases resized (bicubic)"
    ]
    with torch.no_grad():
        assert checkpoint.model(torch.zeros(1, 3, 16, 32)).isfinite().all()


def test_resizing_a_table_to_its_own_size_changes_nothing_and_keeps_a_constant_constant() -> None:
    table_OH = torch.randn(7 * 5, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(resize_offsets(table_OH, (4, 3), (4, 3)), table_OH)
    torch.testing.assert_close(resize_offsets(torch.full((35, 3), 2.0), (4, 3), (6, 7)), torch.full((11 * 13, 3), 2.0))


@pytest.mark.parametrize("name", MINIS)
def test_an_option_that_a_family_does_not_have_is_refused(name: str, tmp_path: Path) -> None:
    path = file_of(name, tmp_path)
    with pytest.raises(CheckpointError, match="no patch_size to change"):
        load(path, patch_size=8)
    with pytest.raises(CheckpointError, match="profiles are for ViTs"):
        load(path, profile="timm")
    if name != "Swin-Mini":
        with pytest.raises(CheckpointError, match="no window to change"):
            load(path, window=4)
