"""A cached graph is damaged or another model's, or the cache cannot be used: vitlab makes the graph again and says so once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.faults.limits import no_file_above
from tests.inference.test_folded import close, noise, vit
from vitlab.checkpoints import Checkpoint
from vitlab.errors import ExportError
from vitlab.inference import auto, backends
from vitlab.inference.auto import AutoBackend, Choice
from vitlab.inference.backends import FoldedBackend, GraphFiles, OnnxRuntimeBackend, OpenVINOBackend, TorchBackend

RUNTIMES = pytest.mark.parametrize("runtime", ["onnx", "openvino"])


@pytest.fixture(autouse=True)
def graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of cached graphs, still empty."""
    for library in ("onnx", "onnxscript", "onnxruntime", "openvino"):
        pytest.importorskip(library)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vitlab" / "graphs"


@pytest.fixture(scope="module")
def model() -> Checkpoint:
    return vit({"depth": 1})


@pytest.fixture(scope="module", autouse=True)
def traced_once(onnx_operators: None) -> Iterator[None]:
    """A model is traced and converted once, which takes seconds, however often its files are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "traced", cache(backends.traced))
        patch.setattr(backends, "onnx_proto", cache(backends.onnx_proto))
        yield


def made(
    runtime: str, model: Checkpoint, say: Callable[[str], None], digest: str = "digest"
) -> OnnxRuntimeBackend | OpenVINOBackend:
    if runtime == "onnx":
        return OnnxRuntimeBackend(model, GraphFiles(model, digest, "onnx", notify=say))
    return OpenVINOBackend(model, GraphFiles(model, digest, "openvino", notify=say))


@RUNTIMES
def test_a_damaged_graph_is_made_again_and_said_once(runtime: str, graphs: Path, model: Checkpoint) -> None:
    said: list[str] = []
    images_BHWC = noise(model, 3)
    expected = TorchBackend(model.model, model.preprocess).run(images_BHWC).logits_BK
    made(runtime, model, said.append)
    weights = "model.onnx" if runtime == "onnx" else "model.bin"
    for name, damaged in ((weights, _flipped), (weights, _cut), ("model.xml", _cut), ("sha256", _emptied)):
        if runtime == "onnx" and name == "model.xml":
            continue
        (file,) = graphs.glob(f"*/{name}")
        file.write_bytes(damaged(file.read_bytes()))
        assert said == []
        close(made(runtime, model, said.append).run(images_BHWC).logits_BK, expected)
        assert len(said) == 1
        assert "made again" in said[0]
        said.clear()
    made(runtime, model, said.append)
    assert said == []


def _flipped(whole: bytes) -> bytes:
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]


def _cut(whole: bytes) -> bytes:
    return whole[:-1]


def _emptied(whole: bytes) -> bytes:
    return b""


def test_the_graph_of_another_model_or_version_is_not_used(
    graphs: Path, model: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, said = vit({"depth": 1, "register_tokens": 1}), list[str]()
    own = graphs / GraphFiles(model, "digest", "onnx")._key
    images_BHWC = noise(model, 3)
    expected = TorchBackend(model.model, model.preprocess).run(images_BHWC).logits_BK
    made("onnx", other, said.append, "another digest")
    with monkeypatch.context() as patched:
        patched.setattr(backends, "_LAYOUT", 0)
        made("onnx", model, said.append)
    foreign = list(graphs.iterdir())
    assert len(foreign) == 2
    assert said == []
    for folder in foreign:
        shutil.copytree(folder, own)
        close(made("onnx", model, said.append).run(images_BHWC).logits_BK, expected)
        assert len(said) == 1
        said.clear()
        shutil.rmtree(own)


def test_a_cache_folder_that_cannot_be_used_costs_a_note(graphs: Path, model: Checkpoint) -> None:
    said: list[str] = []
    graphs.parent.mkdir(parents=True)
    graphs.write_text("a file where the folder should be")
    images_BHWC = noise(model, 3)
    expected = TorchBackend(model.model, model.preprocess).run(images_BHWC).logits_BK
    backend = made("onnx", model, said.append)
    close(backend.run(images_BHWC).logits_BK, expected)
    close(backend.run(images_BHWC[:1]).logits_BK, expected[:1])  # compiled only now, from the same files
    assert len(said) == 1
    assert "not kept" in said[0]


@RUNTIMES
def test_a_full_disk_is_reported_and_leaves_nothing(runtime: str, graphs: Path, model: Checkpoint) -> None:
    said: list[str] = []
    with no_file_above(4096), pytest.raises(ExportError, match="cannot be written"):
        made(runtime, model, said.append)
    assert len(said) == 1
    assert not list(graphs.iterdir())


def test_a_folder_that_is_deleted_meanwhile_is_made_again(graphs: Path, model: Checkpoint) -> None:
    backend = made("onnx", model, print)
    images_BHWC = noise(model, 3)
    expected = TorchBackend(model.model, model.preprocess).run(images_BHWC).logits_BK
    shutil.rmtree(graphs.parent)
    close(backend.run(images_BHWC).logits_BK, expected)
    close(backend.run(images_BHWC[:1]).logits_BK, expected[:1])  # one image alone has a session of its own, made only now


def test_auto_falls_back_to_torch_and_says_so(model: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first = FoldedBackend(model)

    class Broken:
        name = "broken"

        def run(self, images_BHWC: np.ndarray, *, features: bool = False) -> backends.Outputs:
            raise ExportError("its graph cannot be loaded")

    backend = AutoBackend(model, first, lambda: "digest", notify=said.append)
    backend._one = backend._many = Broken()
    images_BHWC = noise(model, 3)
    for _ in range(2):
        close(backend.run(images_BHWC).logits_BK, first.run(images_BHWC).logits_BK)
    assert len(said) == 1
    assert "the backend is torch from now on" in said[0]


def test_a_measurement_that_cannot_be_kept_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    auto._save(tmp_path / "file" / "x.json", Choice(one="a", many="a", seconds_one={}, seconds_many={}, absent={}))
