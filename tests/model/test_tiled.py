"""The tiled MLP is the plain one: same outputs, same gradients, whatever the tiles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitlab.config.model import Gelu
from vitlab.model import tiled
from vitlab.model.mlp import Mlp

WIDTH, HIDDEN, SHAPE = 16, 40, (3, 7, 16)


def made(gelu: Gelu = "exact", dropout: float = 0.0) -> Mlp:
    """An MLP with random values, in training."""
    torch.manual_seed(0)
    return Mlp(WIDTH, HIDDEN, gelu=gelu, dropout=dropout).train()


def learned(mlp: Mlp, x_BND: Tensor) -> dict[str, Tensor | None]:
    """The output, and the gradients of everything that learns."""
    mlp.zero_grad()
    x_BND = x_BND.clone().requires_grad_()
    y_BND = mlp(x_BND)
    weight_BND = torch.linspace(-1, 1, y_BND.numel()).view(y_BND.shape)
    torch.autograd.backward((y_BND * weight_BND).sum())
    return {"output": y_BND.detach(), "input": x_BND.grad, **{name: value.grad for name, value in mlp.named_parameters()}}


def plainly(mlp: Mlp, x_BND: Tensor, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor | None]:
    """The same by torch's own layers and derivatives."""
    with monkeypatch.context() as patched:
        patched.setattr("vitlab.model.mlp.can_tile", lambda x_BND: False)
        return learned(mlp, x_BND)


@pytest.mark.parametrize("gelu", ["exact", "tanh"])
@pytest.mark.parametrize("rows", [1, 4, 7, 21, 100])
def test_tiles_of_any_size_give_the_plain_layers_output_and_gradients(
    gelu: Gelu, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled, "ROWS", rows)
    mlp, x_BND = made(gelu), torch.randn(SHAPE)
    found, wanted = learned(mlp, x_BND), plainly(mlp, x_BND, monkeypatch)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_what_is_frozen_gets_no_gradient_and_changes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, x_BND = made(), torch.randn(SHAPE)
    for parameter in (mlp.up.weight, mlp.down.bias):
        parameter.requires_grad_(False)
    found, wanted = learned(mlp, x_BND), plainly(mlp, x_BND, monkeypatch)
    assert found["up.weight"] is None
    assert found["down.bias"] is None
    for name in ("input", "up.bias", "down.weight"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_training_says_what_evaluation_says() -> None:
    mlp, x_BND = made(), torch.randn(SHAPE)
    assert torch.allclose(mlp(x_BND), mlp.eval()(x_BND), atol=1e-6)


def test_tiles_are_for_float32_with_gradients_on_a_processor_alone() -> None:
    x_BND = torch.randn(SHAPE)
    assert tiled.can_tile(x_BND)
    assert not tiled.can_tile(x_BND.bfloat16())
    assert not tiled.can_tile(x_BND.to("meta"))
    with torch.no_grad():
        assert not tiled.can_tile(x_BND)
    with torch.autocast("cpu", torch.bfloat16):
        assert not tiled.can_tile(x_BND)


def test_dropout_still_drops() -> None:
    mlp, x_BND = made(dropout=0.5), torch.randn(SHAPE)
    assert not torch.equal(mlp(x_BND), mlp(x_BND))


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    x_BND = torch.randn(SHAPE, requires_grad=True)
    (slope_BND,) = torch.autograd.grad((made()(x_BND) ** 2).sum(), x_BND, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate"):
        torch.autograd.grad(slope_BND.sum(), x_BND)
