"""Unpacking: an honest archive comes out as it went in; of any other nothing is left, inside the target or outside."""

from __future__ import annotations

import bz2
import gzip
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


ATTACKS: dict[str, list[tarfile.TarInfo]] = {
    "climbs": [member("a.txt"), member("../evil.txt")],
    "climbs late": [member("a.txt"), member("b/../../evil.txt")],
    "absolute": [member("/tmp/vitlab-evil.txt")],
    "symlink": [member("link", tarfile.SYMTYPE, link="/tmp"), member("link/evil.txt")],
    "symlink up": [member("link", tarfile.SYMTYPE, link=".."), member("link/evil.txt")],
    "hardlink": [member("hard", tarfile.LNKTYPE, link="/etc/passwd")],
    "hardlink to deeper symlink": [
        member("a/b/link", tarfile.SYMTYPE, link="../../.."),
        member("hard", tarfile.LNKTYPE, link="a/b/link"),
        member("hard/evil.txt"),
    ],
    "device": [member("zero", tarfile.CHRTYPE)],
    "pipe": [member("pipe", tarfile.FIFOTYPE)],
    "file and folder": [member("a"), member("a/b")],
    "twice": [member("a"), member("a")],
    "sparse": [member("a", tarfile.GNUTYPE_SPARSE)],
    "nothing": [member("a", tarfile.DIRTYPE)],
}


@pytest.mark.parametrize("packing", ["w", "w:gz"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_tar_is_refused_and_nothing_is_left(tmp_path: Path, attack: str, packing: str) -> None:
    path = as_tar_of_members(tmp_path / "evil.tar", ATTACKS[attack], mode=packing)
    with pytest.raises(DataError, match=r"evil\.tar"):
        extract(path, tmp_path / "out")
    assert nothing_left(tmp_path, path)
    assert not list(tmp_path.parent.glob("evil*"))
    assert not Path("/tmp/vitlab-evil.txt").exists()


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/vitlab-evil.txt", "a/../../evil.txt", "C:evil.txt", "a\\..\\..\\evil.txt"])
def test_a_zip_with_a_name_that_leads_out_is_refused_and_nothing_is_left(tmp_path: Path, name: str) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good.txt", b"good")
        info = zipfile.ZipInfo("placeholder")
        info.filename = name
        archive.writestr(info, b"evil")
    with pytest.raises(DataError, match=r"is refused"):
        extract(path, tmp_path / "out")
    assert nothing_left(tmp_path, path)


def test_a_zip_with_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc")
    with pytest.raises(DataError, match=r"1 members that are a link"):
        extract(path, tmp_path / "out")
    assert nothing_left(tmp_path, path)


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (ArchiveLimits(entries=59), "entries"),
        (ArchiveLimits(entry_bytes=2_999_999), "entry_bytes"),
        (ArchiveLimits(total_bytes=3_000_000), "total_bytes"),
    ],
)
def test_each_limit_is_named_when_it_is_met_and_nothing_is_left(
    tmp_path: Path, form: str, limits: ArchiveLimits, name: str
) -> None:
    path = tmp_path / f"x.{form}"
    as_zip(path, FILES) if form == "zip" else as_tar(path, FILES, mode="w:gz" if form == "tar.gz" else "w")
    with pytest.raises(DataError, match=rf"\({name}\)"):
        extract(path, tmp_path / "out", limits)
    assert nothing_left(tmp_path, path)


@pytest.mark.parametrize("form", ["zip", "tar.gz", "tar.bz2"])
def test_a_bomb_is_refused_by_its_ratio_and_nothing_is_left(tmp_path: Path, form: str) -> None:
    path, files = tmp_path / f"bomb.{form}", {"a.txt": b"good", "bomb": bytes(32 * 2**20)}
    if form == "zip":
        as_zip(path, files, method=zipfile.ZIP_DEFLATED)
    else:
        as_tar(path, files, mode="w:gz" if form == "tar.gz" else "w:bz2")
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"the limit is 100 times \(ratio\)"):
        extract(path, tmp_path / "out")
    assert nothing_left(tmp_path, path)


def test_a_bomb_behind_the_last_member_is_refused_by_its_ratio(tmp_path: Path) -> None:
    plain = as_tar(tmp_path / "x.tar", pile()).read_bytes()
    (tmp_path / "x.tar").unlink()
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(plain + bytes(32 * 2**20)))
    with pytest.raises(DataError, match=r"the limit is 100 times \(ratio\)"):
        extract(path, tmp_path / "out")
    assert nothing_left(tmp_path, path)


@pytest.mark.parametrize("form", ["tar", "tar.gz", "tar.bz2", "zip"])
def test_every_cut_is_refused_and_nothing_is_left(tmp_path: Path, form: str) -> None:
    path, files = tmp_path / f"x.{form}", pile(classes=2, images=4)
    modes = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2"}
    as_zip(path, files) if form == "zip" else as_tar(path, files, mode=modes[form])
    whole = path.read_bytes()
    # Behind the last member a tar may be cut anywhere in its padding but the mark of the end itself.
    end = 8 * 1024 + 512 if form == "tar" else len(whole)
    for length in range(0, end, max(1, end // 60)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            extract(path, tmp_path / "out")
        assert nothing_left(tmp_path, path)


def test_damage_inside_a_compressed_tar_is_refused(tmp_path: Path) -> None:
    plain = as_tar(tmp_path / "x.tar", FILES).read_bytes()
    for pack in (gzip.compress, bz2.compress):
        data = bytearray(pack(plain))
        data[len(data) // 2] ^= 0xFF
        (tmp_path / "y").write_bytes(data)
        with pytest.raises(DataError, match=r"is damaged or cut off after"):
            extract(tmp_path / "y", tmp_path / "out")
        assert not (tmp_path / "out").exists()


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


def test_a_full_disk_leaves_nothing_and_says_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_tar(tmp_path / "x.tar", FILES)
    opened = os.fdopen

    class Full:
        def __init__(self, handle: int) -> None:
            self._file = opened(handle, "wb")

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitlab.io.archive.os.fdopen", lambda handle, _: Full(handle))
    with pytest.raises(DataError, match=r"No space left on device \([\d,]+ bytes are free\)"):
        extract(path, tmp_path / "out")
    assert nothing_left(tmp_path, path)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"entries=0"):
        ArchiveLimits(entries=0)
