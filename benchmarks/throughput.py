"""From JPEG files to labels: `vitlab predict FOLDER` against a plain timm + DataLoader script, whole processes, in turn.

    PYTHON_WITH_PEERS benchmarks/throughput.py [--images 1000] [--repeats 3] [--data FOLDER]

The images are those of imagenet_val_1000.zip in the data folder ($VITLAB_DATA, else ../shared/data beside the checkout), unpacked
into a folder of files; without it, generated ones of the same size. Both have the same weights and must give the same labels (they
may differ for an image whose best two are equal to rounding). vitlab runs with backend=torch, and with auto where a measurement
was made before. Times are of the wall, start-up included; the least of the repeats counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def unpacked(data: Path, folder: Path, count: int) -> None:
    """JPEG files for everybody."""
    archive = data / "imagenet_val_1000.zip"
    folder.mkdir()
    if archive.is_file():
        with zipfile.ZipFile(archive) as inside:
            names = [name for name in inside.namelist() if name.lower().endswith((".jpg", ".jpeg"))]
            for place in range(count):
                content = inside.read(names[place % len(names)])
                (folder / f"{place:05}.jpg").write_bytes(content)
        return
    from PIL import Image

    rng = np.random.default_rng(0)
    for place in range(count):
        small = Image.fromarray(rng.integers(0, 256, (16, 21, 3), np.uint8))
        small.resize((341, 256), Image.Resampling.BICUBIC).save(folder / f"{place:05}.jpg", quality=90)


def weights(data: Path, folder: Path) -> Path:
    """The real DeiT-Ti where it is, else one of the same sizes with random weights."""
    real = data / "deit_tiny_patch16_224.npz"
    if real.is_file():
        return real
    from vitlab.checkpoints import Checkpoint, convert, save
    from vitlab.config import Preprocess, variant
    from vitlab.models import build

    config = variant("ViT-Ti/16", profile="timm")
    fed = Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    save(Checkpoint(model=build(config), config=config, preprocess=fed), folder / "own.safetensors")
    convert(folder / "own.safetensors", folder / "timm.safetensors", to="timm")
    return folder / "timm.safetensors"


def main() -> None:
    """Run everybody in turn and print images a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("VITLAB_DATA") or HERE.parent.parent / "shared" / "data"))
    options = parser.parse_args()
    vitlab = [sys.executable, "-m", "vitlab", "predict"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        unpacked(options.data, folder / "images", options.images)
        model, out = str(weights(options.data, folder)), folder / "out.jsonl"
        images, ending = str(folder / "images"), ["--top", "1", "--out", str(out), "--overwrite"]
        commands = {
            "timm, DataLoader with 2 workers": [sys.executable, str(HERE / "plain_timm.py"), model, images],
            "timm, no workers": [sys.executable, str(HERE / "plain_timm.py"), model, images, "--workers", "0"],
            "vitlab predict --backend torch": [*vitlab, model, images, "--backend", "torch", *ending],
            "vitlab predict --backend openvino": [*vitlab, model, images, "--backend", "openvino", *ending],
            "vitlab predict": [*vitlab, model, images, *ending],
            "vitlab predict --merge 8": [*vitlab, model, images, "--merge", "8", *ending],
        }
        least = dict.fromkeys(commands, float("inf"))
        labels: dict[str, dict[str, int]] = {}
        for _ in range(options.repeats):
            for name, command in commands.items():
                began = time.perf_counter()
                told = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
                least[name] = min(least[name], time.perf_counter() - began)
                if name.startswith("timm"):
                    labels[name] = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in told.splitlines()}
                else:
                    rows = [json.loads(line) for line in out.read_text().splitlines()]
                    labels[name] = {row["name"]: int(row["top"][0]["label"]) for row in rows}
    peer = min(spent for name, spent in least.items() if name.startswith("timm"))
    reference = labels["timm, DataLoader with 2 workers"]
    print(f"{'':36}{'seconds':>8} {'pics/s':>8} {'x timm':>7} {'same labels':>12}")
    for name, spent in least.items():
        same = sum(labels[name][path] == label for path, label in reference.items())
        print(f"{name:36}{spent:8.2f} {options.images / spent:8.1f} {peer / spent:7.2f} {same:7}/{len(reference)}")


if __name__ == "__main__":
    main()
