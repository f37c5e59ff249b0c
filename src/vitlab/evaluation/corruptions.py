"""Fifteen common corruptions in five severities, after ImageNet-C (Hendrycks and Dietterich 2019), on the model's input pixels.

The strengths are those of the paper at 224 pixels; lengths in pixels scale with the shorter side, so that a corruption looks the
same at every size. The pixels differ from the published files, which other libraries made and saved as JPEG; frost is generated
here instead of cut out of photographs. Compare models with each other, not with published tables.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Pipeline
from vitlab.data.dataset import RawSample
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import ConfigError, did_you_mean
from vitlab.evaluation import corruption_kinds as kinds

Pixels = NDArray[np.uint8]
Corrupt = Callable[[Pixels, int, np.random.Generator], Pixels]
"""An image, uint8 (H, W, C), a severity from 0 to 4 and a random generator -> an image of the same shape."""

CORRUPTIONS: dict[str, Corrupt] = {
    "gaussian-noise": kinds.gaussian_noise,
    "shot-noise": kinds.shot_noise,
    "impulse-noise": kinds.impulse_noise,
    "defocus-blur": kinds.defocus_blur,
    "glass-blur": kinds.glass_blur,
    "motion-blur": kinds.motion_blur,
    "zoom-blur": kinds.zoom_blur,
    "snow": kinds.snow,
    "frost": kinds.frost,
    "fog": kinds.fog,
    "brightness": kinds.brightness,
    "contrast": kinds.contrast,
    "elastic": kinds.elastic,
    "pixelate": kinds.pixelate,
    "jpeg": kinds.jpeg,
}
SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(image_HWC: Pixels, corruption: str, severity: int, rng: np.random.Generator) -> Pixels:
    """The corrupted image; `severity` is from 1 (weak) to 5 (strong). The same `rng` gives the same pixels."""
    check_corruption(corruption, severity)
    return CORRUPTIONS[corruption](image_HWC, severity - 1, rng)


def check_corruption(corruption: str, severity: int) -> None:
    """Refuse an unknown corruption or severity."""
    if corruption not in CORRUPTIONS:
        hint = did_you_mean(corruption, list(CORRUPTIONS)) or f"known corruptions: {', '.join(CORRUPTIONS)}"
        raise ConfigError(f"no corruption called {corruption!r}", hint=hint)
    if severity not in SEVERITIES:
        raise ConfigError(f"severity={severity} must be from 1 to 5")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptedTransform:
    """A loader's transform: the model's input, corrupted."""

    transform: EvaluationTransform
    corruption: str
    severity: int

    def __post_init__(self) -> None:
        check_corruption(self.corruption, self.severity)

    def __call__(self, sample: RawSample, rng: np.random.Generator) -> Pixels:
        """uint8 (H, W, C) of the model's input size."""
        return corrupt(self.transform(sample, rng), self.corruption, self.severity, rng)

    @property
    def seed(self) -> int:
        """The loader's seed: it makes randomness a function of the image's index, the corruption and the severity."""
        return 1 + list(CORRUPTIONS).index(self.corruption) * len(SEVERITIES) + self.severity - 1

    @property
    def description(self) -> str:
        """`fog 3`"""
        return f"{self.corruption} {self.severity}"

    def pipeline(self) -> Pipeline:
        """For the loader."""
        return Pipeline(transform=self, shape=self.transform.pipeline().shape)


def chosen_corruptions(words: Sequence[str]) -> tuple[str, ...]:
    """The corruptions of these names, in the paper's order; `all` means all. An unknown name is refused."""
    for word in words:
        if word != "all":
            check_corruption(word, 1)
    return tuple(name for name in CORRUPTIONS if "all" in words or name in words)
