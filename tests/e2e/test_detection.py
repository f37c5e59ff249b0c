"""Detection from end to end, in this process: train, stop, resume, evaluate, predict, export, report, on synthetic shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from tests.data.box_images import CLASSES, boxes_of, write_boxes
from tests.e2e.dense import SIZE, check_micro_batches, check_resume, dense_run, small_vit, undisturbed, write_classifier
from tests.training.small import run_to
from vitlab.checkpoints import Checkpoint
from vitlab.config import GridDetectorConfig, ViTConfig
from vitlab.config.data import Preprocess
from vitlab.config.run import RunConfig
from vitlab.errors import ConfigError, UsageError, VitlabError
from vitlab.evaluation.detection import DetectionEvaluation
from vitlab.inference.detections import DetectedImages, Detector
from vitlab.models.grid_detector import GridDetector
from vitlab.models.vit import ViT

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("onnx_operators")]


def tokens() -> ViTConfig:
    return replace(small_vit(8), num_classes=0, register_tokens=6, detection_classes=3, dropout=0.1)


def grid(**changes: object) -> GridDetectorConfig:
    return replace(
        GridDetectorConfig(backbone=small_vit(8), image_size=SIZE, num_classes=2, head_width=32, head_depth=1),
        **changes,  # type: ignore[arg-type]
    )


def config(data: Path, model: GridDetectorConfig | ViTConfig, *, steps: int = 10) -> RunConfig:
    return dense_run(data, model, steps=steps, area=0.5)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_boxes(tmp_path_factory.mktemp("shapes"), counts={"train": 16, "val": 4, "test": 4})


@pytest.fixture(scope="module")
def trained(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned the shapes: long enough to find most of them."""
    out = tmp_path_factory.mktemp("run") / "shapes"
    run_to(undisturbed(config(shapes, grid(), steps=120), lr=5e-3), out)
    return out


def test_a_run_that_stops_and_resumes_repeats_an_uninterrupted_one_bit_by_bit(shapes: Path, tmp_path: Path) -> None:
    run = config(shapes, grid(backbone=replace(small_vit(8), dropout=0.1, drop_path=0.1)))
    check_resume(run, tmp_path, stop=6, metrics={"loss", "ap", "ap50"})


@pytest.mark.parametrize("kind", ["grid", "tokens"])
def test_the_micro_batch_does_not_change_the_update(shapes: Path, tmp_path: Path, kind: str) -> None:
    check_micro_batches(config(shapes, grid() if kind == "grid" else replace(tokens(), dropout=0.0), steps=3), tmp_path, lr=0.05)


def test_a_trained_detector_finds_the_shapes_in_pixels_of_the_image(trained: Path, shapes: Path) -> None:
    found = vitlab.evaluate(trained, shapes, split="test")
    assert isinstance(found, DetectionEvaluation)
    assert found.labels == CLASSES
    assert found.ap50 > 0.6
    assert found.ap <= found.ap50
    assert found.interval is not None
    assert found.interval[0] <= found.ap50 <= found.interval[1]
    assert found.objects == (4, 4)
    assert "disc" in str(found)
    assert json.loads(json.dumps(found.to_json()))["metrics"]["ap50"] == found.ap50


def test_predict_gives_boxes_writes_lines_and_draws(trained: Path, shapes: Path, tmp_path: Path) -> None:
    kept = vitlab.predict(trained, str(shapes / "test"), threshold=0.2)
    assert isinstance(kept, DetectedImages)
    near = 0
    for number, image in enumerate(kept):
        assert image.size == (40, 48)
        for label, *edges in boxes_of(20 + number):
            mine = [found for found in image.boxes if found.label == label]
            near += any(np.abs(np.array([one.x, one.y, one.x + one.width, one.y + one.height]) - edges).max() < 4 for one in mine)
        for one in image.boxes:
            assert 0 <= one.x <= one.x + one.width <= 48
            assert 0 <= one.y <= one.y + one.height <= 40
    assert near >= 5  # of eight
    vitlab.predict(trained, str(shapes / "test"), threshold=0.2, out=tmp_path / "drawn")
    lines = [json.loads(line) for line in (tmp_path / "drawn/boxes.jsonl").read_text().splitlines()]
    assert [line["boxes"] for line in lines] == [image.to_json()["boxes"] for image in kept]
    for line in lines:
        with Image.open(tmp_path / "drawn" / line["drawn"]) as picture:
            assert picture.size[0] / picture.size[1] == 48 / 40
    vitlab.predict(trained, str(shapes / "test"), out=tmp_path / "boxes.jsonl")
    assert len((tmp_path / "boxes.jsonl").read_text().splitlines()) == 4


def test_a_padded_image_gives_the_boxes_of_its_own_pixels(trained: Path, shapes: Path) -> None:
    """The same objects, whether an image is squashed or padded to the model's size."""
    checkpoint = vitlab.load(trained)
    image = np.asarray(Image.open(shapes / "test/test0.png"))
    wide = np.concatenate([image, np.broadcast_to(np.array([40, 50, 60], np.uint8), (40, 48, 3))], axis=1)
    padded = replace(checkpoint, preprocess=replace(checkpoint.preprocess, resize="pad", fill=50))
    for found in Detector(padded, threshold=0.05)(wide)[0].boxes:
        assert 0 <= found.x < found.x + found.width <= 96
        assert 0 <= found.y < found.y + found.height <= 40


def test_a_saved_detector_is_read_back_bit_by_bit_and_fits_another_size(trained: Path, tmp_path: Path) -> None:
    checkpoint = vitlab.load(trained)
    assert isinstance(checkpoint.model, GridDetector)
    assert checkpoint.labels == CLASSES
    vitlab.save(checkpoint, tmp_path / "copy.safetensors")
    copy = vitlab.load(tmp_path / "copy.safetensors")
    assert copy.config == checkpoint.config
    images_BCHW = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(copy.model(images_BCHW), checkpoint.model(images_BCHW))
    larger = vitlab.load(trained, image_size=(48, 64))
    with torch.no_grad():
        assert larger.model(torch.randn(1, 3, 48, 64)).shape == (1, 12 * 16, 6)
    with pytest.raises(VitlabError, match="grid detector"):
        vitlab.load(trained, num_classes=7)
    with pytest.raises(VitlabError, match="detector"):
        vitlab.convert(trained, tmp_path / "timm.safetensors", to="timm")


def test_finetune_starts_from_a_classifier_and_from_a_detector_with_a_grid_and_with_tokens(
    trained: Path, shapes: Path, tmp_path: Path
) -> None:
    classifier = tmp_path / "classifier.safetensors"
    model = write_classifier(classifier)
    run = vitlab.finetune(str(shapes), classifier, out=tmp_path / "run", task="detect", steps=1, workers=0, quiet=True)
    assert isinstance(run.config.model, GridDetectorConfig)
    assert run.config.task == "detect"
    assert "ap50" in run.metrics
    again = vitlab.finetune(str(shapes), trained, out=tmp_path / "again", task="detect", steps=1, lr=1e-9, workers=0, quiet=True)
    before, after = (vitlab.load(path).model.state_dict() for path in (trained, again.path))
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before if name.startswith("head."))
    yolos = vitlab.finetune(
        str(shapes), classifier, out=tmp_path / "yolos", task="detect", detector="tokens", steps=1, lr=1e-9, workers=0, quiet=True
    )
    loaded = vitlab.load(yolos.path).model
    assert isinstance(loaded, ViT)
    assert loaded.detection is not None
    table = loaded.position.table
    assert isinstance(table, torch.Tensor)
    assert isinstance(model.position.table, torch.Tensor)
    torch.testing.assert_close(table[:, :1], model.position.table[:, :1], atol=1e-5, rtol=0)  # class token, 100 new, patches
    torch.testing.assert_close(table[:, 101:], model.position.table[:, 1:], atol=1e-5, rtol=0)
    more = vitlab.finetune(str(shapes), yolos.path, out=tmp_path / "more", task="detect", steps=1, lr=1e-9, workers=0, quiet=True)
    assert isinstance(more.config.model, ViTConfig)
    first, second = (vitlab.load(path).model.state_dict() for path in (yolos.path, more.path))
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)


def test_the_report_shows_ap_by_class_and_the_worst_and_the_best_boxes(trained: Path, tmp_path: Path) -> None:
    written = vitlab.report(trained, out=tmp_path / "report.html")
    found = vitlab.evaluate(trained, vitlab.load(trained).recipe["data"]["dataset"])  # type: ignore[index,arg-type,call-overload]
    text = (tmp_path / "report.html").read_text()
    assert written.accuracy == pytest.approx(found.ap50)  # type: ignore[union-attr]
    assert all(word in text for word in ("AP50", "The worst", "the found boxes on the image", *CLASSES))
    assert text.count('alt="the right boxes on the image"') == 4


@pytest.mark.parametrize(("kind", "inside"), [("grid", False), ("tokens", True)])
def test_an_export_gives_the_objects_of_torch(trained: Path, tmp_path: Path, kind: str, inside: bool) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    checkpoint: Checkpoint | Path = trained
    if kind == "tokens":
        model = vitlab.models.build(replace(tokens(), dropout=0.0), seed=1)
        checkpoint = Checkpoint(
            model=model, config=model.config, preprocess=Preprocess(image_size=SIZE, resize="squash"), labels=CLASSES
        )
    exported = vitlab.export(checkpoint, tmp_path / "model.onnx", inside=inside)
    assert exported.difference < 1e-3
    assert not any("same scores" in note for note in exported.notes)


def test_an_exported_file_gives_the_boxes_that_predict_chooses_from(trained: Path, shapes: Path, tmp_path: Path) -> None:
    vitlab.export(trained, tmp_path / "model.pt2", inside=True)
    module = torch.export.load(tmp_path / "model.pt2").module()
    image = Image.open(shapes / "test/test0.png").resize((SIZE[1], SIZE[0]), Image.Resampling.BICUBIC)
    objects_NX = module(torch.from_numpy(np.asarray(image).copy())[None])[0]
    assert objects_NX.shape == (8 * 10, 4 + 2)
    assert bool(((objects_NX[:, 4:] >= 0) & (objects_NX[:, 4:] <= 1)).all())
    found = vitlab.predict(trained, np.asarray(image), threshold=0.0)
    assert isinstance(found, DetectedImages)
    best = found.boxes[0]
    cell, code = divmod(int(objects_NX[:, 4:].argmax()), 2)
    left, top, right, bottom = objects_NX[cell, :4].clamp(0, 1).tolist()
    assert best.label == CLASSES[code]
    assert (best.x, best.y) == pytest.approx((left * SIZE[1], top * SIZE[0]), abs=1e-3)
    assert (best.width, best.height) == pytest.approx(((right - left) * SIZE[1], (bottom - top) * SIZE[0]), abs=1e-3)


def test_describe_and_inspect_know_a_detector(trained: Path, shapes: Path) -> None:
    facts = vitlab.describe(trained)
    assert (facts["task"], facts["cells"], facts["num_classes"]) == ("detect", [8, 10], 2)
    image = next((shapes / "test").iterdir())
    assert vitlab.inspect(trained, str(image), figure="rollout").array.shape[-2:] == (4, 5)


def test_what_detection_does_not_support_is_refused(trained: Path, shapes: Path, tmp_path: Path) -> None:
    run = config(shapes, grid())
    for changed in (
        {"data": replace(run.data, augment=replace(run.data.augment, mixup=0.2))},
        {"train": replace(run.train, smoothing=0.1)},
        {"train": replace(run.train, loss="sigmoid")},
    ):
        with pytest.raises(ConfigError, match="detection does not support"):
            replace(run, **changed)
    for options in ({"corruptions": "fog"}, {"merge": 2}, {"tta": "mirror"}, {"backend": "openvino"}):
        with pytest.raises(UsageError, match="finds objects"):
            vitlab.evaluate(trained, shapes, **options)
    for refused in (lambda: vitlab.Predictor(trained), lambda: vitlab.explore(trained, out=tmp_path / "explorer.html")):
        with pytest.raises(VitlabError, match=r"class of an image|each image"):
            refused()
    with pytest.raises(VitlabError, match="each object a box"):
        vitlab.finetune(str(shapes), out=tmp_path / "classify", quiet=True)
    with pytest.raises(VitlabError, match="no boxes"):
        vitlab.finetune("digits", out=tmp_path / "digits", task="detect", quiet=True)
    with pytest.raises(UsageError, match="preset"):
        vitlab.finetune(str(shapes), out=tmp_path / "preset", task="detect", preset="light1", quiet=True)
    with pytest.raises(VitlabError, match="one image size"):
        vitlab.export(trained, tmp_path / "model.onnx", dynamic_size=True)


def test_a_dry_run_plans_a_detection(shapes: Path, tmp_path: Path) -> None:
    run = vitlab.finetune(
        str(shapes), out=tmp_path, task="detect", model="ViT-Mini/8", image_size=32, steps=3, workers=0, dry_run=True, quiet=True
    )
    assert run.plan is not None
    assert run.plan.parameters > 0


def test_boxes_that_change_between_two_calls_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data = write_boxes(tmp_path / "data", counts={"train": 6, "val": 2})
    run = config(data, grid(), steps=4)
    run_to(run, tmp_path / "run", stop=2)
    text = (data / "boxes.csv").read_text().splitlines()
    path, label, left, *rest = text[1].split(",")
    (data / "boxes.csv").write_text("\n".join([text[0], ",".join([path, label, str(int(left) - 1), *rest]), *text[2:], ""]))
    with pytest.raises(VitlabError, match="changed"):
        run_to(run, tmp_path / "run")
