"""Which patches speak for a class: by gradients, exactly; and by taking patches away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.interpretation.small import OTHERS, VITS, images, mini, model_of, vit_of
from vitlab.errors import ConfigError
from vitlab.interpretation.attention import pool_reads, relevance
from vitlab.interpretation.occlusion import occlusion
from vitlab.models.attention_variants import attention_weights

GLOBAL = ("token", "mean", "mean-with-class", "distilled", "registers", "representation", "rectangular", "hybrid", "padded")


@pytest.mark.parametrize("name", GLOBAL)
def test_relevance_is_what_attention_made_in_the_open_and_autograd_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = vit_of(name)
    images_BCHW = images(model.config)
    found = relevance(model, images_BCHW, [1, 3])
    seen: list[Tensor] = []

    def in_the_open(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        attention = attention_weights(q, k, attn_mask)
        attention.retain_grad()
        seen.append(attention)
        return attention @ v

    monkeypatch.setattr(F, "scaled_dot_product_attention", in_the_open)
    z_BND = model.encode_images(images_BCHW)
    logits_BC = model.logits_from(z_BND)
    torch.autograd.backward(logits_BC[0, 1] + logits_BC[1, 3])
    row_BN = start_BN = pool_reads(model, z_BND.detach())[:, 0]
    for attention in reversed(seen):
        assert attention.grad is not None
        gain_BNN = (attention * attention.grad).relu().mean(1).detach()
        row_BN = row_BN + (row_BN[:, None] @ gain_BNN)[:, 0]
    expected = (row_BN - start_BN)[:, model.config.prefix_tokens :].reshape(found.shape)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("name", VITS)
def test_relevance_is_never_negative_and_leaves_no_gradient_behind(name: str) -> None:
    model = vit_of(name)
    found = relevance(model, images(model.config))
    assert found.shape == (2, *model.config.grid)
    assert (found >= 0).all()
    assert found.max() > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_relevance_explains_the_most_probable_class_of_each_image_by_default() -> None:
    model = vit_of("token")
    images_BCHW = images(model.config)
    likeliest = model(images_BCHW).argmax(1).tolist()
    np.testing.assert_array_equal(relevance(model, images_BCHW), relevance(model, images_BCHW, likeliest))
    other = (likeliest[0] + 1) % 5
    assert not np.allclose(relevance(model, images_BCHW, other)[0], relevance(model, images_BCHW)[0])


def test_relevance_needs_no_parameter_that_learns_and_a_lean_model_gives_the_same() -> None:
    model = vit_of("token")
    images_BCHW = images(model.config)
    expected = relevance(model, images_BCHW, 0)
    model.requires_grad_(False)
    model.skip_unused_tokens = True
    np.testing.assert_array_equal(relevance(model, images_BCHW, 0), expected)


@pytest.mark.parametrize("classes", [5, -1, [0, 7]])
def test_a_class_that_is_not_there_is_refused(classes: int | list[int]) -> None:
    model = vit_of("token")
    for look in (relevance, occlusion):
        with pytest.raises(ConfigError, match="no class"):
            look(model, images(model.config), classes)


def test_as_many_classes_as_images_or_one() -> None:
    model = vit_of("token")
    for look in (relevance, occlusion):
        with pytest.raises(ConfigError, match="3 classes for 2 images"):
            look(model, images(model.config), [0, 1, 2])


@pytest.mark.parametrize("classes", [0, 1])
def test_a_model_without_classes_to_choose_from_is_refused(classes: int) -> None:
    model = model_of(replace(mini(), num_classes=classes))
    for look in (relevance, occlusion):
        with pytest.raises(ConfigError, match="one class only" if classes else "no head"):
            look(model, images(model.config))


def test_occlusion_is_the_loss_of_log_probability_under_a_patch_of_the_mean_colour() -> None:
    model = vit_of("rectangular")
    images_BCHW = images(model.config)
    found = occlusion(model, images_BCHW, 2, at_once=7)
    covered_BCHW = images_BCHW.clone()
    covered_BCHW[:, :, 8:16, 12:16] = 0
    with torch.inference_mode():
        lost_B = model(images_BCHW).log_softmax(1)[:, 2] - model(covered_BCHW).log_softmax(1)[:, 2]
    assert found.shape == (2, 3, 10)
    np.testing.assert_allclose(found[:, 1, 3], lost_B, atol=1e-5)


def test_a_patch_that_is_the_mean_colour_already_is_not_missed() -> None:
    model = vit_of("token")
    images_BCHW = images(model.config)
    images_BCHW[:, :, :8, :8] = 0
    np.testing.assert_allclose(occlusion(model, images_BCHW)[:, 0, 0], 0, atol=1e-6)


@pytest.mark.parametrize("name", ["token", "mean", "map", "distilled", "registers"])
def test_a_removed_token_is_one_that_nobody_attends_to(name: str) -> None:
    model = vit_of(name)
    images_BCHW = images(model.config, 1)
    found = occlusion(model, images_BCHW, 1, how="remove")
    place = 6
    with torch.inference_mode():
        z_BND = torch.cat([*model.prefix(1), model.embed(images_BCHW)], 1)
        added_1ND = model.position.added(0, model.config.grid)
        assert added_1ND is not None
        z_BND = z_BND + added_1ND
        token = model.config.prefix_tokens + place
        left_BND = torch.cat([z_BND[:, :token], z_BND[:, token + 1 :]], 1)
        logits_BC = model.logits_from(model.encoder(left_BND, model.position, model.config.grid))
        lost = model(images_BCHW).log_softmax(1)[0, 1] - logits_BC.log_softmax(1)[0, 1]
    assert found[0].ravel()[place] == pytest.approx(lost.item(), abs=1e-5)


@pytest.mark.parametrize("name", ["local", "axial", "relative"])
def test_a_token_is_not_taken_out_where_layers_rely_on_the_grid(name: str) -> None:
    model = vit_of(name)
    with pytest.raises(ConfigError, match="whole grid"):
        occlusion(model, images(model.config), how="remove")
    assert occlusion(model, images(model.config)).shape == (2, *model.config.grid)


@pytest.mark.parametrize("name", OTHERS)
def test_every_classifier_has_occlusion_by_filling(name: str) -> None:
    model = model_of(OTHERS[name])
    height, width = OTHERS[name].image_size
    found = occlusion(model, images(OTHERS[name], 1), window=(16, 32))
    assert found.shape == (1, -(-height // 16), -(-width // 32))
    assert np.isfinite(found).all()
    with pytest.raises(ConfigError, match="not defined for a"):
        occlusion(model, images(OTHERS[name], 1), how="remove")


def test_a_window_of_nothing_or_of_a_removed_patch_is_refused() -> None:
    model = vit_of("token")
    with pytest.raises(ConfigError, match="window"):
        occlusion(model, images(model.config), window=0)
    with pytest.raises(ConfigError, match="whole patches"):
        occlusion(model, images(model.config), how="remove", window=8)
    single = model_of(replace(mini(), image_size=(8, 8)))
    with pytest.raises(ConfigError, match="nothing is left"):
        occlusion(single, images(single.config), how="remove")
