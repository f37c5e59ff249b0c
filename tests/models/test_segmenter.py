"""The segmenter: what its decoders see, and how logits come back to the image's pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from vitlab.config import SegmenterConfig, SwinConfig, ViTConfig, variant
from vitlab.config.model import task_of
from vitlab.config.serialize import from_text, to_text
from vitlab.errors import ConfigError
from vitlab.models import build
from vitlab.models.cost import cost
from vitlab.models.segmenter import Segmenter
from vitlab.models.vit import ViT


def vit(**changes: object) -> ViTConfig:
    config = variant("ViT-Mini/8", num_classes=5)
    assert isinstance(config, ViTConfig)
    return replace(config, **changes)  # type: ignore[arg-type]


def trained(config: SegmenterConfig) -> Segmenter:
    model = build(config, seed=1).eval()
    assert isinstance(model, Segmenter)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model


def test_the_linear_decoder_is_one_dense_layer_on_the_tokens_of_the_backbone() -> None:
    model = trained(SegmenterConfig(backbone=vit(), image_size=(32, 48), num_classes=5))
    images_BCHW = torch.randn(2, 3, 32, 48)
    assert isinstance(model.backbone, ViT)
    assert isinstance(model.head, torch.nn.Linear)
    with torch.no_grad():
        patches_BND = model.backbone.encode_images(images_BCHW)[:, 1:]
        coarse_BCGJ = model.head(patches_BND).view(2, 4, 6, 5).permute(0, 3, 1, 2)
        wanted = F.interpolate(coarse_BCGJ, size=(32, 48), mode="bilinear")
        assert torch.allclose(model(images_BCHW), wanted, atol=1e-6)


def test_a_padded_edge_gets_no_pixels_of_its_own() -> None:
    """An image of 30x41 is filled up to 32x48: its logits are those of the filled image, without the fill."""
    padded = trained(SegmenterConfig(backbone=vit(pad=True), image_size=(30, 41), num_classes=3))
    whole = trained(SegmenterConfig(backbone=vit(), image_size=(32, 48), num_classes=3))
    whole.load_state_dict(padded.state_dict())
    images_BCHW = torch.randn(2, 3, 30, 41)
    with torch.no_grad():
        logits = padded(images_BCHW)
        assert logits.shape == (2, 3, 30, 41)
        torch.testing.assert_close(logits, whole(F.pad(images_BCHW, (0, 7, 0, 2)))[:, :, :30, :41], atol=1e-5, rtol=1e-5)


def test_several_layers_stand_side_by_side_and_the_last_is_the_backbones_own() -> None:
    one = SegmenterConfig(backbone=vit(), image_size=(32, 32), num_classes=4)
    several = replace(one, layers=(0, 1))
    assert several.feature_width == 2 * one.feature_width
    single, double = trained(one), trained(several)
    double.backbone.load_state_dict(single.backbone.state_dict())
    images_BCHW = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        features = double.grid_features(images_BCHW)
        assert torch.equal(features[:, one.feature_width :], single.grid_features(images_BCHW))
        earlier = features[:, : one.feature_width]
        assert earlier.mean(1).abs().max() < 1e-4  # normalised over channels
        assert (earlier.std(1, correction=0) - 1).abs().max() < 1e-2


def test_the_order_of_class_tokens_is_the_order_of_the_masks() -> None:
    config = SegmenterConfig(backbone=vit(), image_size=(32, 32), num_classes=3, decoder="mask-transformer", decoder_heads=2)
    model = trained(config).double()  # another order of the tokens is another order of sums
    head: Any = model.head
    images_BCHW = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        head.mask_norm.weight.fill_(1)
        head.mask_norm.bias.zero_()
        before = model(images_BCHW)
        head.class_tokens.copy_(head.class_tokens[:, [2, 0, 1]])
        torch.testing.assert_close(model(images_BCHW), before[:, [2, 0, 1]], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("decoder", ["linear", "mask-transformer"])
def test_the_cost_counts_every_parameter(decoder: str) -> None:
    for backbone in (vit(), vit(pool="map", class_token=False), SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(4, 4))):
        config = SegmenterConfig(
            backbone=backbone,
            image_size=(32, 32),
            num_classes=4,
            decoder=decoder,  # type: ignore[arg-type]
            decoder_heads=2,
        )
        assert cost(config).parameters == sum(parameter.numel() for parameter in build(config).parameters())


def test_the_config_comes_back_from_json_and_says_its_task() -> None:
    config = SegmenterConfig(backbone=vit(), image_size=(32, 48), num_classes=4, layers=(0, 1))
    assert from_text(SegmenterConfig, to_text(config)) == config
    assert (task_of(config), task_of(vit())) == ("segment", "classify")
    assert config.backbone.image_size == (32, 48)
    assert config.backbone.num_classes == 0
    assert replace(config, image_size=(64, 64)).backbone.image_size == (64, 64)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_classes": 1}, "num_classes"),
        ({"layers": (0, 9)}, "layers"),
        ({"layers": (1, 0)}, "rise"),
        ({"layers": (0,)}, "last layer"),
        ({"decoder": "mask-transformer", "decoder_heads": 5}, "decoder_heads"),
        ({"backbone": vit(patch_dropout=0.5)}, "every patch"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    fields: dict[str, object] = {"backbone": vit(), "image_size": (32, 32), "num_classes": 3} | changes
    with pytest.raises(ConfigError, match=words):
        SegmenterConfig(**fields)  # type: ignore[arg-type]


def test_the_decoder_cannot_be_replaced() -> None:
    with pytest.raises(ConfigError, match="decoder"):
        build(SegmenterConfig(backbone=vit(), image_size=(32, 32), num_classes=3)).reset_classifier(7)
