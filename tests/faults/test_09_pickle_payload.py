"""A .pt, .pth, .bin, .pt2 or distributed checkpoint holds a pickle that calls code: vitlab names the call and runs nothing."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.checkpoints.containers.pickles import Payload, bare, compressed, exported, pickled, program, saves
from tests.checkpoints.containers.test_torch_file import STATE
from vitlab.checkpoints.containers import read_file
from vitlab.errors import CheckpointError

# name of the attack -> what makes the file, and a word of the message
CORPUS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a payload among the weights": (saves(lambda path: STATE | {"x": Payload(path.parent / "marker")}), "asks for posix.system"),
    "a payload alone": (saves(lambda path: Payload(path.parent / "marker")), "asks for posix.system"),
    "a payload in the old format": (saves(lambda path: {"x": Payload(path.parent / "marker")}, legacy=True), "posix.system"),
    "a bare pickle": (bare(lambda path: Payload(path.parent / "marker")), "Python pickle"),
    "a bare pickle of protocol 0": (bare(lambda path: Payload(path.parent / "marker"), protocol=0), "not a weights file"),
    "a torch.export archive": (exported, "zip archive of"),
    "a distributed checkpoint's .metadata": (bare(lambda path: {"metadata": Payload(path.parent / "marker")}), "Python pickle"),
    "a TorchScript program": (program, "TorchScript"),
    "builtins.eval": (pickled(b"\x80\x02cbuiltins\neval\nX\x04\x00\x00\x001+1 \x85R."), "asks for builtins.eval"),
    "an instance by class name": (pickled(b"\x80\x02(cos\nsystem\nX\x04\x00\x00\x00trueo."), "asks for os.system"),
    "a name made of parts": (
        pickled(b"\x80\x04\x8c\x02os\x8c\x06system\x93X\x04\x00\x00\x00true\x85R."),
        "opcode SHORT_BINUNICODE",
    ),
    "a whole module": (saves(lambda _: nn.Linear(2, 2)), "asks for torch.nn.modules.linear.Linear"),
    "a payload among the options of a training script": (
        saves(lambda path: {"model": STATE, "args": argparse.Namespace(a=Payload(path.parent / "marker"))}),
        "asks for posix.system",
    ),
    "numpy arrays": (saves(lambda _: {"model": STATE, "best": np.zeros(3)}), "numpy"),
    "a list": (saves(lambda _: [torch.ones(1)]), "holds a list"),
    "a single tensor": (saves(lambda _: torch.ones(1)), "holds a Tensor"),
    "no tensors": (saves(lambda _: {"epoch": 3}), "no named tensors"),
    "a sparse tensor": (saves(lambda _: {"a": torch.eye(3).to_sparse()}), "not a plain tensor"),
    "a meta tensor": (saves(lambda _: {"a": torch.empty(3, device="meta")}), "not a plain tensor"),
    "compressed": (compressed, "compressed, which torch never does"),
}


@pytest.mark.parametrize("attack", CORPUS)
def test_what_is_not_plain_weights_is_refused_and_nothing_runs(tmp_path: Path, attack: str) -> None:
    make, word = CORPUS[attack]
    for ending in (".pt", ".safetensors"):
        path = tmp_path / f"model{ending}"
        make(path)
        for values in (True, False):  # loading, describing
            with pytest.raises(CheckpointError) as refused:
                read_file(path, values=values)
            assert word in refused.value.message, refused.value.message
            assert str(path) in refused.value.message
            assert "weights_only=False" not in str(refused.value)  # torch's own advice
    assert not (tmp_path / "marker").exists()


def test_the_payload_of_these_tests_would_have_run_under_pythons_own_reader(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()


def test_a_refused_pickle_names_the_safe_way(tmp_path: Path) -> None:
    torch.save({"x": Payload(tmp_path / "marker")}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError) as refused:
        read_file(tmp_path / "x.pt")
    assert refused.value.hint is not None
    assert "safetensors.torch.save_file" in refused.value.hint
    assert "convert" in refused.value.hint
