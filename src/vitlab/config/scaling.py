"""How a recipe made for one set of images becomes a run on another: every rule of it, in one place.

Length      A run is so many epochs: steps = epochs x images / batch. Table 4 counts steps instead; they stand for any set of
            like size, and for each doubling or halving of the set, so far as it goes in whole doublings, they double or halve.
Batch       Powers of two. Pre-training takes the largest that leaves 32 batches an epoch, fine-tuning the largest that holds no
            image twice; neither takes more than the recipe's own, and pre-training takes no less than 8.
Rate        With another batch than the recipe's, the learning rate goes with the batch for SGD (Goyal et al. 2017) and with its
            square root for Adam and Muon, which divide a gradient by its own size (Malladi et al. 2022).
Warm-up     The same share of the steps as in the recipe, and never more steps than there.

Weight decay, dropout, clipping and averaging stay as they are.
"""

from __future__ import annotations

import math

from vitlab.config.train import OptimizerKind

BATCHES_AN_EPOCH = 32
LEAST_BATCH = 8


def steps_of(epochs: float, images: int, batch: int) -> int:
    """Updates in so many epochs, at least 1."""
    return max(1, round(epochs * images / batch))


def steps_like(steps: int, *, images: int, reference: int) -> int:
    """A set's steps for a set of another size: as they are for 0.71 to 1.41 times the images, twice for up to 2.83 times, ..."""
    return max(1, round(steps * 2.0 ** round(math.log2(images / reference))))


def pretraining_batch(images: int, *, most: int) -> int:
    """The largest power of two that leaves 32 batches an epoch, from 8 to `most`."""
    return max(LEAST_BATCH, min(most, power_of_two(images // BATCHES_AN_EPOCH)))


def finetuning_batch(images: int, *, most: int) -> int:
    """The largest power of two that is no more than the images, at most `most`."""
    return min(most, power_of_two(images))


def power_of_two(number: int) -> int:
    """The largest power of two that is no larger, and 1 for anything below."""
    return 1 << max(number, 1).bit_length() - 1


def rate_for(rate: float, *, batch: int, reference: int, kind: OptimizerKind) -> float:
    """The learning rate with `batch` images a step that was `rate` with `reference`."""
    ratio = batch / reference
    return rate * (ratio if kind == "sgd" else math.sqrt(ratio))


def warmup_of(steps: int, *, share: float, most: int) -> int:
    """That share of the steps, never more than `most`, and fewer than the steps."""
    return min(round(steps * share), most, steps - 1)


def every(steps: int, *, times: int) -> int:
    """How many steps apart something happens that many times in a run."""
    return max(1, steps // times)
