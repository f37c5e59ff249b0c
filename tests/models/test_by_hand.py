"""Backward passes written by hand give autograd's numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitlab.config.model import Gelu, ViTConfig
from vitlab.models import build
from vitlab.models.by_hand import in_parts, mlp
from vitlab.models.vit import Mlp, ViT
from vitlab.training.cpu import back_by_hand

TINY = ViTConfig(width=12, depth=3, heads=3, mlp_width=20, patch_size=(4, 4), image_size=(12, 8), num_classes=5)


def gradients(model: nn.Module, images_BCHW: Tensor) -> dict[str, Tensor]:
    """Of a weighted sum of the logits, of everything that learns."""
    model.zero_grad(set_to_none=True)
    logits_BC = model(images_BCHW)
    torch.autograd.backward((logits_BC * torch.linspace(-1, 2, logits_BC.numel(), dtype=logits_BC.dtype).view_as(logits_BC)).sum())
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def model_of(config: ViTConfig = TINY) -> ViT:
    model = build(config).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.3)
    assert isinstance(model, ViT)
    return model.train()


def images(config: ViTConfig = TINY) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(4, config.channels, *config.image_size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_vit_has_the_same_gradients_by_hand_as_by_autograd(lean: bool, bias: bool) -> None:
    from dataclasses import replace

    model = model_of(replace(TINY, qkv_bias=bias))
    model.lean = lean
    expected = gradients(model, images())
    back_by_hand(model)
    found = gradients(model, images())
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-10, atol=1e-10 * float(grad.abs().max()) + 1e-13)


def test_layers_computed_again_have_the_same_gradients_by_hand() -> None:
    model = model_of()
    back_by_hand(model)
    expected = gradients(model, images())
    model.encoder.recompute = True
    found = gradients(model, images())
    assert all(torch.equal(found[name], grad) for name, grad in expected.items())


@pytest.mark.parametrize("learns", ["up.weight", "up.bias", "down.weight", "down.bias", "nothing"])
@pytest.mark.parametrize("gelu", ["exact", "tanh"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_keeps_its_own(learns: str, gelu: Gelu) -> None:
    torch.manual_seed(0)
    layer = Mlp(6, 10, gelu=gelu, dropout=0.0).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=learns == "nothing")
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == learns)
    wanted = [value for value in (x, *layer.parameters()) if value.requires_grad]
    expected = torch.autograd.grad(layer(x).sin().sum(), wanted)
    layer.by_hand = True
    found = torch.autograd.grad(layer(x).sin().sum(), wanted)
    torch.testing.assert_close(found, expected)


def test_parts_that_nobody_differentiates_cost_nothing_wrong() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 12).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    wanted = [x, linear.weight, linear.bias]
    expected = torch.autograd.grad(linear(x).chunk(3, dim=-1)[1].sin().sum(), wanted)
    found = torch.autograd.grad(in_parts(x, linear, 3)[1].sin().sum(), wanted)
    torch.testing.assert_close(found, expected)


def test_dropout_in_the_mlp_is_left_to_autograd() -> None:
    layer = Mlp(6, 10, gelu="exact", dropout=0.5)
    layer.by_hand = True
    x = torch.randn(2, 3, 6)
    torch.manual_seed(0)
    noisy = layer.train()(x)
    assert not torch.equal(noisy, layer.eval()(x))
    layer.by_hand = False
    torch.manual_seed(0)
    assert torch.equal(noisy, layer.train()(x))


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    up, down = nn.Linear(4, 8), nn.Linear(8, 4)
    x = torch.randn(3, 4, requires_grad=True)
    (first,) = torch.autograd.grad(mlp(x, up, down, "none").sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(first.sum())
