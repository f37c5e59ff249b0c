"""Small datasets in every container, for tests of readers, which do not look into the images."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

Pile = Mapping[str, bytes]


def pile(*, classes: int = 3, images: int = 20, start: str = "") -> dict[str, bytes]:
    """`class-0/000.jpg` and so on, each of other bytes."""
    return {
        f"{start}class-{label}/{number:03d}.jpg": f"image {start} {label} {number}".encode()
        for label in range(classes)
        for number in range(images)
    }


def as_folder(root: Path, files: Pile) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return root


def as_zip(path: Path, files: Pile, *, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def as_tar(path: Path, files: Pile, *, mode: str = "w", form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=form) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def as_tar_of_members(path: Path, members: list[tarfile.TarInfo], *, mode: str = "w") -> Path:
    """A tar of members that are not ordinary files, and of files of zeros."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for member in members:
            archive.addfile(member, io.BytesIO(b"\0" * member.size) if member.isreg() else None)
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def as_csv(path: Path, rows: Sequence[tuple[str, ...]]) -> Path:
    path.write_text("\n".join(",".join(row) for row in rows) + "\n", encoding="utf-8")
    return path
