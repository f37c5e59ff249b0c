"""Deflated bytes unpacked a little at a time, so that nothing can unpack to more than was asked for."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

MOST_INFLATED = 1032
"""Times: the most that deflate can unpack one byte to, so that a header that claims more lies."""

RAW, ZLIB, GZIP = -15, 15, 31


def inflated(chunks: Iterator[bytes], *, wrapping: int, most: int) -> Iterator[bytes]:
    """The unpacked bytes of a stream, at most `most` at a time; zlib.error where it is damaged or does not end.

    `wrapping` is RAW, ZLIB or GZIP. What follows the end of the stream is not looked at.
    """
    inflate = zlib.decompressobj(wrapping)
    for chunk in chunks:
        packed = chunk
        while not inflate.eof:
            data = inflate.decompress(packed, most)
            packed = inflate.unconsumed_tail
            if data:
                yield data
            if not packed and len(data) < most:
                break
        if inflate.eof:
            return
    raise zlib.error("the compressed stream does not end")
