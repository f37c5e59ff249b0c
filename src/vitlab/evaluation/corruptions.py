"""Fifteen common corruptions in five severities, after ImageNet-C (Hendrycks and Dietterich 2019), on the pixels a model sees.

The strengths are the paper's own at 224 pixels; lengths in pixels grow and shrink with the shorter side, so that a corruption
looks alike at every size. The pixels are not those of the published files: these were made by other libraries and then packed
as JPEG. Frost is grown here instead of cut out of photographs. Compare models with each other, not with published tables.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Feed
from vitlab.data.dataset import Sample
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import ConfigError, did_you_mean
from vitlab.evaluation import corruption_kinds as corrupt_blur
from vitlab.evaluation import corruption_kinds as corrupt_digital
from vitlab.evaluation import corruption_kinds as corrupt_noise
from vitlab.evaluation import corruption_kinds as corrupt_weather

Pixels = NDArray[np.uint8]
Corrupt = Callable[[Pixels, int, np.random.Generator], Pixels]
"""From an image, uint8 [H, W, C], a severity from 0 to 4 and randomness to another image of the same shape."""

CORRUPTIONS: dict[str, Corrupt] = {
    "gaussian-noise": corrupt_noise.gaussian_noise,
    "shot-noise": corrupt_noise.shot_noise,
    "impulse-noise": corrupt_noise.impulse_noise,
    "defocus-blur": corrupt_blur.defocus_blur,
    "glass-blur": corrupt_blur.glass_blur,
    "motion-blur": corrupt_blur.motion_blur,
    "zoom-blur": corrupt_blur.zoom_blur,
    "snow": corrupt_weather.snow,
    "frost": corrupt_weather.frost,
    "fog": corrupt_weather.fog,
    "brightness": corrupt_weather.brightness,
    "contrast": corrupt_digital.contrast,
    "elastic": corrupt_digital.elastic,
    "pixelate": corrupt_digital.pixelate,
    "jpeg": corrupt_digital.jpeg,
}
SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(image_HWC: Pixels, corruption: str, severity: int, rng: np.random.Generator) -> Pixels:
    """The image corrupted; `severity` is from 1 (hardly) to 5 (badly). The same `rng` gives the same pixels."""
    check_corruption(corruption, severity)
    return CORRUPTIONS[corruption](image_HWC, severity - 1, rng)


def check_corruption(corruption: str, severity: int) -> None:
    """Refuse a corruption or a severity that there is not."""
    if corruption not in CORRUPTIONS:
        hint = did_you_mean(corruption, list(CORRUPTIONS)) or f"there are {', '.join(CORRUPTIONS)}"
        raise ConfigError(f"no corruption is called {corruption!r}", hint=hint)
    if severity not in SEVERITIES:
        raise ConfigError(f"severity={severity} must be from 1 to 5")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptedTransform:
    """A loader's view: what the model would see, corrupted."""

    view: EvaluationTransform
    corruption: str
    severity: int

    def __post_init__(self) -> None:
        check_corruption(self.corruption, self.severity)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Pixels:
        """uint8 [H, W, C] of the model's size."""
        return corrupt(self.view(sample, rng), self.corruption, self.severity, rng)

    @property
    def seed(self) -> int:
        """The loader's seed: with it, randomness is a function of the image's index, the corruption and the severity."""
        return 1 + list(CORRUPTIONS).index(self.corruption) * len(SEVERITIES) + self.severity - 1

    @property
    def called(self) -> str:
        """`fog 3`"""
        return f"{self.corruption} {self.severity}"

    def feed(self) -> Feed:
        """As a loader wants it."""
        return Feed(view=self, shape=self.view.feed().shape)


def chosen_corruptions(words: Sequence[str]) -> tuple[str, ...]:
    """The corruptions of these names in the paper's order, `all` being all; refuses a name that there is not."""
    for word in words:
        if word != "all":
            check_corruption(word, 1)
    return tuple(name for name in CORRUPTIONS if "all" in words or name in words)
