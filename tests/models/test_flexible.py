"""FlexiViT: one set of weights at any patch size, in training as when it is loaded."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from tests.models.test_contract import CONFIGS, trained
from vitlab.checkpoints.reading import Wanted, fit
from vitlab.config import SegmenterConfig, ViTConfig
from vitlab.models import build
from vitlab.models.flexible import FlexibleSegmenter, FlexibleViT
from vitlab.models.segmenter import Segmenter
from vitlab.models.vit import ViT

SIZES = ((8, 8), (4, 8), (16, 16), (2, 4))


@pytest.mark.parametrize("name", ["token", "mean", "map", "distilled", "registers", "local", "early"])
def test_a_patch_size_drawn_in_training_gives_what_a_model_loaded_at_it_gives(name: str) -> None:
    model, config = trained(CONFIGS[name]), CONFIGS[name]
    assert isinstance(model, ViT)
    assert isinstance(config, ViTConfig)
    sizes = ((2, 2), (4, 2)) if name == "early" else SIZES
    flexible = FlexibleViT(model, sizes).eval()
    images_BCHW = torch.randn(2, config.channels, *config.image_size, generator=torch.Generator().manual_seed(4))
    for size in sizes:
        state, fitted, _ = fit(dict(model.state_dict()), config, Wanted(patch_size=size))
        loaded = build(fitted).eval()
        loaded.load_state_dict(state)
        with torch.no_grad():
            torch.testing.assert_close(flexible(images_BCHW, size), loaded(images_BCHW), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(flexible(images_BCHW), model(images_BCHW))  # without a size: the model itself


@pytest.mark.parametrize("decoder", ["linear", "mask-transformer"])
def test_a_segmenter_at_a_drawn_patch_size_gives_what_one_loaded_at_it_gives(
    decoder: Literal["linear", "mask-transformer"],
) -> None:
    backbone = CONFIGS["token"]
    assert isinstance(backbone, ViTConfig)
    layers = (0, backbone.layers - 1)
    config = SegmenterConfig(
        backbone=backbone, num_classes=3, image_size=backbone.image_size, decoder=decoder, decoder_heads=1, layers=layers
    )
    model = build(config, seed=2).eval()
    assert isinstance(model, Segmenter)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    flexible = FlexibleSegmenter(model, SIZES).eval()
    images_BCHW = torch.randn(2, 3, *config.image_size, generator=torch.Generator().manual_seed(4))
    for size in SIZES:
        state, fitted, _ = fit(dict(model.state_dict()), config, Wanted(patch_size=size))
        loaded = build(fitted).eval()
        loaded.load_state_dict(state)
        with torch.no_grad():
            torch.testing.assert_close(flexible(images_BCHW, size), loaded(images_BCHW), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(flexible(images_BCHW), model(images_BCHW))
    assert {name.removeprefix("segmenter.") for name in flexible.state_dict()} == set(model.state_dict())


def test_every_patch_size_trains_the_weights_of_the_one_that_is_saved() -> None:
    model = trained(CONFIGS["token"])
    assert isinstance(model, ViT)
    flexible = FlexibleViT(model.train(), SIZES)
    assert {name.removeprefix("vit.") for name in flexible.state_dict()} == set(model.state_dict())
    for size in SIZES:
        model.zero_grad()
        flexible(torch.randn(2, model.config.channels, *model.config.image_size), size).square().sum().backward()
        for parameter in (model.patches.weight, model.position.table, next(model.encoder.blocks.parameters())):
            assert parameter.grad is not None
            assert float(parameter.grad.abs().sum()) > 0


def test_a_distilled_model_gives_both_heads_in_training_and_their_mean_in_evaluation() -> None:
    model = trained(CONFIGS["distilled"])
    assert isinstance(model, ViT)
    flexible = FlexibleViT(model, SIZES, both=True)
    images_BCHW = torch.randn(2, model.config.channels, *model.config.image_size)
    first, second = flexible.train()(images_BCHW, (4, 8))
    torch.testing.assert_close((first + second) / 2, flexible.eval()(images_BCHW, (4, 8)))


def test_larger_patches_make_fewer_tokens_and_the_same_function_of_an_enlarged_image() -> None:
    """An image enlarged twice in patches twice as large shows each patch enlarged: the same embeddings, so the same logits."""
    model = trained(CONFIGS["token"])
    assert isinstance(model, ViT)
    state, fitted, _ = fit(dict(model.state_dict()), model.config, Wanted(patch_size=(16, 16), image_size=(64, 64)))
    large = build(fitted).eval()
    large.load_state_dict(state)
    patches = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    enlarged = torch.nn.functional.interpolate(patches, (16, 16), mode="bilinear", align_corners=False)

    def image(parts: torch.Tensor) -> torch.Tensor:
        side = parts.shape[-1]
        return parts.view(4, 4, 3, side, side).permute(2, 0, 3, 1, 4).reshape(1, 3, 4 * side, 4 * side)

    with torch.no_grad():
        torch.testing.assert_close(large(image(enlarged)), model(image(patches)), atol=1e-4, rtol=1e-4)
