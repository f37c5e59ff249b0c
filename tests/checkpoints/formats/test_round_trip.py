"""Every option of every model through every format: the same bits come back, or the format says what it has no place for."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes

from tests.checkpoints.formats.samples import CAN, OPTIONS, PLAIN, fed, file_of, mini, random_state, raw_of, read, same, written
from vitlab.checkpoints.formats import FORMATS
from vitlab.checkpoints.formats.contract import Hints
from vitlab.config import ConvNeXtConfig, ModelConfig, ResNetConfig, SwinConfig, ViTConfig
from vitlab.config.vit import PositionResize
from vitlab.errors import CheckpointError

# What the refusal of an option has to name, in whichever format cannot express it.
REASONS = {
    "hidden layer": "hidden layer",
    "hidden layer, no head": "hidden layer",
    "mean": "pool='mean'",
    "mean, norm after": "norm_after_pool|pool='mean'",
    "mean, norm after, class token": "norm_after_pool|pool='mean'",
    "mean, class token": "pool='mean'",
    "token, norm after": "norm_after_pool",
    "map": "pool='map'",
    "map, no head": "pool='map'",
    "map, class token": "pool='map'",
    "distilled": "distillation token",
    "distilled, no head": "distillation token",
    "one register": "register_tokens=1",
    "four registers": "register_tokens=4|more tokens beside the class token",
    "four registers, bare positions": "register_tokens=4|more tokens beside the class token",
    "bare positions": "position.prefix=False",
    "no positions": "'none'",
    "sine positions": "'sincos-2d'",
    "2-d positions": "'learned-2d'",
    "relative positions": "'relative'",
    "positions at every layer": "'every'",
    "local": "attention='local'",
    "axial": "attention='axial'",
    "layer scale": "layer scale|pool='token' with a head",
    "no qkv bias": "qkv_bias=False",
    "other grid": "not square",
    "other patch": "not square",
    "clip": "a norm before the encoder|a projection of the pooled vector",
    "dinov2": "layer scale",
    "dinov2, registers": "a gated MLP|registers without a position",
    "hybrid": "ResNet stem",
    "hybrid root": "ResNet stem",
}

cells = [(name, option, option in CAN[name]) for name, option in product(FORMATS, OPTIONS)]


def hints_of(config: ModelConfig) -> Hints:
    if isinstance(config, SwinConfig):
        return Hints(grid=config.grids[0])
    return Hints(heads=config.heads, grid=config.grid) if isinstance(config, ViTConfig) else Hints()


@pytest.mark.parametrize(("name", "option"), [(name, option) for name, option, can in cells if can])
def test_what_a_format_can_express_comes_back_bit_for_bit(name: str, option: str) -> None:
    config = OPTIONS[option]
    state = random_state(config)
    given = written(name, config, state)
    back = read(raw_of(given.tensors), hints_of(config))
    assert back.format == name
    assert same(back.state, state)


@pytest.mark.parametrize(("name", "option"), [(name, option) for name, option, can in cells if not can])
def test_what_a_format_cannot_express_is_refused_with_the_reason(name: str, option: str) -> None:
    config = OPTIONS[option]
    holds = {"bit-npz": "holds BiT ResNets", "swin": "holds Swin", "convnext": "holds ConvNeXts", "timm": "this is a recurrent"}
    holds |= {"huggingface": "windows of|these widths|this is a recurrent"}
    holds |= {"dinov2": "a model without layer scale|a head|holds ViTs"}
    holds |= {"openai-clip": "a model without a norm before the encoder|holds ViTs"}
    kind = REASONS[option] if isinstance(config, ViTConfig) and name not in PLAIN else holds.get(name, "holds ViTs")
    with pytest.raises(CheckpointError, match=kind):
        written(name, config, random_state(config))


@pytest.mark.parametrize(("name", "option"), [(name, option) for name, option, can in cells if can])
def test_a_written_file_with_its_config_json_gives_the_config_back_without_arguments(name: str, option: str) -> None:
    config = OPTIONS[option]
    given = written(name, config, random_state(config), labels=_labels(config))
    raw = file_of(given, folder=name == "huggingface")
    if given.container == "npz":  # has no place for a grid that its shapes do not show, nor for numerics
        back = read(raw, Hints(grid=config.grid) if isinstance(config, ViTConfig) else Hints()).config
        if isinstance(config, ViTConfig):
            assert isinstance(back, ViTConfig)
            back = replace(back, numerics=config.numerics, position=config.position)
        assert replace(back, image_size=config.image_size) == config
        return
    reading = read(raw)
    if name == "huggingface":
        config = _in_transformers(config)
    assert reading.config == config
    assert reading.labels == _labels(config)
    assert reading.preprocess == fed(config)
    assert not [note for note in reading.notes if "guess" in note]


def _in_transformers(config: ModelConfig) -> ModelConfig:
    """The same model with what transformers fixes for all models of its family."""
    match config:
        case ViTConfig():
            resize: PositionResize = "bicubic-plain" if config.position.registers else "bicubic"
            return replace(config, numerics=replace(config.numerics, resize=resize))
        case ResNetConfig():
            return replace(config, standardise_eps=1e-8)
        case ConvNeXtConfig():  # the eps that the file had is in config.json
            return replace(config, last_norm_eps=config.norm_eps, layer_scale=1e-6 if config.layer_scale else 0.0)
        case _:
            return config


def _labels(config: ModelConfig) -> tuple[str, ...] | None:
    return tuple(f"class {i}" for i in range(config.num_classes)) or None


@pytest.mark.parametrize(
    ("first", "second", "option"),
    [(a, b, option) for a, b in product(FORMATS, FORMATS) if a != b for option in sorted(CAN[a] & CAN[b])],
)
def test_a_file_through_ours_and_another_format_and_back_is_the_same_file(first: str, second: str, option: str) -> None:
    config = OPTIONS[option]
    hints = hints_of(config)
    start = written(first, config, random_state(config, seed=3)).tensors
    ours = read(raw_of(start), hints)
    there = written(second, ours.config, ours.state).tensors
    again = read(raw_of(there), hints)
    assert same(again.state, ours.state)
    config = again.config
    if isinstance(config, ViTConfig) and isinstance(ours.config, ViTConfig):  # tensors alone do not say the numerics
        config = replace(config, numerics=ours.config.numerics)
    assert same(written(first, config, again.state).tensors, start)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in PLAIN])
def test_every_number_type_is_kept(name: str, dtype: torch.dtype) -> None:
    state = random_state(mini(), dtype=dtype)
    assert same(read(raw_of(written(name, mini(), state).tensors), hints_of(mini())).state, state)


@pytest.mark.parametrize("name", FORMATS)
def test_written_tensors_own_their_memory_and_leave_the_model_alone(name: str) -> None:
    config = OPTIONS[PLAIN.get(name, "plain")]
    state = random_state(config)
    before = {key: tensor.clone() for key, tensor in state.items()}
    tensors = written(name, config, state).tensors
    assert same(load_bytes(save_bytes(tensors)), tensors)  # safetensors refuses what is not contiguous or shares memory
    for tensor in tensors.values():
        tensor.zero_()
    assert same(state, before)


@pytest.mark.parametrize("name", FORMATS)
def test_a_state_of_another_model_is_not_written(name: str) -> None:
    config = OPTIONS[PLAIN.get(name, "plain")]
    state = random_state(config)
    key = "head.bias" if config.num_classes else "encoder.norm.bias"
    state["stray"] = state.pop(key)
    with pytest.raises(CheckpointError, match=f"1 unknown keys: stray; 1 missing keys: {key}"):
        written(name, config, state)


@pytest.mark.parametrize("name", FORMATS)
def test_shapes_without_values_are_enough_to_describe_a_file(name: str) -> None:
    config = OPTIONS[PLAIN.get(name, "plain")]
    tensors = written(name, config, random_state(config)).tensors
    real = read(raw_of(tensors), hints_of(config))
    hollow = read(raw_of({key: tensor.to("meta") for key, tensor in tensors.items()}), hints_of(config))
    assert hollow.config == real.config
    assert hollow.notes == real.notes
    assert all(tensor.is_meta for tensor in hollow.state.values())
