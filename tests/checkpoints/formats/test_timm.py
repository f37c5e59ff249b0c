"""timm's files: what they do not contain is given, read from config.json, or guessed with a note; an ambiguity is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints.formats.samples import OPTIONS, State, fed, mini, random_state, raw_of, read, same, written
from vitlab.checkpoints.formats.contract import Hints, native_shapes
from vitlab.checkpoints.formats.infer import places_of
from vitlab.checkpoints.formats.timm import sidecar_of
from vitlab.config import ModelConfig, Numerics, Position, Preprocess, ResNetConfig, SwinConfig, ViTConfig, variant
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD
from vitlab.errors import CheckpointError

WIDE = replace(mini(), width=128, heads=2, numerics=Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic"))
HUB = {
    "architecture": "vit_base_patch16_224",
    "num_classes": 5,
    "num_features": 128,
    "global_pool": "token",
    "pretrained_cfg": {
        "input_size": [3, 32, 32],
        "fixed_input_size": True,
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "num_classes": 5,
    },
}


def tensors_of(config: ModelConfig) -> State:
    return written("timm", config, random_state(config)).tensors


def hub(**changes: object) -> dict[str, object]:
    top = {key: value for key, value in changes.items() if key not in HUB["pretrained_cfg"]}  # type: ignore[operator]
    inner = {key: value for key, value in changes.items() if key not in top}
    return {**HUB, **top, "pretrained_cfg": {**HUB["pretrained_cfg"], **inner}}  # type: ignore[dict-item]


def vit(reading_config: ModelConfig) -> ViTConfig:
    assert isinstance(reading_config, ViTConfig)
    return reading_config


def test_heads_are_64_wide_unless_given_and_the_guess_is_noted() -> None:
    guess = read(raw_of(tensors_of(WIDE)))
    assert vit(guess.config).heads == 2
    assert any("heads=2 is a guess (width / 64)" in note for note in guess.notes)
    found = read(raw_of(tensors_of(WIDE)), Hints(heads=8))
    assert vit(found.config).heads == 8
    assert not any("heads" in note for note in found.notes)
    against = read(raw_of(tensors_of(WIDE), sidecar=hub(model_args={"num_heads": 4})), Hints(heads=8))
    assert vit(against.config).heads == 8
    assert any("heads=8 as given, not 4" in note for note in against.notes)


def test_a_width_that_64_does_not_divide_needs_its_heads() -> None:
    tensors = tensors_of(replace(mini(), width=80, heads=4))
    with pytest.raises(CheckpointError, match="width 80 is not a multiple of 64") as refused:
        read(raw_of(tensors))
    assert "heads=" in (refused.value.hint or "")
    assert vit(read(raw_of(tensors), Hints(heads=4)).config).heads == 4
    with pytest.raises(CheckpointError, match="3 heads do not divide the width 80"):
        read(raw_of(tensors), Hints(heads=3))


@pytest.mark.parametrize("name", ["ViT-H/14", "ViT-So400m/14", "ViT-g/14", "ViT-G/14", "ViT-B/16", "ViT-Ti/16"])
def test_published_sizes_have_their_published_heads_also_where_these_are_not_64_wide(name: str) -> None:
    config = vit(variant(name, profile="timm"))
    hollow = {key: torch.empty(shape, device="meta") for key, shape in native_shapes(config).items()}
    reading = read(raw_of(written("timm", config, hollow).tensors))
    assert reading.config == config
    assert any(f"heads={config.heads} is a guess" in note for note in reading.notes)


def test_a_timm_file_is_run_with_timms_numerics_and_fed_like_deit() -> None:
    reading = read(raw_of(tensors_of(WIDE)))
    assert vit(reading.config).numerics == WIDE.numerics
    assert reading.preprocess == Preprocess(
        image_size=(32, 32), resize_to=37, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    assert any("preprocessing is a guess" in note and "augreg" in note for note in reading.notes)
    hybrid = read(raw_of(tensors_of(OPTIONS["hybrid"])), Hints(heads=4))
    stem = vit(hybrid.config).stem
    assert stem is not None
    assert (stem.standardise, stem.standardise_eps, stem.norm_eps) == ("variance", 1e-8, 1e-5)
    assert hybrid.preprocess.mean == (0.5, 0.5, 0.5)
    resnet = read(raw_of(tensors_of(OPTIONS["resnet"])))
    assert isinstance(resnet.config, ResNetConfig)
    assert resnet.config.standardise_eps == 1e-8
    assert any("image_size=224x224 is a guess" in note for note in resnet.notes)


def test_a_grid_that_is_not_square_is_asked_for() -> None:
    config = replace(WIDE, image_size=(24, 56))
    with pytest.raises(CheckpointError, match="21 or 22 patches, which is no square grid"):
        read(raw_of(tensors_of(config)))
    assert read(raw_of(tensors_of(config)), Hints(grid=(3, 7))).config == config
    assert read(raw_of(tensors_of(config), sidecar=hub(input_size=[3, 24, 56]))).config == config


def test_whether_other_tokens_have_positions_is_counted() -> None:
    for prefix in (True, False):
        config = replace(WIDE, register_tokens=4, position=Position(prefix=prefix))
        assert read(raw_of(tensors_of(config))).config == config


def test_two_square_grids_are_an_ambiguity() -> None:
    config = replace(WIDE, register_tokens=4, image_size=(24, 24), position=Position(prefix=False))
    tensors = tensors_of(config)  # 9 rows: 3x3 patches alone, or 2x2 and 5 other tokens
    with pytest.raises(CheckpointError, match="4 or 9 patches, which is either of two square grids"):
        read(raw_of(tensors))
    assert read(raw_of(tensors), Hints(grid=(3, 3))).config == config
    other = read(raw_of(tensors), Hints(grid=(2, 2))).config
    assert vit(other).position.prefix


@given(down=st.integers(1, 40), across=st.integers(1, 40), prefix=st.integers(0, 9), within=st.booleans())
def test_the_grid_found_is_the_grid_there_was_or_it_is_asked_for(down: int, across: int, prefix: int, within: bool) -> None:
    rows = down * across + (prefix if within else 0)
    exact = places_of(rows, prefix, given=(down, across), said=None, without=True, where="here")
    assert exact.grid == (down, across)
    assert exact.prefix == within or not prefix
    try:
        found = places_of(rows, prefix, given=None, said=None, without=True, where="here")
    except CheckpointError:
        return
    assert found.grid[0] == found.grid[1]
    if down == across:  # else another arrangement of as many rows, which only the caller can know
        assert found.grid == (down, across)


def test_config_json_says_how_the_model_is_fed_and_its_labels() -> None:
    names = ["tench", "goldfish", "shark", "ray", "hen"]
    reading = read(raw_of(tensors_of(WIDE), sidecar=hub(label_names=names)))
    assert reading.config == WIDE
    assert reading.labels == tuple(names)
    assert reading.preprocess == Preprocess(image_size=(32, 32), resize_to=35, interpolation="bicubic")
    assert not any("preprocessing" in note for note in reading.notes)
    assert any("heads=2 is a guess" in note for note in reading.notes)
    by_number = hub(label_names={str(i): name for i, name in enumerate(names)})
    assert read(raw_of(tensors_of(WIDE), sidecar=by_number)).labels == tuple(names)
    wrong = read(raw_of(tensors_of(WIDE), sidecar=hub(label_names=names[:3])))
    assert wrong.labels is None
    assert any("label_names" in note for note in wrong.notes)


def test_config_json_of_the_oldest_form_is_read_too() -> None:
    flat = {"architecture": "vit_base_patch16_224", **HUB["pretrained_cfg"]}  # type: ignore[dict-item]
    assert read(raw_of(tensors_of(WIDE), sidecar=flat)).preprocess.resize_to == 35


def test_model_args_of_config_json_say_heads_pool_and_activation() -> None:
    mean = replace(WIDE, pool="mean", heads=8, numerics=replace(WIDE.numerics, gelu="tanh"))
    arguments = {"num_heads": 8, "act_layer": "gelu_tanh", "img_size": 32}
    reading = read(raw_of(tensors_of(mean), sidecar=hub(global_pool="avg", model_args=arguments)))
    assert reading.config == mean
    assert not any("guess" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("architecture", "gelu"),
    [
        ("vit_so400m_patch16_siglip_256", "tanh"),
        ("vit_base_patch16_siglip_224", "exact"),
        ("vit_large_patch16_siglip_gap_512", "tanh"),
        ("vit_base_patch32_siglip_256", "tanh"),
        ("vit_base_patch32_siglip_gap_256", "tanh"),
    ],
)
def test_some_architectures_have_the_tanh_gelu_by_name(architecture: str, gelu: str) -> None:
    reading = read(raw_of(tensors_of(WIDE), sidecar=hub(architecture=architecture)))
    assert vit(reading.config).numerics.gelu == gelu


def test_an_architecture_with_heads_of_its_own_has_them_by_name() -> None:
    config = replace(WIDE, width=192, heads=16)
    reading = read(raw_of(tensors_of(config), sidecar=hub(architecture="vit_base_patch16_gap_224")))
    assert reading.config == config
    assert not any("heads" in note for note in reading.notes)


def test_a_size_in_config_json_that_the_positions_deny_is_ignored_and_said() -> None:
    reading = read(raw_of(tensors_of(WIDE), sidecar=hub(input_size=[3, 224, 224])))
    assert reading.config == WIDE
    assert reading.preprocess.image_size == (32, 32)
    assert any("28x28 patches" in note for note in reading.notes)


def test_pixels_that_no_patch_covers_are_left_out_of_the_image_size() -> None:
    reading = read(raw_of(tensors_of(WIDE), sidecar=hub(input_size=[3, 38, 38])))  # 4 patches of 8 and 6 pixels over
    assert reading.config == WIDE
    assert any("38x38" in note and "32x32" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_size": [224, 224]}, "input_size"),
        ({"input_size": "large"}, "input_size"),
        ({"mean": ["a"]}, "mean"),
        ({"mean": [float("nan")] * 3}, "mean"),
        ({"std": [0, 0, 0]}, "std"),
        ({"std": [10**400] * 3}, "std"),
        ({"crop_pct": 7}, "crop_pct"),
        ({"global_pool": "avgmax"}, "avgmax"),
        ({"global_pool": "map"}, "attention pool"),
        ({"model_args": {"act_layer": "mish"}}, "mish"),
        ({"model_args": {"num_heads": 3}}, "3 heads do not divide"),
        ({"model_args": {"num_heads": "three"}}, "num_heads='three'"),
        ({"model_args": []}, "model_args"),
        ({"label_names": 3}, "label_names"),
        ({"crop_mode": 4}, "crop_mode"),
    ],
)
def test_nonsense_in_config_json_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(raw_of(tensors_of(WIDE), sidecar=hub(**changes)))


def test_ways_of_feeding_that_vitlab_does_not_have_are_said() -> None:
    reading = read(raw_of(tensors_of(WIDE), sidecar=hub(interpolation="lanczos", crop_mode="corner")))
    assert any("lanczos" in note for note in reading.notes)
    assert any("corner" in note for note in reading.notes)


def test_somebody_elses_config_json_is_not_believed() -> None:
    foreign = {"architectures": ["ViTModel"], "model_type": "vit", "num_attention_heads": 16, "image_size": 999}
    assert read(raw_of(tensors_of(WIDE), sidecar=foreign)).config == WIDE


@pytest.mark.parametrize("option", [name for name in OPTIONS if name not in ("hybrid", "hybrid root") and "resnet" not in name])
def test_the_config_json_written_for_timm_says_all_that_a_timm_file_does_not(option: str) -> None:
    config = OPTIONS[option]
    try:
        given = written("timm", config, random_state(config), labels=("a", "b", "c", "d", "e"))
    except CheckpointError:
        return
    if given.no_folder is not None:
        return
    reading = read(raw_of(given.tensors, sidecar=given.sidecars["config.json"]))
    if isinstance(config, SwinConfig):  # which timm shifts before it pads
        assert reading.config == replace(config, pad_first=False)
    else:
        numerics = replace(vit(config).numerics, norm_eps=1e-6, resize="bicubic")
        expected = replace(vit(config), numerics=numerics, dynamic_size=False)
        assert reading.config == expected
    assert reading.labels == (("a", "b", "c", "d", "e") if config.num_classes else None)
    assert not any("guess" in note for note in reading.notes)
    assert json.loads(json.dumps(given.sidecars["config.json"])) == given.sidecars["config.json"]


@given(size=st.integers(1, 2000), extra=st.integers(0, 500), width=st.integers(1, 300), mlp=st.integers(1, 1200))
def test_rounding_in_timm_does_not_change_the_crop_or_the_mlp(size: int, extra: int, width: int, mlp: int) -> None:
    config = replace(mini(), width=width, heads=1, mlp_width=mlp)
    preprocess = Preprocess(image_size=(size, size), resize_to=size + extra)
    beside = sidecar_of(config, preprocess, None)
    assert isinstance(beside, dict)
    arguments, fed_by = beside["model_args"], beside["pretrained_cfg"]
    assert isinstance(arguments, dict)
    assert isinstance(fed_by, dict)
    assert isinstance(arguments["mlp_ratio"], float)
    assert isinstance(fed_by["crop_pct"], float)
    assert int(width * arguments["mlp_ratio"]) == mlp
    assert int(size / fed_by["crop_pct"]) == size + extra


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("R50+ViT-B/16", "vit_base_r50_s16_224"),
        ("R50+ViT-B/32", "vit_large_r50_s32_224"),  # its ResNet, with B's sizes as arguments
        ("R+ViT-Ti/16", "vit_tiny_r_s16_p8_224"),
        ("BiT-R152x4", "resnetv2_152x4_bit"),
        ("BiT-R200x3", None),
    ],
)
def test_known_hybrids_and_resnets_have_timms_names_and_others_none(name: str, theirs: str | None) -> None:
    config = variant(name)
    beside = sidecar_of(config, fed(config), None)
    assert (beside["architecture"] if isinstance(beside, dict) else None) == theirs
    given = written("timm", OPTIONS["hybrid"], random_state(OPTIONS["hybrid"]))
    assert not given.sidecars
    assert given.no_folder is not None


def test_other_channels_are_not_offered_to_timm_for_adapting() -> None:
    grey = sidecar_of(replace(mini(), channels=1), fed(replace(mini(), channels=1)), None)
    colour = sidecar_of(mini(), fed(mini()), None)
    assert isinstance(grey, dict)
    assert isinstance(colour, dict)
    assert "first_conv" not in str(grey)  # timm takes it for three channels, and would make the weights anew at random
    assert "'first_conv': 'patch_embed.proj'" in str(colour)


def test_a_padded_model_is_made_in_timm_for_the_padded_size() -> None:
    config = replace(mini(), image_size=(30, 26), pad=True)
    beside = sidecar_of(config, fed(config), None)
    assert isinstance(beside, dict)
    assert isinstance(beside["model_args"], dict)
    assert beside["model_args"]["img_size"] == [32, 32]


@pytest.mark.parametrize("arguments", [{"pool_include_prefix": True}, {"padding_same": False}], ids=str)
def test_arguments_that_leave_no_trace_in_the_tensors_and_are_not_ours_are_refused(arguments: dict[str, bool]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(arguments))):
        read(raw_of(tensors_of(WIDE), sidecar=hub(model_args=arguments)))


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (replace(mini(), distill_token=True, register_tokens=1), "register tokens beside a distillation token"),
        (replace(mini(), distill_token=True, position=Position(prefix=False)), "a distillation token without a position"),
        (replace(mini(), distill_token=True, position=Position(kind="none")), "a distillation token without a position"),
    ],
)
def test_what_timms_distilled_class_has_no_place_for_is_refused(config: ViTConfig, word: str) -> None:
    with pytest.raises(CheckpointError, match=word):
        written("timm", config, random_state(config))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod."])
def test_wrappers_prefixes_are_taken_off_and_said(prefix: str) -> None:
    state = random_state(WIDE)
    tensors = {prefix + key: tensor for key, tensor in written("timm", WIDE, state).tensors.items()}
    reading = read(raw_of(tensors))
    assert same(reading.state, state)
    assert sum("taken off" in note for note in reading.notes) == prefix.count(".")


def test_fc_norm_beside_a_class_token_is_taken_for_the_mean_and_said_unless_config_json_says() -> None:
    config = replace(WIDE, pool="mean", norm_after_pool=True)
    guess = read(raw_of(tensors_of(config)))
    assert guess.config == config
    assert any("pool='mean' is a guess" in note for note in guess.notes)
    said = read(raw_of(tensors_of(config), sidecar=hub(global_pool="avg")))
    assert said.config == config
    assert not any("pool" in note for note in said.notes)


def test_an_attention_pool_leaves_class_and_register_tokens_aside() -> None:
    config = replace(WIDE, pool="map", register_tokens=2, position=Position(prefix=False))
    assert read(raw_of(tensors_of(config))).config == config


def test_a_model_that_vitlab_does_not_have_is_refused_by_its_keys() -> None:
    clip = tensors_of(WIDE) | {"norm_pre.weight": torch.zeros(128), "norm_pre.bias": torch.zeros(128)}
    with pytest.raises(CheckpointError, match=r"norm_pre\.weight, norm_pre\.bias"):
        read(raw_of(clip))
    norms = tensors_of(WIDE) | {"blocks.0.attn.q_norm.weight": torch.zeros(64)}
    with pytest.raises(CheckpointError, match="q_norm"):
        read(raw_of(norms))


def test_what_timm_needs_beside_the_tensors_is_noted_on_writing() -> None:
    wide = replace(mini(), image_size=(24, 56))
    alone = " ".join(written("timm", wide, random_state(wide)).alone)
    assert "num_heads=4" in alone
    assert "grid is 3x7" in alone
    assert "act_layer='gelu_tanh'" in alone
    assert not written("timm", wide, random_state(wide)).notes  # config.json says all of it
    mean = replace(WIDE, pool="mean")
    assert "global_pool='avg'" in " ".join(written("timm", mean, random_state(mean)).alone)
    plain = written("timm", WIDE, random_state(WIDE))
    assert not plain.notes
    assert not plain.alone


def test_what_timm_cannot_express_is_noted_on_writing() -> None:
    hidden = replace(WIDE, representation_width=48)
    assert "pre_logits" in " ".join(written("timm", hidden, random_state(hidden)).notes)
    other = replace(WIDE, numerics=replace(WIDE.numerics, norm_eps=1e-12))
    assert "LayerNorm eps" in " ".join(written("timm", other, random_state(other)).notes)
