"""The files of an export: the graph of a checkpoint, traced and written as ONNX, OpenVINO or .pt2, and the images to check it with.

    graph = Graph(checkpoint, config)
    content = onnx_bytes(traced(graph, config), metadata)
    scores = onnx_runner(content)(images)

Axes: N images, B batch, H height, W width, C channels, K classes; L layers, G rows and J columns of a grid of patches, D width.
"""

from __future__ import annotations

import copy
import io
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F

from vitlab.checkpoints import Checkpoint
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import DecodeLimits, SyntheticConfig, is_detector
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import PositionResize, ViTConfig
from vitlab.data.dataset import Dataset
from vitlab.data.synthetic import images
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import ConfigError, DataError, ExportError, at_least
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.inference.backends import INPUT, onnx_proto, quiet
from vitlab.inference.folded import Input, Normalise, Output, OutputGraph, PlainGraph, activation_of, exportable
from vitlab.io.machine import trouble_with
from vitlab.io.optional import optional_import
from vitlab.models.grid_detector import as_objects, class_scores, of_tokens
from vitlab.models.model import Model
from vitlab.models.position import Grid, Positions
from vitlab.models.record import Record
from vitlab.models.swin import FAR, Block, Merge, Stage, Swin, WindowAttention
from vitlab.models.vit import ViT

ExportFormat = Literal["onnx", "openvino", "pt2"]
ENDINGS: dict[str, ExportFormat] = {".onnx": "onnx", ".xml": "openvino", ".pt2": "pt2"}
OUTPUT = "scores"
Run = Callable[[NDArray[Any]], NDArray[np.float32]]

_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
_TIMEOUT = 300.0  # seconds for a trial; compiling a large model takes many of them
_TRIAL = """
import json, sys
sys.modules["openvino_telemetry"] = None
import numpy, openvino
core = openvino.Core()
core.compile_model(core.read_model(sys.argv[1]), "CPU", json.loads(sys.argv[3]))([numpy.load(sys.argv[2])])
"""
_PROTOBUF_LIMIT = 2**31 - 2**24  # bytes in one ONNX file, with room for the graph itself
_MAX_BATCH = 65_536
_MAX_PATCHES = 512  # along each side, if the image size is dynamic
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """How to export a checkpoint. The batch size of the file is always dynamic.

    `inside` puts preprocessing and the final activation into the file: it takes uint8 images (batch, height, width, channels) of
    the model's image size and returns probabilities; without it, the file takes normalised floats (batch, channels, height, width)
    and returns logits. `dynamic_size` makes height and width dynamic, if the model allows it. `int8` quantises the weights and
    activations of matrix products to 8 bits. Then `max_drop`, in percentage points, is what the file may lose on at most
    `calibration` images of the dataset: accuracy if they have labels, else agreement with the original.
    """

    inside: bool = False
    dynamic_size: bool = False
    int8: bool = False
    max_drop: float = 1.0
    calibration: int = 512

    def __post_init__(self) -> None:
        at_least("calibration", self.calibration, 8)
        if not 0 <= self.max_drop <= 100:
            raise ConfigError(f"max_drop={self.max_drop} must be from 0 to 100 points")


def needed(name: str) -> Any:
    """Import a library of exports; ConfigError names the extra that installs it."""
    return optional_import(name, purpose="exports")


def onnx_bytes(program: ExportedProgram, facts: Mapping[str, str]) -> bytes:
    """A traced graph as an ONNX file, with `facts` as metadata."""
    for library in ("onnx", "onnxscript"):
        needed(library)
    weights = sum(tensor.nbytes for tensor in program.state_dict.values())
    if weights > _PROTOBUF_LIMIT:
        raise ExportError(
            f"{weights / 1e9:.1f} GB of weights do not fit into one ONNX file, whose limit is 2 GB",
            hint="write a .pt2 file instead",
        )
    proto = onnx_proto(program, outputs=[OUTPUT])
    _name_axes(proto)
    del proto.metadata_props[:]
    for key, value in facts.items():
        proto.metadata_props.add(key=key, value=value)
    return bytes(proto.SerializeToString())


def _name_axes(proto: Any) -> None:
    """Call the dynamic axes of an ONNX graph batch, height and width, and its grid rows and columns; the exporter numbers them."""
    (images,) = proto.graph.input
    axes = [axis.dim_param for axis in images.type.tensor_type.shape.dim]
    names = dict(zip((axis for axis in axes if axis), ("batch", "height", "width"), strict=False))
    symbols = {re.sub(r"^\d+\*", "", axis): re.sub(r"^\d+\*", "", axis) for axis in names}
    symbols |= {symbol: name for symbol, name in zip(symbols, ("batch", "rows", "columns"), strict=False) if symbol not in names}
    for value in (images, *proto.graph.value_info, *proto.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in names:
                axis.dim_param = names[axis.dim_param]
            elif axis.dim_param:
                axis.dim_param = re.sub(r"s\d+", lambda found: (symbols | names).get(found[0], found[0]), axis.dim_param)


def onnx_facts(content: bytes) -> dict[str, str]:
    """The metadata of an ONNX file."""
    proto = needed("onnx").load_from_string(content)
    return {entry.key: entry.value for entry in proto.metadata_props}


def onnx_runner(content: bytes, *, threads: int = 0) -> Run:
    """Runs the bytes of an ONNX file with ONNX Runtime."""
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
    """An ONNX file as an OpenVINO model, with `facts` as metadata."""
    openvino = needed("openvino")
    model = openvino.Core().read_model(model=onnx, weights=b"")
    model.inputs[0].tensor.set_names({INPUT})
    model.outputs[0].tensor.set_names({OUTPUT})
    for key, value in facts.items():
        model.set_rt_info(value, ["vitlab", key])
    return model


def openvino_pair(model: Any) -> tuple[bytes, bytes]:
    """The files of an OpenVINO model, .xml and .bin, with uncompressed weights."""
    with tempfile.TemporaryDirectory() as folder:
        text, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        needed("openvino").save_model(model, text, compress_to_fp16=False)
        return text.read_bytes(), weights.read_bytes()


def openvino_runner(text: bytes, weights: bytes) -> Run:
    """Runs the bytes of an .xml and a .bin file with OpenVINO, in float32."""
    openvino = needed("openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model=text, weights=weights), "CPU", _EXACT)

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        return np.array(compiled([images])[0], np.float32)

    return run


def openvino_trouble(text: bytes, weights: bytes, images: NDArray[Any]) -> str | None:
    """Run the files with OpenVINO in a child process: why it fails, or None. 8-bit CPU instructions may kill it."""
    with tempfile.TemporaryDirectory() as folder:
        xml, saved = Path(folder, "model.xml"), Path(folder, "images.npy")
        xml.write_bytes(text)
        xml.with_suffix(".bin").write_bytes(weights)
        np.save(saved, images)
        return trouble_with(_TRIAL, str(xml), str(saved), json.dumps(_EXACT), patience=_TIMEOUT)


def program_bytes(program: ExportedProgram, facts: Mapping[str, str]) -> bytes:
    """A traced graph as a .pt2 file; `facts` are its extra file `facts.json`."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files={"facts.json": json.dumps(facts)})
    return file.getvalue()


def program_runner(content: bytes) -> Run:
    """Runs the bytes of a .pt2 file with PyTorch."""
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            scores: torch.Tensor = module(torch.from_numpy(images))
            return scores.numpy()

    return run


class Graph(nn.Module):
    """The module that is exported: images, as `config.inside` says, to logits or probabilities."""

    def __init__(self, checkpoint: Checkpoint, config: ExportConfig) -> None:
        super().__init__()
        self.config, self.preprocess, self.inside = checkpoint.config, checkpoint.preprocess, config.inside
        activation = activation_of(checkpoint)
        gives: Output = "probabilities" if config.inside else "logits"
        if is_detector(checkpoint.config):
            self.answer: nn.Module = ObjectsGraph(checkpoint, inside=config.inside)
        elif config.dynamic_size:
            inner = PlainGraph(_exportable_model(checkpoint.model), checkpoint.preprocess, pixels=config.inside)
            self.answer = OutputGraph(inner, gives=gives, activation=activation).eval()
        else:
            takes: Input = "pixels" if config.inside else "normalised"
            self.answer = exportable(checkpoint, takes=takes, gives=gives, activation=activation)

    def forward(self, images: Tensor) -> Tensor:
        scores_BK: Tensor = self.answer(images)
        return scores_BK

    def prepare(self, images_BHWC: Tensor) -> Tensor:
        """uint8 images as the input of this graph."""
        return images_BHWC if self.inside else normalise(images_BHWC, self.preprocess)


class ObjectsGraph(nn.Module):
    """The graph of a detector: the edges of each box as fractions of the image, then class logits, or probabilities if `inside`.

    Which boxes to keep, by their scores and overlaps, is left to the caller: a rounding error could change a choice.
    """

    def __init__(self, checkpoint: Checkpoint, *, inside: bool) -> None:
        super().__init__()
        self.objects = as_objects(checkpoint.model).eval()
        self.normalise = Normalise(checkpoint.preprocess) if inside else None
        self.tokens = of_tokens(checkpoint.config)

    def forward(self, images: Tensor) -> Tensor:
        objects_BNX: Tensor = self.objects(images if self.normalise is None else self.normalise(images))
        if self.normalise is None:
            return objects_BNX
        return torch.cat([objects_BNX[..., :4], class_scores(objects_BNX, tokens=self.tokens)], dim=-1)


def reference_scores(checkpoint: Checkpoint, images_BHWC: Tensor, *, inside: bool) -> Tensor:
    """What a file must give for uint8 images, computed by PyTorch."""
    model, images_BCHW = checkpoint.model.eval(), normalise(images_BHWC, checkpoint.preprocess)
    if is_detector(checkpoint.config):
        objects_BNX: Tensor = ObjectsGraph(checkpoint, inside=inside)(images_BHWC if inside else images_BCHW)
        return objects_BNX
    logits_BK: Tensor = model(images_BCHW)
    return probabilities(logits_BK, checkpoint) if inside else logits_BK


def probabilities(logits_BK: Tensor, checkpoint: Checkpoint) -> Tensor:
    """Probabilities of logits, by the activation that the checkpoint was trained with."""
    activation = activation_of(checkpoint)
    return logits_BK.sigmoid() if activation == "sigmoid" else logits_BK.softmax(1)


def traced(graph: Graph, config: ExportConfig) -> ExportedProgram:
    """Trace the graph with torch.export: dynamic batch size and, with `config.dynamic_size`, dynamic image size."""
    height, width = graph.preprocess.image_size
    shape: dict[int, Any] = {0: Dim("batch", min=1, max=_MAX_BATCH)}
    if config.dynamic_size:
        (down, across), sides = _free_sides(graph.config)
        height, width = height + down, width + 2 * across  # not the model's own size, so that no constant depends on it
        shape |= {axis if config.inside else axis + 1: side for axis, side in sides.items()}
    example_BHWC = torch.zeros(2, height, width, graph.preprocess.channels, dtype=torch.uint8)
    with quiet(), torch.no_grad():
        try:
            return torch.export.export(graph, (graph.prepare(example_BHWC),), dynamic_shapes=(shape,))
        except (RuntimeError, ValueError) as error:  # torch's UserError and ConstraintViolationError among them
            raise ExportError(f"torch.export cannot trace this model: {str(error).splitlines()[0]}") from error


def of_any_size(checkpoint: Checkpoint) -> Checkpoint:
    """The same weights in a model that takes images of any size, if its architecture can."""
    if not isinstance(checkpoint.model, ViT):
        return checkpoint
    model = _same_weights(checkpoint.model)
    model.any_size = True
    return replace(checkpoint, model=model)


def _same_weights(model: M) -> M:
    """A copy whose attributes can be changed; the parameters are shared."""
    copied = copy.copy(model)
    copied._modules = dict(model._modules)
    return copied.eval()


def _exportable_model(model: nn.Module) -> Model:
    """The same function for any size: a ViT with less work in the last layer and positions that any runtime can interpolate."""
    assert isinstance(model, Model)
    if isinstance(model, Swin):
        return any_size_swin(model)
    if not isinstance(model, ViT):
        return model
    copied = _same_weights(model)
    copied.skip_unused_tokens = True
    copied.position = _any_grid(copied.position)
    return copied


def _any_grid(position: Positions) -> Positions:
    inside = "rotary" if position.rotary is not None else "relative" if position.bias_form is not None else position.kind
    if inside not in ("learned-1d", "none") or position.resize not in ("official", "bicubic"):
        raise ConfigError(
            f"{inside} positions can be exported for one grid only",
            hint="export without dynamic_size, one file for each image_size that you need",
        )
    made = copy.copy(position)
    made.__class__ = _AnyGrid
    return made


class _AnyGrid(Positions):
    """Position embeddings interpolated by matrix products, which every runtime can do; the matrices depend on the grid."""

    def _fitted(self, table_LND: Tensor, grid: Grid) -> Tensor:
        placed = table_LND.shape[1] - self.grid[0] * self.grid[1]
        table_LGJD = table_LND[:, placed:].reshape(-1, *self.grid, table_LND.shape[-1])
        down_GG = interpolation_matrix(self.grid[0], grid[0], self.resize).to(table_LND)
        across_JJ = interpolation_matrix(self.grid[1], grid[1], self.resize).to(table_LND)
        fitted_LGJD = torch.einsum("gh,lhjd->lgjd", down_GG, table_LGJD)
        fitted_LGJD = torch.einsum("jk,lgkd->lgjd", across_JJ, fitted_LGJD)
        return torch.cat([table_LND[:, :placed], fitted_LGJD.flatten(1, 2)], dim=1)


def interpolation_matrix(size: int, to: int, how: PositionResize) -> Tensor:
    """The (to, size) matrix that interpolates `size` points to `to` points, as vitlab.models.position does."""
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
    """Keys' cubic kernel of |x|, with the slope of antialiased resizing."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _free_sides(config: ModelConfig) -> tuple[tuple[int, int], dict[int, Any]]:
    """Steps in which height and width may vary, and the dynamic axes 1 and 2 of a uint8 batch for torch.export."""
    if isinstance(config, ResNetConfig | ConvNeXtConfig):  # whose convolutions take any size
        step = 32 if isinstance(config, ResNetConfig) else config.step
        least = step if isinstance(config, ResNetConfig) else 2 * step  # torch.export takes a map of one cell for another graph
        sides = {axis: Dim(name, min=least, max=_MAX_PATCHES * step) for axis, name in ((1, "height"), (2, "width"))}
        return (step, step), sides
    if isinstance(config, EfficientNetConfig):
        return _whole_cells(config)
    if isinstance(config, SwinConfig):
        down, across = (side << len(config.depths) - 1 for side in config.patch_size)  # pixels of a cell of the last stage
        height, width = (Dim(name, min=step + 1, max=_MAX_PATCHES * step) for name, step in (("height", down), ("width", across)))
        return (down, across), {1: height, 2: width}
    if not isinstance(config, ViTConfig):
        raise ConfigError(f"{config.title} can be exported for one image size only", hint="export without dynamic_size")
    if config.pad:
        raise ConfigError(
            "a model that pads its images can be exported for one image size only", hint="export without dynamic_size"
        )
    down, across = config.step
    return (down, across), {1: down * Dim("rows", min=2, max=_MAX_PATCHES), 2: across * Dim("columns", min=2, max=_MAX_PATCHES)}


def _whole_cells(config: EfficientNetConfig) -> tuple[tuple[int, int], dict[int, Any]]:
    """An EfficientNet pads by the remainder of its input: sizes vary in whole cells of the last stage, where there is none."""
    step = config.stride
    if config.image_size[0] % step or config.image_size[1] % step:
        height, width = (round(side / step) * step for side in config.image_size)
        raise ConfigError(
            f"image_size={config.image_size[0]}x{config.image_size[1]} is not a multiple of {step}, in which the size of this model"
            " may vary: it pads by the remainder",
            hint=f"image_size={height}x{width}",
        )
    rows, columns = Dim("rows", min=2, max=_MAX_PATCHES), Dim("columns", min=2, max=_MAX_PATCHES)
    return (step, step), {1: step * rows, 2: step * columns}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExportImages:
    """uint8 images of the model's image size and, for each, the model's classes that are correct, if known."""

    images_NHWC: NDArray[np.uint8]
    correct: tuple[tuple[int, ...], ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images_NHWC)


def dataset_images(checkpoint: Checkpoint, dataset: Dataset, *, most: int) -> ExportImages:
    """At most `most` images of a dataset, spread evenly over it; unreadable ones are left out and noted."""
    transform = EvaluationTransform(preprocess=checkpoint.preprocess, limits=DecodeLimits())
    places = np.unique(np.linspace(0, len(dataset) - 1, min(most, len(dataset))).astype(int)).tolist()
    images, kept, bad = [], list[int](), list[str]()
    for place in places:
        try:
            sample = dataset.read(place)
            images.append(transform.apply(sample.content, name=sample.name))
            kept.append(place)
        except DataError as error:
            bad.append(error.message)
    if not images:
        raise DataError(f"none of the {len(places)} images could be read, the first because {bad[0]}" if bad else "no images")
    notes = (f"{len(bad)} images could not be read and were left out, the first: {bad[0]}",) if bad else ()
    correct, why = _correct_classes(checkpoint, dataset, kept)
    return ExportImages(images_NHWC=np.stack(images), correct=correct, notes=(*notes, *why))


def synthetic_images(checkpoint: Checkpoint, *, count: int, image_size: tuple[int, int] | None = None) -> ExportImages:
    """Synthetic images, of the model's image size or another."""
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
    return ExportImages(images_NHWC=np.ascontiguousarray(images_NHWC))


def _correct_classes(
    checkpoint: Checkpoint, dataset: Dataset, places: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...] | None, tuple[str, ...]]:
    if dataset.multi_label or not dataset.labels:
        return None, ("the images have no single class: agreement with the original is measured instead of accuracy",)
    found = [dataset.label(place) for place in places]
    try:
        targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes, subset=True)
    except DataError as error:
        return None, (f"the images' classes are not the model's ({error.message}): agreement is measured instead of accuracy",)
    if not all(isinstance(label, int) for label in found):
        return None, ("not every image has a label: agreement with the original is measured instead of accuracy",)
    return tuple(tuple(targets.correct[label]) for label in found if isinstance(label, int)), ()


# --- a Swin Transformer of any image size -------------------------------------------------------------------------------------
# A Swin Transformer for files of any image size: its maps are shifted, padded and cut into windows by indices of the graph.
#
# `vitlab.models.swin` decides by the size of a map whether to shift and pad it, and a traced file would keep the decisions of its
# example. Here the maps of a batch are one list of cells, and tensors that the file computes from the sizes say which cell goes
# where. The parameters are the model's own. No axis counts the windows of one image: torch.export takes an axis of length 1 for
# another graph than a longer one.
#
# Axes: B batch, C channels, G x J cells of a map (down, across), T cells of all maps in reading order, W windows of all maps, N
# cells of a window, P = W x N places in windows, D width, H heads, K width of a head.


def any_size_swin(model: Swin) -> Swin:
    """The same function with the same parameters, in operations that hold for every size of image."""
    made = copy.copy(model)
    made.__class__ = _AnySizeSwin
    return made.eval()


class _AnySizeSwin(Swin):
    def features(self, images_BCHW: Tensor, record: Record | None = None) -> Tensor:
        assert record is None
        p, q = self.config.patch_size
        # With p - 1 rows of zeros below, a convolution of stride p sees each patch, and a last one that is not whole.
        padded_BCHW = F.pad(images_BCHW, (0, q - 1, 0, p - 1))
        map_BDGJ = F.conv2d(padded_BCHW, self.patches.weight, self.patches.bias, stride=(p, q))
        shape = _Maps(*map_BDGJ.shape[:1], *map_BDGJ.shape[2:])
        z_TD: Tensor = self.patch_norm(map_BDGJ.permute(0, 2, 3, 1).flatten(0, 2))
        for stage in self.stages:
            assert isinstance(stage, Stage)
            if stage.merge is not None:
                z_TD, shape = _merged_cells(stage.merge, z_TD, shape)
            for block in stage.blocks:
                assert isinstance(block, Block)
                z_TD = z_TD + _window_attended(block, block.norm1(z_TD), shape)
                z_TD = z_TD + block.mlp(block.norm2(z_TD))
        y_BD: Tensor = self.norm(z_TD).view(shape.b, shape.g * shape.j, -1).mean(dim=1)
        return y_BD


class _Maps(NamedTuple):
    """Maps of a batch: how many, and their cells down and across."""

    b: int
    g: int
    j: int


def _size_tensor(size: int) -> Tensor:
    """A size as a tensor of the graph: a comparison of it or a remainder is then computed by the file."""
    return torch.arange(size + 1).amax(0)


def _taken_cells(x_TD: Tensor, image_P: Tensor, row_P: Tensor, column_P: Tensor, shape: _Maps) -> Tensor:
    """The cells in those rows and columns of those images' maps; zeros where a row or column lies outside."""
    g, j = _size_tensor(shape.g), _size_tensor(shape.j)
    zeros = _size_tensor(x_TD.shape[0])  # the number of the row of zeros
    index_P = torch.where((row_P < g) & (column_P < j), (image_P * g + row_P) * j + column_P, zeros)
    return F.pad(x_TD, (0, 0, 0, 1)).index_select(0, index_P)


def _merged_cells(merge: Merge, z_TD: Tensor, shape: _Maps) -> tuple[Tensor, _Maps]:
    """As `Merge`: the four are upper left, lower left, upper right, lower right."""
    half = _Maps(shape.b, (shape.g + 1) // 2, (shape.j + 1) // 2)
    cells, g, j = half.b * half.g * half.j, _size_tensor(half.g), _size_tensor(half.j)
    place_P = torch.arange(4 * cells)
    cell_P, part_P = place_P // 4, place_P % 4
    four_PD = _taken_cells(z_TD, cell_P // j // g, 2 * (cell_P // j % g) + part_P % 2, 2 * (cell_P % j) + part_P // 2, shape)
    merged_TD: Tensor = merge.reduction(merge.norm(four_PD.view(cells, 4 * z_TD.shape[1])))
    return merged_TD, half


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _WindowAxis:
    """How the cells along one axis are shifted, padded and cut into windows of `side` cells."""

    side: int
    cells: Tensor
    padded: Tensor
    shift: Tensor
    pad_first: bool

    @classmethod
    def of(cls, cells: int, side: int, block: Block) -> _WindowAxis:
        """As in `shift_of`: half a window, if there are several."""
        count, padded = _size_tensor(cells), _size_tensor(_window_count(cells, side) * side)
        shift = torch.where(count > side, side // 2, 0) if block.shifted else torch.zeros_like(count)
        return cls(side=side, cells=count, padded=padded, shift=shift, pad_first=block.pad_first)

    def cell(self, place_P: Tensor) -> Tensor:
        """The cell at each place; `cells` or more where there is padding."""
        if self.pad_first:
            return (place_P + self.shift) % self.padded
        return torch.where(place_P < self.cells, (place_P + self.shift) % self.cells, self.cells)

    def place(self, cell_T: Tensor) -> Tensor:
        """The place of each cell."""
        around = self.padded if self.pad_first else self.cells
        return (cell_T - self.shift + around) % around

    def region(self, place_P: Tensor) -> Tensor:
        """As in `far_apart`: places of a window with different numbers are neighbours only because of the shift."""
        region_P = (place_P >= self.padded - self.side).int() + (place_P >= self.padded - self.shift).int()
        return torch.where(self.shift > 0, region_P, 0)


def _window_count(cells: int, side: int) -> int:
    return (cells + side - 1) // side


def _window_attended(block: Block, x_TD: Tensor, shape: _Maps) -> Tensor:
    (b, g, j), (down, across) = shape, block.window
    rows, columns = _WindowAxis.of(g, down, block), _WindowAxis.of(j, across, block)
    n, count = down * across, b * _window_count(g, down) * _window_count(j, across)
    above, beside = rows.padded // down, columns.padded // across
    # The places in reading order within each window, the windows in reading order: the row and the column of each.
    place_P = torch.arange(count * n)
    window_P = place_P // n
    up_P = window_P // beside % above * down + place_P % n // across
    left_P = window_P % beside * across + place_P % across
    x_PD = _taken_cells(x_TD, window_P // beside // above, rows.cell(up_P), columns.cell(left_P), shape)
    far_WNN = None
    if block.shifted:
        region_WN = (3 * rows.region(up_P) + columns.region(left_P)).view(count, n)
        far_WNN = torch.where(region_WN[:, :, None] == region_WN[:, None], 0.0, FAR)
    y_PD = _window_attention(block.attention, x_PD.view(count, n, -1), far_WNN).flatten(0, 1)
    cell_T, tall, wide = torch.arange(b * g * j), _size_tensor(g), _size_tensor(j)
    up_T, left_T = rows.place(cell_T // wide % tall), columns.place(cell_T % wide)
    window_T = (cell_T // wide // tall * above + up_T // down) * beside + left_T // across
    return y_PD.index_select(0, window_T * n + up_T % down * across + left_T % across)


def _window_attention(attention: WindowAttention, x_WND: Tensor, far_WNN: Tensor | None) -> Tensor:
    w, n, d = x_WND.shape
    qkv_WN3HK = attention.qkv(x_WND).view(w, n, 3, attention.heads, d // attention.heads)
    q_WHNK, k_WHNK, v_WHNK = (part_WNHK.transpose(1, 2) for part_WNHK in qkv_WN3HK.unbind(2))
    bias_1HNN = attention.bias_HNN()[None]
    bias_WHNN = bias_1HNN if far_WNN is None else bias_1HNN + far_WNN[:, None]
    y_WHNK = F.scaled_dot_product_attention(q_WHNK, k_WHNK, v_WHNK, attn_mask=bias_WHNN)
    y_WND: Tensor = attention.out(y_WHNK.transpose(1, 2).flatten(2))
    return y_WND
