"""Quantises the matrix products of an exported graph to 8 bits, evaluates the result, and keeps fragile layers in float.

A `Quantiser` makes the files: `onnx_quantiser` with ONNX Runtime for .onnx, `OpenVINOQuantiser` with NNCF for .xml. docs/log.md has
the measurements behind this choice.

Axes: N images, K classes.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import ExportError
from vitlab.exporters.files import Run, needed, onnx_runner, openvino_model, openvino_pair, openvino_runner, openvino_trouble
from vitlab.inference.backends import INPUT, quiet
from vitlab.io.progress import ProgressCallback
from vitlab.io.trial import REMEDY

Scores = NDArray[np.float32]
Files = tuple[bytes, ...]  # of one export: an ONNX file, or OpenVINO's .xml and .bin
BATCH = 8  # images
FEW = 32  # images to measure a single layer with


class Quantiser(Protocol):
    """A graph, and how to write it with some matrix products in 8 bits.

    `products` are their names in the order of the graph, `layer_of` their places in the model; `left` are layers that the library
    cannot quantise, which stay in float.
    """

    products: tuple[str, ...]
    layer_of: dict[str, str]
    left: tuple[str, ...]

    def in_float(self) -> Run:
        """Runs the float graph."""

    def without(self, floats: Sequence[str]) -> Files:
        """Files with everything in 8 bits but these products."""

    def only(self, name: str) -> Files:
        """Files with this product alone in 8 bits."""

    def runner(self, files: Files) -> Run:
        """Runs the files of this quantiser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragile:
    """A layer, and the relative error of the scores (root mean square) if it alone is in 8 bits."""

    layer: str
    error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantised:
    """Files with 8-bit products. `before` and `after` are percentages of `measure`; `kept` are the layers left in float."""

    files: Files
    measure: Literal["top-1", "agreement"]
    before: float
    after: float
    kept: tuple[str, ...] = ()
    fragile: tuple[Fragile, ...] = ()

    @property
    def drop(self) -> float:
        """Percentage points lost, negative if some are gained."""
        return self.before - self.after


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Int8Evaluation:
    """What to evaluate 8 bits on: images as the file takes them, their correct classes if known, and the allowed loss."""

    images: NDArray[Any]
    correct: Sequence[Sequence[int]] | None
    max_drop: float


def quantise(quantiser: Quantiser, evaluation: Int8Evaluation, *, progress: ProgressCallback) -> Quantised:
    """Quantise as many products as `max_drop` allows; ExportError if that is less than half of them."""
    wanted = _scores(quantiser.in_float(), evaluation.images, progress, "predicting in float")
    names = quantiser.products
    best = _evaluated(quantiser, (), wanted, evaluation, progress)
    if best.drop <= evaluation.max_drop:
        return replace(best, kept=quantiser.left)
    fragile = _sensitivity(quantiser, wanted, evaluation, progress)
    ranked = sorted(names, key=lambda name: -fragile[name].error)
    by_error = tuple(fragile[name] for name in ranked)
    kept = 1
    while kept <= len(names) // 2:
        floats = ranked[:kept]
        found = _evaluated(quantiser, floats, wanted, evaluation, progress)
        if found.drop <= evaluation.max_drop:
            layers = tuple(quantiser.layer_of[name] for name in names if name in floats)
            return replace(found, kept=(*quantiser.left, *layers), fragile=by_error)
        best = min(best, found, key=lambda tried: tried.drop)
        kept *= 2
    raise ExportError(
        f"8 bits lose {best.drop:.2f} points of {best.measure} ({best.before:.2f} to {best.after:.2f} %), "
        f"also with {kept // 2} of {len(names)} layers left in float; max_drop={evaluation.max_drop:g}",
        hint="give more images, or raise max_drop",
    )


def _evaluated(
    quantiser: Quantiser, floats: Sequence[str], wanted_NK: Scores, evaluation: Int8Evaluation, progress: ProgressCallback
) -> Quantised:
    files = quantiser.without(floats)
    scores_NK = _scores(quantiser.runner(files), evaluation.images, progress, "predicting in 8 bits")
    before_N, after_N = wanted_NK.argmax(1), scores_NK.argmax(1)
    if evaluation.correct is None:
        return Quantised(files=files, measure="agreement", before=100.0, after=100 * float((before_N == after_N).mean()))
    return Quantised(
        files=files, measure="top-1", before=_top1(before_N, evaluation.correct), after=_top1(after_N, evaluation.correct)
    )


def _top1(chosen_N: NDArray[np.intp], correct: Sequence[Sequence[int]]) -> float:
    return 100 * sum(int(chosen) in classes for chosen, classes in zip(chosen_N, correct, strict=True)) / len(chosen_N)


def _scores(run: Run, images: NDArray[Any], progress: ProgressCallback, what: str) -> Scores:
    found = []
    for start in range(0, len(images), BATCH):
        progress(what, start, len(images))
        found.append(run(images[start : start + BATCH]))
    progress(what, len(images), len(images))
    return np.concatenate(found)


def _sensitivity(
    quantiser: Quantiser, wanted_NK: Scores, evaluation: Int8Evaluation, progress: ProgressCallback
) -> dict[str, Fragile]:
    few, found = evaluation.images[:FEW], {}
    size = float(np.sqrt(np.mean(np.square(wanted_NK[:FEW])))) or 1.0
    for place, name in enumerate(quantiser.products):
        progress("8 bits in one layer", place, len(quantiser.products))
        run = quantiser.runner(quantiser.only(name))
        scores = np.concatenate([run(few[at : at + BATCH]) for at in range(0, len(few), BATCH)])
        error = float(np.sqrt(np.mean(np.square(scores - wanted_NK[:FEW])))) / size
        found[name] = Fragile(layer=quantiser.layer_of[name], error=error)
    progress("8 bits in one layer", len(quantiser.products), len(quantiser.products))
    return found


_PRODUCTS = ("Conv", "MatMul", "Gemm")
_RECURRENT = ("LSTM", "RNN")  # products too, which ONNX Runtime cannot quantise statically


class _ONNXQuantiser:
    """ONNX Runtime's static quantisation: a scale for each channel of a weight; one zero point and scale for each activation."""

    def __init__(self, path: Path, whole: Path, ranges: Any) -> None:
        self._path, self._whole, self._ranges = path, whole, ranges
        layers = layers_of(whole.read_bytes())  # preprocessing removes them from `path`
        nodes = needed("onnx").load(path).graph.node
        self.products: tuple[str, ...] = tuple(node.name for node in nodes if node.op_type in _PRODUCTS)
        self.layer_of = {name: layers.get(name, name) for name in self.products}
        self.left = tuple(layers.get(node.name, node.name) for node in nodes if node.op_type in _RECURRENT)

    def in_float(self) -> Run:
        """Runs the float graph."""
        return onnx_runner(self._whole.read_bytes())

    def runner(self, files: Files) -> Run:
        """Runs a file with ONNX Runtime."""
        return onnx_runner(files[0])

    def without(self, floats: Sequence[str]) -> Files:
        """Files with everything in 8 bits but these products."""
        return self._made([name for name in self.products if name not in floats])

    def only(self, name: str) -> Files:
        """Files with this product alone in 8 bits."""
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
def onnx_quantiser(content: bytes, images: NDArray[Any], progress: ProgressCallback) -> Iterator[Quantiser]:
    """A quantiser of an ONNX file, calibrated on these images (in the form that the file takes)."""
    calibrate = needed("onnxruntime.quantization.calibrate")
    with tempfile.TemporaryDirectory() as folder, _quiet_log():
        path, ready = Path(folder, "float.onnx"), Path(folder, "ready.onnx")
        path.write_bytes(content)
        needed("onnxruntime.quantization.shape_inference").quant_pre_process(path, ready, skip_symbolic_shape=True)
        calibrator = calibrate.create_calibrator(ready, list(_PRODUCTS), augmented_model_path=str(Path(folder, "ranges.onnx")))
        calibrator.collect_data(_Batches(images, progress))
        yield _ONNXQuantiser(ready, path, calibrator.compute_data())


class _Batches:
    """The images as a data reader of ONNX Runtime's calibrator."""

    def __init__(self, images: NDArray[Any], progress: ProgressCallback) -> None:
        self._images, self._progress, self._start = images, progress, 0

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """The next batch, or None at the end."""
        self._progress("calibrating", min(self._start, len(self._images)), len(self._images))
        if self._start >= len(self._images):
            return None
        batch = self._images[self._start : self._start + BATCH]
        self._start += BATCH
        return {INPUT: batch}


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Silence the quantiser's messages about skipped nodes on the root logger."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)


def layers_of(content: bytes) -> dict[str, str]:
    """The place in the model of each node of an ONNX file, by the node's name."""
    return {node.name: _layer(node) for node in needed("onnx").load_from_string(content).graph.node}


def _layer(node: Any) -> str:
    """The place of a node in the model, from the metadata of torch's exporter, else the node's name."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = [word.strip(" []'\"") for word in entry.value.split(",")]
            modules = [word for word in scopes if word][:-1]  # the last one is the operation
            if modules:
                return f"{modules[-1].removeprefix('answer.inner.').removeprefix('model.')} {node.name.removeprefix('node_')}"
    return str(node.name)


_OPENVINO_PRODUCTS = ("MatMul", "Convolution", "GroupConvolution")
_OPENVINO_RECURRENT = ("LSTMSequence", "RNNSequence", "LSTMCell", "RNNCell", "TensorIterator", "Loop")
_CALIBRATION = 300  # images: NNCF's default; more take time and change little


class OpenVINOQuantiser:
    """NNCF's post-training quantisation, anew for each file, which takes up to a minute.

    The files are about twice as fast as float on a CPU with 8-bit instructions.
    """

    def __init__(self, content: bytes, facts: Mapping[str, str], images: NDArray[Any], progress: ProgressCallback) -> None:
        self._content, self._facts, self._images, self._progress = content, facts, images, progress
        layers = layers_of(content)
        operations = openvino_model(content, facts).get_ordered_ops()
        names = {op.get_friendly_name(): op.get_type_name() for op in operations}
        self.products: tuple[str, ...] = tuple(name for name, kind in names.items() if kind in _OPENVINO_PRODUCTS)
        self.layer_of = {name: layers.get(name.partition("/")[0], name) for name in self.products}
        self._recurrent = [name for name, kind in names.items() if kind in _OPENVINO_RECURRENT]
        self.left: tuple[str, ...] = tuple(layers.get(name.partition("/")[0], name) for name in self._recurrent)
        self._tried = False

    def in_float(self) -> Run:
        """Runs the float graph."""
        return openvino_runner(*openvino_pair(openvino_model(self._content, self._facts)))

    def without(self, floats: Sequence[str]) -> Files:
        """Files with everything in 8 bits but these products."""
        return self._made(floats, self._images[:_CALIBRATION])

    def only(self, name: str) -> Files:
        """Files with this product alone in 8 bits."""
        return self._made([product for product in self.products if product != name], self._images[:FEW])

    def runner(self, files: Files) -> Run:
        """Runs the files with OpenVINO; the first ones in a child process first, as 8-bit CPU instructions may kill it."""
        text, weights = files
        if not self._tried and (trouble := openvino_trouble(text, weights, self._images[:1])):
            raise ExportError(f"OpenVINO cannot run 8 bits on this CPU: {trouble}", hint=f"{REMEDY}, or write .onnx")
        self._tried = True
        return openvino_runner(text, weights)

    def _made(self, floats: Sequence[str], images: NDArray[Any]) -> Files:
        with _nncf() as nncf:
            made = nncf.quantize(
                openvino_model(self._content, self._facts),
                nncf.Dataset(_OneByOne(images, self._progress)),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(images),
                ignored_scope=nncf.IgnoredScope(names=[*floats, *self._recurrent], validate=False),
            )
        return openvino_pair(made)


class _OneByOne:
    """Images one by one, with progress."""

    def __init__(self, images: NDArray[Any], progress: ProgressCallback) -> None:
        self._images, self._progress = images, progress

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for place in range(len(self._images)):
            self._progress("calibrating", place, len(self._images))
            yield self._images[place : place + 1]
        self._progress("calibrating", len(self._images), len(self._images))


@contextmanager
def _nncf() -> Iterator[Any]:
    """NNCF without its output on stdout."""
    with open(os.devnull, "w") as nowhere, quiet(), redirect_stdout(nowhere):  # noqa: PTH123
        nncf = needed("nncf")
        logging.getLogger("nncf").setLevel(logging.ERROR)
        yield nncf
