"""Detectors: boxes in pixels of the original image, with names and scores, in Python and on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.checkpoints import convert, load
from vitlab.cli.main import main
from vitlab.config.data import Preprocess
from vitlab.data.transforms import bounded_size, normalise, preprocess
from vitlab.errors import CheckpointError, ConfigError, DataError, UsageError
from vitlab.inference import Predictor
from vitlab.inference.detections import DetectedImages, Detector, suppress
from vitlab.models.vit import ViT
from vitlab.objective.losses import iou_and_giou

WILD = Path(__file__).parents[1] / "golden" / "wild"
NAMES = ("cat", "dog", "N/A")
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "YolosImageProcessor",
    "size": {"shortest_edge": 48, "longest_edge": 96},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def detect(model: Path, image: Path, *, threshold: float) -> DetectedImages:
    found = vitlab.predict(model, image, threshold=threshold)
    assert isinstance(found, DetectedImages)
    return found


@pytest.fixture
def yolos(tmp_path: Path) -> Path:
    """The recorded YOLOS with names of classes and a preprocessor_config.json."""
    folder = tmp_path / "yolos"
    shutil.copytree(WILD / "hf_yolos", folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(number): name for number, name in enumerate(NAMES)}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "street.png")
    return tmp_path / "street.png"


def test_boxes_are_the_models_in_pixels_of_the_original_image(yolos: Path, image: Path) -> None:
    checkpoint = load(yolos)
    assert checkpoint.labels == NAMES
    assert (checkpoint.preprocess.resize, checkpoint.preprocess.image_size) == ("fit", (48, 96))
    found = detect(yolos, image, threshold=0.0)
    assert len(found.boxes) == 7  # every detection token
    scores = [box.score for box in found.boxes]
    assert scores == sorted(scores, reverse=True)
    fed = preprocess(np.asarray(Image.open(image)), checkpoint.preprocess)
    assert fed.shape == (32, 96, 3)  # 40 x 96 keeps the aspect; the height is rounded down to whole patches
    model = checkpoint.model
    assert isinstance(model, ViT)
    with torch.inference_mode():
        logits_QC, boxes_Q4 = (part[0] for part in model.detect(normalise(torch.from_numpy(fed)[None], checkpoint.preprocess)))
    best = int(logits_QC.softmax(-1)[:, :-1].max(-1).values.argmax())
    first, (across, down, wide, high) = found.boxes[0], boxes_Q4[best].tolist()
    assert first.label == NAMES[int(logits_QC[best, :-1].argmax())]
    assert (first.x, first.y) == pytest.approx(((across - wide / 2) * 120, (down - high / 2) * 50), abs=1e-3)
    assert (first.width, first.height) == pytest.approx((wide * 120, high * 50), abs=1e-3)


def test_a_threshold_leaves_out_the_boxes_below_it(yolos: Path, image: Path) -> None:
    every = detect(yolos, image, threshold=0.0).boxes
    middle = (every[2].score + every[3].score) / 2
    assert detect(yolos, image, threshold=middle).boxes == every[:3]
    assert detect(yolos, image, threshold=0.999).boxes == []
    assert "no objects" in str(vitlab.predict(yolos, image, threshold=0.999))
    assert every[0].label in str(vitlab.predict(yolos, image, threshold=0.0))
    with pytest.raises(ConfigError, match="threshold"):
        vitlab.predict(yolos, image, threshold=1.5)


def test_the_command_line_prints_names_scores_and_boxes(yolos: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boxes = detect(yolos, image, threshold=0.0).boxes
    assert main(["predict", str(yolos), str(image), "--threshold", "0", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["name"] == str(image)
    assert line["size"] == {"height": 50, "width": 120}
    assert [found["label"] for found in line["boxes"]] == [box.label for box in boxes]
    assert line["boxes"][0]["box"] == {name: round(getattr(boxes[0], name), 2) for name in ("x", "y", "width", "height")}
    assert main(["predict", str(yolos), str(image), "--threshold", "0"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 8
    assert boxes[0].label in printed[1]
    assert f"width {boxes[0].width:.0f}" in printed[1]


def test_results_are_written_and_resumed_as_json_lines_and_not_as_columns(yolos: Path, image: Path, tmp_path: Path) -> None:
    out, broken = tmp_path / "boxes.jsonl", tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    vitlab.predict(yolos, [image, broken], out=out)
    vitlab.predict(yolos, [image, broken], out=out, resume=True)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [("boxes" in line, "error" in line) for line in lines] == [(True, False), (False, True)]
    with pytest.raises(DataError, match="another model"):
        vitlab.predict(yolos, image, out=out, resume=True, threshold=0.1)
    with pytest.raises(UsageError, match="JSON lines"):
        vitlab.predict(yolos, image, out=tmp_path / "boxes.csv")


def test_names_and_preprocessing_survive_a_trip_through_the_native_format(yolos: Path, image: Path, tmp_path: Path) -> None:
    convert(yolos, tmp_path / "native.safetensors", to="native")
    convert(tmp_path / "native.safetensors", tmp_path / "back", to="huggingface")
    boxes = detect(yolos, image, threshold=0.0).boxes
    for place in (tmp_path / "native.safetensors", tmp_path / "back"):
        again = load(place)
        assert (again.labels, again.preprocess) == (NAMES, load(yolos).preprocess)
        assert detect(place, image, threshold=0.0).boxes == boxes
    written = json.loads((tmp_path / "back" / "preprocessor_config.json").read_text())
    assert written["size"] == PROCESSOR["size"]


def test_the_edges_of_older_folders_are_read_too(yolos: Path) -> None:
    old = {key: value for key, value in PROCESSOR.items() if key != "size"} | {"size": 48, "max_size": 96}
    (yolos / "preprocessor_config.json").write_text(json.dumps(old))
    assert load(yolos).preprocess.image_size == (48, 96)


def test_what_a_detector_cannot_do_is_refused_by_what_it_is(yolos: Path, image: Path, tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (32, 32), (number, 0, 20 * number)).save(tmp_path / "data" / label / f"{label}{number}.png")
    with pytest.raises(DataError, match="object detector"):
        vitlab.evaluate(yolos, tmp_path / "data", split="all")
    with pytest.raises(DataError, match="object detector"):
        vitlab.evaluate(yolos, tmp_path / "data", fewshot=True)
    with pytest.raises(ConfigError, match="object detector"):
        vitlab.finetune(tmp_path / "data", yolos, out=tmp_path / "run", steps=1)
    with pytest.raises(CheckpointError, match="no detection heads"):
        Detector(WILD / "hf_vit")
    with pytest.raises(ConfigError, match="whole image"):
        vitlab.predict(yolos, image, resize="short-side")
    with pytest.raises(UsageError, match="finds objects"):
        vitlab.predict(yolos, image, backend="openvino")


def test_features_of_a_detector_are_those_of_squashed_images_which_is_said(yolos: Path, image: Path) -> None:
    predictor = Predictor(yolos, workers=0)
    assert any("squashed to 48x64" in note for note in predictor.notes)
    features = predictor([image, np.zeros((20, 90, 3), np.uint8)], features=True)[0].features
    assert features is not None
    assert features.shape == (32,)


def test_only_a_detector_takes_images_of_many_sizes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="only a detector"):
        load(WILD / "hf_vit", preprocess=Preprocess(image_size=load(WILD / "hf_vit").config.image_size, resize="fit"))


@pytest.mark.parametrize(
    ("size", "edges", "expected"),
    [
        ((480, 640), (512, 1333), (512, 672)),  # 682.67 across
        ((640, 480), (512, 1333), (672, 512)),
        ((100, 1000), (512, 1333), (128, 1328)),  # the longer side decides: 133.3 x 1333
        ((512, 600), (512, 1333), (512, 592)),
        ((300, 300), (512, 1333), (512, 512)),
        ((1, 4000), (512, 1333), (16, 1328)),
    ],
)
def test_sizes_keep_the_aspect_within_both_edges(size: tuple[int, int], edges: tuple[int, int], expected: tuple[int, int]) -> None:
    assert bounded_size(*size, edges) == expected


def corners(count: int, seed: int) -> torch.Tensor:
    low, size = torch.rand(2, count, 2, generator=torch.Generator().manual_seed(seed))
    return torch.cat([low * 0.7, low * 0.7 + 0.05 + size * 0.25], dim=1)


def one_by_one(found: torch.Tensor, scores: torch.Tensor, codes: torch.Tensor, overlap: float) -> list[int]:
    kept: list[int] = []
    for number in scores.argsort(descending=True, stable=True).tolist():
        over = (float(iou_and_giou(found[number], found[other])[0]) > overlap for other in kept if codes[other] == codes[number])
        if not any(over):
            kept.append(number)
    return kept


@pytest.mark.parametrize("seed", range(5))
def test_suppression_keeps_what_one_box_after_the_other_keeps(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    found = corners(12, seed).repeat_interleave(5, dim=0) + torch.randn(60, 4, generator=generator) * 0.02
    scores, codes = torch.rand(60, generator=generator), torch.randint(0, 2, (60,), generator=generator)
    kept = suppress(found, scores, codes, overlap=0.4).tolist()
    assert kept == one_by_one(found, scores, codes, 0.4)
    assert 0 < len(kept) < 60
