"""What vitlab writes into the header of a foreign .safetensors file, and what it believes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.checkpoints.formats.samples import OPTIONS, State, fed, file_of, mini, random_state, raw_of, read, written
from vitlab.checkpoints.formats.contract import Hints
from vitlab.checkpoints.formats.header import KEY
from vitlab.config import ModelConfig, Numerics, ViTConfig
from vitlab.errors import CheckpointError

WIDE = replace(mini(), width=128, heads=2, numerics=Numerics(gelu="exact", norm_eps=1e-6, resize="bicubic"))


def tensors_of(config: ModelConfig) -> State:
    return written("timm", config, random_state(config)).tensors


def vit(config: ModelConfig) -> ViTConfig:
    assert isinstance(config, ViTConfig)
    return config


def test_vitlabs_header_adds_what_tensors_cannot_show_and_never_more() -> None:
    config = replace(WIDE, heads=8, dropout=0.1, drop_path=0.2, dynamic_size=True, head_bias=-10.0)
    raw = file_of(written("timm", config, random_state(config), labels=tuple("abcde")), folder=False)
    reading = read(raw)
    assert (reading.config, reading.labels, reading.preprocess) == (config, tuple("abcde"), fed(config))
    assert vit(read(raw, Hints(heads=4)).config).heads == 4
    assert vit(read(raw, Hints(profile="official")).config).numerics.gelu == "tanh"
    smaller = {key: tensor[:3] if key.startswith("head.") else tensor for key, tensor in raw.tensors.items()}
    changed = read(replace(raw, tensors=smaller))
    assert (vit(changed.config).num_classes, changed.labels) == (3, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("9" * 5000, "is not JSON"),
        ("{}", "unusable"),
        ('{"config": 3, "preprocess": {}}', "unusable"),
        ('{"config": {"kind": []}, "preprocess": {}}', "unusable"),
        ('{"config": {"kind": "vit", "dropout": 1%s}, "preprocess": {}}' % ("0" * 400), "unusable"),
    ],
)
def test_a_damaged_header_is_refused(text: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(raw_of(tensors_of(WIDE), metadata={KEY: text}))


def test_a_header_of_another_model_is_refused_however_deep_it_claims_to_be() -> None:
    claims = replace(WIDE, depth=4096)
    metadata = file_of(written("timm", WIDE, random_state(WIDE)), folder=False).metadata
    metadata = {KEY: metadata[KEY].replace('"depth": 2', f'"depth": {claims.depth}')}
    with pytest.raises(CheckpointError, match="header describes another model"):
        read(raw_of(tensors_of(WIDE), metadata=metadata))


def test_groups_of_nothing_in_a_header_are_refused() -> None:
    resnet = OPTIONS["resnet"]
    metadata = file_of(written("timm", resnet, random_state(resnet)), folder=False).metadata
    for groups in ("0", "-32", "7"):
        changed = {KEY: metadata[KEY].replace('"groups": 32', f'"groups": {groups}')}
        with pytest.raises(CheckpointError, match="groups"):
            read(raw_of(tensors_of(resnet), metadata=changed))
