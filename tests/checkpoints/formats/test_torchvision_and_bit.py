"""torchvision's ViT, and the BiT authors' own .npz."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.checkpoints.formats.samples import OPTIONS, State, fed, file_of, mini, random_state, raw_of, read, same, written
from vitlab.checkpoints.formats import FORMATS
from vitlab.checkpoints.formats.contract import Hints, native_shapes
from vitlab.config import ResNetConfig, ViTConfig, variant
from vitlab.config.data import IMAGENET_MEAN
from vitlab.config.vit import PROFILES
from vitlab.errors import CheckpointError

VIT = replace(mini(), width=128, heads=2, numerics=PROFILES["torchvision"])
RESNET = ResNetConfig(blocks=(1, 2), stage_widths=(128, 256), root_width=32, num_classes=5)


def tensors_of(name: str, config: ViTConfig | ResNetConfig) -> tuple[State, State]:
    state = random_state(config)
    return state, written(name, config, state).tensors


def test_old_and_new_names_of_torchvisions_mlp_are_read_alike() -> None:
    state, tensors = tensors_of("torchvision", VIT)
    old = {key.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): tensor for key, tensor in tensors.items()}
    assert old.keys() != tensors.keys()
    for names in (tensors, old):
        reading = read(raw_of(names))
        assert reading.config == VIT
        assert same(reading.state, state)
    mixed = dict(tensors) | {key: old[key] for key in old if "layer_0" in key}
    with pytest.raises(CheckpointError, match="unknown keys"):
        read(raw_of(mixed))


def test_a_torchvision_file_says_its_guesses_and_is_fed_as_torchvision_does() -> None:
    reading = read(raw_of(tensors_of("torchvision", VIT)[1]))
    notes = " ".join(reading.notes)
    assert "heads=2 is a guess" in notes
    assert "torchvision's weights V1" in notes
    assert (reading.preprocess.resize_to, reading.preprocess.interpolation, reading.preprocess.mean) == (
        37,
        "bilinear",
        IMAGENET_MEAN,
    )
    assert read(raw_of(tensors_of("torchvision", VIT)[1]), Hints(heads=8)).config == replace(VIT, heads=8)


def test_a_torchvision_file_written_here_guesses_nothing() -> None:
    config = replace(VIT, heads=8, dropout=0.1)
    given = written("torchvision", config, random_state(config), labels=tuple("abcde"))
    reading = read(file_of(given, folder=False))
    assert (reading.config, reading.labels, reading.preprocess, reading.notes) == (config, tuple("abcde"), fed(config), ())


def test_what_torchvision_needs_by_hand_is_noted_on_writing() -> None:
    config = replace(VIT, channels=1, num_classes=0, numerics=PROFILES["official"])
    notes = " ".join(written("torchvision", config, random_state(config)).notes)
    assert "3 channels" in notes
    assert "builds a head" in notes
    assert "tanh GELU" in notes


def test_the_bit_authors_names_are_written() -> None:
    _, tensors = tensors_of("bit-npz", RESNET)
    first = {key: tuple(tensor.shape) for key, tensor in tensors.items() if "block2" not in key}
    unit = "resnet/block1/unit01"
    assert first == {
        "resnet/root_block/standardized_conv2d/kernel": (7, 7, 3, 32),
        f"{unit}/a/standardized_conv2d/kernel": (1, 1, 32, 32),
        f"{unit}/b/standardized_conv2d/kernel": (3, 3, 32, 32),
        f"{unit}/c/standardized_conv2d/kernel": (1, 1, 32, 128),
        f"{unit}/a/proj/standardized_conv2d/kernel": (1, 1, 32, 128),
        **{f"{unit}/{branch}/group_norm/{part}": (32,) for branch in "abc" for part in ("gamma", "beta")},
        "resnet/group_norm/gamma": (256,),
        "resnet/group_norm/beta": (256,),
        "resnet/head/conv2d/kernel": (1, 1, 256, 5),
        "resnet/head/conv2d/bias": (5,),
    }
    assert "resnet/block2/unit02/a/group_norm/gamma" in tensors


def test_numbered_names_and_norms_with_four_axes_are_read_alike() -> None:
    state, tensors = tensors_of("bit-npz", RESNET)
    other: State = {}
    for i, (key, tensor) in enumerate(tensors.items()):
        name = key.replace("standardized_conv2d/", f"standardized_conv2d_{i:02d}/")
        other[name] = tensor.reshape(1, 1, 1, -1) if key.endswith(("gamma", "beta")) else tensor
    assert other.keys() != tensors.keys()
    reading = read(raw_of(other))
    assert reading.config == RESNET
    assert same(reading.state, state)
    with pytest.raises(CheckpointError, match="twice"):
        read(raw_of(other | {"resnet/root_block/standardized_conv2d/kernel": torch.zeros(1)}))


@pytest.mark.parametrize("layout", ["bit-npz", "timm"])
@pytest.mark.parametrize("name", ["BiT-R50x1", "BiT-R101x3", "BiT-R152x4"])
def test_published_resnets_are_recognised_from_shapes_alone(name: str, layout: str) -> None:
    config = variant(name, num_classes=21843)
    hollow = {key: torch.empty(shape, device="meta") for key, shape in native_shapes(config).items()}
    tensors = FORMATS[layout].write(hollow, config, fed(config), None).tensors
    assert read(raw_of(tensors), Hints(profile="official")).config == config


def test_a_bit_file_is_run_and_fed_as_its_authors_do() -> None:
    _, tensors = tensors_of("bit-npz", RESNET)
    reading = read(raw_of(tensors))
    assert isinstance(reading.config, ResNetConfig)
    assert (reading.config.standardise_eps, reading.config.norm_eps) == (1e-10, 1e-5)
    assert (reading.preprocess.resize, reading.preprocess.mean) == ("squash", (0.5, 0.5, 0.5))
    assert any("image_size=224x224 is a guess" in note for note in reading.notes)
    timm = read(raw_of(tensors), Hints(profile="timm")).config
    assert isinstance(timm, ResNetConfig)
    assert timm.standardise_eps == 1e-8


@pytest.mark.parametrize("hints", [Hints(heads=4), Hints(grid=(3, 3))])
@pytest.mark.parametrize("name", ["bit-npz", "timm"])
def test_a_resnet_needs_no_arguments(name: str, hints: Hints) -> None:
    with pytest.raises(CheckpointError, match="no heads and no grid"):
        read(raw_of(tensors_of(name, RESNET)[1]), hints)


def test_what_the_bit_authors_code_would_compute_otherwise_is_said_on_writing() -> None:
    config = replace(RESNET, standardise_eps=1e-8, image_size=(480, 480))
    notes = " ".join(written("bit-npz", config, random_state(config)).notes)
    assert "standardise_eps is 1e-08" in notes
    assert "480x480" in notes
    assert "standardise_eps is 1e-10" in " ".join(written("timm", RESNET, random_state(RESNET)).notes)
    assert OPTIONS["resnet"] == RESNET
