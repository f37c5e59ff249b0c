"""A checkpoint at an address is described by its header: nothing else is read, and the result is that of the file on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from tests.checkpoints.small import FILES, HEADS, write_every_format
from vitlab.checkpoints import describe, load, remote_copy
from vitlab.errors import CheckpointError
from vitlab.io import remote
from vitlab.io.address import Address

PLACE = "memory://headers"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_every_format(tmp_path_factory.mktemp("formats"))


@pytest.fixture
def read(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The files in fsspec's memory; how many bytes each range of them had that was read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    for file in files.rglob("*"):
        if file.is_file():
            system.pipe_file(f"/headers/{file.relative_to(files)}", file.read_bytes())
    lengths: list[int] = []
    plain = remote.read_range

    def read_range(address: Address, offset: int, length: int, *, error: type[Exception]) -> bytes:
        lengths.append(length)
        return plain(address, offset, length, error=error)  # type: ignore[arg-type]

    monkeypatch.setattr(remote_copy, "read_range", read_range)
    yield lengths
    system.rm("/headers", recursive=True)


@pytest.mark.parametrize("name", ["model.safetensors", "timm.safetensors", "torchvision.safetensors", "folder/model.safetensors"])
def test_only_the_header_of_a_safetensors_file_is_read(
    name: str, files: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "download", None)
    ours, theirs = describe(f"{PLACE}/{name}", heads=HEADS), describe(files / name, heads=HEADS)
    assert ours.notes[0] == f"from {PLACE}/{name}"
    assert repr(replace(ours, notes=())) == repr(replace(theirs, notes=()))  # one of the metrics is NaN
    assert 0 < sum(read) < (files / name).stat().st_size / 2


def test_a_finished_run_is_described_by_the_header_of_its_model(
    files: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.filesystem("memory").pipe_file("/headers/run.json", b"{}")
    monkeypatch.setattr(remote, "download", None)
    assert describe(PLACE).config == describe(files / FILES["native"]).config
    assert sum(read) < (files / FILES["native"]).stat().st_size / 2


def test_other_formats_and_values_are_still_copied_whole(files: Path, read: list[int]) -> None:
    name = FILES["jax-npz"]
    assert describe(f"{PLACE}/{name}", heads=HEADS).config == describe(files / name, heads=HEADS).config
    assert load(f"{PLACE}/{FILES['native']}").config == load(files / FILES["native"]).config
    assert not read


@pytest.mark.parametrize("content", [b"", b"1234", b"\xff" * 100, b"\x08" + bytes(7) + b"{}      ", bytes(200)])
def test_a_damaged_file_is_one_sentence(content: bytes, read: list[int]) -> None:
    fsspec.filesystem("memory").pipe_file("/headers/bad.safetensors", content)
    with pytest.raises(CheckpointError):
        describe(f"{PLACE}/bad.safetensors")
