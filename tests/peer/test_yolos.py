"""Boxes of a YOLOS against transformers' own preprocessing, model and post-processing."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.data.transforms import bounded_size

LABELS = {0: "cat", 1: "dog", 2: "owl"}


@pytest.mark.parametrize("size", [(60, 100), (90, 50), (40, 170), (48, 48)])
def test_boxes_are_those_of_transformers_post_processing(transformers: ModuleType, size: tuple[int, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.YolosConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=[48, 64],
        patch_size=16,
        num_detection_tokens=9,
        id2label=LABELS,
        label2id={name: number for number, name in LABELS.items()},
        initializer_range=0.5,
    )
    model = transformers.YolosForObjectDetection(config).eval()
    module = __import__("transformers.models.yolos.image_processing_pil_yolos", fromlist=["YolosImageProcessorPil"])
    processor = module.YolosImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 96})
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8))
    with torch.inference_mode():
        outputs = model(**processor(images=image, return_tensors="pt"))
    (theirs,) = processor.post_process_object_detection(outputs, threshold=0.2, target_sizes=[size])
    found: Any = vitlab.predict(tmp_path, np.asarray(image), threshold=0.2)
    ours = found.boxes
    order = theirs["scores"].argsort(descending=True, stable=True)
    assert len(ours) == len(order) > 0
    assert [box.label for box in ours] == [LABELS[int(theirs["labels"][q])] for q in order]
    corners = [[box.x, box.y, box.x + box.width, box.y + box.height] for box in ours]
    torch.testing.assert_close(torch.tensor([box.score for box in ours]), theirs["scores"][order], atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.tensor(corners), theirs["boxes"][order], atol=2e-2, rtol=0)


def test_sizes_are_those_of_transformers(transformers: ModuleType) -> None:
    module = __import__("transformers.models.yolos.image_processing_yolos", fromlist=["get_size_with_aspect_ratio_yolos"])
    generator = np.random.default_rng(0)
    for height, width in generator.integers(40, 3000, (2000, 2)).tolist():
        expected = module.get_size_with_aspect_ratio_yolos((height, width), 512, 1333)
        assert bounded_size(height, width, (512, 1333)) == tuple(max(16, side) for side in expected), (height, width)
