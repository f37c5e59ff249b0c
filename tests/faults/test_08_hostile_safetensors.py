"""A .safetensors file is malformed or malicious: vitlab refuses it with one sentence, at once and with little memory."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints.containers.measured import assert_refused_flat
from vitlab.checkpoints.containers import read_file, write_safetensors
from vitlab.errors import CheckpointError


def _file(header: bytes | dict[str, Any], data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _entry(shape: list[Any], start: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


GOOD = {"a": _entry([2], 0, 8), "b": _entry([1], 8, 12)}
MANY = b"{" + b",".join(b'"%06d":{}' % number for number in range(70_000)) + b"}"

# name of the attack -> bytes, and a word of the message
CORPUS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "one byte": (b"\x08", "damaged"),
    "seven bytes": (b"\0" * 7, "damaged"),
    "nothing but a length": (b"\x10" + b"\0" * 7, "damaged"),
    "header of no bytes": (_file(b"", b"{} "), "header is not JSON"),
    "header of 2^62 bytes": (_file(GOOD, b"\0" * 12, length=1 << 62), "claims 4,611,686,018,427,387,904"),
    "header of 2^64-1 bytes": (_file(GOOD, b"\0" * 12, length=(1 << 64) - 1), "claims"),
    "header longer than the file": (_file(GOOD, b"\0" * 12, length=10_000), "claims 10,000"),
    "header of 5 MB": (_file(b"{" + b" " * (5 << 20), b""), "longer than"),
    "truncated in the header": (_file(GOOD, b"\0" * 12)[:40], "claims"),
    "truncated in the data": (_file(GOOD, b"\0" * 11), "cut short"),
    "trailing bytes": (_file(GOOD, b"\0" * 13), "1 bytes follow"),
    "trailing zip": (_file(GOOD, b"\0" * 12 + b"PK\x03\x04" + b"\0" * 60), "follow"),
    "not JSON": (_file(b"{not json at all}", b""), "not a JSON object"),
    "two JSON values": (_file(b"{} {}", b""), "not a JSON object"),
    "not UTF-8": (_file(b'{"\xff\xfe": 1}', b""), "not a JSON object"),
    "NaN in the header": (_file(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', b"\0" * 4), "NaN"),
    "nested 100,000 deep": (_file(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "not a JSON object"),
    "number of 10,000 digits": (
        _file(b'{"a":{"dtype":"F32","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,4]}}'),
        "not a JSON object",
    ),
    "70,000 tensors": (_file(MANY), "more than 65,536"),
    "the same name twice": (
        _file(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            b"\0" * 8,
        ),
        "'a' is there twice",
    ),
    "the same field twice": (_file(b'{"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4), "twice"),
    "overlap": (_file({"a": _entry([2], 0, 8), "b": _entry([2], 4, 12)}, b"\0" * 12), "overlaps"),
    "the same bytes for two": (_file({"a": _entry([2], 0, 8), "b": _entry([2], 0, 8)}, b"\0" * 8), "overlaps"),
    "gap": (_file({"a": _entry([1], 0, 4), "b": _entry([1], 8, 12)}, b"\0" * 12), "4 bytes unused"),
    "gap at the start": (_file({"a": _entry([1], 4, 8)}, b"\0" * 8), "4 bytes unused"),
    "shape that overflows": (_file({"a": _entry([1 << 32, 1 << 32, 4], 0, 0)}), "needs"),
    "shape of 2^80": (_file({"a": _entry([1 << 80], 0, 4)}, b"\0" * 4), "impossible"),
    "shape smaller than its bytes": (_file({"a": _entry([1], 0, 8)}, b"\0" * 8), "needs 4 bytes, not 8"),
    "a tensor of 4 TB": (_file({"a": _entry([10**12], 0, 4 * 10**12)}, b"\0" * 64), "cut short"),
    "negative shape": (_file({"a": _entry([-1], 0, 4)}, b"\0" * 4), "impossible"),
    "shape of text": (_file({"a": _entry(["1"], 0, 4)}, b"\0" * 4), "impossible"),
    "shape of truth": (_file({"a": _entry([True], 0, 4)}, b"\0" * 4), "impossible"),
    "shape with a fraction": (_file({"a": _entry([1.0], 0, 4)}, b"\0" * 4), "impossible"),
    "shape of 100 axes": (_file({"a": _entry([1] * 100, 0, 4)}, b"\0" * 4), "impossible"),
    "offsets backwards": (_file({"a": _entry([1], 4, 0)}, b"\0" * 4), "needs"),
    "three offsets": (_file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, b"\0" * 4), "impossible"),
    "unknown type": (_file({"a": _entry([1], 0, 4, "F31")}, b"\0" * 4), "'F31'"),
    "type that is a list": (_file({"a": _entry([1], 0, 4, ["F32"])}, b"\0" * 4), "unknown type"),
    "missing field": (_file({"a": {"dtype": "F32", "shape": [1]}}, b"\0" * 4), "needs dtype"),
    "extra field": (_file({"a": _entry([1], 0, 4) | {"evil": 1}}, b"\0" * 4), "nothing else"),
    "entry that is a number": (_file({"a": 3}), "needs dtype"),
    "metadata that is a list": (_file({"__metadata__": [1]}), "metadata"),
    "metadata with numbers": (_file({"__metadata__": {"a": 1}}), "more than text"),
    "no tensors": (_file({"__metadata__": {"a": "b"}}), "holds no tensors"),
    "no tensors at all": (_file({}), "holds no tensors"),
    "a list for a header": (_file(b"[1, 2]  "), "damaged"),
}


@pytest.mark.parametrize("attack", CORPUS)
def test_a_hostile_header_is_refused_by_its_fault(tmp_path: Path, attack: str) -> None:
    content, word = CORPUS[attack]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        read_file(path)
    assert word in refused.value.message, refused.value.message
    assert str(path) in refused.value.message
    assert len(refused.value.message) < 600
    with pytest.raises(CheckpointError):
        read_file(path, values=False)


def test_the_whole_corpus_is_refused_with_flat_memory(warm: Path, tmp_path: Path) -> None:
    paths = []
    for number, (content, _) in enumerate(CORPUS.values()):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(content)
        paths.append(path)
    sparse = tmp_path / "sparse.safetensors"  # a file of 64 TB that takes no room: the memory it asks for does not exist
    elements = 1 << 44
    with sparse.open("wb") as file:
        header = _file({"a": _entry([elements], 0, 4 * elements)})
        file.write(header)
        try:
            file.truncate(len(header) + 4 * elements)
        except OSError:
            sparse.unlink()
    assert_refused_flat(paths + [sparse] * sparse.exists(), warm)


def test_a_zip_named_safetensors_is_known_for_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match=r"zip archive of 'readme\.txt'"):
        read_file(path)


def test_every_truncation_and_every_changed_header_byte_is_refused_or_read_as_something_else(tmp_path: Path) -> None:
    """Nothing but a CheckpointError ever comes out of a damaged file."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": torch.ones(3), "b": torch.zeros(2, 2)}, {"k": "v"})
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            read_file(path)
    data_start = 8 + int.from_bytes(whole[:8], "little")
    refused = 0
    for place in range(data_start):
        for mask in (0x01, 0x20, 0x80):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ mask]) + whole[place + 1 :])
            refused += _refuses(lambda: read_file(path))
    assert refused > 2 * data_start  # the rest changed a name or a text, which a plain file has no digest for


def _refuses(act: Callable[[], object]) -> bool:
    try:
        act()
    except CheckpointError:
        return True
    return False
