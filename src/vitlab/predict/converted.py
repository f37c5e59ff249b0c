"""A checkpoint's graph for another runtime: made once, kept in the cache folder by the digest of what it was made from.

Axes: B batch, H height, W width, C channels of a picture.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from vitlab import __version__
from vitlab.checkpoint.contents import Checkpoint
from vitlab.checkpoint.files.atomic import replacing
from vitlab.data.files.cache import cache_folder
from vitlab.errors import ConfigError, ExportError
from vitlab.model.assemble import Model
from vitlab.predict.fused.graph import exportable

_LAYOUT = 2  # of the graphs: a change of how they are made makes them anew
_MOST = 65_536  # pictures in a batch
INPUT = "images"
EXTRAS = {"onnx": "export", "onnxscript": "export", "onnxruntime": "export", "openvino": "openvino"}


def needed(name: str) -> Any:
    """An optional library, or a refusal that says which extra brings it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{name} is not installed", hint=f"pip install 'vitlab[{EXTRAS[name]}]'") from error


def installed(name: str) -> str | None:
    """The version of an optional library, or None; nothing is imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def as_onnx(checkpoint: Checkpoint, digest: str, *, merge: int = 0) -> Path:
    """The graph as an ONNX file in the cache: `images` uint8 (B, H, W, C) to logits and features.

    `digest` stands for everything the answers depend on, `merge` too.
    """
    for library in ("onnx", "onnxscript"):
        needed(library)
    path = _place(digest, "onnx").with_suffix(".onnx")
    if path.is_file():
        return path
    content = bytes(onnx_proto(traced(checkpoint, merge=merge)).SerializeToString())
    with replacing(path, needed=len(content)) as file:
        file.write(content)
    return path


def onnx_proto(program: ExportedProgram, *, outputs: Sequence[str] | None = None) -> Any:
    """A traced graph as ONNX's message, its input called `images`."""
    with quiet(), torch.no_grad():  # as it was traced: with gradients torch would choose other kernels, of other strides
        try:
            made = torch.onnx.export(program, dynamo=True, input_names=[INPUT], output_names=outputs, verbose=False)
        except torch.onnx.errors.OnnxExporterError as error:
            reason = str(error.__cause__ or error).splitlines()[0]  # what it says itself is advice to torch's authors
            raise ExportError(f"torch cannot say this model in ONNX: {reason}") from error
    assert made is not None
    return made.model_proto


def as_openvino(checkpoint: Checkpoint, digest: str, *, merge: int = 0) -> Path:
    """The graph as OpenVINO's .xml in the cache, its .bin beside it, with float32 weights."""
    openvino = needed("openvino")
    path = _place(digest, "openvino").with_suffix(".xml")
    if path.is_file() and path.with_suffix(".bin").is_file():
        return path
    with quiet():
        made = openvino.convert_model(traced(checkpoint, merge=merge))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        openvino.save_model(made, f"{folder}/model.xml", compress_to_fp16=False)
        os.replace(f"{folder}/model.bin", path.with_suffix(".bin"))  # noqa: PTH105
        os.replace(f"{folder}/model.xml", path)  # noqa: PTH105  (last: it is what is looked for)
    return path


def traced(checkpoint: Checkpoint, *, merge: int = 0) -> ExportedProgram:
    """The graph as torch.export sees it: pixels of any number of pictures to logits and features, or to features alone."""
    height, width = checkpoint.preprocess.image_size
    example = torch.zeros(2, height, width, checkpoint.preprocess.channels, dtype=torch.uint8)
    assert isinstance(checkpoint.model, Model)
    graph = exportable(checkpoint, gives="features" if checkpoint.model.head is None else "both", merge=merge)
    with quiet(), torch.no_grad():
        try:
            return torch.export.export(graph, (example,), dynamic_shapes=({0: Dim("batch", min=1, max=_MOST)},))
        except (RuntimeError, ValueError) as error:
            raise ExportError(f"torch.export cannot trace this model: {str(error).splitlines()[0]}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's and OpenVINO's remarks on themselves, which a user can do nothing about."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _place(digest: str, runtime: str) -> Path:
    libraries = ("onnx", "onnxscript", "onnxruntime") if runtime == "onnx" else ("openvino",)
    parts = (str(_LAYOUT), __version__, torch.__version__, runtime, *(str(installed(name)) for name in libraries), digest)
    folder = cache_folder() / "graphs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(
            f"cannot make {folder}: {error.strerror}", hint="set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return folder / sha256(" ".join(parts).encode()).hexdigest()[:32]
