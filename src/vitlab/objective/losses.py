"""Losses: the paper's softmax and sigmoid cross-entropies, and distillation.

Axes: B batch, C classes. Every function takes logits (B, C) and returns one loss per image, (B,), so that a batch can be split into
micro-batches of any size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
