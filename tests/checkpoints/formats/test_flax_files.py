"""The two Flax layouts: both numberings, full training states, scanned blocks, old names, image towers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.checkpoints.formats.samples import OPTIONS, State, mini, random_state, raw_of, read, same, written
from vitlab.checkpoints.formats import FORMATS
from vitlab.checkpoints.formats.contract import Hints
from vitlab.config import Position, ViTConfig, variant
from vitlab.config.vit import PROFILES
from vitlab.errors import CheckpointError

RENUMBERED = (
    ("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
    ("LayerNorm_2", "LayerNorm_1"),
    ("MlpBlock_3", "MlpBlock_0"),
)
SIGLIP = replace(mini(), pool="map", class_token=False, num_classes=0)


def official(config: ViTConfig) -> tuple[State, State]:
    state = random_state(config)
    return state, written("jax-npz", config, state).tensors


def big_vision(config: ViTConfig) -> tuple[State, State]:
    state = random_state(config)
    return state, written("big-vision", config, state).tensors


def newer(tensors: State) -> State:
    for old, new in RENUMBERED:
        tensors = {key.replace(old, new): tensor for key, tensor in tensors.items()}
    return tensors


def hybrid() -> ViTConfig:
    config = OPTIONS["hybrid"]
    assert isinstance(config, ViTConfig)
    return config


def test_the_published_names_are_written() -> None:
    _, tensors = official(replace(mini(), representation_width=48))
    assert {key: tuple(tensor.shape) for key, tensor in tensors.items() if "block_1" not in key} == {
        "embedding/kernel": (8, 8, 3, 64),
        "embedding/bias": (64,),
        "cls": (1, 1, 64),
        "Transformer/posembed_input/pos_embedding": (1, 17, 64),
        "Transformer/encoderblock_0/LayerNorm_0/scale": (64,),
        "Transformer/encoderblock_0/LayerNorm_0/bias": (64,),
        **{
            f"Transformer/encoderblock_0/MultiHeadDotProductAttention_1/{part}/{what}": shape
            for part in ("query", "key", "value")
            for what, shape in (("kernel", (64, 4, 16)), ("bias", (4, 16)))
        },
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/out/kernel": (4, 16, 64),
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/out/bias": (64,),
        "Transformer/encoderblock_0/LayerNorm_2/scale": (64,),
        "Transformer/encoderblock_0/LayerNorm_2/bias": (64,),
        "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel": (64, 128),
        "Transformer/encoderblock_0/MlpBlock_3/Dense_0/bias": (128,),
        "Transformer/encoderblock_0/MlpBlock_3/Dense_1/kernel": (128, 64),
        "Transformer/encoderblock_0/MlpBlock_3/Dense_1/bias": (64,),
        "Transformer/encoder_norm/scale": (64,),
        "Transformer/encoder_norm/bias": (64,),
        "pre_logits/kernel": (64, 48),
        "pre_logits/bias": (48,),
        "head/kernel": (48, 5),
        "head/bias": (5,),
    }


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
@pytest.mark.parametrize("number", ["published", "newer"])
def test_both_numberings_and_the_training_states_prefix_are_read_alike(prefix: str, number: str) -> None:
    state, tensors = official(hybrid())
    tensors = {f"{prefix}{key}": tensor for key, tensor in (newer(tensors) if number == "newer" else tensors).items()}
    reading = read(raw_of(tensors))
    assert reading.format == "jax-npz"
    assert reading.config == hybrid()
    assert same(reading.state, state)


def test_an_optimizers_state_is_left_out_and_said() -> None:
    state, tensors = official(mini())
    tensors = {f"opt/target/{key}": tensor for key, tensor in tensors.items()}
    tensors |= {"opt/state/step": torch.tensor(3), "opt/state/param_states/cls/grad_ema": torch.zeros(1, 1, 64)}
    reading = read(raw_of(tensors))
    assert same(reading.state, state)
    assert "left out: optimizer state (2 arrays)" in reading.notes
    with pytest.raises(CheckpointError, match="unknown keys: elsewhere"):
        read(raw_of(tensors | {"elsewhere": torch.zeros(1)}))


def test_group_norms_are_read_in_either_shape_and_written_in_the_published_one() -> None:
    state, tensors = official(hybrid())
    norms = [key for key in tensors if "/gn" in key or key.startswith("gn_root")]
    assert norms
    assert all(tensors[key].shape[:3] == (1, 1, 1) for key in norms)
    flat = {key: tensor.flatten() if key in norms else tensor for key, tensor in tensors.items()}
    assert same(read(raw_of(flat)).state, state)


def test_a_head_of_zeros_is_said() -> None:
    state = random_state(mini())
    state["head.weight"].zero_()
    reading = read(raw_of(written("jax-npz", mini(), state).tensors))
    assert "head is all zeros: authors' 21k files have it so" in reading.notes
    assert not any("zeros" in note for note in read(raw_of(official(mini())[1])).notes)


def test_an_official_file_is_run_and_fed_as_its_authors_do() -> None:
    reading = read(raw_of(official(mini())[1]))
    assert isinstance(reading.config, ViTConfig)
    assert reading.config.numerics == PROFILES["official"]
    fed = reading.preprocess
    assert (fed.resize, fed.interpolation, fed.mean, fed.std) == ("squash", "tf-bilinear", (0.5,) * 3, (0.5,) * 3)
    assert any("preprocessing" in note and "does not say" in note for note in reading.notes)


def test_a_grid_that_is_not_square_must_be_given() -> None:
    config = replace(mini(), image_size=(24, 56))
    state, tensors = official(config)
    with pytest.raises(CheckpointError, match="21 patches, which is no square grid") as refused:
        read(raw_of(tensors))
    assert "grid=" in (refused.value.hint or "")
    reading = read(raw_of(tensors), Hints(grid=(3, 7)))
    assert reading.config == config
    assert same(reading.state, state)


def test_what_the_authors_code_would_compute_otherwise_is_said_on_writing() -> None:
    state = random_state(mini())
    assert not [note for note in written("jax-npz", mini(), state).notes if "differ" in note]
    exact = replace(mini(), numerics=PROFILES["huggingface"])
    notes = " ".join(written("jax-npz", exact, state).notes)
    assert "exact GELU" in notes
    assert "1e-12" in notes
    stem = hybrid().stem
    assert stem is not None
    timm = replace(hybrid(), stem=replace(stem, standardise="variance", standardise_eps=1e-8, norm_eps=1e-5))
    notes = " ".join(written("jax-npz", timm, random_state(timm)).notes)
    assert "standardise variance against std" in notes


def test_lost_labels_and_preprocessing_are_said_on_writing() -> None:
    notes = " ".join(written("jax-npz", mini(), random_state(mini()), labels=tuple("abcde")).notes)
    assert "cannot store the 5 labels" in notes
    assert "cannot store the preprocessing" in notes


@pytest.mark.parametrize("name", ["R50+ViT-B/16", "R+ViT-Ti/16", "ViT-H/14"])
def test_a_published_model_is_recognised_from_shapes_alone(name: str) -> None:
    config = variant(name, num_classes=10)
    tensors = {key: torch.empty(shape, device="meta") for key, shape in _shapes(config).items()}
    given = FORMATS["jax-npz"].write(tensors, config, read(raw_of(official(mini())[1])).preprocess, None)
    assert read(raw_of(given.tensors)).config == config


def _shapes(config: object) -> dict[str, tuple[int, ...]]:
    from vitlab.checkpoints.formats.contract import native_shapes

    assert isinstance(config, ViTConfig)
    return native_shapes(config)


@pytest.mark.parametrize("prefix", ["params/", "", "params/img/"])
def test_a_big_vision_tree_is_found_wherever_it_stands(prefix: str) -> None:
    state, tensors = big_vision(SIGLIP)
    tensors = {prefix + key.removeprefix("params/"): tensor for key, tensor in tensors.items()}
    reading = read(raw_of(tensors))
    assert reading.format == "big-vision"
    assert reading.config == SIGLIP
    assert same(reading.state, state)


def test_a_text_tower_is_left_out_and_said() -> None:
    state, tensors = big_vision(SIGLIP)
    tensors = {key.replace("params/", "params/img/"): tensor for key, tensor in tensors.items()}
    text = {"params/txt/Embed_0/embedding": torch.zeros(9, 4), "params/t": torch.zeros(1), "params/b": torch.zeros(1)}
    reading = read(raw_of(tensors | text))
    assert same(reading.state, state)
    assert "left out: text tower and its temperature and bias (3 arrays)" in reading.notes
    with pytest.raises(CheckpointError, match="unknown keys: params/other/x"):
        read(raw_of(tensors | text | {"params/other/x": torch.zeros(1)}))


def test_scanned_blocks_are_taken_apart() -> None:
    state, tensors = big_vision(SIGLIP)
    at = "params/Transformer/encoderblock_"
    scanned = {key: tensor for key, tensor in tensors.items() if not key.startswith(at)}
    for key in tensors:
        if key.startswith(f"{at}0/"):
            parts = [tensors[key.replace(f"{at}0/", f"{at}{i}/")] for i in range(2)]
            scanned[key.replace(f"{at}0/", "params/Transformer/encoderblock/")] = torch.stack(parts)
    assert same(read(raw_of(scanned)).state, state)
    one = "params/Transformer/encoderblock/LayerNorm_0/scale"
    with pytest.raises(CheckpointError, match="missing keys: Transformer/encoderblock_1/LayerNorm_0/scale"):
        read(raw_of(scanned | {one: scanned[one][:1]}))
    with pytest.raises(CheckpointError, match="twice"):
        read(raw_of(scanned | {f"{at}0/LayerNorm_0/scale": torch.zeros(64)}))
    with pytest.raises(CheckpointError, match="no depth axis"):
        read(raw_of(scanned | {one: torch.tensor(1.0)}))


def test_names_of_earlier_big_vision_are_read() -> None:
    state, tensors = big_vision(SIGLIP)
    old = {
        key.replace("params/pos_embedding", "params/Transformer/pos_embedding").replace("params/MAPHead_0/", "params/"): tensor
        for key, tensor in tensors.items()
    }
    assert old.keys() != tensors.keys()
    reading = read(raw_of(old))
    assert reading.config == SIGLIP
    assert same(reading.state, state)


def test_positions_without_the_class_token_are_recognised_by_their_number() -> None:
    for position in (Position(prefix=False), Position(prefix=True)):
        config = replace(mini(), position=position)
        state, tensors = big_vision(config)
        assert tensors["params/pos_embedding"].shape[1] == 16 + position.prefix
        reading = read(raw_of(tensors))
        assert reading.config == config
        assert same(reading.state, state)


def test_without_a_table_positions_are_sines_and_the_grid_is_a_guess_unless_given() -> None:
    config = replace(mini(), pool="mean", class_token=False, position=Position(kind="sincos-2d", prefix=False))
    _, tensors = big_vision(config)
    assert read(raw_of(tensors), Hints(grid=(4, 4))).config == config
    guessed = read(raw_of(tensors))
    assert isinstance(guessed.config, ViTConfig)
    assert guessed.config.position.kind == "sincos-2d"
    assert guessed.config.image_size == (224, 224)
    assert any("grid=28x28 is a guess" in note for note in guessed.notes)


def test_a_big_vision_classifier_is_cropped_and_a_siglip_tower_squashed() -> None:
    assert read(raw_of(big_vision(mini())[1])).preprocess.resize == "short-side"
    assert read(raw_of(big_vision(SIGLIP)[1])).preprocess.resize == "squash"
