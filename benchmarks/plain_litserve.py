"""What a user of timm writes to serve a model with LitServe: batches of up to 16 in worker processes.

    python benchmarks/plain_litserve.py WEIGHTS --port PORT [--threads 1] [--workers 2]

WEIGHTS is a DeiT-Ti/16 under timm's names, .npz. Requests are JSON with base64, as in LitServe's examples. Each worker decodes its
images and runs its batches with `--threads` torch threads.
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
from pathlib import Path
from typing import Any

import litserve
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that it runs from anywhere
from benchmarks.plain_fastapi import Classifier


class Api(litserve.LitAPI):  # type: ignore[misc, unused-ignore]
    """The five best classes of an image."""

    def __init__(self, weights: Path, threads: int) -> None:
        super().__init__(max_batch_size=16, batch_timeout=0.005)
        self.weights, self.threads = weights, threads

    def setup(self, device: str) -> None:
        """Load the model, in a worker."""
        self.classifier = Classifier(self.weights, self.threads)

    def decode_request(self, request: dict[str, str]) -> torch.Tensor:
        """An image."""
        return self.classifier.read(io.BytesIO(base64.b64decode(request["image"])))

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Images as one batch."""
        return torch.stack(inputs)

    def predict(self, images: torch.Tensor) -> list[list[dict[str, Any]]]:
        """Run a batch."""
        return self.classifier.run(images)

    def unbatch(self, outputs: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
        """One output for each image."""
        return outputs

    def encode_response(self, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The answer."""
        return {"top": output}


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    api = Api(options.weights, options.threads)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=options.workers, timeout=60)
    server.run(host="127.0.0.1", port=options.port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main()
