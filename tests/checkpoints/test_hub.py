"""`hub:owner/name` is a folder like any other once it is there, and a plain sentence while it is not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.checkpoints.small import images, logits_of, small_checkpoint
from vitlab.checkpoints import convert, describe, load, save
from vitlab.errors import CheckpointError

REVISION = "3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3"


class _TransportError(Exception):
    """Stands for the HTTP library's own base class."""


class _Hub:
    """A Hub in memory: what it is asked for, and what it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str | None, tuple[str, ...]]] = []
        self.error: Exception | None = None

    def snapshot_download(self, name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        self.asked.append((name, revision, tuple(allow_patterns)))
        if self.error is not None:
            raise self.error
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Hub:
    folder = tmp_path / "snapshots" / REVISION
    folder.mkdir(parents=True)
    fake = _Hub(folder)
    errors: Any = ModuleType("huggingface_hub.errors")
    errors.HfHubHTTPError = type("HfHubHTTPError", (_TransportError, OSError), {})
    for name in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        setattr(errors, name, type(name, (errors.HfHubHTTPError,), {}))
    errors.HFValidationError = type("HFValidationError", (ValueError,), {})
    errors.LocalEntryNotFoundError = type("LocalEntryNotFoundError", (FileNotFoundError,), {})
    module: Any = ModuleType("huggingface_hub")
    module.snapshot_download = fake.snapshot_download
    module.errors = errors
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return fake


def _filled(hub: _Hub, tmp_path: Path) -> Path:
    native = tmp_path / "native.safetensors"
    save(small_checkpoint(), native)
    convert(native, tmp_path / "hf", to="huggingface")
    for entry in (tmp_path / "hf").iterdir():
        (hub.folder / entry.name).write_bytes(entry.read_bytes())
    return native


def test_a_repository_is_loaded_as_its_folder_and_its_revision_is_noted(hub: _Hub, tmp_path: Path) -> None:
    native = _filled(hub, tmp_path)
    loaded = load("hub:owner/name@v1.0", profile="official")
    assert loaded.notes[0] == f"from the Hub: owner/name at revision {REVISION}"
    assert loaded.format == "huggingface"
    images_BCHW = images(loaded.config)
    assert torch.equal(logits_of(loaded, images_BCHW), logits_of(load(native), images_BCHW))
    assert [(name, revision) for name, revision, _ in hub.asked] == [("owner/name", "v1.0")]
    assert describe("hub:owner/name").config == load("hub:owner/name").config
    convert("hub:owner/name", tmp_path / "out.safetensors", to="native")


def test_a_pickle_is_asked_for_only_where_there_is_nothing_else(hub: _Hub) -> None:
    with pytest.raises(CheckpointError, match="holds no weights"):
        load("hub:owner/name")
    assert ["pytorch_model.bin" in patterns for _, _, patterns in hub.asked] == [False, False, True]


def test_what_goes_wrong_on_the_hub_is_one_sentence(hub: _Hub) -> None:
    errors = sys.modules["huggingface_hub"].errors
    cases = [
        (errors.RepositoryNotFoundError("404"), "no repository owner/name on the Hub that is open to you"),
        (errors.RevisionNotFoundError("404"), "has no revision 'v9'"),
        (errors.LocalEntryNotFoundError("no connection\nand more"), "not in the local cache: no connection"),
        (errors.HfHubHTTPError("503"), "cannot reach the Hub"),
        (errors.HFValidationError("bad"), "is no address on the Hub"),
        (_TransportError("proxy"), "cannot reach the Hub"),
        (ConnectionError("reset"), "cannot reach the Hub"),
        (OSError(""), "cannot reach the Hub"),
    ]
    for error, word in cases:
        hub.error = error
        with pytest.raises(CheckpointError, match=word) as refused:
            load("hub:owner/name@v9")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("address", ["hub:", "hub:name", "hub:a/b/c", "hub:a/b@", "hub:a b/c", "hub:../b@x y", "hub:\u00e9/b"])
def test_an_address_that_is_none_is_refused_before_anything_is_asked(hub: _Hub, address: str) -> None:
    with pytest.raises(CheckpointError, match="is no address on the Hub"):
        load(address)
    assert hub.asked == []


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="need huggingface_hub, which is not installed") as refused:
        load("hub:google/vit-base-patch16-224")
    assert refused.value.hint is not None
    assert "vitlab[hub]" in refused.value.hint


def test_a_models_name_is_its_public_weights_and_says_how_good_they_are(
    hub: _Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _filled(hub, tmp_path)
    for name, repository in (
        ("ViT-B/16", "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
        ("vit_base_patch16_224.augreg_in21k", "timm/vit_base_patch16_224.augreg_in21k"),
    ):
        loaded = load(name, profile="official")
        assert hub.asked[-1][0] == repository
        assert loaded.notes[0].startswith(f"{name}: public weights hub:{repository}, trained on ImageNet-21k")
    assert "85.1 % top-1" in load("ViT-B/16").notes[0]
    (tmp_path / "ViT-B").mkdir()
    monkeypatch.chdir(tmp_path)
    save(small_checkpoint(), tmp_path / "ViT-B" / "16")
    assert load("ViT-B/16").notes == ("made for a test",)  # a file of that name comes first


def test_without_a_connection_the_error_says_where_to_put_the_files_and_there_they_are_found(
    hub: _Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _filled(hub, tmp_path)
    hub.error = ConnectionError("no route")
    with pytest.raises(CheckpointError, match=r"ViT-B/16: public weights hub:timm/vit_base.* cannot reach the Hub") as refused:
        load("ViT-B/16")
    place = tmp_path / "cache" / "vitlab" / "weights" / "timm" / "vit_base_patch16_224.augreg2_in21k_ft_in1k"
    assert refused.value.hint is not None
    assert str(place) in refused.value.hint
    place.parent.mkdir(parents=True)
    (tmp_path / "hf").rename(place)
    assert load("ViT-B/16").format == "huggingface"


@pytest.mark.peer
def test_the_real_package_offline_gives_the_same_plain_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="cannot reach the Hub for google/vit-base-patch16-224"):
        load("hub:google/vit-base-patch16-224")
