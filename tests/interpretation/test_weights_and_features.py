"""What is in the weights (filters, positions), and what places have in common (features); and who has none of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.interpretation.small import EARLY, OTHERS, VITS, images, mini, model_of, vit_of
from vitlab.config import ModelConfig, Position
from vitlab.errors import ConfigError
from vitlab.interpretation.attention import Floats, attention_distance, class_attention, query_attention, relevance, rollout
from vitlab.interpretation.features import place_features, token_pca
from vitlab.interpretation.occlusion import occlusion
from vitlab.interpretation.weights import first_filters, meets_pixels_by, position_similarity, principal_filters
from vitlab.models.resnet import standardise

EVERY: dict[str, ModelConfig] = {**VITS, **OTHERS, "early": EARLY}


@pytest.mark.parametrize("name", EVERY)
def test_principal_filters_are_orthonormal(name: str) -> None:
    model = model_of(EVERY[name])
    filters_OPQC, found_MPQC = first_filters(model), principal_filters(model)
    assert found_MPQC.shape[1:] == filters_OPQC.shape[1:]
    assert found_MPQC.shape[3] == EVERY[name].channels
    flat_MV = found_MPQC.reshape(len(found_MPQC), -1).astype(np.float64)
    np.testing.assert_allclose(flat_MV @ flat_MV.T, np.eye(len(flat_MV)), atol=1e-5)


def test_the_first_component_is_the_direction_in_which_filters_differ_most() -> None:
    model = vit_of("token")
    with torch.no_grad():
        model.patches.weight.mul_(1e-3)
        pattern_CPQ = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
        model.patches.weight.add_(torch.linspace(-1, 2, len(model.patches.weight))[:, None, None, None] * pattern_CPQ)
    first_V = principal_filters(model, 1)[0].ravel()
    expected_V = (pattern_CPQ.permute(1, 2, 0) / pattern_CPQ.norm()).numpy().ravel()
    assert abs(float(first_V @ expected_V)) > 0.999
    assert first_V[np.abs(first_V).argmax()] > 0


def test_there_are_as_many_components_as_asked_for_as_far_as_they_go() -> None:
    model = vit_of("token")  # 64 filters of 8 x 8 x 3 values: one less of directions
    assert len(principal_filters(model)) == 28
    assert len(principal_filters(model, 1000)) == 63
    with pytest.raises(ConfigError, match="count"):
        principal_filters(model, 0)


def test_filters_that_are_all_alike_have_no_components() -> None:
    model = vit_of("token")
    with torch.no_grad():
        model.patches.weight.fill_(0.5)
    with pytest.raises(ConfigError, match="are the same"):
        principal_filters(model)


def test_a_hybrid_and_a_resnet_show_their_first_convolution_as_they_use_it() -> None:
    hybrid, resnet = vit_of("hybrid"), model_of(OTHERS["resnet"])
    assert hybrid.stem is not None
    root = hybrid.stem.root
    expected = standardise(root.weight, form=root.form, eps=root.eps).permute(0, 2, 3, 1).detach()
    np.testing.assert_array_equal(first_filters(hybrid), expected)
    assert first_filters(resnet).shape == (32, 7, 7, 3)
    assert meets_pixels_by(hybrid) == meets_pixels_by(resnet) == meets_pixels_by(model_of(EARLY)) == "first convolution"
    assert meets_pixels_by(vit_of("token")) == "patch embedding"


@pytest.mark.parametrize("kind", ["learned-1d", "learned-2d", "sincos-1d", "sincos-2d"])
@pytest.mark.parametrize("place", ["stem", "every", "shared"])
def test_positions_are_like_themselves_and_similarity_is_mutual_on_any_grid(kind: str, place: str) -> None:
    position = Position(kind=kind, place=place)  # type: ignore[arg-type]
    model = model_of(replace(mini(), position=position, image_size=(24, 40), register_tokens=2))
    found = position_similarity(model, layer=0 if place == "stem" else 2)
    assert found.shape == (3, 5, 3, 5)
    flat = found.reshape(15, 15)
    np.testing.assert_allclose(np.diag(flat), 1, atol=1e-6)
    np.testing.assert_allclose(flat, flat.T, atol=1e-6)
    assert np.abs(flat).max() <= 1 + 1e-6


def test_the_similarity_of_two_positions_is_the_cosine_of_their_vectors() -> None:
    model = vit_of("rectangular")
    table_ND = model.position.table[0, 1:].detach()
    cosine = torch.nn.functional.cosine_similarity(table_ND[1 * 10 + 2], table_ND[2 * 10 + 7], dim=0)
    assert position_similarity(model)[1, 2, 2, 7] == pytest.approx(cosine.item(), abs=1e-6)


@pytest.mark.parametrize(
    ("position", "layer", "message"),
    [
        (Position(kind="none"), 0, "no position"),
        (Position(kind="relative", place="every"), 0, "offsets"),
        (Position(), 1, "before the first layer only"),
        (Position(), 9, "no layer 9"),
    ],
)
def test_positions_that_are_not_there_are_refused(position: Position, layer: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        position_similarity(model_of(replace(mini(), position=position)), layer=layer)


@pytest.mark.parametrize("name", EVERY)
def test_features_of_places_are_centred_uncorrelated_and_strongest_first(name: str) -> None:
    model = model_of(EVERY[name])
    found = token_pca(model, images(EVERY[name], 3))
    scores_NM = found.scores_BGJM.reshape(-1, 3).astype(np.float64)
    scale = np.abs(scores_NM).max()
    np.testing.assert_allclose(scores_NM.mean(0) / scale, 0, atol=1e-5)
    covariance_MM = scores_NM.T @ scores_NM / scale**2 / len(scores_NM)
    np.testing.assert_allclose(covariance_MM - np.diag(np.diag(covariance_MM)), 0, atol=1e-5)
    assert (np.diff(found.explained_M) <= 0).all()
    assert 0 < found.explained_M.sum() <= 1 + 1e-6


def test_features_are_the_tokens_themselves() -> None:
    model = vit_of("registers")
    images_BCHW = images(model.config)
    with torch.inference_mode():
        expected = model.encode_images(images_BCHW)[:, 4:].reshape(2, 4, 4, -1)
    assert torch.equal(place_features(model, images_BCHW), expected)
    assert not torch.allclose(place_features(model, images_BCHW, layer=0), expected)


def test_a_stage_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no layer 2"):
        token_pca(model_of(OTHERS["resnet"]), images(OTHERS["resnet"]), layer=2)


@pytest.mark.parametrize("name", OTHERS)
def test_who_has_no_attention_among_all_is_refused_with_the_reason(name: str) -> None:
    model, images_BCHW = model_of(OTHERS[name]), images(OTHERS[name])
    looks: list[Callable[[], object]] = [
        lambda: rollout(model, images_BCHW),
        lambda: attention_distance(model, images_BCHW),
        lambda: class_attention(model, images_BCHW),
        lambda: query_attention(model, images_BCHW, (0, 0)),
        lambda: relevance(model, images_BCHW),
        lambda: position_similarity(model),
    ]
    for look in looks:
        with pytest.raises(ConfigError, match=r"is not defined for an? .+: .*no attention between all patches") as refusal:
            look()
        assert "occlusion" in str(refusal.value.hint)


@pytest.mark.parametrize("name", ["token", "map", "relative"])
def test_a_model_in_half_precision_is_inspected_like_one_in_full_precision(name: str) -> None:
    model, images_BCHW = vit_of(name), images(VITS[name])
    looks: list[Callable[[], Floats]] = [
        lambda: rollout(model, images_BCHW),
        lambda: attention_distance(model, images_BCHW),
        lambda: occlusion(model, images_BCHW, 0),
        lambda: relevance(model, images_BCHW, 0),
        lambda: principal_filters(model, 3),
        lambda: token_pca(model, images_BCHW).explained_M,
    ]
    full = [look() for look in looks]
    model.bfloat16()
    for expected, look in zip(full, looks, strict=True):
        found = look()
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=0.15 * np.abs(expected).max())


def test_images_made_in_inference_mode_have_relevance_too() -> None:
    model = vit_of("token")
    expected = relevance(model, images(model.config), 0)
    with torch.inference_mode():
        np.testing.assert_array_equal(relevance(model, images(model.config), 0), expected)


def test_a_stranger_s_model_is_refused() -> None:
    stranger, images_BCHW = nn.Linear(3, 3), torch.zeros(1, 3, 8, 8)
    looks: list[Callable[[], object]] = [
        lambda: rollout(stranger, images_BCHW),
        lambda: first_filters(stranger),
        lambda: meets_pixels_by(stranger),
        lambda: token_pca(stranger, images_BCHW),
        lambda: occlusion(stranger, images_BCHW),
    ]
    for look in looks:
        with pytest.raises(ConfigError, match=r"not (for|of) a Linear"):
            look()
