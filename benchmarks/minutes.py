"""What a few minutes give: `vitlab finetune --minutes` beside other ways to spend the same time, on several datasets.

    python benchmarks/minutes.py                       every method, dataset and budget that is missing, then the table
    python benchmarks/minutes.py --datasets pets --methods planned,zero --minutes 1,4
    python benchmarks/minutes.py --table               the table of what was measured so far

Each run is one JSON line of `--out`; a run that is there already is not repeated, so an interrupted benchmark continues with the
same command. Accuracy is that on `val`, a tenth of the training images that is held out: by it the defaults are chosen. `--test`
trains on the same images and evaluates on the test split too, once, for the figures that are reported.

The time is that of the clock, from the call to the finished model; `load` is the machine's load before the run, which should be
near 0. A run uses all cores that it is given: `taskset -c 0` and `taskset -c 1` compare two methods side by side, on one core each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import vitlab
from vitlab.config.data import Split
from vitlab.config.train import HeadStart

_BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
_DATASETS = {"pets": "oxford_pets_128.zip", "cifar10": "cifar10_jpeg.npz", "digits": "digits"}
_KEY = ("dataset", "method", "minutes", "seed", "split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What is asked for besides the time; None leaves the choice to vitlab. `alone`: the fitted head without fine-tuning."""

    head: HeadStart | None = None
    alone: bool = False
    image_size: int | None = None
    resizing: Literal["on", "off"] | None = None
    lora: int | None = None


METHODS = {
    "planned": Method(),
    "head alone": Method(head="fitted", alone=True, image_size=224),
    "zero head": Method(head="zero"),
    "zero head, 128 px": Method(head="zero", image_size=128),
    "fitted head, 128 px": Method(head="fitted", image_size=128),
    "without resizing": Method(resizing="off"),
    "with resizing": Method(resizing="on"),
    "LoRA 8": Method(lora=8),
}


def measured(data: str, start: str, method: Method, *, minutes: float, seed: int, split: Split) -> dict[str, Any]:
    """One run, in a folder that is removed: accuracy in [0, 1], seconds by the clock and of CPU time, and what was chosen."""
    load, began, used = os.getloadavg()[0], time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = vitlab.finetune(
            data,
            start,
            out=Path(folder) / "run",
            minutes=None if method.alone else minutes,
            steps=0 if method.alone else None,
            head=method.head,
            image_size=method.image_size,
            progressive_resizing=method.resizing,
            lora=method.lora,
            seed=seed,
            quiet=True,
        )
        seconds, cpu = time.monotonic() - began, time.process_time() - used
        if run.reason != "finished":
            sys.exit(f"error: the run was stopped ({run.reason}), so nothing is recorded of it")
        assert run.config is not None
        known = split == "val" and not run.config.data.evaluate_images  # else the run evaluated some of the images
        accuracy = run.metrics["top1"] if known else vitlab.evaluate(run, data, split=split).top1
    train = run.config.train
    return {
        "accuracy": accuracy,
        "val": run.metrics["top1"],
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "load": round(load, 2),
        "image_size": run.config.model.image_size[0],
        "steps": run.step,
        "planned_steps": train.steps,
        "head_images": train.head_images,
        "batch_size": run.config.data.loader.batch_size,
        "precision": train.precision,
        "cores": len(os.sched_getaffinity(0)),
    }


def known(path: Path) -> list[dict[str, Any]]:
    """The lines of the file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Markdown: a row for each dataset and method, a column for each budget; means over seeds, the best of a column in bold."""
    found: dict[tuple[str, str], dict[float, list[dict[str, Any]]]] = {}
    for line in lines:
        found.setdefault((f"{line['dataset']} ({line['split']})", line["method"]), {}).setdefault(line["minutes"], []).append(line)
    budgets = sorted({minutes for cells in found.values() for minutes in cells})

    def mean(rows: list[dict[str, Any]]) -> float:
        return float(sum(row["accuracy"] for row in rows) / len(rows))

    best: dict[tuple[str, float], float] = {}
    for (dataset, _), cells in found.items():
        for minutes, rows in cells.items():
            best[dataset, minutes] = max(best.get((dataset, minutes), 0.0), mean(rows))
    head = ["dataset", "method", *(f"{minutes:g} min" for minutes in budgets)]
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for (dataset, method), cells in sorted(found.items()):
        shown = []
        for minutes in budgets:
            rows = cells.get(minutes, [])
            if not rows:
                shown.append("")
                continue
            value, mark = mean(rows), "**" if mean(rows) == best[dataset, minutes] else ""
            seconds = sum(row["seconds"] for row in rows) / len(rows)
            shown.append(f"{mark}{value:.1%}{mark} ({seconds:.0f} s, {rows[0]['image_size']} px)")
        text.append(f"| {dataset} | {method} | {' | '.join(shown)} |")
    return "\n".join(text)


def main() -> None:
    """Measure what is missing, one run after the other, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("VITLAB_DATA") or _BESIDE))
    parser.add_argument("--start", help="checkpoint (default: deit_tiny_patch16_224.npz of --data)")
    parser.add_argument("--datasets", default=",".join(_DATASETS), help="of pets, cifar10, digits; or paths of other data")
    parser.add_argument("--methods", default=",".join(name.replace(", ", "; ") for name in METHODS), help="with ; for a comma")
    parser.add_argument("--minutes", default="1,4,15")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--test", action="store_true", help="evaluate on the test split, for figures that are reported")
    parser.add_argument("--out", type=Path, default=Path("build/minutes.jsonl"))
    parser.add_argument("--table", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    start = asked.start or str(asked.data / "deit_tiny_patch16_224.npz")
    split: Split = "test" if asked.test else "val"
    done = {tuple(line[name] for name in _KEY) for line in known(asked.out)}
    for minutes in [] if asked.table else map(float, asked.minutes.split(",")):
        for dataset in asked.datasets.split(","):
            place = _DATASETS.get(dataset, dataset)
            data = str(asked.data / place) if (asked.data / place).exists() else place
            for name in (word.replace("; ", ", ") for word in asked.methods.split(",")):
                for seed in range(asked.seeds):
                    key = (dataset, name, minutes, seed, split)
                    if key in done:
                        continue
                    print(f"{dataset}, {name}, {minutes:g} minutes, seed {seed}", file=sys.stderr, flush=True)
                    row = measured(data, start, METHODS[name], minutes=minutes, seed=seed, split=split)
                    asked.out.parent.mkdir(parents=True, exist_ok=True)
                    with asked.out.open("a") as lines:
                        lines.write(json.dumps(dict(zip(_KEY, key, strict=True)) | row) + "\n")
    print(table(known(asked.out)))


if __name__ == "__main__":
    main()
