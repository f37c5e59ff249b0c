"""A conversion is exact or it is not written, and what a format cannot say is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.checkpoints.formats.samples import CAN, OPTIONS
from tests.checkpoints.small import LABELS, images, logits_of, small_checkpoint, small_config
from vitlab.checkpoints import Checkpoint, convert, describe, load, save
from vitlab.checkpoints.containers import read_file
from vitlab.checkpoints.formats import FORMATS
from vitlab.config import ModelConfig, ResNetConfig, ResNetStem
from vitlab.errors import CheckpointError

HEADS = 4
ROUTES = {"jax-npz": "x.npz", "big-vision": "x.npz", "timm": "x.safetensors", "huggingface": "x", "torchvision": "x.safetensors"}


def _tensors(path: Path, **options: int) -> dict[str, bytes]:
    state = load(path, dtype=None, **options).model.state_dict()  # type: ignore[arg-type]
    return {
        name: f"{tensor.dtype}{tuple(tensor.shape)}".encode() + tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in state.items()
    }


@pytest.fixture
def native(tmp_path: Path) -> Path:
    save(small_checkpoint(), tmp_path / "native.safetensors")
    return tmp_path / "native.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("to", ROUTES)
def test_there_and_back_gives_every_bit_and_type(tmp_path: Path, to: str, dtype: torch.dtype) -> None:
    checkpoint = small_checkpoint()
    checkpoint.model.to(dtype)
    save(checkpoint, tmp_path / "native.safetensors")
    convert(tmp_path / "native.safetensors", tmp_path / ROUTES[to], to=to)
    convert(tmp_path / ROUTES[to], tmp_path / "back.safetensors", to="native", heads=HEADS)
    assert _tensors(tmp_path / "back.safetensors") == _tensors(tmp_path / "native.safetensors")


def test_a_round_through_all_formats_gives_the_same_logits_in_the_same_profile(tmp_path: Path, native: Path) -> None:
    here = native
    for number, (to, name) in enumerate(ROUTES.items()):
        there = tmp_path / f"{number}{name}"
        convert(here, there, to=to, heads=HEADS, profile="official")
        here = there
    convert(here, tmp_path / "end.safetensors", to="native", heads=HEADS, profile="official")
    one, two = load(native), load(tmp_path / "end.safetensors")
    assert torch.equal(logits_of(one, images(one.config)), logits_of(two, images(one.config)))
    assert describe(native).metadata["tensors_sha256"] == describe(tmp_path / "end.safetensors").metadata["tensors_sha256"]


def test_native_to_native_keeps_everything_down_to_the_byte(tmp_path: Path, native: Path) -> None:
    convert(native, tmp_path / "copy.safetensors", to="native")
    assert (tmp_path / "copy.safetensors").read_bytes() == native.read_bytes()


def test_a_huggingface_folder_holds_config_preprocessing_labels_and_weights(tmp_path: Path, native: Path) -> None:
    convert(native, tmp_path / "hf", to="huggingface")
    assert sorted(entry.name for entry in (tmp_path / "hf").iterdir()) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    config = json.loads((tmp_path / "hf" / "config.json").read_bytes())
    assert config["num_attention_heads"] == HEADS
    loaded, original = load(tmp_path / "hf"), load(native)
    assert loaded.preprocess.image_size == original.preprocess.image_size
    assert loaded.labels == LABELS


def test_a_timm_folder_holds_what_timm_builds_the_model_from_and_a_file_only_the_weights(tmp_path: Path, native: Path) -> None:
    in_folder = convert(native, tmp_path / "timm", to="timm")
    assert sorted(entry.name for entry in (tmp_path / "timm").iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((tmp_path / "timm" / "config.json").read_bytes())
    assert config["model_args"]["num_heads"] == HEADS
    assert config["label_names"] == list(LABELS)
    alone = convert(native, tmp_path / "timm.safetensors", to="timm")
    assert (tmp_path / "timm.safetensors").read_bytes() == (tmp_path / "timm" / "model.safetensors").read_bytes()
    assert any("num_heads=4" in note for note in alone)
    assert not any("num_heads" in note or "act_layer" in note for note in in_folder)
    assert _tensors(tmp_path / "timm") == _tensors(native)
    assert load(tmp_path / "timm").labels == LABELS


def test_a_timm_folder_says_the_same_to_who_does_not_see_the_header(tmp_path: Path, native: Path) -> None:
    convert(native, tmp_path / "timm", to="timm")
    weights = tmp_path / "timm" / "model.safetensors"
    safetensors.torch.save_file(read_file(weights).tensors, weights)  # without vitlab's words in it
    back, original = load(tmp_path / "timm"), load(native)
    assert torch.equal(logits_of(back, images(back.config)), logits_of(original, images(back.config)))
    assert (back.labels, back.preprocess) == (original.labels, original.preprocess)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (small_config(representation_width=48), "no hidden layer before the head since 0.8"),
        (small_config(stem=ResNetStem(blocks=(1, 1), width=32), patch_size=(1, 1)), "no model with this ResNet"),
        (ResNetConfig(blocks=(1, 1), stage_widths=(128, 256), num_classes=3), "no model with this ResNet"),
        (OPTIONS["swin, no head, rectangle"], "reads a Swin without a head as a file of Swin's authors"),
        (OPTIONS["convnext"], "no convnext of this shape"),
        (OPTIONS["efficientnet"], "no efficientnet of this shape"),
    ],
    ids=["hidden layer", "hybrid", "resnet", "swin", "convnext", "efficientnet"],
)
def test_a_folder_that_timm_could_not_open_is_refused_and_a_file_is_not(tmp_path: Path, config: ModelConfig, word: str) -> None:
    path = tmp_path / "native.safetensors"
    save(small_checkpoint(config), path)
    with pytest.raises(CheckpointError, match=word) as refused:
        convert(path, tmp_path / "timm", to="timm")
    assert refused.value.hint == f"write its weights alone, to {tmp_path / 'timm.safetensors'}"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    convert(path, tmp_path / "timm.safetensors", to="timm")
    assert load(tmp_path / "timm.safetensors").config == config


def test_what_exists_is_not_overwritten_unless_asked(tmp_path: Path, native: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"precious")
    with pytest.raises(CheckpointError, match="exists already"):
        convert(native, tmp_path / "x.npz", to="jax-npz")
    assert (tmp_path / "x.npz").read_bytes() == b"precious"
    convert(native, tmp_path / "x.npz", to="jax-npz", overwrite=True)
    assert load(tmp_path / "x.npz").format == "jax-npz"
    convert(native, tmp_path / "hf", to="huggingface")
    convert(native, tmp_path / "hf", to="huggingface", overwrite=True)
    (tmp_path / "hf" / "README.md").write_text("mine")
    with pytest.raises(CheckpointError, match=r"also holds README\.md"):
        convert(native, tmp_path / "hf", to="huggingface", overwrite=True)


def test_a_file_can_be_converted_onto_itself(tmp_path: Path, native: Path) -> None:
    before = _tensors(native)
    convert(native, native, to="timm", overwrite=True)
    assert describe(native).format == "timm"
    convert(native, native, to="native", overwrite=True, heads=HEADS)
    assert _tensors(native) == before


@pytest.mark.parametrize(
    ("to", "name", "word"),
    [
        ("jax-npz", "x.safetensors", "written as .npz"),
        ("timm", "x.npz", "written as .safetensors"),
        ("timm", "x.v2", "written as .safetensors"),
        ("native", "x", "written as .safetensors"),
        ("native", "x.pth", "written as .safetensors"),
        ("huggingface", "x.safetensors", "is a folder of files"),
        ("tim", "x.safetensors", "no format called 'tim'"),
        ("jax-npz", "missing/x.npz", "no folder"),
    ],
)
def test_a_wrong_name_or_format_is_refused_with_the_right_one(tmp_path: Path, native: Path, to: str, name: str, word: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        convert(native, tmp_path / name, to=to)
    assert word in refused.value.message
    assert [entry.name for entry in tmp_path.iterdir()] == [native.name]
    if to == "tim":
        assert refused.value.hint == "did you mean timm?"


@pytest.mark.parametrize("option", [option for option in OPTIONS if any(option not in CAN[to] for to in ROUTES)])
def test_what_a_format_cannot_express_is_refused_and_nothing_is_written(tmp_path: Path, option: str) -> None:
    path = tmp_path / "native.safetensors"
    save(small_checkpoint(OPTIONS[option]), path)
    for to, name in ROUTES.items():
        if option not in CAN[to]:
            with pytest.raises(CheckpointError, match=f"{to} (cannot express|holds)"):
                convert(path, tmp_path / name, to=to)
            assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_what_a_format_has_no_place_for_is_said(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(small_config(dropout=0.25, dynamic_size=True))
    save(checkpoint, tmp_path / "native.safetensors")
    text = " | ".join(convert(tmp_path / "native.safetensors", tmp_path / "x.npz", to="jax-npz"))
    for word in ("dropout=0.25", "dynamic_size=True", "recipe and metrics", "labels"):
        assert word in text, text


@pytest.mark.parametrize("to", ROUTES)
def test_a_writer_that_loses_one_bit_is_caught_before_anything_appears(
    tmp_path: Path, native: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = FORMATS[to]
    write = layout.write

    def careless(*arguments: object) -> object:
        written = write(*arguments)  # type: ignore[arg-type]
        name = next(name for name, tensor in written.tensors.items() if tensor.numel() > 100)
        tensor = written.tensors[name].clone()
        tensor.view(-1)[7] *= 1.0000001
        return replace(written, tensors=written.tensors | {name: tensor})

    monkeypatch.setattr(layout, "write", careless)
    with pytest.raises(CheckpointError, match="would not hold the same weights"):
        convert(native, tmp_path / ROUTES[to], to=to)
    assert [entry.name for entry in tmp_path.iterdir()] == [native.name]


def test_a_file_beside_the_destination_does_not_confuse_the_proof(tmp_path: Path, native: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "num_attention_heads": 8, "hidden_size": 64}))
    convert(native, tmp_path / "x.safetensors", to="timm")
    assert read_file(tmp_path / "x.safetensors").tensors


@pytest.mark.parametrize("image_size", [(48, 48), (32, 64)])
def test_a_checkpoint_that_was_fitted_can_be_converted(tmp_path: Path, native: Path, image_size: tuple[int, int]) -> None:
    fitted: Checkpoint = load(native, image_size=image_size, num_classes=0)
    save(fitted, tmp_path / "fitted.safetensors")
    square = image_size[0] == image_size[1]
    for to in ROUTES if square else ("jax-npz", "timm", "huggingface"):  # the others have no place for such a grid
        target = tmp_path / f"{to}{ROUTES[to]}"
        convert(tmp_path / "fitted.safetensors", target, to=to)
        back = load(target, heads=HEADS, grid=(image_size[0] // 8, image_size[1] // 8), profile="official")
        images_BCHW = images(fitted.config)
        assert torch.equal(logits_of(back, images_BCHW), logits_of(fitted, images_BCHW))
