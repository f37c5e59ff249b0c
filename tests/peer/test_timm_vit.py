"""timm's own VisionTransformer, both ways: what it saves is read, and what is written for it it builds, loads and answers alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoints.formats.samples import CAN, OPTIONS
from tests.peer.compare import TOLERANCE, distance, images, randomised, saved
from vitlab.checkpoints import convert, load
from vitlab.checkpoints.formats.contract import native_shapes, their_shapes
from vitlab.checkpoints.formats.timm_vit import vit_rows
from vitlab.config import ViTConfig
from vitlab.config.vit import PROFILES
from vitlab.inference import bench

HEADS = 4
SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": HEADS, "num_classes": 5}
NAMES: dict[str, str] = {"distilled": "deit_tiny_distilled_patch16_224"}  # the others are plain ViTs
MODELS: dict[str, dict[str, Any]] = {
    "token": {},
    "mean": {"class_token": False, "global_pool": "avg"},
    "mean beside a class token": {"global_pool": "avg"},
    "mean, norm before it": {"global_pool": "avg", "fc_norm": False},
    "SigLIP": {"class_token": False, "global_pool": "map", "act_layer": "gelu_tanh"},
    "map beside class token and registers": {"global_pool": "map", "reg_tokens": 2, "no_embed_class": True},
    "registers": {"reg_tokens": 4},
    "registers without positions": {"reg_tokens": 4, "no_embed_class": True},
    "layer scale": {"init_values": 0.1},
    "rectangle": {"img_size": (24, 56)},
    "rectangular patch": {"patch_size": (8, 4)},
    "no qkv bias": {"qkv_bias": False},
    "one channel": {"in_chans": 1},
    "five channels": {"in_chans": 5},
    "no positions": {"pos_embed": "none"},
    "no head": {"num_classes": 0},
    "odd MLP": {"mlp_ratio": 2.7},
    "distilled": {},
}
UNSAID = ("mean, norm before it", "SigLIP")  # what no tensor shows, and only config.json says


def timm_model(timm: ModuleType, name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A random model and the arguments it was made with."""
    arguments = SIZE | MODELS[name]
    return randomised(timm.create_model(NAMES.get(name, "vit_base_patch16_224"), **arguments)), arguments


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("name", MODELS)
def test_a_folder_that_timm_saves_gives_timms_logits_without_arguments(
    timm: ModuleType, name: str, safe: bool, tmp_path: Path
) -> None:
    model, arguments = timm_model(timm, name)
    timm.models.save_for_hf(model, tmp_path, model_args=arguments, safe_serialization=safe)
    checkpoint = load(tmp_path)
    assert checkpoint.format == "timm"
    assert not [note for note in checkpoint.notes if "guess" in note]
    assert distance(checkpoint.model, model, images(checkpoint.config)) < TOLERANCE


@pytest.mark.parametrize("name", [name for name in MODELS if name not in UNSAID])
def test_a_bare_state_dict_of_timm_gives_timms_logits_with_heads_and_grid(timm: ModuleType, name: str, tmp_path: Path) -> None:
    model, _ = timm_model(timm, name)
    grid: Any = model.patch_embed.grid_size  # type: ignore[union-attr]
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "model.pth")
    checkpoint = load(tmp_path / "model.pth", heads=HEADS, grid=tuple(grid))
    assert distance(checkpoint.model, model, images(checkpoint.config)) < TOLERANCE


def with_timms_eps(option: str) -> ViTConfig:
    """The option's config with the norm's eps that timm has."""
    config = OPTIONS[option]
    assert isinstance(config, ViTConfig)
    return replace(config, numerics=replace(config.numerics, norm_eps=PROFILES["timm"].norm_eps))


def is_vit_for_a_folder(option: str) -> bool:
    """Whether timm can build it: it has no hidden layer before the head, and other files test hybrids and other families."""
    config = OPTIONS[option]
    return isinstance(config, ViTConfig) and config.stem is None and not config.representation_width


@pytest.mark.parametrize("option", sorted(filter(is_vit_for_a_folder, CAN["timm"])))
def test_a_folder_written_for_timm_is_built_and_loaded_by_timm_and_answers_alike(
    timm: ModuleType, option: str, tmp_path: Path
) -> None:
    config = with_timms_eps(option)
    ours = saved(tmp_path / "native.safetensors", config, labels=("a", "b", "c", "d", "e") if config.num_classes else None)
    convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    assert distance(ours.model, theirs, images(config)) < TOLERANCE
    assert theirs.state_dict().keys() == load_file(tmp_path / "timm" / "model.safetensors").keys()
    fed = timm.data.resolve_model_data_config(theirs)
    assert list(fed["input_size"]) == [config.channels, *config.image_size]
    assert (list(fed["mean"]), fed["crop_mode"], fed["interpolation"]) == ([0.5] * config.channels, "squash", "bicubic")


WRITTEN = ("plain", "map", "distilled", "four registers, bare positions", "layer scale", "mean, norm after", "other grid")


@pytest.mark.parametrize("option", WRITTEN)
def test_a_file_written_for_timm_loads_strictly_into_the_model_its_notes_describe(
    timm: ModuleType, option: str, tmp_path: Path
) -> None:
    config = with_timms_eps(option)
    ours = saved(tmp_path / "native.safetensors", config)
    convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm")
    notes = " ".join(convert(tmp_path / "native.safetensors", tmp_path / "timm.safetensors", to="timm"))
    said = json.loads((tmp_path / "timm" / "config.json").read_text())
    theirs = timm.create_model(said["architecture"], num_classes=said["num_classes"], **said["model_args"]).eval()
    theirs.load_state_dict(load_file(tmp_path / "timm.safetensors"), strict=True)
    assert distance(ours.model, theirs, images(config)) < TOLERANCE
    assert "num_heads=4" in notes
    assert "act_layer='gelu_tanh'" in notes


def test_timm_fine_tunes_from_a_folder_with_another_head_other_channels_and_another_size(timm: ModuleType, tmp_path: Path) -> None:
    ours = saved(tmp_path / "native.safetensors", with_timms_eps("plain"))
    convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm")
    name = f"local-dir:{tmp_path / 'timm'}"
    other = timm.create_model(name, pretrained=True, num_classes=9, in_chans=1, img_size=48).eval()
    assert other(torch.zeros(1, 1, 48, 48)).shape == (1, 9)
    grey = ours.model.state_dict()["patches.weight"].sum(1, keepdim=True)
    assert torch.allclose(other.patch_embed.proj.weight, grey, atol=1e-6)


def test_eps_that_timm_cannot_be_given_is_said_and_makes_the_difference_that_is_said(timm: ModuleType, tmp_path: Path) -> None:
    config = OPTIONS["exact gelu, hf eps"]
    ours = saved(tmp_path / "native.safetensors", config)
    notes = " ".join(convert(tmp_path / "native.safetensors", tmp_path / "timm", to="timm"))
    assert "LayerNorm eps is 1e-12 and timm uses 1e-06" in notes
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    assert 0 < distance(ours.model, theirs, images(config)) < 1e-3


@pytest.mark.parametrize("option", ["plain", "four registers", "mean, norm after", "other grid", "one channel"])
@pytest.mark.usefixtures("timm")
def test_the_timm_model_that_bench_measures_beside_ours_has_our_sizes(option: str) -> None:
    config = OPTIONS[option]
    assert isinstance(config, ViTConfig)
    theirs = {key: tuple(tensor.shape) for key, tensor in bench.timm_model(config).state_dict().items()}
    assert theirs == their_shapes(list(vit_rows(config)), native_shapes(config))
