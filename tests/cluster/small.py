"""Images and a model for the tests on a cluster."""

from __future__ import annotations

from pathlib import Path

from tests.inference import small


def images(folder: Path, count: int, *, broken: tuple[int, ...] = ()) -> Path:
    """A folder of class folders with so many photos; those at the places `broken` are not images."""
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True, exist_ok=True)
    for place in range(count):
        (path,) = small.photos(folder / ("cat" if place % 2 else "dog"), 1, start=place)
        if place in broken:
            path.write_bytes(b"this is not an image")
    return folder


def model(path: Path, *, seed: int = 0) -> Path:
    """A checkpoint with the classes of those images."""
    return small.saved(path, ("cat", "dog"), seed=seed)
