"""The published files of VTAB's datasets in miniature."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.data.containers import as_folder


def sprites(path: Path, *, count: int = 40, most: int = 1, packed: bool = True) -> NDArray[np.uint8]:
    """A file as the authors publish it, with their pickled metadata; image i has orientation i, x = i % 32."""
    images = np.random.default_rng(0).integers(0, most + 1, (count, 64, 64)).astype(np.uint8)
    number = np.arange(count)
    latents = np.stack([0 * number, number % 3, number % 6, number % 40, number % 32, number // 2], axis=1).astype(np.int64)
    save = np.savez_compressed if packed else np.savez
    save(path, imgs=images, latents_classes=latents, latents_values=latents / 40, metadata=np.array({"author": "x"}, dtype=object))
    return images


def matrix(array: NDArray[np.generic]) -> bytes:
    word = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    lengths = [*array.shape, *[1] * (3 - array.ndim)]
    return struct.pack(f"<{2 + len(lengths)}i", word, array.ndim, *lengths) + array.tobytes()


def norb(folder: Path, *, count: int = 20, packed: bool = True) -> dict[str, NDArray[np.uint8]]:
    """Both parts; image i of a part has elevation i % 9 and azimuth number i % 18."""
    images = {}
    for part, instances, seed in (("training", "46789", 1), ("testing", "01235", 2)):
        images[part] = np.random.default_rng(seed).integers(0, 256, (count, 2, 6, 8)).astype(np.uint8)
        number = np.arange(count, dtype=np.int32)
        facts = np.stack([number % 5, number % 9, 2 * (number % 18), number % 6], axis=1).astype(np.int32)
        for kind, array in (("dat", images[part]), ("cat", number % 5), ("info", facts)):
            content = matrix(array.astype(array.dtype))
            name = f"smallnorb-5x{instances}x9x18x6x2x96x96-{part}-{kind}.mat"
            (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return images


def clevr(root: Path) -> None:
    """Four scenes a part, of 3, 4, 10 and 3 objects, the closest at 7, 8.2, 9.7 and 11."""
    for part in ("train", "val"):
        scenes = [
            {
                "image_filename": f"CLEVR_{part}_{number:06d}.png",
                "objects": [{"pixel_coords": [1, 2, depth + extra]} for extra in reversed(range(count))],
            }
            for number, (depth, count) in enumerate([(7.0, 3), (8.2, 4), (9.7, 10), (11.0, 3)])
        ]
        as_folder(root, {f"scenes/CLEVR_{part}_scenes.json": json.dumps({"info": {}, "scenes": scenes}).encode()})
        as_folder(root, {f"images/{part}/{scene['image_filename']}": f"{part} {scene}".encode() for scene in scenes})


def kitti_line(kind: str, ahead: float) -> str:
    return f"{kind} 0.00 0 -1.58 587.0 173.3 614.1 200.1 1.65 1.67 3.64 -0.65 1.71 {ahead} -1.59"


def kitti(root: Path, *, count: int = 30, drives: int = 0) -> None:
    as_folder(root / "annotations" / "training" / "label_2",
              {f"{number:06d}.txt": kitti_line("Car", 3.0 * number).encode() for number in range(count)})  # fmt: skip
    as_folder(root / "images" / "training" / "image_2", {f"{number:06d}.png": b"%d" % number for number in range(count)})
    if drives:
        # Image i is line order[i] (from 1) of the mapping.
        order = [(7 * number) % count + 1 for number in range(count)]
        lines = [f"2011_09_26 2011_09_26_drive_{line % drives:04d}_sync {line:010d}" for line in range(count)]
        files = {"train_rand.txt": ",".join(map(str, order)).encode(), "train_mapping.txt": "\n".join(lines).encode()}
        as_folder(root / "devkit" / "mapping", files)
