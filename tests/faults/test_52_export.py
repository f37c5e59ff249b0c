"""An export is interrupted, differs from its model or loses accuracy: no file is written, and an earlier one stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.exporters.test_export import MINI, foreign, knowing
from tests.exporters.traces import traced_once
from vitlab.checkpoints import Checkpoint
from vitlab.config.vit import ViTConfig
from vitlab.errors import ExportError
from vitlab.exporters import ExportConfig, export
from vitlab.exporters.files import onnx_runner, synthetic_images
from vitlab.inference.backends import TorchBackend


@pytest.fixture(scope="module", autouse=True)
def _traced_once(onnx_operators: None) -> Iterator[None]:
    with traced_once():
        yield


@pytest.fixture(scope="module")
def one_layer() -> Checkpoint:
    assert isinstance(MINI, ViTConfig)
    return knowing(replace(MINI, depth=1))


def test_a_file_gives_the_models_scores_in_batches_of_one_two_and_five(one_layer: Checkpoint, tmp_path: Path) -> None:
    made = export(one_layer, tmp_path / "model.onnx", ExportConfig(inside=True))
    images_NHWC = synthetic_images(one_layer, count=5).images_NHWC
    logits_NK = TorchBackend(one_layer.model, one_layer.preprocess).run(images_NHWC).logits_BK
    expected_NK = np.exp(logits_NK) / np.exp(logits_NK).sum(1, keepdims=True)
    run = onnx_runner(made.paths[0].read_bytes())
    for count in (1, 2, 5):
        np.testing.assert_allclose(run(images_NHWC[:count]), expected_NK[:count], atol=1e-5)


def test_a_file_that_differs_is_never_written_and_an_earlier_one_stays(
    one_layer: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(content: bytes, *, threads: int = 0) -> object:
        run = onnx_runner(content)
        return lambda images: run(images) + (0.01 if len(images) == 5 else 0)  # only at a batch of 5

    (tmp_path / "model.onnx").write_bytes(b"the old one")
    monkeypatch.setattr("vitlab.exporters.exporter.onnx_runner", wrong)
    with pytest.raises(ExportError, match=r"differ from the model's by 0\.01; nothing was written"):
        export(one_layer, tmp_path / "model.onnx")
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"model.onnx": b"the old one"}


def test_eight_bits_that_lose_too_much_are_not_written(
    one_layer: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in 8 bits gives the next class of what the file in float gives, so that none agrees: no 8-bit kernel has a say."""
    in_float = []

    def moved(content: bytes, *, threads: int = 0) -> object:
        if b"DequantizeLinear" not in content:
            in_float.append(onnx_runner(content, threads=threads))
            return in_float[-1]
        return lambda images: np.roll(in_float[0](images), 1, axis=1)

    monkeypatch.setattr("vitlab.exporters.exporter.onnx_runner", moved)
    lost = r"8 bits lose 100\.00 points of agreement \(100\.00 to 0\.00 %\), also with \d+ of \d+ layers left in float"
    with pytest.raises(ExportError, match=lost):
        export(one_layer, tmp_path / "int8.onnx", ExportConfig(int8=True, calibration=8, max_drop=99), dataset=foreign())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".onnx", ".xml"])
def test_an_interrupt_while_the_file_is_written_leaves_the_earlier_one_and_no_half(
    one_layer: Checkpoint, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    path = tmp_path / f"model{ending}"
    path.write_bytes(b"the old one")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(one_layer, path)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {path.name: b"the old one"}
