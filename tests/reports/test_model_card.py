"""`push`: the card says what the file knows, the licence is asked for, and what is uploaded opens again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import vitlab
from tests.checkpoints.small import images, logits_of, small_checkpoint
from vitlab.errors import CheckpointError, UsageError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A native file with recipe and metrics."""
    vitlab.save(small_checkpoint(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


class _Hub:
    """Stands for HfApi: keeps what it is given."""

    made: tuple[str, bool] | None = None
    files: dict[str, bytes]
    error: Exception | None = None

    def create_repo(self, name: str, *, repo_type: str, private: bool, exist_ok: bool) -> None:
        assert repo_type == "model"
        assert exist_ok
        if self.error is not None:
            raise self.error
        self.made = (name, private)

    def upload_folder(self, *, folder_path: Path, repo_id: str, repo_type: str, commit_message: str) -> str:
        assert repo_type == "model"
        assert commit_message
        self.files = {path.name: path.read_bytes() for path in folder_path.iterdir()}
        return f"commit of {repo_id}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> _Hub:
    errors: Any = ModuleType("huggingface_hub.errors")
    errors.HfHubHTTPError = type("HfHubHTTPError", (OSError,), {})
    errors.RepositoryNotFoundError = type("RepositoryNotFoundError", (errors.HfHubHTTPError,), {})
    errors.RevisionNotFoundError = type("RevisionNotFoundError", (errors.HfHubHTTPError,), {})
    errors.HFValidationError = type("HFValidationError", (ValueError,), {})
    fake = _Hub()
    module: Any = ModuleType("huggingface_hub")
    module.HfApi = lambda: fake
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return fake


@pytest.mark.parametrize("to", ["timm", "huggingface", "native"])
def test_what_is_uploaded_is_the_model_with_its_card(hub: _Hub, model: Path, tmp_path: Path, to: Any) -> None:
    said = vitlab.push(model, "owner/name", licence="cc-by-4.0", to=to, private=True).to_json()
    assert said["commit"] == "commit of owner/name"
    assert hub.made == ("owner/name", True)
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name, content in hub.files.items():
        (folder / name).write_bytes(content)
    back, own = vitlab.load(folder, profile="official"), vitlab.load(model)
    assert torch.equal(logits_of(back, images(own.config)), logits_of(own, images(own.config)))
    text = (folder / "README.md").read_text(encoding="utf-8", errors="surrogatepass")
    assert text.startswith("---\nlicense: cc-by-4.0\n")
    for word in ("owner/name", "| top1 | 75.00 % |", "## Intended use", "## Limits"):
        assert word in text


def test_without_a_licence_nothing_is_written_and_the_error_asks_for_it(hub: _Hub, model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="licence"):
        vitlab.push(model, "owner/name", folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert hub.made is None


def test_the_card_of_a_fitted_head_names_no_optimizer_that_trained_nothing(tmp_path: Path) -> None:
    train: Any = {"steps": 0, "head": "fitted", "seed": 1, "optimizer": {"kind": "adamw", "lr": 1e-3 / 3}}
    for steps, rows in ((0, False), (5, True)):
        recipe: Any = {"name": "finetune-folder", "data": {"dataset": "some/where/pets"}, "train": train | {"steps": steps}}
        vitlab.save(replace(small_checkpoint(), recipe=recipe), tmp_path / f"{steps}.safetensors")
        vitlab.push(tmp_path / f"{steps}.safetensors", "owner/name", licence="mit", folder=tmp_path / str(steps))
        text = (tmp_path / str(steps) / "README.md").read_text(encoding="utf-8")
        assert "| head | fitted to the features" in text
        assert ("adamw" in text, "| peak learning rate | 0.000333 |" in text) == (rows, rows)
        assert "      name: pets\n" in text


def test_a_folder_is_written_without_the_hub_and_never_over_another(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    vitlab.push(model, "owner/name", licence="mit", folder=tmp_path / "out", intended_use="To tell owls apart.")
    assert "To tell owls apart." in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    with pytest.raises(CheckpointError, match="exists already"):
        vitlab.push(model, "owner/name", licence="mit", folder=tmp_path / "out")
    with pytest.raises(CheckpointError, match="huggingface_hub, which is not installed"):
        vitlab.push(model, "owner/name", licence="mit")


def test_what_goes_wrong_is_one_sentence(hub: _Hub, model: Path) -> None:
    hub.error = OSError("401 Client Error\nand more")
    with pytest.raises(CheckpointError, match="cannot upload owner/name to the Hub: 401 Client Error") as refused:
        vitlab.push(model, "owner/name", licence="mit")
    assert "HF_TOKEN" in str(refused.value)
    for name in ("name", "a/b/c", "a b/c", "owner/name@v1"):
        with pytest.raises(CheckpointError, match="is no name on the Hub"):
            vitlab.push(model, name, licence="mit")
