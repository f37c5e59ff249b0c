"""A torch file is a pickle: its tensors are read, and nothing in it is ever called."""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vitlab.checkpoints.containers import read_file
from vitlab.errors import CheckpointError

STATE = {"a.weight": torch.arange(12.0).reshape(3, 4), "a.bias": torch.ones(3, dtype=torch.float16), "b": torch.zeros(2).bfloat16()}


def _same(read: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return read.keys() == wanted.keys() and all(
        read[name].dtype == tensor.dtype and torch.equal(read[name], tensor) for name, tensor in wanted.items()
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_a_state_dict_is_read_as_it_was_saved_in_both_generations_of_the_format(tmp_path: Path, legacy: bool) -> None:
    for name in ("x.pt", "x.pth", "x.bin", "x.safetensors", "x.npz", "no ending"):
        torch.save(STATE, tmp_path / name, _use_new_zipfile_serialization=not legacy)
        raw = read_file(tmp_path / name)
        assert _same(raw.tensors, STATE)
        assert raw.notes == ()
        shapes = read_file(tmp_path / name, values=False).tensors
        assert {key: (tensor.dtype, tensor.shape, tensor.is_meta) for key, tensor in shapes.items()} == {
            key: (tensor.dtype, tensor.shape, True) for key, tensor in STATE.items()
        }


def test_parameters_views_and_tied_tensors_come_out_plain_contiguous_and_apart(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    torch.save(
        {"p": nn.Parameter(base), "turned": base.T, "again": base, "ordered": nn.Linear(2, 2).state_dict()["weight"]},
        tmp_path / "x.pt",
    )
    read = read_file(tmp_path / "x.pt").tensors
    assert torch.equal(read["turned"], base.T)
    assert all(type(tensor) is torch.Tensor and tensor.is_contiguous() and not tensor.requires_grad for tensor in read.values())
    read["p"].zero_()
    assert torch.equal(read["again"], base)
    (tmp_path / "x.pt").write_bytes(b"")  # nor do they hang on the file
    assert torch.equal(read["again"], base)


@pytest.mark.parametrize("key", ["model", "state_dict"])
def test_the_weights_among_other_things_are_taken_and_that_is_said(tmp_path: Path, key: str) -> None:
    optimiser = torch.optim.AdamW([nn.Parameter(torch.ones(2))]).state_dict()
    torch.save({"epoch": 3, key: STATE, "model_ema": {"b": torch.ones(1)}, "optimizer": optimiser}, tmp_path / "x.pt")
    raw = read_file(tmp_path / "x.pt")
    assert _same(raw.tensors, STATE)
    assert raw.notes == (f"took the weights under {key!r}", "ignored in the file: epoch, model_ema, optimizer")


@pytest.mark.parametrize("legacy", [False, True])
def test_the_options_and_metrics_of_a_training_script_beside_the_weights_are_passed_over(tmp_path: Path, legacy: bool) -> None:
    weights = {"a": torch.randn(3, 2)}
    options = argparse.Namespace(lr=0.1, out=tmp_path, device=torch.device("cpu"), sizes=[1, 2], metric=np.float32(0.5), none=None)
    for name in ("state_dict", "teacher", "module"):  # timm's CheckpointSaver, DINO, DeepSpeed
        saved = {"epoch": 3, name: weights, f"{name}_ema": weights, "args": options, "metric": np.float64(81.2)}
        torch.save(saved, tmp_path / "checkpoint.pth.tar", _use_new_zipfile_serialization=not legacy)
        raw = read_file(tmp_path / "checkpoint.pth.tar")
        assert torch.equal(raw.tensors["a"], weights["a"])
        assert any(f"under {name!r}" in note for note in raw.notes)
        assert any("args" in note and "metric" in note for note in raw.notes)


def test_one_nested_set_of_weights_of_any_name_is_taken_and_several_are_not_chosen_between(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"model_ema": STATE, "step": 1}, path)
    assert _same(read_file(path).tensors, STATE)
    for content in ({"model": STATE, "state_dict": STATE}, {"encoder": STATE, "predictor": STATE}):
        torch.save(content, path)
        with pytest.raises(CheckpointError, match="several sets of weights") as refused:
            read_file(path)
        assert ", ".join(content) in refused.value.message
    torch.save(STATE | {"epoch": 7}, path)
    raw = read_file(path)
    assert _same(raw.tensors, STATE)
    assert raw.notes == ("ignored in the file: epoch",)


@pytest.mark.parametrize("legacy", [False, True])
def test_nothing_but_a_checkpoint_error_comes_out_of_a_damaged_pickle(tmp_path: Path, legacy: bool) -> None:
    """The checksums of the archive fit: only the reader of the pickle stands in the way."""
    path = tmp_path / "x.pt"
    length = len(_changed(path, lambda data: data, legacy=legacy))
    refused = 0
    for place in range(0, length, 7):
        for damage in (
            lambda data, place=place: data[:place],
            lambda data, place=place: data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :],
            lambda data, place=place: data[:place] + b"(" + data[place:],
        ):
            _changed(path, damage, legacy=legacy)
            try:
                read_file(path)
            except CheckpointError:
                refused += 1
    assert refused > length / 7


def test_a_storage_that_is_called_by_a_nested_object_is_refused(tmp_path: Path) -> None:
    """To print an object nested thousands of levels deep is a RecursionError: the message must not try."""
    path, stream = tmp_path / "x.pt", io.BytesIO()
    torch.save(STATE, stream, _use_new_zipfile_serialization=False)
    whole = stream.getvalue()
    keys = whole.rindex(b"\x80\x02]")  # the last pickle: the list of the storages' keys
    nested = b"]" * 50_000 + b"a" * 49_999  # EMPTY_LIST and APPEND
    for key, word in ((nested, "list"), (b"}", "dict"), (b"K\x01", "int")):
        path.write_bytes(whole[:keys] + b"\x80\x02]" + key + b"a.")
        with pytest.raises(CheckpointError, match=f"storage called by a {word} is unknown"):
            read_file(path)


def _changed(path: Path, change: Callable[[bytes], bytes], *, legacy: bool) -> bytes:
    """Write a state dict whose pickle (in the old format, the whole file) was changed; what was changed."""
    stream = io.BytesIO()
    torch.save(STATE, stream, _use_new_zipfile_serialization=not legacy)
    if legacy:
        path.write_bytes(change(stream.getvalue()))
        return stream.getvalue()
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(path, "w") as target:
        members = {name: source.read(name) for name in source.namelist()}
        (pickled,) = (name for name in members if name.endswith("data.pkl"))
        for name, data in members.items():
            target.writestr(name, change(data) if name == pickled else data)
    return members[pickled]


def test_a_file_of_the_other_byte_order_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    state = {"a": torch.arange(12.0), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.tensor([1 + 2j]), "d": torch.ones(2) > 0}
    other = {name: _swapped(tensor) for name, tensor in state.items()}
    torch.save(other, path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "y.pt", "w") as target:
        for name in source.namelist():
            theirs = b"big" if sys.byteorder == "little" else b"little"
            target.writestr(name, theirs if name.endswith("/byteorder") else source.read(name))
    assert _same(read_file(tmp_path / "y.pt").tensors, state)


def _swapped(tensor: torch.Tensor) -> torch.Tensor:
    width = tensor.dtype.itemsize // (2 if tensor.is_complex() else 1)
    return torch.from_numpy(tensor.view(torch.uint8).numpy().view(f"u{width}").byteswap().view("u1")).view(tensor.dtype)


@pytest.mark.parametrize("legacy", [False, True])
def test_every_type_of_tensor_is_read_as_torch_reads_it(tmp_path: Path, legacy: bool) -> None:
    names = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")
    state = {name: torch.tensor([0, 1, 2]).to(getattr(torch, name)) for name in names}
    state |= {} if legacy else {name: torch.tensor([0, 1, 2]).to(getattr(torch, name)) for name in ("float8_e4m3fn", "uint16")}
    state["view"] = torch.arange(20.0)[3:11].view(2, 4)[:, 1:3]
    attributed = nn.Parameter(torch.ones(2))
    attributed.decay = True  # type: ignore[attr-defined]
    torch.save(state | {"with an attribute": attributed}, tmp_path / "x.pt", _use_new_zipfile_serialization=not legacy)
    read = read_file(tmp_path / "x.pt").tensors
    theirs = torch.load(tmp_path / "x.pt", weights_only=True)
    assert read.keys() == theirs.keys()
    for name, tensor in read.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor.view(torch.uint8), theirs[name].detach().contiguous().view(torch.uint8))


def test_a_file_without_checksums_is_read_with_a_note(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, tmp_path / "x.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    raw = read_file(tmp_path / "x.pt")
    assert _same(raw.tensors, STATE)
    assert raw.notes == ("the file was saved without checksums: damage to it is not noticed",)
