"""ONNX files with products in 8 bits: ONNX Runtime's static quantisation.

A scale for each channel of a weight; one zero point and scale for each activation, from the ranges that pictures give it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitlab.data.care.progress import Tell
from vitlab.export.files import Run, needed, onnx_runner
from vitlab.export.quantise import AT_ONCE, Files, Quantiser
from vitlab.predict.converted import INPUT

_PRODUCTS = ("Conv", "MatMul", "Gemm")
_RECURRENT = ("LSTM", "RNN")  # products too, for which ONNX Runtime has no calibrated 8 bits


class _Quantiser:
    """One model with the ranges of its activations, from which files with some layers in 8 bits are made."""

    def __init__(self, path: Path, whole: Path, ranges: Any) -> None:
        self._path, self._whole, self._ranges = path, whole, ranges
        layers = layers_of(whole.read_bytes())  # which `path` no longer says
        nodes = needed("onnx").load(path).graph.node
        self.products: tuple[str, ...] = tuple(node.name for node in nodes if node.op_type in _PRODUCTS)
        self.layer_of = {name: layers.get(name, name) for name in self.products}
        self.left = tuple(layers.get(node.name, node.name) for node in nodes if node.op_type in _RECURRENT)

    def in_float(self) -> Run:
        """The graph as it was."""
        return onnx_runner(self._whole.read_bytes())

    def runner(self, files: Files) -> Run:
        """ONNX Runtime."""
        return onnx_runner(files[0])

    def without(self, floats: Sequence[str]) -> Files:
        """Everything in 8 bits but these."""
        return self._made([name for name in self.products if name not in floats])

    def only(self, name: str) -> Files:
        """This layer alone in 8 bits."""
        return self._made([name])

    def _made(self, names: list[str]) -> Files:
        quantization = needed("onnxruntime.quantization")
        quantizer = needed("onnxruntime.quantization.qdq_quantizer").QDQQuantizer(
            needed("onnx").load(self._path),
            True,  # a scale for each channel of a weight
            False,
            quantization.QuantType.QInt8,
            quantization.QuantType.QUInt8,
            self._ranges,
            names,
            [],
            list(_PRODUCTS),
            {},
        )
        quantizer.quantize_model()
        return (bytes(quantizer.model.model.SerializeToString()),)


@contextmanager
def onnx_quantiser(content: bytes, images: NDArray[Any], tell: Tell) -> Iterator[Quantiser]:
    """A quantiser of an ONNX file, calibrated on these pictures, as the file takes them."""
    calibrate = needed("onnxruntime.quantization.calibrate")
    with tempfile.TemporaryDirectory() as folder, _quiet_log():
        path, ready = Path(folder, "float.onnx"), Path(folder, "ready.onnx")
        path.write_bytes(content)
        needed("onnxruntime.quantization.shape_inference").quant_pre_process(path, ready, skip_symbolic_shape=True)
        calibrator = calibrate.create_calibrator(ready, list(_PRODUCTS), augmented_model_path=str(Path(folder, "ranges.onnx")))
        calibrator.collect_data(_Batches(images, tell))
        yield _Quantiser(ready, path, calibrator.compute_data())


class _Batches:
    """The pictures as ONNX Runtime's calibrator wants to read them."""

    def __init__(self, images: NDArray[Any], tell: Tell) -> None:
        self._images, self._tell, self._start = images, tell, 0

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """The next batch, or None at the end."""
        self._tell("calibrating", min(self._start, len(self._images)), len(self._images))
        if self._start >= len(self._images):
            return None
        batch = self._images[self._start : self._start + AT_ONCE]
        self._start += AT_ONCE
        return {INPUT: batch}


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Without what the quantiser says on the root logger of nodes that it leaves alone."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)


def layers_of(content: bytes) -> dict[str, str]:
    """Where in the model each node of an ONNX file comes from, by the node's name."""
    return {node.name: _layer(node) for node in needed("onnx").load_from_string(content).graph.node}


def _layer(node: Any) -> str:
    """Where in the model a node comes from, as torch's exporter noted it, else its own name."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = [word.strip(" []'\"") for word in entry.value.split(",")]
            modules = [word for word in scopes if word][:-1]  # the last one is the operation
            if modules:
                return f"{modules[-1].removeprefix('answer.inner.').removeprefix('model.')} {node.name.removeprefix('node_')}"
    return str(node.name)
