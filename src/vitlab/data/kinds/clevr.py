"""CLEVR as it is published: pictures, and scenes in JSON that say what is where in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from vitlab.data.files.blocks import find_file
from vitlab.data.files.names import shown
from vitlab.data.kinds.files import FileRow, from_files
from vitlab.data.kinds.vtab_labels import CLEVR_COUNTS, CLEVR_DISTANCES, CLEVR_FEWEST, clevr_distance
from vitlab.data.listed import ListedSource
from vitlab.data.split import TRAIN, VAL
from vitlab.errors import DataError

ClevrTask = Literal["count", "distance"]


def open_clevr(folder: Path, task: ClevrTask) -> ListedSource:
    """The pictures with scenes, `train` and `val` (those of `test` are not published), in the scenes' order.

    The class is the number of objects, or the distance to the closest in VTAB's bins. `folder` is CLEVR_v1.0, or around it.
    """
    scenes = {part: find_scenes(folder, word) for word, part in (("train", TRAIN), ("val", VAL))}
    for part, name in ((TRAIN, "train"), (VAL, "val")):
        if scenes[part] is None:
            raise DataError(f"{shown(str(folder))} holds no scenes/CLEVR_{name}_scenes.json", hint="unpack CLEVR_v1.0.zip there")
    root = next(path for path in scenes.values() if path is not None).parent.parent
    rows = []
    for part, word in ((TRAIN, "train"), (VAL, "val")):
        path = scenes[part]
        assert path is not None
        for name, depths in read_scenes(path):
            code = len(depths) - CLEVR_FEWEST if task == "count" else clevr_distance(depths)
            rows.append(FileRow(path=f"images/{word}/{name}", code=code, part=part))
    labels = CLEVR_COUNTS if task == "count" else CLEVR_DISTANCES
    return from_files(root, rows, labels, where=str(folder))


def find_scenes(folder: Path, part: str) -> Path | None:
    """The scenes of a part, in the folder or in one that it was unpacked to."""
    name = f"scenes/CLEVR_{part}_scenes.json"
    return find_file(folder, [name, f"CLEVR_v1.0/{name}"])


def read_scenes(path: Path) -> Iterator[tuple[str, list[float]]]:
    """The picture of each scene and the depth of each of its objects."""
    try:
        for scene in json.loads(path.read_bytes())["scenes"]:
            depths = [float(thing["pixel_coords"][2]) for thing in scene["objects"]]
            if not depths:
                raise ValueError("a scene without an object")
            yield str(scene["image_filename"]), depths
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DataError(f"{shown(str(path))} holds no scenes of CLEVR") from error
