"""Muon's updates have the same size in every direction, whatever the shape of the matrix."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vitlab.config import ConvStem, ViTConfig, variant
from vitlab.config.train import Optimizer
from vitlab.models import build
from vitlab.training.optim import Muon, create_optimizers, orthogonal


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stepped(start: Tensor, gradients: list[Tensor], *, parts: int = 1, weight_decay: float = 0.0) -> Tensor:
    """The parameter after those gradients."""
    parameter = nn.Parameter(start.clone())
    group: dict[str, object] = {"params": [parameter], "parts": parts, "weight_decay": weight_decay}
    muon = Muon([group], lr=0.1, momentum=0.9)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        muon.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6), (1, 5)])
def test_an_orthogonalised_matrix_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    values = torch.linalg.svdvals(orthogonal(drawn(*shape) * 1e-3))
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(96, 200), (200, 96)])
def test_bfloat16_orthogonalises_about_as_well(shape: tuple[int, int]) -> None:
    half, full = orthogonal(drawn(*shape), torch.bfloat16), orthogonal(drawn(*shape))
    assert half.dtype == torch.float32
    assert (half - full).norm() < 0.05 * full.norm()
    values = torch.linalg.svdvals(half)
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_orthogonalisation_commutes_with_the_transpose() -> None:
    matrix, turn = drawn(6, 9), torch.linalg.qr(drawn(6, 6, seed=1)).Q
    torch.testing.assert_close(orthogonal(turn @ matrix), turn @ orthogonal(matrix), atol=1e-4, rtol=1e-4)


def test_the_size_of_a_gradient_does_not_matter_and_zero_changes_nothing() -> None:
    start, gradient = drawn(6, 9), drawn(6, 9, seed=1)
    torch.testing.assert_close(stepped(start, [gradient]), stepped(start, [gradient * 1000]), atol=1e-4, rtol=1e-4)
    assert torch.equal(stepped(start, [torch.zeros(6, 9)]), start)


def test_an_update_is_about_as_large_as_one_of_adamw() -> None:
    start = drawn(64, 192)
    moved = stepped(start, [drawn(64, 192, seed=1)]) - start
    assert 0.1 * 0.1 < moved.square().mean().sqrt() < 0.1 * 0.3


def test_a_kernel_is_treated_as_the_matrix_of_its_outputs() -> None:
    start, gradients = drawn(8, 4, 3, 3), [drawn(8, 4, 3, 3, seed=seed) for seed in (1, 2)]
    flat = stepped(start.flatten(1), [gradient.flatten(1) for gradient in gradients])
    assert torch.equal(stepped(start, gradients).flatten(1), flat)
    last = [gradient.contiguous(memory_format=torch.channels_last) for gradient in gradients]
    assert torch.equal(stepped(start, last).flatten(1), flat)


def test_queries_keys_and_values_are_three_matrices() -> None:
    start, gradients = drawn(24, 8), [drawn(24, 8, seed=seed) for seed in (1, 2)]
    apart = [stepped(start.chunk(3)[part], [gradient.chunk(3)[part] for gradient in gradients]) for part in range(3)]
    torch.testing.assert_close(stepped(start, gradients, parts=3), torch.cat(apart))


def test_weight_decay_is_scaled_by_the_learning_rate() -> None:
    start, gradient = drawn(6, 9), drawn(6, 9, seed=1)
    plain, decayed = stepped(start, [gradient]), stepped(start, [gradient], weight_decay=0.5)
    torch.testing.assert_close(plain - decayed, start * 0.1 * 0.5)


def test_muon_updates_hidden_matrices_and_kernels_and_adamw_the_rest() -> None:
    config = variant("ViT-Mini/8", num_classes=5)
    assert isinstance(config, ViTConfig)
    stem = ConvStem(widths=(16, 32), units=(2, 1))
    model = build(replace(config, conv_stem=stem, patch_size=(2, 2)))
    adamw, muon = create_optimizers(model, Optimizer(kind="muon", weight_decay=0.1))
    names = {parameter: name for name, parameter in model.named_parameters()}
    own = {names[parameter]: group["parts"] for group in muon.param_groups for parameter in group["params"]}
    assert own["encoder.blocks.1.attention.qkv.weight"] == 3
    assert own["encoder.blocks.0.mlp.up.weight"] == own["early.stages.0.1.weight"] == own["early.stages.1.0.weight"] == 1
    rest = {names[parameter] for group in adamw.param_groups for parameter in group["params"]}
    assert {"early.stages.0.0.weight", "patches.weight", "position.table", "head.weight", "encoder.blocks.0.norm1.weight"} <= rest
    assert not rest & own.keys()
    assert rest | own.keys() == set(names.values())
