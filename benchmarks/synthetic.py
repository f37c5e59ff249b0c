"""Images/s of synthetic data, against a plain Pillow polygon, in one interleaved run on one core.

    python benchmarks/synthetic.py [--pixels 32] [--rounds 7]

The polygon is the simplest comparison: one filled contour of two sinusoids with 200 corners (the fewest in Visual Atoms).
"batch" is `images` on 256 at a time, "single" is `image` one by one; the images are the same bits.
Each round times everything once, and the best round counts, since other load can only make a round slower.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitlab.config.data import SyntheticConfig, SyntheticKind
from vitlab.data.synthetic import image, images

Pixels = NDArray[np.uint8]

COUNT = 256
CLASSES = 100
CORNERS = 200


def polygon(pixels: int, index: int) -> Pixels:
    """One white contour on black, uint8 [H, W]."""
    angle = np.linspace(0, 2 * np.pi, CORNERS, endpoint=False)
    radius = pixels * (0.3 + 0.08 * np.sin((2 + index % 3) * angle) + 0.08 * np.sin((5 + index % 7) * angle))
    corners = np.stack([pixels / 2 + radius * np.cos(angle), pixels / 2 + radius * np.sin(angle)], axis=1)
    sheet = Image.new("L", (pixels, pixels))
    ImageDraw.Draw(sheet).polygon([(x, y) for x, y in corners.tolist()], fill=255)
    return np.asarray(sheet)


def polygons(pixels: int) -> list[Pixels]:
    """COUNT plain contours."""
    return [polygon(pixels, index) for index in range(COUNT)]


def one_by_one(config: SyntheticConfig) -> list[Pixels]:
    """COUNT images, each by a call of its own."""
    return [image(config, index % CLASSES, index // CLASSES) for index in range(COUNT)]


def jobs(pixels: int) -> dict[str, Callable[[], object]]:
    """What is timed, each drawing COUNT images."""
    index = np.arange(COUNT)
    label_B, number_B = index % CLASSES, index // CLASSES
    table: dict[str, Callable[[], object]] = {"Pillow polygon": partial(polygons, pixels)}
    colours: tuple[tuple[str, Literal[1, 3]], ...] = (("grey", 1), ("colour", 3))
    for kind in get_args(SyntheticKind):
        for colour, channels in colours:
            config = SyntheticConfig(kind=kind, classes=CLASSES, image_size=(pixels, pixels), channels=channels)
            table[f"{kind} {colour} batch"] = partial(images, config, label_B, number_B)
            table[f"{kind} {colour} single"] = partial(one_by_one, config)
    return table


def main() -> None:
    """Time everything and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pixels", type=int, default=32, help="side of the images")
    parser.add_argument("--rounds", type=int, default=7, help="how often everything is timed")
    arguments = parser.parse_args()
    table = jobs(arguments.pixels)
    for job in table.values():
        job()  # classes are worked out once
    rates: dict[str, list[float]] = {name: [] for name in table}
    for _ in range(arguments.rounds):
        for name, job in table.items():
            start = time.perf_counter()
            job()
            rates[name].append(COUNT / (time.perf_counter() - start))
    plain = rates["Pillow polygon"]
    print(f"{arguments.pixels} px, {arguments.rounds} rounds of {COUNT} images, {CLASSES} classes, one core")
    print(f"{'':26}{'images/s':>12}{'x polygon':>12}")
    for name, found in rates.items():
        print(f"{name:26}{max(found):12,.0f}{max(found) / max(plain):12.2f}")


if __name__ == "__main__":
    main()
