"""Attention asked for in rows is the attention itself; asking changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import processes
from tests.interpretation.small import VITS, images, vit_of
from vitlab.errors import ConfigError
from vitlab.interpretation.attention import AT_ONCE, blocks, class_attention, query_attention
from vitlab.models import Record
from vitlab.models.attention_variants import AttentionCapture, AttentionContext, attention_weights

each = pytest.mark.parametrize("name", VITS)


@each
def test_rows_sum_to_one_and_any_block_of_them_is_that_part_of_the_whole(name: str) -> None:
    model, record = vit_of(name), Record(captures=True)
    with torch.inference_mode():
        model.encode_images(images(model.config), record)
        for capture, whole_BHNN in zip(record.captures, record.attention_BHNN, strict=True):
            tokens = whole_BHNN.shape[-1]
            torch.testing.assert_close(capture.rows(0, tokens).sum(-1), torch.ones(whole_BHNN.shape[:3]), atol=1e-6, rtol=0)
            for first, last in ((0, 1), (0, tokens), (1, 5), (2, tokens), (tokens - 1, tokens)):
                torch.testing.assert_close(capture.rows(first, last), whole_BHNN[:, :, first:last], atol=1e-6, rtol=0)


@each
def test_recording_changes_no_output(name: str) -> None:
    model = vit_of(name)
    images_BCHW = images(model.config)
    with torch.inference_mode():
        assert torch.equal(model(images_BCHW), model(images_BCHW, Record(captures=True, tokens=True)))


def test_blocks_are_the_rows_asked_for_in_order_and_no_more_than_a_few_at_once() -> None:
    q_BHNK, k_BHNK = torch.randn(2, 3, AT_ONCE * 2 + 7, 4), torch.randn(2, 3, AT_ONCE * 2 + 7, 4)
    context = AttentionContext(layer=0, grid=(1, AT_ONCE * 2 + 7), prefix=0)
    capture = AttentionCapture(
        queries_BHNK=q_BHNK, keys_BHNK=k_BHNK, values_BHNK=k_BHNK, mixed_BHNK=k_BHNK, context=context, axis=None
    )
    found = list(blocks(capture, 3, AT_ONCE * 2 + 7))
    assert max(rows.shape[2] for _, rows in found) == AT_ONCE
    torch.testing.assert_close(
        torch.cat([rows for _, rows in found], 2), attention_weights(q_BHNK, k_BHNK, None)[:, :, 3:], atol=1e-6, rtol=0
    )


def test_half_precision_rows_sum_to_one_in_float32() -> None:
    half_BHNK = torch.randn(1, 2, 50, 8).bfloat16()
    context = AttentionContext(layer=0, grid=(5, 10), prefix=0)
    capture = AttentionCapture(
        queries_BHNK=half_BHNK, keys_BHNK=half_BHNK, values_BHNK=half_BHNK, mixed_BHNK=half_BHNK, context=context, axis=None
    )
    assert capture.rows(0, 50).dtype == torch.float32
    torch.testing.assert_close(capture.rows(0, 50).sum(-1), torch.ones(1, 2, 50), atol=1e-5, rtol=0)


def test_the_map_of_a_patch_is_its_row_of_the_recorded_attention() -> None:
    model, record = vit_of("rectangular"), Record(layers=[1])
    images_BCHW = images(model.config)
    model.encode_images(images_BCHW, record)
    found = query_attention(model, images_BCHW, (2, 3), layers=[1])
    grid = model.config.grid
    assert found.shape == (1, 2, model.config.heads, *grid) == (1, 2, model.config.heads, 3, 10)
    expected = record.attention_BHNN[0][:, :, 1 + 2 * 10 + 3, 1:].reshape(2, -1, 3, 10)
    np.testing.assert_allclose(found[0], expected.detach(), atol=1e-6)


def test_layers_come_in_the_order_they_were_asked_for() -> None:
    model = vit_of("token")
    images_BCHW = images(model.config)
    every = class_attention(model, images_BCHW)
    np.testing.assert_array_equal(class_attention(model, images_BCHW, layers=[2, 0, -1]), every[[2, 0, 2]])


def test_a_distillation_token_looks_for_itself() -> None:
    model = vit_of("distilled")
    images_BCHW = images(model.config)
    own, other = query_attention(model, images_BCHW, "distill"), query_attention(model, images_BCHW, "class")
    assert own.shape == other.shape
    assert not np.allclose(own, other)


def test_an_attention_pool_has_its_probe_instead_of_a_class_token() -> None:
    model = vit_of("map")
    found = class_attention(model, images(model.config))
    assert found.shape == (1, 2, model.config.heads, *model.config.grid)
    np.testing.assert_allclose(found.sum((-2, -1)), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "query", "message"),
    [
        ("mean", "class", "no class token"),
        ("token", "distill", "no distillation token"),
        ("token", (4, 0), r"no patch \(4, 0\): the grid is 4 x 4"),
        ("token", (0, -1), r"no patch \(0, -1\)"),
    ],
)
def test_a_token_that_is_not_there_is_refused(name: str, query: str | tuple[int, int], message: str) -> None:
    model = vit_of(name)
    with pytest.raises(ConfigError, match=message):
        query_attention(model, images(model.config), query)  # type: ignore[arg-type]


def test_without_a_class_token_class_attention_is_refused_with_alternatives() -> None:
    model = vit_of("mean")
    with pytest.raises(ConfigError, match="no class token") as refusal:
        class_attention(model, images(model.config))
    assert "rollout" in str(refusal.value.hint)
    probing = vit_of("map")
    with pytest.raises(ConfigError, match="once"):
        class_attention(probing, images(probing.config), layers=[0])


def test_a_layer_that_is_not_there_and_images_that_are_none_are_refused() -> None:
    model = vit_of("token")
    with pytest.raises(ConfigError, match="no layer 3: the model has 3"):
        class_attention(model, images(model.config), layers=[3])
    with pytest.raises(ConfigError, match="batch, channels"):
        class_attention(model, images(model.config)[:0])
    with pytest.raises(ConfigError, match="batch, channels, height, width"):
        class_attention(model, images(model.config)[0])


def test_a_model_in_training_mode_is_inspected_in_evaluation_mode_and_keeps_its_mode() -> None:
    model = vit_of("token")
    images_BCHW = images(model.config)
    expected = class_attention(model, images_BCHW)
    model.train()
    model.head.eval()  # type: ignore[union-attr]
    np.testing.assert_array_equal(class_attention(model, images_BCHW), expected)
    assert model.training
    assert not model.head.training  # type: ignore[union-attr]


LARGE = """
import torch
from vitlab.config import ViTConfig
from vitlab.interpretation.attention import attention_distance
from vitlab.models import build
config = ViTConfig(width=32, depth=1, heads=8, mlp_width=32, patch_size=(8, 8), image_size=(768, 768), num_classes=2)
attention_distance(build(config), torch.zeros(1, 3, 768, 768))
print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads its own peak from /proc; ru_maxrss would hold the parent's too")
def test_memory_does_not_hold_the_whole_attention_at_once(warm: Path) -> None:
    done = processes.run([warm / "python", "-c", LARGE])
    whole = 8 * 9217**2 * 4
    assert int(done.stdout) * 1024 < whole / 2
