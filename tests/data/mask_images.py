"""Synthetic images with masks: a bright disc (class `disc`, value 1) and a square (value 2) on a dark ground (value 0)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("ground", "disc", "square")


def drawn(seed: int, size: tuple[int, int] = (40, 48)) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An image and its mask; a border of the disc is 255, ignored."""
    rng = np.random.default_rng(seed)
    height, width = size
    rows, columns = np.mgrid[:height, :width]
    radius = int(rng.integers(6, 10))
    row, column = rng.integers(radius, height - radius), rng.integers(radius, width // 2)
    distance = np.hypot(rows - row, columns - column)
    classes = np.where(distance < radius, 1, 0).astype(np.uint8)
    top, left, side = int(rng.integers(0, height - 12)), int(rng.integers(width // 2, width - 12)), int(rng.integers(8, 12))
    classes[top : top + side, left : left + side] = 2
    colours = np.array([[40, 50, 60], [220, 60, 40], [50, 90, 230]], np.int64)
    image = np.clip(colours[classes] + rng.integers(-12, 13, (height, width, 3)), 0, 255).astype(np.uint8)
    classes[(distance >= radius) & (distance < radius + 1) & (classes == 0)] = 255
    return image, classes


def write_folder(root: Path, *, counts: dict[str, int], size: tuple[int, int] = (40, 48), palette: bool = False) -> Path:
    """images/<split>/n.png beside masks/<split>/n.png, and classes.txt."""
    seed = 0
    for split, count in counts.items():
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            image, mask = drawn(seed, size)
            seed += 1
            Image.fromarray(image).save(root / "images" / split / f"{number}.png")
            picture = Image.fromarray(mask)
            if palette:
                indexed = Image.new("P", picture.size)
                indexed.putdata(list(mask.ravel().tolist()))
                indexed.putpalette([value for level in range(256) for value in (level, 255 - level, level // 2)])
                picture = indexed
            picture.save(root / "masks" / split / f"{number}.png")
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return root
