"""Data of the quickstart: packs with few labels, and nearest neighbours of pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitlab.data.opening import open_dataset
from vitlab.studies.quickstart import nearest, write_few


def test_a_pack_has_the_asked_number_of_each_digit_and_all_test_images(tmp_path: Path) -> None:
    pack = write_few(tmp_path / "data" / "few.npz", shots=3, seed=1)
    train, test = open_dataset(str(pack), split="train+val"), open_dataset(str(pack), split="test")
    assert np.bincount([int(str(train.label(index))) for index in range(len(train))]).tolist() == [3] * 10
    assert test.fingerprint() == open_dataset("digits", split="test").fingerprint()


def test_the_seed_alone_decides_which_images_are_drawn(tmp_path: Path) -> None:
    prints = [
        open_dataset(str(write_few(tmp_path / f"{number}.npz", shots=2, seed=seed)), split="train+val").fingerprint()
        for number, seed in enumerate((5, 5, 6))
    ]
    assert prints[0] == prints[1] != prints[2]


def test_an_existing_pack_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "few.npz"
    path.write_bytes(b"mine")
    assert write_few(path, shots=2, seed=0).read_bytes() == b"mine"


def test_nearest_neighbours_of_themselves_are_all_correct_and_of_shuffled_labels_are_not(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8)).astype(np.uint8)
    labels = np.arange(40) % 4
    for name, test_labels in (("same", labels), ("shuffled", (labels + 1) % 4)):
        np.savez(tmp_path / name, train_images=images, train_labels=labels, test_images=images, test_labels=test_labels)
    assert nearest(str(tmp_path / "same.npz")) == 1
    assert nearest(str(tmp_path / "shuffled.npz")) == 0
