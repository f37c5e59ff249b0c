"""A server that the tests of faults share: a real process, with limits that are small enough to be reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inference import small
from tests.serving.small import Process, server_process


@pytest.fixture(scope="session")
def served(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """`vitlab serve` of a miniature model: bodies of 1 MiB, 4 images, a million pixels, requests that arrive within 4 s."""
    folder = tmp_path_factory.mktemp("served")
    model = small.saved(folder / "tiny.safetensors")
    limits = ("--max-body", "1", "--max-images", "4", "--max-pixels", "1000000", "--receive-seconds", "4")
    with server_process(warm, folder, model, *limits) as process:
        yield process
