"""Exports a checkpoint to a file for another runtime. The file is run and compared with PyTorch before it is written.

    export(load("model.safetensors"), Path("model.onnx"), ExportConfig(inside=True))

Axes: B batch, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    of_any_size,
    onnx_bytes,
    onnx_runner,
    openvino_model,
    openvino_pair,
    openvino_runner,
    program_bytes,
    program_runner,
    reference_scores,
    synthetic_images,
    traced,
)
from vitlab.exporters.quantize import Files, Int8Evaluation, OpenVINOQuantiser, Quantised, onnx_quantiser, quantise
from vitlab.io.atomic import replacing
from vitlab.io.display import Block, Displayed
from vitlab.io.progress import ProgressCallback, silent

BATCHES = (1, 2, 5)
_TOLERANCE = 1e-4  # relative to the largest score, or to 1 if that is larger


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
        found, run = _quantise(form, onnx_bytes(program, facts), facts, evaluation, progress)
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


def _quantise(
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
