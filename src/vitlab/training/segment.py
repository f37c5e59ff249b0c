"""The task of segmentation: which pixels a batch holds, their loss, and the metrics of an evaluation during training.

Its drawing is in `inference/segmentation.py`, which `vitlab predict` and reports use; its complete evaluation, at each image's own
size, in `evaluation/segmentation.py`.
Axes: B batch, C classes, H W pixels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.config.data import Preprocess
from vitlab.config.run import RunConfig
from vitlab.config.train import TrainConfig
from vitlab.data.batch import Batch, Pipeline
from vitlab.data.masks import evaluation_pipeline_with_masks, training_pipeline_with_masks
from vitlab.data.transforms import normalise
from vitlab.errors import DataError
from vitlab.inference.backends import TorchBackend
from vitlab.inference.engine import run_batches
from vitlab.objective.losses import dice_loss, pixel_accuracy, pixel_cross_entropy
from vitlab.objective.metrics import IGNORE, mean_iou, pixel_confusion
from vitlab.training.distributed import World
from vitlab.training.tasks import Inputs


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
