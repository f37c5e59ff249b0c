"""Eight bits: products of an exported graph are quantised, judged on pictures, and fragile layers kept in float.

How a graph is quantised is up to a `Quantiser`: `quantise_onnx` for .onnx, `quantise_openvino` for .xml. Which library each of them
uses was chosen after a measurement: docs/log.md. Axes: N pictures, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.data.care.progress import Tell
from vitlab.errors import ExportError
from vitlab.export.files import Run

Scores = NDArray[np.float32]
Files = tuple[bytes, ...]  # of one export: an ONNX file, or OpenVINO's .xml and .bin
AT_ONCE = 8  # pictures
FEW = 32  # pictures that a single layer is tried with


class Quantiser(Protocol):
    """One graph and how to make files of it with some products in 8 bits.

    `products` names them in the order of the graph, `layer_of` says where in the model they come from; `left` are layers that the
    library has no calibrated 8 bits for, which stay in float.
    """

    products: tuple[str, ...]
    layer_of: dict[str, str]
    left: tuple[str, ...]

    def in_float(self) -> Run:
        """The graph as it was."""

    def without(self, floats: Sequence[str]) -> Files:
        """Everything in 8 bits but these."""

    def only(self, name: str) -> Files:
        """This product alone in 8 bits."""

    def runner(self, files: Files) -> Run:
        """What runs the files that it made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragile:
    """A layer, and the relative error of the scores (root mean square) when it alone is computed in 8 bits."""

    layer: str
    error: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantised:
    """A file of 8-bit products. `measure` says what `before` and `after` are percentages of; `kept` are layers left in float."""

    files: Files
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


def quantised(quantiser: Quantiser, trial: Trial, *, tell: Tell) -> Quantised:
    """Files with products in 8 bits, as many as `max_drop` allows; ExportError where that is too few to be worth it."""
    wanted = _scores(quantiser.in_float(), trial.images, tell, "answers in float")
    names = quantiser.products
    best = _judged(quantiser, (), wanted, trial, tell)
    if best.drop <= trial.max_drop:
        return replace(best, kept=quantiser.left)
    fragile = _sensitivity(quantiser, wanted, trial, tell)
    ranked = sorted(names, key=lambda name: -fragile[name].error)
    told = tuple(fragile[name] for name in ranked)
    kept = 1
    while kept <= len(names) // 2:
        floats = ranked[:kept]
        found = _judged(quantiser, floats, wanted, trial, tell)
        if found.drop <= trial.max_drop:
            layers = tuple(quantiser.layer_of[name] for name in names if name in floats)
            return replace(found, kept=(*quantiser.left, *layers), fragile=told)
        best = min(best, found, key=lambda tried: tried.drop)
        kept *= 2
    raise ExportError(
        f"8 bits lose {best.drop:.2f} points of {best.measure} ({best.before:.2f} to {best.after:.2f} %), "
        f"also with {kept // 2} of {len(names)} layers left in float; at most {trial.max_drop:g} may be lost",
        hint="give more pictures, or allow more with max_drop",
    )


def _judged(quantiser: Quantiser, floats: Sequence[str], wanted_NK: Scores, trial: Trial, tell: Tell) -> Quantised:
    files = quantiser.without(floats)
    scores_NK = _scores(quantiser.runner(files), trial.images, tell, "answers in 8 bits")
    before_N, after_N = wanted_NK.argmax(1), scores_NK.argmax(1)
    if trial.right is None:
        return Quantised(files=files, measure="agreement", before=100.0, after=100 * float((before_N == after_N).mean()))
    return Quantised(files=files, measure="top-1", before=_top1(before_N, trial.right), after=_top1(after_N, trial.right))


def _top1(chosen_N: NDArray[np.intp], right: Sequence[Sequence[int]]) -> float:
    return 100 * sum(int(chosen) in classes for chosen, classes in zip(chosen_N, right, strict=True)) / len(chosen_N)


def _scores(run: Run, images: NDArray[Any], tell: Tell, what: str) -> Scores:
    found = []
    for start in range(0, len(images), AT_ONCE):
        tell(what, start, len(images))
        found.append(run(images[start : start + AT_ONCE]))
    tell(what, len(images), len(images))
    return np.concatenate(found)


def _sensitivity(quantiser: Quantiser, wanted_NK: Scores, trial: Trial, tell: Tell) -> dict[str, Fragile]:
    few, found = trial.images[:FEW], {}
    size = float(np.sqrt(np.mean(np.square(wanted_NK[:FEW])))) or 1.0
    for place, name in enumerate(quantiser.products):
        tell("8 bits in one layer", place, len(quantiser.products))
        run = quantiser.runner(quantiser.only(name))
        scores = np.concatenate([run(few[at : at + AT_ONCE]) for at in range(0, len(few), AT_ONCE)])
        error = float(np.sqrt(np.mean(np.square(scores - wanted_NK[:FEW])))) / size
        found[name] = Fragile(layer=quantiser.layer_of[name], error=error)
    tell("8 bits in one layer", len(quantiser.products), len(quantiser.products))
    return found
