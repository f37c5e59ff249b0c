"""Eight bits: post-training quantisation by ONNX Runtime, calibrated on pictures, fragile layers kept in float.

ONNX Runtime's static quantisation (a scale for each channel of a weight, one zero point and scale for each activation) was chosen
after a measurement: docs/log.md. Axes: N pictures, K classes.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.data.care.progress import Tell
from vitlab.errors import ExportError
from vitlab.export.files import INPUT, Run, needed, onnx_runner

Scores = NDArray[np.float32]
_PRODUCTS = ("Conv", "MatMul", "Gemm")
_AT_ONCE = 8  # pictures
_FEW = 32  # pictures that a single layer is tried with


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragile:
    """A layer, and the relative error of the scores (root mean square) when it alone is computed in 8 bits."""

    layer: str
    error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantised:
    """A file of 8-bit products. `measure` says what `before` and `after` are percentages of; `kept` are layers left in float."""

    content: bytes
    measure: Literal["top-1", "agreement"]
    before: float
    after: float
    kept: tuple[str, ...] = ()
    fragile: tuple[Fragile, ...] = ()

    @property
    def drop(self) -> float:
        """Points lost, negative where some were won."""
        return self.before - self.after


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """What 8 bits are tried with: the pictures as the file takes them, the classes that are right, and what may be lost."""

    images: NDArray[Any]
    right: Sequence[Sequence[int]] | None
    max_drop: float


def quantised(content: bytes, trial: Trial, *, tell: Tell) -> Quantised:
    """An ONNX file with its products in 8 bits, as many as `max_drop` allows; ExportError where that is too few to be worth it."""
    with _quantiser(content, trial.images, tell) as quantiser:
        wanted = _scores(onnx_runner(content), trial.images, tell, "answers in float")
        names = quantiser.products
        best = _judged(quantiser.without(()), wanted, trial, tell)
        if best.drop <= trial.max_drop:
            return best
        fragile = _sensitivity(quantiser, wanted, trial, tell)
        order = [quantiser.layer_of[found] for found in names]
        ranked = sorted(names, key=lambda name: -fragile[name].error)
        told = tuple(fragile[name] for name in ranked)
        kept = 1
        while kept <= len(names) // 2:
            floats = ranked[:kept]
            found = _judged(quantiser.without(floats), wanted, trial, tell)
            if found.drop <= trial.max_drop:
                layers = tuple(layer for layer in order if layer in {quantiser.layer_of[name] for name in floats})
                return Quantised(
                    content=found.content, measure=found.measure, before=found.before, after=found.after, kept=layers, fragile=told
                )
            best = min(best, found, key=lambda tried: tried.drop)
            kept *= 2
    raise ExportError(
        f"8 bits lose {best.drop:.2f} points of {best.measure} ({best.before:.2f} to {best.after:.2f} %), "
        f"also with {kept // 2} of {len(names)} layers left in float; at most {trial.max_drop:g} may be lost",
        hint="give more pictures, or allow more with max_drop",
    )


def _judged(content: bytes, wanted_NK: Scores, trial: Trial, tell: Tell) -> Quantised:
    scores_NK = _scores(onnx_runner(content), trial.images, tell, "answers in 8 bits")
    before_N, after_N = wanted_NK.argmax(1), scores_NK.argmax(1)
    if trial.right is None:
        return Quantised(content=content, measure="agreement", before=100.0, after=100 * float((before_N == after_N).mean()))
    return Quantised(content=content, measure="top-1", before=_top1(before_N, trial.right), after=_top1(after_N, trial.right))


def _top1(chosen_N: NDArray[np.intp], right: Sequence[Sequence[int]]) -> float:
    return 100 * sum(int(chosen) in classes for chosen, classes in zip(chosen_N, right, strict=True)) / len(chosen_N)


def _scores(run: Run, images: NDArray[Any], tell: Tell, what: str) -> Scores:
    found = []
    for start in range(0, len(images), _AT_ONCE):
        tell(what, start, len(images))
        found.append(run(images[start : start + _AT_ONCE]))
    tell(what, len(images), len(images))
    return np.concatenate(found)


def _sensitivity(quantiser: _Quantiser, wanted_NK: Scores, trial: Trial, tell: Tell) -> dict[str, Fragile]:
    few, found = trial.images[:_FEW], {}
    size = float(np.sqrt(np.mean(np.square(wanted_NK[:_FEW])))) or 1.0
    for place, name in enumerate(quantiser.products):
        tell("8 bits in one layer", place, len(quantiser.products))
        run = onnx_runner(quantiser.only(name))
        scores = np.concatenate([run(few[at : at + _AT_ONCE]) for at in range(0, len(few), _AT_ONCE)])
        error = float(np.sqrt(np.mean(np.square(scores - wanted_NK[:_FEW])))) / size
        found[name] = Fragile(layer=quantiser.layer_of[name], error=error)
    tell("8 bits in one layer", len(quantiser.products), len(quantiser.products))
    return found


class _Quantiser:
    """One model with the ranges of its activations, from which files with some layers in 8 bits are made."""

    def __init__(self, path: Path, ranges: Any) -> None:
        self._path, self._ranges = path, ranges
        nodes = [node for node in needed("onnx").load(path).graph.node if node.op_type in _PRODUCTS]
        self.products: tuple[str, ...] = tuple(node.name for node in nodes)
        self.layer_of = {node.name: _layer(node) for node in nodes}

    def without(self, floats: Sequence[str]) -> bytes:
        """Everything in 8 bits but these."""
        return self._made([name for name in self.products if name not in floats])

    def only(self, name: str) -> bytes:
        """This layer alone in 8 bits."""
        return self._made([name])

    def _made(self, names: list[str]) -> bytes:
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
        return bytes(quantizer.model.model.SerializeToString())


@contextmanager
def _quantiser(content: bytes, images: NDArray[Any], tell: Tell) -> Iterator[_Quantiser]:
    calibrate = needed("onnxruntime.quantization.calibrate")
    with tempfile.TemporaryDirectory() as folder, _quiet_log():
        path, ready = Path(folder, "float.onnx"), Path(folder, "ready.onnx")
        path.write_bytes(content)
        needed("onnxruntime.quantization.shape_inference").quant_pre_process(path, ready, skip_symbolic_shape=True)
        calibrator = calibrate.create_calibrator(ready, list(_PRODUCTS), augmented_model_path=str(Path(folder, "ranges.onnx")))
        calibrator.collect_data(_Batches(images, tell))
        yield _Quantiser(ready, calibrator.compute_data())


class _Batches:
    """The pictures as ONNX Runtime's calibrator wants to read them."""

    def __init__(self, images: NDArray[Any], tell: Tell) -> None:
        self._images, self._tell, self._start = images, tell, 0

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """The next batch, or None at the end."""
        self._tell("calibrating", min(self._start, len(self._images)), len(self._images))
        if self._start >= len(self._images):
            return None
        batch = self._images[self._start : self._start + _AT_ONCE]
        self._start += _AT_ONCE
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


def _layer(node: Any) -> str:
    """Where in the model a node comes from, as torch's exporter noted it, else its own name."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = [word.strip(" []'\"") for word in entry.value.split(",")]
            named = [word for word in scopes if word]
            if len(named) > 1:
                return f"{named[-2]} {node.op_type}" if named[-1] == node.name else named[-1]
    return str(node.name)
