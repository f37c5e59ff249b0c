"""An .npz is read as NumPy reads it, and never trusted further than its size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitlab.checkpoints.containers import read_file, write_npz
from vitlab.errors import CheckpointError

NUMERIC = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "complex64",
)


def _arrays() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray[Any, Any]] = {f"a/{name}": random.integers(0, 2, (2, 3, 5)).astype(name) for name in NUMERIC}
    return arrays | {"scalar": np.array(2.5), "empty": np.zeros((0, 3)), "Transformer/encoder_norm/\u00e9": np.arange(6.0)}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("ends", ["<", ">"])
def test_reading_gives_what_numpy_reads(tmp_path: Path, save: Callable[..., None], order: Any, ends: Any) -> None:
    arrays = {name: np.asarray(array.astype(array.dtype.newbyteorder(ends)), order=order) for name, array in _arrays().items()}
    save(tmp_path / "x.npz", **arrays)
    raw = read_file(tmp_path / "x.npz")
    assert raw.tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        assert raw.tensors[name].is_contiguous()
        assert raw.tensors[name].numpy().dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(raw.tensors[name].numpy(), array)


def test_numpy_reads_what_we_write_and_we_read_it_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(array) for name, array in _arrays().items()}
    tensors |= {"turned": torch.arange(12.0).reshape(3, 4).T, "nan": torch.tensor([float("nan"), -0.0])}
    write_npz(tmp_path / "x.npz", tensors)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as read:
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(read[name], tensor.numpy())
    back = read_file(tmp_path / "x.npz").tensors
    assert list(back) == list(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


def test_bfloat16_travels_as_two_bytes_without_meaning_as_jax_saves_it(tmp_path: Path) -> None:
    values = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    np.savez(tmp_path / "jax.npz", w=values.view(torch.int16).numpy().view("V2"), s=np.array(b"\x80\x3f", dtype="V2"))
    raw = read_file(tmp_path / "jax.npz")
    assert torch.equal(raw.tensors["w"], values)
    assert torch.equal(raw.tensors["s"], torch.tensor(1.0, dtype=torch.bfloat16))
    write_npz(tmp_path / "ours.npz", raw.tensors)
    again = read_file(tmp_path / "ours.npz")
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in raw.tensors.items())
    assert read_file(tmp_path / "ours.npz", values=False).tensors["w"].dtype == torch.bfloat16


def test_the_same_tensors_give_the_same_file(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3), "b": torch.zeros(2)}
    write_npz(tmp_path / "one.npz", tensors)
    write_npz(tmp_path / "two.npz", tensors)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_headers_alone_give_the_same_names_types_and_shapes(tmp_path: Path) -> None:
    write_npz(tmp_path / "x.npz", {name: torch.from_numpy(array) for name, array in _arrays().items()})
    whole, shapes = read_file(tmp_path / "x.npz").tensors, read_file(tmp_path / "x.npz", values=False).tensors
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in shapes.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in whole.items()
    }
    assert all(tensor.is_meta for tensor in shapes.values())


def test_a_flipped_byte_of_an_array_is_refused_by_the_archives_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_npz(path, {"w": torch.arange(1000.0)})
    whole = bytearray(path.read_bytes())
    whole[whole.index(np.float32(500).tobytes()) + 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CheckpointError, match="CRC"):
        read_file(path)
