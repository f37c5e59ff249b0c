"""`evaluate` against `predict`: images/s of both on the same files, in one interleaved run.

    python benchmarks/evaluate.py [--model ViT-Ti/16] [--backend auto] [--images 256] [--rounds 5] [--threads 2]

Both read the same JPEG files in class folders, decode, preprocess and run the model. The model has random weights: speed does not
depend on them. Rounds take turns, and the least time of each counts. A ratio near 1 says that `evaluate` runs at `predict`'s
speed. With `--backend auto`, `auto` first measures which backend is fastest, as it does in a long run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitlab.checkpoints import Checkpoint
from vitlab.config import Preprocess, variant
from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.opening import open_dataset
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.inference import Predictor
from vitlab.inference.auto import AutoBackend
from vitlab.models import build

CLASSES = ("cat", "dog")
BATCH = 32


def write_images(folder: Path, count: int) -> list[Path]:
    """Smooth random JPEG files of photograph size, half of them in each class folder."""
    rng = np.random.default_rng(0)
    paths = []
    for place in range(count):
        path = folder / CLASSES[place * len(CLASSES) // count] / f"{place:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        small.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
        paths.append(path)
    return paths


def main() -> None:
    """Measure, and print images/s and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ViT-Ti/16")
    parser.add_argument("--backend", default="auto", choices=["auto", "torch", "onnxruntime", "openvino"])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file to write")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = variant(options.model, num_classes=len(CLASSES))
    side = config.image_size[0]
    preprocess = Preprocess(image_size=config.image_size, resize_to=round(side * 256 / 224))
    checkpoint = Checkpoint(model=build(config), config=config, preprocess=preprocess, labels=CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_images(Path(folder), options.images)
        dataset = open_dataset(folder, split="all")
        targets = match_by_name(dataset.labels, checkpoint.labels, classes=len(CLASSES))
        predictor = Predictor(checkpoint, backend=options.backend, batch_size=BATCH, workers=options.workers, device="cpu")
        if isinstance(predictor.backend, AutoBackend):
            print(predictor.backend.measure_now().summary(), flush=True)
        settings = EvaluateConfig(batch_size=BATCH, workers=options.workers, resamples=0, device="cpu", backend=options.backend)
        runs: dict[str, Callable[[], object]] = {
            "predict": lambda: sum(1 for _ in predictor.stream(paths)),
            "evaluate": lambda: evaluate(checkpoint, dataset, targets, config=settings, engine=predictor.engine),
        }
        least = dict.fromkeys(runs, float("inf"))
        for _ in range(options.rounds):
            for name, run in runs.items():
                began = time.perf_counter()
                run()
                least[name] = min(least[name], time.perf_counter() - began)
    rates = {name: options.images / seconds for name, seconds in least.items()}
    ratio = rates["evaluate"] / rates["predict"]
    for name, rate in rates.items():
        print(f"{name:9} {rate:8.1f} images/s")
    print(f"evaluate / predict {ratio:.2f}")
    if options.json:
        options.json.write_text(json.dumps({"model": options.model, "backend": options.backend, **rates, "ratio": ratio}, indent=2))


if __name__ == "__main__":
    main()
