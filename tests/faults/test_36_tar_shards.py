"""Tar shards hold pickles or programs, or are cut off: vitlab runs nothing of them, and names the shard and the offset."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path

import pytest

from tests.data.containers import as_tar
from tests.data.test_shards import opened, samples
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError


class Boom:
    """Pickles into a call that leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_members_that_other_readers_run_are_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    payload = pickle.dumps(Boom(marker))
    files = {}
    for name, content in samples().items():
        files[name] = content
        if name.endswith(".jpg"):
            files |= {name.replace("jpg", ending): payload for ending in ("pyd", "pkl", "pickle", "pth", "pt", "npy")}
    dataset = opened(as_tar(tmp_path / "it.tar", files))
    for index in range(len(dataset)):
        assert dataset.read(index).content == f"image {index}".encode()
    dataset.fingerprint()
    assert not marker.exists()
    assert "12 .pyd" in dataset.notes[0]
    assert "12 .pkl" in dataset.notes[0]
    pickle.loads(payload)
    assert marker.exists()  # it would have


@pytest.mark.parametrize("spec", ["pipe:touch {}", "shards:pipe:touch {}", "a.tar::pipe:touch {}", "shards:ftp://x/{}.tar"])
def test_addresses_and_pipes_are_refused_and_never_run(tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    as_tar(tmp_path / "a.tar", samples())
    marker = tmp_path / "ran"
    with pytest.raises(DataError, match=r"no program is run|would run a program"):
        open_dataset(spec.format(marker))
    assert not marker.exists()


def test_every_cut_is_refused_with_the_shard_and_an_offset(tmp_path: Path) -> None:
    path = as_tar(tmp_path / "it.tar", samples())
    whole = path.read_bytes()
    end = whole.rindex(b"image 11") + 512  # the first block of zeros
    for length in range(0, end, 200):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=rf"it\.tar is cut off: it ends at offset {length:,}\b"):
            opened(path)


def test_a_shard_cut_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = as_tar(tmp_path / "it.tar", samples())
    dataset = opened(path)
    status = path.stat()
    os.truncate(path, 2000)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DataError, match=r"has changed since it was opened"):
        dataset.read(11)


def test_no_changed_header_byte_goes_unnoticed(tmp_path: Path) -> None:
    path = as_tar(tmp_path / "it.tar", samples(3), form=tarfile.USTAR_FORMAT)
    whole = path.read_bytes()
    for place in set(range(0, 512, 5)) - {155}:  # the checksum's own padding, which says nothing
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        with pytest.raises(DataError, match=r"no tar header at offset 0|unknown type"):
            opened(path)
