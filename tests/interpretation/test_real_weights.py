"""What the paper saw in its models is there in a real DeiT-Ti, on real images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.conftest import real_data
from vitlab.checkpoints import Checkpoint, load
from vitlab.inference.images import find_images
from vitlab.interpretation.attention import attention_distance, relevance, rollout
from vitlab.interpretation.figures import ModelImages, model_images, spread
from vitlab.interpretation.occlusion import occlusion
from vitlab.interpretation.weights import first_filters, position_similarity, principal_filters

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def deit() -> Checkpoint:
    return load(real_data() / "deit_tiny_patch16_224.npz")


@pytest.fixture(scope="module")
def seen(deit: Checkpoint) -> ModelImages:
    return model_images(deit, spread(list(find_images([str(real_data() / "imagenet_val_1000.zip")])), 8))


def test_a_few_components_hold_most_of_the_filters(deit: Checkpoint) -> None:
    filters_OV = first_filters(deit.model).reshape(192, -1)
    centred_OV = filters_OV - filters_OV.mean(0)
    components_MV = principal_filters(deit.model).reshape(28, -1)
    share = np.square(centred_OV @ components_MV.T).sum() / np.square(centred_OV).sum()
    assert share > 0.4  # of 191 directions, 28: chance would give them a quarter


def test_positions_know_rows_and_columns(deit: Checkpoint) -> None:
    similarity_GJGJ = position_similarity(deit.model)
    places = np.stack(np.meshgrid(np.arange(14), np.arange(14), indexing="ij"), -1).reshape(-1, 2)
    flat = similarity_GJGJ.reshape(196, 196)
    same_line = (places[:, None] == places[None]).any(-1) & ~np.eye(196, dtype=bool)
    other = ~(places[:, None] == places[None]).any(-1)
    assert flat[same_line].mean() > flat[other].mean() + 0.2
    near = np.abs(places[:, None] - places[None]).sum(-1) == 1
    assert flat[near].mean() > flat[same_line].mean()


def test_heads_attend_further_with_depth(deit: Checkpoint, seen: ModelImages) -> None:
    distance_LH = attention_distance(deit.model, seen.images_BCHW)
    assert np.corrcoef(np.arange(12), distance_LH.mean(1))[0, 1] > 0.7
    assert distance_LH[:4].min() < 40 < 80 < distance_LH[-1].min()  # some early heads are local, all late ones are not


def test_hiding_what_a_map_points_at_costs_more_than_hiding_the_rest(deit: Checkpoint, seen: ModelImages) -> None:
    lost = {}
    with torch.inference_mode():
        logits_BC = deit.model(seen.images_BCHW)
        sure_B = logits_BC.argmax(1)
        maps = {"rollout": rollout(deit.model, seen.images_BCHW), "relevance": relevance(deit.model, seen.images_BCHW)}
        for name, maps_BGJ in maps.items():
            flat_BN = torch.from_numpy(maps_BGJ).flatten(1)
            half_BN = flat_BN > flat_BN.median(1, keepdim=True).values
            for part, hidden_BN in (("most", half_BN), ("least", ~half_BN)):
                cover_B1HW = hidden_BN.view(-1, 1, 14, 14).repeat_interleave(16, 2).repeat_interleave(16, 3)
                covered_BC = deit.model(seen.images_BCHW.masked_fill(cover_B1HW, 0))
                lost[name, part] = -covered_BC.log_softmax(1).gather(1, sure_B[:, None]).mean().item()
    assert lost["rollout", "most"] > lost["rollout", "least"]
    assert lost["relevance", "most"] > lost["relevance", "least"] + 1
    assert lost["relevance", "least"] < lost["rollout", "least"]


def test_removing_and_covering_a_patch_agree(seen: ModelImages) -> None:
    """At half of the image size, with a quarter of the patches."""
    small = load(real_data() / "deit_tiny_patch16_224.npz", image_size=112).model
    images_BCHW = functional.interpolate(seen.images_BCHW[:2], (112, 112), mode="bicubic", antialias=True)
    for image_CHW in images_BCHW:
        covered, removed = occlusion(small, image_CHW[None]), occlusion(small, image_CHW[None], how="remove")
        assert np.corrcoef(covered.ravel(), removed.ravel())[0, 1] > 0.5
