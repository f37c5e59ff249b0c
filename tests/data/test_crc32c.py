"""The checksum of record files, against the definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_tfrecord import crc32c as masked_by_definition
from vitlab.data.readers.tfrecord import crc32c, masked_crc32c


@pytest.mark.parametrize(
    ("data", "checksum"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_it_gives_the_published_values(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum  # RFC 3720, B.4


@given(st.binary(max_size=900), st.integers(0, 40))
def test_it_is_the_definitions_at_every_length(data: bytes, repeated: int) -> None:
    message = data * repeated + data
    assert masked_crc32c(message) == masked_by_definition(message)


@pytest.mark.parametrize("length", [255, 256, 257, 511, 512, 513, 65_536, 65_537])
def test_a_bit_that_flips_shows(length: int) -> None:
    message = bytearray(b"an image " * 7500)[:length]
    first = crc32c(bytes(message))
    assert masked_crc32c(bytes(message)) == masked_by_definition(bytes(message))
    for place in (0, 3, 4, length // 2, length - 1):
        message[place] ^= 0x10
        assert crc32c(bytes(message)) != first
        message[place] ^= 0x10
