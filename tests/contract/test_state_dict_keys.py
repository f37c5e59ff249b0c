"""The names and shapes of every model's weights: files that people keep depend on them.

`state_dict_keys.json` holds them as they were when first published. A change here means that old checkpoints need a way to be read:
give the native format a new version first, then record the keys anew with `python -m tests.contract.test_state_dict_keys`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.test_contract import CONFIGS
from vitlab.models import build

RECORDED = Path(__file__).with_name("state_dict_keys.json")


def keys_of(name: str) -> dict[str, list[int]]:
    return {key: list(tensor.shape) for key, tensor in build(CONFIGS[name], device="meta").state_dict().items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_weights_of_a_model_are_called_as_they_were(name: str) -> None:
    assert keys_of(name) == json.loads(RECORDED.read_text())[name]


def test_no_recorded_model_is_forgotten() -> None:
    assert json.loads(RECORDED.read_text()).keys() == CONFIGS.keys()


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(keys_of(name))}" for name in CONFIGS]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
