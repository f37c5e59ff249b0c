"""Preprocessing made for a model: of the size and channels it takes, and else as its file says."""

from __future__ import annotations

from dataclasses import replace

from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig, ViTConfig


def takes_one_size(config: ModelConfig) -> bool:
    """Whether the model refuses pictures of another size than its `image_size`."""
    return isinstance(config, ViTConfig) and not config.dynamic_size


def feeding(preprocess: Preprocess, config: ModelConfig, *, resized: bool = False) -> tuple[Preprocess, tuple[str, ...]]:
    """Preprocessing that gives what the model takes, and notes of what had to be changed in it.

    `resized` asks for the model's image size also where the model would take others.
    """
    notes: list[str] = []
    if preprocess.image_size != config.image_size and (resized or takes_one_size(config)):
        preprocess = _resized(preprocess, config.image_size)
        size = f"{config.image_size[0]}x{config.image_size[1]}"
        crop = f", cut from a short side of {preprocess.resize_to}" if preprocess.resize == "short-side" else ""
        notes.append(f"preprocessing makes pictures of {size} pixels{crop}")
    if preprocess.channels != config.channels:
        preprocess = _rechannelled(preprocess, config.channels)
        notes.append(f"preprocessing normalises {config.channels} channels with mean {preprocess.mean}, std {preprocess.std}")
    return preprocess, tuple(notes)


def _resized(preprocess: Preprocess, image_size: tuple[int, int]) -> Preprocess:
    """The same share of the picture cut out, at another size."""
    if preprocess.resize != "short-side":
        return replace(preprocess, image_size=image_size)
    scaled = round(preprocess.resize_to * max(image_size) / max(preprocess.image_size))
    return replace(preprocess, image_size=image_size, resize_to=max(scaled, *image_size))


def _rechannelled(preprocess: Preprocess, channels: int) -> Preprocess:
    """Mean and std for the channels as `fit` makes them: fewer share the average of the old, more repeat the old in turn."""

    def spread(values: tuple[float, ...]) -> tuple[float, ...]:
        if channels < len(values):
            return (sum(values) / len(values),) * channels
        return tuple(values[channel % len(values)] for channel in range(channels))

    return replace(preprocess, mean=spread(preprocess.mean), std=spread(preprocess.std))
