"""Any checkpoint becomes a model that is ready to use, and says what was done on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints.small import (
    FILES,
    HEADS,
    LABELS,
    feed_for,
    images,
    logits_of,
    small_checkpoint,
    small_config,
    write_every_format,
)
from vitlab.checkpoints import convert, describe, load, save
from vitlab.checkpoints.containers import read_file, write_npz, write_safetensors
from vitlab.checkpoints.formats import FORMATS
from vitlab.config import Position, Preprocess, ResNetConfig
from vitlab.config.vit import PROFILES, ViTConfig
from vitlab.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same small model in every format."""
    return write_every_format(tmp_path_factory.mktemp("formats"))


@pytest.mark.parametrize("kind", FILES)
def test_every_format_is_recognised_by_its_content_and_gives_the_same_logits_in_the_same_profile(files: Path, kind: str) -> None:
    native = load(files / FILES["native"])
    loaded = load(files / FILES[kind], heads=HEADS, profile="official")
    assert loaded.format == kind
    assert not loaded.model.training
    assert isinstance(loaded.config, ViTConfig)
    assert loaded.config.numerics == PROFILES["official"]
    images_BCHW = images(native.config)
    assert torch.equal(logits_of(loaded, images_BCHW), logits_of(native, images_BCHW))
    said = describe(files / FILES[kind], heads=HEADS, profile="official")
    assert (said.format, said.config, said.preprocess) == (kind, loaded.config, loaded.preprocess)
    assert said.parameters == sum(parameter.numel() for parameter in loaded.model.parameters())


def test_a_torch_file_of_a_known_layout_is_read_like_its_safetensors(files: Path, tmp_path: Path) -> None:
    tensors = read_file(files / FILES["timm"]).tensors
    torch.save({"state_dict": tensors, "epoch": 1}, tmp_path / "model.pth")
    write_safetensors(tmp_path / "model.safetensors", tensors, {})
    one, two = load(tmp_path / "model.safetensors", heads=HEADS), load(tmp_path / "model.pth", heads=HEADS)
    images_BCHW = images(one.config)
    assert torch.equal(logits_of(one, images_BCHW), logits_of(two, images_BCHW))
    assert "took the weights under 'state_dict'" in two.notes


def test_a_guess_is_noted_and_an_argument_is_not(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "bare.safetensors"
    write_safetensors(path, read_file(files / FILES["timm"]).tensors, {})
    guessed, found = load(path), load(path, heads=HEADS)
    assert any("heads=1 is a guess" in note for note in guessed.notes)
    assert not any("heads" in note for note in found.notes)
    assert isinstance(guessed.config, ViTConfig)
    assert isinstance(found.config, ViTConfig)
    assert (guessed.config.heads, found.config.heads) == (1, HEADS)


def test_a_native_file_says_its_heads_and_grid_itself(files: Path) -> None:
    path = files / FILES["native"]
    assert load(path, heads=4, grid=4).config == load(path, grid=(4, 4)).config == load(path).config
    with pytest.raises(CheckpointError, match="says heads=4 itself; heads=2 contradicts it"):
        load(path, heads=2)
    with pytest.raises(CheckpointError, match=r"says grid=\(4, 4\) itself"):
        load(path, grid=(2, 8))


def test_a_profile_changes_the_numerics_of_a_native_file_and_nothing_else(files: Path) -> None:
    path = files / FILES["native"]
    before, after = load(path), load(path, profile="huggingface")
    assert after.config == small_config(numerics=PROFILES["huggingface"])
    assert any("huggingface" in note for note in after.notes)
    images_BCHW = images(before.config)
    difference = (logits_of(before, images_BCHW) - logits_of(after, images_BCHW)).abs().max()
    assert 0 < difference < 0.05
    with pytest.raises(ConfigError, match="no numerics profile called 'hugginface'"):
        load(path, profile="hugginface")


def test_a_fitted_checkpoint_can_be_saved_and_loaded_again(files: Path, tmp_path: Path) -> None:
    fitted = load(files / FILES["timm"], heads=HEADS, image_size=(32, 64), num_classes=2, labels=["no", "yes"], channels=4)
    save(fitted, tmp_path / "fitted.safetensors")
    again = load(tmp_path / "fitted.safetensors")
    assert (again.config, again.preprocess, again.labels, again.history) == (
        fitted.config,
        fitted.preprocess,
        ("no", "yes"),
        fitted.notes,
    )
    images_BCHW = images(fitted.config)
    assert torch.equal(logits_of(again, images_BCHW), logits_of(fitted, images_BCHW))


def test_asking_for_what_the_file_has_changes_nothing(files: Path) -> None:
    path = files / FILES["native"]
    plain, same = load(path), load(path, num_classes=10, image_size=32, patch_size=8, channels=3)
    assert (plain.config, plain.preprocess, plain.labels, plain.notes) == (same.config, same.preprocess, same.labels, same.notes)
    assert torch.equal(logits_of(plain, images(plain.config)), logits_of(same, images(plain.config)))


def test_a_new_head_for_the_same_number_of_classes_is_zeros_and_has_no_labels(files: Path) -> None:
    loaded = load(files / FILES["native"], new_head=True)
    assert loaded.labels is None
    assert loaded.metrics is None
    assert "metrics of the model before fitting left out" in loaded.notes
    assert torch.equal(logits_of(loaded, images(loaded.config)), torch.zeros(2, 10))


def test_labels_given_are_one_a_class_or_refused(files: Path) -> None:
    path = files / FILES["native"]
    names = [f"class {number}" for number in range(10)]
    assert load(path).labels == LABELS
    named = load(path, labels=names)
    assert named.labels == tuple(names)
    assert "labels as given, not as in the file" in named.notes
    assert load(files / FILES["jax-npz"], labels=names).labels == tuple(names)
    assert load(path, num_classes=2, labels=("a", "b")).labels == ("a", "b")
    with pytest.raises(CheckpointError, match="9 labels for a head of 10 classes"):
        load(path, labels=names[:9])
    with pytest.raises(CheckpointError, match="10 labels for a head of 2 classes"):
        load(path, num_classes=2, labels=names)
    with pytest.raises(CheckpointError, match="one text"):
        load(path, labels="abcdefghij")


def test_preprocessing_given_is_used_or_refused_where_the_model_cannot_take_it(files: Path) -> None:
    path = files / FILES["native"]
    given = Preprocess(image_size=(32, 32), resize="squash")
    loaded = load(path, preprocess=given)
    assert loaded.preprocess == given
    assert any("preprocessing as given, not as in the file" in note for note in loaded.notes)
    with pytest.raises(CheckpointError, match="48x48 pixels and the model takes 32x32"):
        load(path, preprocess=Preprocess(image_size=(48, 48)))
    assert load(path, preprocess=Preprocess(image_size=(48, 48)), dynamic_size=True).preprocess.image_size == (48, 48)
    with pytest.raises(CheckpointError, match="1 channels and the model takes 3"):
        load(path, preprocess=Preprocess(image_size=(32, 32), mean=(0.5,), std=(0.5,)))


def test_weights_are_used_in_the_type_asked_for(files: Path) -> None:
    path = files / FILES["native"]
    half = load(path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    assert half.notes[-1] == "weights converted from float32 to bfloat16"
    with pytest.raises(CheckpointError, match=r"cannot be torch\.int8"):
        load(path, dtype=torch.int8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_and_double_files_of_other_formats_are_widened_or_kept_as_asked(
    files: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in read_file(files / FILES["jax-npz"]).tensors.items()}
    write_npz(tmp_path / "half.npz", tensors)
    usual, kept = load(tmp_path / "half.npz"), load(tmp_path / "half.npz", dtype=None)
    assert {parameter.dtype for parameter in usual.model.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in kept.model.parameters()} == {dtype}
    name = str(dtype).removeprefix("torch.")
    assert f"weights converted from {name} to float32" in usual.notes
    assert f"weights kept as in the file: {name}" in kept.notes
    assert all(
        torch.equal(one.float(), other) for one, other in zip(kept.model.parameters(), usual.model.parameters(), strict=True)
    )


def test_weights_that_are_not_numbers_with_a_point_are_refused(files: Path, tmp_path: Path) -> None:
    tensors = {name: tensor.to(torch.int32) for name, tensor in read_file(files / FILES["jax-npz"]).tensors.items()}
    write_npz(tmp_path / "whole.npz", tensors)
    with pytest.raises(CheckpointError, match=r"floating.point"):
        load(tmp_path / "whole.npz", dtype=None)


def test_an_unknown_layout_shows_its_first_keys_and_what_is_read(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "x", {"conv1.weight": torch.ones(3, 2), "fc.bias": torch.ones(4)}, {})
    with pytest.raises(CheckpointError, match="is a model that vitlab does not know") as refused:
        load(tmp_path / "x")
    assert "conv1.weight, fc.bias" in refused.value.message
    assert refused.value.hint is not None
    assert all(name in refused.value.hint for name in ("native", *FORMATS))


def test_a_file_that_fits_two_layouts_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FORMATS["torchvision"], "matches", lambda _: True)
    with pytest.raises(CheckpointError, match="could be timm or torchvision"):
        load(files / FILES["timm"])


def test_a_resnet_is_loaded_fitted_and_described(tmp_path: Path) -> None:
    config = ResNetConfig(blocks=(1, 1, 1, 1), stage_widths=(32, 64, 128, 256), root_width=8, groups=8, num_classes=10)
    checkpoint = replace(small_checkpoint(config), preprocess=replace(feed_for(config), image_size=(160, 160), resize_to=180))
    save(checkpoint, tmp_path / "model")
    loaded = load(tmp_path / "model", num_classes=3, image_size=96)
    assert loaded.preprocess.image_size == (96, 96)
    assert load(tmp_path / "model").preprocess == checkpoint.preprocess  # a ResNet takes any size
    assert logits_of(loaded, images(loaded.config)).shape == (2, 3)
    with pytest.raises(CheckpointError, match="profiles are for ViTs"):
        load(tmp_path / "model", profile="timm")
    with pytest.raises(CheckpointError, match="patch_size"):
        load(tmp_path / "model", patch_size=8)


def test_positions_of_every_kind_survive_saving(tmp_path: Path) -> None:
    for kind in ("none", "learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d"):
        for place in ("stem", "every", "shared"):
            checkpoint = small_checkpoint(small_config(position=Position(kind=kind, place=place)))
            save(checkpoint, tmp_path / "model")
            images_BCHW = images(checkpoint.config)
            assert torch.equal(logits_of(load(tmp_path / "model"), images_BCHW), logits_of(checkpoint, images_BCHW))


def test_a_wrong_size_or_number_is_refused_before_the_file_is_read(tmp_path: Path) -> None:
    wrongs: list[dict[str, Any]] = [
        {"image_size": 0},
        {"image_size": (1, 2, 3)},
        {"patch_size": -1},
        {"grid": (0, 3)},
        {"heads": 0},
    ]
    for wrong in wrongs:
        with pytest.raises(ConfigError):
            load(tmp_path / "missing", **wrong)
    with pytest.raises(CheckpointError, match="no file called"):
        load(tmp_path / "missing")


def test_a_public_model_that_names_no_classes_gets_imagenets_and_a_run_of_ones_own_does_not(tmp_path: Path) -> None:
    made = small_checkpoint(small_config(num_classes=1000))
    bare = replace(made, labels=None, recipe=None, metrics=None)
    save(bare, tmp_path / "bare.safetensors")
    convert(tmp_path / "bare.safetensors", tmp_path / "bare.npz", to="jax-npz")
    for name in ("bare.safetensors", "bare.npz"):
        loaded = load(tmp_path / name, heads=4)
        assert loaded.labels is not None
        assert loaded.labels[284] == "Siamese cat"
        assert any("ImageNet-1k are assumed" in note for note in loaded.notes)
        assert describe(tmp_path / name, heads=4).labels == loaded.labels
    assert load(tmp_path / "bare.npz", heads=4, new_head=True).labels is None
    assert load(tmp_path / "bare.npz", heads=4, num_classes=10).labels is None
    save(replace(made, labels=None), tmp_path / "run.safetensors")
    assert load(tmp_path / "run.safetensors").labels is None
