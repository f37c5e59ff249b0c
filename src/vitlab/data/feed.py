"""What a training or evaluation loader feeds on, as picklable values.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitlab.config.augment import Augment
from vitlab.config.data import Preprocess
from vitlab.config.decode import DecodeLimits
from vitlab.data.batch import Feed, Pixels
from vitlab.data.decode import decode
from vitlab.data.source import Example
from vitlab.data.transform import training_view
from vitlab.data.view import EvaluationView, fit_channels


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """One augmented view of a picture."""

    augment: Augment
    channels: int
    limits: DecodeLimits

    def __call__(self, example: Example, rng: np.random.Generator) -> Pixels:
        content = example.content
        if not isinstance(content, bytes):
            content = fit_channels(content, self.channels, name=example.name)
        return training_view(content, self.augment, rng, name=example.name, limits=self.limits, channels=self.channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePicture:
    """All pixels of a picture, for who keeps decoded pictures."""

    channels: int
    limits: DecodeLimits

    def __call__(self, example: Example) -> Pixels:
        if isinstance(example.content, bytes):
            return decode(example.content, name=example.name, limits=self.limits, channels=self.channels)
        return fit_channels(example.content, self.channels, name=example.name)


def training_feed(augment: Augment, *, channels: int, limits: DecodeLimits) -> Feed:
    """What a training loader needs to know."""
    whole = WholePicture(channels=channels, limits=limits)
    view = TrainingView(augment=augment, channels=channels, limits=limits)
    return Feed(view=view, shape=(*augment.image_size, channels), decode=whole, settings=repr(whole))


def evaluation_feed(config: Preprocess, *, limits: DecodeLimits) -> Feed:
    """What a loader needs to know that looks at the same pictures again and again."""
    whole = WholePicture(channels=config.channels, limits=limits)
    view = EvaluationView(preprocess=config, limits=limits)
    return Feed(view=view, shape=(*config.image_size, config.channels), decode=whole, settings=repr(whole))
