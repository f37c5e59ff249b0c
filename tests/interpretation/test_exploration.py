"""Everything that the explorer shows of any model equals what the library's own functions say."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from tests.models.test_contract import CLASSIFIERS, MAPS, trained
from vitlab.checkpoints import Checkpoint
from vitlab.config import ViTConfig
from vitlab.config.data import Preprocess
from vitlab.data.transforms import normalise
from vitlab.errors import ConfigError
from vitlab.inference import Predictor
from vitlab.interpretation.attention import attention_distance, query_attention, relevance, rollout
from vitlab.interpretation.exploration import (
    Exploration,
    attention_of,
    changed_answer,
    explore_image,
    explore_model,
    patches_of,
    shuffled_order,
)
from vitlab.interpretation.features import class_activation
from vitlab.interpretation.occlusion import occlusion
from vitlab.interpretation.paint import Pixels

each = pytest.mark.parametrize("name", CLASSIFIERS)
each_vit = pytest.mark.parametrize("name", [name for name, config in CLASSIFIERS.items() if isinstance(config, ViTConfig)])


@cache
def checkpoint_of(name: str) -> Checkpoint:
    config = CLASSIFIERS[name]
    middle = (0.5,) * config.channels
    preprocess = Preprocess(image_size=config.image_size, resize="squash", mean=middle, std=middle)
    return Checkpoint(model=trained(config), config=config, preprocess=preprocess)


def pixels_of(name: str) -> Pixels:
    config = CLASSIFIERS[name]
    return np.random.default_rng(4).integers(0, 256, (*config.image_size, config.channels), dtype=np.uint8)


def image_of(name: str) -> torch.Tensor:
    return normalise(torch.from_numpy(pixels_of(name))[None], checkpoint_of(name).preprocess)


@cache
def explored(name: str) -> Exploration:
    return explore_image(checkpoint_of(name), pixels_of(name), name="noise", stride=1, cover=True, shuffle=True)


@each
def test_every_part_is_there_or_a_reason_why_not(name: str) -> None:
    view, found = explore_model(checkpoint_of(name)), explored(name)
    attends = isinstance(CLASSIFIERS[name], ViTConfig)
    answers = CLASSIFIERS[name].num_classes > 0
    assert (found.attention_RLHN is not None) == ("attention" not in found.missing) == attends
    assert (len(found.probabilities_C) > 0) == ("answer" not in found.missing) == answers
    assert (view.similarity_NN is not None) == ("positions" not in view.missing)
    assert bool(view.shuffles) == ("shuffle" not in view.missing)
    assert (found.covered_NK is not None) == answers
    if answers:
        evidence = {"relevance", "activation"} & set(found.maps)
        assert evidence or {"relevance", "activation"} & set(found.missing)
        assert bool(evidence) == (attends or isinstance(CLASSIFIERS[name], MAPS))
    assert len(found.features) >= 1
    assert all(reason for reason in (*view.missing.values(), *found.missing.values()))


@each
def test_the_answer_is_the_predictors(name: str) -> None:
    if not CLASSIFIERS[name].num_classes:
        pytest.skip("no head")
    predicted = Predictor(checkpoint_of(name), backend="torch", workers=0)(pixels_of(name))[0]
    np.testing.assert_allclose(explored(name).probabilities_C, predicted.probabilities, atol=1e-5)


@each_vit
def test_maps_are_those_of_the_library(name: str) -> None:
    found, model, image_1CHW = explored(name), checkpoint_of(name).model, image_of(name)
    np.testing.assert_allclose(found.maps["rollout"], rollout(model, image_1CHW)[0], atol=1e-6)
    assert found.distance_LH is not None
    np.testing.assert_allclose(found.distance_LH, attention_distance(model, image_1CHW), rtol=1e-4)
    if CLASSIFIERS[name].num_classes:
        np.testing.assert_allclose(found.maps["relevance"], relevance(model, image_1CHW)[0], rtol=1e-4, atol=1e-6)


@each
def test_covering_is_the_librarys_occlusion(name: str) -> None:
    found = explored(name)
    if found.covered_NK is None:
        return
    window = None if isinstance(CLASSIFIERS[name], ViTConfig) else patches_of(checkpoint_of(name))[1]
    np.testing.assert_allclose(
        found.maps["occlusion"], occlusion(checkpoint_of(name).model, image_of(name), window=window)[0], atol=1e-4
    )
    changed = changed_answer(checkpoint_of(name), pixels_of(name), covered=[1])
    np.testing.assert_allclose(found.covered_NK[1], changed.probabilities_C[list(found.classes)], atol=1e-5)


@pytest.mark.parametrize("name", [name for name, config in CLASSIFIERS.items() if isinstance(config, MAPS) and config.num_classes])
def test_a_model_of_maps_has_grad_cam_of_its_last_stage(name: str) -> None:
    found = explored(name)
    np.testing.assert_allclose(found.maps["activation"], class_activation(checkpoint_of(name).model, image_of(name))[0], atol=1e-6)
    assert found.maps["activation"].shape == found.features[-1].shape[:2]
    assert (found.maps["activation"] >= 0).all()


@each_vit
def test_the_lens_of_the_last_layer_is_the_answer(name: str) -> None:
    found = explored(name)
    if found.lens_LK is not None:
        np.testing.assert_allclose(found.lens_LK[-1], found.probabilities_C[list(found.classes)], atol=1e-5)
        assert len(found.lens_LK) == explore_model(checkpoint_of(name)).layers


@each_vit
def test_attention_is_the_librarys_for_every_query(name: str) -> None:
    found, config = explored(name), CLASSIFIERS[name]
    assert isinstance(config, ViTConfig)
    assert found.attention_RLHN is not None
    assert found.norms_LHN is not None
    np.testing.assert_allclose(found.attention_RLHN.sum(-1), 1, atol=1e-5)
    assert found.queries == tuple(range(config.tokens))
    assert found.norms_LHN.shape == found.attention_RLHN.shape[1:]
    last = config.grid[0] - 1, config.grid[1] - 1
    own_LHGJ = query_attention(checkpoint_of(name).model, image_of(name), last)[:, 0]
    rows_LHN = found.attention_RLHN[-1][:, :, config.prefix_tokens :]
    np.testing.assert_allclose(rows_LHN.reshape(own_LHGJ.shape), own_LHGJ, atol=1e-5)
    np.testing.assert_allclose(attention_of(checkpoint_of(name), pixels_of(name), 0), found.attention_RLHN[0], atol=1e-5)


def test_a_stride_keeps_some_patches_and_the_same_numbers() -> None:
    every, some = explored("token"), explore_image(checkpoint_of("token"), pixels_of("token"), name="noise", stride=2)
    assert every.attention_RLHN is not None
    assert some.attention_RLHN is not None
    assert set(some.queries) < set(every.queries)
    assert 0 in some.queries
    np.testing.assert_allclose(some.attention_RLHN, every.attention_RLHN[list(some.queries)], atol=1e-6)


@each
def test_an_order_that_moves_nothing_changes_nothing(name: str) -> None:
    if not CLASSIFIERS[name].num_classes:
        with pytest.raises(ConfigError, match="no head"):
            changed_answer(checkpoint_of(name), pixels_of(name))
        return
    grid, _ = patches_of(checkpoint_of(name))
    count = grid[0] * grid[1]
    if not explore_model(checkpoint_of(name)).shuffles:
        return
    same = changed_answer(checkpoint_of(name), pixels_of(name), order=range(count))
    np.testing.assert_array_equal(same.pixels_HWC, pixels_of(name))
    np.testing.assert_allclose(same.probabilities_C, explored(name).probabilities_C, atol=1e-5)


def test_shuffling_moves_whole_blocks_and_loses_no_patch() -> None:
    order = np.array(shuffled_order((4, 6), 2, seed=3)).reshape(4, 6)
    assert sorted(order.flat) == list(range(24))
    assert (order[::2, 1::2] == order[::2, ::2] + 1).all()
    assert (order[1::2, ::2] == order[::2, ::2] + 6).all()
    assert shuffled_order((4, 6), 2, seed=3) == shuffled_order((4, 6), 2, seed=3) != shuffled_order((4, 6), 2, seed=4)


def test_what_makes_no_sense_is_refused() -> None:
    checkpoint, pixels = checkpoint_of("token"), pixels_of("token")
    with pytest.raises(ConfigError, match="no patch 99"):
        changed_answer(checkpoint, pixels, covered=[99])
    with pytest.raises(ConfigError, match="each of the 16 patches once"):
        changed_answer(checkpoint, pixels, order=[0] * 16)
    with pytest.raises(ConfigError, match="no token 17"):
        attention_of(checkpoint, pixels, 17)
    with pytest.raises(ConfigError, match="do not divide"):
        shuffled_order((4, 4), 3, seed=0)
    with pytest.raises(ConfigError, match="no attention"):
        attention_of(checkpoint_of("resnet"), pixels_of("resnet"), 0)
    with pytest.raises(ConfigError, match="has tokens"):
        class_activation(checkpoint.model, image_of("token"))
