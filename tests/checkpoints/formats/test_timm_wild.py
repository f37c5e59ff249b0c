"""timm's Vision Transformers in the wild: recorded miniatures of every family, read, computed, written and read again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitlab.checkpoints import convert, load
from vitlab.config.timm_names import STYLES, style_of, timm_vit
from vitlab.config.vit import ViTConfig
from vitlab.errors import CheckpointError

WILD = Path(__file__).parents[2] / "golden" / "wild"
FAMILIES = sorted(path.name for path in WILD.glob("timm_*") if path.is_dir())
# Files whose keys more than one published function has: two kinds of GELU, of pooling, of rotary positions, two places of norms.
UNDECIDED = {"timm_clip", "timm_clip_quickgelu", "timm_rpn", "timm_dinov3_qkvb", "timm_pe_core"}


def test_there_are_twenty_eight_families() -> None:
    assert len(FAMILIES) == 28


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_gives_timms_logits_and_features(name: str) -> None:
    expected = load_file(WILD / f"{name}.expected.safetensors")
    images_BCHW = expected["images_BCHW"]
    model = load(WILD / name, image_size=(images_BCHW.shape[2], images_BCHW.shape[3])).model
    with torch.inference_mode():
        torch.testing.assert_close(model(images_BCHW), expected["logits_BC"], rtol=0, atol=2e-5)
        torch.testing.assert_close(model.features(images_BCHW), expected["features_BD"], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_read_written_and_read_again_is_the_same_bits(name: str, tmp_path: Path) -> None:
    convert(WILD / name, tmp_path / "out", to="timm")
    before, after = load_file(WILD / name / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    first, second = load(WILD / name), load(tmp_path / "out")
    assert first.config == second.config
    named = [json.loads((folder / "config.json").read_text()) for folder in (WILD / name, tmp_path / "out")]
    without_header = tmp_path / "plain"
    shutil.copytree(tmp_path / "out", without_header)
    save_file(after, without_header / "model.safetensors")  # as timm writes it: config.json alone must describe the model
    third = load(without_header).config
    assert isinstance(third, ViTConfig)
    assert isinstance(first.config, ViTConfig)
    assert replace(third, layer_scale=first.config.layer_scale) == first.config
    assert named[1]["model_args"]["embed_dim"] == named[0]["model_args"]["embed_dim"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_bare_file_is_read_right_or_refused(name: str, tmp_path: Path) -> None:
    bare = tmp_path / f"{name}.safetensors"
    shutil.copy(WILD / name / "model.safetensors", bare)
    expected = load_file(WILD / f"{name}.expected.safetensors")
    images_BCHW = expected["images_BCHW"]
    size = (images_BCHW.shape[2], images_BCHW.shape[3])
    if name in UNDECIDED:
        with pytest.raises(CheckpointError, match="could be") as caught:
            load(bare, heads=2)
        assert "config.json" in (caught.value.hint or "")
        return
    checkpoint = load(bare, heads=2, image_size=size)
    assert isinstance(checkpoint.config, ViTConfig)
    assert not checkpoint.config.traits or any("a guess from the keys" in note for note in checkpoint.notes)
    with torch.inference_mode():
        torch.testing.assert_close(checkpoint.model(images_BCHW), expected["logits_BC"], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("vit_dwee_patch16_reg1_gap_256", "differential attention"),
        ("vit_base_mci_224", "convolutional stem"),
        ("hiera_tiny_224", "hiera_tiny_224"),
        ("somebodys_vit_base", "somebodys_vit_base"),
        ("swin_tiny_patch4_window7_224", "Vision Transformer"),
    ],
)
def test_a_folder_that_names_another_architecture_is_refused_by_that_name(architecture: str, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(WILD / "timm_dinov2", folder)
    config = json.loads((folder / "config.json").read_text()) | {"architecture": architecture}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words) as caught:
        load(folder)
    assert architecture.split(".")[0] in caught.value.message


def test_an_argument_that_changes_the_function_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(WILD / "timm_eva02", folder)
    config = json.loads((folder / "config.json").read_text())
    config["model_args"]["rope_temperature"] = 100.0
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="rope_temperature"):
        load(folder)


def test_what_pre_training_left_in_a_file_is_named_in_a_note(tmp_path: Path) -> None:
    tensors = load_file(WILD / "timm_siglip_gap" / "model.safetensors")
    left = {
        "mask_token": torch.zeros(1, 1, 32),
        "decoder_embed.weight": torch.zeros(8, 32),
        "decoder_blocks.0.norm1.weight": torch.ones(8),
    }
    save_file(tensors | left, tmp_path / "mae.safetensors")
    notes = load(tmp_path / "mae.safetensors", heads=2).notes
    assert any("mask_token" in note and "decoder_blocks" in note and "decoder_embed" in note for note in notes)


def test_every_style_is_named_once_and_is_its_own() -> None:
    styles = [style_of(style) for style, _ in STYLES]
    names = [name for _, names in STYLES for name in names.split()]
    assert len(names) == len(set(names))
    assert all(style_of(timm_vit(names.split()[0])) == style for style, (_, names) in zip(styles, STYLES, strict=True))
