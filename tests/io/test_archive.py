"""Unpacking: an honest archive comes out as it went in; of any other nothing is left, inside the target or outside."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.data.containers import as_tar, as_tar_of_members, as_zip, member, pile
from vitlab.errors import ConfigError, DataError
from vitlab.io.archive import extract
from vitlab.io.archive_limits import ArchiveLimits

FILES = pile() | {"empty.txt": b"", "deep/er/still/x.bin": os.urandom(3_000_000), "ünï/码.txt": "é".encode()}


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def nothing_left(folder: Path, archive: Path) -> bool:
    return [entry.name for entry in folder.iterdir() if entry != archive] == []


@pytest.mark.parametrize("name", ["x.zip", "deflated.zip", "x.tar", "gnu.tar", "ustar.tar", "x.tar.gz", "x.tgz", "x.tar.bz2"])
def test_what_comes_out_is_what_went_in(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".zip"):
        as_zip(path, FILES, method=zipfile.ZIP_DEFLATED if "deflated" in name else zipfile.ZIP_STORED)
    else:
        forms = {"gnu.tar": tarfile.GNU_FORMAT, "ustar.tar": tarfile.USTAR_FORMAT}
        mode = "w:gz" if name.endswith("gz") else "w:bz2" if name.endswith("bz2") else "w"
        as_tar(path, FILES, mode=mode, form=forms.get(name, tarfile.PAX_FORMAT))
    done = extract(path, tmp_path / "deep" / "out")
    assert files_in(tmp_path / "deep" / "out") == FILES
    assert (done.files, done.bytes) == (len(FILES), sum(map(len, FILES.values())))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["deep", name])
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["out"]


def test_modes_are_those_of_new_files_whatever_the_archive_says(tmp_path: Path) -> None:
    info = member("tool.sh")
    info.mode = 0o4777
    as_tar_of_members(tmp_path / "x.tar", [info])
    old = os.umask(0o027)
    try:
        extract(tmp_path / "x.tar", tmp_path / "out")
    finally:
        os.umask(old)
    assert (tmp_path / "out" / "tool.sh").stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "out").stat().st_mode & 0o7777 == 0o750


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"\xfd7zXZ\0" + bytes(600), bytes(2000)])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=r"is not a zip, tar"):
        extract(tmp_path / "x", tmp_path / "out")
    with pytest.raises(DataError, match=r"does not exist"):
        extract(tmp_path / "gone", tmp_path / "out")
    assert nothing_left(tmp_path, tmp_path / "x")


def test_a_target_that_holds_something_is_left_as_it_is(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "x.zip", pile())
    (tmp_path / "out").mkdir()
    extract(path, tmp_path / "out")  # empty: taken
    with pytest.raises(DataError, match=r"exists already"):
        extract(path, tmp_path / "out")
    assert len(files_in(tmp_path / "out")) == 60


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"entries=0"):
        ArchiveLimits(entries=0)
