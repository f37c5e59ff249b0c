"""Losses and metrics of segmentation, each against a computation by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vitlab.objective.losses import dice_loss, pixel_accuracy, pixel_cross_entropy
from vitlab.objective.metrics import (
    IGNORE,
    BoundaryCounts,
    boundary_counts,
    iou_by_class,
    mean_iou,
    pixel_confusion,
)


def logits_of(chances: list[list[float]]) -> torch.Tensor:
    """One image of 1 x N pixels from the probabilities (class, pixel)."""
    return torch.tensor(chances).log()[None, :, None, :]


def masks_of(*classes: int) -> torch.Tensor:
    return torch.tensor(classes, dtype=torch.uint8)[None, None, :]


def test_cross_entropy_is_the_mean_over_the_pixels_that_count() -> None:
    logits = logits_of([[0.5, 0.2, 0.9], [0.5, 0.8, 0.1]])
    loss = pixel_cross_entropy(logits, masks_of(0, 1, IGNORE))
    assert loss.tolist() == pytest.approx([-(math.log(0.5) + math.log(0.8)) / 2])


def test_an_image_that_is_ignored_costs_nothing_and_gives_no_gradient() -> None:
    logits = torch.randn(1, 3, 4, 5, requires_grad=True)
    mask = torch.full((1, 4, 5), IGNORE, dtype=torch.uint8)
    total = pixel_cross_entropy(logits, mask).sum() + dice_loss(logits, mask).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert total.item() == 0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0


def test_dice_by_hand() -> None:
    """Class 0: p = .5, .2 on counted pixels, target 1, 0: 2 * .5 / (.7 + 1). Class 1: 2 * .8 / (1.3 + 1). Class 2 is absent."""
    logits = logits_of([[0.5, 0.2, 0.8], [0.5, 0.8, 0.1], [1e-9, 1e-9, 0.1]])
    wanted = 1 - (2 * 0.5 / 1.7 + 2 * 0.8 / 2.3) / 2
    assert dice_loss(logits, masks_of(0, 1, IGNORE)).tolist() == pytest.approx([wanted], abs=1e-5)


def test_a_perfect_prediction_has_no_dice_loss_and_full_accuracy() -> None:
    mask = torch.tensor([[[0, 1], [2, IGNORE]]], dtype=torch.uint8)
    logits = torch.nn.functional.one_hot(torch.where(mask == IGNORE, 0, mask).long(), 3).permute(0, 3, 1, 2) * 100.0
    assert dice_loss(logits, mask).item() == pytest.approx(0, abs=1e-5)
    assert pixel_accuracy(logits, mask).tolist() == [1.0]


def test_accuracy_of_pixels_by_hand() -> None:
    logits = logits_of([[0.6, 0.2, 0.9, 0.7], [0.4, 0.8, 0.1, 0.3]])
    assert pixel_accuracy(logits, masks_of(0, 0, IGNORE, 0)).tolist() == pytest.approx([2 / 3])


def test_iou_by_hand() -> None:
    wanted = np.array([[0, 0, 1, 1], [0, IGNORE, 1, 1]], np.uint8)
    predicted = np.array([[0, 1, 1, 1], [0, 0, 0, 1]], np.uint8)
    confusion = pixel_confusion(wanted, predicted, 3)
    assert confusion.tolist() == [[2, 1, 0], [1, 3, 0], [0, 0, 0]]
    iou = iou_by_class(confusion)
    assert iou[:2].tolist() == [2 / 4, 3 / 5]  # class 0: 2 of 3 + 3 - 2; class 1: 3 of 4 + 4 - 3
    assert np.isnan(iou[2])
    assert mean_iou(confusion) == pytest.approx((2 / 4 + 3 / 5) / 2)


def test_a_class_that_is_only_predicted_counts_as_zero() -> None:
    confusion = pixel_confusion(np.zeros((1, 4), np.uint8), np.array([[0, 0, 0, 2]], np.uint8), 3)
    assert mean_iou(confusion) == pytest.approx((3 / 4 + 0) / 2)


def square(top: int, left: int, *, side: int = 4, size: int = 12) -> np.ndarray:
    mask = np.zeros((size, size), np.uint8)
    mask[top : top + side, left : left + side] = 1
    return mask


def test_the_boundary_of_a_square_by_hand() -> None:
    """A square of 4 x 4 has 12 boundary pixels inside, and the ground around it 16 (corners touch no side)."""
    counts = boundary_counts(square(4, 4), square(4, 4), 2, tolerance=1)
    assert counts.right_C.tolist() == counts.predicted_C.tolist() == [16, 12]
    assert counts.f_by_class.tolist() == [1.0, 1.0]


def test_a_boundary_within_the_tolerance_is_right_and_beyond_it_wrong() -> None:
    near = boundary_counts(square(4, 4), square(4, 5), 2, tolerance=1)
    assert near.f == 1.0
    far = boundary_counts(square(1, 1), square(7, 7), 2, tolerance=1)
    assert far.f_by_class[1] == 0.0


def test_precision_and_recall_of_a_boundary_by_hand() -> None:
    """Predicted: the left column of the right square alone, 4 x 1: all 4 are near, and 6 of 12 right ones are within 1 pixel."""
    predicted = np.zeros((12, 12), np.uint8)
    predicted[4:8, 4] = 1
    counts = boundary_counts(square(4, 4), predicted, 2, tolerance=1)
    assert (counts.predicted_C[1], counts.predicted_near_C[1]) == (4, 4)
    assert (counts.right_C[1], counts.right_near_C[1]) == (12, 6)  # columns 4 and 5: 4 and 2 boundary pixels
    assert counts.f_by_class[1] == pytest.approx(2 * 1 * 0.5 / 1.5)


def test_a_trimap_that_ignores_the_border_says_nothing_about_boundaries() -> None:
    """Not even that they are all wrong, if a mask is so wrong that its boundary lies elsewhere."""
    wanted = square(4, 4)
    wanted[3:9, 3:9][wanted[3:9, 3:9] == 0] = IGNORE
    counts = boundary_counts(wanted, square(9, 9), 2, tolerance=1)
    assert counts.predicted_C.sum() > 0
    assert np.isnan(counts.f)


def test_ignored_pixels_have_no_boundary_and_hide_what_is_near() -> None:
    wanted = square(4, 4)
    wanted[3:9, 3:9][wanted[3:9, 3:9] == 0] = IGNORE  # a border around the square, as in trimaps
    assert boundary_counts(wanted, square(4, 4), 2, tolerance=1).f_by_class.tolist() == pytest.approx([np.nan] * 2, nan_ok=True)
    wanted = square(4, 4)
    wanted[:, 10:] = IGNORE
    predicted = square(4, 4)
    predicted[:, 11] = 1
    assert boundary_counts(wanted, predicted, 2, tolerance=1).f == 1.0


def test_counts_of_images_add_up() -> None:
    one, other = (boundary_counts(square(4, 4), square(4, left), 2, tolerance=1) for left in (4, 8))
    total = BoundaryCounts.none(2) + one + other
    assert total.right_C.tolist() == [32, 24]
    assert 0 < total.f < 1
