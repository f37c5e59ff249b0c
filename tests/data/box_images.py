"""Synthetic images with boxes: a bright disc and a square on a dark ground, listed in boxes.csv, COCO's JSON or VOC's XML."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from tests.data.mask_images import drawn

CLASSES = ("disc", "square")
Row = tuple[str, str, int, int, int, int]


def boxes_of(seed: int, size: tuple[int, int] = (40, 48)) -> list[tuple[str, int, int, int, int]]:
    """The class and the left, top, right and bottom of each shape that `drawn` draws."""
    _, classes = drawn(seed, size)
    found = []
    for code, name in enumerate(CLASSES, start=1):
        rows, columns = np.nonzero(classes == code)
        found.append((name, int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1))
    return found


def write_images(root: Path, counts: dict[str, int], folder: str = "") -> Iterator[tuple[str, Path, int]]:
    """Write the images; the split, path and seed of each."""
    seed = 0
    for split, count in counts.items():
        (root / folder / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            path = root / folder / split / f"{split}{number}.png"
            Image.fromarray(drawn(seed)[0]).save(path)
            yield split, path, seed
            seed += 1


def write_boxes(root: Path, *, counts: dict[str, int], kind: Literal["csv", "coco", "voc"] = "csv") -> Path:
    """Images and boxes in one of three layouts, with the same content."""
    if kind == "csv":
        with (root / "boxes.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "class", "x0", "y0", "x1", "y1"])
            for _, path, seed in write_images(root, counts):
                writer.writerows([path.relative_to(root).as_posix(), *box] for box in boxes_of(seed))
    elif kind == "coco":
        (root / "annotations").mkdir()
        found: dict[str, dict[str, list[dict[str, object]]]] = {}
        for split, path, seed in write_images(root, counts):
            data = found.setdefault(split, {"images": [], "annotations": []})
            data["images"].append({"id": seed, "file_name": path.name, "height": 40, "width": 48})
            for name, left, top, right, bottom in boxes_of(seed):
                box = [left, top, right - left, bottom - top]
                number = len(data["annotations"]) + 1
                data["annotations"].append({"id": number, "image_id": seed, "category_id": 7 + CLASSES.index(name), "bbox": box})
        categories = [{"id": 7 + code, "name": name} for code, name in enumerate(CLASSES)]
        for split, data in found.items():
            (root / "annotations" / f"instances_{split}.json").write_text(json.dumps({**data, "categories": categories}))
    else:
        for folder in ("Annotations", "ImageSets/Main"):
            (root / folder).mkdir(parents=True)
        lists: dict[str, list[str]] = {}
        for split, path, seed in write_images(root, counts):
            flat = root / "JPEGImages" / path.name
            flat.parent.mkdir(exist_ok=True)
            path.rename(flat)
            lists.setdefault(split, []).append(flat.stem)
            objects = "".join(
                f"<object><name>{name}</name><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>"
                f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
                for name, left, top, right, bottom in boxes_of(seed)
            )
            text = f"<annotation><size><width>48</width><height>40</height></size>{objects}</annotation>"
            (root / "Annotations" / f"{flat.stem}.xml").write_text(text)
        for split, stems in lists.items():
            (root / split).rmdir()
            (root / "ImageSets/Main" / f"{split}.txt").write_text("".join(f"{stem}\n" for stem in stems))
    return root
