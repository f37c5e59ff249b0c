"""On a Ray cluster of two nodes: what one process writes, row for row and digit for digit, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitlab
from tests.cluster import small
from tests.cluster.conftest import RayCluster, ray_processes
from vitlab.errors import ClusterError, DataError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]  # a loaded machine imports torch slowly, in many processes

IMAGES, BATCH, PART = 50, 4, 8
RAY: dict[str, Any] = {"engine": "ray", "batch_size": BATCH, "part_size": PART}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and images, two of them broken, and what one process writes."""
    folder = tmp_path_factory.mktemp("ray")
    small.images(folder / "images", IMAGES, broken=(7, 30))
    small.model(folder / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        vitlab.predict("model.safetensors", "images", out="one.jsonl", batch_size=BATCH, backend="torch")
        vitlab.embed("model.safetensors", "images", "one.parquet", batch_size=BATCH)
    return folder


def at(images: int, act: Callable[[], None]) -> Callable[[str, int, int | None], None]:
    """A progress callback that acts once, in a thread, when so many images are done and others are not."""
    acted = threading.Event()

    def progress(description: str, done: int, total: int | None) -> None:
        if total is not None and images <= done < total and not acted.is_set():
            acted.set()
            threading.Thread(target=act).start()

    return progress


def test_a_worker_that_is_killed_changes_no_byte_of_the_predictions(
    ray_cluster: RayCluster, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)  # paths are relative, and workers must read them all the same
    killed: list[int] = []

    def kill() -> None:
        killed.append(ray_processes("Model")[0])
        os.kill(killed[0], signal.SIGKILL)

    out = tmp_path / "found.jsonl"
    vitlab.predict("model.safetensors", "images", out=out, workers=1, **RAY, address=ray_cluster.address, progress=at(8, kill))
    assert killed
    assert out.read_bytes() == (work / "one.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.jsonl"]


def test_a_node_that_is_killed_changes_no_row_of_the_features(
    ray_cluster: RayCluster, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(work)
    killed: list[Any] = []

    def kill() -> None:
        ray_cluster.kill_node(ray_cluster.second)
        killed.append(ray_cluster.second)

    try:
        vitlab.embed(
            "model.safetensors", "images", tmp_path / "parts", workers=0, **RAY, address=ray_cluster.address, progress=at(8, kill)
        )
    finally:
        ray_cluster.second = ray_cluster.add_node()
    assert killed
    parts = sorted((tmp_path / "parts").glob("part-*.parquet"))
    assert len(parts) == 7
    one = parquet.read_table(work / "one.parquet")
    assert [row for path in parts for row in parquet.read_table(path).to_pylist()] == one.to_pylist()
    assert all(parquet.read_schema(path).equals(one.schema, check_metadata=True) for path in parts)


class Stop(Exception):  # noqa: N818 (it stands for a death)
    """The driver ends here."""


def test_an_evaluation_that_was_stopped_resumes_and_equals_that_of_one_process(
    ray_cluster: RayCluster, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip("ray")
    monkeypatch.chdir(work)
    parts = tmp_path / "parts"
    same: dict[str, Any] = {"corrupt": "skip"}
    one = vitlab.evaluate("model.safetensors", "images", batch_size=BATCH, backend="torch", **same).to_json()
    seen: list[int] = []

    def stop(description: str, done: int, total: int | None) -> None:
        if len(list(parts.glob("part-*"))) == 2:  # any two: workers may finish them in any order
            raise Stop

    ray: dict[str, Any] = {**RAY, **same, "workers": 0, "address": ray_cluster.address, "parts": parts}
    threads: list[str] = []

    def shutdown(end: Callable[[], None] = module.shutdown) -> None:
        threads.extend(thread.name for thread in threading.enumerate())
        end()

    monkeypatch.setattr(module, "shutdown", shutdown)
    with pytest.raises(Stop):
        vitlab.evaluate("model.safetensors", "images", **ray, progress=stop)
    # A thread of Ray Data that asks Ray for something after the shutdown ends this process with exit code 1 and no word.
    assert threads
    assert not [name for name in threads if name.startswith(("StreamingExecutor", "iter_threaded"))]
    kept = {path: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    images = sum(min(PART, IMAGES - PART * int(path.stem[-6:])) for path in kept)
    found = vitlab.evaluate(
        "model.safetensors", "images", **ray, progress=lambda description, done, total: seen.append(done)
    ).to_json()
    assert found == one
    assert len(kept) == 2
    assert seen[0] == images
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_a_model_that_does_not_load_on_a_worker_is_an_error_that_says_so(
    ray_cluster: RayCluster, work: Path, tmp_path: Path
) -> None:
    from vitlab.checkpoints import load

    class Unloadable(str):
        def __reduce__(self) -> tuple[Any, ...]:
            return os.stat, ("/only/here",)

    checkpoint = replace(load(work / "model.safetensors"), labels=("cat", Unloadable("dog")))
    with pytest.raises(ClusterError, match=r"the model does not load on .*/only/here") as caught:
        vitlab.predict(checkpoint, work / "images", out=tmp_path / "x.jsonl", workers=0, **RAY, address=ray_cluster.address)
    assert caught.value.hint is not None


def test_a_cluster_that_does_not_answer_is_an_error_within_seconds(work: Path, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"at 127\.0\.0\.1:1 does not answer"):
        vitlab.predict(work / "model.safetensors", work / "images", out=tmp_path / "x.jsonl", **RAY, address="127.0.0.1:1")
    with pytest.raises(DataError, match="exists already"):
        vitlab.predict(work / "model.safetensors", work / "images", out=work / "one.jsonl", **RAY)
