"""The real client of the Hub: what `push` uploads to a local hub is downloaded again, by vitlab and by timm's name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import vitlab
from tests import processes
from tests.checkpoints.small import small_checkpoint
from tests.web_server import Hub, serving

pytestmark = pytest.mark.peer


def test_a_pushed_model_is_the_same_when_it_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    vitlab.save(small_checkpoint(), tmp_path / "model.safetensors")
    with serving(Hub(name="")) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_TOKEN": hub.token, "HF_HOME": str(tmp_path / "home")}
        environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        push = [
            sys.executable,
            "-m",
            "vitlab",
            "push",
            str(tmp_path / "model.safetensors"),
            "me/small",
            "--licence",
            "mit",
            "--private",
        ]
        processes.run(push, env=environment)
        assert (hub.name, hub.private) == ("me/small", True)
        assert set(hub.files) == {"README.md", "config.json", "model.safetensors"}
        processes.run(push, env=environment)  # again: a new commit to the same repository
        back = tmp_path / "back.safetensors"
        processes.run([sys.executable, "-m", "vitlab", "convert", "hub:me/small", str(back), "--to", "native"], env=environment)
        assert vitlab.describe(back).to_json()["labels"] == vitlab.describe(tmp_path / "model.safetensors").to_json()["labels"]
        refused = processes.run([*push[:-1]], env=environment | {"HF_TOKEN": "wrong"}, check=False)
        assert refused.returncode == 1
        assert "error: cannot upload me/small to the Hub" in refused.stderr
