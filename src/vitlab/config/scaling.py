"""How a recipe made for one dataset becomes a run on another: all scaling rules in one place.

Length          A run has a number of epochs: steps = epochs x images / batch size. Table 4 gives steps instead, for datasets of a
                certain size; they double or halve with each whole doubling or halving of the dataset.
Batch size      A power of two. Pre-training uses the largest that leaves 32 batches an epoch, at least 8; fine-tuning the largest
                that holds no image twice. Neither exceeds the recipe's own.
Learning rate   If the batch size differs from the recipe's, the learning rate scales with it for SGD (Goyal et al. 2017), and with
                its square root for Adam and Muon, which normalise the gradient (Malladi et al. 2022).
Warm-up         The same fraction of the steps as in the recipe, and never more steps.
Image size      Progressive resizing trains on images of about three quarters of the side for 70 % of the steps.

Weight decay, dropout, clipping and averaging do not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from vitlab.config.model import ModelConfig
from vitlab.config.train import OptimizerKind, Resizing, scaled
from vitlab.config.vit import ViTConfig

BATCHES_PER_EPOCH = 32
LEAST_BATCH = 8
_SMALL, _SMALL_UNTIL = 0.75, 0.7


def small_first(model: ModelConfig) -> Resizing:
    """Progressive resizing for a model: small images in whole patches, then its own size; empty if only one size is possible."""
    if not isinstance(model, ViTConfig) or model.position.kind == "relative" or model.attention != "global":
        return ()
    (height, width), (down, across) = model.image_size, model.step
    scale = max(1, round(_SMALL * height / down)) * down / height
    small = scaled((height, width), scale)
    if scale >= 1 or small[0] % down or small[1] % across:
        return ()
    return ((0.0, scale), (_SMALL_UNTIL, 1.0))


def common_size(image_size: tuple[int, int], patches: Iterable[tuple[int, int]], *, stride: int = 1) -> tuple[int, int]:
    """The image size nearest to `image_size` that has whole patches of every size; `stride` is that of a stem before them."""
    down, across = (stride * math.lcm(*sides) for sides in zip(*patches, strict=True))
    return max(1, round(image_size[0] / down)) * down, max(1, round(image_size[1] / across)) * across


def steps_of(epochs: float, images: int, batch: int) -> int:
    """Updates in so many epochs, at least 1."""
    return max(1, round(epochs * images / batch))


def steps_like(steps: int, *, images: int, reference: int) -> int:
    """Steps for another number of images than `reference`: unchanged for 0.71 to 1.41 times as many, doubled up to 2.83, ..."""
    return max(1, round(steps * 2.0 ** round(math.log2(images / reference))))


def pretraining_batch(images: int, *, most: int) -> int:
    """The largest power of two that leaves 32 batches an epoch, from 8 to `most`."""
    return max(LEAST_BATCH, min(most, power_of_two(images // BATCHES_PER_EPOCH)))


def finetuning_batch(images: int, *, most: int) -> int:
    """The largest power of two up to the number of images, at most `most`."""
    return min(most, power_of_two(images))


def power_of_two(number: int) -> int:
    """The largest power of two that is not larger; 1 for numbers below 1."""
    return 1 << max(number, 1).bit_length() - 1


def lr_for(lr: float, *, batch: int, reference: int, kind: OptimizerKind) -> float:
    """The learning rate for `batch` images a step, if it is `lr` for `reference` images."""
    ratio = batch / reference
    return lr * (ratio if kind == "sgd" else math.sqrt(ratio))


def warmup_of(steps: int, *, fraction: float, most: int) -> int:
    """That fraction of the steps, at most `most`, and fewer than the steps."""
    return max(0, min(round(steps * fraction), most, steps - 1))


def every(steps: int, *, times: int, least: int = 1) -> int:
    """The interval in steps at which something happens that many times in a run, or fewer: `least` steps or the whole run apart."""
    return max(min(least, steps), steps // times)
