"""The table of public weights: every row whole, found by any of its names, the right ones first."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from vitlab.config.model import variant
from vitlab.config.public_weights import find_weights, public_weights, weights_for
from vitlab.errors import ConfigError


def test_no_name_stands_twice() -> None:
    assert [name for name, count in Counter(row.name for row in public_weights()).items() if count > 1] == []


@pytest.mark.parametrize(
    "family", ["ViT", "DeiT", "DeiT III", "DINO", "DINOv2", "MAE", "SigLIP", "SigLIP 2", "CLIP", "BiT", "Swin", "ConvNeXt"]
)
def test_the_families_that_people_start_from_are_there(family: str) -> None:
    assert any(row.family == family for row in public_weights())


def test_every_row_is_whole() -> None:
    for row in public_weights():
        assert re.fullmatch(r"hub:[\w.-]+/[\w.-]+", row.address), row.name
        assert row.data, row.name
        assert row.image_size > 0, row.name
        stated = [value is not None for value in (row.score, row.metric, row.source)]
        assert stated in ([True] * 3, [False] * 3), row.name
        assert row.score is None or 30 < row.score < 95, row.name
        if row.loads:
            assert row.variant == variant(row.model).name, row.name
        else:
            assert (bool(row.needs), row.variant) == (True, None), row.name


def test_a_score_of_a_classifier_is_that_of_a_thousand_classes() -> None:
    assert {row.num_classes for row in public_weights() if row.metric == "top-1"} == {1000}
    assert {row.num_classes for row in public_weights() if row.metric == "linear top-1"} == {0}


@pytest.mark.parametrize(
    "name",
    [
        "vit_base_patch16_224.augreg_in21k",
        "timm/vit_base_patch16_224.augreg_in21k",
        "hub:timm/vit_base_patch16_224.augreg_in21k",
    ],
)
def test_weights_are_found_by_tag_repository_and_address(name: str) -> None:
    found = find_weights(name)
    assert (found.name, found.variant) == ("vit_base_patch16_224.augreg_in21k", "ViT-B/16")
    assert found.address == "hub:timm/vit_base_patch16_224.augreg_in21k"


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("ViT-B/16", "vit_base_patch16_224.augreg2_in21k_ft_in1k"),
        ("ViT-Ti/16", "vit_tiny_patch16_224.augreg_in21k_ft_in1k"),
        ("ViT-S/14", "vit_small_patch14_dinov2.lvd142m"),
        ("Swin-T", "swin_tiny_patch4_window7_224.ms_in1k"),
        ("ConvNeXt-B", "convnext_base.fb_in22k_ft_in1k"),
        ("BiT-R152x4", "resnetv2_152x4_bit.goog_in21k_ft_in1k"),
        ("deit_base_patch16_224", "deit_base_patch16_224.fb_in1k"),
        ("google/vit-base-patch16-224", "google/vit-base-patch16-224"),
    ],
)
def test_a_name_means_its_default_weights(name: str, first: str) -> None:
    assert find_weights(name).name == first


def test_the_nearest_weights_stand_first() -> None:
    rows = weights_for("ViT-B/16")
    families = [row.family for row in rows]
    assert rows[0].image_size == 224
    assert families.index("DeiT") < families.index("SigLIP")  # the same architecture before one that pools otherwise
    assert [row.image_size for row in weights_for("ViT-L/32")][:1] == [224]
    assert {row.model for row in weights_for("vit_base_patch16_384")} == {"vit_base_patch16_384"}


@pytest.mark.parametrize("name", ["ViT-Mini/8", "vit_base_patch16_reg4_gap_256", "efficientnet_b6", "LSTM-S/16"])
def test_a_model_without_public_weights_has_none(name: str) -> None:
    assert weights_for(name) == ()
    with pytest.raises(ConfigError, match="no public weights"):
        find_weights(name)


def test_vitlab_loads_all_of_them() -> None:
    assert [row.name for row in public_weights() if not row.loads] == []
    clip = find_weights("vit_base_patch16_clip_quickgelu_224.openai")
    assert clip.address == "hub:timm/vit_base_patch16_clip_224.openai"


def test_an_unknown_name_is_answered() -> None:
    with pytest.raises(ConfigError, match="vit_base_patch16_224"):
        find_weights("vit_base_patch16_224.nothing")
    with pytest.raises(ConfigError, match="no model called"):
        find_weights("nothing-like-it")
