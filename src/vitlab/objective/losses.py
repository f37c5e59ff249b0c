"""Losses: of classification (the paper's cross-entropies, distillation), of segmentation (cross-entropy, Dice), of detection
(focal loss and GIoU on a grid, as FCOS; Hungarian matching of tokens, as DETR).

Every function returns one loss per image, (B,), divided by what that image has (its pixels, its objects): so a batch can be split
into micro-batches of any size and over ranks. Boxes are left, top, right, bottom as fractions of the image; those to find are
(B, M, 6) as `vitlab.data.batch` describes them.
Axes: B batch, C classes, H W pixels, N cells of a grid, Q detection tokens, M boxes to find.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.io.optional import optional_import
from vitlab.objective.metrics import IGNORE


def soft_targets(labels: Tensor, classes: int, *, smoothing: float = 0.0) -> Tensor:
    """Targets (B, C) as probabilities, from class numbers (B,) or from soft or multi-hot targets (B, C).

    `smoothing` moves that fraction of each target's mass evenly to all classes.
    """
    targets_BC = F.one_hot(labels, classes).to(torch.float32) if labels.ndim == 1 else labels.to(torch.float32)
    if smoothing == 0:
        return targets_BC
    return targets_BC * (1 - smoothing) + targets_BC.sum(-1, keepdim=True) * smoothing / classes


def softmax_cross_entropy(logits_BC: Tensor, labels: Tensor, *, smoothing: float = 0.0, weight_C: Tensor | None = None) -> Tensor:
    """Cross-entropy of one class per image, or of soft targets such as mixup's; `weight_C` weighs the classes."""
    targets_BC = soft_targets(labels, logits_BC.shape[-1], smoothing=smoothing)
    loss_B = -(targets_BC * logits_BC.float().log_softmax(-1)).sum(-1)
    return loss_B if weight_C is None else loss_B * (soft_targets(labels, logits_BC.shape[-1]) @ weight_C.float())


def sigmoid_cross_entropy(logits_BC: Tensor, labels: Tensor, *, smoothing: float = 0.0, weight_C: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of each class, summed over classes: the authors' pre-training loss, and that of multi-label images.

    `smoothing` moves each target by that fraction towards one half; `weight_C` weighs the classes.
    """
    targets_BC = soft_targets(labels, logits_BC.shape[-1])
    if smoothing:
        targets_BC = targets_BC * (1 - smoothing) + smoothing / 2
    each_BC = F.binary_cross_entropy_with_logits(logits_BC.float(), targets_BC, reduction="none")
    return (each_BC if weight_C is None else each_BC * weight_C.float()).sum(-1)


def soft_distillation(logits_BC: Tensor, teacher_BC: Tensor, *, temperature: float) -> Tensor:
    """KL divergence from the teacher's softened probabilities, times temperature squared so that gradients keep their size."""
    student_BC = (logits_BC.float() / temperature).log_softmax(-1)
    target_BC = (teacher_BC.float() / temperature).log_softmax(-1)
    return F.kl_div(student_BC, target_BC, log_target=True, reduction="none").sum(-1) * temperature**2


def hard_distillation(logits_BC: Tensor, teacher_BC: Tensor) -> Tensor:
    """Cross-entropy with the teacher's best class (Touvron et al. 2021)."""
    return F.cross_entropy(logits_BC.float(), teacher_BC.argmax(-1), reduction="none")


# --- segmentation: a pixel of class IGNORE counts for nothing -----------------------------------------------------------------


def pixel_cross_entropy(logits_BCHW: Tensor, classes_BHW: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy, the mean over each image's pixels that count, (B,); 0 for an image without such a pixel."""
    wanted_BHW = classes_BHW.long()
    each_BHW = F.cross_entropy(logits_BCHW.float(), wanted_BHW, ignore_index=IGNORE, reduction="none", label_smoothing=smoothing)
    counts_BHW = wanted_BHW != IGNORE
    return each_BHW.sum((1, 2)) / counts_BHW.sum((1, 2)).clamp(min=1)


def dice_loss(logits_BCHW: Tensor, classes_BHW: Tensor) -> Tensor:
    """1 - Dice, the mean over the classes that an image has, (B,); 0 for an image without a pixel that counts.

    The Dice of a class is 2 sum(p t) / (sum(p) + sum(t)), over pixels, of its probabilities p and its target t, 0 or 1 (Milletari
    et al. 2016, without squares).
    """
    classes = logits_BCHW.shape[1]
    counts_BHW = classes_BHW != IGNORE
    wanted_BCHW = F.one_hot(torch.where(counts_BHW, classes_BHW, 0).long(), classes).permute(0, 3, 1, 2) * counts_BHW[:, None]
    chance_BCHW = logits_BCHW.float().softmax(1) * counts_BHW[:, None]
    shared_BC, area_BC = (chance_BCHW * wanted_BCHW).sum((2, 3)), wanted_BCHW.sum((2, 3))
    dice_BC = 2 * shared_BC / (chance_BCHW.sum((2, 3)) + area_BC).clamp(min=1e-6)
    present_BC = area_BC > 0
    return ((1 - dice_BC) * present_BC).sum(1) / present_BC.sum(1).clamp(min=1)


def pixel_accuracy(logits_BCHW: Tensor, classes_BHW: Tensor) -> Tensor:
    """The fraction of each image's pixels that count whose best class is right, (B,); 1 for an image without such a pixel."""
    counts_BHW = classes_BHW != IGNORE
    right_BHW = (logits_BCHW.argmax(1) == classes_BHW) & counts_BHW
    total_B = counts_BHW.sum((1, 2))
    return torch.where(total_B > 0, right_BHW.sum((1, 2)) / total_B.clamp(min=1), 1.0)


# --- detection ----------------------------------------------------------------------------------------------------------------

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
