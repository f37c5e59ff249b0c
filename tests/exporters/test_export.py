"""An exported file gives the scores of the model; a file that does not is never written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import vitlab
from tests.exporters.traces import traced_once
from vitlab.checkpoints import Checkpoint
from vitlab.config import ConvNeXtConfig, EfficientNetConfig, Preprocess, SwinConfig, variant
from vitlab.config.model import ModelConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.vit import Position, ViTConfig
from vitlab.config.vit_parts import RelativeBias, ResNetStem, Rotary
from vitlab.data.dataset import Dataset
from vitlab.data.opening import open_dataset
from vitlab.data.transforms import normalise
from vitlab.errors import ConfigError, ExportError
from vitlab.exporters import ExportConfig, export, files
from vitlab.exporters.exporter import Exported, Files, Int8Evaluation, OpenVINOQuantiser, quantise
from vitlab.exporters.files import (
    Graph,
    Run,
    dataset_images,
    interpolation_matrix,
    onnx_bytes,
    onnx_facts,
    onnx_runner,
    openvino_model,
    openvino_pair,
    openvino_runner,
    program_bytes,
    program_runner,
    synthetic_images,
    traced,
)
from vitlab.io.display import silent
from vitlab.models import build
from vitlab.models.position import resize_grid
from vitlab.models.swin import Swin

MINI = variant("ViT-Mini/8", num_classes=5, image_size=32)
LABELS = ("cat", "dog", "owl", "<b>bold</b>", "fünf")


def knowing(config: ModelConfig) -> Checkpoint:
    """A checkpoint whose head is not zero, so that scores differ between images."""
    model = build(config, seed=3)
    head = model.head
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
        for name, parameter in model.named_parameters():
            if name.endswith(("offset_bias", "qkv.weight")) and isinstance(model, Swin):  # so that it matters who sees whom
                parameter.mul_(20)
    size = config.image_size if isinstance(config, ViTConfig) else (32, 32)
    fed = Preprocess(image_size=size, resize_to=max(size) + 4, mean=(0.4,) * config.channels, std=(0.3,) * config.channels)
    return Checkpoint(model=model, config=config, preprocess=fed, labels=LABELS[: config.num_classes])


@pytest.fixture(scope="module", autouse=True)
def _traced_once(onnx_operators: None) -> Iterator[None]:
    with traced_once():
        yield


@pytest.fixture(scope="module")
def mini() -> Checkpoint:
    assert isinstance(MINI, ViTConfig)
    return knowing(replace(MINI, depth=2))


@pytest.fixture(scope="module")
def exported(mini: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Exported]:
    """Files of `mini` by their ending and by what is inside, each in a folder of its own, made once."""
    return cache(
        lambda ending, inside: export(mini, tmp_path_factory.mktemp("file") / f"model{ending}", ExportConfig(inside=inside))
    )


@pytest.mark.parametrize("ending", [".onnx", ".xml", ".pt2"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_file_of_any_format_gives_the_scores_of_pytorch(
    exported: Callable[[str, bool], Exported], ending: str, inside: bool
) -> None:
    made = exported(ending, inside)
    assert made.difference < 1e-5
    assert all(path.is_file() for path in made.paths)
    assert sum(path.stat().st_size for path in made.paths) == made.bytes
    assert sorted(made.paths[0].parent.iterdir()) == sorted(made.paths)  # and nothing else was left


def test_uint8_images_go_in_and_probabilities_come_out(mini: Checkpoint, exported: Callable[[str, bool], Exported]) -> None:
    made = exported(".onnx", True)
    images_NHWC = synthetic_images(mini, count=3).images_NHWC
    chances_NK = onnx_runner(made.paths[0].read_bytes())(images_NHWC)
    np.testing.assert_allclose(chances_NK.sum(1), 1, atol=1e-6)
    assert np.ptp(chances_NK, axis=0).max() > 1e-3


def test_labels_and_preprocessing_are_in_the_file(exported: Callable[[str, bool], Exported]) -> None:
    made = exported(".onnx", False)
    facts = onnx_facts(made.paths[0].read_bytes())
    assert json.loads(facts["vitlab_labels"]) == list(LABELS)
    assert json.loads(facts["vitlab_preprocess"])["resize_to"] == 36


def test_an_openvino_file_holds_the_labels_too(exported: Callable[[str, bool], Exported]) -> None:
    made = exported(".xml", False)
    openvino = pytest.importorskip("openvino")
    model = openvino.Core().read_model(made.paths[0])
    assert json.loads(model.get_rt_info(["vitlab", "vitlab_labels"]).astype(str)) == list(LABELS)


def check_axes(path: Path, *, inside: bool, pixels: Sequence[int | str]) -> None:
    """The axes of the file have names, and none of them is one that torch made up."""
    graph = pytest.importorskip("onnx").load(path).graph
    (images,), (scores,) = graph.input, graph.output
    axes = [axis.dim_param or axis.dim_value for axis in images.type.tensor_type.shape.dim]
    assert axes == (["batch", *pixels, 3] if inside else ["batch", 3, *pixels])
    assert scores.type.tensor_type.shape.dim[0].dim_param == "batch"
    numbered = {axis.dim_param for value in graph.value_info for axis in value.type.tensor_type.shape.dim}
    assert not any(name[:1] == "s" and name[1:2].isdigit() for name in numbered)


def test_the_axes_of_an_onnx_file_have_names(mini: Checkpoint, exported: Callable[[str, bool], Exported]) -> None:
    for inside in (False, True):
        check_axes(exported(".onnx", inside).paths[0], inside=inside, pixels=mini.config.image_size)


@pytest.mark.parametrize(("resize", "inside"), [("official", False), ("bicubic", True)])
def test_a_file_of_dynamic_size_names_its_axes_and_gives_the_scores_of_pytorch_at_other_sizes(
    tmp_path: Path, resize: str, inside: bool
) -> None:
    assert isinstance(MINI, ViTConfig)
    numerics = replace(MINI.numerics, resize=resize)  # type: ignore[arg-type]
    config = ExportConfig(dynamic_size=True, inside=inside)
    made = export(knowing(replace(MINI, depth=1, numerics=numerics)), tmp_path / "model.onnx", config)
    assert made.difference < 1e-5
    run = onnx_runner(made.paths[0].read_bytes())
    images = np.zeros((3, 48, 80, 3), np.uint8) if inside else np.zeros((3, 3, 48, 80), np.float32)
    assert run(images).shape == (3, 5)
    check_axes(made.paths[0], inside=inside, pixels=("height", "width"))


DYNAMIC: dict[str, tuple[ConvNeXtConfig | EfficientNetConfig, tuple[int, int]]] = {
    "convnext": (ConvNeXtConfig(depths=(1, 1), widths=(8, 16), image_size=(32, 32), num_classes=5, layer_scale=0.1), (37, 61)),
    "efficientnet": (
        EfficientNetConfig(stages=((2, 5, 2, 2, 8),), stem_width=8, head_width=16, image_size=(32, 32), num_classes=5),
        (40, 24),
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_convolutional_families_are_exported_for_any_size_and_give_pytorchs_scores_at_several(name: str, tmp_path: Path) -> None:
    config, other = DYNAMIC[name]
    checkpoint = knowing(config)
    made = export(checkpoint, tmp_path / "model.onnx", ExportConfig(dynamic_size=True))
    run = onnx_runner(made.paths[0].read_bytes())
    for size in ((32, 32), (64, 96), other):
        images_BCHW = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            np.testing.assert_allclose(run(images_BCHW.numpy()), checkpoint.model(images_BCHW).numpy(), atol=1e-5, rtol=1e-4)


def test_what_has_one_size_in_a_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    odd = replace(DYNAMIC["efficientnet"][0], image_size=(33, 36))
    with pytest.raises(ConfigError, match="not a multiple of 4"):
        export(knowing(odd), tmp_path / "model.onnx", ExportConfig(dynamic_size=True))
    assert list(tmp_path.iterdir()) == []


SWIN = SwinConfig(width=24, depths=(1, 2), heads=(1, 2), window=(4, 4), image_size=(32, 32), num_classes=5)
# Windows that fit, that need padding, that are shifted along one axis, and one window for the whole of a stage's map.
SWIN_SIZES = ((32, 32), (64, 96), (37, 61), (16, 50), (20, 24), (13, 9))


@pytest.mark.parametrize("pad_first", [True, False])
def test_a_swin_is_exported_for_any_size_and_gives_pytorchs_scores_in_every_runtime(pad_first: bool, tmp_path: Path) -> None:
    checkpoint, config = knowing(replace(SWIN, pad_first=pad_first)), ExportConfig(dynamic_size=True)
    if pad_first:
        content = export(checkpoint, tmp_path / "model.onnx", config).paths[0].read_bytes()
        runs = [onnx_runner(content), openvino_runner(*openvino_pair(openvino_model(content, {})))]
    else:
        runs = [program_runner(program_bytes(traced(Graph(checkpoint, config), config), {}))]
    for batch, size in enumerate(SWIN_SIZES, start=1):
        images_BCHW = torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            wanted_BK = checkpoint.model(images_BCHW).numpy()
        for run in runs:
            np.testing.assert_allclose(run(images_BCHW.numpy()), wanted_BK, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("how", ["official", "bicubic"])
@pytest.mark.parametrize(("size", "to"), [(14, 24), (7, 12), (24, 14), (5, 5), (3, 17), (5, 1)])
def test_the_matrices_of_a_dynamic_size_interpolate_as_the_model_does(size: int, to: int, how: str) -> None:
    line_1ND = torch.randn(1, size, 4, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    wanted_1ND = resize_grid(line_1ND, (size, 1), (to, 1), how)  # type: ignore[arg-type]
    torch.testing.assert_close(interpolation_matrix(size, to, how).double() @ line_1ND, wanted_1ND, atol=1e-5, rtol=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["hybrid", "bit", "distilled", "map"])  # grey images: see `reader`
def test_every_architecture_is_exported(name: str, tmp_path: Path) -> None:
    assert isinstance(MINI, ViTConfig)
    small = replace(MINI, depth=1)
    configs: dict[str, ModelConfig] = {
        "hybrid": replace(small, stem=ResNetStem(blocks=(1, 1), width=32), patch_size=(1, 1), image_size=(64, 64)),
        "bit": ResNetConfig(blocks=(1, 1), stage_widths=(128, 256), root_width=32, image_size=(32, 32), num_classes=5),
        "distilled": replace(small, distill_token=True),
        "map": replace(small, pool="map", class_token=False),
    }
    made = export(knowing(configs[name]), tmp_path / "model.onnx")
    assert made.difference < 1e-4


def test_a_model_with_constant_scores_is_noted(tmp_path: Path) -> None:
    assert isinstance(MINI, ViTConfig)
    config = replace(MINI, depth=1)
    fresh = Checkpoint(model=build(config), config=config, preprocess=Preprocess(image_size=(32, 32), resize_to=32))
    assert any("says little" in note for note in export(fresh, tmp_path / "model.pt2").notes)


def test_what_cannot_be_exported_is_refused_with_a_reason(mini: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no export format"):
        export(mini, tmp_path / "model.tflite")
    with pytest.raises(ConfigError, match="no export format"):  # and not that the folder exists and could be replaced
        vitlab.export(mini, tmp_path)
    with pytest.raises(ConfigError, match="calibrated on images"):
        export(mini, tmp_path / "model.onnx", ExportConfig(int8=True))
    with pytest.raises(ConfigError, match=r"\.onnx or \.xml"):
        export(mini, tmp_path / "model.pt2", ExportConfig(int8=True), dataset=open_dataset("digits", split="test"))
    assert isinstance(mini.config, ViTConfig)
    for position, word in (
        (Position(kind="relative", prefix=False), "relative"),
        (Position(rotary=Rotary()), "rotary"),
        (Position(kind="none", rotary=Rotary(kind="mixed", temperature=10.0, columns_first=True)), "rotary"),
        (Position(bias=RelativeBias()), "relative"),
        (Position(kind="sincos-1d"), "sincos-1d"),
    ):
        with pytest.raises(ConfigError, match=f"{word} positions can be exported for one grid only"):
            export(knowing(replace(mini.config, position=position)), tmp_path / "model.onnx", ExportConfig(dynamic_size=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("position", [Position(rotary=Rotary()), Position(bias=RelativeBias())], ids=["rotary", "bias"])
def test_a_file_for_one_grid_refuses_images_of_another_size(mini: Checkpoint, position: Position, tmp_path: Path) -> None:
    """Also where the model itself takes any size: the angles and biases in the file are those of one grid."""
    assert isinstance(mini.config, ViTConfig)
    checkpoint = knowing(replace(mini.config, position=position, dynamic_size=True))
    assert checkpoint.model(torch.zeros(1, 3, 64, 64)).shape == (1, mini.config.num_classes)
    export(checkpoint, tmp_path / "model.pt2")
    graph = torch.export.load(tmp_path / "model.pt2").module()
    assert graph(torch.zeros(2, 3, 32, 32)).shape == (2, mini.config.num_classes)
    with pytest.raises((AssertionError, RuntimeError)):
        graph(torch.zeros(2, 3, 64, 64))


def test_a_missing_runtime_is_named_with_its_extra(mini: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("vitlab.io.optional.import_module", gone)
    with pytest.raises(ConfigError, match="is not installed") as caught:
        export(mini, tmp_path / "model.onnx")
    assert caught.value.hint is not None
    assert "vitlab[export]" in caught.value.hint


@pytest.fixture(scope="module")
def reader() -> Checkpoint:
    """One layer: if 8 bits lose too much on this CPU, the search for fragile products takes seconds for each of them."""
    return reader_of_digits(depth=1)


def reader_of_digits(depth: int) -> Checkpoint:
    """A ViT that classifies digits by the nearest class mean of its features: good enough to lose something by rounding."""
    assert isinstance(MINI, ViTConfig)
    config = replace(MINI, depth=depth, num_classes=10, channels=1)
    dataset = open_dataset("digits", split="train")
    labels = dataset.labels
    model = build(config, seed=3)
    fed = Preprocess(image_size=(32, 32), resize="squash", mean=(0.5,), std=(0.5,))
    made = Checkpoint(model=model, config=config, preprocess=fed, labels=labels)
    images = dataset_images(made, dataset, most=300)
    with torch.no_grad():
        features_ND = model.features(normalise(torch.from_numpy(images.images_NHWC), fed))
        correct_N = torch.tensor([classes[0] for classes in images.correct or ()])
        mean_KD = torch.stack([features_ND[correct_N == label].mean(0) for label in range(10)])
        assert isinstance(model.head, nn.Linear)
        centred_KD = mean_KD - mean_KD.mean(0)
        model.head.weight.copy_(10 * centred_KD)
        model.head.bias.copy_(-5 * (centred_KD * (mean_KD + mean_KD.mean(0))).sum(1))
    return made


def foreign() -> Dataset:
    """Images with labels that the model does not know."""
    return open_dataset("synthetic:kind=strokes,classes=3,samples_per_class=8,image_size=32", split="train")


@pytest.mark.parametrize("ending", [".onnx", ".xml"])
def test_eight_bits_take_a_third_of_the_file_and_lose_at_most_what_is_allowed(
    reader: Checkpoint, tmp_path: Path, ending: str
) -> None:
    dataset = open_dataset("digits", split="test")
    whole = export(reader, tmp_path / f"float{ending}", ExportConfig(inside=True))
    made = export(
        reader, tmp_path / f"int8{ending}", ExportConfig(int8=True, inside=True, calibration=64, max_drop=5), dataset=dataset
    )
    assert made.quantised is not None
    assert made.quantised.measure == "top-1"
    assert made.quantised.before > 30  # chance is 10
    assert made.quantised.drop <= 5
    assert made.paths[-1].stat().st_size < whole.paths[-1].stat().st_size  # of OpenVINO's two, that of the weights
    assert made.difference > 0


class Fragility:
    """A quantiser of four products: with the first one in 8 bits every second prediction is wrong, with any other none is."""

    def __init__(self) -> None:
        self.products: tuple[str, ...] = ("a", "b", "c", "d")
        self.layer_of = {name: f"layer {name}" for name in self.products}
        self.left: tuple[str, ...] = ()

    def in_float(self) -> Run:
        return self.runner(self.without(self.products))

    def without(self, floats: Sequence[str]) -> Files:
        return ("".join(name for name in self.products if name not in floats).encode(),)

    def only(self, name: str) -> Files:
        return (name.encode(),)

    def runner(self, files: Files) -> Run:
        def run(images: NDArray[Any]) -> NDArray[np.float32]:
            classes = images + 1 - images % 2 if b"a" in files[0] else images
            scores_NK: NDArray[np.float32] = np.eye(10, dtype=np.float32)[classes]
            return scores_NK

        return run


def test_the_layer_that_costs_accuracy_is_found_and_left_in_float() -> None:
    images_N = np.arange(10)
    evaluation = Int8Evaluation(images=images_N, correct=[[number] for number in range(10)], max_drop=10)
    made = quantise(Fragility(), evaluation, progress=silent)
    assert made.kept == ("layer a",)
    assert made.fragile[0].layer == "layer a"
    assert [found.error for found in made.fragile[1:]] == [0, 0, 0]
    assert (made.before, made.after) == (100, 100)
    in_full = quantise(Fragility(), replace(evaluation, max_drop=50), progress=silent)  # as much as is lost
    assert (in_full.kept, in_full.before, in_full.after) == ((), 100, 50)


def test_eight_bits_that_would_end_the_process_are_refused(
    reader: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.exporters.files._TRIAL", "import os; os.kill(os.getpid(), 4)")
    asked = ExportConfig(int8=True, inside=True, calibration=8, max_drop=100)
    with pytest.raises(ExportError, match=r"OpenVINO cannot run 8 bits on this CPU: a trial of it died of SIGILL") as caught:
        export(reader, tmp_path / "int8.xml", asked, dataset=open_dataset("digits", split="test"))
    assert "ONEDNN_MAX_CPU_ISA" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())


def test_images_without_known_labels_are_evaluated_by_agreement(reader: Checkpoint, tmp_path: Path) -> None:
    made = export(reader, tmp_path / "int8.onnx", ExportConfig(int8=True, calibration=16, max_drop=50), dataset=foreign())
    assert made.quantised is not None
    assert made.quantised.measure == "agreement"
    assert any("agreement" in note for note in made.notes)


def test_one_layer_in_eight_bits_for_openvino_is_nearer_to_the_original_than_all_of_them() -> None:
    reader = reader_of_digits(depth=2)
    images = dataset_images(reader, open_dataset("digits", split="test"), most=16)
    graph = Graph(reader, ExportConfig(inside=True))
    content = onnx_bytes(files.traced(graph, ExportConfig(inside=True)), {})
    quantiser = OpenVINOQuantiser(content, {}, images.images_NHWC, silent)
    assert all(layer != name for name, layer in quantiser.layer_of.items())  # a place in the model, not a number in the graph
    wanted = quantiser.in_float()(images.images_NHWC)
    whole, single = (
        float(np.abs(quantiser.runner(files)(images.images_NHWC) - wanted).max())
        for files in (quantiser.without(()), quantiser.only(quantiser.products[0]))
    )
    assert 0 < single < whole
