"""Miniature random models of other people's families, in the folders that their libraries save, with those libraries' answers."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints.formats.samples import OPTIONS, mini, random_state, same, written
from vitlab.checkpoints import convert, describe, load
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config import Numerics, ViTConfig
from vitlab.errors import CheckpointError
from vitlab.models.vit import ViT

WILD = Path(__file__).parents[2] / "golden" / "wild"
HUGGINGFACE = sorted(path.name for path in WILD.glob("hf_*") if path.is_dir())
TOLERANCE = 2e-5
SIGLIP_POOL = (
    *("probe", "attention.in_proj_weight", "attention.in_proj_bias"),
    *(f"{name}.{part}" for name in ("attention.out_proj", "layernorm", "mlp.fc1", "mlp.fc2") for part in ("weight", "bias")),
)
# What the files hold and the model does not use: it is named in a note, and not written again.
LEFT_OUT: dict[str, tuple[str, ...]] = {name: ("embeddings.mask_token",) for name in HUGGINGFACE if "dinov" in name}
LEFT_OUT["hf_efficientnet"] = ("num_batches_tracked",)
LEFT_OUT["hf_siglip_classifier"] = tuple(f"vision_model.head.{key}" for key in SIGLIP_POOL)
EVAS = (  # timm's names, and those of EVA-02's authors
    *((".attn.norm.", ".attn.inner_attn_ln."), (".mlp.norm.", ".mlp.ffn_ln."), (".mlp.fc1_g.", ".mlp.w1.")),
    *((".mlp.fc1_x.", ".mlp.w2."), (".mlp.fc2.", ".mlp.w3."), ("q_proj.bias", "q_bias"), ("v_proj.bias", "v_bias")),
)
# Written under the names of another class of transformers, which computes the same.
RENAMED = {"hf_msn": ("encoder.", "vit.encoder."), "hf_data2vec": ("data2vec_vision.", "beit.")}


def answers(checkpoint: Checkpoint, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the model answers, by the names of the recorded tensors."""
    images_BCHW, model = expected["images_BCHW"], checkpoint.model
    with torch.inference_mode():
        if "tokens_BND" in expected:
            assert isinstance(model, ViT)
            return {"tokens_BND": model.encode_images(images_BCHW)}
        if "boxes_BQ4" in expected:
            assert isinstance(model, ViT)
            return model.detect(images_BCHW)._asdict()
        (name,) = [name for name in expected if name != "images_BCHW"]
        return {name: model(images_BCHW)}


@pytest.mark.parametrize("name", HUGGINGFACE)
def test_a_hugging_face_folder_gives_what_transformers_answers(name: str) -> None:
    expected = load_file(WILD / f"{name}.expected.safetensors")
    height, width = expected["images_BCHW"].shape[2:]
    checkpoint = load(WILD / name, image_size=(height, width))
    assert checkpoint.format == "huggingface"
    assert checkpoint.labels is None
    for output, found in answers(checkpoint, expected).items():
        assert float((found - expected[output]).abs().max()) < TOLERANCE
    assert describe(WILD / name).config == load(WILD / name).config


@pytest.mark.parametrize("name", HUGGINGFACE)
def test_a_hugging_face_folder_is_written_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    convert(WILD / name, tmp_path / "native.safetensors", to="native")
    convert(tmp_path / "native.safetensors", tmp_path / "back", to="huggingface")
    before, after = load_file(WILD / name / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    left = [key for key in before if key.endswith(LEFT_OUT.get(name, ("?",)))]
    old, new = RENAMED.get(name, ("?", "?"))
    kept = {key.replace(old, new, 1) if key.startswith(old) else key: before[key] for key in before if key not in left}
    assert kept.keys() == after.keys()
    assert all(torch.equal(kept[key], after[key]) for key in kept)
    notes = " ".join(describe(WILD / name).notes)
    assert not left or name == "hf_efficientnet" or "left out" in notes
    assert load(tmp_path / "back").config == load(WILD / name).config


@pytest.mark.parametrize(("name", "naflex"), [("timm_naflex", True), ("timm_siglip", False)])
def test_a_naflex_model_says_that_its_images_are_made_one_size(name: str, naflex: bool) -> None:
    assert any("in its own aspect ratio" in note for note in load(WILD / name).notes) == naflex


@pytest.mark.parametrize("name", ["hiera", "resnet", "clip_text_model"])
def test_a_folder_that_names_a_model_which_vitlab_does_not_have_is_refused_by_that_name_whatever_its_tensors(
    name: str, tmp_path: Path
) -> None:
    shutil.copytree(WILD / "hf_vit", tmp_path / "folder")
    config = tmp_path / "folder" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": name}))
    for path in (tmp_path / "folder", tmp_path / "folder" / "model.safetensors"):
        with pytest.raises(CheckpointError, match=f"is a Hugging Face {name} model") as refused:
            load(path)
        assert "ViT-MAE" in (refused.value.hint or "")
        assert " tensors" not in refused.value.message


def test_what_only_pre_training_uses_is_left_out_with_a_note(tmp_path: Path) -> None:
    tensors = load_file(WILD / "hf_vitmae" / "model.safetensors")
    more = {f"vit.{key}": tensor for key, tensor in tensors.items()} | {
        "decoder.mask_token": torch.zeros(1, 1, 16),
        **{f"decoder.decoder_layers.{i}.layernorm_before.weight": torch.zeros(16) for i in range(8)},
    }
    shutil.copytree(WILD / "hf_vitmae", tmp_path / "mae")
    save_file(more, tmp_path / "mae" / "model.safetensors")
    checkpoint = load(tmp_path / "mae")
    assert any("left out" in note and "decoder (9 tensors)" in note for note in checkpoint.notes)
    state = load(WILD / "hf_vitmae").model.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in checkpoint.model.state_dict().items())


def test_the_vision_half_of_a_whole_clip_is_read_and_the_text_half_is_named(tmp_path: Path) -> None:
    config = OPTIONS["clip"]
    state = random_state(config, dtype=torch.float16)
    vision = written("openai-clip", config, state).tensors
    text = {f"transformer.resblocks.0.{name}": torch.zeros(3) for name in ("ln_1.weight", "attn.in_proj_weight")}
    text |= {"token_embedding.weight": torch.zeros(5, 3), "positional_embedding": torch.zeros(4, 3), "logit_scale": torch.zeros(())}
    text |= {"text_projection": torch.zeros(3, 3), "ln_final.weight": torch.zeros(3), "context_length": torch.tensor(77)}
    torch.save(vision | text, tmp_path / "ViT-B-32.pt")
    checkpoint = load(tmp_path / "ViT-B-32.pt", dtype=None)
    assert checkpoint.format == "openai-clip"
    assert same(dict(checkpoint.model.state_dict()), state)
    assert any("the text half (8 tensors)" in note for note in checkpoint.notes)
    assert any("quick GELU is a guess" in note for note in checkpoint.notes)
    alone = {key.removeprefix("visual."): tensor for key, tensor in vision.items()}
    torch.save(alone, tmp_path / "visual.pt")
    assert load(tmp_path / "visual.pt").config == checkpoint.config


def test_checkpoints_of_self_supervised_training_give_their_encoder_and_name_the_rest(tmp_path: Path) -> None:
    config = replace(mini(), num_classes=0, numerics=Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic"))
    state = random_state(config)
    timm = written("timm", config, state).tensors
    head = {"head.mlp.0.weight": torch.zeros(3, 3)}
    projector = {f"head.{i}.weight": torch.zeros(3, 3) for i in (0, 3)}
    twice = {
        f"module.{name}.{key}": tensor
        for name in ("base_encoder", "momentum_encoder")
        for key, tensor in (timm | projector).items()
    }
    decoder = {
        "mask_token": torch.zeros(1, 1, 8),
        "decoder_embed.weight": torch.zeros(8, 64),
        "decoder_blocks.0.norm1.weight": torch.zeros(8),
    }
    options = argparse.Namespace(arch="vit_mini", patch_size=8)
    files = {  # what was saved -> words of the notes
        "DINO": (
            {"student": {}, "teacher": {f"backbone.{key}": tensor for key, tensor in timm.items()} | head, "args": options},
            "head",
        ),
        "MoCo v3": (
            {"epoch": 1, "state_dict": twice | {"module.predictor.0.weight": torch.zeros(3)}},
            "momentum_encoder, predictor",
        ),
        "MAE": ({"model": timm | decoder, "args": options}, "decoder"),
    }
    for name, (content, words) in files.items():
        torch.save(content, tmp_path / f"{name}.pth")
        checkpoint = load(tmp_path / f"{name}.pth", heads=4)
        assert same(dict(checkpoint.model.state_dict()), state), name
        assert any(words in note for note in checkpoint.notes), checkpoint.notes


def test_a_dinov2_of_its_authors_is_the_same_model_as_transformers_folder_of_it(tmp_path: Path) -> None:
    for name in ("dinov2", "dinov2, registers"):
        config = OPTIONS[name]
        tensors = written("dinov2", config, random_state(config)).tensors
        torch.save(tensors, tmp_path / "dinov2_pretrain.pth")
        checkpoint = load(tmp_path / "dinov2_pretrain.pth")
        assert (checkpoint.format, checkpoint.config) == ("dinov2", config)
        assert any("left out: mask_token" in note for note in checkpoint.notes)
        assert checkpoint.preprocess.image_size == (224, 224)
        convert(tmp_path / "dinov2_pretrain.pth", tmp_path / name, to="huggingface")
        assert same(dict(load(tmp_path / name).model.state_dict()), dict(checkpoint.model.state_dict()))


def test_an_eva_02_under_its_authors_names_is_the_one_of_timm(tmp_path: Path) -> None:
    timm = load_file(WILD / "timm_eva02_clip" / "model.safetensors")
    renamed = {}
    for key, tensor in timm.items():
        for timms, theirs in EVAS:
            key = key.replace(timms, theirs)
        renamed[key] = tensor
    assert renamed.keys() != timm.keys()
    shutil.copytree(WILD / "timm_eva02_clip", tmp_path / "eva")
    (tmp_path / "eva" / "model.safetensors").unlink()
    torch.save({"module": renamed}, tmp_path / "eva" / "eva02.pt")
    state = load(WILD / "timm_eva02_clip").model.state_dict()
    assert same(dict(load(tmp_path / "eva").model.state_dict()), dict(state))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("layer1.0.conv1.weight", "a ResNet with BatchNorm"),
        ("visual.layer1.0.conv1.weight", "a CLIP with a ResNet"),
        ("transformer.h.0.attn.c_attn.weight", "a language model"),
        ("text_model.encoder.layers.0.mlp.fc1.weight", "a text tower"),
        ("model.diffusion_model.input_blocks.0.0.weight", "a diffusion model"),
        ("mystery.weight", "does not know: its tensors are called mystery.weight"),
    ],
)
def test_a_file_of_another_architecture_is_refused_by_what_it_is(key: str, words: str, tmp_path: Path) -> None:
    save_file({key: torch.zeros(4, 4), "other.bias": torch.zeros(4)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=words) as refused:
        load(tmp_path / "model.safetensors")
    assert "incomplete" not in str(refused.value)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dinov2"}))
    with pytest.raises(CheckpointError, match="is not the Hugging Face DINOv2 model that the config"):
        load(tmp_path)


def test_a_training_checkpoint_of_beits_authors_is_the_model_of_timms_folder(tmp_path: Path) -> None:
    folder = WILD / "timm_beit"
    expected = load(folder)
    assert isinstance(expected.config, ViTConfig)
    torch.save({"model": load_file(folder / "model.safetensors"), "epoch": 3, "optimizer": {}}, tmp_path / "beit.pth")
    found = load(tmp_path / "beit.pth", heads=expected.config.heads)
    state = expected.model.state_dict()
    assert found.model.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.model.state_dict().items())
