"""The convolutional stem: what it computes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.config import ConvStem, ResNetStem, ViTConfig, variant
from vitlab.config.serialize import from_json, to_json
from vitlab.config.stems import Activation
from vitlab.errors import ConfigError
from vitlab.models.init import Draw
from vitlab.models.stems import ConvolutionalStem, init_stem

CONFIG = ConvStem(widths=(16, 24), units=(1, 3))


def made(config: ConvStem, channels: int = 3) -> ConvolutionalStem:
    stem = ConvolutionalStem(config, channels, gelu="tanh")
    with torch.no_grad():
        init_stem(stem, Draw(0))
    return stem.eval()


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def vit() -> ViTConfig:
    config = variant("ViT-Mini/8", num_classes=5)
    assert isinstance(config, ViTConfig)
    return replace(config, conv_stem=CONFIG, patch_size=(2, 2))


@torch.no_grad()
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_it_is_convolution_norm_and_activation_with_shortcuts_after_a_stages_first(activation: Activation) -> None:
    stem, x_BCHW = made(replace(CONFIG, activation=activation)), images(2, 3, 12, 20)
    state, wanted_BCHW = stem.state_dict(), x_BCHW
    for stage, (width, units) in enumerate(zip(CONFIG.widths, CONFIG.units, strict=True)):
        for unit in range(units):
            name = f"stages.{stage}.{unit}"
            y_BCHW = F.conv2d(wanted_BCHW, state[f"{name}.weight"], stride=1 if unit else 2, padding=1)
            y_BCHW = F.group_norm(y_BCHW, width // 8, state[f"{name}.norm.weight"], state[f"{name}.norm.bias"], 1e-6)
            y_BCHW = F.gelu(y_BCHW, approximate="tanh") if activation == "gelu" else F.relu(y_BCHW)
            wanted_BCHW = wanted_BCHW + y_BCHW if unit else y_BCHW
    torch.testing.assert_close(stem(x_BCHW), wanted_BCHW, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [(16, 16), (17, 30), (1, 5)])
def test_a_fraction_of_a_stride_at_the_edge_counts_as_a_cell(size: tuple[int, int]) -> None:
    cells = tuple(-(-side // CONFIG.stride) for side in size)
    assert made(CONFIG)(images(1, 3, *size)).shape == (1, CONFIG.out_width, *cells)


@torch.no_grad()
def test_the_order_of_memory_changes_nothing() -> None:
    stem, x_BCHW = made(CONFIG, channels=1), images(2, 1, 16, 16)
    torch.testing.assert_close(stem(x_BCHW), stem(x_BCHW.contiguous(memory_format=torch.channels_last)))


@torch.no_grad()
def test_bfloat16_gives_about_the_same_maps() -> None:
    stem, x_BCHW = made(CONFIG), images(2, 3, 16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        half_BCHW = stem(x_BCHW)
    torch.testing.assert_close(half_BCHW.float(), stem(x_BCHW), atol=0.1, rtol=0.05)


def test_a_token_steps_over_the_image_by_convolutions_and_patch() -> None:
    assert vit().step == (8, 8)
    assert vit().grid == variant("ViT-Mini/8", num_classes=5).grid  # type: ignore[union-attr]


def test_it_is_written_and_read_and_has_no_published_name() -> None:
    assert from_json(ViTConfig, to_json(vit())) == vit()
    assert vit().name is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"widths": ()}, "one number a stage"),
        ({"activation": "swish"}, "conv_stem.activation"),
        ({"units": (1,)}, "one number a stage"),
        ({"units": (0, 1)}, "conv_stem.units"),
        ({"widths": (16, 20)}, "multiples of conv_stem.group_width"),
        ({"norm_eps": 0.0}, "norm_eps"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(CONFIG, **change)  # type: ignore[arg-type]


def test_a_resnet_stem_and_a_conv_stem_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        replace(vit(), stem=ResNetStem(blocks=()))
