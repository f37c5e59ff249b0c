"""Hugging Face shows its attention, whole: what is computed in rows here is the same, and so is what follows from it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from tests.peer.compare import TOLERANCE, images, randomised
from vitlab.checkpoints import load
from vitlab.config import ViTConfig
from vitlab.interpretation.attention import attention_distance, class_attention, query_attention, rollout

SIZE = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "num_labels": 5}


def test_attention_distance_and_rollout_follow_from_the_attention_that_transformers_shows(
    transformers: ModuleType, tmp_path: Path
) -> None:
    config = transformers.ViTConfig(**SIZE, image_size=(24, 56), patch_size=8, attn_implementation="eager")
    theirs = randomised(transformers.ViTForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    checkpoint = load(tmp_path)
    assert isinstance(checkpoint.config, ViTConfig)
    images_BCHW = images(checkpoint.config)
    with torch.inference_mode():
        shown = [attention.numpy() for attention in theirs(images_BCHW, output_attentions=True).attentions]
    seen_LBHNN = np.stack(shown)
    by_class = seen_LBHNN[:, :, :, 0, 1:].reshape(3, 2, 4, 3, 7)
    np.testing.assert_allclose(class_attention(checkpoint.model, images_BCHW), by_class, atol=TOLERANCE)
    by_patch = seen_LBHNN[:, :, :, 1 + 1 * 7 + 4, 1:].reshape(3, 2, 4, 3, 7)
    np.testing.assert_allclose(query_attention(checkpoint.model, images_BCHW, (1, 4)), by_patch, atol=TOLERANCE)

    # The authors' definitions, whole matrices at once (their issues 162 and 18).
    places_N2 = np.stack(np.meshgrid(np.arange(3), np.arange(7), indexing="ij"), -1).reshape(-1, 2) * 8.0
    pixels_NN = np.linalg.norm(places_N2[:, None] - places_N2[None], axis=-1)
    expected_LH = (seen_LBHNN[:, :, :, 1:, 1:] * pixels_NN).sum(-1).mean((1, 3))
    np.testing.assert_allclose(attention_distance(checkpoint.model, images_BCHW), expected_LH, rtol=1e-5)
    rolled_BNN = np.eye(22)[None]
    for seen_BHNN in seen_LBHNN:
        with_residual = seen_BHNN.mean(1) + np.eye(22)
        rolled_BNN = with_residual / with_residual.sum(-1, keepdims=True) @ rolled_BNN
    np.testing.assert_allclose(rollout(checkpoint.model, images_BCHW), rolled_BNN[:, 0, 1:].reshape(2, 3, 7), atol=TOLERANCE)
