"""OpenVINO files with products in 8 bits: NNCF's post-training quantisation.

Made for the runtime that runs them, they are about twice as fast as their float where the processor has instructions for 8 bits.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from numpy.typing import NDArray

from vitlab.data.care.progress import Tell
from vitlab.errors import ExportError
from vitlab.export.files import Run, needed, openvino_model, openvino_pair, openvino_runner, openvino_trouble
from vitlab.export.quantise import FEW, Files
from vitlab.export.quantise_onnx import layers_of
from vitlab.model.trial import REMEDY
from vitlab.predict.converted import quiet

_PRODUCTS = ("MatMul", "Convolution", "GroupConvolution")
_RECURRENT = ("LSTMSequence", "RNNSequence", "LSTMCell", "RNNCell", "TensorIterator", "Loop")
_MOST = 300  # pictures that ranges are taken from: NNCF's own number, more take time and change little


class OpenVINOQuantiser:
    """One graph, from which files with some layers in 8 bits are made; each time anew, which takes NNCF a minute or less."""

    def __init__(self, content: bytes, facts: Mapping[str, str], images: NDArray[Any], tell: Tell) -> None:
        self._content, self._facts, self._images, self._tell = content, facts, images, tell
        layers = layers_of(content)
        operations = openvino_model(content, facts).get_ordered_ops()
        names = {op.get_friendly_name(): op.get_type_name() for op in operations}
        self.products: tuple[str, ...] = tuple(name for name, kind in names.items() if kind in _PRODUCTS)
        self.layer_of = {name: layers.get(name.partition("/")[0], name) for name in self.products}
        self._recurrent = [name for name, kind in names.items() if kind in _RECURRENT]
        self.left: tuple[str, ...] = tuple(layers.get(name.partition("/")[0], name) for name in self._recurrent)
        self._tried = False

    def in_float(self) -> Run:
        """The graph as it was."""
        return openvino_runner(*openvino_pair(openvino_model(self._content, self._facts)))

    def without(self, floats: Sequence[str]) -> Files:
        """Everything in 8 bits but these."""
        return self._made(floats, self._images[:_MOST])

    def only(self, name: str) -> Files:
        """This layer alone in 8 bits."""
        return self._made([product for product in self.products if product != name], self._images[:FEW])

    def runner(self, files: Files) -> Run:
        """OpenVINO; the first time tried in another process, which may die of the instructions of 8 bits."""
        text, weights = files
        if not self._tried and (trouble := openvino_trouble(text, weights, self._images[:1])):
            raise ExportError(f"OpenVINO cannot run 8 bits here: {trouble}", hint=f"{REMEDY}, or write .onnx")
        self._tried = True
        return openvino_runner(text, weights)

    def _made(self, floats: Sequence[str], images: NDArray[Any]) -> Files:
        with _nncf() as nncf:
            made = nncf.quantize(
                openvino_model(self._content, self._facts),
                nncf.Dataset(_Seen(images, self._tell)),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(images),
                ignored_scope=nncf.IgnoredScope(names=[*floats, *self._recurrent], validate=False),
            )
        return openvino_pair(made)


class _Seen:
    """Pictures one by one; each walk through them is told."""

    def __init__(self, images: NDArray[Any], tell: Tell) -> None:
        self._images, self._tell = images, tell

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for place in range(len(self._images)):
            self._tell("calibrating", place, len(self._images))
            yield self._images[place : place + 1]
        self._tell("calibrating", len(self._images), len(self._images))


@contextmanager
def _nncf() -> Iterator[Any]:
    """NNCF without its bars and remarks, which go to stdout, and without its telemetry, which nobody here agreed to."""
    before = os.environ.get("NNCF_CI")
    os.environ["NNCF_CI"] = "1"
    try:
        with open(os.devnull, "w") as nowhere, quiet(), redirect_stdout(nowhere):  # noqa: PTH123
            nncf = needed("nncf")
            logging.getLogger("nncf").setLevel(logging.ERROR)
            yield nncf
    finally:
        if before is None:
            del os.environ["NNCF_CI"]
        else:
            os.environ["NNCF_CI"] = before
