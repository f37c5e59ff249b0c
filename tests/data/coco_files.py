"""The images of `mask_images` as COCO files: instances with run lengths and polygons, and panoptic PNGs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.data.mask_images import CLASSES, drawn
from vitlab.data.dataset import IGNORED
from vitlab.data.readers.coco import run_lengths

CATEGORIES = [{"id": 3, "name": "disc"}, {"id": 17, "name": "square"}]


def write_images(root: Path, split: str, seeds: range) -> list[dict[str, Any]]:
    """split2017/n.png, and their records."""
    (root / f"{split}2017").mkdir(parents=True)
    records = []
    for seed in seeds:
        image, _ = drawn(seed)
        Image.fromarray(image).save(root / f"{split}2017" / f"{seed}.png")
        records.append({"id": 100 + seed, "file_name": f"{seed}.png", "height": image.shape[0], "width": image.shape[1]})
    return records


def write_instances(root: Path, *, splits: dict[str, range]) -> Path:
    """annotations/instances_SPLIT2017.json: discs as run lengths, squares as polygons, and the ignored border as a crowd."""
    (root / "annotations").mkdir(parents=True)
    for split, seeds in splits.items():
        found: list[dict[str, Any]] = []
        for seed in seeds:
            _, mask = drawn(seed)
            rows, columns = np.nonzero(mask == 2)
            left, top, right, bottom = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            square = [float(value) for value in (left, top, right, top, right, bottom, left, bottom)]
            for category, crowd, shape in (
                (3, 0, run_lengths(mask == 1)),
                (17, 0, [square]),
                (3, 1, run_lengths(mask == IGNORED)),
            ):
                found.append(
                    {
                        "id": len(found),
                        "image_id": 100 + seed,
                        "category_id": category,
                        "bbox": [0, 0, 1, 1],
                        "iscrowd": crowd,
                        "segmentation": shape,
                    }
                )
        data = {"images": write_images(root, split, seeds), "annotations": found, "categories": CATEGORIES}
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(data))
    return root


def write_panoptic(root: Path, *, splits: dict[str, range]) -> Path:
    """annotations/panoptic_SPLIT2017.json and its folder of PNGs; the ground is a segment, the border is none."""
    categories = [{"id": 1, "name": CLASSES[0]}, *CATEGORIES]
    numbers = {0: 70_000, 1: 513, 2: 9}  # of segments: all three channels of a PNG are used
    for split, seeds in splits.items():
        folder = root / "annotations" / f"panoptic_{split}2017"
        folder.mkdir(parents=True)
        found = []
        for seed in seeds:
            _, mask = drawn(seed)
            ids = np.select([mask == code for code in numbers], list(numbers.values()), 0)
            colours = np.stack([ids % 256, ids // 256 % 256, ids // 65_536], axis=2).astype(np.uint8)
            Image.fromarray(colours).save(folder / f"{seed}.png")
            segments = [{"id": numbers[code], "category_id": categories[code]["id"], "iscrowd": 0} for code in numbers]
            found.append({"image_id": 100 + seed, "file_name": f"{seed}.png", "segments_info": segments})
        data = {"images": write_images(root, split, seeds), "annotations": found, "categories": categories}
        (root / "annotations" / f"panoptic_{split}2017.json").write_text(json.dumps(data))
    return root
