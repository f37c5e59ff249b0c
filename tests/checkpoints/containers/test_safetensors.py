"""Our .safetensors files are the library's, byte for byte, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitlab.checkpoints.containers import read_file, write_safetensors
from vitlab.checkpoints.containers.safetensors_file import DTYPES, encode_header
from vitlab.errors import CheckpointError


def _tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        code: torch.randint(0, 255, (3, 5, dtype.itemsize), dtype=torch.uint8, generator=generator).view(dtype).squeeze(-1)
        for code, dtype in DTYPES.items()
        if code != "BOOL"
    }
    return tensors | {
        "BOOL": torch.tensor([True, False, True]),
        "a scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "b/\u00e9\u6a21\U0001f600\x7f\x01": torch.arange(7.0),
    }


def _bits(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_what_we_write_is_what_the_library_writes(tmp_path: Path) -> None:
    tensors = _tensors()
    for metadata in ({}, {"one": '\u00e9\x1f\u2028"\\/'}):
        write_safetensors(tmp_path / "ours", tensors, metadata)
        safetensors.torch.save_file(tensors, tmp_path / "theirs", metadata=metadata or None)
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_reading_gives_back_every_bit_type_name_and_text(tmp_path: Path) -> None:
    tensors, metadata = _tensors(), {"b": "1", "a": "\u00e9\u6a21\U0001f600\n"}
    write_safetensors(tmp_path / "ours", tensors, metadata)
    raw = read_file(tmp_path / "ours")
    assert {name: _bits(tensor) for name, tensor in raw.tensors.items()} == {
        name: _bits(tensor) for name, tensor in tensors.items()
    }
    assert raw.metadata == metadata
    assert all(tensor.is_contiguous() for tensor in raw.tensors.values())


def test_headers_alone_give_the_same_names_types_and_shapes(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "ours", _tensors(), {})
    whole, shapes = read_file(tmp_path / "ours"), read_file(tmp_path / "ours", values=False)
    assert all(tensor.is_meta for tensor in shapes.tensors.values())
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in shapes.tensors.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in whole.tensors.items()
    }


def test_views_transposed_and_shared_tensors_are_written_as_their_values(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {"whole": base, "again": base, "turned": base.T, "part": base[:, ::2], "expanded": base[:1].expand(3, 6)}
    write_safetensors(tmp_path / "ours", tensors, {})
    read = safetensors.torch.load_file(tmp_path / "ours")
    for name, tensor in tensors.items():
        assert torch.equal(read[name], tensor)


def test_the_same_content_gives_the_same_bytes_in_whatever_order_it_comes(tmp_path: Path) -> None:
    tensors, metadata = _tensors(), {"b": "1", "a": "2"}
    write_safetensors(tmp_path / "one", tensors, metadata)
    write_safetensors(tmp_path / "two", dict(reversed(tensors.items())), dict(reversed(metadata.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_what_was_read_does_not_change_when_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    write_safetensors(path, {"w": torch.ones(1000)}, {})
    tensor = read_file(path).tensors["w"]
    with path.open("r+b") as file:
        file.truncate(0)
    assert torch.equal(tensor, torch.ones(1000))


def test_a_type_the_container_has_no_word_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="complex128"):
        write_safetensors(tmp_path / "x", {"w": torch.zeros(2, dtype=torch.complex128)}, {})
    assert not list(tmp_path.iterdir())


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable()),
        st.lists(st.integers(0, 4), max_size=4),
        max_size=5,
    )
)
def test_every_header_we_encode_places_the_tensors_end_to_end(shapes: dict[str, list[int]]) -> None:
    tensors = {name: torch.zeros(shape, dtype=torch.float16 if len(shape) % 2 else torch.float64) for name, shape in shapes.items()}
    header = encode_header(tensors, {})
    places = sorted((entry.start, entry.end) for entry in header.entries.values())
    assert header.data_start % 8 == 0
    assert [start for start, _ in places] == [0, *[end for _, end in places]][: len(places)]
