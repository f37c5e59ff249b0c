"""What a ViT costs as images grow: seconds and memory for 64 to 4,096 patches, one image at a time; memory must grow linearly.

    python benchmarks/tokens.py [--variant Ti/16] [--repeats 3] [--plot tokens.png]

Attention is quadratic in time and, by blocks, linear in memory. Each size runs in a process of its own, whose memory above that of
a run with the smallest image is line. The line fitted through memory against patches is printed with its largest deviation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SIDES = (8, 16, 24, 32, 48, 64)  # patches: 64 to 4,096
_ONE = """
import json, sys, time
from pathlib import Path
import numpy as np, torch
torch.set_num_threads(int(sys.argv[4]))
from vitlab.checkpoint import Checkpoint
from vitlab.config import Preprocess, variant
from vitlab.model import build
from vitlab.predict import Predictor
side, repeats = int(sys.argv[2]), int(sys.argv[3])
config = variant("ViT-" + sys.argv[1], image_size=side, profile="timm")
fed = Preprocess(image_size=(side, side), resize_to=side)
backend = Predictor(Checkpoint(model=build(config), config=config, preprocess=fed), backend=sys.argv[5]).backend
image = np.zeros((1, side, side, 3), np.uint8)
def peak():  # kB; getrusage's would be inherited from the process that started this one
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
before = peak()
backend.run(image)
least = float("inf")
for _ in range(repeats):
    began = time.perf_counter()
    backend.run(image)
    least = min(least, time.perf_counter() - began)
after = peak()
print(json.dumps({"seconds": least, "growth": 1024 * max(0, after - before)}))
"""


def main() -> None:
    """Measure each size, fit a line, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="Ti/16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    patch = int(options.variant.partition("/")[2])
    rows = []
    print(f"{'patches':>8} {'ms':>10} {'us a patch':>11} {'MB grown':>9}")
    for side in SIDES:
        command = [sys.executable, "-c", _ONE, options.variant, str(side * patch), str(options.repeats), str(options.threads)]
        line = subprocess.run([*command, options.backend], check=True, stdout=subprocess.PIPE, text=True).stdout
        row = {"patches": side * side, **json.loads(line)}
        rows.append(row)
        seconds, growth = row["seconds"], row["growth"]
        print(f"{side * side:8} {1e3 * seconds:10.1f} {1e6 * seconds / side**2:11.1f} {growth / 1e6:9.1f}", flush=True)
    patches = np.array([row["patches"] for row in rows], float)
    grown = np.array([row["growth"] for row in rows], float)
    slope, start = np.polyfit(patches, grown, 1)
    apart = np.abs(grown - (start + slope * patches)).max() / grown.max()
    print(f"memory: {start / 1e6:.1f} MB + {slope / 1e3:.1f} kB a patch; largest deviation {100 * apart:.1f} % of the largest")
    if options.json:
        options.json.write_text(json.dumps({"variant": options.variant, "when": time.strftime("%Y-%m-%d"), "rows": rows}, indent=2))
    if options.plot:
        import matplotlib.pyplot as plt

        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
        left.loglog(patches, [1e3 * row["seconds"] for row in rows], marker="o")
        left.set(xlabel="patches", ylabel="milliseconds an image")
        right.plot(patches, grown / 1e6, marker="o")
        right.plot(patches, (start + slope * patches) / 1e6, linestyle="--")
        right.set(xlabel="patches", ylabel="megabytes")
        figure.savefig(options.plot, dpi=120)


if __name__ == "__main__":
    main()
