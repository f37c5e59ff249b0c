"""timm's names of models: what they build, how they are tagged, and how the ones that vitlab does not build are refused."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests import processes
from vitlab.config import ConvNeXtConfig, EfficientNetConfig, ResNetConfig, SwinConfig, ViTConfig, variant
from vitlab.config.model import NAMES
from vitlab.config.public_weights import public_weights
from vitlab.config.timm_names import architecture_config, architectures, need_of, timm_name
from vitlab.errors import ConfigError


@pytest.mark.parametrize("name", architectures())
def test_an_architecture_has_a_name_both_ways(name: str) -> None:
    config = architecture_config(name)
    assert config is not None
    assert need_of(name) is None
    back = timm_name(config)
    assert back is not None
    again = architecture_config(back)  # deit_base_patch16_224 comes back as vit_base_patch16_224
    if isinstance(again, ViTConfig) and isinstance(config, ViTConfig):
        again = replace(again, layer_scale=config.layer_scale)  # BEiT and BEiT v2 differ in how it begins
    assert again == config


@pytest.mark.parametrize(
    ("theirs", "ours", "image_size"),
    [
        ("vit_tiny_patch16_224", "ViT-Ti/16", 224),
        ("vit_base_patch16_384", "ViT-B/16", 384),
        ("vit_base_patch8_224", "ViT-B/8", 224),
        ("vit_giant_patch14_224", "ViT-g/14", 224),
        ("vit_gigantic_patch14_224", "ViT-G/14", 224),
        ("deit_small_patch16_224", "ViT-S/16", 224),
        ("vit_base_r50_s16_384", "R50+ViT-B/16", 384),
        ("vit_tiny_r_s16_p8_224", "R+ViT-Ti/16", 224),
        ("resnetv2_152x4_bit", "BiT-R152x4", 480),
        ("swin_tiny_patch4_window7_224", "Swin-T", 224),
        ("swin_base_patch4_window12_384", "Swin-B", 384),
        ("convnext_xlarge", "ConvNeXt-XL", 224),
        ("tf_efficientnet_b7", "EfficientNet-B7", 600),
        ("vit_so400m_patch14_siglip_378", "ViT-So400m/14", 378),
        ("vit_base_patch14_dinov2", "ViT-B/14", 518),
    ],
)
def test_timms_name_and_ours_are_one_size(theirs: str, ours: str, image_size: int) -> None:
    config = variant(theirs)
    assert (config.name, config.image_size) == (ours, (image_size, image_size))


def test_a_plain_vit_is_the_same_model_but_for_timms_numerics() -> None:
    assert variant("vit_base_patch16_224") == variant("ViT-B/16", profile="timm")
    assert variant("vit_base_patch16_224", profile="official") == variant("ViT-B/16")


def test_what_a_name_says_of_tokens_pooling_and_numerics_is_built() -> None:
    dino = variant("vit_small_patch14_reg4_dinov2")
    assert isinstance(dino, ViTConfig)
    assert (dino.register_tokens, dino.layer_scale, dino.position.prefix, dino.num_classes) == (4, 1e-5, False, 0)
    siglip = variant("vit_so400m_patch16_siglip_256")
    assert isinstance(siglip, ViTConfig)
    assert (siglip.pool, siglip.class_token, siglip.numerics.gelu) == ("map", False, "tanh")
    distilled = variant("deit_tiny_distilled_patch16_224")
    assert isinstance(distilled, ViTConfig)
    assert distilled.distill_token
    miil = variant("vit_base_patch16_224_miil")
    assert isinstance(miil, ViTConfig)
    assert not miil.qkv_bias
    hybrid = variant("vit_base_r50_s16_224")
    assert isinstance(hybrid, ViTConfig)
    assert hybrid.stem is not None
    assert (hybrid.stem.standardise, hybrid.stem.standardise_eps, hybrid.stem.norm_eps) == ("variance", 1e-8, 1e-5)
    bit = variant("resnetv2_50x1_bit")
    assert isinstance(bit, ResNetConfig)
    assert bit.standardise_eps == 1e-8
    swin = variant("swin_tiny_patch4_window7_224")
    assert isinstance(swin, SwinConfig)
    assert not swin.pad_first
    convnext = variant("convnext_xxlarge")
    assert isinstance(convnext, ConvNeXtConfig)
    assert convnext.norm_eps == 1e-5


def test_timms_own_efficientnets_are_not_the_authors() -> None:
    own, authors = variant("efficientnet_b2"), variant("tf_efficientnet_b2")
    assert isinstance(own, EfficientNetConfig)
    assert isinstance(authors, EfficientNetConfig)
    assert (own.padding, own.norm_eps, own.image_size) == ("half", 1e-5, (256, 256))
    assert authors == variant("EfficientNet-B2")


@pytest.mark.parametrize(
    ("name", "image_size", "classes"),
    [
        ("vit_base_patch16_224.augreg_in21k", 224, 21843),
        ("vit_base_patch16_224.dino", 224, 0),
        ("convnext_tiny.in12k_ft_in1k_384", 384, 1000),
        ("swin_base_patch4_window12_384.ms_in22k", 384, 21841),
        ("resnetv2_50x1_bit.goog_in21k_ft_in1k", 448, 1000),
    ],
)
def test_a_tag_says_the_image_size_and_the_classes(name: str, image_size: int, classes: int) -> None:
    config = variant(name)
    assert (config.image_size, config.num_classes) == ((image_size, image_size), classes)
    other = variant(name, image_size=image_size * 2, num_classes=7, channels=1)
    assert other == replace(config, image_size=(image_size * 2, image_size * 2), num_classes=7, channels=1)


def test_a_pool_may_be_chosen_for_a_timm_name_too() -> None:
    config = variant("vit_base_patch16_224", pool="mean")
    assert config == variant("ViT-B/16", pool="mean", profile="timm")


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("vit_dwee_patch16_reg1_gap_256", "differential attention"),
        ("vit_base_mci_224", "convolutional stem"),
        ("convnextv2_tiny", "response normalisation"),
        ("swin_s3_tiny_224", "window of its own"),
        ("resnetv2_50", "BiT"),
        ("efficientnet_b1_pruned", "B0 to B8"),
        ("resnet50", "architecture family"),
    ],
)
def test_what_vitlab_does_not_build_is_refused_with_what_it_needs(name: str, need: str) -> None:
    with pytest.raises(ConfigError, match=need):
        variant(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vit_base_patch16_225", "vit_base_patch16_224"),
        ("vit_base_patch16_224.augreg_in22k", "vit_base_patch16_224.augreg_in21k"),
        ("ViT-Base/16", "ViT-B/16"),
        ("convnext_tinny", "convnext_tiny"),
    ],
)
def test_a_name_nearly_right_is_answered_with_near_names_of_either_spelling(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        variant(name)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_names_of_ours_have_the_timm_name_of_the_same_architecture() -> None:
    known = {name: timm_name(variant(name)) for name in NAMES}
    assert known["ViT-B/16"] == "vit_base_patch16_224"
    assert known["Swin-L"] == "swin_large_patch4_window7_224"
    assert known["EfficientNet-B0"] == "tf_efficientnet_b0"
    assert known["ViT-Mini/8"] is None
    assert timm_name(variant("ViT-B/16x8")) is None
    assert timm_name(variant("ViT-B/16", pool="mean")) == "vit_base_patch16_siglip_gap_224"
    assert timm_name(variant("ViT-B/16", image_size=384)) == "vit_base_patch16_384"


def test_the_tables_are_made_when_they_are_asked_for() -> None:
    code = """
import sys
from vitlab.config import variant
variant("ViT-B/16")
assert "vitlab.config.timm_names" not in sys.modules
variant("vit_base_patch16_224.augreg_in21k")
assert "torch" not in sys.modules
"""
    done = processes.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


def test_every_tagged_name_builds_or_says_what_it_needs() -> None:
    for row in public_weights():
        if "." in row.name and row.loads:
            assert variant(row.name).num_classes == row.num_classes
        elif "." in row.name:
            with pytest.raises(ConfigError, match="does not build"):
                variant(row.name)
