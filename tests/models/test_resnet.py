"""The BiT ResNet and the standardised convolution it is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from vitlab.config.resnet import ResNetConfig
from vitlab.config.vit_parts import Standardise
from vitlab.errors import ConfigError
from vitlab.models import Record, build
from vitlab.models.resnet import ResNet, StandardisedConv, pad_same, same_padding, standardise

SMALL = ResNetConfig(
    blocks=(1, 2, 1, 1),
    root_width=32,
    stage_widths=(128, 128, 256, 256),
    image_size=(64, 64),
    num_classes=5,
    standardise_eps=1e-8,
)


def small(seed: int = 0) -> ResNet:
    model = build(SMALL, seed=seed)
    assert isinstance(model, ResNet)
    return model.eval()


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_timm_s_bit_weights_give_timm_s_logits(checkout: Path) -> None:
    folder = checkout / "tests" / "golden" / "peers"
    theirs, expected = load_file(folder / "timm_bit.safetensors"), load_file(folder / "timm_bit.expected.safetensors")
    words = (("stem.conv", "root"), (".blocks", ""), ("downsample.conv", "shortcut"), ("head.fc", "head"))
    state = {}
    for key, tensor in theirs.items():
        for word, ours in words:
            key = key.replace(word, ours)
        state[key] = tensor.flatten(1) if key == "head.weight" else tensor
    model = small()
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        torch.testing.assert_close(model(expected["images_BCHW"]), expected["logits_BC"], atol=2e-6, rtol=0)


@pytest.mark.parametrize("form", ["std", "variance"])
def test_a_standardised_kernel_has_mean_0_and_variance_1_for_each_output(form: Standardise) -> None:
    weight_OIHW = standardise(3 + 2 * noise(8, 16, 3, 3), form=form, eps=1e-10)
    torch.testing.assert_close(weight_OIHW.mean((1, 2, 3)), torch.zeros(8), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight_OIHW.var((1, 2, 3), correction=0), torch.ones(8), atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", ["std", "variance"])
def test_a_standardised_kernel_forgets_the_scale_and_shift_of_each_output(form: Standardise) -> None:
    weight_OIHW = noise(8, 16, 3, 3)
    moved_OIHW = weight_OIHW * torch.linspace(0.5, 4, 8).view(8, 1, 1, 1) + torch.linspace(-1, 1, 8).view(8, 1, 1, 1)
    torch.testing.assert_close(
        standardise(moved_OIHW, form=form, eps=1e-12), standardise(weight_OIHW, form=form, eps=1e-12), atol=1e-5, rtol=0
    )


def test_the_two_forms_place_the_epsilon_outside_or_inside_the_root() -> None:
    weight_OIHW, eps = 1e-2 * noise(4, 8, 3, 3), 1e-3
    exact = weight_OIHW.double()
    centred = exact - exact.mean((1, 2, 3), keepdim=True)
    variance = exact.var((1, 2, 3), correction=0, keepdim=True)
    outside = standardise(weight_OIHW, form="std", eps=eps).double()
    inside = standardise(weight_OIHW, form="variance", eps=eps).double()
    torch.testing.assert_close(outside, centred / (variance.sqrt() + eps), atol=1e-6, rtol=0)
    torch.testing.assert_close(inside, centred / (variance + eps).sqrt(), atol=1e-6, rtol=0)
    assert (outside - inside).abs().max() > 0.1


@pytest.mark.parametrize("form", ["std", "variance"])
def test_a_constant_filter_becomes_zero_and_has_a_finite_gradient(form: Standardise) -> None:
    weight_OIHW = torch.full((2, 4, 3, 3), 0.5, requires_grad=True)
    standardised_OIHW = standardise(weight_OIHW, form=form, eps=1e-5)
    assert standardised_OIHW.abs().max() == 0
    (gradient_OIHW,) = torch.autograd.grad((standardised_OIHW * noise(2, 4, 3, 3)).sum(), weight_OIHW)
    assert gradient_OIHW.isfinite().all()


def test_a_bfloat16_kernel_is_standardised_in_float32_and_a_double_one_in_double() -> None:
    weight_OIHW = (5 + noise(4, 512, 3, 3)).bfloat16()
    half = standardise(weight_OIHW, form="variance", eps=1e-10)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, standardise(weight_OIHW.float(), form="variance", eps=1e-10).bfloat16())
    assert standardise(weight_OIHW.double(), form="variance", eps=1e-10).dtype == torch.float64


@pytest.mark.parametrize("size", range(1, 20))
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2), (2, 3)])
def test_same_padding_gives_one_cell_for_each_stride_begun_and_the_odd_one_goes_last(size: int, kernel: int, stride: int) -> None:
    before, after = same_padding(size, kernel, stride)
    assert 0 <= before <= after <= before + 1
    padded = pad_same(torch.zeros(1, 1, size, size), kernel=kernel, stride=stride)
    assert F.max_pool2d(padded, kernel, stride=stride).shape[2:] == (-(-size // stride), -(-size // stride))
    # Not a cell more than the last window needs.
    assert before + after == 0 or before + size + after == (-(-size // stride) - 1) * stride + kernel


@pytest.mark.parametrize("size", [(8, 8), (9, 9), (8, 9), (9, 8)])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (3, 1), (3, 2), (7, 2)])
def test_a_convolution_with_same_padding_is_the_one_on_the_padded_maps(size: tuple[int, int], kernel: int, stride: int) -> None:
    conv = StandardisedConv(3, 4, kernel, padding="same", form="std", eps=1e-5, stride=stride)
    with torch.no_grad():
        conv.weight.copy_(noise(4, 3, kernel, kernel, seed=1))
        x_BCHW = noise(2, 3, *size)
        padded_BCHW = pad_same(x_BCHW, kernel=kernel, stride=stride)
        weight_OIHW = standardise(conv.weight, form="std", eps=1e-5)
        torch.testing.assert_close(conv(x_BCHW), F.conv2d(padded_BCHW, weight_OIHW, stride=stride), atol=1e-5, rtol=0)


def test_every_unit_s_scale_of_its_kernels_is_forgotten_by_the_model() -> None:
    model, images_BCHW = small(), noise(1, 3, 64, 64)
    with torch.no_grad():
        before = model.features(images_BCHW)
        for module in model.modules():
            if isinstance(module, StandardisedConv):
                module.weight.mul_(3)
        torch.testing.assert_close(model.features(images_BCHW), before, atol=1e-4, rtol=1e-4)


def test_a_border_of_zeros_wins_the_first_pooling_where_the_maps_are_negative() -> None:
    model, images_BCHW = small(), noise(1, 3, 64, 64)
    with torch.no_grad():
        root_BCHW = model.root(images_BCHW)
        framed_BCHW = F.max_pool2d(F.pad(root_BCHW, (1, 1, 1, 1)), 3, stride=2)
        assert framed_BCHW[:, :, 0].min() == 0
        assert F.max_pool2d(root_BCHW, 3, stride=2, padding=1)[:, :, 0].min() < 0
        record = Record(attention=False, maps=True, layers=[0])
        model(images_BCHW, record)
        torch.testing.assert_close(record.maps_BCHW[0], model.stages[0](framed_BCHW))


@pytest.mark.parametrize("size", [(1, 1), (7, 40), (65, 63), (96, 64)])
def test_images_of_any_size_are_taken(size: tuple[int, int]) -> None:
    with torch.no_grad():
        logits_BC = small()(noise(2, 3, *size))
    assert logits_BC.shape == (2, 5)
    assert logits_BC.isfinite().all()


def test_a_record_holds_the_maps_of_the_chosen_stages_in_order() -> None:
    model, images_BCHW = small(), noise(2, 3, 64, 64)
    every, last = Record(attention=False, maps=True), Record(attention=False, maps=True, layers=[-1])
    with torch.no_grad():
        model(images_BCHW, every)
        model(images_BCHW, last)
    assert [tuple(maps_BCHW.shape) for maps_BCHW in every.maps_BCHW] == [
        (2, 128, 16, 16),
        (2, 128, 8, 8),
        (2, 256, 4, 4),
        (2, 256, 2, 2),
    ]
    assert len(last.maps_BCHW) == 1
    assert torch.equal(last.maps_BCHW[0], every.maps_BCHW[3])


def test_attention_of_a_resnet_is_refused() -> None:
    with pytest.raises(ConfigError, match="a BiT ResNet has no attention"):
        small()(noise(1, 3, 64, 64), Record())


def test_images_of_another_number_of_channels_or_axes_are_refused() -> None:
    with pytest.raises(ConfigError, match="have 4 channels and the model takes 3"):
        small()(noise(1, 4, 64, 64))
    with pytest.raises(ConfigError, match="not of shape"):
        small()(noise(3, 64, 64))


def test_a_new_resnet_gives_the_head_s_bias_for_every_class_and_every_image() -> None:
    model = build(replace(SMALL, head_bias=-10.0))
    assert torch.equal(model(noise(2, 3, 64, 64)), torch.full((2, 5), -10.0))


def test_the_state_dict_s_keys_are_those_of_the_file_format() -> None:
    keys = set(small().state_dict())
    unit = {f"norm{i}.{part}" for i in (1, 2, 3) for part in ("weight", "bias")} | {f"conv{i}.weight" for i in (1, 2, 3)}
    expected = {"root.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    for stage, units in enumerate(SMALL.blocks):
        for index in range(units):
            expected |= {f"stages.{stage}.{index}.{key}" for key in unit}
        expected.add(f"stages.{stage}.0.shortcut.weight")
    assert keys == expected
