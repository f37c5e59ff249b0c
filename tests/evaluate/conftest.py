"""Labelled photographs of two kinds, and a checkpoint that answers to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.predict import small
from vitlab.checkpoint import Checkpoint

KINDS = ("cat", "dog", "owl")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Seven photographs of each of three kinds, in class folders."""
    for place, kind in enumerate(KINDS):
        small.photos(tmp_path / "pets" / kind, 7, start=10 * place)
    return tmp_path / "pets"


@pytest.fixture(scope="session")
def expert() -> Checkpoint:
    """A checkpoint whose classes are those three."""
    return small.checkpoint(KINDS, classes=3)
