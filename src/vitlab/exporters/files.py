"""The three kinds of file a graph is written as, and what runs each of them again.

Axes: B batch, K classes.
"""

from __future__ import annotations

import copy
import io
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitlab.checkpoints import Checkpoint
from vitlab.config.data import DecodeLimits, SyntheticConfig
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.vit import PositionResize, ViTConfig
from vitlab.data.dataset import Dataset
from vitlab.data.synthetic.dataset import images
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import ConfigError, DataError, ExportError
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.exporters.config import ExportConfig
from vitlab.inference.backends import INPUT, onnx_proto, quiet
from vitlab.inference.folded import Input, Output, OutputGraph, PlainGraph, activation_of, exportable
from vitlab.io.trial import trouble_with
from vitlab.models.families import Model
from vitlab.models.position import Grid, Positions
from vitlab.models.vit import ViT

Kind = Literal["onnx", "openvino", "pt2"]
ENDINGS: dict[str, Kind] = {".onnx": "onnx", ".xml": "openvino", ".pt2": "pt2"}
OUTPUT = "scores"
Run = Callable[[NDArray[Any]], NDArray[np.float32]]

_EXTRAS = {"onnx": "export", "onnxscript": "export", "onnxruntime": "export", "openvino": "openvino", "nncf": "int8"}
_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
_PATIENCE = 300.0  # seconds for a trial, of which a large model takes many to be compiled
_TRIAL = """
import json, sys, numpy, openvino
core = openvino.Core()
core.compile_model(core.read_model(sys.argv[1]), "CPU", json.loads(sys.argv[3]))([numpy.load(sys.argv[2])])
"""
_PROTOBUF_LIMIT = 2**31 - 2**24  # bytes in one ONNX file, with room for the graph itself


def needed(name: str) -> ModuleType:
    """An optional library, or the sentence that says which extra brings it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
            raise
        top = name.split(".")[0]
        raise ConfigError(f"{top} is not installed", hint=f"pip install 'vitlab[{_EXTRAS[top]}]'") from error


def onnx_bytes(program: ExportedProgram, facts: Mapping[str, str]) -> bytes:
    """A traced graph as an ONNX file, `facts` in its metadata."""
    for library in ("onnx", "onnxscript"):
        needed(library)
    weights = sum(tensor.nbytes for tensor in program.state_dict.values())
    if weights > _PROTOBUF_LIMIT:
        raise ExportError(
            f"{weights / 1e9:.1f} GB of weights do not fit into one ONNX file, which ends at 2 GB", hint="write a .pt2 file instead"
        )
    proto = onnx_proto(program, outputs=[OUTPUT])
    del proto.metadata_props[:]
    for key, value in facts.items():
        proto.metadata_props.add(key=key, value=value)
    return bytes(proto.SerializeToString())


def onnx_facts(content: bytes) -> dict[str, str]:
    """What is written in an ONNX file's metadata."""
    proto = needed("onnx").load_from_string(content)
    return {entry.key: entry.value for entry in proto.metadata_props}


def onnx_runner(content: bytes, *, threads: int = 0) -> Run:
    """ONNX Runtime on the bytes of a file."""
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = session.run([OUTPUT], {INPUT: images})[0]
        return scores

    return run


def openvino_model(onnx: bytes, facts: Mapping[str, str]) -> Any:
    """An ONNX file as OpenVINO's model, `facts` in its metadata."""
    openvino = needed("openvino")
    model = openvino.Core().read_model(model=onnx, weights=b"")
    model.inputs[0].tensor.set_names({INPUT})
    model.outputs[0].tensor.set_names({OUTPUT})
    for key, value in facts.items():
        model.set_rt_info(value, ["vitlab", key])
    return model


def openvino_pair(model: Any) -> tuple[bytes, bytes]:
    """The files of an OpenVINO model, .xml and .bin, with its weights as they are."""
    with tempfile.TemporaryDirectory() as folder:
        text, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        needed("openvino").save_model(model, text, compress_to_fp16=False)
        return text.read_bytes(), weights.read_bytes()


def openvino_runner(text: bytes, weights: bytes) -> Run:
    """OpenVINO on the bytes of a pair of files, in float32."""
    openvino = needed("openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model=text, weights=weights), "CPU", _EXACT)

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        return np.array(compiled([images])[0], np.float32)

    return run


def openvino_trouble(text: bytes, weights: bytes, images: NDArray[Any]) -> str | None:
    """What befalls a process in which OpenVINO runs this pair of files, or None: it may be the instructions of 8 bits."""
    with tempfile.TemporaryDirectory() as folder:
        xml, saved = Path(folder, "model.xml"), Path(folder, "images.npy")
        xml.write_bytes(text)
        xml.with_suffix(".bin").write_bytes(weights)
        np.save(saved, images)
        return trouble_with(_TRIAL, str(xml), str(saved), json.dumps(_EXACT), patience=_PATIENCE)


def program_bytes(program: ExportedProgram, facts: Mapping[str, str]) -> bytes:
    """A traced graph as torch.export saves it; `facts` are its extra file `facts.json`."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files={"facts.json": json.dumps(facts)})
    return file.getvalue()


def program_runner(content: bytes) -> Run:
    """PyTorch on the bytes of a .pt2 file."""
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            scores: torch.Tensor = module(torch.from_numpy(images))
            return scores.numpy()

    return run


# The part of a checkpoint that goes into a file: the model, and on request what comes before and after it.
#
# Axes: B batch, H height, W width, C channels, K classes; G rows and J columns of a grid of patches, D width.

M = TypeVar("M", bound=nn.Module)

_MOST_PICTURES = 65_536
_MOST_PATCHES = 512  # a side, where the size is left free


class Graph(nn.Module):
    """What a file computes: images as `config` says they go in, to logits or probabilities."""

    def __init__(self, checkpoint: Checkpoint, config: ExportConfig) -> None:
        super().__init__()
        self.config, self.preprocess, self.inside = checkpoint.config, checkpoint.preprocess, config.inside
        activation = activation_of(checkpoint)
        gives: Output = "probabilities" if config.inside else "logits"
        if config.dynamic_size:
            inner = PlainGraph(_fittable(checkpoint.model), checkpoint.preprocess, pixels=config.inside)
            self.answer: nn.Module = OutputGraph(inner, gives=gives, activation=activation).eval()
        else:
            takes: Input = "pixels" if config.inside else "normalised"
            self.answer = exportable(checkpoint, takes=takes, gives=gives, activation=activation)

    def forward(self, images: Tensor) -> Tensor:
        scores_BK: Tensor = self.answer(images)
        return scores_BK

    def taken(self, images_BHWC: Tensor) -> Tensor:
        """uint8 images as this graph takes them."""
        return images_BHWC if self.inside else normalise(images_BHWC, self.preprocess)


def scored(logits_BK: Tensor, checkpoint: Checkpoint) -> Tensor:
    """Logits as probabilities, the way the checkpoint was trained."""
    activation = activation_of(checkpoint)
    return logits_BK.sigmoid() if activation == "sigmoid" else logits_BK.softmax(-1)


def traced(graph: Graph, config: ExportConfig) -> ExportedProgram:
    """The graph as torch.export sees it: any number of images, and any size where asked for."""
    height, width = graph.preprocess.image_size
    shape: dict[int, Any] = {0: Dim("batch", min=1, max=_MOST_PICTURES)}
    if config.dynamic_size:
        (down, across), sides = _free_sides(graph.config)
        height, width = height + down, width + 2 * across  # another size than the model's own, so that nothing is tied to that
        shape |= {axis if config.inside else axis + 1: side for axis, side in sides.items()}
    example_BHWC = torch.zeros(2, height, width, graph.preprocess.channels, dtype=torch.uint8)
    with quiet(), torch.no_grad():
        try:
            return torch.export.export(graph, (graph.taken(example_BHWC),), dynamic_shapes=(shape,))
        except (RuntimeError, ValueError) as error:  # torch's UserError and ConstraintViolationError among them
            raise ExportError(f"torch.export cannot trace this model: {str(error).splitlines()[0]}") from error


def of_any_size(checkpoint: Checkpoint) -> Checkpoint:
    """The same weights in a model that takes images of any size, where it is of a kind that can."""
    if not isinstance(checkpoint.model, ViT):
        return checkpoint
    model = _same_weights(checkpoint.model)
    model.any_size = True
    return replace(checkpoint, model=model)


def _same_weights(model: M) -> M:
    """A copy whose attributes can be changed, with the very same parameters."""
    copied = copy.copy(model)
    copied._modules = dict(model._modules)
    return copied.eval()


def _fittable(model: nn.Module) -> Model:
    """Less work, the same answers: nothing in the last layer that no one reads; and positions that any runtime can fit."""
    assert isinstance(model, Model)
    if not isinstance(model, ViT):
        return model
    copied = _same_weights(model)
    copied.lean = True
    copied.position = _any_grid(copied.position)
    return copied


def _any_grid(position: Positions) -> Positions:
    if position.kind not in ("learned-1d", "none"):
        raise ConfigError(f"{position.kind} positions are exported for one grid", hint="export without dynamic_size")
    made = copy.copy(position)
    made.__class__ = _AnyGrid
    return made


class _AnyGrid(Positions):
    """Positions interpolated by products with matrices that are computed from the grid, which every runtime can do."""

    def _fitted(self, table_LND: Tensor, grid: Grid) -> Tensor:
        placed = table_LND.shape[1] - self.grid[0] * self.grid[1]
        table_LGJD = table_LND[:, placed:].reshape(-1, *self.grid, table_LND.shape[-1])
        down_GG = stretch(self.grid[0], grid[0], self.resize).to(table_LND)
        across_JJ = stretch(self.grid[1], grid[1], self.resize).to(table_LND)
        fitted_LGJD = torch.einsum("gh,lhjd->lgjd", down_GG, table_LGJD)
        fitted_LGJD = torch.einsum("jk,lgkd->lgjd", across_JJ, fitted_LGJD)
        return torch.cat([table_LND[:, :placed], fitted_LGJD.flatten(1, 2)], dim=1)


def stretch(size: int, to: int, how: PositionResize) -> Tensor:
    """The (to, size) matrix that interpolates a line of `size` points to `to` points, as vitlab.models.position does."""
    new_T1 = torch.arange(to, dtype=torch.float32)[:, None]
    old_S = torch.arange(size, dtype=torch.float32)
    if how == "official":  # bilinear, corners kept in place
        at_T1 = new_T1 * (size - 1) / (new_T1.amax(0).clamp(min=1))
        return (1 - (at_T1 - old_S).abs()).clamp(min=0)
    scale = size / (new_T1.amax(0) + 1)
    support = scale.clamp(min=1)
    distance_TS = ((new_T1 + 0.5) * scale - (old_S + 0.5)).abs() / support
    weight_TS = _cubic(distance_TS)
    return weight_TS / weight_TS.sum(1, keepdim=True)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    """Keys' kernel of |x| with the slope that antialiased resizing uses."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _free_sides(config: ModelConfig) -> tuple[tuple[int, int], dict[int, Any]]:
    """In which steps height and width may vary, and as what torch.export sees them: axes 1 and 2 of a uint8 batch."""
    if isinstance(config, ResNetConfig):
        return (32, 32), {1: Dim("height", min=32, max=_MOST_PATCHES * 32), 2: Dim("width", min=32, max=_MOST_PATCHES * 32)}
    if not isinstance(config, ViTConfig):
        raise ConfigError(f"{config.title} is exported for one size", hint="export without dynamic_size")
    if config.pad:
        raise ConfigError("a model that pads its images is exported for one size", hint="export without dynamic_size")
    down, across = config.step
    return (down, across), {1: down * Dim("rows", min=2, max=_MOST_PATCHES), 2: across * Dim("columns", min=2, max=_MOST_PATCHES)}


# Images to try a file with: the user's own, or generated ones.
#
# Axes: N images, H height, W width, C channels.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Images:
    """uint8 images as the model is fed with, and for each the model's classes that are right, where that is known."""

    images_NHWC: NDArray[np.uint8]
    right: tuple[tuple[int, ...], ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images_NHWC)


def own_images(checkpoint: Checkpoint, dataset: Dataset, *, most: int) -> Images:
    """At most `most` images of a source, spread evenly over it; unreadable ones are left out and said."""
    view = EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits())
    places = np.unique(np.linspace(0, len(dataset) - 1, min(most, len(dataset))).astype(int)).tolist()
    images, kept, bad = [], list[int](), list[str]()
    for place in places:
        try:
            sample = dataset.read(place)
            images.append(view.apply(sample.content, name=sample.name))
            kept.append(place)
        except DataError as error:
            bad.append(error.message)
    if not images:
        raise DataError(f"none of the {len(places)} images could be read, the first because {bad[0]}" if bad else "no images")
    notes = (f"{len(bad)} images could not be read and were left out, the first: {bad[0]}",) if bad else ()
    right, why = _right(checkpoint, dataset, kept)
    return Images(images_NHWC=np.stack(images), right=right, notes=(*notes, *why))


def generated_images(checkpoint: Checkpoint, *, count: int, image_size: tuple[int, int] | None = None) -> Images:
    """Images of the built-in generated set, drawn at the size the model is fed with, or at another."""
    channels = checkpoint.preprocess.channels
    config = SyntheticConfig(
        kind="contours",
        classes=count,
        samples_per_class=1,
        image_size=checkpoint.preprocess.image_size if image_size is None else image_size,
        channels=3 if channels == 3 else 1,
    )
    images_NHWC = images(config, range(count), [0] * count)
    if images_NHWC.shape[3] != channels:
        images_NHWC = np.repeat(images_NHWC, channels, axis=3)
    return Images(images_NHWC=np.ascontiguousarray(images_NHWC))


def _right(
    checkpoint: Checkpoint, dataset: Dataset, places: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...] | None, tuple[str, ...]]:
    if dataset.multi_label or not dataset.labels:
        return None, ("the images have no single class: what is compared is agreement with the original",)
    found = [dataset.label(place) for place in places]
    try:
        targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes, subset=True)
    except DataError as error:
        return None, (f"the images' classes are not the model's ({error.message}): what is compared is agreement",)
    if not all(isinstance(label, int) for label in found):
        return None, ("not every image has a label: what is compared is agreement with the original",)
    return tuple(tuple(targets.correct[label]) for label in found if isinstance(label, int)), ()
