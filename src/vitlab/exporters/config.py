"""What a model is exported as."""

from __future__ import annotations

from dataclasses import dataclass

from vitlab.errors import ConfigError, at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """How a checkpoint becomes a file for another runtime. The number of images in a batch is always free.

    `inside` puts what comes before and after the model into the file: uint8 images (batch, height, width, channels) of the size
    the model is fed with go in, and probabilities come out; without it, normalised floats (batch, channels, height, width) go in
    and logits come out. `dynamic_size` leaves height and width free, where the model allows it. `int8` asks for weights and
    activations of the products in 8 bits; then `max_drop`, in points of 100, is what the file may lose on the calibration
    images, of which at most `calibration` are taken: accuracy where they have labels, agreement with the original where not.
    """

    inside: bool = False
    dynamic_size: bool = False
    int8: bool = False
    max_drop: float = 1.0
    calibration: int = 512

    def __post_init__(self) -> None:
        at_least("calibration", self.calibration, 8)
        if not 0 <= self.max_drop <= 100:
            raise ConfigError(f"max_drop={self.max_drop} must be from 0 to 100 points")
