"""`hub:owner/name` against a local server that speaks the Hub's protocol: a folder like any other, resumed and verified."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.checkpoints.small import images, logits_of, small_checkpoint
from tests.processes import run
from tests.web_server import Hub, serving
from vitlab.checkpoints import convert, describe, load, save
from vitlab.checkpoints.hub import fetch
from vitlab.data.catalog.download import Patience
from vitlab.errors import CheckpointError

QUICK = Patience(attempts=1, wait=0.0, timeout=10.0)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with one repository, and caches that are empty."""
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    save(small_checkpoint(), tmp_path / "native.safetensors")
    convert(tmp_path / "native.safetensors", tmp_path / "hf", to="huggingface")
    files = {entry.name: entry.read_bytes() for entry in sorted((tmp_path / "hf").iterdir())}
    with serving(Hub(files=files | {"README.md": b"read me"})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        yield served


def weights_asked(hub: Hub) -> list[str]:
    """The Range headers of the requests for the weights."""
    return [wanted for name, wanted in hub.asked if name.endswith(".safetensors")]


def test_a_repository_is_loaded_as_its_folder_and_its_revision_is_noted(hub: Hub, tmp_path: Path) -> None:
    loaded = load("hub:owner/name", profile="official")
    assert loaded.notes[0] == f"from the Hub: owner/name at revision {hub.revision}"
    assert loaded.format == "huggingface"
    images_BCHW = images(loaded.config)
    assert torch.equal(logits_of(loaded, images_BCHW), logits_of(load(tmp_path / "native.safetensors"), images_BCHW))
    assert sorted(name for name, _ in hub.asked) == ["config.json", "model.safetensors", "preprocessor_config.json"]
    hub.asked.clear()
    assert describe("hub:owner/name").config == load("hub:owner/name").config
    convert(f"hub:owner/name@{hub.revision}", tmp_path / "out.safetensors", to="native")
    assert hub.asked == []  # it was all in the cache


def test_an_interrupted_download_is_resumed_where_it_ended(hub: Hub) -> None:
    hub.cut = 20_000
    with pytest.raises(CheckpointError, match=r"model\.safetensors of owner/name cannot be downloaded") as refused:
        fetch("hub:owner/name", patience=QUICK)
    assert "resumes" in (refused.value.hint or "")
    hub.cut = None
    folder, _ = fetch("hub:owner/name", patience=QUICK)
    assert weights_asked(hub) == ["", "bytes=20000-"]
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_weights_with_a_wrong_checksum_are_refused_and_not_kept(hub: Hub) -> None:
    hub.corrupt = True
    with pytest.raises(CheckpointError, match=r"model\.safetensors of owner/name .* is not the expected file") as refused:
        fetch("hub:owner/name", patience=QUICK)
    assert "\n" not in str(refused.value)
    hub.corrupt = False
    folder, _ = fetch("hub:owner/name", patience=QUICK)
    assert weights_asked(hub) == ["", ""]
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_a_repository_that_is_not_there_gated_or_without_weights_is_refused_in_one_sentence(hub: Hub) -> None:
    with pytest.raises(CheckpointError, match="has no revision 'v9'"):
        load("hub:owner/name@v9")
    with pytest.raises(CheckpointError, match="no repository other/name on the Hub that is open to you"):
        load("hub:other/name")
    hub.gated = True
    with pytest.raises(CheckpointError, match="owner/name is gated on the Hub") as refused:
        load("hub:owner/name")
    assert "accept its terms" in (refused.value.hint or "")
    hub.gated, hub.files = False, {"README.md": b"read me", "config.json": b"{}"}
    with pytest.raises(CheckpointError, match="holds no weights"):
        load("hub:owner/name")
    assert hub.asked == []


def test_the_token_of_the_user_opens_a_gated_repository(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated, hub.token = True, "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(CheckpointError, match="is gated") as refused:
        load("hub:owner/name")
    assert "hf_wrong" not in f"{refused.value} {refused.value.hint}"
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "hf_home").mkdir()
    (tmp_path / "hf_home" / "token").write_text("hf_secret\n")
    assert load("hub:owner/name").format == "huggingface"
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]


def test_without_a_connection_the_cache_answers_and_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch("hub:owner/name")
    hub.asked.clear()
    for changes in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        with monkeypatch.context() as without:
            for name, value in changes.items():
                without.setenv(name, value)
            folder, (note,) = fetch("hub:owner/name")
            assert folder.name == hub.revision
            assert "since the Hub cannot be reached" in note
            with pytest.raises(CheckpointError, match="cannot reach the Hub for owner/other, and it is not in the local cache"):
                fetch("hub:owner/other")
    assert hub.asked == []


def test_the_cache_of_huggingface_hub_is_used(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "hf_home" / "hub" / "models--owner--name" / "snapshots" / hub.revision
    folder.mkdir(parents=True)
    for name, content in hub.files.items():
        (folder / name).write_bytes(content)
    assert fetch("hub:owner/name")[0] == folder
    assert hub.asked == []


def test_safetensors_come_before_a_pickle_and_all_shards_are_taken(hub: Hub) -> None:
    weights = hub.files.pop("model.safetensors")
    hub.files |= {"pytorch_model.bin": b"pickle", "model-00001-of-00002.safetensors": weights}
    hub.files |= {"model-00002-of-00002.safetensors": weights, "model.safetensors.index.json": b"{}"}
    folder, _ = fetch("hub:owner/name")
    names = {path.name for path in folder.iterdir()}
    assert {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"} <= names
    assert not names & {"pytorch_model.bin", "README.md"}


@pytest.mark.parametrize(
    "answer", [b"<html>", b"[]", b"{}", b'{"sha": "..", "siblings": []}', b'{"sha": "abcdef0", "siblings": [3]}']
)
def test_a_server_that_is_not_the_hub_is_refused(hub: Hub, answer: bytes) -> None:
    hub.instead = answer
    with pytest.raises(CheckpointError, match="does not answer as the Hub does"):
        load("hub:owner/name")


@pytest.mark.parametrize("address", ["hub:", "hub:name", "hub:a/b/c", "hub:a/b@", "hub:a b/c", "hub:../b@x y", "hub:\u00e9/b"])
def test_an_address_that_is_none_is_refused_before_anything_is_asked(hub: Hub, address: str) -> None:
    with pytest.raises(CheckpointError, match="is no address on the Hub"):
        load(address)
    assert hub.requests == 0


def test_a_models_name_is_its_public_weights_and_says_how_good_they_are(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, repository in (
        ("ViT-B/16", "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
        ("vit_base_patch16_224.augreg_in21k", "timm/vit_base_patch16_224.augreg_in21k"),
    ):
        hub.name = repository
        loaded = load(name, profile="official")
        assert loaded.notes[0].startswith(f"{name}: public weights hub:{repository}, trained on ImageNet-21k")
        if name == "ViT-B/16":
            assert "85.1 % top-1" in loaded.notes[0]
    (tmp_path / "ViT-B").mkdir()
    monkeypatch.chdir(tmp_path)
    save(small_checkpoint(), tmp_path / "ViT-B" / "16")
    assert load("ViT-B/16").history == ("made for a test",)  # a file of that name comes first


def test_without_a_connection_the_error_says_where_to_put_the_files_and_there_they_are_found(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError, match=r"ViT-B/16: public weights hub:timm/vit_base.* cannot reach the Hub") as refused:
        load("ViT-B/16")
    place = tmp_path / "cache" / "vitlab" / "weights" / "timm" / "vit_base_patch16_224.augreg2_in21k_ft_in1k"
    assert refused.value.hint is not None
    assert str(place) in refused.value.hint
    place.parent.mkdir(parents=True)
    (tmp_path / "hf").rename(place)
    assert load("ViT-B/16").format == "huggingface"


@pytest.mark.peer
def test_huggingface_hub_itself_takes_the_same_files_from_this_server(hub: Hub, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    code = "import huggingface_hub; print(huggingface_hub.snapshot_download('owner/name'))"
    done = run([sys.executable, "-c", code], env={"HF_HUB_DISABLE_PROGRESS_BARS": "1"})
    folder = Path(done.stdout.strip().splitlines()[-1])
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == hub.files
    assert fetch("hub:owner/name")[0] == folder  # and vitlab finds them in its cache
