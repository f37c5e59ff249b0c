"""A folder as Hugging Face lays it out: one weights file or its shards, and the texts beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitlab.checkpoints.containers import read_file, write_npz, write_safetensors
from vitlab.errors import CheckpointError

CONFIG = {"hidden_size": 128, "id2label": {"0": "caf\u00e9"}}
PREPROCESSOR = {"image_mean": [0.5, 0.5, 0.5]}
ONE, TWO = {"a": torch.ones(2)}, {"b": torch.zeros(3), "c": torch.arange(4.0)}


def _folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return path


def _sharded(path: Path, places: dict[str, Any]) -> Path:
    folder = _folder(path)
    write_safetensors(folder / "model-00001-of-00002.safetensors", ONE, {"format": "pt"})
    write_safetensors(folder / "model-00002-of-00002.safetensors", TWO, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 36}, "weight_map": places}))
    return folder


PLACES = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}


def test_a_folder_gives_its_weights_and_its_texts_and_so_does_the_file_in_it(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model")
    write_safetensors(folder / "model.safetensors", ONE, {"format": "pt"})
    for path in (folder, folder / "model.safetensors"):
        raw = read_file(path)
        assert torch.equal(raw.tensors["a"], ONE["a"])
        assert raw.path == folder / "model.safetensors"
        assert (raw.sidecar, raw.preprocessor, raw.metadata) == (CONFIG, PREPROCESSOR, {"format": "pt"})
        assert raw.notes == ()


def test_shards_give_the_tensors_of_all_by_folder_and_by_index(tmp_path: Path) -> None:
    folder = _sharded(tmp_path / "model", PLACES)
    for path in (folder, folder / "model.safetensors.index.json"):
        raw = read_file(path)
        assert raw.sidecar == CONFIG
        assert {name: tensor.tolist() for name, tensor in raw.tensors.items()} == {
            name: tensor.tolist() for name, tensor in (ONE | TWO).items()
        }
        assert all(tensor.is_meta for tensor in read_file(path, values=False).tensors.values())


@pytest.mark.parametrize(
    ("places", "word"),
    [
        ({"a": PLACES["a"], "b": PLACES["b"]}, "disagree about c"),
        (PLACES | {"d": PLACES["a"]}, "disagree about d"),
        (PLACES | {"a": PLACES["b"]}, "disagree about a"),
        (PLACES | {"a": "missing.safetensors"}, "no file called"),
        (PLACES | {"a": "../elsewhere/model.safetensors"}, "not a file of its own folder"),
        (PLACES | {"a": "/etc/passwd"}, "not a file of its own folder"),
        (PLACES | {"a": ".."}, "folder"),
        (PLACES | {"a": "config.json"}, "config.json"),
        (PLACES | {"a": ["list"]}, "not a file of its own folder"),
        (PLACES | {"a": "a\0b"}, "not a file of its own folder"),
        ({}, "without a weight_map"),
    ],
)
def test_an_index_that_is_not_true_or_points_elsewhere_is_refused(tmp_path: Path, places: dict[str, Any], word: str) -> None:
    folder = _sharded(tmp_path / "model", places)
    with pytest.raises(CheckpointError) as refused:
        read_file(folder)
    assert word in str(refused.value)


def test_the_choice_among_weights_files_is_said_or_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "model")
    with pytest.raises(CheckpointError, match="holds no weights"):
        read_file(folder)
    write_npz(folder / "anything.npz", ONE)
    assert torch.equal(read_file(folder).tensors["a"], ONE["a"])
    torch.save(TWO, folder / "other.pth")
    with pytest.raises(CheckpointError, match=r"several weights files \(anything\.npz, other\.pth\)"):
        read_file(folder)
    torch.save(TWO, folder / "pytorch_model.bin")
    assert read_file(folder).tensors.keys() == TWO.keys()
    write_safetensors(folder / "model.safetensors", ONE, {})
    raw = read_file(folder)
    assert raw.tensors.keys() == ONE.keys()
    assert raw.notes == ("read model.safetensors; ignored pytorch_model.bin",)


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"a": 1' + b" " * (9 << 20) + b"}"])
def test_a_broken_config_is_an_error_in_its_folder_and_a_note_beside_a_file(tmp_path: Path, text: bytes) -> None:
    folder = _folder(tmp_path / "model")
    write_safetensors(folder / "model.safetensors", ONE, {})
    (folder / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_file(folder)
    raw = read_file(folder / "model.safetensors")
    assert raw.sidecar is None
    assert raw.preprocessor == PREPROCESSOR
    assert len(raw.notes) == 1
    assert raw.notes[0].startswith("ignored config.json")
