"""How a file's model is fed where the file does not say: each format's own evaluation, made for any size and channels."""

from __future__ import annotations

from vitlab.config.data import Interpolation, Preprocess

SHARE = 0.875  # of the short side that a centre crop keeps: 224 of 256
UNUSED = Preprocess().resize_to  # where nothing is cropped
HALF = (0.5, 0.5, 0.5)  # pixels to [-1, 1]


def squashed(image_size: tuple[int, int], channels: int, *, interpolation: Interpolation) -> Preprocess:
    """Scaled to `image_size` whatever the aspect, pixels to [-1, 1]."""
    mean = per_channel(HALF, channels)
    return Preprocess(image_size=image_size, resize="squash", interpolation=interpolation, mean=mean, std=mean)


def cropped(
    image_size: tuple[int, int],
    channels: int,
    *,
    interpolation: Interpolation,
    mean: tuple[float, ...] = HALF,
    std: tuple[float, ...] = HALF,
) -> Preprocess:
    """The short side scaled to 8/7 of the longer side of `image_size`, then the centre."""
    return Preprocess(
        image_size=image_size,
        resize="short-side",
        resize_to=round(max(image_size) / SHARE),
        interpolation=interpolation,
        mean=per_channel(mean, channels),
        std=per_channel(std, channels),
    )


def per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """The values where they are as many as the channels, else 0.5 for each: nobody has published others."""
    return values if len(values) == channels else (0.5,) * channels


def described(preprocess: Preprocess) -> str:
    """In words, for a note: `short side to 256 bicubic, centre crop 224x224, mean (0.5, 0.5, 0.5), std (...)`."""
    size = f"{preprocess.image_size[0]}x{preprocess.image_size[1]}"
    how = {
        "short-side": f"short side to {preprocess.resize_to} {preprocess.interpolation}, centre crop {size}",
        "squash": f"squashed to {size} {preprocess.interpolation}",
        "pad": f"fitted into {size} {preprocess.interpolation}",
    }[preprocess.resize]
    if all(value == 0.5 for value in (*preprocess.mean, *preprocess.std)):
        return f"{how}, pixels to [-1, 1]"
    return f"{how}, mean {preprocess.mean}, std {preprocess.std}"


def lost(preprocess: Preprocess, labels: tuple[str, ...] | None, *, assumed: Preprocess, name: str) -> list[str]:
    """Notes on what a format without room for it loses: the labels, and preprocessing other than the one assumed."""
    notes = []
    if labels is not None:
        notes.append(f"{name} has no place for the {len(labels)} labels")
    if preprocess != assumed:
        notes.append(f"{name} has no place for the preprocessing ({described(preprocess)})")
    return notes
