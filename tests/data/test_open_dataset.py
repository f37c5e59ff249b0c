"""A dataset works in torch's DataLoader as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.data.containers import as_folder
from tests.data.images import encode
from vitlab.config.data import SplitRule, SyntheticConfig
from vitlab.data.dataset import Sample
from vitlab.data.opening import open_dataset

NO_HOLD_OUT = SplitRule(val=0, test=0)


def _pets(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    """Two classes of images of one colour each: cats are 10, 11, ...; dogs 110, 111, ..."""
    files = {}
    for code, label in enumerate(("cat", "dog")):
        for number, (height, width) in enumerate(sizes):
            files[f"{label}/{number}.png"] = encode(np.full((height, width, 3), 100 * code + 10 + number, np.uint8), "PNG")
    return as_folder(folder, files)


def test_torchs_data_loader_takes_a_dataset_as_it_is(tmp_path: Path) -> None:
    dataset = open_dataset(_pets(tmp_path, [(6, 8)] * 5), rule=NO_HOLD_OUT)
    batches: list[Any] = list(DataLoader(dataset, batch_size=4))
    assert [len(batch.label) for batch in batches] == [4, 4, 2]
    batch: Any = batches[1]
    assert type(batch) is Sample
    batch = cast(Any, batch)  # default_collate keeps the named tuple, of tensors
    assert batch.image.shape == (4, 6, 8, 3)
    assert batch.image.dtype == torch.uint8
    assert batch.image[:, 0, 0, 0].tolist() == [14, 110, 111, 112]
    assert batch.label.tolist() == [0, 1, 1, 1]
    assert [Path(name).name for name in batch.name] == ["4.png", "0.png", "1.png", "2.png"]


def test_a_dataset_prints_as_one_line(tmp_path: Path) -> None:
    assert repr(open_dataset(_pets(tmp_path, [(6, 8)] * 5), rule=NO_HOLD_OUT)) == "<ImageDataset: 10 images, 2 classes>"
    assert repr(open_dataset("synthetic:classes=3")).startswith("<SyntheticDataset: ")


@pytest.mark.parametrize("workers", [0, 2])
def test_image_size_makes_images_of_different_sizes_fit_into_a_batch(tmp_path: Path, workers: int) -> None:
    dataset = open_dataset(_pets(tmp_path, [(6, 8), (20, 9), (9, 30)]), image_size=(5, 7), rule=NO_HOLD_OUT)
    (batch,) = DataLoader(dataset, batch_size=6, num_workers=workers)
    assert batch.image.shape == (6, 5, 7, 3)
    assert batch.image[:, 0, 0, 0].tolist() == [10, 11, 12, 110, 111, 112]


def test_a_transform_is_applied_after_image_size(tmp_path: Path) -> None:
    dataset = open_dataset(
        _pets(tmp_path, [(6, 8)] * 2),
        image_size=4,
        transform=lambda image_HWC: torch.from_numpy(image_HWC).permute(2, 0, 1) / 255,
        rule=NO_HOLD_OUT,
    )
    (batch,) = DataLoader(dataset, batch_size=4)
    assert batch.image.shape == (4, 3, 4, 4)
    assert batch.image.dtype == torch.float32
    assert batch.image[0, 0, 0, 0].item() == pytest.approx(10 / 255)


def test_a_sample_is_image_label_and_name_and_unknown_labels_are_minus_one(tmp_path: Path) -> None:
    image, label, name = open_dataset(f"images:{_pets(tmp_path, [(6, 8)])}", split="all")[-1]
    assert image.shape == (6, 8, 3)
    assert label == -1
    assert name.endswith("dog/0.png")


def test_multi_label_samples_hold_a_vector_over_all_classes(tmp_path: Path) -> None:
    folder = _pets(tmp_path, [(6, 8)])
    (folder / "labels.csv").write_text("path,labels\ncat/0.png,cat|pet\ndog/0.png,\n")
    dataset = open_dataset(folder, split="all")
    (batch,) = DataLoader(dataset, batch_size=2)
    assert dataset.labels == ("cat", "pet")
    assert batch.label.tolist() == [[1, 1], [0, 0]]
    assert batch.label.dtype == torch.float32


@pytest.mark.parametrize("data", ["digits", "synthetic:classes=3,samples_per_class=4"])
def test_built_in_datasets_have_rgb_pixels_too(data: str) -> None:
    dataset = open_dataset(data, split="train")
    (batch, *_) = DataLoader(dataset, batch_size=4)
    assert batch.image.shape[0] == 4
    assert batch.image.shape[3] == 3
    np.testing.assert_array_equal(batch.image[..., 0], batch.image[..., 2])  # both are grey


def test_decoded_pixels_are_those_of_the_undecoded_sample(tmp_path: Path) -> None:
    dataset = open_dataset("synthetic", synthetic=SyntheticConfig(classes=2, samples_per_class=3, channels=3))
    for index in range(len(dataset)):
        np.testing.assert_array_equal(dataset[index].image, dataset.read(index).content)
        assert dataset[index].label == dataset.read(index).label == dataset.label(index)
