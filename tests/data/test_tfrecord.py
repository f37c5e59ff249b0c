"""TFRecord files without TensorFlow, and DMLab's frames in them."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import pytest

from tests.data.containers import as_folder, as_tar
from vitlab.data.opening import open_dataset
from vitlab.data.readers.tfrecord import has_dmlab, open_dmlab
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


def sample(image: bytes, label: int, *, packed: bool = True, extra: bool = True) -> bytes:
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
            examples = [sample(f"{part} {shard} {number}".encode() * 50, number % 6, packed=packed) for number in range(count)]
            name = f"dmlab-{part}.tfrecord-{shard:05d}-of-00002"
            as_folder(folder, {name: b"".join(record(one) for one in examples)})


def test_the_checksum_of_records_is_the_known_one() -> None:
    assert ((crc32c(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF) == ((0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF)


@pytest.mark.parametrize("packed", [True, False])
def test_frames_are_read_from_record_files(tmp_path: Path, packed: bool) -> None:
    dmlab(tmp_path, packed=packed)
    dataset = open_dmlab(tmp_path)
    assert dataset.splits.tolist() == [TRAIN] * 14 + [VAL] * 6 + [TEST] * 8
    assert dataset.table.codes.tolist() == [0, 1, 2, 3, 4, 5, 0] * 2 + [0, 1, 2] * 2 + [0, 1, 2, 3] * 2
    again = pickle.loads(pickle.dumps(dataset))
    assert again.read(8).content == b"train 1 1" * 50
    assert again.read(27).content == b"test 1 3" * 50


def test_record_files_that_are_cut_off_damaged_or_lie_are_refused(tmp_path: Path) -> None:
    dmlab(tmp_path)
    file = tmp_path / "dmlab-train.tfrecord-00000-of-00002"
    content = file.read_bytes()
    first = record(sample(b"x", 1))
    for broken, why in (
        (content[:-3], "cut off"),
        (content[: len(content) // 2], "cut off"),
        (content[:3] + b"\1" + content[4:], "damaged at offset 0"),
        (b"not records at all, but text", "not a TFRecord file"),
        (record(b"\xff\xff\xff"), "not an example"),
        (first + record(field(1, b"\x0a\x7f")), f"offset {len(first):,} is not an example"),
        (record(sample(b"x", 1).replace(b"image", b"imago")), "does not have one image"),
        (record(sample(b"x", 6)), "outside 0 to 5"),
        (record(sample(b"x", -1)), "outside 0 to 5"),
    ):
        file.write_bytes(broken)
        with pytest.raises(DataError, match=why):
            open_dmlab(tmp_path)


def test_a_split_without_a_file_is_named(tmp_path: Path) -> None:
    dmlab(tmp_path)
    for file in tmp_path.glob("dmlab-validation*"):
        file.unlink()
    with pytest.raises(DataError, match="dmlab-validation"):
        open_dmlab(tmp_path)


def packed(folder: Path, *, inside: str = "") -> Path:
    """The record files of a folder in dmlab.tar.gz in their stead."""
    files = {f"{inside}{file.name}": file.read_bytes() for file in sorted(folder.glob("dmlab-*"), reverse=True)}
    for file in folder.glob("dmlab-*"):
        file.unlink()
    return as_tar(folder / "dmlab.tar.gz", files, mode="w:gz")


@pytest.mark.parametrize("inside", ["", "dmlab/"])
def test_the_archive_is_read_as_downloaded(tmp_path: Path, inside: str) -> None:
    dmlab(tmp_path)
    unpacked = open_dmlab(tmp_path)
    contents, known = [unpacked.read(index).content for index in range(len(unpacked))], unpacked.fingerprint()
    archive = packed(tmp_path, inside=inside)
    assert has_dmlab(tmp_path)
    for place in (tmp_path, archive):
        dataset = pickle.loads(pickle.dumps(open_dmlab(place)))
        assert dataset.splits.tolist() == unpacked.splits.tolist()
        assert dataset.table.codes.tolist() == unpacked.table.codes.tolist()
        assert [dataset.read(index).content for index in range(len(dataset))] == contents
        assert dataset.fingerprint() == known
        assert dataset.name(8).startswith(f"{archive}/{inside}dmlab-train.tfrecord-00001-of-00002")
    plain = tmp_path / "dmlab.tar"
    plain.write_bytes(gzip.decompress(archive.read_bytes()))
    archive.unlink()
    assert open_dmlab(tmp_path).fingerprint() == known


def test_it_is_known_by_its_files(tmp_path: Path) -> None:
    dmlab(tmp_path)
    assert len(open_dataset(str(tmp_path), split="train")) == 14
    archive = packed(tmp_path)
    assert len(open_dataset(str(tmp_path), split="test")) == 8
    assert len(open_dataset(f"dmlab:{archive}", split="all")) == 28


def test_an_archive_that_is_cut_off_or_holds_no_records_is_refused(tmp_path: Path) -> None:
    dmlab(tmp_path)
    archive = packed(tmp_path)
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-30])
    with pytest.raises(DataError, match="damaged or cut off"):
        open_dmlab(tmp_path)
    as_tar(archive, {"readme.txt": b"nothing"}, mode="w:gz")
    with pytest.raises(DataError, match="holds no dmlab-train"):
        open_dmlab(tmp_path)
    records = b"".join(record(sample(b"x" * 999, 1)) for _ in range(3))
    as_tar(archive, {"dmlab-train.tfrecord-0": records[:-5]}, mode="w:gz")
    with pytest.raises(DataError, match="cut off"):
        open_dmlab(tmp_path)


def test_an_image_whose_checksum_is_another_is_refused_alone(tmp_path: Path) -> None:
    dmlab(tmp_path)
    file = tmp_path / "dmlab-train.tfrecord-00000-of-00002"
    content = bytearray(file.read_bytes())
    place = content.index(b"train 0 3" * 50)
    content[place + 7] ^= 1
    file.write_bytes(bytes(content))
    dataset = open_dmlab(tmp_path)
    with pytest.raises(DataError, match=r"00000-of-00002, image 3 is damaged: its checksum"):
        dataset.read(3)
    assert dataset.read(2).content == b"train 0 2" * 50
    assert dataset.read(4).content == b"train 0 4" * 50
