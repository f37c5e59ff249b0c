"""What a user of timm writes to serve a model with FastAPI: an endpoint that takes a form with a file.

    python benchmarks/plain_fastapi.py WEIGHTS --port PORT [--threads 1]

WEIGHTS is a DeiT-Ti/16 under timm's names, .npz. Each request runs in a thread of FastAPI's pool, with `--threads` torch threads.
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


class Classifier:
    """timm's model and transform."""

    def __init__(self, weights: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        timm = peer("timm")
        self.model = timm.create_model("deit_tiny_patch16_224").eval()
        with np.load(weights) as arrays:
            self.model.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files})
        self.transform = timm.data.create_transform((3, 224, 224), interpolation="bicubic", crop_pct=0.875)

    def read(self, file: Any) -> torch.Tensor:
        """An image file as the model's input."""
        with Image.open(file) as image:
            pixels: torch.Tensor = self.transform(image.convert("RGB"))
        return pixels

    def run(self, images: torch.Tensor) -> list[list[dict[str, Any]]]:
        """The five best classes of each image."""
        with torch.inference_mode():
            best = self.model(images).softmax(1).topk(5)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [[{"label": str(label), "probability": value} for label, value in zip(*row, strict=True)] for row in rows]


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    fastapi, uvicorn = peer("fastapi"), peer("uvicorn")
    classifier = Classifier(options.weights, options.threads)
    app = fastapi.FastAPI()

    def predict(file: Any) -> dict[str, Any]:
        return {"top": classifier.run(classifier.read(file.file)[None])[0]}

    predict.__annotations__["file"] = fastapi.UploadFile
    app.post("/predict")(predict)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
