"""Losses and metrics of segmentation: cross-entropy and Dice; IoU, pixel accuracy and boundary F.

A pixel of class IGNORE counts for nothing in any of them.
Axes: B batch, C classes, H W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

IGNORE = 255

Classes = NDArray[np.uint8]
Counts = NDArray[np.int64]


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


def pixel_confusion(wanted: Classes, predicted: Classes, classes: int) -> Counts:
    """Counts of pixels (right class, predicted class), of arrays of one shape."""
    kept = wanted != IGNORE
    codes = wanted[kept].astype(np.int64) * classes + predicted[kept]
    return np.bincount(codes, minlength=classes * classes).reshape(classes, classes)


def iou_by_class(confusion_CC: Counts) -> NDArray[np.float64]:
    """Intersection over union of each class: pixels that have it and are predicted to, over those of either; nan for none."""
    right_C = np.diag(confusion_CC).astype(np.float64)
    union_C = confusion_CC.sum(0) + confusion_CC.sum(1) - right_C
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(union_C > 0, right_C / np.maximum(union_C, 1), np.nan)


def mean_iou(confusion_CC: Counts) -> float:
    """The mean of `iou_by_class` over the classes that occur in the masks or in the predictions; nan if none does."""
    known = iou_by_class(confusion_CC)
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryCounts:
    """Pixels of boundaries, summed over images, one number a class: predicted ones, those of them near a right one, and so on.

    `hidden_C` are pixels of the right masks beside ignored ones: a boundary that cannot be compared.
    """

    predicted_C: Counts
    predicted_near_C: Counts
    right_C: Counts
    right_near_C: Counts
    hidden_C: Counts

    @classmethod
    def none(cls, classes: int) -> BoundaryCounts:
        """The counts of no image."""
        zero = np.zeros(classes, np.int64)
        return cls(predicted_C=zero, predicted_near_C=zero, right_C=zero, right_near_C=zero, hidden_C=zero)

    def __add__(self, other: BoundaryCounts) -> BoundaryCounts:
        return BoundaryCounts(
            predicted_C=self.predicted_C + other.predicted_C,
            predicted_near_C=self.predicted_near_C + other.predicted_near_C,
            right_C=self.right_C + other.right_C,
            right_near_C=self.right_near_C + other.right_near_C,
            hidden_C=self.hidden_C + other.hidden_C,
        )

    @property
    def f_by_class(self) -> NDArray[np.float64]:
        """The boundary F of each class; nan for a class whose right masks ignore most of its boundary, or have none."""
        any_C = self.right_C > self.hidden_C
        precision_C = self.predicted_near_C / np.maximum(self.predicted_C, 1)
        recall_C = self.right_near_C / np.maximum(self.right_C, 1)
        both_C = precision_C + recall_C
        return np.where(any_C, np.where(both_C > 0, 2 * precision_C * recall_C / np.where(both_C > 0, both_C, 1), 0.0), np.nan)

    @property
    def f(self) -> float:
        """The mean of `f_by_class` over the classes that have a boundary; nan if none has."""
        known = self.f_by_class
        known = known[np.isfinite(known)]
        return float(known.mean()) if len(known) else float("nan")


def boundary_counts(wanted_HW: Classes, predicted_HW: Classes, classes: int, *, tolerance: int | None = None) -> BoundaryCounts:
    """What the boundary F of one image is computed from.

    The boundary of a class are its pixels that have a pixel of another class above, below, left or right of them; the edge of the
    image is no boundary. A predicted boundary pixel is right if a boundary pixel of the right mask of the same class lies within
    `tolerance` pixels along both axes (a square), and the other way round: precision and recall, whose harmonic mean is F (the
    contour accuracy of DAVIS, Perazzi et al. 2016). `tolerance` is 0.75 % of the image's diagonal, at least 1, unless given.
    Ignored pixels have no boundary, and within `tolerance` of them nothing counts.
    """
    height, width = wanted_HW.shape
    reach = max(1, round(0.0075 * float(np.hypot(height, width)))) if tolerance is None else tolerance
    ignored_HW = wanted_HW == IGNORE
    counted_HW = ~_grown(ignored_HW, reach) if ignored_HW.any() else ~ignored_HW
    found = np.zeros((5, classes), np.int64)
    for code in range(classes):
        found[4, code] = _edges(wanted_HW == code, ignored_HW).sum()
        right_HW = _edges(wanted_HW == code, ~ignored_HW) & counted_HW
        made_HW = _edges((predicted_HW == code) & ~ignored_HW, ~ignored_HW) & counted_HW
        if not right_HW.any() and not made_HW.any():
            continue
        found[:4, code] = (
            made_HW.sum(),
            (made_HW & _grown(right_HW, reach)).sum(),
            right_HW.sum(),
            (right_HW & _grown(made_HW, reach)).sum(),
        )
    return BoundaryCounts(
        predicted_C=found[0], predicted_near_C=found[1], right_C=found[2], right_near_C=found[3], hidden_C=found[4]
    )


def _edges(inside_HW: NDArray[np.bool_], known_HW: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels of a region that touch a known pixel outside of it."""
    outside_HW = known_HW & ~inside_HW
    near_HW = np.zeros_like(inside_HW)
    near_HW[1:] |= outside_HW[:-1]
    near_HW[:-1] |= outside_HW[1:]
    near_HW[:, 1:] |= outside_HW[:, :-1]
    near_HW[:, :-1] |= outside_HW[:, 1:]
    return inside_HW & near_HW


def _grown(marked_HW: NDArray[np.bool_], reach: int) -> NDArray[np.bool_]:
    """The pixels within `reach` of a marked one along both axes."""
    grown_HW = marked_HW.copy()
    for shift in range(1, reach + 1):
        grown_HW[shift:] |= marked_HW[:-shift]
        grown_HW[:-shift] |= marked_HW[shift:]
    wide_HW = grown_HW.copy()
    for shift in range(1, reach + 1):
        wide_HW[:, shift:] |= grown_HW[:, :-shift]
        wide_HW[:, :-shift] |= grown_HW[:, shift:]
    return wide_HW
