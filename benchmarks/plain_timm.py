"""What a user of timm writes to label a folder of images: a data set, a DataLoader, a loop.

    python benchmarks/plain_timm.py WEIGHTS FOLDER|IMAGE [--workers 2] [--batch 32]

WEIGHTS is a DeiT-Ti/16 under timm's names, .npz or .safetensors. Prints one line an image: its path and the number of its class.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs from anywhere
from benchmarks.peers import peer


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Files through timm's own transform."""

    def __init__(self, paths: list[Path], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), index


def main() -> None:
    """Label everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    timm = peer("timm")
    model = timm.create_model("deit_tiny_patch16_224").eval()
    if options.weights.suffix == ".npz":
        with np.load(options.weights) as arrays:
            state = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    else:
        from safetensors.torch import load_file

        state = load_file(options.weights)
    model.load_state_dict(state)
    transform = timm.data.create_transform((3, 224, 224), interpolation="bicubic", crop_pct=0.875)
    paths = sorted(options.images.rglob("*.[jJ]*")) if options.images.is_dir() else [options.images]
    workers = options.workers if len(paths) > 1 else 0
    loader = torch.utils.data.DataLoader(Images(paths, transform), batch_size=options.batch, num_workers=workers)
    with torch.inference_mode():
        for images, indices in loader:
            for index, label in zip(indices.tolist(), model(images).argmax(1).tolist(), strict=True):
                print(paths[index], label)


if __name__ == "__main__":
    main()
