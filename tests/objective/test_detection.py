"""Losses of detectors and average precision, against definitions and simple cases."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from vitlab.objective.losses import assign_cells, grid_loss, iou_and_giou, match_tokens, token_loss
from vitlab.objective.metrics import DetectionScores, FoundBoxes, WantedBoxes, box_iou


def corners(count: int, seed: int) -> torch.Tensor:
    low, size = torch.rand(2, count, 2, generator=torch.Generator().manual_seed(seed))
    return torch.cat([low * 0.7, low * 0.7 + 0.05 + size * 0.25], dim=1)


def boxes(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([rows])


def cells(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    places = (torch.arange(side) + 0.5) / side
    down, across = torch.meshgrid(places, places, indexing="ij")
    return torch.stack([across.flatten(), down.flatten()], dim=1), torch.full((2,), 1 / side)


def test_iou_is_symmetric_and_one_for_equal_boxes_and_giou_falls_with_distance() -> None:
    a, b = corners(50, 1), corners(50, 2)
    assert torch.equal(iou_and_giou(a, b)[0], iou_and_giou(b, a)[0])
    same = iou_and_giou(a, a)
    torch.testing.assert_close(same[0], torch.ones(50))
    torch.testing.assert_close(same[1], torch.ones(50))
    assert bool((iou_and_giou(a, b)[1] <= iou_and_giou(a, b)[0] + 1e-6).all())
    near, far = torch.tensor([0.2, 0.0, 0.3, 0.1]), torch.tensor([0.8, 0.0, 0.9, 0.1])
    left = torch.tensor([0.0, 0.0, 0.1, 0.1])
    assert iou_and_giou(left, near)[0] == iou_and_giou(left, far)[0] == 0
    assert -1 < float(iou_and_giou(left, far)[1]) < float(iou_and_giou(left, near)[1]) < 0
    assert np.allclose(box_iou(a.double().numpy(), b.double().numpy()), iou_and_giou(a[:, None], b[None])[0], atol=1e-6)


def test_cells_near_the_centre_of_an_object_are_its_own_and_the_smallest_object_wins() -> None:
    centres, cell = cells(8)
    rows: list[list[float]] = [
        [0, 0.1, 0.1, 0.9, 0.9, 0],
        [1, 0.4, 0.4, 0.6, 0.6, 0],
        [2, 0.03, 0.03, 0.05, 0.05, 0],
        [-1, 0, 0, 0, 0, 0],
    ]
    which, counts = assign_cells(centres, cell, boxes(rows))
    grid = which[0].view(8, 8)
    assert grid[3:5, 3:5].eq(1).all()  # inside the smaller of two
    assert grid[0, 0] == 2  # no cell's centre is inside this one: the cell it lies in takes it
    assert int((grid >= 0).sum()) == 5
    assert bool(counts.all())
    hidden, counts = assign_cells(centres, cell, boxes([[0, 0.5, 0.5, 1.0, 1.0, 1]]))
    assert bool((hidden < 0).all())
    assert not counts[0].view(8, 8)[4:, 4:].any()
    assert int(counts.sum()) == 48


def perfect(rows: list[list[float]], side: int, classes: int) -> torch.Tensor:
    """The objects of a grid that finds exactly these boxes."""
    centres, cell = cells(side)
    which, _ = assign_cells(centres, cell, boxes(rows))
    objects = torch.full((1, side * side, 4 + classes), -12.0)
    objects[..., :4] = torch.tensor([0.4, 0.4, 0.6, 0.6])
    for number, thing in enumerate(which[0].tolist()):
        if thing >= 0:
            objects[0, number, :4] = torch.tensor(rows[thing][1:5])
            objects[0, number, 4 + int(rows[thing][0])] = 12.0
    return objects


def test_the_loss_of_a_grid_is_nothing_for_what_is_right_and_grows_with_each_error() -> None:
    rows = [[1, 0.2, 0.3, 0.6, 0.8, 0.0], [0, 0.7, 0.1, 0.9, 0.2, 0.0]]
    centres, cell = cells(8)
    right = perfect(rows, 8, 2)
    assert float(grid_loss(right, boxes(rows), centres, cell)) < 1e-4
    shifted, doubted, imagined = right.clone(), right.clone(), right.clone()
    shifted[..., :4] += 0.05
    doubted[..., 4:] = doubted[..., 4:].clamp(max=-2)
    imagined[0, -1, 4] = 3.0
    for wrong in (shifted, doubted, imagined):
        assert float(grid_loss(wrong, boxes(rows), centres, cell)) > 0.05
    hidden = [*rows, [0, 0.9, 0.9, 1.0, 1.0, 1.0]]  # an ignored object in the last cell
    assert float(grid_loss(imagined, boxes(hidden), centres, cell)) < 1e-4


def test_an_image_without_objects_has_a_loss_with_finite_gradients() -> None:
    centres, cell = cells(4)
    objects = torch.randn(1, 16, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = grid_loss(objects, boxes([[-1, 0, 0, 0, 0, 0]]), centres, cell)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert objects.grad is not None
    assert bool(objects.grad.isfinite().all())
    assert bool(objects.grad[..., 4:].any())


def test_matching_has_the_least_cost_of_all_ways_to_match() -> None:
    pytest.importorskip("scipy")
    logits, found = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(1)), corners(5, 3)[None]
    wanted = torch.cat([torch.tensor([[0.0], [2.0], [1.0]]), corners(3, 4), torch.zeros(3, 1)], dim=1)
    ((tokens, things),) = match_tokens(logits, found, wanted[None])

    def cost(token: int, thing: int) -> float:
        a, b = found[0, token], wanted[thing, 1:5]
        middle = ((a[:2] + a[2:]) / 2 - (b[:2] + b[2:]) / 2).abs().sum() + ((a[2:] - a[:2]) - (b[2:] - b[:2])).abs().sum()
        chance = logits[0, token].softmax(-1)[int(wanted[thing, 0])]
        return float(5 * middle - chance - 2 * iou_and_giou(a, b)[1])

    own = sum(cost(token, thing) for token, thing in zip(tokens.tolist(), things.tolist(), strict=True))
    least = min(sum(cost(token, thing) for thing, token in enumerate(chosen)) for chosen in itertools.permutations(range(5), 3))
    assert own == pytest.approx(least, abs=1e-5)


def test_the_loss_of_tokens_does_not_depend_on_their_order_and_is_nothing_for_what_is_right() -> None:
    pytest.importorskip("scipy")
    rows = torch.tensor([[[1, 0.2, 0.3, 0.6, 0.8, 0.0], [0, 0.7, 0.1, 0.9, 0.2, 0.0], [-1, 0, 0, 0, 0, 0]]])
    found = torch.cat([corners(2, 5)[None], rows[:, :2, 1:5]], dim=1)
    logits = torch.full((1, 4, 3), -15.0)
    for token, code in enumerate((2, 2, 1, 0)):
        logits[0, token, code] = 15.0
    assert float(token_loss(logits, found, rows)) < 1e-4
    noisy = logits + torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(2)) * 10
    moved = found + 0.03
    order = torch.tensor([3, 0, 2, 1])
    torch.testing.assert_close(token_loss(noisy, moved, rows), token_loss(noisy[:, order], moved[:, order], rows))
    assert float(token_loss(noisy, moved, rows)) > 0.1
    nothing = torch.tensor([[[-1.0, 0, 0, 0, 0, 0]]])
    assert bool(token_loss(noisy, moved, nothing).isfinite().all())


def scored(wanted: Any, found: Any, scores: Any, *, ignored: Any = None) -> DetectionScores:
    made = DetectionScores(1)
    wanted, found = np.array(wanted, float).reshape(-1, 4), np.array(found, float).reshape(-1, 4)
    made.add(
        FoundBoxes(corners_D4=found, scores_D=np.array(scores, float), codes_D=np.zeros(len(found), np.int64)),
        WantedBoxes(
            corners_M4=wanted,
            codes_M=np.zeros(len(wanted), np.int64),
            ignored_M=np.zeros(len(wanted), np.bool_) if ignored is None else np.array(ignored),
            areas_M=(wanted[:, 2:] - wanted[:, :2]).prod(1),
        ),
    )
    return made


def test_average_precision_of_simple_cases() -> None:
    box, other, wide = [0, 0, 10, 10], [50, 50, 80, 80], [0, 0, 10, 13]
    assert scored([box], [box], [0.9]).of_size().ap == pytest.approx(1)
    assert np.isnan(scored([], [box], [0.9]).of_size().ap)
    assert scored([box], [], []).of_size().ap == 0
    half = scored([box, other], [box], [0.9]).of_size()
    assert half.ap50 == pytest.approx(51 / 101)  # right up to a recall of a half
    after = scored([box], [box, other], [0.9, 0.2]).of_size()
    before = scored([box], [box, other], [0.2, 0.9]).of_size()
    assert (after.ap50, before.ap50) == pytest.approx((1, 0.5))
    twice = scored([box], [box, box], [0.9, 0.8]).of_size()
    assert twice.ap50 == pytest.approx(1)  # the second is false, and comes after
    loose = scored([box], [wide], [0.9]).of_size()  # IoU 10 / 13: up to a threshold of 0.75
    assert (loose.ap50, loose.ap75, loose.ap) == pytest.approx((1, 1, 0.6))
    crowd = scored([box, other], [box, other, other], [0.9, 0.95, 0.99], ignored=[False, True]).of_size()
    assert crowd.ap == pytest.approx(1)  # what lies in a crowd is neither right nor wrong


def test_images_added_in_parts_give_what_they_give_together_and_weights_repeat_images() -> None:
    parts = [scored([[0, 0, 10, 10]], [[0, 0, 10, 8], [5, 5, 9, 9]], [0.5, 0.6]), scored([[1, 1, 5, 5]], [[1, 1, 5, 5]], [0.4])]
    whole = DetectionScores(1)
    for part in (*parts, parts[1]):
        whole.extend(part)
    weighted = DetectionScores(1)
    for part in parts:
        weighted.extend(part)
    assert (whole.images, weighted.images) == (3, 2)
    repeated = weighted.of_size(weights_I=np.array([1.0, 2.0]))
    np.testing.assert_allclose(repeated.by_class_CT, whole.of_size().by_class_CT, atol=1e-12)
