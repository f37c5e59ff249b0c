"""Images per second of the training pipeline: decode + inception crop 224 + flip, uint8 batches out.

    python benchmarks/data.py [--data FOLDER_OR_ZIP] [--workers N] [--repeats N] [--images N] [--quality Q]

vitlab against torchvision v2 (on Pillow images, and on tensors) and timm's loader, where they are installed: the same files
from memory, the same torch DataLoader settings and number of workers, one process, repeats interleaved so that a busy
moment of the machine falls on all. Once on the images as they are and once enlarged to twice their size.
With --workers 0 seconds are those of this process's own CPU time, which other people's load touches least.
`--data` is a folder or zip of JPEG files; by default imagenet_val_1000.zip in $VITLAB_DATA, else in ../shared/data.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from vitlab.config.data import Augment, DecodeLimits
from vitlab.data.sampler import rng_of
from vitlab.data.transforms import training_transform

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))  # run as a script, its own folder is all that Python looks in

from benchmarks.peers import peer  # noqa: E402

BATCH = 64
SIZE = 224
AREA = (0.05, 1.0)


class Views(Dataset[tuple[Any, int]]):
    """vitlab's views of files held in memory."""

    def __init__(self, contents: list[bytes], limits: DecodeLimits) -> None:
        self.contents, self.limits = contents, limits
        self.config = Augment(image_size=(SIZE, SIZE), area=AREA)

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return training_transform(self.contents[index], self.config, rng_of(0, 0, index), limits=self.limits), 0


class Images(Dataset[tuple[Any, int]]):
    """The same files as Pillow images, through a peer's transform."""

    def __init__(self, contents: list[bytes], transform: Callable[[Image.Image], Any] | None = None) -> None:
        self.contents, self.transform = contents, transform

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(io.BytesIO(self.contents[index])) as image:
            rgb = image.convert("RGB")
        return (rgb if self.transform is None else self.transform(rgb)), 0


def loader(dataset: Dataset[tuple[Any, int]], workers: int) -> DataLoader[Any]:
    """torch's loader as both peers use it; its workers stay, so that starting them is not measured."""
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def contenders(contents: list[bytes], workers: int) -> dict[str, Iterable[Any]]:
    """Each pipeline by name, ours first."""
    found: dict[str, Iterable[Any]] = {
        "vitlab": loader(Views(contents, DecodeLimits()), workers),
        "vitlab, Pillow only": loader(Views(contents, DecodeLimits(jpeg_decoder="pillow")), workers),
    }
    try:
        v2 = peer("torchvision.transforms.v2")
    except ImportError:
        print("torchvision is not installed")
    else:
        crop, flip = v2.RandomResizedCrop(SIZE, scale=AREA, antialias=True), v2.RandomHorizontalFlip()
        on_pillow, on_tensor = v2.Compose([crop, flip, v2.PILToTensor()]), v2.Compose([v2.PILToTensor(), crop, flip])
        found["torchvision v2, Pillow"] = loader(Images(contents, on_pillow), workers)
        found["torchvision v2, tensor"] = loader(Images(contents, on_tensor), workers)
    try:
        timm_data = peer("timm.data")
    except ImportError:
        print("timm is not installed")
    else:
        prefetched = timm_data.create_loader(
            Images(contents), input_size=(3, SIZE, SIZE), batch_size=BATCH, is_training=True, scale=AREA, hflip=0.5,
            color_jitter=None, interpolation="bilinear", num_workers=workers, persistent_workers=workers > 0,
            use_prefetcher=True, device=torch.device("cpu"), pin_memory=False,
        )  # fmt: skip
        found["timm"] = prefetched.loader  # what its workers give: uint8, before the prefetcher makes floats of it
    return found


def images_per_second(batches: Iterable[Any], count: int, clock: Callable[[], float]) -> float:
    """One epoch, from the request of the first batch to the last one."""
    start = clock()
    seen = 0
    for images, _ in batches:
        assert images.dtype == torch.uint8
        seen += len(images)
    elapsed = clock() - start
    assert seen >= count - BATCH, f"{seen} of {count} images came out"  # timm drops the last, incomplete batch
    return seen / elapsed


def compare(title: str, contents: list[bytes], *, workers: int, repeats: int) -> None:
    """Print one line a contender: best and median images/s, and how ours compares with it."""
    runs = contenders(contents, workers)
    clock = time.perf_counter if workers else time.process_time
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for batches in runs.values():
        images_per_second(batches, len(contents), clock)  # starts the workers
    for _ in range(repeats):
        for name, batches in runs.items():
            speeds[name].append(images_per_second(batches, len(contents), clock))
    sizes = [len(content) for content in contents]
    print(f"\n{title}: {len(contents)} images of {np.mean(sizes) / 1000:.0f} kB, {workers} workers, {repeats} runs each")
    print(f"{'':24} {'best/s':>8} {'median/s':>9}   vitlab is")
    for name, speed in speeds.items():
        ratio = max(speeds["vitlab"]) / max(speed)
        middle = statistics.median(speeds["vitlab"]) / statistics.median(speed)
        print(f"{name:24} {max(speed):8.0f} {statistics.median(speed):9.0f}   {ratio:.2f}x (medians {middle:.2f}x)")
    peers = [name for name in speeds if not name.startswith("vitlab")]
    if peers:
        best = max(peers, key=lambda name: max(speeds[name]))
        print(f"ratio to the best peer ({best}): {max(speeds['vitlab']) / max(speeds[best]):.2f}")


def read(path: Path, count: int) -> list[bytes]:
    """The first JPEG files of a zip or folder, by name."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg"))
        return [file.read_bytes() for file in files[:count]]
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.lower().endswith((".jpg", ".jpeg")))
        return [archive.read(name) for name in names[:count]]


def enlarged(content: bytes, quality: int) -> bytes:
    """The image at twice its size, as a JPEG."""
    with Image.open(io.BytesIO(content)) as image:
        larger = image.convert("RGB").resize((2 * image.width, 2 * image.height), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    larger.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def main() -> None:
    """Both comparisons."""
    folder = Path(os.environ.get("VITLAB_DATA") or CHECKOUT.parent / "shared" / "data")
    parser = argparse.ArgumentParser(description="Images per second of the training pipeline, beside the peers'.")
    parser.add_argument("--data", type=Path, default=folder / "imagenet_val_1000.zip", help="folder or zip of JPEG files")
    parser.add_argument("--workers", type=int, default=2, help="processes of each loader; 0 is this one")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--quality", type=int, default=90, help="JPEG quality of the enlarged images")
    arguments = parser.parse_args()
    if not arguments.data.exists():
        raise SystemExit(f"error: no images at {arguments.data}\nhint: name a folder or zip of JPEG files with --data")
    torch.set_num_threads(1)
    contents = read(arguments.data, arguments.images)
    compare("as they are", contents, workers=arguments.workers, repeats=arguments.repeats)
    larger = [enlarged(content, arguments.quality) for content in contents]
    title = f"enlarged 2x, quality {arguments.quality}"
    compare(title, larger, workers=arguments.workers, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
