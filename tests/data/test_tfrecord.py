"""TensorFlow's record files without TensorFlow, as DMLab's frames come in them."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import pytest

from tests.data.piles import as_folder
from vitlab.data.kinds.dmlab import open_dmlab
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError


def varint(value: int) -> bytes:
    out = b""
    value &= (1 << 64) - 1
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(image: bytes, label: int, *, packed: bool = True, extra: bool = True) -> bytes:
    numbers = field(1, varint(label)) if packed else varint(1 << 3) + varint(label)
    entries = field(1, field(1, b"label") + field(2, field(3, numbers)))
    entries += field(1, field(1, b"image") + field(2, field(1, field(1, image))))
    if extra:
        entries += field(1, field(1, b"filename") + field(2, field(1, field(1, b"x.jpg"))))
        entries += field(1, field(1, b"score") + field(2, field(2, field(1, struct.pack("<f", 0.5)))))
    return field(1, entries)


def crc32c(data: bytes) -> int:
    """Written apart from the reader's: by polynomial division of the reflected bits."""
    table = []
    for number in range(256):
        value = number
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    total = 0xFFFFFFFF
    for byte in data:
        total = table[(total ^ byte) & 0xFF] ^ total >> 8
    total ^= 0xFFFFFFFF
    return ((total >> 15 | total << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(content: bytes) -> bytes:
    head = struct.pack("<Q", len(content))
    return head + struct.pack("<I", crc32c(head)) + content + struct.pack("<I", crc32c(content))


def dmlab(folder: Path, *, packed: bool = True) -> None:
    for part, count in (("train", 7), ("validation", 3), ("test", 4)):
        for shard in range(2):
            examples = [example(f"{part} {shard} {number}".encode() * 50, number % 6, packed=packed) for number in range(count)]
            name = f"dmlab-{part}.tfrecord-{shard:05d}-of-00002"
            as_folder(folder, {name: b"".join(record(one) for one in examples)})


def test_the_checksum_of_records_is_the_known_one() -> None:
    assert ((crc32c(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF) == ((0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF)


@pytest.mark.parametrize("packed", [True, False])
def test_frames_are_read_from_record_files(tmp_path: Path, packed: bool) -> None:
    dmlab(tmp_path, packed=packed)
    source = open_dmlab(tmp_path)
    assert source.parts.tolist() == [TRAIN] * 14 + [VAL] * 6 + [TEST] * 8
    assert source.table.codes.tolist() == [0, 1, 2, 3, 4, 5, 0] * 2 + [0, 1, 2] * 2 + [0, 1, 2, 3] * 2
    again = pickle.loads(pickle.dumps(source))
    assert again[8].content == b"train 1 1" * 50
    assert again[27].content == b"test 1 3" * 50


def test_record_files_that_are_cut_off_damaged_or_lie_are_refused(tmp_path: Path) -> None:
    dmlab(tmp_path)
    file = tmp_path / "dmlab-train.tfrecord-00000-of-00002"
    content = file.read_bytes()
    first = record(example(b"x", 1))
    for broken, why in (
        (content[:-3], "cut off"),
        (content[: len(content) // 2], "cut off"),
        (content[:3] + b"\1" + content[4:], "damaged at offset 0"),
        (b"not records at all, but text", "no TFRecord file"),
        (record(b"\xff\xff\xff"), "no example"),
        (first + record(field(1, b"\x0a\x7f")), f"offset {len(first):,} is no example"),
        (record(example(b"x", 1).replace(b"image", b"imago")), "not one image and one label"),
        (record(example(b"x", 6)), "outside 0 to 5"),
        (record(example(b"x", -1)), "outside 0 to 5"),
    ):
        file.write_bytes(broken)
        with pytest.raises(DataError, match=why):
            open_dmlab(tmp_path)


def test_a_part_without_a_file_is_named(tmp_path: Path) -> None:
    dmlab(tmp_path)
    for file in tmp_path.glob("dmlab-validation*"):
        file.unlink()
    with pytest.raises(DataError, match="dmlab-validation"):
        open_dmlab(tmp_path)
