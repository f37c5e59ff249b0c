"""Training tasks beside classification: segmentation and detection. The pixels or boxes a batch holds, their loss, and the metrics
of an evaluation during training.

What is drawn is in `inference/segmentation.py` and `inference/detections.py`, which `vitlab predict` and reports use; the complete
evaluation, at each image's own size, in `evaluation/segmentation.py` and `evaluation/detection.py`.
Axes: B batch, C classes, H W pixels; N objects that the model gives, M boxes to find, X edges and class logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.config.data import Preprocess, named_classes
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.run import RunConfig
from vitlab.config.train import TrainConfig
from vitlab.config.vit import ViTConfig
from vitlab.data.batch import Batch, Pipeline
from vitlab.data.dense import (
    evaluation_pipeline_with_boxes,
    evaluation_pipeline_with_masks,
    training_pipeline_with_boxes,
    training_pipeline_with_masks,
)
from vitlab.data.transforms import normalise
from vitlab.errors import DataError
from vitlab.inference.backends import TorchBackend
from vitlab.inference.detections import best_objects
from vitlab.inference.engine import run_batches
from vitlab.models.grid_detector import cell_places
from vitlab.models.objects import of_tokens
from vitlab.objective.losses import dice_loss, grid_loss, pixel_accuracy, pixel_cross_entropy, token_loss
from vitlab.objective.metrics import IGNORE, DetectionScores, WantedBoxes, mean_iou, pixel_confusion
from vitlab.training.distributed import World
from vitlab.training.tasks import Inputs

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


def training_pixels(run: RunConfig) -> Pipeline:
    """Images and masks for training."""
    channels, scale = run.model.channels, run.preprocess.pixel_scale
    return training_pipeline_with_masks(run.data.augment, channels=channels, limits=run.data.limits, scale=scale)


def evaluation_pixels(run: RunConfig) -> Pipeline:
    """Images and masks for evaluation at the model's image size."""
    return evaluation_pipeline_with_masks(run.preprocess, limits=run.data.limits)


# --- detection ----------------------------------------------------------------------------------------------------------------

_LEAST = 0.02  # score below which a found object is not evaluated


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


def training_boxes(run: RunConfig) -> Pipeline:
    """Images and boxes for training."""
    channels, scale = run.model.channels, run.preprocess.pixel_scale
    return training_pipeline_with_boxes(run.data.augment, channels=channels, limits=run.data.limits, scale=scale)


def evaluation_boxes(run: RunConfig) -> Pipeline:
    """Images and boxes for evaluation at the model's image size."""
    return evaluation_pipeline_with_boxes(run.preprocess, limits=run.data.limits)
