"""Hashes of image contents, for splits, duplicates and fingerprints; the same in every container."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from vitlab.io.address import Address, Place
from vitlab.io.cache import recall, remember
from vitlab.io.files import settled

DIGEST_BYTES = 16

Content = bytes | NDArray[np.uint8]
Digests = NDArray[np.uint8]
"""(images, 16)"""

WORTH_REMEMBERING = 64 * 2**20
"""Bytes of content above which digests are cached; less is hashed again in a tenth of a second."""

REMOTE_READS = 32
"""Threads that read from a server, which are asleep most of the time."""

_CHUNK = 64


def digest(content: Content) -> bytes:
    """16 bytes of BLAKE2b: of a file's bytes, or of the shape and values of pixels."""
    if isinstance(content, bytes):
        return blake2b(content, digest_size=DIGEST_BYTES).digest()
    made = blake2b(repr(content.shape).encode(), digest_size=DIGEST_BYTES)
    made.update(np.ascontiguousarray(content).data)
    return made.digest()


def digest_all(read: Callable[[int], Content], rows: NDArray[np.int64], *, threads: int | None = None) -> Digests:
    """The digest of each row's content, (len(rows), 16), computed by a few threads."""
    size = _CHUNK if threads is None else 1
    chunks = [rows[start : start + size].tolist() for start in range(0, len(rows), size)]

    def hashed(chunk: list[int]) -> bytes:
        return b"".join(digest(read(row)) for row in chunk)

    if len(chunks) <= 1:
        joined = b"".join(map(hashed, chunks))
    else:
        # Hashing and reading release the interpreter's lock, and a disk serves several requests faster than one.
        with ThreadPoolExecutor(max_workers=threads or min(8, (os.cpu_count() or 1) + 2)) as pool:
            joined = b"".join(pool.map(hashed, chunks))
    return np.frombuffer(joined, np.uint8).reshape(len(rows), DIGEST_BYTES)


def remembered_digests(
    read: Callable[[int], Content],
    rows: NDArray[np.int64],
    *,
    path: Place,
    stamp: tuple[int, int, int],
    sizes: NDArray[np.int64],
) -> Digests:
    """The digests of an archive's members, cached until its stamp changes; `sizes` are those of all members, in bytes."""
    remote = isinstance(path, Address)
    if not remote and int(sizes[rows].sum()) < WORTH_REMEMBERING:
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
        digests[fresh] = digest_all(read, fresh, threads=REMOTE_READS if remote else None)
        known[fresh] = True
        if remote or settled(stamp):
            remember("digests", path, {"stamp": now, "known": known, "digests": digests})
    return digests[rows]


def version_digests(stamps: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> Digests:
    """16 bytes for each row, which change when the file on the server or the row's place in it changes; nothing is read."""
    rows = np.stack([stamps, offsets, sizes], axis=1).astype("<i8")
    made = b"".join(blake2b(row.tobytes(), digest_size=DIGEST_BYTES).digest() for row in rows)
    return np.frombuffer(made, np.uint8).reshape(len(rows), DIGEST_BYTES)


def as_numbers(digests: Digests) -> NDArray[np.float64]:
    """Each digest as a uniform number in [0, 1): its first 53 bits."""
    heads = np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return (heads >> np.uint64(11)).astype(np.float64) / 2.0**53
