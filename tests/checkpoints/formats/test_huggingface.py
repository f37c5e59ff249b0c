"""Hugging Face folders and files: both sets of names, config.json, preprocessor_config.json, DeiT."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch

from tests.checkpoints.formats.samples import OPTIONS, State, fed, file_of, mini, random_state, raw_of, read, same, written
from vitlab.checkpoints.formats.contract import Hints
from vitlab.checkpoints.formats.sidecar import preprocess_of, preprocessor_json
from vitlab.config import ModelConfig, Numerics, Preprocess, ViTConfig
from vitlab.config.data import IMAGENET_MEAN, IMAGENET_STD
from vitlab.errors import CheckpointError

VIT = replace(mini(), width=128, heads=2, numerics=Numerics(gelu="exact", norm_eps=1e-12, resize="bicubic-plain"))
RENAMED = (
    (".encoder.layer.", ".layers."),
    ("attention.attention.query", "attention.q_proj"),
    ("attention.attention.key", "attention.k_proj"),
    ("attention.attention.value", "attention.v_proj"),
    ("attention.output.dense", "attention.o_proj"),
    ("intermediate.dense", "mlp.fc1"),
    (".output.dense", ".mlp.fc2"),
)
SQUASH = {
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "size": {"height": 32, "width": 32},
}


def tensors_of(config: ViTConfig) -> State:
    return written("huggingface", config, random_state(config)).tensors


def config_of(config: ViTConfig, **changes: object) -> dict[str, object]:
    data = written("huggingface", config, random_state(config)).sidecars["config.json"]
    assert isinstance(data, dict)
    return {**data, **changes}


def modules(tensors: State) -> State:
    for old, new in RENAMED:
        tensors = {key.replace(old, new): tensor for key, tensor in tensors.items()}
    return tensors


def test_the_hubs_names_are_written() -> None:
    keys = [key for key in tensors_of(VIT) if "layer.1" not in key]
    layer = "vit.encoder.layer.0"
    parts = [
        *("layernorm_before", "attention.attention.query", "attention.attention.key", "attention.attention.value"),
        *("attention.output.dense", "layernorm_after", "intermediate.dense", "output.dense"),
    ]
    assert set(keys) == {
        "vit.embeddings.cls_token",
        "vit.embeddings.position_embeddings",
        *(
            f"{name}.{part}"
            for part in ("weight", "bias")
            for name in (
                *(f"{layer}.{inner}" for inner in parts),
                *("vit.embeddings.patch_embeddings.projection", "vit.layernorm", "classifier"),
            )
        ),
    }


def test_transformers_5s_module_names_are_read_alike() -> None:
    state = random_state(VIT)
    tensors = written("huggingface", VIT, state).tensors
    renamed = modules(tensors)
    assert renamed.keys() != tensors.keys()
    for names in (tensors, renamed):
        reading = read(raw_of(names, sidecar=config_of(VIT)))
        assert reading.config == VIT
        assert same(reading.state, state)


@pytest.mark.parametrize("prefix", ["vit.", ""])
def test_a_bare_model_is_read_with_and_without_its_prefix(prefix: str) -> None:
    config = replace(VIT, num_classes=0)
    state = random_state(config)
    tensors = {f"{prefix}{key}": tensor for key, tensor in written("huggingface", config, state).tensors.items()}
    assert same(read(raw_of(tensors, sidecar=config_of(config))).state, state)


def test_a_pooler_is_the_papers_hidden_layer() -> None:
    config = replace(VIT, num_classes=0, representation_width=128)
    tensors = tensors_of(config)
    assert tensors["pooler.dense.weight"].shape == (128, 128)
    assert read(raw_of(tensors, sidecar=config_of(config))).config == config
    with pytest.raises(CheckpointError, match="'relu'"):
        read(raw_of(tensors, sidecar=config_of(config, pooler_act="relu")))


def test_what_transformers_keeps_but_does_not_use_is_left_out_and_said() -> None:
    state = random_state(VIT)
    unused = {
        "vit.pooler.dense.weight": torch.zeros(128, 128),
        "vit.pooler.dense.bias": torch.zeros(128),
        "vit.embeddings.mask_token": torch.zeros(1, 1, 128),
    }
    reading = read(raw_of(written("huggingface", VIT, state).tensors | unused))
    assert same(reading.state, state)
    (note,) = [note for note in reading.notes if "left out" in note]
    assert all(key.removeprefix("vit.") in note for key in unused)


def test_config_json_gives_heads_eps_and_activation() -> None:
    for gelu, names in (("exact", ("gelu",)), ("tanh", ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"))):
        for name in names:
            data = config_of(VIT, num_attention_heads=8, layer_norm_eps=1e-5, hidden_act=name)
            config = read(raw_of(tensors_of(VIT), sidecar=data)).config
            assert isinstance(config, ViTConfig)
            assert (config.heads, config.numerics.norm_eps, config.numerics.gelu) == (8, 1e-5, gelu)


def test_a_file_alone_has_transformers_defaults_and_guessed_heads_and_says_so() -> None:
    reading = read(raw_of(tensors_of(VIT)))
    assert reading.config == VIT
    notes = " ".join(reading.notes)
    assert "no config.json" in notes
    assert "heads=2 is a guess" in notes
    assert "preprocessing is a guess" in notes
    assert (reading.preprocess.resize, reading.preprocess.mean) == ("squash", (0.5, 0.5, 0.5))
    narrow = replace(VIT, width=80, heads=5)
    with pytest.raises(CheckpointError, match="multiple of 64"):
        read(raw_of(tensors_of(narrow)))
    assert read(raw_of(tensors_of(narrow)), Hints(heads=5)).config == narrow


def test_sizes_are_one_number_or_two() -> None:
    config = replace(VIT, patch_size=(8, 4), image_size=(24, 56))
    data = config_of(config)
    assert (data["image_size"], data["patch_size"]) == ([24, 56], [8, 4])
    assert (config_of(VIT)["image_size"], config_of(VIT)["patch_size"]) == (32, 8)
    assert read(raw_of(tensors_of(config), sidecar=data)).config == config


def test_labels_come_from_id2label_and_placeholders_are_none() -> None:
    names = ("tabby cat", "LABEL_1", "ray", "hen", "<b>")
    data = config_of(VIT, id2label={str(i): name for i, name in enumerate(names)})
    assert read(raw_of(tensors_of(VIT), sidecar=data)).labels == names
    assert read(raw_of(tensors_of(VIT), sidecar=config_of(VIT))).labels is None
    short = read(raw_of(tensors_of(VIT), sidecar=config_of(VIT, id2label={"0": "only"})))
    assert short.labels is None
    assert any("id2label" in note for note in short.notes)
    written_names = written("huggingface", VIT, random_state(VIT), labels=names).sidecars["config.json"]
    assert isinstance(written_names, dict)
    assert written_names["id2label"] == {str(i): name for i, name in enumerate(names)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu6"}, "relu6"),
        ({"num_hidden_layers": 12}, "num_hidden_layers 12 against 2"),
        ({"hidden_size": 768}, "hidden_size 768 against 128"),
        ({"patch_size": 16}, "patch_size"),
        ({"num_attention_heads": 3}, "3 heads do not divide"),
        ({"num_attention_heads": 0}, "0 heads do not divide"),
        ({"layer_norm_eps": 7}, "norm_eps"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps='small'"),
        ({"image_size": {"height": 3}}, "image_size"),
        ({"qkv_bias": "yes"}, "qkv_bias"),
        ({"id2label": 3}, "id2label"),
        ({"hidden_dropout_prob": 2}, "dropout"),
    ],
)
def test_a_config_json_that_is_nonsense_or_of_another_model_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(raw_of(tensors_of(VIT), sidecar=config_of(VIT, **changes)))


def test_biases_that_config_json_promises_and_the_file_lacks_are_missing() -> None:
    config = replace(VIT, qkv_bias=False)
    tensors = tensors_of(config)
    assert read(raw_of(tensors, sidecar=config_of(config))).config == config
    assert read(raw_of(tensors)).config == config
    with pytest.raises(CheckpointError, match="6 missing keys"):
        read(raw_of(tensors, sidecar=config_of(config, qkv_bias=True)))


def test_a_size_in_config_json_that_the_positions_deny_is_ignored_and_said() -> None:
    reading = read(raw_of(tensors_of(VIT), sidecar=config_of(VIT, image_size=224)))
    assert reading.config == VIT
    assert any("28x28 patches" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (SQUASH, Preprocess(image_size=(32, 32), resize="squash", interpolation="bilinear")),
        ({**SQUASH, "size": 32, "resample": 3}, Preprocess(image_size=(32, 32), resize="squash")),
        (
            {
                **SQUASH,
                "size": {"shortest_edge": 36},
                "resample": 3,
                "crop_size": {"height": 32, "width": 32},
                "do_center_crop": True,
            },
            Preprocess(image_size=(32, 32), resize_to=36),
        ),
        (
            {**SQUASH, "size": {"shortest_edge": 36}, "crop_size": 32},
            Preprocess(image_size=(32, 32), resize_to=36, interpolation="bilinear"),
        ),
        (
            {**SQUASH, "do_normalize": False},
            Preprocess(image_size=(32, 32), resize="squash", interpolation="bilinear", mean=(0.0,) * 3, std=(1.0,) * 3),
        ),
        (
            {**SQUASH, "image_mean": list(IMAGENET_MEAN), "image_std": list(IMAGENET_STD)},
            Preprocess(image_size=(32, 32), resize="squash", interpolation="bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD),
        ),
    ],
)
def test_preprocessor_config_json_is_understood(data: dict[str, object], expected: Preprocess) -> None:
    reading = read(raw_of(tensors_of(VIT), sidecar=config_of(VIT), preprocessor=data))
    assert reading.preprocess == expected
    assert not reading.notes


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"size": {"height": 36, "width": 36}, "do_center_crop": True, "crop_size": 32}, "squashes to 36x36"),
        ({"size": {"height": 64, "width": 64}}, r"\(64, 64\)"),
        ({"resample": 1}, "resample=1"),
        ({"do_rescale": False}, "1/255"),
        ({"rescale_factor": 0.5}, "1/255"),
        ({"size": {"shortest_edge": 40}, "crop_size": 36}, r"\(36, 36\)"),
    ],
)
def test_ways_of_feeding_that_vitlab_does_otherwise_are_said(changes: dict[str, object], word: str) -> None:
    reading = read(raw_of(tensors_of(VIT), sidecar=config_of(VIT), preprocessor={**SQUASH, **changes}))
    (note,) = reading.notes
    assert re.search(word, note)


@pytest.mark.parametrize(
    "changes", [{"size": "big"}, {"image_mean": "grey"}, {"resample": "cubic"}, {"do_normalize": 3}, {"image_std": [0, 1, 1]}]
)
def test_a_preprocessor_config_json_that_is_nonsense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(changes)).removeprefix("image_")):
        read(raw_of(tensors_of(VIT), sidecar=config_of(VIT), preprocessor={**SQUASH, **changes}))


@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(image_size=(32, 32), resize="squash", interpolation="bicubic"),
        Preprocess(image_size=(32, 32), resize="squash", interpolation="bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD),
        Preprocess(image_size=(32, 32), resize="short-side", resize_to=36, interpolation="bicubic"),
    ],
)
def test_preprocessing_written_for_transformers_is_read_back(preprocess: Preprocess) -> None:
    data, notes = preprocessor_json(preprocess)
    assert not notes
    assert json.loads(json.dumps(data)) == data
    reading = read(raw_of(tensors_of(VIT), sidecar=config_of(VIT), preprocessor=data))
    assert reading.preprocess == preprocess


def test_preprocessing_that_transformers_does_not_have_is_said_on_writing() -> None:
    data, (note,) = preprocessor_json(Preprocess(resize="pad"))
    assert data is None
    assert "pads" in note
    data, (note,) = preprocessor_json(Preprocess(resize="squash", interpolation="tf-bilinear"))
    assert data is not None
    assert "antialiasing" in note


def test_a_distilled_deit_has_two_heads_and_one_without_a_teacher_a_token_more() -> None:
    teacher = replace(VIT, distill_token=True)
    given = written("huggingface", teacher, random_state(teacher))
    assert {"cls_classifier.weight", "distillation_classifier.weight", "deit.embeddings.distillation_token"} <= given.tensors.keys()
    assert json.dumps(given.sidecars["config.json"]).count("DeiTForImageClassificationWithTeacher") == 1
    assert read(file_of(given, folder=True)).config == teacher
    alone = replace(VIT, register_tokens=1)
    given = written("huggingface", alone, random_state(alone))
    assert json.dumps(given.sidecars["config.json"]).count('"DeiTForImageClassification"') == 1
    reading = read(file_of(given, folder=True))
    assert reading.config == alone
    assert any("kept as a register" in note for note in reading.notes)


def test_a_deit_alone_is_fed_like_deit() -> None:
    reading = read(raw_of(tensors_of(replace(VIT, distill_token=True))))
    assert (reading.preprocess.resize, reading.preprocess.mean) == ("short-side", IMAGENET_MEAN)


def test_the_whole_folder_is_written_and_says_everything() -> None:
    given = written("huggingface", VIT, random_state(VIT), labels=tuple("abcde"))
    assert given.sidecars.keys() == {"config.json", "preprocessor_config.json"}
    assert given.weights_name == "model.safetensors"
    assert given.metadata == {"format": "pt"}
    reading = read(file_of(given, folder=True))
    assert (reading.config, reading.labels, reading.preprocess, reading.notes) == (VIT, tuple("abcde"), fed(VIT), ())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_config_json_names_the_number_type(dtype: torch.dtype) -> None:
    data = written("huggingface", VIT, random_state(VIT, dtype=dtype)).sidecars["config.json"]
    assert isinstance(data, dict)
    assert data["torch_dtype"] == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("config", "data", "expected"),
    [
        (  # DINOv2: trained at 518 pixels, evaluated at 224, which the model takes as it takes any size
            OPTIONS["dinov2"],
            {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}},
            Preprocess(image_size=(16, 16), resize_to=20, interpolation="bilinear"),
        ),
        (
            OPTIONS["convnext"],
            {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3},
            Preprocess(image_size=(224, 224), resize_to=256),
        ),
        (
            OPTIONS["convnext"],
            {"feature_extractor_type": "ConvNextFeatureExtractor", "size": {"shortest_edge": 384}, "resample": 3},
            Preprocess(image_size=(384, 384), resize="squash"),
        ),
    ],
)
def test_preprocessing_of_other_families_is_that_of_their_image_processors(
    config: ModelConfig, data: dict[str, object], expected: Preprocess
) -> None:
    given = written("huggingface", config, random_state(config))
    reading = read(raw_of(given.tensors, sidecar=given.sidecars["config.json"], preprocessor=data))
    assert reading.preprocess == expected
    assert not [note for note in reading.notes if "preprocessor_config" in note]


def test_an_efficientnet_is_normalised_twice_as_its_image_processor_does() -> None:
    data = {"image_processor_type": "EfficientNetImageProcessor", "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.25]}
    config = OPTIONS["convnext"]
    assert preprocess_of(data, config, any_size=True)[0].std == (0.25, 0.25, 0.0625)
    assert preprocess_of({**data, "include_top": False}, config, any_size=True)[0].std == (0.5, 0.5, 0.25)
