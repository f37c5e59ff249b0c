"""Plain values and arrays in one run of bytes, for a program in a browser: no copy, no parsing of numbers.

Four bytes (little endian) give the length of the JSON that follows; then come the arrays, each at a multiple of four bytes after
the JSON's end, padded. The JSON is {"facts": ..., "arrays": [[name, type, shape, offset], ...]}, with numpy's names of types.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError
from vitlab.io.display import json_text

TYPES = ("uint8", "uint16", "float32")
_ALIGNED = 4


def pack_arrays(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Facts and arrays (uint8, uint16 or float32) as bytes."""
    listed, parts, offset = [], [], 0
    for name, array in arrays.items():
        assert array.dtype.name in TYPES, f"{name} is {array.dtype}"
        content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        listed.append([name, array.dtype.name, list(array.shape), offset])
        padding = -len(content) % _ALIGNED
        parts += [content, bytes(padding)]
        offset += len(content) + padding
    header = json_text({"facts": dict(facts), "arrays": listed}).encode()
    header += b" " * (-len(header) % _ALIGNED)
    return b"".join([struct.pack("<I", len(header)), header, *parts])


def unpack_arrays(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Facts and arrays of `pack_arrays`; DataError if the bytes are cut short."""
    if len(content) < _ALIGNED or len(content) < _ALIGNED + (size := struct.unpack_from("<I", content)[0]):
        raise DataError(f"{len(content)} bytes are no pack of arrays")
    header = json.loads(content[_ALIGNED : _ALIGNED + size])
    arrays = {}
    for name, kind, shape, offset in header["arrays"]:
        count = int(np.prod(shape))
        start = _ALIGNED + size + offset
        dtype = np.dtype(kind).newbyteorder("<")
        if start + count * dtype.itemsize > len(content):
            raise DataError(f"the pack of arrays is cut short: {name} reaches past its end")
        arrays[name] = np.frombuffer(content, dtype, count, start).reshape(shape)
    return header["facts"], arrays
