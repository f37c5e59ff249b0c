"""CRC-32C (Castagnoli), the checksum of TensorFlow's record files, a picture in a fraction of a millisecond.

The checksum is linear: that of a message is the exclusive or of what each of its bytes gives at its place. So a message is cut
into rows, all bytes of all rows are looked up at once, and rows are joined in pairs, each left one moved over its right one.

Axes: R rows of a message, K bytes of a row.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

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
