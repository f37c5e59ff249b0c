"""Whatever is wrong with a file, the way in that people use says it in one sentence and runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints.containers.test_sniff import MISTAKES
from tests.faults.test_08_hostile_safetensors import CORPUS as SAFETENSORS
from tests.faults.test_09_pickle_payload import CORPUS as PAYLOADS
from tests.faults.test_35_hostile_npz import CORPUS as NPZ
from tests.faults.test_55_pickle_that_takes_memory import CORPUS as GREEDY
from vitlab.checkpoints import convert, describe, load
from vitlab.errors import CheckpointError


def _writes(content: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(content)

    return make


CORPUS: dict[str, Callable[[Path], None]] = {
    **{f"safetensors: {name}": _writes(content) for name, (content, _) in SAFETENSORS.items()},
    **{f"npz: {name}": make for name, (make, _) in NPZ.items() if "bomb of" not in name},  # that one takes a second to make
    **{f"torch: {name}": make for name, (make, _) in (PAYLOADS | GREEDY).items()},
    **{f"mistaken: {name}": _writes(content) for name, (content, _, _) in MISTAKES.items()},
}


@pytest.mark.parametrize("attack", CORPUS)
def test_load_describe_and_convert_refuse_it_and_nothing_appears(tmp_path: Path, attack: str) -> None:
    path = tmp_path / "model"
    CORPUS[attack](path)
    for act in (lambda: load(path), lambda: describe(path), lambda: convert(path, tmp_path / "out.safetensors", to="native")):
        with pytest.raises(CheckpointError) as refused:
            act()
        assert "\n" not in str(refused.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_folder_without_weights_and_a_folder_of_hostile_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no weights"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04junk")
    with pytest.raises(CheckpointError, match="Python pickle"):
        load(tmp_path)
