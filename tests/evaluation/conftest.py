"""Tests of evaluation keep what they remember to themselves, and share some photographs and a checkpoint that answers to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inference import small
from vitlab.checkpoints import Checkpoint

KINDS = ("cat", "dog", "owl")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


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
