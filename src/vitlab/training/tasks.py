"""Training tasks: classify images, learn from a teacher too, predict masked patches, segment, detect; and mixup and CutMix.

A task turns a batch of uint8 images and targets (labels, masks or boxes) into one loss per image, and evaluates. `prepare` makes
all random choices, from the step's own generator, before the batch is split into micro-batches. The complete evaluation of masks
and boxes, at each image's own size, is in `evaluation/segmentation.py` and `evaluation/detection.py`.
Axes: B batch, C classes, H W pixels, N patches or objects that the model gives, M boxes to find, X edges and class logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.config.data import Augment, Preprocess, named_classes
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.train import Distill, Masked, TrainConfig
from vitlab.config.vit import ViTConfig
from vitlab.data.batch import Batch
from vitlab.data.sampler import Share
from vitlab.data.transforms import grids_of, normalise
from vitlab.errors import DataError
from vitlab.evaluation.classification import Logits, collect_logits, headline
from vitlab.inference.backends import TorchBackend
from vitlab.inference.detections import best_objects
from vitlab.inference.engine import run_batches
from vitlab.inference.packed import plain_backend
from vitlab.models.grid_detector import cell_places, of_tokens
from vitlab.models.masked import MaskedViT, corruption, masked_loss, targets
from vitlab.models.vit import ViT
from vitlab.objective.losses import (
    dice_loss,
    grid_loss,
    hard_distillation,
    pixel_accuracy,
    pixel_cross_entropy,
    sigmoid_cross_entropy,
    soft_distillation,
    soft_targets,
    softmax_cross_entropy,
    token_loss,
)
from vitlab.objective.metrics import IGNORE, DetectionScores, WantedBoxes, mean_iou, pixel_confusion
from vitlab.training.distributed import World

_LEAST = 0.02  # score below which a found object is not evaluated
_EVALUATION_STREAM = 203  # an independent random stream of a run's seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A rank's part of a batch, ready for the model: uint8 images, and the task's targets, a row per image.

    `patch_size` is the one that this step drew, for a ViT that trains at several.
    """

    images_BHWC: Tensor
    targets: tuple[Tensor, ...]
    patch_size: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.images_BHWC)

    def to(self, device: torch.device) -> Inputs:
        """The same on a device."""
        targets = tuple(tensor.to(device) for tensor in self.targets)
        return replace(self, images_BHWC=self.images_BHWC.to(device), targets=targets)

    def split(self, size: int, *, parts: int | None = None) -> Iterator[tuple[int, Inputs]]:
        """Micro-batches of at most `size` rows, or so many equal `parts`, each with the number of its first row."""
        starts = range(0, len(self), size) if parts is None else [len(self) * part // parts for part in range(parts)]
        for start, end in pairwise([*starts, len(self)]):
            rows = slice(start, end)
            targets = tuple(tensor[rows] for tensor in self.targets)
            yield start, replace(self, images_BHWC=self.images_BHWC[rows], targets=targets)


class Task(Protocol):
    """What a model is trained to do."""

    def prepare(self, images_BHWC: Tensor, labels: Tensor, rng: np.random.Generator) -> Inputs:
        """Make every random choice of the batch: mixing, masking."""
        ...

    def loss(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Loss (B,), and whether the prediction is correct (B,), nan if the task has no correct class."""
        ...

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], world: World) -> dict[str, float]:
        """The metrics of the evaluation split, over the batches of all ranks; `model` is without DDP."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classify:
    """Classification by cross-entropy; with mixup, label smoothing, class weights and a teacher, as configured."""

    config: TrainConfig
    augment: Augment
    preprocess: Preprocess
    classes: int
    dtype: torch.dtype
    weight_C: Tensor | None = None
    teacher: nn.Module | None = None
    before: ViT | None = None  # the start checkpoint, if the run learns without forgetting
    teacher_preprocess: Preprocess | None = None

    def prepare(self, images_BHWC: Tensor, labels: Tensor, rng: np.random.Generator) -> Inputs:
        """Labels as soft targets, and mixup or CutMix if configured."""
        if labels.ndim == 1 and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise DataError(f"labels run from {int(labels.min())} to {int(labels.max())}, but the model has {self.classes} classes")
        targets_BC = soft_targets(labels, self.classes)
        images_BHWC, targets_BC = mix(images_BHWC, targets_BC, rng, self.augment)
        return Inputs(images_BHWC=images_BHWC, targets=(targets_BC,))

    def loss(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Cross-entropy with the labels, with a teacher the distillation loss, and the loss of learning without forgetting."""
        (targets_BC,) = inputs.targets
        images_BCHW = normalise(inputs.images_BHWC, self.preprocess, self.dtype)
        cross_entropy = sigmoid_cross_entropy if self.config.loss == "sigmoid" else softmax_cross_entropy
        weight_C = None if self.weight_C is None else self.weight_C.to(targets_BC.device)
        outputs = model(images_BCHW, *self._beside(inputs))
        logits_BC, beside = outputs if isinstance(outputs, tuple) else (outputs, outputs)
        loss_B = cross_entropy(logits_BC, targets_BC, smoothing=self.config.smoothing, weight_C=weight_C)
        if (distill := self.config.distill) is not None:
            loss_B = (1 - distill.weight) * loss_B + distill.weight * self._distillation(beside, inputs.images_BHWC, distill)
        if self.before is not None:
            loss_B = loss_B + self.config.lwf * self._forgotten(self.before, beside, images_BCHW)
        correct_B = (logits_BC.argmax(-1) == targets_BC.argmax(-1)).float()
        return loss_B, correct_B

    def _beside(self, inputs: Inputs) -> tuple[object, ...]:
        """What the model takes besides the images: the grid of each for a packed ViT, the patch size for a flexible one."""
        if self.preprocess.resize == "native":
            return (grids_of(inputs.images_BHWC.cpu().numpy()),)
        return () if inputs.patch_size is None else (inputs.patch_size,)

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], world: World) -> dict[str, float]:
        """Loss, top1 and top5; loss and mean_average_precision if an image may have several classes."""
        backend = plain_backend(model, self.preprocess, device=world.device)
        logits = collect_logits(run_batches(backend, batches))
        return {name: float(value) for name, value in headline(_joined(world.gather(logits))).items()}

    def _forgotten(self, before: ViT, features_BD: Tensor, images_BCHW: Tensor) -> Tensor:
        """How far the checkpoint's own head is from what it said of the images before training: 0 at the first step."""
        assert before.head is not None
        with torch.no_grad():
            before_BC = before(images_BCHW)
        return soft_distillation(before.head(features_BD), before_BC, temperature=1.0)

    def _distillation(self, student_BC: Tensor, images_BHWC: Tensor, distill: Distill) -> Tensor:
        assert self.teacher is not None
        with torch.no_grad():
            teacher_BC = self.teacher(normalise(images_BHWC, self.teacher_preprocess or self.preprocess, self.dtype))
        if distill.distill == "hard":
            return hard_distillation(student_BC, teacher_BC)
        return soft_distillation(student_BC, teacher_BC, temperature=distill.temperature)


def _joined(parts: list[Logits]) -> Logits:
    return Logits(
        logits_NC=np.concatenate([part.logits_NC for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        indices_N=np.concatenate([part.indices_N for part in parts]),
        failures=tuple(failure for part in parts for failure in part.failures),
    )


class BothHeads(nn.Module):
    """A distilled ViT that returns the logits of both heads in training: one learns from the labels, one from the teacher.

    In evaluation it returns what the ViT returns. Under FSDP it is this module, not the ViT inside, that gathers the weights.
    """

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images_BCHW: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        outputs: Tensor | tuple[Tensor, Tensor]
        outputs = self.vit.class_and_distill_logits(images_BCHW) if self.training else self.vit(images_BCHW)
        return outputs


class LogitsAndFeatures(nn.Module):
    """A ViT that in training also returns what its head sees, for learning without forgetting."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images_BCHW: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        z_BND = self.vit.encode_for_pool(images_BCHW)
        logits_BC = self.vit.logits_from(z_BND)
        return (logits_BC, self.vit.represent(self.vit.pool_tokens(z_BND))) if self.training else logits_BC


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictMasked:
    """Masked patch prediction (app. B.1.2): corrupt some patches and predict what they showed. Labels are not used.

    The corrupted patches are drawn for the batch of all ranks, and each takes its `share`: the same as in one process.
    """

    config: Masked
    preprocess: Preprocess
    patches: int
    step: tuple[int, int]
    dtype: torch.dtype
    batch_size: int
    seed: int = 0
    share: Share = Share()  # noqa: RUF009 (a frozen value)

    def prepare(self, images_BHWC: Tensor, labels: Tensor, rng: np.random.Generator) -> Inputs:
        """Choose the corrupted patches."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        masked, rows = self.config, len(images_BHWC)
        (first, last), total = self.share.rows(self.batch_size), self.batch_size
        if last - first != rows:  # the last batch of an evaluation is smaller
            first, last, total = rows * self.share.rank, rows * (self.share.rank + 1), rows * self.share.ranks
        drawn = corruption(
            total,
            self.patches,
            fraction=masked.fraction,
            masked=masked.masked,
            swapped=masked.swapped,
            generator=generator,
        )
        return Inputs(images_BHWC=images_BHWC, targets=tuple(tensor[first:last] for tensor in drawn))

    def loss(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The mean loss over each image's corrupted patches."""
        corrupted_BN, masked_BN, source_BN = inputs.targets
        predicted_BNV = model(normalise(inputs.images_BHWC, self.preprocess, self.dtype), corrupted_BN, masked_BN, source_BN)
        pixels_BCHW = inputs.images_BHWC.permute(0, 3, 1, 2).float() / 255
        loss_B = masked_loss(predicted_BNV, targets(pixels_BCHW, self.step, self.config.target), corrupted_BN, self.config.target)
        return loss_B, torch.full_like(loss_B, torch.nan)

    @torch.inference_mode()
    def evaluate(self, model: nn.Module, batches: Iterable[Batch], world: World) -> dict[str, float]:
        """The mean loss; the corrupted patches depend on the seed and the number of the batch."""
        loss, images = 0.0, 0
        for number, batch in enumerate(batches):
            rng = np.random.default_rng([self.seed, _EVALUATION_STREAM, number])
            inputs = self.prepare(torch.from_numpy(batch.images_BHWC), torch.from_numpy(batch.labels), rng).to(world.device)
            loss_B, _ = self.loss(model, inputs)
            loss, images = loss + float(loss_B.sum()), images + len(loss_B)
        totals = torch.tensor([loss, images], dtype=torch.float64, device=world.device if world.ranks > 1 else "cpu")
        summed = world.sum(totals)
        return {"loss": float(summed[0] / summed[1])}


def training_only_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights that only training needs, such as the mask token."""
    if not isinstance(model, MaskedViT):
        return {}
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("vit.")}


# --- segmentation -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A class for each pixel: cross-entropy over the pixels that count, and Dice beside it with the weight `train.dice`."""

    config: TrainConfig
    preprocess: Preprocess
    classes: int
    dtype: torch.dtype

    def prepare(self, images_BHWC: Tensor, labels: Tensor, rng: np.random.Generator) -> Inputs:
        """The masks as targets, checked: a class for each pixel, or IGNORE."""
        counted = labels[labels != IGNORE]
        if counted.numel() and int(counted.max()) >= self.classes:
            raise DataError(f"a mask has class {int(counted.max())}, but the model has {self.classes} classes")
        return Inputs(images_BHWC=images_BHWC, targets=(labels,))

    def loss(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The loss of each image, and the fraction of its pixels that are right."""
        (classes_BHW,) = inputs.targets
        drawn = () if inputs.patch_size is None else (inputs.patch_size,)
        logits_BCHW = model(normalise(inputs.images_BHWC, self.preprocess, self.dtype), *drawn)
        loss_B = pixel_cross_entropy(logits_BCHW, classes_BHW, smoothing=self.config.smoothing)
        if self.config.dice:
            loss_B = loss_B + self.config.dice * dice_loss(logits_BCHW, classes_BHW)
        return loss_B, pixel_accuracy(logits_BCHW, classes_BHW)

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], world: World) -> dict[str, float]:
        """Loss, mean IoU and pixel accuracy at the model's image size, over the images of all ranks that could be read."""
        backend = TorchBackend(model, self.preprocess, device=world.device)
        confusion_CC, loss, images = np.zeros((self.classes, self.classes), np.int64), 0.0, 0
        for batch, outputs in run_batches(backend, batches):
            if outputs is None:
                continue
            assert batch.masks_BHW is not None, "the loader of a segmentation run reads masks"
            confusion_CC += pixel_confusion(batch.masks_BHW, outputs.logits_BK.argmax(1).astype(np.uint8), self.classes)
            loss_B = pixel_cross_entropy(torch.from_numpy(outputs.logits_BK), torch.from_numpy(batch.masks_BHW))
            loss, images = loss + float(loss_B.sum()), images + len(batch)
        parts = world.gather((confusion_CC, loss, images))
        total_CC, count = sum(part[0] for part in parts), sum(part[2] for part in parts)
        if not count:
            raise DataError("no image of the evaluation split could be read", hint="run `vitlab data check` to list what is wrong")
        assert isinstance(total_CC, np.ndarray)
        return {
            "loss": sum(part[1] for part in parts) / count,
            "mean_iou": mean_iou(total_CC),
            "pixel_accuracy": float(np.diag(total_CC).sum() / max(int(total_CC.sum()), 1)),
        }


# --- detection ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Detect:
    """A class and a box for each object: the losses of a grid, or of tokens matched with objects."""

    model: GridDetectorConfig | ViTConfig
    preprocess: Preprocess
    dtype: torch.dtype

    def prepare(self, images_BHWC: Tensor, labels: Tensor, rng: np.random.Generator) -> Inputs:
        """The boxes as targets, (B, M, 6), checked."""
        classes = named_classes(self.model)
        if labels.numel() and int(labels[..., 0].max()) >= classes:
            raise DataError(f"a box has class {int(labels[..., 0].max())}, but the model has {classes} classes")
        return Inputs(images_BHWC=images_BHWC, targets=(labels,))

    def loss(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The loss of each image; there is no class of an image to be correct."""
        (boxes_BM6,) = inputs.targets
        objects_BNX = model(normalise(inputs.images_BHWC, self.preprocess, self.dtype))
        loss_B = self.loss_of(objects_BNX, boxes_BM6)
        return loss_B, torch.full_like(loss_B, torch.nan)

    def loss_of(self, objects_BNX: Tensor, boxes_BM6: Tensor) -> Tensor:
        """The loss (B,) of the objects that a model gives."""
        if not isinstance(self.model, GridDetectorConfig):
            return token_loss(objects_BNX[..., 4:], objects_BNX[..., :4], boxes_BM6)
        grid_1GJ = objects_BNX.new_zeros(1, 1, *self.model.cells, dtype=torch.float32)
        cell_2, centres_2GJ = cell_places(self.model, grid_1GJ, self.model.image_size)
        return grid_loss(objects_BNX, boxes_BM6, centres_2GJ.flatten(1).T, cell_2)

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], world: World) -> dict[str, float]:
        """Loss, AP and AP50 at the model's image size, over the images of all ranks that could be read."""
        backend = TorchBackend(model, self.preprocess, device=world.device)
        scores, loss = DetectionScores(named_classes(self.model)), 0.0
        for batch, outputs in run_batches(backend, batches):
            if outputs is None:
                continue
            assert batch.boxes_BM6 is not None, "the loader of a detection run moves boxes"
            objects_BNX = torch.from_numpy(outputs.logits_BK)
            loss += float(self.loss_of(objects_BNX, torch.from_numpy(batch.boxes_BM6)).sum())
            for objects_NX, boxes_M6 in zip(objects_BNX, batch.boxes_BM6, strict=True):
                found = best_objects(objects_NX, tokens=of_tokens(self.model), least=_LEAST)
                scores.add(found, wanted_boxes(boxes_M6))
        parts = world.gather((scores, loss))
        whole = DetectionScores(scores.classes)
        for part, _ in parts:
            whole.extend(part)
        if not whole.images:
            raise DataError("no image of the evaluation split could be read", hint="run `vitlab data check` to list what is wrong")
        precision = whole.of_size()
        return {"loss": sum(part[1] for part in parts) / whole.images, "ap": precision.ap, "ap50": precision.ap50}


def wanted_boxes(boxes_M6: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> WantedBoxes:
    """The boxes of one image of a batch, to be compared with what was found; areas are fractions of what the model sees."""
    real_M6 = boxes_M6[boxes_M6[:, 0] >= 0].astype(np.float64)
    corners_M4 = real_M6[:, 1:5]
    return WantedBoxes(
        corners_M4=corners_M4,
        codes_M=real_M6[:, 0].astype(np.int64),
        ignored_M=real_M6[:, 5] > 0,
        areas_M=(corners_M4[:, 2:] - corners_M4[:, :2]).prod(1),
    )


# --- mixup and CutMix: images uint8 or float; targets soft, the sum of each row is kept ---------------------------------------

Layout = Literal["BHWC", "BCHW"]
Mixed = tuple[Tensor, Tensor]


def mix(images: Tensor, targets_BC: Tensor, rng: np.random.Generator, config: Augment, *, layout: Layout = "BHWC") -> Mixed:
    """Apply mixup or CutMix as `config` says; if both are on, each batch takes one of them with equal probability."""
    either = config.mixup > 0 and config.cutmix > 0
    if rng.random() < 0.5 if either else config.mixup > 0:
        return mixup(images, targets_BC, rng, config.mixup)
    if config.cutmix:
        return cutmix(images, targets_BC, rng, config.cutmix, layout=layout)
    return images, targets_BC


def mixup(images: Tensor, targets_BC: Tensor, rng: np.random.Generator, alpha: float) -> Mixed:
    """Blend every image with its partner, with one weight from Beta(alpha, alpha) for the whole batch.

    The image itself has the larger weight, as in the official code; uint8 is rounded back to uint8.
    """
    _check_mixed(images, targets_BC, alpha)
    weight = rng.beta(alpha, alpha)
    weight = max(weight, 1 - weight)
    blended = _blend(images, partners(images), weight)
    return blended, _blend(targets_BC, partners(targets_BC), weight)


def cutmix(images: Tensor, targets_BC: Tensor, rng: np.random.Generator, alpha: float, *, layout: Layout = "BHWC") -> Mixed:
    """Paste one box, the same for the whole batch, from each image's partner; targets are weighted by area.

    The box has the image's aspect ratio and a fraction 1 - Beta(alpha, alpha) of its area, around a uniformly random centre,
    clipped at the border ("CutMix", Yun et al., 2019, eq. 2); the weight is that of the clipped box.
    """
    _check_mixed(images, targets_BC, alpha)
    height_axis, width_axis = layout.index("H"), layout.index("W")
    height, width = images.shape[height_axis], images.shape[width_axis]
    side = math.sqrt(1 - rng.beta(alpha, alpha))
    down, across = rng.random(2)
    top, bottom = _reach(int(down * height), int(height * side), height)
    left, right = _reach(int(across * width), int(width * side), width)
    mixed = images.clone()
    box = mixed.narrow(height_axis, top, bottom - top).narrow(width_axis, left, right - left)
    other = partners(images).narrow(height_axis, top, bottom - top).narrow(width_axis, left, right - left)
    box.copy_(other)
    weight = 1 - (bottom - top) * (right - left) / (height * width)
    return mixed, _blend(targets_BC, partners(targets_BC), weight)


def partners(rows: Tensor) -> Tensor:
    """The partner of each row: rows 0 and 1 are partners, 2 and 3, ...; a last odd row takes the row before it.

    So a rank with an even number of rows mixes them as the whole batch would.
    """
    other_B = torch.arange(len(rows), device=rows.device) ^ 1
    return rows[torch.where(other_B < len(rows), other_B, max(len(rows) - 2, 0))]


def _reach(centre: int, length: int, most: int) -> tuple[int, int]:
    return max(0, centre - length // 2), min(most, centre - length // 2 + length)


def _blend(mine: Tensor, other: Tensor, weight: float) -> Tensor:
    if mine.dtype == torch.uint8:
        return torch.lerp(other.float(), mine.float(), weight).round_().to(torch.uint8)
    return torch.lerp(other, mine, weight)


def _check_mixed(images: Tensor, targets_BC: Tensor, alpha: float) -> None:
    if images.ndim != 4 or targets_BC.ndim != 2 or len(images) != len(targets_BC):
        raise DataError(f"a batch {list(images.shape)} cannot be mixed with targets {list(targets_BC.shape)}")
    if not targets_BC.is_floating_point():
        raise DataError("mixing needs soft targets [batch, classes]", hint="make them with soft_targets")
    assert alpha > 0, "no mixing was asked for"
