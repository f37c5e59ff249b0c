"""An .npz holds Python objects, claims 10^12 numbers or is a zip bomb: vitlab refuses it before it takes memory."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.checkpoints.containers.measured import assert_refused_flat
from vitlab.checkpoints.containers import read_file, write_npz
from vitlab.errors import CheckpointError


class _Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def _npy(descr: str, shape: str, data: bytes = b"", *, fortran: str = "False", version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


def _zip(path: Path, members: dict[str, bytes], *, method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _lying_size(path: Path, *, claimed: int) -> None:
    """One deflated array whose table of contents claims `claimed` bytes."""
    data = _npy("'<f4'", f"({(claimed - 128) // 4},)", b"\0" * 100)
    _zip(path, {"w.npy": data}, method=zipfile.ZIP_DEFLATED)
    whole = bytearray(path.read_bytes())
    central = whole.rindex(b"PK\x01\x02")
    struct.pack_into("<I", whole, central + 24, claimed)
    path.write_bytes(whole)


def _overlapping(path: Path) -> None:
    """Many names for the same packed bytes: the kind of bomb whose single members look harmless."""
    _zip(path, {f"{number}.npy": _npy("'<f4'", "(16,)", b"\0" * 64) for number in range(50)})
    whole = bytearray(path.read_bytes())
    first = struct.unpack_from("<I", whole, whole.index(b"PK\x01\x02") + 42)[0]
    place = whole.index(b"PK\x01\x02")
    while place >= 0:
        struct.pack_into("<I", whole, place + 42, first)
        place = whole.find(b"PK\x01\x02", place + 4)
    path.write_bytes(whole)


def _many_members(path: Path, *, count: int = 0xFFFF, zip64: bool = False) -> None:
    """A table of contents of a quarter of a million names, made without Python's slow zip writer."""
    local = b"PK\x03\x04" + b"\0" * 26
    entry = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0) + b"a.npy"
    directory = entry * 250_000
    size = len(directory)
    big = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 250_000, 250_000, size, len(local))
    big += struct.pack("<4sIQI", b"PK\x06\x07", 0, len(local) + size, 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, 60 if zip64 else size, len(local), 0)
    path.write_bytes(local + directory + (big if zip64 else b"") + end)


def _encrypted(path: Path) -> None:
    _zip(path, {"w.npy": _npy("'<f4'", "(1,)", b"\0" * 4)})
    whole = bytearray(path.read_bytes())
    whole[6] |= 1
    whole[whole.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(whole)


def _deflated_zeros(path: Path) -> None:
    """400 MB of zeros in 400 kB: honest sizes, and a bomb all the same."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("w.npy", "w", force_zip64=True) as member:
        member.write(_npy("'<f4'", "(100000000,)"))
        block = b"\0" * (1 << 20)
        for _ in range(381):
            member.write(block)
        member.write(b"\0" * (400_000_000 - (381 << 20)))


def _no_end(path: Path) -> None:
    _zip(path, {"w.npy": _npy("'<f4'", "(1,)", b"\0" * 4)})
    path.write_bytes(path.read_bytes()[:-10])


def _objects(path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([_Payload(path.parent / "marker")], dtype=object), allow_pickle=True)
    _zip(path, {"w.npy": stream.getvalue()})


def _raw(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Callable[[Path], None]:
    return lambda path: _zip(path, members, method=method)


# name of the attack -> what makes the file, and a word of the message
CORPUS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an array of objects with a payload": (_objects, "Python objects"),
    "a pickle for an array": (_raw({"w.npy": pickle.dumps({"a": 1})}), "magic"),
    "10^12 elements": (_raw({"w.npy": _npy("'<f4'", "(1000000000000,)")}), "claims 4,000,000,000,000 bytes and has 0"),
    "10^40 elements": (_raw({"w.npy": _npy("'<f4'", f"({10**20}, {10**20})")}), "claims"),
    "a negative shape": (_raw({"w.npy": _npy("'<f4'", "(-1,)", b"\0" * 4)}), "shape"),
    "a shape of truth": (_raw({"w.npy": _npy("'<f4'", "(True,)", b"\0" * 4)}), "shape"),
    "a shape of 40 axes": (_raw({"w.npy": _npy("'<f4'", f"({'1,' * 40})", b"\0" * 4)}), "shape"),
    "too little data": (_raw({"w.npy": _npy("'<f4'", "(10,)", b"\0" * 39)}), "claims 40 bytes and has 39"),
    "too much data": (_raw({"w.npy": _npy("'<f4'", "(10,)", b"\0" * 41)}), "claims 40 bytes and has 41"),
    "text": (_raw({"w.npy": _npy("'<U4'", "(1,)", b"\0" * 16)}), "no type for weights"),
    "dates": (_raw({"w.npy": _npy("'<M8[s]'", "(1,)", b"\0" * 8)}), "not a plain type"),
    "records": (_raw({"w.npy": _npy("[('a', '<f4')]", "(1,)", b"\0" * 4)}), "not a plain type"),
    "void of three bytes": (_raw({"w.npy": _npy("'|V3'", "(1,)", b"\0" * 3)}), "no type for weights"),
    "a type that does not exist": (_raw({"w.npy": _npy("'evil'", "(1,)")}), "'w'"),
    "code for a header": (_raw({"w.npy": _npy("__import__('os').system('true')", "(1,)")}), "'w'"),
    "a header nested 5,000 deep": (_raw({"w.npy": _npy("(" * 2000 + ")" * 2000, "(1,)")}), "'w'"),
    "a header of 60,000 spaces": (_raw({"w.npy": _npy("'<f4'" + " " * 60_000, "(1,)")}), "'w'"),
    "an unknown .npy version": (_raw({"w.npy": _npy("'<f4'", "(1,)", b"\0" * 4, version=b"\x03\x00")}), "version (3, 0)"),
    "an empty member": (_raw({"w.npy": b""}), "'w'"),
    "a member cut in its header": (_raw({"w.npy": _npy("'<f4'", "(1,)")[:20]}), "'w'"),
    "no members": (_raw({}), "zip archive of nothing"),
    "bzip2": (_raw({"w.npy": _npy("'<f4'", "(1,)", b"\0" * 4)}, zipfile.ZIP_BZIP2), "compressed by method 12"),
    "lzma": (_raw({"w.npy": _npy("'<f4'", "(1,)", b"\0" * 4)}, zipfile.ZIP_LZMA), "compressed by method 14"),
    "encrypted": (_encrypted, "encrypted"),
    "a bomb of 400 MB of zeros": (_deflated_zeros, "zip bomb"),
    "a claim of 3 GB": (lambda path: _lying_size(path, claimed=3_000_000_000), "zip bomb"),
    "a claim of 10 MB": (lambda path: _lying_size(path, claimed=10_000_128), "does not have the 10,000,128 bytes"),
    "fifty names for the same bytes": (_overlapping, "overlaps"),
    "a quarter of a million members": (_many_members, "65,535 entries; the limit"),
    "250,000 members called 65,534": (lambda path: _many_members(path, count=0xFFFE), "65,534 entries; the limit"),
    "250,000 members behind a zip64 record": (
        lambda path: _many_members(path, count=1, zip64=True),
        "two different tables of contents",
    ),
    "no end": (_no_end, "end is missing"),
}


def _makes(path: Path, attack: str) -> None:
    CORPUS[attack][0](path)


@pytest.mark.parametrize("attack", CORPUS)
def test_a_hostile_npz_is_refused_by_its_fault(tmp_path: Path, attack: str) -> None:
    path = tmp_path / "model.npz"
    _makes(path, attack)
    with pytest.raises(CheckpointError) as refused:
        read_file(path)
    assert CORPUS[attack][1] in refused.value.message, refused.value.message
    assert str(path) in refused.value.message
    assert "allow_pickle" not in str(refused.value)  # NumPy's own advice
    assert not (tmp_path / "marker").exists()


def test_the_whole_corpus_is_refused_with_flat_memory(warm: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.npz" for number in range(len(CORPUS))]
    for path, attack in zip(paths, CORPUS, strict=True):
        _makes(path, attack)
    assert_refused_flat(paths, warm)


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    data = _npy("'<f4'", "(1,)", b"\0" * 4)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w.npy", data)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("w.npy", data)
    with pytest.raises(CheckpointError, match="same name"):
        read_file(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    write_npz(path, {"a": torch.ones(20), "b": torch.zeros(3)})
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            read_file(path)


def test_any_single_flipped_byte_gives_the_same_tensors_or_a_checkpoint_error(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    tensors = {"a": torch.arange(20.0), "b": torch.ones(3, 2)}
    write_npz(path, tensors)
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            read = read_file(path).tensors
        except CheckpointError:
            refused += 1
        else:  # dates, version fields and names are under no checksum
            assert [tensor.tolist() for tensor in read.values()] == [tensor.tolist() for tensor in tensors.values()]
    assert refused > len(whole) / 2
