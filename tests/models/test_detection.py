"""Detection tokens: each register says a class and a box."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitlab.config import Position, ViTConfig, variant
from vitlab.errors import ConfigError
from vitlab.models.cost import cost
from vitlab.models.families import build
from vitlab.models.vit import ViT


def detector() -> ViTConfig:
    config = variant("ViT-Mini/8", num_classes=0)
    assert isinstance(config, ViTConfig)
    return replace(config, register_tokens=5, detection_classes=4, position=Position(place="every"), dynamic_size=True)


def built() -> ViT:
    model = build(detector(), seed=1).eval()
    assert isinstance(model, ViT)
    return model


def test_each_token_gives_logits_and_a_box_inside_the_image_for_images_of_any_size() -> None:
    model = built()
    for size in ((32, 32), (24, 48)):
        with torch.inference_mode():
            found = model.detect(torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0)))
        assert found.logits_BQC.shape == (2, 5, 4)
        assert found.boxes_BQ4.shape == (2, 5, 4)
        assert bool(((found.boxes_BQ4 > 0) & (found.boxes_BQ4 < 1)).all())


def test_every_parameter_that_detection_reads_gets_a_gradient() -> None:
    model = built()
    found = model.detect(torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    (found.logits_BQC.square().sum() + found.boxes_BQ4.square().sum()).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters())


def test_the_cost_counts_the_detection_heads() -> None:
    model = built()
    assert cost(detector()).parameters == sum(parameter.numel() for parameter in model.parameters())
    width, heads = detector().width, 2 * 2
    more = cost(detector()).macs - cost(replace(detector(), detection_classes=0)).macs
    assert more == 5 * (heads * width * width + width * (4 + 4))


def test_heads_without_tokens_and_tokens_without_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="detection_classes needs register_tokens"):
        replace(detector(), register_tokens=0)
    model = build(replace(detector(), detection_classes=0))
    assert isinstance(model, ViT)
    with pytest.raises(ConfigError, match="no detection heads"):
        model.detect(torch.zeros(1, 3, 32, 32))
