"""Colours, overlays and areas of masks; the mean field of a dense CRF: borders move to edges, and nothing moves where there is
nothing to say.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitlab.inference.detections import colours
from vitlab.inference.segmentation import MaskPrediction, areas_line, draw_overlay, refined


def test_every_class_has_a_colour_of_its_own() -> None:
    assert len(set(colours(60))) == 60
    assert colours(60)[:5] == colours(5)


def test_an_overlay_leaves_the_background_and_ignored_pixels_as_they_are() -> None:
    image = np.full((6, 6, 3), 100, np.uint8)
    classes = np.zeros((6, 6), np.uint8)
    classes[:, 3:] = 1
    classes[0, :3] = 255
    drawn = draw_overlay(image, classes, ("background", "cat"))
    assert (drawn[2:, :2] == 100).all()
    assert (drawn[0, :2] == drawn[0, 0]).all()
    assert (drawn[3, 4] != 100).any()
    grey = draw_overlay(image[:, :, :1], classes, ("background", "cat"))
    assert np.array_equal(grey, drawn)


def test_areas_are_sorted_and_sum_to_one() -> None:
    classes = np.array([[0, 2, 2, 2]], np.uint8)
    found = MaskPrediction(name="a.png", classes_HW=classes, image_HWC=np.zeros((1, 4, 3), np.uint8), labels=("a", "b", "c"))
    assert found.areas() == {"c": 0.75, "a": 0.25}
    assert areas_line(found) == "a.png: c 75.0 %, a 25.0 %"


def two_halves(height: int = 24, width: int = 32, edge: int = 16) -> np.ndarray:
    image = np.full((height, width, 3), 40, np.uint8)
    image[:, edge:] = 200
    return image


def blurred(height: int = 24, width: int = 32, border: int = 16) -> torch.Tensor:
    """Logits of two classes that are equal at column `border`, and rise slowly from there."""
    rise_W = (torch.arange(width) - border + 0.5) / 4
    return torch.stack([-rise_W, rise_W])[:, None, :].expand(2, height, width).contiguous()


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_the_border_of_a_mask_moves_to_the_edge_of_the_image(shift: int) -> None:
    image, logits = two_halves(), blurred(border=16 + shift)
    wanted = torch.zeros(24, 32, dtype=torch.int64)
    wanted[:, 16:] = 1
    assert not torch.equal(logits.argmax(0), wanted)
    assert torch.equal(refined(logits, image, patch=(8, 8)).argmax(0), wanted)


def test_a_mask_whose_border_is_at_the_edge_stays() -> None:
    logits = blurred()
    assert torch.equal(refined(logits, two_halves(), patch=(8, 8)).argmax(0), logits.argmax(0))


def test_the_classes_may_stand_in_any_order_and_the_image_may_be_mirrored() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 20, 26, generator=generator)
    image = np.random.default_rng(0).integers(0, 256, (20, 26, 3), np.uint8)
    found = refined(logits, image, patch=(8, 12))
    torch.testing.assert_close(refined(logits[[2, 0, 1]], image, patch=(8, 12)), found[[2, 0, 1]], atol=1e-4, rtol=1e-4)
    mirrored = refined(logits.flip(2), image[:, ::-1], patch=(8, 12))
    torch.testing.assert_close(mirrored.flip(2), found, atol=1e-4, rtol=1e-4)


def test_a_round_by_hand_in_a_line_of_pixels() -> None:
    """One row of one grey channel: messages are means of the neighbours' chances, weighed by distance and colour."""
    logits = torch.tensor([[0.3, -0.2, 0.5], [0.0, 0.1, -0.4]])[:, None, :].double()
    levels = np.array([[10, 30, 50]], np.uint8)[:, :, None]
    chances = logits.softmax(0)[:, 0]
    for _ in range(3):
        new = torch.zeros_like(chances)
        for here in range(3):
            weights = {
                there: np.exp(-((here - there) ** 2) / 18 - 3 * (float(levels[0, here, 0]) - float(levels[0, there, 0])) ** 2 / 800)
                for there in range(3)
                if there != here
            }
            message = sum(weight * chances[:, there] for there, weight in weights.items()) / (sum(weights.values()) + 1e-6)
            new[:, here] = (logits[:, 0, here] + 5 * message).softmax(0)
        chances = new
    torch.testing.assert_close(refined(logits, levels, patch=(8, 8))[:, 0], chances.log(), atol=1e-9, rtol=1e-9)


def test_a_single_pixel_stays_as_it_is() -> None:
    logits = torch.randn(2, 1, 1)
    assert torch.equal(refined(logits, np.zeros((1, 1, 3), np.uint8), patch=(16, 16)), logits)
