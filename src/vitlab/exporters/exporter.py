"""Exports a checkpoint to a file for another runtime. The file is run and compared with PyTorch before it is written.

    export(load("model.safetensors"), Path("model.onnx"), ExportConfig(inside=True))

Axes: N images, B batch, K classes.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab import __version__
from vitlab.checkpoints import Checkpoint
from vitlab.config.data import is_detector
from vitlab.config.serialize import to_text
from vitlab.data.dataset import Dataset
from vitlab.errors import ConfigError, ExportError
from vitlab.exporters.files import (
    ENDINGS,
    ExportConfig,
    ExportFormat,
    ExportImages,
    Graph,
    Run,
    dataset_images,
    needed,
    of_any_size,
    onnx_bytes,
    onnx_runner,
    openvino_model,
    openvino_pair,
    openvino_runner,
    openvino_trouble,
    program_bytes,
    program_runner,
    reference_scores,
    synthetic_images,
    traced,
)
from vitlab.inference.backends import INPUT, quiet
from vitlab.io.atomic import replacing
from vitlab.io.display import Block, Displayed, ProgressCallback, silent
from vitlab.io.machine import REMEDY

BATCHES = (1, 2, 5)
_TOLERANCE = 1e-4  # relative to the largest score, or to 1 if that is larger


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Exported(Displayed):
    """The written files. `difference` is the largest from PyTorch in any score, at batch sizes 1, 2 and 5; `bytes` on disk."""

    paths: tuple[Path, ...]
    format: ExportFormat
    bytes: int
    difference: float
    compared_on: str
    quantised: Quantised | None = None
    notes: tuple[str, ...] = ()

    def tables(self) -> Iterable[Block]:
        """The file, and its difference from PyTorch."""
        return [self.to_json()]

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        facts: dict[str, Any] = {
            "file": str(self.paths[0]),
            "format": self.format,
            "bytes": self.bytes,
            "largest_difference": float(f"{self.difference:.3g}"),
            "compared_on": self.compared_on,
        }
        if (made := self.quantised) is not None:
            measure = made.measure.replace("-", "")
            facts |= {f"{measure}_float_percent": round(made.before, 2), f"{measure}_int8_percent": round(made.after, 2)}
            facts["layers_in_float"] = list(made.kept)
            if made.fragile:
                facts["fragile_layers"] = {fragile.layer: float(f"{fragile.error:.3g}") for fragile in made.fragile[:10]}
        return facts


def export(
    checkpoint: Checkpoint,
    path: Path,
    config: ExportConfig = ExportConfig(),  # noqa: B008 (a frozen value)
    *,
    dataset: Dataset | None = None,
    progress: ProgressCallback = silent,
) -> Exported:
    """Export a checkpoint as `path`; its ending is the format: .onnx, .xml (OpenVINO, with .bin beside it) or .pt2 (torch.export).

    The file is run on images of `dataset`, or on synthetic ones, and compared with PyTorch. If it differs, ExportError says by how
    much and nothing is written. The file's metadata holds labels, preprocessing and config. int8 needs a `dataset`.
    """
    form = _format(path, config, dataset)
    if is_detector(checkpoint.config) and (config.int8 or config.dynamic_size or checkpoint.preprocess.resize == "fit"):
        raise ConfigError(
            "a detector is exported in float and for one image size",
            hint="leave int8 and dynamic_size out; a YOLOS that keeps the aspect ratio needs resize='squash'",
        )
    checkpoint = of_any_size(checkpoint) if config.dynamic_size else checkpoint
    graph = Graph(checkpoint, config)
    images = _images(checkpoint, config, dataset)
    progress("tracing", 0, 1)
    program = traced(graph, config)
    facts = _facts(checkpoint, config)
    progress("tracing", 1, 1)
    found: Quantised | None = None
    if form == "pt2":
        files: Files = (program_bytes(program, facts),)
        run = program_runner(*files)
    elif config.int8:
        inputs = graph.prepare(torch.from_numpy(images.images_NHWC)).numpy()
        evaluation = Int8Evaluation(images=inputs, correct=images.correct, max_drop=config.max_drop)
        found, run = _int8_files(form, onnx_bytes(program, facts), facts, evaluation, progress)
        files = found.files
    elif form == "onnx":
        files = (onnx_bytes(program, facts),)
        run = onnx_runner(*files)
    else:
        text, weights = openvino_pair(openvino_model(onnx_bytes(program, facts), facts))
        files, run = (text, weights), openvino_runner(text, weights)
    difference, notes = _compare(graph, run, images, checkpoint, config, strict=found is None)
    paths = (path, path.with_suffix(".bin"))[: len(files)]
    for place, written in reversed(tuple(zip(paths, files, strict=True))):  # the file that users open comes last
        with replacing(place, needed=len(written)) as file:
            file.write(written)
    return Exported(
        paths=paths,
        format=form,
        bytes=sum(map(len, files)),
        difference=difference,
        compared_on=f"{len(images)} {'synthetic images' if dataset is None else 'images of the dataset'}",
        quantised=found,
        notes=(*images.notes, *notes),
    )


def _format(path: Path, config: ExportConfig, dataset: Dataset | None) -> ExportFormat:
    if path.suffix not in ENDINGS:
        raise ConfigError(f"the ending of {path.name} is no export format", hint=f"use {', '.join(ENDINGS)}")
    form = ENDINGS[path.suffix]
    if config.int8 and form == "pt2":
        raise ConfigError("int8 needs a file that ends in .onnx or .xml", hint="a .pt2 file holds float weights")
    if config.int8 and dataset is None:
        raise ConfigError("int8 is calibrated on images", hint="give images like those to predict: `data`")
    return form


def _images(checkpoint: Checkpoint, config: ExportConfig, dataset: Dataset | None) -> ExportImages:
    if dataset is None:
        return synthetic_images(checkpoint, count=sum(BATCHES))
    return dataset_images(checkpoint, dataset, most=config.calibration if config.int8 else sum(BATCHES))


def _facts(checkpoint: Checkpoint, config: ExportConfig) -> dict[str, str]:
    """The metadata of the file; all values but the version are JSON."""
    return {
        "vitlab_version": __version__,
        "vitlab_labels": to_text(checkpoint.labels),
        "vitlab_preprocess": to_text(checkpoint.preprocess),
        "vitlab_model": to_text(checkpoint.config),
        "vitlab_export": to_text(config),
    }


def _int8_files(
    form: ExportFormat, content: bytes, facts: dict[str, str], evaluation: Int8Evaluation, progress: ProgressCallback
) -> tuple[Quantised, Run]:
    """Quantise the graph of an ONNX file with the library that suits its runtime."""
    if form == "onnx":
        with onnx_quantiser(content, evaluation.images, progress) as quantiser:
            found = quantise(quantiser, evaluation, progress=progress)
            return found, quantiser.runner(found.files)
    openvino = OpenVINOQuantiser(content, facts, evaluation.images, progress)
    found = quantise(openvino, evaluation, progress=progress)
    return found, openvino.runner(found.files)


def _compare(
    graph: Graph, run: Run, images: ExportImages, checkpoint: Checkpoint, config: ExportConfig, *, strict: bool
) -> tuple[float, tuple[str, ...]]:
    """The largest difference between the file and PyTorch, and notes; ExportError if `strict` and above the tolerance."""
    worst, largest, scores = 0.0, 1.0, list[NDArray[np.float32]]()
    for images_BHWC in _batches(images, checkpoint, config):
        with torch.inference_mode():
            wanted_BK: NDArray[np.float32] = reference_scores(checkpoint, images_BHWC, inside=config.inside).numpy()
        given_BK = run(graph.prepare(images_BHWC).numpy())
        if given_BK.shape != wanted_BK.shape:
            raise ExportError(f"the file returns {given_BK.shape} where the model returns {wanted_BK.shape}; nothing was written")
        if not np.isfinite(given_BK).all():
            raise ExportError("the file returns numbers that are not finite; nothing was written")
        worst = max(worst, float(np.abs(given_BK - wanted_BK).max()))
        largest = max(largest, float(np.abs(wanted_BK).max()))
        scores.append(wanted_BK)
    if strict and worst > _TOLERANCE * largest:
        raise ExportError(f"the file's scores differ from the model's by {worst:.2g}; nothing was written")
    scores_NK = np.concatenate(scores)
    if len(scores_NK) > 1 and np.ptp(scores_NK, axis=0).max() == 0:
        return worst, ("the model returns the same scores for every image, so the comparison with PyTorch says little",)
    return worst, ()


def _batches(images: ExportImages, checkpoint: Checkpoint, config: ExportConfig) -> list[torch.Tensor]:
    """Batches of 1, 2 and 5 images, and two of other image sizes if that is dynamic."""
    batches, start = list[torch.Tensor](), 0
    for count in BATCHES:
        places = [(start + offset) % len(images) for offset in range(count)]
        batches.append(torch.from_numpy(images.images_NHWC[places]))
        start += count
    if config.dynamic_size:
        height, width = checkpoint.preprocess.image_size
        for other in ((2 * height, height + width), (height, 2 * width)):
            batches.append(torch.from_numpy(synthetic_images(checkpoint, count=2, image_size=other).images_NHWC))
    return batches


# --- 8 bits -------------------------------------------------------------------------------------------------------------------
# Quantises the matrix products of an exported graph to 8 bits, evaluates the result, and keeps fragile layers in float.
#
# A `Quantiser` makes the files: `onnx_quantiser` with ONNX Runtime for .onnx, `OpenVINOQuantiser` with NNCF for .xml. docs/log.md
# has the measurements behind this choice.

Scores = NDArray[np.float32]
Files = tuple[bytes, ...]  # of one export: an ONNX file, or OpenVINO's .xml and .bin
INT8_BATCH = 8  # images
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
    for start in range(0, len(images), INT8_BATCH):
        progress(what, start, len(images))
        found.append(run(images[start : start + INT8_BATCH]))
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
        scores = np.concatenate([run(few[at : at + INT8_BATCH]) for at in range(0, len(few), INT8_BATCH)])
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
        calibrator.collect_data(_CalibrationBatches(images, progress))
        yield _ONNXQuantiser(ready, path, calibrator.compute_data())


class _CalibrationBatches:
    """The images as a data reader of ONNX Runtime's calibrator."""

    def __init__(self, images: NDArray[Any], progress: ProgressCallback) -> None:
        self._images, self._progress, self._start = images, progress, 0

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """The next batch, or None at the end."""
        self._progress("calibrating", min(self._start, len(self._images)), len(self._images))
        if self._start >= len(self._images):
            return None
        batch = self._images[self._start : self._start + INT8_BATCH]
        self._start += INT8_BATCH
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
