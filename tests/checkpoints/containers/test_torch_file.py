"""A torch file is a pickle: its tensors are read, and nothing in it is ever called."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.checkpoints.containers.measured import assert_refused_flat
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
    assert raw.notes == (f"took the weights under {key!r}", "left aside in the file: epoch, model_ema, optimizer")


def test_one_nested_set_of_weights_of_any_name_is_taken_and_several_are_not_chosen_between(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"model_ema": STATE, "step": 1}, path)
    assert _same(read_file(path).tensors, STATE)
    for content in ({"model": STATE, "state_dict": STATE}, {"student": STATE, "teacher": STATE}):
        torch.save(content, path)
        with pytest.raises(CheckpointError, match="several sets of weights") as refused:
            read_file(path)
        assert ", ".join(content) in refused.value.message
    torch.save(STATE | {"epoch": 7}, path)
    raw = read_file(path)
    assert _same(raw.tensors, STATE)
    assert raw.notes == ("left aside in the file: epoch",)


class _Payload:
    """What an attacker pickles: asks for a call when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def _edited(path: Path, edit: Callable[[bytes], bytes], *, legacy: bool = False) -> None:
    """A saved state dict of 1,000 numbers, its pickle changed."""
    stream = io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, stream, _use_new_zipfile_serialization=not legacy)
    if legacy:
        path.write_bytes(edit(stream.getvalue()))
        return
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            target.writestr(name, edit(source.read(name)) if name.endswith("data.pkl") else source.read(name))


def _replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new)

    return edit


def _pickled(opcodes: bytes) -> Callable[[Path], None]:
    """An archive like torch's whose pickle is these opcodes."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", opcodes)
            archive.writestr("archive/version", "3\n")
            archive.writestr("archive/byteorder", "little")

    return make


def _compressed(path: Path) -> None:
    stream = io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, stream)
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))


def _program(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("archive/data.pkl", "archive/constants.pkl", "archive/code/__torch__.py"):
            archive.writestr(name, b"\x80\x02}q\x00.")


def _exported(path: Path) -> None:
    """The layout of torch.export's .pt2 archives, which hold pickles under other names."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in (
            "archive_format",
            "models/model.json",
            "data/weights/model_weights_config.json",
            "data/sample_inputs/model.pt",
        ):
            archive.writestr(f"model/{name}", pickle.dumps(_Payload(path.parent / "marker")))


def _saves(content: Callable[[Path], Any], *, legacy: bool = False) -> Callable[[Path], None]:
    return lambda path: torch.save(content(path), path, _use_new_zipfile_serialization=not legacy)


def _endless(path: Path) -> None:
    stream = io.BytesIO()
    torch.save({}, stream, _use_new_zipfile_serialization=False)
    whole = stream.getvalue()
    empty = whole.rindex(b"}q\x00.")
    path.write_bytes(whole[: empty + 1] + b"q\x00" * 10_000_000 + b"." + whole[empty + 4 :])


def _bare(content: Callable[[Path], Any], *, protocol: int = 4) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(pickle.dumps(content(path), protocol=protocol))

    return make


THOUSAND = b"M\xe8\x03"  # 1000 as a pickle says it
BILLION = b"J\x00\xca\x9a\x3b"

# name of the attack -> what makes the file, and a word of the message
CORPUS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a payload among the weights": (_saves(lambda path: STATE | {"x": _Payload(path.parent / "marker")}), "asks for posix.system"),
    "a payload alone": (_saves(lambda path: _Payload(path.parent / "marker")), "asks for posix.system"),
    "a payload in the old format": (_saves(lambda path: {"x": _Payload(path.parent / "marker")}, legacy=True), "posix.system"),
    "a bare pickle": (_bare(lambda path: _Payload(path.parent / "marker")), "Python pickle"),
    "a bare pickle of protocol 0": (_bare(lambda path: _Payload(path.parent / "marker"), protocol=0), "not a weights file"),
    "a torch.export archive": (_exported, "zip archive of"),
    "a distributed checkpoint's .metadata": (_bare(lambda path: {"metadata": _Payload(path.parent / "marker")}), "Python pickle"),
    "a TorchScript program": (_program, "TorchScript"),
    "builtins.eval": (_pickled(b"\x80\x02cbuiltins\neval\nX\x04\x00\x00\x001+1 \x85R."), "asks for eval"),
    "an instance by class name": (_pickled(b"\x80\x02(cos\nsystem\nX\x04\x00\x00\x00trueo."), "os.system"),
    "a whole module": (_saves(lambda _: nn.Linear(2, 2)), "asks for torch.nn.modules.linear.Linear"),
    "arguments of a training script": (_saves(lambda _: {"model": STATE, "args": argparse.Namespace(a=1)}), "argparse.Namespace"),
    "numpy numbers": (_saves(lambda _: {"model": STATE, "best": np.float64(3.0)}), "numpy"),
    "a list": (_saves(lambda _: [torch.ones(1)]), "holds a list"),
    "a single tensor": (_saves(lambda _: torch.ones(1)), "holds a Tensor"),
    "no tensors": (_saves(lambda _: {"epoch": 3}), "no named tensors"),
    "a sparse tensor": (_saves(lambda _: {"a": torch.eye(3).to_sparse()}), "not a plain tensor"),
    "a meta tensor": (_saves(lambda _: {"a": torch.empty(3, device="meta")}), "not a plain tensor"),
    "10^12 numbers out of one": (_saves(lambda _: {"a": torch.zeros(1).expand(10**6, 10**6)}), "claim far more"),
    "a storage that claims 4 GB": (lambda path: _edited(path, _replaced(THOUSAND, BILLION)), "refuses"),
    "a storage that claims 4 GB, old format": (lambda path: _edited(path, _replaced(THOUSAND, BILLION), legacy=True), "refuses"),
    "compressed": (_compressed, "compressed, which torch never does"),
    "a pickle of 3 MB": (_pickled(b"\x80\x02" + b"N0" * 1_500_000 + b"}."), "pickle has"),
    "a pickle of half a MB of nothing": (_pickled(b"\x80\x02}" + b"q\x00" * 250_000 + b"."), "no named tensors"),
    "a pickle of 20 MB of nothing, old format": (_endless, "goes on"),
    "a pickle without an end": (_pickled(b"\x80\x02}q\x00"), "refuses"),
    "an empty pickle": (_pickled(b""), "refuses"),
    "a memo that is not there": (_pickled(b"\x80\x02h\x07."), "refuses"),
    "an empty stack": (_pickled(b"\x80\x02R."), "refuses"),
    "nested 100,000 deep": (_pickled(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."), "holds a list"),
    "a bytearray of 10 TB": (_pickled(b"\x80\x02cbuiltins\nbytearray\n\x8a\x07\x00\x00\xa0\x72\x4e\x18\x09\x85R."), "refuses"),
    "a tensor of 40 GB out of nothing": (_pickled(b"\x80\x02ctorch\nFloatTensor\n\x8a\x05\x00\xe4\x0b\x54\x02\x85R."), "refuses"),
}


@pytest.mark.parametrize("attack", CORPUS)
def test_what_is_not_plain_weights_is_refused_and_nothing_runs(tmp_path: Path, attack: str) -> None:
    make, word = CORPUS[attack]
    for ending in (".pt", ".safetensors"):
        path = tmp_path / f"model{ending}"
        make(path)
        with pytest.raises(CheckpointError) as refused:
            read_file(path)
        assert word in refused.value.message, refused.value.message
        assert str(path) in refused.value.message
        assert "weights_only=False" not in str(refused.value)  # torch's own advice
    assert not (tmp_path / "marker").exists()


def test_the_payload_of_these_tests_would_have_run_under_pythons_own_reader(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(_Payload(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()


def test_a_refused_pickle_names_the_safe_way(tmp_path: Path) -> None:
    torch.save({"x": _Payload(tmp_path / "marker")}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError) as refused:
        read_file(tmp_path / "x.pt")
    assert refused.value.hint is not None
    assert "safetensors.torch.save_file" in refused.value.hint
    assert "convert" in refused.value.hint


def test_the_whole_corpus_is_refused_with_flat_memory(warm: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.pt" for number in range(len(CORPUS))]
    for path, (make, _) in zip(paths, CORPUS.values(), strict=True):
        make(path)
    assert_refused_flat(paths, warm)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_nothing_but_a_checkpoint_error_comes_out_of_a_damaged_file(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "x.pt"
    torch.save(STATE, path, _use_new_zipfile_serialization=not legacy)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :]):
            path.write_bytes(damaged)
            try:
                read_file(path)
            except CheckpointError:
                refused += 1
    assert refused > len(whole) / 3
