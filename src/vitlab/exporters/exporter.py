"""A checkpoint as a file for another runtime: written beside its name, run, compared, and only then given that name.

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
from vitlab.config.serialize import to_text
from vitlab.data.dataset import Dataset
from vitlab.data.transforms import normalise
from vitlab.errors import ConfigError, ExportError
from vitlab.exporters.config import ExportConfig
from vitlab.exporters.files import (
    ENDINGS,
    Graph,
    Images,
    Kind,
    Run,
    generated_images,
    of_any_size,
    onnx_bytes,
    onnx_runner,
    openvino_model,
    openvino_pair,
    openvino_runner,
    own_images,
    program_bytes,
    program_runner,
    scored,
    traced,
)
from vitlab.exporters.quantize import Files, OpenVINOQuantiser, Quantised, Trial, onnx_quantiser, quantised
from vitlab.io.atomic import replacing
from vitlab.io.display import Block, Displayed
from vitlab.io.progress import ProgressCallback, silent

BATCHES = (1, 2, 5)
_TOLERANCE = 1e-4  # of the largest score, at least of 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exported(Displayed):
    """What was written. `difference` is the largest from torch in any score, at batches of 1, 2 and 5; `bytes` on the disk."""

    paths: tuple[Path, ...]
    kind: Kind
    bytes: int
    difference: float
    tried_with: str
    quantised: Quantised | None = None
    notes: tuple[str, ...] = ()

    def tables(self) -> Iterable[Block]:
        """The file, and how near it is to PyTorch."""
        return [self.to_json()]

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        facts: dict[str, Any] = {
            "file": str(self.paths[0]),
            "kind": self.kind,
            "bytes": self.bytes,
            "largest difference": float(f"{self.difference:.3g}"),
            "compared on": self.tried_with,
        }
        if (made := self.quantised) is not None:
            facts |= {f"{made.measure} in float, %": round(made.before, 2), f"{made.measure} in 8 bits, %": round(made.after, 2)}
            facts["layers in float"] = list(made.kept)
            if made.fragile:
                facts["fragile layers"] = {fragile.layer: float(f"{fragile.error:.3g}") for fragile in made.fragile[:10]}
        return facts


def export(
    checkpoint: Checkpoint,
    path: Path,
    config: ExportConfig = ExportConfig(),  # noqa: B008 (a frozen value)
    *,
    dataset: Dataset | None = None,
    progress: ProgressCallback = silent,
) -> Exported:
    """Write a checkpoint as `path`, whose ending says what: .onnx, .xml (OpenVINO, with .bin beside it) or .pt2 (torch.export).

    The file is run on images of `source`, or on generated ones, and compared with torch; where it differs, ExportError says by
    how much and nothing is written. Labels, preprocessing and config are in the file's metadata. `source` is needed for int8.
    """
    kind = _kind(path, config, dataset)
    checkpoint = of_any_size(checkpoint) if config.dynamic_size else checkpoint
    graph = Graph(checkpoint, config)
    images = _images(checkpoint, config, dataset)
    progress("tracing", 0, 1)
    program = traced(graph, config)
    facts = _facts(checkpoint, config)
    progress("tracing", 1, 1)
    found: Quantised | None = None
    if kind == "pt2":
        files: Files = (program_bytes(program, facts),)
        run = program_runner(*files)
    elif config.int8:
        taken = graph.taken(torch.from_numpy(images.images_NHWC)).numpy()
        trial = Trial(images=taken, right=images.right, max_drop=config.max_drop)
        found, run = _in_eight_bits(kind, onnx_bytes(program, facts), facts, trial, progress)
        files = found.files
    elif kind == "onnx":
        files = (onnx_bytes(program, facts),)
        run = onnx_runner(*files)
    else:
        text, weights = openvino_pair(openvino_model(onnx_bytes(program, facts), facts))
        files, run = (text, weights), openvino_runner(text, weights)
    difference, notes = _compared(graph, run, images, checkpoint, config, held=found is None)
    paths = (path, path.with_suffix(".bin"))[: len(files)]
    for place, written in reversed(tuple(zip(paths, files, strict=True))):  # the one that is opened by its name comes last
        with replacing(place, needed=len(written)) as file:
            file.write(written)
    return Exported(
        paths=paths,
        kind=kind,
        bytes=sum(map(len, files)),
        difference=difference,
        tried_with=f"{len(images)} {'generated' if dataset is None else 'of the given'} images",
        quantised=found,
        notes=(*images.notes, *notes),
    )


def _kind(path: Path, config: ExportConfig, dataset: Dataset | None) -> Kind:
    if path.suffix not in ENDINGS:
        raise ConfigError(f"{path.name} does not say what to write", hint=f"end it with {', '.join(ENDINGS)}")
    kind = ENDINGS[path.suffix]
    if config.int8 and kind == "pt2":
        raise ConfigError("8 bits are written as .onnx or .xml", hint="a .pt2 file keeps the float weights")
    if config.int8 and dataset is None:
        raise ConfigError("8 bits are calibrated on images", hint="give some that are like those to come: --data FOLDER")
    return kind


def _images(checkpoint: Checkpoint, config: ExportConfig, dataset: Dataset | None) -> Images:
    if dataset is None:
        return generated_images(checkpoint, count=sum(BATCHES))
    return own_images(checkpoint, dataset, most=config.calibration if config.int8 else sum(BATCHES))


def _facts(checkpoint: Checkpoint, config: ExportConfig) -> dict[str, str]:
    """What the file says of itself; all but `version` are JSON."""
    return {
        "vitlab_version": __version__,
        "vitlab_labels": to_text(checkpoint.labels),
        "vitlab_preprocess": to_text(checkpoint.preprocess),
        "vitlab_model": to_text(checkpoint.config),
        "vitlab_export": to_text(config),
    }


def _in_eight_bits(
    kind: Kind, content: bytes, facts: dict[str, str], trial: Trial, progress: ProgressCallback
) -> tuple[Quantised, Run]:
    """An ONNX file's graph with products in 8 bits, made by the library that suits the runtime it is for."""
    if kind == "onnx":
        with onnx_quantiser(content, trial.images, progress) as quantiser:
            found = quantised(quantiser, trial, progress=progress)
            return found, quantiser.runner(found.files)
    maker = OpenVINOQuantiser(content, facts, trial.images, progress)
    found = quantised(maker, trial, progress=progress)
    return found, maker.runner(found.files)


def _compared(
    graph: Graph, run: Run, images: Images, checkpoint: Checkpoint, config: ExportConfig, *, held: bool
) -> tuple[float, tuple[str, ...]]:
    """The largest difference between the file and torch at every batch size, refused where `held` and above the tolerance."""
    model = checkpoint.model.eval()
    worst, largest, told = 0.0, 1.0, list[NDArray[np.float32]]()
    for images_BHWC in _tries(images, checkpoint, config):
        with torch.inference_mode():
            logits_BK = model(normalise(images_BHWC, checkpoint.preprocess))
            wanted_BK: NDArray[np.float32] = (scored(logits_BK, checkpoint) if config.inside else logits_BK).numpy()
        given_BK = run(graph.taken(images_BHWC).numpy())
        if given_BK.shape != wanted_BK.shape:
            raise ExportError(f"the file answers {given_BK.shape} where the model answers {wanted_BK.shape}; nothing was written")
        if not np.isfinite(given_BK).all():
            raise ExportError("the file answers with numbers that are not finite; nothing was written")
        worst = max(worst, float(np.abs(given_BK - wanted_BK).max()))
        largest = max(largest, float(np.abs(wanted_BK).max()))
        told.append(wanted_BK)
    if held and worst > _TOLERANCE * largest:
        raise ExportError(f"the file's scores differ from the model's by {worst:.2g}; nothing was written")
    answers_NK = np.concatenate(told)
    if len(answers_NK) > 1 and np.ptp(answers_NK, axis=0).max() == 0:
        return worst, ("the model answers the same to every image, so the comparison with torch says little",)
    return worst, ()


def _tries(images: Images, checkpoint: Checkpoint, config: ExportConfig) -> list[torch.Tensor]:
    """Batches of 1, 2 and 5 images, and of another size where that is free."""
    batches, start = list[torch.Tensor](), 0
    for count in BATCHES:
        places = [(start + offset) % len(images) for offset in range(count)]
        batches.append(torch.from_numpy(images.images_NHWC[places]))
        start += count
    if config.dynamic_size:
        height, width = checkpoint.preprocess.image_size
        other = generated_images(checkpoint, count=2, image_size=(2 * height, height + width))
        batches.append(torch.from_numpy(other.images_NHWC))
    return batches
