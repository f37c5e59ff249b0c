"""The hash of an image's content: what splits, duplicates and fingerprints go by, the same in every container."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.io.cache import recall, remember, settled

DIGEST_BYTES = 16

Content = bytes | NDArray[np.uint8]
Digests = NDArray[np.uint8]
"""(images, 16)"""

WORTH_REMEMBERING = 64 * 2**20
"""Bytes of content from which digests are kept for the next time; fewer are hashed again in a tenth of a second."""

_CHUNK = 64


def digest(content: Content) -> bytes:
    """16 bytes of BLAKE2b: of an encoded file its bytes, of pixels their shape and values."""
    if isinstance(content, bytes):
        return blake2b(content, digest_size=DIGEST_BYTES).digest()
    made = blake2b(repr(content.shape).encode(), digest_size=DIGEST_BYTES)
    made.update(np.ascontiguousarray(content).data)
    return made.digest()


def digest_all(read: Callable[[int], Content], rows: NDArray[np.int64]) -> Digests:
    """The digest of each row's content, (len(rows), 16), read and hashed by a few threads at once."""
    chunks = [rows[start : start + _CHUNK].tolist() for start in range(0, len(rows), _CHUNK)]

    def hashed(chunk: list[int]) -> bytes:
        return b"".join(digest(read(row)) for row in chunk)

    if len(chunks) <= 1:
        joined = b"".join(map(hashed, chunks))
    else:
        # Hashing and reading release the interpreter's lock, and a cold disk answers several questions sooner than one.
        with ThreadPoolExecutor(max_workers=min(8, (os.cpu_count() or 1) + 2)) as pool:
            joined = b"".join(pool.map(hashed, chunks))
    return np.frombuffer(joined, np.uint8).reshape(len(rows), DIGEST_BYTES)


def remembered_digests(
    read: Callable[[int], Content],
    rows: NDArray[np.int64],
    *,
    path: Path,
    stamp: tuple[int, int, int],
    sizes: NDArray[np.int64],
) -> Digests:
    """The digests of an archive's members, kept until its stamp changes; `sizes` are those of all its members, in bytes."""
    if int(sizes[rows].sum()) < WORTH_REMEMBERING:
        return digest_all(read, rows)
    now = np.array(stamp, np.int64)
    stored = recall("digests", path) or {}
    if not (np.array_equal(stored.get("stamp", ()), now) and np.shape(stored.get("known", ())) == np.shape(sizes)):
        stored = {
            "stamp": now,
            "known": np.zeros(len(sizes), bool),
            "digests": np.zeros((len(sizes), DIGEST_BYTES), np.uint8),
        }
    known, digests = stored["known"].astype(bool), stored["digests"].astype(np.uint8)
    fresh = rows[~known[rows]]
    if len(fresh):
        digests[fresh] = digest_all(read, fresh)
        known[fresh] = True
        if settled(stamp):
            remember("digests", path, {"stamp": now, "known": known, "digests": digests})
    return digests[rows]


def as_numbers(digests: Digests) -> NDArray[np.float64]:
    """Each digest as a number in [0, 1), uniform: its first 53 bits."""
    heads = np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return (heads >> np.uint64(11)).astype(np.float64) / 2.0**53


# CRC-32C (Castagnoli), the checksum of TensorFlow's record files, an image in a fraction of a millisecond.
#
# The checksum is linear: that of a message is the exclusive or of what each of its bytes gives at its place. So a message is cut
# into rows, all bytes of all rows are looked up at once, and rows are joined in pairs, each left one moved over its right one.
#
# Axes: R rows of a message, K bytes of a row.

Words = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_ROW = 256


def masked_crc32c(data: bytes) -> int:
    """The checksum as record files store it: turned by 15 bits, and a constant added."""
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The checksum of any bytes, 0 to 2^32 - 1."""
    if len(data) < _ROW:
        return _byte_by_byte(data)
    rows = 1 << (-(-len(data) // _ROW) - 1).bit_length()  # a power of two; zeros in front of a message change nothing
    padded = np.zeros(rows * _ROW, np.uint8)
    padded[-len(data) :] = np.frombuffer(data, np.uint8)
    padded[-len(data) :][:4] ^= 0xFF  # the register begins with ones, as if the first four bytes were turned over
    joined_R = np.bitwise_xor.reduce(_places()[np.arange(_ROW), padded.reshape(rows, _ROW)], axis=1)
    moved = _ROW
    while len(joined_R) > 1:
        joined_R = _apply(_zeros(moved), joined_R[0::2]) ^ joined_R[1::2]
        moved *= 2
    return int(joined_R[0]) ^ 0xFFFFFFFF


@cache
def _table() -> Words:
    """What one byte makes of an empty register."""
    register = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        register = np.where(register & 1, register >> np.uint32(1) ^ np.uint32(_POLYNOMIAL), register >> np.uint32(1))
    return register.astype(np.uint32)


@cache
def _places() -> Words:
    """(K, 256): what each byte gives at each place of a row."""
    places_K256 = np.empty((_ROW, 256), np.uint32)
    places_K256[-1] = _table()
    for place in range(_ROW - 2, -1, -1):
        after = places_K256[place + 1]
        places_K256[place] = after >> np.uint32(8) ^ _table()[after & np.uint32(0xFF)]
    return places_K256


@cache
def _zeros(count: int) -> Words:
    """(4, 256): what `count` zeros, a power of two, make of a register, for each of its bytes."""
    if count > 1:
        half = _zeros(count // 2)
        return np.stack([_apply(half, half[byte]) for byte in range(4)])
    registers = np.arange(256, dtype=np.uint32)[None] << (8 * np.arange(4, dtype=np.uint32))[:, None]
    found: Words = registers >> np.uint32(8) ^ _table()[registers & np.uint32(0xFF)]
    return found


def _apply(moved: Words, register: Words) -> Words:
    low = np.uint32(0xFF)
    found: Words = moved[0][register & low]
    for byte in range(1, 4):
        found = found ^ moved[byte][register >> np.uint32(8 * byte) & low]
    return found


def _byte_by_byte(data: bytes) -> int:
    table = _table()
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ int(table[(register ^ byte) & 0xFF])
    return register ^ 0xFFFFFFFF
