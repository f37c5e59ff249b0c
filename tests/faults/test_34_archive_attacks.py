"""An archive wants out of its folder, or to fill the disk: vitlab refuses it by name or by the limit, and nothing of it is left."""

from __future__ import annotations

import bz2
import gzip
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.data.containers import as_tar, as_tar_of_members, as_zip, member, pile
from tests.faults.limits import no_file_above
from vitlab.errors import DataError
from vitlab.io.archive import extract
from vitlab.io.archive_limits import ArchiveLimits

FILES = pile() | {"empty.txt": b"", "deep/er/still/x.bin": os.urandom(3_000_000), "ünï/码.txt": "é".encode()}


def nothing_left(folder: Path, archive: Path) -> bool:
    return [entry.name for entry in folder.iterdir() if entry != archive] == []


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


def test_a_full_disk_leaves_nothing_and_says_what_is_free(tmp_path: Path) -> None:
    path = as_tar(tmp_path / "x.tar", FILES)
    with no_file_above(1_000_000), pytest.raises(DataError, match=r"File too large \([\d,]+ bytes are free\)"):
        extract(path, tmp_path / "out")
    assert nothing_left(tmp_path, path)


@pytest.mark.parametrize("form", ["zip", "tar.bz2"])
def test_a_million_entries_are_refused_by_a_limit_and_nothing_is_left(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"x.{form}"
    if form == "zip":
        entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", *[0] * 9, 1, *[0] * 4, 0, 0) + b"a"
        end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 10**6, 10**6, 10**6 * len(entry), 4)
        place = struct.pack("<4sLQL", b"PK\6\7", 0, 4 + 10**6 * len(entry), 1)
        last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        path.write_bytes(b"PK\3\4" + entry * 10**6 + end + place + last)
    else:
        header = member("folder/", tarfile.DIRTYPE).tobuf()
        path.write_bytes(bz2.compress(header * 2000) * 500)  # such a file may have several parts
    with pytest.raises(DataError, match=r"1,000,000 entries; the limit is 500,000 \(entries\)|the limit is 100 times \(ratio\)"):
        extract(path, tmp_path / "out")
    assert nothing_left(tmp_path, path)


@pytest.mark.parametrize("packing", ["w", "w:gz"])
def test_a_hard_link_to_a_file_of_the_archive_is_refused_too(tmp_path: Path, packing: str) -> None:
    path = as_tar_of_members(tmp_path / "x.tar", [member("a.txt"), member("b.txt", tarfile.LNKTYPE, link="a.txt")], mode=packing)
    with pytest.raises(DataError, match=r"b\.txt is a link"):
        extract(path, tmp_path / "out")
    assert nothing_left(tmp_path, path)
