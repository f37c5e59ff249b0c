"""How long the command line takes to answer: the median wall time of commands that need no torch.

    python benchmarks/startup.py [REPEATS]

The commands are interleaved, so a busy moment of the machine falls on all of them. Times are in milliseconds.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

VITLAB = str(Path(sys.executable).with_name("vitlab"))
COMMANDS: dict[str, list[str]] = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "vitlab --help": [VITLAB, "--help"],
    "vitlab describe --help": [VITLAB, "describe", "--help"],
    "vitlab describe ViT-B/16": [VITLAB, "describe", "ViT-B/16"],
    "python -c 'import torch'": [sys.executable, "-c", "import torch"],
}


def milliseconds(command: list[str]) -> float:
    """Wall time of one run, from start to exit."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    """Print one line a command: median, fastest, slowest."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        milliseconds(command)  # the first run reads the files from disk and writes the byte code
    for _ in range(repeats):
        for name, command in COMMANDS.items():
            times[name].append(milliseconds(command))
    print(f"{'command':28} {'median':>8} {'min':>8} {'max':>8}   ms, {repeats} runs each")
    for name, spent in times.items():
        print(f"{name:28} {statistics.median(spent):8.0f} {min(spent):8.0f} {max(spent):8.0f}")


if __name__ == "__main__":
    main()
