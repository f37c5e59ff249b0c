"""Losses of detectors: focal loss and GIoU on a grid (FCOS), Hungarian matching of tokens (DETR); and non-maximum suppression.

Each loss is that of one image, divided by its own objects: so the update does not depend on micro-batches and ranks.
Boxes are left, top, right, bottom as fractions of the image; those to find are (B, M, 6) as `vitlab.data.frame` describes them.

Axes: B batch, N cells of a grid, Q detection tokens, C classes, M boxes to find.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.io.optional import optional_import

NEAR = 1.5
"""Cells around the centre of an object, along each side, that learn to find it (centre sampling)."""

_BOX = 2.0  # weight of the GIoU on a grid
_NOTHING = 0.1  # weight of "no object" (DETR, app. A.4); the weights of L1 and GIoU are DETR's too
_L1, _GIOU = 5.0, 2.0


def centres_of(corners_4: Tensor) -> Tensor:
    """The centre across and down, width and height from left, top, right, bottom, along the last axis."""
    low_2, high_2 = corners_4[..., :2], corners_4[..., 2:]
    return torch.cat([(low_2 + high_2) / 2, high_2 - low_2], dim=-1)


def iou_and_giou(a_4: Tensor, b_4: Tensor) -> tuple[Tensor, Tensor]:
    """IoU, from 0 to 1, and generalised IoU (Rezatofighi et al. 2019), from -1 to 1, of boxes of broadcasting shapes (..., 4)."""
    shared = (torch.minimum(a_4[..., 2:], b_4[..., 2:]) - torch.maximum(a_4[..., :2], b_4[..., :2])).clamp(min=0).prod(-1)
    union = _area(a_4) + _area(b_4) - shared
    hull = (torch.maximum(a_4[..., 2:], b_4[..., 2:]) - torch.minimum(a_4[..., :2], b_4[..., :2])).clamp(min=0).prod(-1)
    iou = shared / union.clamp(min=1e-9)
    return iou, iou - (hull - union) / hull.clamp(min=1e-9)


def _area(corners_4: Tensor) -> Tensor:
    return (corners_4[..., 2:] - corners_4[..., :2]).clamp(min=0).prod(-1)


def assign_cells(centres_N2: Tensor, cell_2: Tensor, boxes_BM6: Tensor) -> tuple[Tensor, Tensor]:
    """Which object each cell is to find, (B, N), -1 for none; and whether it counts, (B, N): not so in an ignored box.

    A cell is for an object if its centre lies inside the box and within NEAR cells of the box's centre; the cell that the centre
    of a box lies in always is. If it is for several, it finds the smallest.
    """
    real_BM = boxes_BM6[..., 0] >= 0
    ignored_BM = real_BM & (boxes_BM6[..., 5] > 0)
    wanted_BM = real_BM & ~ignored_BM
    corners_BM4 = boxes_BM6[..., 1:5]
    middle_BM2 = (corners_BM4[..., :2] + corners_BM4[..., 2:]) / 2
    low_BNM2 = centres_N2[None, :, None] - corners_BM4[:, None, :, :2]
    high_BNM2 = corners_BM4[:, None, :, 2:] - centres_N2[None, :, None]
    inside_BNM = torch.minimum(low_BNM2, high_BNM2).amin(-1) > 0
    away_BNM2 = (centres_N2[None, :, None] - middle_BM2[:, None]).abs() / cell_2
    near_BNM = away_BNM2.amax(-1) < NEAR
    own_BNM = away_BNM2.amax(-1) <= 0.5
    for_BNM = ((inside_BNM & near_BNM) | own_BNM) & wanted_BM[:, None]
    area_BNM = torch.where(for_BNM, _area(corners_BM4)[:, None], torch.inf)
    least_BN, which_BN = area_BNM.min(-1)
    object_BN = torch.where(least_BN.isfinite(), which_BN, -1)
    hidden_BN = (inside_BNM & ignored_BM[:, None]).any(-1)
    return object_BN, (object_BN >= 0) | ~hidden_BN


def grid_loss(objects_BNX: Tensor, boxes_BM6: Tensor, centres_N2: Tensor, cell_2: Tensor) -> Tensor:
    """The loss (B,) of a grid detector's objects (B, N, 4 + C): quality focal loss of the classes, GIoU of the boxes.

    The quality focal loss (Li et al. 2020) is the focal loss with the IoU of the found box as the target of its class, so that
    scores say how good a box is.
    """
    found_BN4, logits_BNC = objects_BNX[..., :4].float(), objects_BNX[..., 4:].float()
    object_BN, counts_BN = assign_cells(centres_N2, cell_2, boxes_BM6)
    has_BN = object_BN >= 0
    own_BN6 = boxes_BM6.gather(1, object_BN.clamp(min=0)[..., None].expand(-1, -1, 6))
    iou_BN, giou_BN = iou_and_giou(found_BN4, own_BN6[..., 1:5])
    of_class_BNC = F.one_hot(own_BN6[..., 0].clamp(min=0).long(), logits_BNC.shape[-1])
    target_BNC = of_class_BNC * (iou_BN.detach() * has_BN)[..., None]
    off_BNC = (target_BNC - logits_BNC.sigmoid()).square()
    classes_BNC = off_BNC * F.binary_cross_entropy_with_logits(logits_BNC, target_BNC, reduction="none")
    objects_B = has_BN.sum(1).clamp(min=1)
    classes_B = (classes_BNC * counts_BN[..., None]).sum((1, 2)) / objects_B
    boxes_B = ((1 - giou_BN) * has_BN).sum(1) / objects_B
    return classes_B + _BOX * boxes_B


def match_tokens(logits_BQC: Tensor, corners_BQ4: Tensor, boxes_BM6: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each image, the tokens and the objects that belong together at the least total cost (Hungarian matching, DETR).

    The cost of a pair is 5 times the L1 distance of the boxes, minus the probability of the class, minus twice the GIoU.
    """
    assignment = optional_import("scipy.optimize", purpose="detection tokens in training").linear_sum_assignment
    matched = []
    with torch.no_grad():
        chance_BQC = logits_BQC.float().softmax(-1)
        for chance_QC, found_Q4, wanted_M6 in zip(chance_BQC, corners_BQ4.float(), boxes_BM6, strict=True):
            real = torch.nonzero((wanted_M6[:, 0] >= 0) & (wanted_M6[:, 5] == 0))[:, 0]
            corners_M4 = wanted_M6[real, 1:5]
            distance_QM = torch.cdist(centres_of(found_Q4), centres_of(corners_M4), p=1)
            _, giou_QM = iou_and_giou(found_Q4[:, None], corners_M4[None])
            cost_QM = _L1 * distance_QM - chance_QC[:, wanted_M6[real, 0].long()] - _GIOU * giou_QM
            rows, columns = assignment(np.nan_to_num(cost_QM.cpu().numpy(), nan=1e6, posinf=1e6, neginf=-1e6))
            token, place = (torch.as_tensor(found, device=real.device, dtype=torch.long) for found in (rows, columns))
            matched.append((token, real[place]))
    return matched


def token_loss(logits_BQC: Tensor, corners_BQ4: Tensor, boxes_BM6: Tensor) -> Tensor:
    """The loss (B,) of detection tokens (DETR, Carion et al. 2020): cross-entropy of the classes, L1 and GIoU of matched boxes.

    Tokens without an object learn the last class, "no object". L1 is that of centre, width and height.
    """
    nothing = logits_BQC.shape[-1] - 1
    losses = []
    for row, (token, thing) in enumerate(match_tokens(logits_BQC, corners_BQ4, boxes_BM6)):
        target_Q = torch.full(logits_BQC.shape[1:2], nothing, device=logits_BQC.device, dtype=torch.long)
        target_Q[token] = boxes_BM6[row, thing, 0].long()
        weight_Q = torch.where(target_Q == nothing, _NOTHING, 1.0)
        cross_Q = F.cross_entropy(logits_BQC[row].float(), target_Q, reduction="none")
        found_K4, wanted_K4 = corners_BQ4[row, token].float(), boxes_BM6[row, thing, 1:5]
        _, giou_K = iou_and_giou(found_K4, wanted_K4)
        boxes = _L1 * (centres_of(found_K4) - centres_of(wanted_K4)).abs().sum() + _GIOU * (1 - giou_K).sum()
        losses.append((cross_Q * weight_Q).sum() / weight_Q.sum() + boxes / max(len(token), 1))
    return torch.stack(losses)


def suppress(corners_N4: Tensor, scores_N: Tensor, codes_N: Tensor, *, overlap: float) -> Tensor:
    """Non-maximum suppression: the numbers of the boxes to keep, best first.

    A box is dropped if its IoU with a better box of its class that is kept is above `overlap`. Instead of one box after the other,
    all are compared at once with those that are still kept, until nothing changes: the same result (Zheng et al. 2020).
    """
    order_N = scores_N.argsort(descending=True, stable=True)
    corners_N4, codes_N = corners_N4[order_N], codes_N[order_N]
    iou_NN, _ = iou_and_giou(corners_N4[:, None], corners_N4[None])
    drops_NN = ((iou_NN > overlap) & (codes_N[:, None] == codes_N[None])).triu(1)  # row: the better box
    kept_N = torch.ones_like(codes_N, dtype=torch.bool)
    while not torch.equal(now_N := ~(drops_NN & kept_N[:, None]).any(0), kept_N):
        kept_N = now_N
    return order_N[kept_N]
