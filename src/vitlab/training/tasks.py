"""What a batch is asked: classify it, learn from a teacher, or predict its masked patches.

A task turns uint8 images and labels into one loss a image. All its randomness comes from the step's own generator.
Axes: B batch, C classes, H W pixels, N patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.config.data import Augment, Preprocess
from vitlab.config.train import Distill, Masked, TrainConfig
from vitlab.data.mix import mix
from vitlab.data.transforms import normalise
from vitlab.errors import DataError
from vitlab.models.masked import MaskedViT, corruption, masked_loss, targets
from vitlab.models.vit import ViT
from vitlab.objective.losses import hard_distillation, sigmoid_cross_entropy, soft_distillation, soft_targets, softmax_cross_entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A rank's share of a batch, ready for the model: images as uint8, and what is wanted of them, row by row."""

    images_BHWC: Tensor
    wanted: tuple[Tensor, ...]


class Task(Protocol):
    """One way of learning from images."""

    def prepare(self, images_BHWC: Tensor, labels: Tensor, rng: np.random.Generator) -> Work:
        """Everything random about the batch, done before it is cut into parts."""
        ...

    def loss(self, model: nn.Module, work: Work) -> tuple[Tensor, Tensor]:
        """Loss (B,) and whether the model was right (B,), nan where that is not a question."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classify:
    """Labels in, cross-entropy out; with mixing, label smoothing, class weights and a teacher as the config says."""

    config: TrainConfig
    augment: Augment
    preprocess: Preprocess
    classes: int
    dtype: torch.dtype
    weight_C: Tensor | None = None
    teacher: nn.Module | None = None
    teacher_preprocess: Preprocess | None = None

    def prepare(self, images_BHWC: Tensor, labels: Tensor, rng: np.random.Generator) -> Work:
        """Soft targets, mixed if the augmentation mixes."""
        if labels.ndim == 1 and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise DataError(f"labels run from {int(labels.min())} to {int(labels.max())}, and the model has {self.classes} classes")
        targets_BC = soft_targets(labels, self.classes)
        images_BHWC, targets_BC = mix(images_BHWC, targets_BC, rng, self.augment)
        return Work(images_BHWC=images_BHWC, wanted=(targets_BC,))

    def loss(self, model: nn.Module, work: Work) -> tuple[Tensor, Tensor]:
        """Cross-entropy with the labels, and the teacher's part of it."""
        (targets_BC,) = work.wanted
        images_BCHW = normalise(work.images_BHWC, self.preprocess, self.dtype)
        loss_of = sigmoid_cross_entropy if self.config.loss == "sigmoid" else softmax_cross_entropy
        weight_C = None if self.weight_C is None else self.weight_C.to(targets_BC.device)
        distill = self.config.distill
        if distill is None:
            logits_BC = model(images_BCHW)
            loss_B = loss_of(logits_BC, targets_BC, smoothing=self.config.smoothing, weight_C=weight_C)
        else:
            answer = model(images_BCHW)
            logits_BC, student_BC = answer if isinstance(answer, tuple) else (answer, answer)
            labelled_B = loss_of(logits_BC, targets_BC, smoothing=self.config.smoothing, weight_C=weight_C)
            taught_B = self._taught(student_BC, work.images_BHWC, distill)
            loss_B = (1 - distill.share) * labelled_B + distill.share * taught_B
        right_B = (logits_BC.argmax(-1) == targets_BC.argmax(-1)).float()
        return loss_B, right_B

    def _taught(self, student_BC: Tensor, images_BHWC: Tensor, distill: Distill) -> Tensor:
        assert self.teacher is not None
        with torch.no_grad():
            teacher_BC = self.teacher(normalise(images_BHWC, self.teacher_preprocess or self.preprocess, self.dtype))
        if distill.distill == "hard":
            return hard_distillation(student_BC, teacher_BC)
        return soft_distillation(student_BC, teacher_BC, temperature=distill.temperature)


class BothHeads(nn.Module):
    """A distilled ViT that answers with both heads in training: what the labels judge, and what the teacher judges.

    In evaluation it answers as the ViT does. Under FSDP it is this module, not the ViT inside, that gathers the weights.
    """

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images_BCHW: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        answer: Tensor | tuple[Tensor, Tensor]
        answer = self.vit.class_and_distill_logits(images_BCHW) if self.training else self.vit(images_BCHW)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictMasked:
    """Images in, the loss of their corrupted patches out (app. B.1.2); labels are not looked at.

    Which patches are corrupted is drawn for the rows of all `ranks`, of which these are those of `rank`: as one process would.
    """

    config: Masked
    preprocess: Preprocess
    patches: int
    step: tuple[int, int]
    dtype: torch.dtype
    rank: int = 0
    ranks: int = 1

    def prepare(self, images_BHWC: Tensor, labels: Tensor, rng: np.random.Generator) -> Work:
        """Which patches are corrupted and how."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        masked = self.config
        rows = len(images_BHWC)
        drawn = corruption(
            rows * self.ranks, self.patches, share=masked.share, masked=masked.masked, swapped=masked.swapped, generator=generator
        )
        own = slice(rows * self.rank, rows * (self.rank + 1))
        return Work(images_BHWC=images_BHWC, wanted=tuple(tensor[own] for tensor in drawn))

    def loss(self, model: nn.Module, work: Work) -> tuple[Tensor, Tensor]:
        """The mean loss of each image's corrupted patches."""
        corrupted_BN, masked_BN, source_BN = work.wanted
        predicted_BNV = model(normalise(work.images_BHWC, self.preprocess, self.dtype), corrupted_BN, masked_BN, source_BN)
        seen_BCHW = work.images_BHWC.permute(0, 3, 1, 2).float() / 255
        wanted = targets(seen_BCHW, self.step, self.config.target)
        loss_B = masked_loss(predicted_BNV, wanted, corrupted_BN, self.config.target)
        return loss_B, torch.full_like(loss_B, torch.nan)


def extra_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights that serve training alone."""
    if not isinstance(model, MaskedViT):
        return {}
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("vit.")}
