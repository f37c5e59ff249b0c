"""Rows that several processes wrote are the tensors again, and what is not of one checkpoint is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitlab.checkpoints import describe, load
from vitlab.checkpoints.containers import write_safetensors
from vitlab.checkpoints.native import HeaderFacts, Pieces, is_part, part_name, parts_in, read_weights, write_weights_part
from vitlab.config import Preprocess, variant
from vitlab.errors import CheckpointError
from vitlab.models import build

CONFIG = variant("ViT-Mini/8", num_classes=3)
FACTS = HeaderFacts(config=CONFIG, preprocess=Preprocess(image_size=CONFIG.image_size), labels=("a", "b", "c"))


def rows_of(state: dict[str, Tensor], rank: int, ranks: int) -> dict[str, Tensor]:
    """What torch gives a rank: as many rows as the longest part has, the last ranks perhaps none."""
    chunks = {name: tensor.chunk(ranks) for name, tensor in state.items()}
    return {name: parts[rank] for name, parts in chunks.items() if rank < len(parts)}


def written(folder: Path, *, ranks: int, facts: HeaderFacts = FACTS) -> dict[str, Tensor]:
    state = build(CONFIG, seed=4).state_dict()
    for rank in range(ranks):
        write_weights_part(folder / part_name("model", rank, ranks), rows_of(state, rank, ranks), facts, rank=rank, ranks=ranks)
    return state


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_parts_of_any_number_of_processes_are_the_whole(ranks: int, tmp_path: Path) -> None:
    state = written(tmp_path, ranks=ranks)
    found, facts = read_weights(parts_in(tmp_path, "model"))
    assert facts == FACTS
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    loaded = load(tmp_path)
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.model.state_dict().items())
    assert describe(tmp_path).parameters == sum(tensor.numel() for tensor in state.values())


def test_pieces_give_one_tensor_at_a_time_or_all(tmp_path: Path) -> None:
    state = {"long": torch.arange(10.0).reshape(5, 2), "short": torch.ones(1, 3), "step": torch.tensor(7.0)}
    write_safetensors(tmp_path / part_name("optimizer", 0, 2), {"long": state["long"][:3], **_without(state, "long")}, {})
    write_safetensors(tmp_path / part_name("optimizer", 1, 2), {"long": state["long"][3:]}, {})
    pieces = Pieces(parts_in(tmp_path, "optimizer"))
    assert set(pieces) == state.keys()
    assert len(pieces) == 3
    for name, tensor in state.items():
        assert torch.equal(pieces[name], tensor)
        assert torch.equal(pieces.all()[name], tensor)


def _without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in state.items() if key != name}


def test_missing_parts_and_parts_of_two_runs_are_named(tmp_path: Path) -> None:
    written(tmp_path, ranks=3)
    (tmp_path / part_name("model", 1, 3)).unlink()
    with pytest.raises(CheckpointError, match="of 3 parts of model, 1 missing"):
        parts_in(tmp_path, "model")
    written(tmp_path, ranks=2)
    with pytest.raises(CheckpointError, match="of 2 and of 3 processes"):
        parts_in(tmp_path, "model")
    assert parts_in(tmp_path, "average") == ()
    with pytest.raises(CheckpointError, match="cannot read the folder"):
        parts_in(tmp_path / "nowhere", "model")


def test_parts_of_different_checkpoints_are_refused(tmp_path: Path) -> None:
    written(tmp_path, ranks=2)
    other = tmp_path / "other"
    other.mkdir()
    written(other, ranks=2, facts=replace(FACTS, labels=("a", "b", "d")))
    name = part_name("model", 1, 2)
    (tmp_path / name).write_bytes((other / name).read_bytes())
    with pytest.raises(CheckpointError, match="not of one checkpoint"):
        load(tmp_path)


def test_rows_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    for rank, width in enumerate((2, 3)):
        write_safetensors(tmp_path / part_name("optimizer", rank, 2), {"a": torch.zeros(1, width)}, {})
    with pytest.raises(CheckpointError, match="do not fit together"):
        Pieces(parts_in(tmp_path, "optimizer"))["a"]
    state = build(CONFIG, seed=4).state_dict()
    short = {name: tensor for name, tensor in rows_of(state, 1, 2).items() if name != "head.weight"}
    write_weights_part(tmp_path / part_name("model", 0, 2), rows_of(state, 0, 2), FACTS, rank=0, ranks=2)
    write_weights_part(tmp_path / part_name("model", 1, 2), short, FACTS, rank=1, ranks=2)
    with pytest.raises(CheckpointError, match=r"head\.weight is 2x192 and should be 3x192|head\.weight is 2x"):
        load(tmp_path)


@pytest.mark.parametrize("place", [20, -1])
def test_a_changed_byte_of_a_part_is_refused_at_loading(place: int, tmp_path: Path) -> None:
    written(tmp_path, ranks=2)
    path = tmp_path / part_name("model", 1, 2)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        load(tmp_path)


def test_the_name_of_a_part_is_recognised_and_no_other(tmp_path: Path) -> None:
    assert is_part(part_name("model", 0, 8))
    assert not is_part("model.safetensors")
    assert not is_part("model-00001-of-00002.safetensors")  # the shards of another library
