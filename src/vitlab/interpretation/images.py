"""Images as the model sees them, and as a person does.

Axes: B batch, H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.checkpoints import Checkpoint
from vitlab.config.data import DecodeLimits
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import DataError
from vitlab.inference.images import ImageLike, ImageReader, image_name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """Images by name: the pixels after resizing and cropping, and the same normalised, as the model takes them."""

    names: tuple[str, ...]
    pixels_BHWC: NDArray[np.uint8]
    images_BCHW: Tensor


def see(checkpoint: Checkpoint, images: Iterable[ImageLike]) -> Seen:
    """Images of any kind that `Predictor` takes, as the checkpoint's model sees them; DataError names one that cannot be read."""
    reader = ImageReader(EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits()))
    names, views = [], []
    for place, image in enumerate(images):
        names.append(image_name(image, place))
        views.append(reader(image, names[-1]))
    if not views:
        raise DataError("no image given")
    pixels_BHWC = np.stack(views)
    images_BCHW = normalise(torch.from_numpy(pixels_BHWC), checkpoint.preprocess)
    return Seen(names=tuple(names), pixels_BHWC=pixels_BHWC, images_BCHW=images_BCHW)


def spread(found: list[str], count: int) -> list[str]:
    """At most `count` of the paths, evenly spread: the first images of a folder may all be of one class."""
    if len(found) <= count:
        return found
    return [found[place * len(found) // count] for place in range(count)]
