"""Every key is accounted for: what is unknown, missing, of another shape or type is listed, in every format, and refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoints.formats.samples import OPTIONS, PLAIN, State, mini, random_state, raw_of, read, written
from vitlab.checkpoints.formats import FORMATS
from vitlab.checkpoints.formats.contract import (
    Hints,
    Row,
    kernel,
    native_shapes,
    same,
    shaped,
    stacked,
    their_shapes,
    to_ours,
    to_theirs,
    turned,
)
from vitlab.config.vit import ViTConfig
from vitlab.errors import CheckpointError, ConfigError

HYBRID = OPTIONS["hybrid"]


def tensors_of(name: str) -> State:
    config = OPTIONS[PLAIN.get(name, "plain")]
    return written(name, config, random_state(config)).tensors


def hints(name: str) -> Hints:
    return Hints() if name in PLAIN else Hints(heads=4)


def needed(tensors: State) -> list[str]:
    """Keys that only the table asks for: biases, of which no size is read."""
    return [key for key in tensors if key.endswith(("bias", "beta"))]


@pytest.mark.parametrize("name", FORMATS)
def test_an_unknown_key_is_named(name: str) -> None:
    tensors = tensors_of(name) | {"rope.periods": torch.zeros(3)}
    with pytest.raises(CheckpointError, match=r"1 unknown keys: rope\.periods"):
        read(raw_of(tensors), hints(name))


@pytest.mark.parametrize("name", FORMATS)
def test_each_missing_key_is_named(name: str) -> None:
    whole = tensors_of(name)
    for key in whole:
        tensors = {other: tensor for other, tensor in whole.items() if other != key}
        if not FORMATS[name].matches(raw_of(tensors)):
            continue
        if key == "mask_token":  # which no image model reads
            continue
        if key in ("params/pos_embedding", "pos_embed") and name != "dinov2":  # a model without learned positions, which is said
            assert any("there is no pos_embed" in note for note in read(raw_of(tensors), hints(name)).notes)
            continue
        with pytest.raises(CheckpointError) as refused:
            read(raw_of(tensors), hints(name))
        if key not in ("cls", "cls_token", "params/cls"):  # without which the positions have a row too many
            assert key.removeprefix("params/") in refused.value.message


@pytest.mark.parametrize("name", FORMATS)
def test_all_wrong_shapes_are_listed_with_what_they_should_be(name: str) -> None:
    tensors = tensors_of(name)
    first, second = needed(tensors)[:2]
    right = tuple(tensors[first].shape)
    tensors[first], tensors[second] = torch.zeros(7), torch.zeros(9, 1)
    with pytest.raises(CheckpointError) as refused:
        read(raw_of(tensors), hints(name))
    assert "2 wrong shapes" in refused.value.message
    key = first.removeprefix("params/")
    assert f"{key} is (7,) and should be {right}" in refused.value.message


@pytest.mark.parametrize("name", FORMATS)
def test_whole_numbers_are_no_weights(name: str) -> None:
    tensors = tensors_of(name)
    key = needed(tensors)[0]
    tensors[key] = tensors[key].to(torch.int8)
    with pytest.raises(CheckpointError, match=r"holds torch\.int8"):
        read(raw_of(tensors), hints(name))


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in PLAIN])
def test_a_missing_layer_is_named_and_a_far_layer_does_not_make_a_deep_model(name: str) -> None:
    whole = tensors_of(name)
    gap = {key: tensor for key, tensor in whole.items() if not _in_layer(key, 0)}
    far = [{_renumbered(key, number): tensor for key, tensor in whole.items()} for number in ("99999", "9" * 5000)]
    for tensors in (gap, *far):
        if FORMATS[name].matches(raw_of(tensors)):
            with pytest.raises(CheckpointError, match=r"missing|unknown"):
                read(raw_of(tensors), hints(name))


def _in_layer(key: str, number: int) -> bool:
    return any(f"{word}{number}{mark}" in key for word in ("blocks.", "layer.", "layer_", "block_") for mark in "./")


def _renumbered(key: str, number: str) -> str:
    for word in ("blocks.", "layer.", "layer_", "block_"):
        for mark in "./":
            key = key.replace(f"{word}1{mark}", f"{word}{number}{mark}")
    return key


def test_many_faults_are_counted_and_the_first_twenty_shown() -> None:
    tensors = tensors_of("timm") | {f"extra.{i}": torch.zeros(1) for i in range(100)}
    with pytest.raises(CheckpointError) as refused:
        read(raw_of(tensors), hints("timm"))
    assert "100 unknown keys" in refused.value.message
    assert "and 80 more" in refused.value.message
    assert refused.value.message.count("extra.") == 20


@pytest.mark.parametrize("name", ["jax-npz", "big-vision"])
def test_heads_that_contradict_the_shapes_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="has 4 heads"):
        read(raw_of(tensors_of(name)), Hints(heads=2))


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in PLAIN])
def test_a_grid_that_contradicts_the_positions_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="grid=3x5 is 15 patches, and the positions are for 16"):
        read(raw_of(tensors_of(name)), Hints(heads=4, grid=(3, 5)))


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in PLAIN])
def test_the_same_number_of_patches_in_another_shape_can_be_given(name: str) -> None:
    config = read(raw_of(tensors_of(name)), Hints(heads=4, grid=(2, 8))).config
    assert isinstance(config, ViTConfig)
    assert config.grid == (2, 8)
    assert config.image_size == (16, 64)


@pytest.mark.parametrize("name", FORMATS)
def test_an_unknown_profile_is_refused_and_a_known_one_taken(name: str) -> None:
    with pytest.raises(ConfigError, match="no numerics profile called 'tim'"):
        read(raw_of(tensors_of(name)), Hints(heads=hints(name).heads, profile="tim"))
    exact = read(raw_of(tensors_of(name)), Hints(heads=hints(name).heads, profile="timm")).config
    tanh = read(raw_of(tensors_of(name)), Hints(heads=hints(name).heads, profile="official")).config
    if isinstance(exact, ViTConfig) and isinstance(tanh, ViTConfig):
        assert (exact.numerics.gelu, tanh.numerics.gelu) == ("exact", "tanh")
    assert exact != tanh or name == "convnext"  # which everybody computes alike


@pytest.mark.parametrize("name", ["jax-npz", "timm"])
def test_a_profile_also_says_how_a_hybrids_stem_is_computed(name: str) -> None:
    tensors = written(name, HYBRID, random_state(HYBRID)).tensors
    for profile, way in (("official", "std"), ("timm", "variance")):
        config = read(raw_of(tensors), Hints(heads=4, profile=profile)).config
        assert isinstance(config, ViTConfig)
        assert config.stem is not None
        assert config.stem.standardise == way


def test_no_two_formats_claim_the_same_file() -> None:
    for option, config in OPTIONS.items():
        state = random_state(config)
        for name, layout in FORMATS.items():
            try:
                raw = raw_of(written(name, config, state).tensors)
            except CheckpointError:
                continue
            assert [other for other in FORMATS if FORMATS[other].matches(raw)] == [name], option
            assert layout.matches(raw)


def test_other_peoples_files_belong_to_no_format() -> None:
    swin = raw_of({"patch_embed.proj.weight": torch.zeros(1), "layers.0.blocks.0.attn.qkv.weight": torch.zeros(1)})
    empty = raw_of({})
    ours = raw_of(random_state(mini()))
    for raw in (swin, empty, ours):
        assert not [name for name, layout in FORMATS.items() if layout.matches(raw)]


def test_rows_pass_tensors_both_ways_unchanged() -> None:
    shapes = {"a": (4,), "b": (3, 5), "c": (2, 3, 1, 4), "d": (6, 2), "e": (4, 1)}
    rows: list[Row] = [
        same("a", "A"),
        turned("b", "B"),
        kernel("c", "C"),
        stacked("d", ["D/0", "D/1", "D/2"]),
        shaped("e", "E", (-1, 1), (1, 1, -1)),
    ]
    expected = {"A": (4,), "B": (5, 3), "C": (1, 4, 3, 2), "D/0": (2, 2), "D/1": (2, 2), "D/2": (2, 2), "E": (1, 1, 4)}
    assert their_shapes(rows, shapes) == expected
    state = {key: torch.randn(shape) for key, shape in shapes.items()}
    theirs = to_theirs(state, rows, shapes)
    assert {key: tuple(tensor.shape) for key, tensor in theirs.items()} == expected
    back = to_ours(theirs, rows, shapes, where="here")
    assert all(torch.equal(back[key], state[key]) for key in state)


@pytest.mark.parametrize("value", [0, -1])
def test_nonsense_gets_no_suggestion(value: int) -> None:
    with pytest.raises(ConfigError, match="heads"):
        Hints(heads=value)
    with pytest.raises(ConfigError, match="grid"):
        Hints(grid=(value, 3))


SHAPES = st.lists(st.integers(0, 3), max_size=5).map(tuple)  # none of them a right one


LARGEST = [(name, PLAIN.get(name, "hybrid" if name in ("jax-npz", "timm") else "plain")) for name in FORMATS]
OTHER_FAMILIES = [("timm", option) for option in ("swin", "convnext", "efficientnet")]


@pytest.mark.parametrize(("name", "option"), [*LARGEST, *OTHER_FAMILIES])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_whatever_shapes_a_file_claims_the_answer_is_one_typed_error(name: str, option: str, data: st.DataObject) -> None:
    config = OPTIONS[option]
    whole = written(name, config, {key: torch.empty(shape) for key, shape in native_shapes(config).items()}).tensors
    changed = data.draw(st.lists(st.sampled_from(sorted(whole)), min_size=1, max_size=4))
    tensors = whole | {key: torch.empty(data.draw(SHAPES)) for key in changed}
    raw = raw_of(tensors)
    if FORMATS[name].matches(raw):
        with pytest.raises(CheckpointError):
            read(raw, hints(name) if isinstance(config, ViTConfig) else Hints())


@pytest.mark.parametrize("name", sorted({name for name, option in LARGEST if option == "plain"}))
def test_an_empty_tensor_is_not_taken_for_an_absent_one(name: str) -> None:
    config = OPTIONS["plain"]
    whole = written(name, config, {key: torch.empty(shape) for key, shape in native_shapes(config).items()}).tensors
    (positions,) = (key for key in whole if "pos" in key.lower() and "emb" in key.lower())
    raw = raw_of(whole | {positions: torch.empty(0)})
    if FORMATS[name].matches(raw):
        with pytest.raises(CheckpointError):
            read(raw, hints(name))
