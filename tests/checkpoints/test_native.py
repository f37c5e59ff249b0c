"""One file holds all of a checkpoint, gives it back bit for bit, and is either whole or refused."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from tests.checkpoints.containers.forked import exit_code_of
from tests.checkpoints.small import LABELS, config_text, images, logits_of, resealed, small_checkpoint, small_config
from vitlab.checkpoints import Checkpoint, describe, load, save
from vitlab.checkpoints.native import HeaderFacts, sealed_header, tensors_digest
from vitlab.config import Position, Preprocess, ResNetConfig, ResNetStem
from vitlab.config.model import ModelConfig
from vitlab.errors import CheckpointError
from vitlab.models import build

CONFIGS: dict[str, ModelConfig] = {
    "mini": small_config(),
    "no head": small_config(num_classes=0),
    "registers, layer scale, map pool": small_config(register_tokens=2, layer_scale=0.1, pool="map"),
    "fixed positions, mean": small_config(position=Position(kind="sincos-2d"), pool="mean", class_token=False),
    "rectangular, padded, one channel": small_config(image_size=(20, 33), patch_size=(8, 4), pad=True, channels=1),
    "distilled": small_config(distill_token=True),
    "hybrid": small_config(stem=ResNetStem(blocks=(1,), width=32), patch_size=(2, 2), image_size=(32, 32)),
    "resnet": ResNetConfig(blocks=(1, 1), stage_widths=(128, 256), root_width=32, image_size=(32, 32), num_classes=10),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_loading_gives_back_the_model_bit_for_bit_and_everything_beside_it(tmp_path: Path, kind: str) -> None:
    checkpoint = small_checkpoint(CONFIGS[kind])
    save(checkpoint, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    for name in ("config", "preprocess", "labels", "format", "recipe"):
        assert getattr(loaded, name) == getattr(checkpoint, name), name
    assert (loaded.notes, loaded.history) == ((), checkpoint.notes)  # what was noted of its making is not noted again
    assert repr(loaded.metrics) == repr(checkpoint.metrics)  # nan is not equal to itself
    before, after = checkpoint.model.state_dict(), loaded.model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not loaded.model.training
    images_BCHW = images(checkpoint.config)
    assert torch.equal(logits_of(checkpoint, images_BCHW), logits_of(loaded, images_BCHW))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_weights_keep_their_type_in_the_file_and_become_float32_unless_asked(tmp_path: Path, dtype: torch.dtype) -> None:
    checkpoint = small_checkpoint()
    checkpoint.model.to(dtype)
    path = tmp_path / "model.safetensors"
    save(checkpoint, path)
    kept, usual = load(path, dtype=None), load(path)
    state = checkpoint.model.state_dict()
    assert all(torch.equal(tensor, state[name]) and tensor.dtype == dtype for name, tensor in kept.model.state_dict().items())
    assert all(torch.equal(tensor, state[name].float()) for name, tensor in usual.model.state_dict().items())
    name = str(dtype).removeprefix("torch.")
    assert describe(path).dtypes == (name,)
    if dtype is torch.float32:
        assert kept.notes == usual.notes == ()
    else:
        assert kept.notes[-1] == f"weights kept as in the file: {name}"
        assert usual.notes[-1] == f"weights converted from {name} to float32"


def test_saving_twice_gives_the_same_bytes_and_a_loaded_one_saves_to_the_same_bytes(tmp_path: Path) -> None:
    checkpoint = small_checkpoint()
    for name in ("one", "two"):
        save(checkpoint, tmp_path / name)
    save(load(tmp_path / "one"), tmp_path / "three")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == (tmp_path / "three").read_bytes()


def test_a_loaded_model_can_be_trained_on_and_does_not_touch_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save(small_checkpoint(), path)
    before = path.read_bytes()
    model = load(path).model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(images(small_config())).square().sum().backward()
    optimiser.step()
    assert path.read_bytes() == before
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_other_programs_read_the_same_tensors_from_the_file(tmp_path: Path) -> None:
    checkpoint = small_checkpoint()
    save(checkpoint, tmp_path / "model.safetensors")
    read = safetensors.torch.load_file(tmp_path / "model.safetensors")
    state = checkpoint.model.state_dict()
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as opened:
        metadata = opened.metadata()
    assert metadata["format"] == "pt"
    assert tuple(json.loads(metadata["vitlab.labels"])) == LABELS


def test_the_digest_of_the_tensors_is_the_documented_one_and_theirs_alone(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(2, dtype=torch.float16), "\u00e9": torch.tensor(1.5)}
    digest = hashlib.sha256()
    for line, tensor in (('["a","F16",[2]]', "a"), ('["b","F32",[2,3]]', "b"), ('["\\u00e9","F32",[]]', "\u00e9")):
        digest.update(line.encode("ascii") + b"\n" + tensors[tensor].numpy().tobytes())
    assert tensors_digest(tensors) == digest.hexdigest()
    checkpoint = small_checkpoint()
    save(checkpoint, tmp_path / "one")
    save(replace(checkpoint, labels=None, notes=("other",), metrics=None), tmp_path / "two")
    save(small_checkpoint(seed=1), tmp_path / "three")
    one, two, three = (describe(tmp_path / name).metadata["tensors_sha256"] for name in ("one", "two", "three"))
    assert one == two != three


def test_the_digest_of_the_header_is_the_documented_one(tmp_path: Path) -> None:
    save(small_checkpoint(), tmp_path / "model")
    whole = (tmp_path / "model").read_bytes()
    head = whole[: 8 + int.from_bytes(whole[:8], "little")]
    digest = json.loads(head[8:])["__metadata__"]["vitlab.header_sha256"]
    assert hashlib.sha256(head.replace(digest.encode(), b"0" * 64)).hexdigest() == digest


def test_describe_reads_the_header_alone(tmp_path: Path) -> None:
    checkpoint = small_checkpoint()
    path = tmp_path / "model"
    save(checkpoint, path)
    with path.open("r+b") as file:  # damage in the weights, which describe does not read
        file.seek(-4, os.SEEK_END)
        file.write(b"\xff\xff\xff\xff")
    said = describe(path)
    assert (said.format, said.config, said.preprocess, said.labels) == ("native", checkpoint.config, checkpoint.preprocess, LABELS)
    assert said.parameters == sum(parameter.numel() for parameter in checkpoint.model.parameters())
    assert said.metadata["recipe"] == checkpoint.recipe
    assert said.metadata["version"] == "1"
    assert (said.notes, said.history) == ((), checkpoint.notes)
    with pytest.raises(CheckpointError, match="SHA-256"):
        load(path)


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "model", small_checkpoint()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"labels": LABELS[:-1]}, "9 labels for a head of 10 classes"),
        ({"config": small_config(heads=2)}, "another config"),
        ({"model": build(small_config(depth=1))}, "another config"),
        ({"model": torch.nn.Linear(2, 2)}, "another config"),
        ({"preprocess": Preprocess(image_size=(48, 48))}, "48x48 pixels and the model takes 32x32"),
        ({"preprocess": replace(checkpoint.preprocess, mean=(0.5,), std=(0.5,))}, "1 channels and the model takes 3"),
        ({"recipe": {"a": object()}}, "plain JSON"),
        ({"recipe": {"a": float("nan")}}, "plain JSON"),
        ({"notes": ("x" * (5 << 20),)}, "a header may have"),
    ]
    for change, word in wrong:
        with pytest.raises(CheckpointError, match=word):
            save(replace(checkpoint, **change), path)
    assert list(tmp_path.iterdir()) == []


def test_saving_over_a_checkpoint_survives_a_full_disk_and_a_crash(tmp_path: Path) -> None:
    path, said = tmp_path / "model", tmp_path / "said"
    save(small_checkpoint(), path)
    before = path.read_bytes()

    def fill_the_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            save(small_checkpoint(seed=1), path)
        except CheckpointError as error:
            said.write_text(str(error))
            os._exit(3)

    def crash() -> None:
        setattr(os, "replace", lambda *_: os._exit(137))  # noqa: B010 - in the child alone
        save(small_checkpoint(seed=1), path)

    assert exit_code_of(fill_the_disk) == 3
    assert f"{len(before):,} bytes are needed" in said.read_text()
    said.unlink()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert exit_code_of(crash) == 137
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
    save(small_checkpoint(seed=1), path)
    assert path.read_bytes() != before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_saved_checkpoint_has_the_mode_the_umask_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(small_checkpoint(), tmp_path / "model")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o640


def test_a_version_from_the_future_is_refused_as_that(tmp_path: Path) -> None:
    save(small_checkpoint(), tmp_path / "model")
    resealed(tmp_path / "model", tmp_path / "same", {})
    assert load(tmp_path / "same").labels == LABELS
    resealed(tmp_path / "model", tmp_path / "future", {"version": "2", "more": "of it"})
    with pytest.raises(CheckpointError, match="version 2, and this vitlab knows up to 1") as refused:
        load(tmp_path / "future")
    assert refused.value.hint is not None
    assert "upgrade" in refused.value.hint
    for version in (None, "0", "-1", "1.0", "x", "\u0661", "9" * 5000):
        resealed(tmp_path / "model", tmp_path / "odd", {"version": version})
        with pytest.raises(CheckpointError):
            load(tmp_path / "odd")


def test_a_header_with_right_digests_and_wrong_content_is_refused(tmp_path: Path) -> None:
    path, target = tmp_path / "model", tmp_path / "changed"
    save(small_checkpoint(), path)
    wrong: list[tuple[dict[str, str | None], str]] = [
        ({"config": None}, "lacks or adds config"),
        ({"extra": "x"}, "lacks or adds extra"),
        ({"config": "{"}, "cannot be understood"),
        ({"config": "[" * 100_000}, "cannot be understood"),
        ({"config": config_text(path, family="perceiver")}, "perceiver"),
        ({"config": config_text(path, widht=64)}, "no setting called config.widht"),
        ({"config": config_text(path, width="64")}, "config.width should be a whole number"),
        ({"config": config_text(path, heads=7)}, "not a multiple of heads"),
        ({"config": config_text(path, depth=3)}, "encoder.blocks.2.norm1.weight is missing"),
        ({"config": config_text(path, depth=1)}, "encoder.blocks.1.norm1.weight is unknown"),
        ({"config": config_text(path, mlp_width=64)}, "is 128x64 and should be 64x64"),
        ({"preprocess": "{}x"}, "cannot be understood"),
        ({"preprocess": '{"fill": 300}'}, "fill"),
        ({"preprocess": "{}"}, "224x224 pixels and the model takes 32x32"),
        ({"labels": '["a"]'}, "1 labels for a head of 10 classes"),
        ({"labels": "[1,2]"}, "labels[0] should be text"),
        ({"recipe": "[]"}, "recipe should be an object"),
        ({"metrics": '{"a":"b"}'}, "cannot be understood"),
        ({"metrics": '{"a":[1]}'}, "metrics.a"),
        ({"notes": "3"}, "notes should be a list"),
    ]
    for change, word in wrong:
        resealed(path, target, change)
        with pytest.raises(CheckpointError) as refused:
            load(target)
        assert word in str(refused.value), (change, str(refused.value))


def test_a_config_that_computes_gigabytes_of_positions_is_refused_before_it_does(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(small_config(position=Position(kind="sincos-2d")))
    save(checkpoint, tmp_path / "model")
    text = config_text(tmp_path / "model", image_size=[4096, 4096], width=256, heads=4, dynamic_size=True)
    resealed(tmp_path / "model", tmp_path / "big", {"config": text})
    with pytest.raises(CheckpointError, match="beyond any model"):
        load(tmp_path / "big")


def test_a_header_is_sealed_without_reading_labels_as_anything_but_text() -> None:
    """Labels that look like the header's own digest do not confuse it."""
    checkpoint = small_checkpoint()
    facts = HeaderFacts(config=checkpoint.config, preprocess=checkpoint.preprocess, labels=("0" * 64,) * 10)
    header = sealed_header(checkpoint.model.state_dict(), facts)
    digest = json.loads(header.text)["__metadata__"]["vitlab.header_sha256"]
    assert header.text.count(digest.encode()) == 1


def test_labels_of_zeros_survive(tmp_path: Path) -> None:
    zeros: Checkpoint = replace(small_checkpoint(), labels=("0" * 64,) * 10)
    save(zeros, tmp_path / "model")
    assert load(tmp_path / "model").labels == zeros.labels


@pytest.mark.parametrize("classes", [3, 10, 0])
def test_a_head_that_was_replaced_is_saved_with_its_classes(tmp_path: Path, classes: int) -> None:
    checkpoint = small_checkpoint()
    width = checkpoint.config.feature_width
    checkpoint.model.head = torch.nn.Linear(width, classes) if classes else torch.nn.Identity()
    save(checkpoint, tmp_path / "swapped.safetensors")
    loaded = load(tmp_path / "swapped.safetensors")
    assert loaded.config == replace(checkpoint.config, num_classes=classes)
    assert loaded.labels == (LABELS if classes == 10 else None)
    images_BCHW = images(checkpoint.config)
    assert torch.equal(logits_of(checkpoint, images_BCHW), logits_of(loaded, images_BCHW))
    reset = small_checkpoint()
    reset.model.reset_classifier(4)
    save(reset, tmp_path / "reset.safetensors")
    reset.model.head = torch.nn.Linear(width, 6)
    save(reset, tmp_path / "both.safetensors")
    assert load(tmp_path / "both.safetensors").config.num_classes == 6
    assert load(tmp_path / "reset.safetensors").config.num_classes == 4


def test_a_head_of_another_width_is_refused(tmp_path: Path) -> None:
    checkpoint = small_checkpoint()
    checkpoint.model.head = torch.nn.Linear(5, 3)
    with pytest.raises(CheckpointError, match=r"head.weight is 3x5"):
        save(checkpoint, tmp_path / "wrong.safetensors")


def test_a_head_of_several_layers_is_refused_in_words(tmp_path: Path) -> None:
    checkpoint = small_checkpoint()
    width = checkpoint.config.feature_width
    checkpoint.model.head = torch.nn.Sequential(torch.nn.Linear(width, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    with pytest.raises(CheckpointError, match=r"the head is an nn\.Sequential"):
        save(checkpoint, tmp_path / "deep.safetensors")


def test_a_name_of_another_format_is_refused(tmp_path: Path) -> None:
    for name in ("model.npz", "model.pth"):
        with pytest.raises(CheckpointError, match=r"another format.*convert"):
            save(small_checkpoint(small_config()), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
