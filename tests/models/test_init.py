"""Initial values: the authors'."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from vitlab.config import Position, ResNetStem, ViTConfig, variant
from vitlab.models import build


def state_of(config: ViTConfig) -> dict[str, torch.Tensor]:
    return build(config, seed=0).state_dict()


def tiny() -> ViTConfig:
    config = variant("ViT-Ti/16", num_classes=10)
    assert isinstance(config, ViTConfig)
    return replace(config, depth=1)


def test_query_key_and_value_are_each_xavier_uniform_not_the_fused_matrix() -> None:
    fused = state_of(tiny())["encoder.blocks.0.attention.qkv.weight"]
    bound = math.sqrt(6 / (192 + 192))
    for matrix in fused.chunk(3):
        assert 0.99 * bound < matrix.abs().max() <= bound
        assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_the_head_and_class_token_begin_at_zero_and_the_head_bias_where_asked() -> None:
    state = state_of(replace(tiny(), head_bias=-10.0))
    assert not state["head.weight"].any()
    assert not state["class_token"].any()
    assert (state["head.bias"] == -10).all()


def test_positions_and_biases_have_the_authors_spread() -> None:
    state = state_of(replace(tiny(), representation_width=64))
    assert state["position.table"].std().item() == pytest.approx(0.02, rel=0.02)
    assert state["encoder.blocks.0.mlp.up.bias"].std().item() == pytest.approx(1e-6, rel=0.1)
    assert not state["encoder.blocks.0.attention.qkv.bias"].any()
    assert state["patches.weight"].std().item() == pytest.approx(1 / math.sqrt(3 * 16 * 16), rel=0.02)
    assert state["representation.weight"].std().item() == pytest.approx(1 / math.sqrt(192), rel=0.03)
    assert state["patches.weight"].abs().max() <= 2 / math.sqrt(768) / 0.8796 + 1e-6


def test_a_hybrids_units_begin_as_their_shortcuts() -> None:
    config = replace(tiny(), stem=ResNetStem(blocks=(1, 1)), patch_size=(1, 1), image_size=(32, 32))
    state = state_of(config)
    assert not state["stem.stages.0.0.norm3.weight"].any()
    assert (state["stem.stages.0.0.norm2.weight"] == 1).all()


def test_layer_scale_and_registers_begin_where_asked() -> None:
    state = state_of(replace(tiny(), layer_scale=1e-4, register_tokens=2, position=Position(prefix=False)))
    assert (state["encoder.blocks.0.scale1"] == 1e-4).all()
    assert not torch.equal(state["register_tokens"][0, 0], state["register_tokens"][0, 1])
