"""Segmentation from end to end, in this process: train, stop, resume, evaluate, predict, export, report, on synthetic shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from tests.data.mask_images import CLASSES, drawn, write_folder
from tests.e2e.dense import SIZE, check_micro_batches, check_resume, dense_run, small_vit, undisturbed, write_classifier
from tests.training.small import run_to
from vitlab.checkpoints import Checkpoint
from vitlab.config import ConvNeXtConfig, ResNetStem, SegmenterConfig, SwinConfig, ViTConfig, variant
from vitlab.config.backbone import BackboneConfig
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.run import RunConfig
from vitlab.data.readers.coco import from_run_lengths
from vitlab.data.transforms import normalise
from vitlab.errors import ConfigError, DataError, UsageError, VitlabError
from vitlab.evaluation.segmentation import SegmentationEvaluation
from vitlab.inference.segmentation import MaskPredictions, backbone_of, starts
from vitlab.models import build
from vitlab.models.segmenter import Segmenter

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("onnx_operators")]


def segmenter(backbone: BackboneConfig | None = None) -> SegmenterConfig:
    return SegmenterConfig(backbone=backbone or small_vit(4), image_size=SIZE, num_classes=3)


def config(data: Path, model: SegmenterConfig | None = None, *, steps: int = 12) -> RunConfig:
    model = model or segmenter(replace(small_vit(4), dropout=0.1, drop_path=0.1))
    return dense_run(data, model, steps=steps, area=0.4, dice=0.5)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("shapes"), counts={"train": 16, "val": 4, "test": 4})


@pytest.fixture(scope="module")
def trained(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned the shapes: long enough for a mean IoU far above chance."""
    out = tmp_path_factory.mktemp("run") / "shapes"
    run_to(undisturbed(config(shapes, segmenter(), steps=120)), out)
    return out


def test_a_run_that_stops_and_resumes_repeats_an_uninterrupted_one_bit_by_bit(shapes: Path, tmp_path: Path) -> None:
    check_resume(config(shapes), tmp_path, stop=7, metrics={"loss", "mean_iou", "pixel_accuracy"})


def test_the_micro_batch_does_not_change_the_update(shapes: Path, tmp_path: Path) -> None:
    check_micro_batches(config(shapes, segmenter(), steps=3), tmp_path, lr=0.1)


def test_a_trained_segmenter_finds_the_shapes_and_is_evaluated_at_the_images_own_size(trained: Path, shapes: Path) -> None:
    found = vitlab.evaluate(trained, shapes, split="test")
    assert isinstance(found, SegmentationEvaluation)
    assert found.labels == CLASSES
    assert found.mean_iou > 0.6
    assert found.interval is not None
    assert found.interval[0] <= found.mean_iou <= found.interval[1]
    assert found.confusion_CC.sum() == sum((drawn(seed)[1] != 255).sum() for seed in range(20, 24))
    assert "disc" in str(found)
    assert json.loads(json.dumps(found.to_json()))["images"] == 4


def test_windows_are_averaged_where_they_overlap(trained: Path) -> None:
    """The mask of an image in windows, against a computation by hand."""
    checkpoint = vitlab.load(trained)
    image = np.ascontiguousarray(np.tile(drawn(3, (40, 40))[0], (1, 2, 1)))  # 40 x 80
    found = vitlab.predict(checkpoint, image, windows=40)
    assert isinstance(found, MaskPredictions)
    total, times = torch.zeros(3, 40, 80), torch.zeros(40, 80)
    for top in (0, 8):
        for left in (0, 20, 40):
            window = torch.from_numpy(image[None, top : top + SIZE[0], left : left + SIZE[1]].copy())
            with torch.no_grad():
                total[:, top : top + SIZE[0], left : left + SIZE[1]] += checkpoint.model(normalise(window, checkpoint.preprocess))[
                    0
                ]
            times[top : top + SIZE[0], left : left + SIZE[1]] += 1
    wanted = (total / times).argmax(0).numpy()
    assert (found[0].classes_HW == wanted).mean() > 0.999  # ties may round otherwise in another batch
    with pytest.raises(ConfigError, match="smaller than a window"):
        vitlab.predict(checkpoint, image, windows=16)


def test_refined_masks_are_nearer_to_the_right_ones(trained: Path, shapes: Path) -> None:
    """Their shapes have sharp edges of colour, and the grid of patches is coarse."""
    plain, refined = (vitlab.evaluate(trained, shapes, split="test", refine=refine) for refine in (False, True))
    assert refined.mean_iou > plain.mean_iou  # type: ignore[union-attr]
    image = next((shapes / "images/test").iterdir())
    found = vitlab.predict(trained, str(image), refine=True)
    assert found[0].classes_HW.shape == (40, 48)  # type: ignore[union-attr]


@pytest.mark.parametrize(("length", "window"), [(32, 32), (33, 32), (48, 32), (100, 32), (1000, 7), (5, 32)])
def test_windows_cover_everything_and_overlap_by_half(length: int, window: int) -> None:
    places = starts(length, window)
    assert (places[0], places[-1]) == (0, max(0, length - window))
    assert all(0 < after - before <= max(1, window // 2) for before, after in pairwise(places))


def test_predict_writes_masks_overlays_and_run_lengths(trained: Path, shapes: Path, tmp_path: Path) -> None:
    images = shapes / "images/test"
    kept = vitlab.predict(trained, str(images))
    assert isinstance(kept, MaskPredictions)
    vitlab.predict(trained, str(images), out=tmp_path / "masks")
    lines = [json.loads(line) for line in (tmp_path / "masks/masks.jsonl").read_text().splitlines()]
    assert len(lines) == len(kept) == 4
    for found, line in zip(kept, lines, strict=True):
        with Image.open(tmp_path / "masks" / line["mask"]) as written, Image.open(tmp_path / "masks" / line["overlay"]) as overlay:
            assert (written.mode, overlay.size) == ("P", (48, 40))
            assert np.array_equal(np.asarray(written), found.classes_HW)
        for mask in line["masks"]:
            inside = from_run_lengths(mask["rle"])
            assert np.array_equal(inside, found.classes_HW == CLASSES.index(mask["label"]))
            assert mask["area"] == pytest.approx(inside.mean(), abs=1e-6)
    with pytest.raises(DataError, match="exists already"):
        vitlab.predict(trained, str(images), out=tmp_path / "masks")
    vitlab.predict(trained, str(images), out=tmp_path / "masks.jsonl")
    assert len((tmp_path / "masks.jsonl").read_text().splitlines()) == 4


def test_a_saved_segmenter_is_read_back_bit_by_bit_and_fits_another_size(trained: Path, tmp_path: Path) -> None:
    checkpoint = vitlab.load(trained)
    assert isinstance(checkpoint.model, Segmenter)
    assert checkpoint.labels == CLASSES
    vitlab.save(checkpoint, tmp_path / "copy.safetensors")
    copy = vitlab.load(tmp_path / "copy.safetensors")
    assert copy.config == checkpoint.config
    images_BCHW = torch.randn(2, 3, *SIZE)
    with torch.no_grad():
        assert torch.equal(copy.model(images_BCHW), checkpoint.model(images_BCHW))
    larger = vitlab.load(trained, image_size=(48, 64))
    with torch.no_grad():
        assert larger.model(torch.randn(1, 3, 48, 64)).shape == (1, 3, 48, 64)
    assert any("interpolated" in note for note in larger.notes)
    with pytest.raises(VitlabError, match="decoder"):
        vitlab.load(trained, num_classes=7)
    with pytest.raises(VitlabError, match="segmenter"):
        vitlab.convert(trained, tmp_path / "timm.safetensors", to="timm")


def test_finetune_starts_from_a_classifier_and_from_a_segmenter(trained: Path, shapes: Path, tmp_path: Path) -> None:
    classifier = tmp_path / "classifier.safetensors"
    write_classifier(classifier)
    run = vitlab.finetune(
        str(shapes), classifier, out=tmp_path / "run", task="segment", decoder="mask-transformer", steps=2, workers=0, quiet=True
    )
    assert isinstance(run.config.model, SegmenterConfig)
    assert run.config.task == "segment"
    assert (run.config.model.decoder, run.config.model.image_size) == ("mask-transformer", (32, 32))
    assert "mean_iou" in run.metrics
    again = vitlab.finetune(str(shapes), trained, out=tmp_path / "again", task="segment", steps=1, lr=1e-9, workers=0, quiet=True)
    before, after = (vitlab.load(path).model.state_dict() for path in (trained, again.path))
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before if name.startswith("head."))
    scratch = vitlab.finetune(
        str(shapes), out=tmp_path / "scratch", task="segment", model="ViT-Mini/8", image_size=32, steps=1, workers=0, quiet=True
    )
    assert scratch.config.start is None


def test_one_segmenter_is_trained_and_evaluated_at_several_patch_sizes(shapes: Path, tmp_path: Path) -> None:
    run = undisturbed(config(shapes, segmenter(), steps=60))
    flexible = replace(run, train=replace(run.train, patch_sizes=((4, 4), (8, 8))))
    run_to(flexible, tmp_path / "run")
    fine, coarse = (vitlab.evaluate(tmp_path / "run", shapes, split="test", patch_size=size).metrics for size in (4, 8))
    assert fine["mean_iou"] > coarse["mean_iou"] > 0.5
    swin = SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(4, 4), image_size=SIZE, num_classes=3)
    with pytest.raises(ConfigError, match="has patches of one size"):
        replace(flexible, model=segmenter(swin))


@pytest.mark.parametrize("name", ["hybrid", "swin", "convnext"])
def test_the_features_of_other_families_are_segmented_too(name: str, shapes: Path, tmp_path: Path) -> None:
    vit = variant("ViT-Mini/8", num_classes=4, image_size=(32, 32))
    assert isinstance(vit, ViTConfig)
    configs: dict[str, ModelConfig] = {
        "hybrid": replace(vit, stem=ResNetStem(blocks=(1, 1), width=32), patch_size=(1, 1)),
        "swin": SwinConfig(width=24, depths=(2, 2), heads=(2, 4), window=(4, 4), image_size=(32, 32), num_classes=4),
        "convnext": ConvNeXtConfig(depths=(1, 2), widths=(16, 24), image_size=(32, 32), num_classes=4),
    }
    config = configs[name]
    preprocess = Preprocess(image_size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    vitlab.save(Checkpoint(model=build(config, seed=0), config=config, preprocess=preprocess), tmp_path / "start.safetensors")
    options = {"task": "segment", "steps": 30, "lr": 3e-3, "evaluate_every": 0, "workers": 0, "quiet": True}
    run = vitlab.finetune(str(shapes), tmp_path / "start.safetensors", out=tmp_path / "run", **options)  # type: ignore[arg-type]
    found = vitlab.evaluate(run, shapes, split="val")
    assert isinstance(found, SegmentationEvaluation)
    assert found.mean_iou == pytest.approx(run.metrics["mean_iou"], abs=0.1)  # at another size
    assert found.pixel_accuracy > 0.5
    masks = vitlab.predict(run, str(shapes / "images/test"), windows=48)
    assert isinstance(masks, MaskPredictions)
    assert masks[0].classes_HW.shape == (40, 48)


def test_finetune_freezes_the_backbone_and_takes_layers_and_dice(trained: Path, shapes: Path, tmp_path: Path) -> None:
    """Only the decoder changes, and it sees two layers; Dice is part of the loss of the first step, which is otherwise the same."""
    first = []
    for dice in (None, 2.0):
        run = vitlab.finetune(
            str(shapes),
            trained,
            out=tmp_path / f"dice-{dice}",
            task="segment",
            layers=(0, 1),
            image_size=SIZE,
            trainable="head",
            dice=dice,
            steps=2,
            workers=0,
            quiet=True,
        )
        assert isinstance(run.config.model, SegmenterConfig)
        assert run.config.model.chosen == (0, 1)
        before, after = (vitlab.load(path).model.state_dict() for path in (trained, run.path))
        assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("backbone."))
        assert after["head.weight"].abs().max() > 0
        events = map(json.loads, (run.path / "events.jsonl").read_text().splitlines())
        first.append(next(event["loss"] for event in events if event["event"] == "stepped"))
    assert first[1] > first[0] + 0.5


def test_the_report_shows_iou_by_class_and_overlays_of_the_worst_and_the_best(trained: Path, tmp_path: Path) -> None:
    written = vitlab.report(trained, out=tmp_path / "report.html")
    found = vitlab.evaluate(trained, vitlab.load(trained).recipe["data"]["dataset"])  # type: ignore[index,arg-type,call-overload]
    text = (tmp_path / "report.html").read_text()
    assert written.accuracy == pytest.approx(found.mean_iou)  # type: ignore[union-attr]
    assert all(word in text for word in ("mean IoU", "The worst", "the predicted mask over the image", *CLASSES))
    assert text.count('alt="the right mask over the image"') == 4


@pytest.mark.parametrize(("ending", "library"), [(".pt2", "torch"), (".onnx", "onnxruntime")])
def test_an_export_gives_the_logits_of_each_pixel(trained: Path, tmp_path: Path, ending: str, library: str) -> None:
    if library != "torch":
        pytest.importorskip(library)
        pytest.importorskip("onnxscript")
    exported = vitlab.export(trained, tmp_path / f"model{ending}")
    assert exported.difference < 1e-3
    assert exported.paths[0].stat().st_size == exported.bytes


def test_an_export_with_preprocessing_inside_gives_probabilities_of_each_pixel(trained: Path, tmp_path: Path) -> None:
    vitlab.export(trained, tmp_path / "model.pt2", inside=True)
    module = torch.export.load(tmp_path / "model.pt2").module()
    chances = module(torch.zeros(2, *SIZE, 3, dtype=torch.uint8))
    assert chances.shape == (2, 3, *SIZE)
    torch.testing.assert_close(chances.sum(1), torch.ones(2, *SIZE))


def test_describe_says_the_task(trained: Path) -> None:
    facts = vitlab.describe(trained)
    assert (facts["task"], facts["decoder"], facts["num_classes"]) == ("segment", "linear", 3)


def test_inspect_looks_into_the_backbone(trained: Path, shapes: Path) -> None:
    image = next((shapes / "images/test").iterdir())
    rollout = vitlab.inspect(trained, str(image), figure="rollout").array
    assert rollout.shape[-2:] == (8, 10)
    checkpoint = vitlab.load(trained)
    backbone = backbone_of(checkpoint)
    assert isinstance(checkpoint.model, Segmenter)
    images_BCHW = torch.randn(2, 3, *SIZE)
    with torch.no_grad():  # it reads what the decoder reads
        torch.testing.assert_close(backbone.model.features(images_BCHW), checkpoint.model.features(images_BCHW))


def test_what_segmentation_does_not_support_is_refused(trained: Path, shapes: Path, tmp_path: Path) -> None:
    run = config(shapes)
    for changed in (
        {"data": replace(run.data, augment=replace(run.data.augment, mixup=0.2))},
        {"data": replace(run.data, augment=replace(run.data.augment, randaugment=(2, 10)))},
        {"train": replace(run.train, progressive_resizing=((0, 0.5), (0.5, 1)))},
        {"train": replace(run.train, loss="sigmoid")},
    ):
        with pytest.raises(ConfigError, match="segmentation does not support"):
            replace(run, **changed)
    for options in (
        {"fewshot": True},
        {"knn": True},
        {"corruptions": "fog"},
        {"merge": 2},
        {"tta": "mirror"},
        {"backend": "openvino"},
    ):
        with pytest.raises(UsageError, match="each pixel"):
            vitlab.evaluate(trained, shapes, **options)
    with pytest.raises(UsageError, match="each pixel"):
        vitlab.predict(trained, str(shapes / "images/test"), merge=1)
    for refused in (lambda: vitlab.Predictor(trained), lambda: vitlab.explore(trained, out=tmp_path / "explorer.html")):
        with pytest.raises(VitlabError, match=r"each (pixel|image)"):
            refused()
    with pytest.raises(VitlabError, match="gives each pixel a class"):
        vitlab.finetune(str(shapes), out=tmp_path / "classify", quiet=True)
    (tmp_path / "images").mkdir()
    Image.fromarray(drawn(0)[0]).save(tmp_path / "images/a.png")
    with pytest.raises(DataError, match="has no masks"):
        vitlab.finetune(str(tmp_path), out=tmp_path / "run", task="segment", quiet=True)
    with pytest.raises(VitlabError, match="no masks"):
        vitlab.finetune("digits", out=tmp_path / "digits", task="segment", quiet=True)
    with pytest.raises(UsageError, match="preset"):
        vitlab.finetune(str(shapes), out=tmp_path / "preset", task="segment", preset="light1", quiet=True)


def test_a_dry_run_plans_a_segmentation(shapes: Path, tmp_path: Path) -> None:
    run = vitlab.finetune(
        str(shapes), out=tmp_path, task="segment", model="ViT-Mini/8", image_size=32, steps=3, workers=0, dry_run=True, quiet=True
    )
    assert run.plan is not None
    assert run.plan.parameters > 0


def test_masks_that_change_between_two_calls_are_noticed(shapes: Path, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", counts={"train": 6, "val": 2})
    run = config(data, steps=4)
    run_to(run, tmp_path / "run", stop=2)
    Image.fromarray(np.zeros((40, 48), np.uint8)).save(data / "masks/train/3.png")
    with pytest.raises(VitlabError, match="changed"):
        run_to(run, tmp_path / "run")
