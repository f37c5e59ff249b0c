"""A zip archive whose claims are bounded before anything is unpacked: .npz and torch files are zips."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from vitlab.errors import CheckpointError
from vitlab.io.files import size_of

MAX_DIRECTORY = 2 << 20  # bytes of the table of contents: about 20,000 members
MAX_RATIO = 20  # unpacked over packed, of the whole: trained weights reach 1.1
ALLOWANCE = 16 << 20  # bytes that any file may unpack to, for small files of zeros

_END = b"PK\x05\x06"
_END_BYTES = 22
_LOCATOR = b"PK\x06\x07"
_COMMENT_BYTES = 0xFFFF
_ENCRYPTED = 0x1


def open_zip(file: BinaryIO, path: Path) -> zipfile.ZipFile:
    """The archive, if its members are plain or deflated, lie apart inside the file, and do not unpack to absurd sizes."""
    size = size_of(file)
    count = _check_directory(file, size, path)
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, OverflowError) as error:
        raise damaged(path, str(error)) from error
    members = archive.infolist()
    if len(members) != count:
        raise damaged(path, f"its end speaks of {count:,} members and {len(members):,} are listed")
    if len({member.filename for member in members}) < len(members):
        raise damaged(path, "two members have the same name")
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & _ENCRYPTED:
            raise damaged(path, f"member {member.filename[:60]!r} is encrypted or compressed in a way nobody uses for weights")
        if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
            raise damaged(path, f"member {member.filename[:60]!r} contradicts itself about its size")
    _check_places(members, size, path)
    claimed = sum(member.file_size for member in members)
    if claimed > allowed_bytes(size):
        raise CheckpointError(
            f"{path} claims to unpack to {claimed:,} bytes from {size:,}: that is a zip bomb, not weights",
            hint="get the file again from where it came from",
        )
    return archive


def allowed_bytes(size: int) -> int:
    """How many bytes of tensors a file of `size` bytes may hold."""
    return MAX_RATIO * size + ALLOWANCE


def damaged(path: Path, why: str) -> CheckpointError:
    """The error for an archive that is not what it should be."""
    return CheckpointError(f"{path} is a damaged or hostile archive: {why}", hint="get the file again from where it came from")


def _check_directory(file: BinaryIO, size: int, path: Path) -> int:
    """The number of members; a long table of contents is refused before Python's zipfile spends seconds and memory on it."""
    file.seek(max(0, size - 76 - _END_BYTES - _COMMENT_BYTES))
    tail = file.read()
    place = tail.rfind(_END)
    if place < 0 or len(tail) - place < _END_BYTES:
        raise damaged(path, "its end is missing")
    count, directory = struct.unpack_from("<HI", tail, place + 10)
    if tail[max(0, place - 20) :].startswith(_LOCATOR):  # then zipfile goes by the zip64 record before it, and so must this check
        record = tail[max(0, place - 76) : place - 20]
        if len(record) < 56:
            raise damaged(path, "its zip64 record is missing")
        count, directory = struct.unpack_from("<QQ", record, 32)
    if directory > MAX_DIRECTORY:
        raise damaged(path, f"its table of contents has {directory:,} bytes, more than the {MAX_DIRECTORY:,} allowed")
    return int(count)


def _check_places(members: list[zipfile.ZipInfo], size: int, path: Path) -> None:
    """Members that share bytes are how a small archive unpacks to a huge one."""
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise damaged(path, f"member {member.filename[:60]!r} overlaps another")
        end = member.header_offset + 30 + member.compress_size
    if end > size:
        raise damaged(path, "a member ends after the file")
