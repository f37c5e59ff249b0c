"""Losses against torch's own and against each other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitlab.objective.losses import hard_distillation, sigmoid_cross_entropy, soft_distillation, soft_targets, softmax_cross_entropy


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(9, 5, generator=generator), torch.randint(5, (9,), generator=generator)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_cross_entropy_equals_torchs_for_numbers_and_for_one_hot_targets(smoothing: float) -> None:
    logits_BC, labels_B = batch()
    expected = F.cross_entropy(logits_BC, labels_B, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(softmax_cross_entropy(logits_BC, labels_B, smoothing=smoothing), expected)
    torch.testing.assert_close(softmax_cross_entropy(logits_BC, F.one_hot(labels_B, 5), smoothing=smoothing), expected)


def test_class_weights_count_as_torchs_do() -> None:
    logits_BC, labels_B = batch()
    weight_C = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0])
    expected = F.cross_entropy(logits_BC, labels_B, weight=weight_C, reduction="none")
    torch.testing.assert_close(softmax_cross_entropy(logits_BC, labels_B, weight_C=weight_C), expected)


def test_sigmoid_cross_entropy_sums_over_classes() -> None:
    logits_BC, labels_B = batch()
    expected = F.binary_cross_entropy_with_logits(logits_BC, F.one_hot(labels_B, 5).float(), reduction="none").sum(-1)
    torch.testing.assert_close(sigmoid_cross_entropy(logits_BC, labels_B), expected)


def test_a_mixture_of_targets_costs_the_mixture_of_their_costs() -> None:
    logits_BC, labels_B = batch()
    one, other = F.one_hot(labels_B, 5).float(), F.one_hot(labels_B.roll(1), 5).float()
    for loss in (softmax_cross_entropy, sigmoid_cross_entropy):
        mixed = loss(logits_BC, 0.3 * one + 0.7 * other)
        torch.testing.assert_close(mixed, 0.3 * loss(logits_BC, one) + 0.7 * loss(logits_BC, other))


def test_smoothing_keeps_the_mass_of_a_target() -> None:
    targets_BC = soft_targets(batch()[1], 5, smoothing=0.2)
    torch.testing.assert_close(targets_BC.sum(-1), torch.ones(9))
    assert targets_BC.min() == pytest.approx(0.04)


def test_distillation_costs_nothing_from_oneself_and_something_from_another() -> None:
    logits_BC, _ = batch()
    assert soft_distillation(logits_BC, logits_BC, temperature=3.0).abs().max() < 1e-6
    assert soft_distillation(logits_BC, -logits_BC, temperature=3.0).min() > 0.01
    hard = F.cross_entropy(logits_BC, logits_BC.argmax(-1), reduction="none")
    torch.testing.assert_close(hard_distillation(logits_BC, 5 * logits_BC), hard)
