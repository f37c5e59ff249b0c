"""Average precision equals pycocotools', to rounding, on random images with crowds, several classes and all sizes."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest

from vitlab.objective.metrics import DetectionScores, FoundBoxes, WantedBoxes

pytestmark = pytest.mark.peer
CLASSES = 3


def boxes(rng: np.random.Generator, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    corner = rng.uniform(0, 250, (count, 2))
    return np.concatenate([corner, corner + np.exp(rng.uniform(1, 5.5, (count, 2)))], axis=1)


def one_image(rng: np.random.Generator) -> tuple[WantedBoxes, FoundBoxes]:
    count = int(rng.integers(0, 7))
    wanted = boxes(rng, count)
    codes = rng.integers(0, CLASSES, count)
    areas = (wanted[:, 2:] - wanted[:, :2]).prod(1) * rng.uniform(0.5, 1, count)  # outlines are smaller than boxes
    near = np.repeat(wanted, int(rng.integers(1, 4)), axis=0)
    near = near + rng.normal(0, 1, near.shape) * rng.choice([0, 1, 4, 12], (len(near), 1))
    far = boxes(rng, int(rng.integers(0, 5)))
    found = np.concatenate([near, far])
    found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 1)
    of_near = np.repeat(codes, len(near) // max(count, 1)) if count else np.zeros(0, np.int64)
    wrong = rng.random(len(near)) < 0.1
    guessed = np.where(wrong, rng.integers(0, CLASSES, len(near)), of_near)
    return (
        WantedBoxes(corners_M4=wanted, codes_M=codes, ignored_M=rng.random(count) < 0.15, areas_M=areas),
        FoundBoxes(
            corners_D4=found,
            scores_D=rng.choice(np.linspace(0.05, 1, 40), len(found)),  # some are equal
            codes_D=np.concatenate([guessed, rng.integers(0, CLASSES, len(far))]).astype(np.int64),
        ),
    )


def of_pycocotools(images: list[tuple[WantedBoxes, FoundBoxes]]) -> Any:
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, (wanted, found) in enumerate(images, start=1):
        for corners, code, ignored, area in zip(wanted.corners_M4, wanted.codes_M, wanted.ignored_M, wanted.areas_M, strict=True):
            box = [*corners[:2].tolist(), *(corners[2:] - corners[:2]).tolist()]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": int(code),
                    "bbox": box,
                    "area": float(area),
                    "iscrowd": int(ignored),
                }
            )
        for corners, code, score in zip(found.corners_D4, found.codes_D, found.scores_D, strict=True):
            box = [*corners[:2].tolist(), *(corners[2:] - corners[:2]).tolist()]
            results.append({"image_id": number, "category_id": int(code), "bbox": box, "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = {
            "images": [{"id": number} for number in range(1, len(images) + 1)],
            "annotations": annotations,
            "categories": [{"id": code, "name": str(code)} for code in range(CLASSES)],
        }
        truth.createIndex()
        evaluation = cocoeval.COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


@pytest.mark.parametrize("seed", range(6))
def test_average_precision_equals_that_of_pycocotools(seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = [one_image(rng) for _ in range(60)]
    theirs = of_pycocotools(images)
    ours = DetectionScores(CLASSES, sizes=("small", "medium", "large"))
    for wanted, found in images:
        ours.add(found, wanted)
    whole = ours.of_size()
    mine = [whole.ap, whole.ap50, whole.ap75, *(ours.of_size(size).ap for size in ("small", "medium", "large"))]
    np.testing.assert_allclose(mine, theirs.stats[:6], atol=1e-12)
    precision = theirs.eval["precision"][:, :, :, 0, 2]  # IoU, recall, class; all sizes, 100 objects
    np.testing.assert_allclose(whole.by_class_CT, precision.mean(1).T, atol=1e-12)
    assert 0.05 < whole.ap < 0.95
