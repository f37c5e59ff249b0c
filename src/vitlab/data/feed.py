"""What a loader feeds on, as picklable values: the training view and the evaluation view of a picture, and its whole decode.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitlab.config.augment import Augment
from vitlab.config.data import Preprocess
from vitlab.config.decode import DecodeLimits
from vitlab.data.batch import Feed, Pixels
from vitlab.data.decode import decode, in_channels
from vitlab.data.preprocess import preprocess
from vitlab.data.source import Example
from vitlab.data.transform import training_view


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """One augmented view of a picture."""

    augment: Augment
    channels: int
    limits: DecodeLimits

    def __call__(self, example: Example, rng: np.random.Generator) -> Pixels:
        content = example.content
        if not isinstance(content, bytes):
            content = matched(content, self.channels)
        return training_view(content, self.augment, rng, name=example.name, limits=self.limits, channels=self.channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationView:
    """A picture as the model is fed in evaluation; nothing about it is random."""

    preprocess: Preprocess
    limits: DecodeLimits

    def __call__(self, example: Example, rng: np.random.Generator) -> Pixels:
        return preprocess(decoded(example, self.preprocess.channels, self.limits), self.preprocess)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePicture:
    """All pixels of a picture, for who keeps decoded pictures."""

    channels: int
    limits: DecodeLimits

    def __call__(self, example: Example) -> Pixels:
        return decoded(example, self.channels, self.limits)


def training_feed(augment: Augment, *, channels: int, limits: DecodeLimits) -> Feed:
    """What a training loader needs to know."""
    whole = WholePicture(channels=channels, limits=limits)
    view = TrainingView(augment=augment, channels=channels, limits=limits)
    return Feed(view=view, shape=(*augment.image_size, channels), decode=whole, settings=repr(whole))


def evaluation_feed(config: Preprocess, *, limits: DecodeLimits) -> Feed:
    """What an evaluation loader needs to know."""
    whole = WholePicture(channels=config.channels, limits=limits)
    view = EvaluationView(preprocess=config, limits=limits)
    return Feed(view=view, shape=(*config.image_size, config.channels), decode=whole, settings=repr(whole))


def decoded(example: Example, channels: int, limits: DecodeLimits) -> Pixels:
    """A picture's pixels with so many channels, from an encoded file or from pixels."""
    if isinstance(example.content, bytes):
        return decode(example.content, name=example.name, limits=limits, channels=channels)
    return matched(example.content, channels)


def matched(image_HWC: Pixels, channels: int) -> Pixels:
    """Pixels with so many channels: grey becomes equal red, green and blue, and colour becomes grey; others stay as they are."""
    have = image_HWC.shape[2] if image_HWC.ndim == 3 else 0
    if have == 1 and channels in (3, 4):
        image_HWC = np.repeat(image_HWC, 3, axis=2)
        have = 3
    return in_channels(image_HWC, channels) if have == 3 and channels in (1, 4) else image_HWC
