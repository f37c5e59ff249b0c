"""A checkpoint was written by an earlier version: vitlab loads it, with the same weights, labels and logits."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.checkpoints.small import logits_of
from tests.fixtures.make_native_v1 import CONFIG
from vitlab.checkpoints import describe, load
from vitlab.config import Preprocess

VERSION_1 = "44c1f49109a5aca655d791dc86f5765f1b4a7ab9bde7b29c3cbd20ac8bf0c962"  # of the file: it is never written again


def test_a_file_of_version_1_loads_with_everything_in_it_and_gives_the_recorded_logits(checkout: Path) -> None:
    folder = checkout / "tests" / "fixtures"
    path = folder / "native_v1.safetensors"
    assert path.stat().st_size < 100_000
    assert hashlib.sha256(path.read_bytes()).hexdigest() == VERSION_1
    checkpoint, expected = load(path), load_file(folder / "native_v1.expected.safetensors")
    torch.testing.assert_close(logits_of(checkpoint, expected["images_BCHW"]), expected["logits_BC"], rtol=0, atol=1e-5)
    assert checkpoint.config == CONFIG
    assert checkpoint.preprocess == Preprocess(image_size=(16, 16), resize="squash", interpolation="tf-bilinear")
    assert checkpoint.labels == ("cat", "caf\u00e9", "\u6a21\u578b", "\U0001f600")
    assert checkpoint.history == ("written once, by version 1",)
    assert checkpoint.recipe == {"name": "none", "steps": 0}
    assert checkpoint.metrics is not None
    assert checkpoint.metrics["top1"] == 0.25
    assert math.isnan(checkpoint.metrics["loss"])
    assert describe(path).metadata["version"] == "1"
