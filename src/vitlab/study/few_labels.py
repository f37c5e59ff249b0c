"""Digits with few labels, as packs on the disk; and what the nearest of the labelled ones says of the others.

Axes: N pictures, M pictures judged by, P pixels.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.files.durable import write_bytes
from vitlab.data.source import Source, open_source
from vitlab.evaluate.fewshot import draw


def write_few(path: Path, *, shots: int, seed: int) -> Path:
    """A pack of `shots` training pictures of each digit, drawn by `seed`, and all test pictures; written once, then left alone."""
    if path.exists():
        return path
    train, test = open_source("digits", split="train+val"), open_source("digits", split="test")
    labels_N = np.array([train.label(index) for index in range(len(train))], np.int64)
    chosen = np.sort(np.concatenate([order[:shots] for order in draw(labels_N, classes=len(train.labels), seed=seed)]))
    images, labels = zip(*((train[int(index)].content, train.label(int(index))) for index in chosen), strict=True)
    test_images, test_labels = zip(*((test[index].content, test.label(index)) for index in range(len(test))), strict=True)
    file = io.BytesIO()
    np.savez(
        file,
        train_images=np.stack(images),
        train_labels=np.array(labels, np.int64),
        test_images=np.stack(test_images),
        test_labels=np.array(test_labels, np.int64),
        classes=np.array(train.labels),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, file.getvalue())
    return path


def nearest(spec: str) -> float:
    """Share of the test pictures, 0 to 1, whose nearest training picture by Euclidean distance of pixels is of their class."""
    train_NP, train_N = _pixels(open_source(spec, split="train+val"))
    test_MP, test_M = _pixels(open_source(spec, split="test"))
    # |a - b|^2 = |a|^2 - 2ab + |b|^2, and |a|^2 is the same for all b
    distance_MN = (train_NP**2).sum(1) - 2 * test_MP @ train_NP.T
    return float(np.mean(train_N[distance_MN.argmin(1)] == test_M))


def _pixels(source: Source) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rows = [np.asarray(source[index].content, np.float64).reshape(-1) for index in range(len(source))]
    return np.stack(rows), np.array([source.label(index) for index in range(len(source))], np.int64)
