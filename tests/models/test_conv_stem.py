"""The convolutional stem: what it computes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.config import ConvStem, ResNetStem, ViTConfig, variant
from vitlab.config.serialize import from_json, to_json
from vitlab.config.vit_parts import Activation, StemNorm
from vitlab.errors import ConfigError
from vitlab.models.model import Draw
from vitlab.models.stems import ConvolutionalStem, init_stem
from vitlab.models.vit import patchify

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


@torch.no_grad()
def test_a_batch_norm_normalises_by_the_batch_in_training_and_by_the_running_statistics_in_evaluation() -> None:
    stem, x_BCHW = made(ConvStem(widths=(20,), units=(1,), norm="batch", activation="relu")), images(4, 3, 12, 12)
    maps_BCHW = F.conv2d(x_BCHW, stem.state_dict()["stages.0.0.weight"], stride=2, padding=1)
    torch.testing.assert_close(stem(x_BCHW), F.relu(maps_BCHW), atol=1e-5, rtol=1e-4)  # new: mean 0, variance 1
    mean_C, variance_C = maps_BCHW.mean((0, 2, 3)), maps_BCHW.var((0, 2, 3))
    normalised_BCHW = F.batch_norm(maps_BCHW, None, None, training=True, eps=1e-6)
    torch.testing.assert_close(stem.train()(x_BCHW), F.relu(normalised_BCHW), atol=1e-5, rtol=1e-4)
    state = stem.eval().state_dict()
    torch.testing.assert_close(state["stages.0.0.norm.running_mean"], 0.1 * mean_C)
    torch.testing.assert_close(state["stages.0.0.norm.running_var"], 0.9 + 0.1 * variance_C)
    torch.testing.assert_close(
        stem(x_BCHW),
        F.relu(F.batch_norm(maps_BCHW, 0.1 * mean_C, 0.9 + 0.1 * variance_C, eps=1e-6)),
        atol=1e-5,
        rtol=1e-4,
    )


def test_a_batch_norm_in_bfloat16_keeps_its_statistics_in_float32_and_gives_gradients_to_all() -> None:
    stem = made(replace(CONFIG, norm="batch", activation="relu")).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = stem(images(4, 3, 16, 16)).float().square().mean()
    torch.autograd.backward(loss)
    assert {buffer.dtype for buffer in stem.buffers()} == {torch.float32}
    for name, parameter in stem.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("size", [(16, 16), (17, 30), (1, 5)])
def test_a_fraction_of_a_stride_at_the_edge_counts_as_a_cell(size: tuple[int, int]) -> None:
    cells = tuple(-(-side // CONFIG.stride) for side in size)
    assert made(CONFIG)(images(1, 3, *size)).shape == (1, CONFIG.out_width, *cells)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_the_order_of_memory_changes_nothing(norm: StemNorm) -> None:
    stem, x_BCHW = made(replace(CONFIG, norm=norm), channels=1), images(2, 1, 16, 16)
    torch.testing.assert_close(stem(x_BCHW), stem(x_BCHW.contiguous(memory_format=torch.channels_last)))


@torch.no_grad()
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_bfloat16_gives_about_the_same_maps(norm: StemNorm) -> None:
    stem, x_BCHW = made(replace(CONFIG, norm=norm)), images(2, 3, 16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        half_BCHW = stem(x_BCHW)
    torch.testing.assert_close(half_BCHW.float(), stem(x_BCHW), atol=0.1, rtol=0.05)


def test_patches_of_maps_with_channels_last_have_the_same_bits_and_gradients_with_channels_last() -> None:
    first_BCHW = images(2, 6, 8, 12).requires_grad_()
    last_BCHW = first_BCHW.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    one_BNV, other_BNV = patchify(first_BCHW, (2, 4)), patchify(last_BCHW, (2, 4))
    assert torch.equal(one_BNV, other_BNV)
    for patches_BNV in (one_BNV, other_BNV):
        torch.autograd.backward(patches_BNV, images(*patches_BNV.shape))
    assert first_BCHW.grad is not None
    assert last_BCHW.grad is not None
    assert torch.equal(first_BCHW.grad, last_BCHW.grad)
    assert last_BCHW.grad.is_contiguous(memory_format=torch.channels_last)


def test_a_token_steps_over_the_image_by_convolutions_and_patch() -> None:
    assert vit().step == (8, 8)
    assert vit().grid == variant("ViT-Mini/8", num_classes=5).grid  # type: ignore[union-attr]


def test_it_is_written_and_read_and_has_no_published_name() -> None:
    assert from_json(ViTConfig, to_json(vit())) == vit()
    assert vit().name is None
    batch = replace(CONFIG, norm="batch")
    assert from_json(ConvStem, to_json(batch)) == batch


def test_a_file_without_a_norm_is_of_a_group_norm() -> None:
    written = to_json(CONFIG)
    assert isinstance(written, dict)
    assert from_json(ConvStem, {name: value for name, value in written.items() if name != "norm"}) == CONFIG
    assert CONFIG.norm == "group"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"widths": ()}, "one number a stage"),
        ({"activation": "swish"}, "conv_stem.activation"),
        ({"norm": "layer"}, "conv_stem.norm"),
        ({"widths": (0, 16), "norm": "batch"}, "conv_stem.widths"),
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
