"""Wrong labels that were planted are found by confident learning; the list to correct is itself a dataset."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitlab
from tests.checkpoints.small import small_checkpoint
from vitlab.errors import DataError, UsageError
from vitlab.evaluation.features import Features
from vitlab.evaluation.label_errors import LabelCheck, confident_errors, neighbour_distances, out_of_fold


def clouds(images: int = 400, classes: int = 4) -> Features:
    """Features that lie around one point for each class."""
    rng = np.random.default_rng(0)
    labels_N = np.arange(images) % classes
    features_ND = (4 * np.eye(classes, 8)[labels_N] + rng.normal(size=(images, 8))).astype(np.float32)
    return Features(
        features_ND=features_ND,
        labels_N=labels_N.astype(np.int64),
        indices_N=np.arange(images),
        names=tuple("abcd")[:classes],
    )


def test_planted_labels_are_found_with_the_class_that_is_meant() -> None:
    clean = clouds()
    planted = np.random.default_rng(1).choice(400, 20, replace=False)
    labels_N = clean.labels_N.copy()
    labels_N[planted] = (labels_N[planted] + 1) % 4
    found = dict(confident_errors(out_of_fold(replace(clean, labels_N=labels_N)), labels_N))
    hit = set(found) & set(planted.tolist())
    assert len(hit) >= 18
    assert len(found) <= 30
    assert all(found[row] == clean.labels_N[row] for row in hit)
    assert len(list(confident_errors(out_of_fold(clean), clean.labels_N))) <= 12


def test_the_confident_joint_is_that_of_the_paper() -> None:
    """By hand: thresholds are 0.7 and 0.6; row 2 is labelled 0 and confidently 1, row 4 is confident in nothing."""
    chance_NK = np.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7], [0.1, 0.9], [0.6, 0.4], [0.5, 0.5]])
    labels_N = np.array([0, 0, 0, 1, 1, 1])
    assert list(confident_errors(chance_NK, labels_N)) == [(2, 1)]


def test_a_label_that_is_the_most_probable_class_is_no_error() -> None:
    """Of a rare class the threshold may be tiny: an image above it is not of that class if its own is far more probable."""
    chance_NK = np.array([[0.99, 0.01], [0.97, 0.03], [0.9, 0.1], [0.96, 0.04]])
    assert list(confident_errors(chance_NK, np.array([0, 0, 0, 1]))) == [(3, 0)]


def test_an_image_does_not_teach_its_own_label() -> None:
    """Labels that are drawn blindly are predicted out of fold no better than by chance."""
    blind = replace(clouds(), labels_N=np.random.default_rng(2).integers(0, 4, 400))
    accuracy = (out_of_fold(blind).argmax(1) == blind.labels_N).mean()
    assert accuracy < 0.4


def test_an_outlier_is_far_from_its_neighbours() -> None:
    features_ND = clouds().features_ND
    features_ND[7] = -np.abs(features_ND[7]) * 3
    assert neighbour_distances(features_ND).argmax() == 7
    assert neighbour_distances(features_ND[:1]).tolist() == [0.0]


def test_too_few_images_for_folds_are_refused() -> None:
    with pytest.raises(DataError, match="no class has 5 images"):
        out_of_fold(clouds(images=8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Red, green and blue images in class folders, with two in a wrong one."""
    root = tmp_path_factory.mktemp("colours") / "data"
    rng = np.random.default_rng(3)
    for place, label in enumerate(("red", "green", "blue")):
        for number in range(12):
            pixels = rng.integers(0, 60, (32, 32, 3)).astype(np.uint8)
            pixels[..., place] += 150
            kept = label if number != 5 or place == 0 else "red"
            (root / kept).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / kept / f"{label}-{number}.png")
    return root


def test_the_page_and_the_list_show_what_was_found_and_the_list_is_a_dataset(folder: Path, tmp_path: Path) -> None:
    model = small_checkpoint()
    page, corrections = tmp_path / "labels.html", tmp_path / "labels.csv"
    found = vitlab.check_data(folder, model=model, page=page, corrections=corrections)
    assert isinstance(found, LabelCheck)
    assert {Path(one.name).name for one in found.suspects} == {"green-5.png", "blue-5.png"}
    assert {one.suggested for one in found.suspects} == {"green", "blue"}
    assert found.problems[-1] == "2 labels are likely wrong"
    assert found.to_json()["label_check"]["images"] == 36
    assert "likely wrong" in str(found)
    assert " more (JSON has all)" not in str(found)
    assert "and 1 more (JSON has all)" in str(replace(found, check=replace(found.check, shown=1)))
    text = page.read_text(encoding="utf-8")
    assert text.count("<img") == 2 + len(found.outliers)
    assert "red/green-5.png" in text
    with corrections.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 36
    assert [row["suggested"] != "" for row in rows] == [True] * 2 + [False] * 34
    for row in rows:
        row["label"] = row["suggested"] or row["label"]
    corrected = tmp_path / "corrected.csv"
    with corrected.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    dataset = vitlab.open_dataset(corrected, split="all")
    labels = {Path(dataset[index].name).name: dataset.labels[dataset[index].label] for index in range(36)}
    assert all(name.startswith(label) for name, label in labels.items())


def test_files_need_a_model_and_are_not_replaced_unasked(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`page` needs `model`"):
        vitlab.check_data(folder, page=tmp_path / "x.html")
    (tmp_path / "x.html").write_text("mine")
    with pytest.raises(DataError, match="exists already"):
        vitlab.check_data(folder, model=small_checkpoint(), page=tmp_path / "x.html")
