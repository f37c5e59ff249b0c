"""How long the command line takes to answer: the median wall time of commands that need no torch, and of one image's label.

    python benchmarks/startup.py [REPEATS]

The commands are interleaved, so a busy moment of the machine falls on all of them. Times are in milliseconds. Where the real DeiT
and images are in the data folder ($VITLAB_DATA, else ../shared/data beside the checkout), `vitlab predict` labels one image,
a process from start to end; where timm is installed too, benchmarks/plain_timm.py does the same with the same weights.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
VITLAB = str(Path(sys.executable).with_name("vitlab"))
COMMANDS: dict[str, list[str]] = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "vitlab --help": [VITLAB, "--help"],
    "vitlab describe --help": [VITLAB, "describe", "--help"],
    "vitlab describe ViT-B/16": [VITLAB, "describe", "ViT-B/16"],
    "python -c 'import torch'": [sys.executable, "-c", "import torch"],
}


def labelling(folder: Path) -> dict[str, list[str]]:
    """The commands that label one image, where there is one and weights."""
    data = Path(os.environ.get("VITLAB_DATA") or HERE.parent.parent / "shared" / "data")
    weights, archive, image = data / "deit_tiny_patch16_224.npz", data / "imagenet_val_1000.zip", folder / "image.jpg"
    if not (weights.is_file() and archive.is_file()):
        return {}
    with zipfile.ZipFile(archive) as inside:
        image.write_bytes(inside.read(next(name for name in inside.namelist() if name.lower().endswith((".jpg", ".jpeg")))))
    found = {"vitlab predict, one image": [VITLAB, "predict", str(weights), str(image)]}
    if find_spec("timm") is not None:
        found["timm, one image"] = [sys.executable, str(HERE / "plain_timm.py"), str(weights), str(image)]
    return found


def milliseconds(command: list[str]) -> float:
    """Wall time of one run, from start to exit."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    """Print one line a command: median, fastest, slowest."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as folder:
        commands = COMMANDS | labelling(Path(folder))
        times: dict[str, list[float]] = {name: [] for name in commands}
        for command in commands.values():
            milliseconds(command)  # the first run reads the files from disk and writes the byte code
        for _ in range(repeats):
            for name, command in commands.items():
                times[name].append(milliseconds(command))
    print(f"{'command':28} {'median':>8} {'min':>8} {'max':>8}   ms, {repeats} runs each")
    for name, spent in times.items():
        print(f"{name:28} {statistics.median(spent):8.0f} {min(spent):8.0f} {max(spent):8.0f}")


if __name__ == "__main__":
    main()
