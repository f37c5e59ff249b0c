"""Hugging Face's own ViT and DeiT, both ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints.formats.samples import CAN, OPTIONS
from tests.peer.compare import TOLERANCE, distance, images, randomised, saved
from vitlab.checkpoints import convert, load, save
from vitlab.config import ViTConfig
from vitlab.errors import CheckpointError

SIZE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "num_labels": 5}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"image_size": 32, "patch_size": 8},
    "tanh, other eps": {"image_size": 32, "patch_size": 8, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6},
    "rectangle": {"image_size": (24, 56), "patch_size": 8},
    "one channel": {"image_size": 32, "patch_size": 8, "num_channels": 1},
    "no qkv bias": {"image_size": 32, "patch_size": 8, "qkv_bias": False},
}


def logits(model: Any) -> Callable[[Tensor], Tensor]:
    return lambda images_BCHW: model(images_BCHW).logits


def pooled(model: Any) -> Callable[[Tensor], Tensor]:
    return lambda images_BCHW: model(images_BCHW).pooler_output


def class_token(model: Any) -> Callable[[Tensor], Tensor]:
    return lambda images_BCHW: model(images_BCHW).last_hidden_state[:, 0]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", ["ViT", "DeiT"])
def test_a_classifier_that_transformers_saves_gives_its_logits(
    transformers: ModuleType, kind: str, name: str, tmp_path: Path
) -> None:
    config = getattr(transformers, f"{kind}Config")(**SIZE, **CONFIGS[name])
    theirs = randomised(getattr(transformers, f"{kind}ForImageClassification")(config))
    theirs.save_pretrained(tmp_path)
    checkpoint = load(tmp_path)
    assert checkpoint.format == "huggingface"
    assert not [note for note in checkpoint.notes if "guess" in note and "preprocessing" not in note]
    assert distance(checkpoint.model, logits(theirs), images(checkpoint.config)) < TOLERANCE


def test_the_names_of_transformers_modules_give_the_same_model_as_those_it_saves(transformers: ModuleType, tmp_path: Path) -> None:
    config = transformers.ViTConfig(**SIZE, **CONFIGS["plain"])
    theirs = randomised(transformers.ViTForImageClassification(config))
    theirs.save_pretrained(tmp_path / "saved")
    torch.save(theirs.state_dict(), tmp_path / "modules.bin")
    saved_names, module_names = load(tmp_path / "saved"), load(tmp_path / "modules.bin", heads=4)
    images_BCHW = images(saved_names.config)
    with torch.inference_mode():
        assert torch.equal(saved_names.model(images_BCHW), module_names.model(images_BCHW))


def test_a_model_with_a_pooler_gives_the_poolers_output(transformers: ModuleType, tmp_path: Path) -> None:
    config = transformers.ViTConfig(**SIZE, **CONFIGS["plain"], pooler_output_size=48)
    theirs = randomised(transformers.ViTModel(config, add_pooling_layer=True))
    theirs.save_pretrained(tmp_path)
    checkpoint = load(tmp_path)
    assert isinstance(checkpoint.config, ViTConfig)
    assert checkpoint.config.representation_width == 48
    assert distance(checkpoint.model, pooled(theirs), images(checkpoint.config)) < TOLERANCE


def test_a_model_without_a_pooler_gives_the_class_token(transformers: ModuleType, tmp_path: Path) -> None:
    theirs = randomised(transformers.ViTModel(transformers.ViTConfig(**SIZE, **CONFIGS["plain"]), add_pooling_layer=False))
    theirs.save_pretrained(tmp_path)
    checkpoint = load(tmp_path)
    assert distance(checkpoint.model, class_token(theirs), images(checkpoint.config)) < TOLERANCE


def test_a_masked_model_is_read_without_its_decoder_and_says_so(transformers: ModuleType, tmp_path: Path) -> None:
    config = transformers.ViTConfig(**SIZE, **CONFIGS["plain"], encoder_stride=8)
    theirs = randomised(transformers.ViTForMaskedImageModeling(config))
    theirs.save_pretrained(tmp_path)
    checkpoint = load(tmp_path)
    assert any("left out" in note and "decoder.0.weight" in note and "mask_token" in note for note in checkpoint.notes)
    assert distance(checkpoint.model, class_token(theirs.vit), images(checkpoint.config)) < TOLERANCE


def test_a_distilled_deit_gives_the_mean_of_its_two_heads(transformers: ModuleType, tmp_path: Path) -> None:
    config = transformers.DeiTConfig(**SIZE, **CONFIGS["plain"])
    theirs = randomised(transformers.DeiTForImageClassificationWithTeacher(config))
    theirs.save_pretrained(tmp_path)
    checkpoint = load(tmp_path)
    assert isinstance(checkpoint.config, ViTConfig)
    assert checkpoint.config.distill_token
    assert distance(checkpoint.model, logits(theirs), images(checkpoint.config)) < TOLERANCE


def opened_strictly(transformers: ModuleType, folder: Path) -> Any:
    """The model of the class that config.json names; every tensor of the file has its place and every parameter its tensor."""
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    has_pooler = "pooler_output_size" in json.loads((folder / "config.json").read_text())
    how = {"add_pooling_layer": has_pooler} if name.endswith("Model") else {}
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True, **how)
    assert not any(info.values()), info
    return model.eval()


# Its other families are in test_transformers_families.py.
PLAIN = [
    name
    for name in sorted(CAN["huggingface"] - {"clip", "map, no head", "dinov2", "dinov2, registers"})
    if isinstance(OPTIONS[name], ViTConfig)
]


@pytest.mark.parametrize("option", PLAIN)
def test_what_is_written_for_transformers_is_loaded_by_it_strictly_and_answers_alike(
    transformers: ModuleType, option: str, tmp_path: Path
) -> None:
    config = OPTIONS[option]
    assert isinstance(config, ViTConfig)
    labels = ("ant", "bee", "cat", "dog", "eel") if config.num_classes else None
    ours = saved(tmp_path / "native.safetensors", config, labels=labels)
    convert(tmp_path / "native.safetensors", tmp_path / "hf", to="huggingface")
    theirs = opened_strictly(transformers, tmp_path / "hf")
    answer = logits(theirs) if config.num_classes else pooled(theirs) if config.representation_width else class_token(theirs)
    assert distance(ours.model, answer, images(config)) < TOLERANCE
    if labels is not None:
        assert tuple(theirs.config.id2label[number] for number in range(5)) == labels


OTHERS: dict[str, dict[str, Any]] = {
    "ResNet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
    "ConvNextV2": {"image_size": 32, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]},
    "Swinv2": {"image_size": 32, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    "PoolFormer": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
}


@pytest.mark.parametrize("family", OTHERS)
def test_a_family_of_transformers_that_vitlab_does_not_read_is_refused_and_not_taken_for_another(
    transformers: ModuleType, family: str, tmp_path: Path
) -> None:
    config = getattr(transformers, f"{family}Config")(num_labels=5, **OTHERS[family])
    getattr(transformers, f"{family}ForImageClassification")(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=f"is a Hugging Face {config.model_type} model, which vitlab does not have"):
        load(tmp_path)


def test_a_model_fitted_to_another_grid_answers_alike_in_transformers(transformers: ModuleType, tmp_path: Path) -> None:
    theirs = randomised(transformers.ViTForImageClassification(transformers.ViTConfig(**SIZE, **CONFIGS["plain"])))
    theirs.save_pretrained(tmp_path / "small")
    fitted = load(tmp_path / "small", image_size=(48, 72))
    save(fitted, tmp_path / "fitted.safetensors")
    convert(tmp_path / "fitted.safetensors", tmp_path / "large", to="huggingface")
    large = opened_strictly(transformers, tmp_path / "large")
    assert distance(fitted.model, logits(large), images(fitted.config)) < TOLERANCE
