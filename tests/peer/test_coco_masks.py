"""Polygons and run lengths give the pixels that pycocotools gives them, and it reads what vitlab writes."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from vitlab.data.readers.coco import from_run_lengths, run_lengths, shape_inside


def size_of(rng: np.random.Generator) -> tuple[int, int]:
    height, width = rng.integers(1, 60, 2).tolist()
    return height, width


def inside(coco_mask: ModuleType, shape: Any, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """By pycocotools, as its class COCO does."""
    found = coco_mask.frPyObjects(shape, *size)
    return np.asarray(coco_mask.decode(coco_mask.merge(found) if isinstance(found, list) else found)).astype(bool)


@pytest.mark.parametrize("seed", range(10))
def test_polygons_have_the_pixels_of_pycocotools(coco_mask: ModuleType, seed: int) -> None:
    """Whole and broken coordinates, points that occur twice, corners outside of the image, several polygons an object."""
    rng = np.random.default_rng(seed)
    for number in range(100):
        size = size_of(rng)
        polygons = []
        for _ in range(int(rng.integers(1, 4))):
            points = rng.uniform(-0.2, 1.2, (int(rng.integers(3, 12)), 2)) * (size[1], size[0])
            points[0] = (size[1] / 2, size[0] / 2)
            if number % 3 == 0:
                points = np.round(points)
            if number % 5 == 0:
                points[2] = points[1]
            polygons.append(points.ravel().tolist())
        assert np.array_equal(shape_inside(polygons, size), inside(coco_mask, polygons, size))


@pytest.mark.parametrize("seed", range(10))
def test_run_lengths_have_the_pixels_of_pycocotools_and_the_other_way_round(coco_mask: ModuleType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for chance in (0.0, 0.02, 0.5, 0.98, 1.0):
        size = size_of(rng)
        mask = rng.random(size) < chance
        ours, theirs = run_lengths(mask), coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
        compressed = {"size": list(theirs["size"]), "counts": theirs["counts"].decode()}
        assert np.array_equal(from_run_lengths(json.loads(json.dumps(compressed))), mask)
        assert np.array_equal(inside(coco_mask, ours, size), mask)
        assert coco_mask.frPyObjects(ours, *size) == theirs
