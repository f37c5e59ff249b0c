"""A run on a real S3-compatible server, through the front door: train, be killed, resume elsewhere, predict, evaluate, report."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

import vitlab
from tests import processes
from tests.s3 import Fault, Storage, jpeg, moto_server, storage
from vitlab.cli.main import main
from vitlab.data.pack import pack
from vitlab.errors import TrainingError
from vitlab.io import remote
from vitlab.io.address import Address
from vitlab.training.remote_run import Lease

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")
pytestmark = pytest.mark.cluster

OPTIONS = ["--recipe", "small-data", "--model", "ViT-Mini/8", "--steps", "6", "--batch-size", "8", "--image-size", "16"]
OPTIONS += ["--save-every", "2", "--evaluate-every", "3", "--workers", "0", "--quiet"]


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with moto_server() as address:
        yield address


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with a train and a val split, on disk."""
    root = tmp_path_factory.mktemp("data")
    for split, count in (("train", 24), ("val", 9)):
        for number in range(count):
            file = root / "images" / split / f"class-{number % 3}" / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(jpeg(number + 100 * (split == "val")))
    pack(str(root / "images"), root / "shards", split="all")
    return root / "shards"


@pytest.fixture
def s3(upstream: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine"))
    monkeypatch.setattr(remote, "PATIENCE", remote.Patience(first=0.01, longest=0.1, timeout=10.0))
    with storage(upstream, monkeypatch, "bucket") as server:
        for file in shards.iterdir():
            server.put(f"bucket/data/{file.name}", file.read_bytes())
        monkeypatch.setattr(remote, "_process", remote._Process())
        yield server
        remote._process.close()  # no thread of this test asks the next one's server


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of the run on disk, without a break."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(["finetune", str(shards), "--out", str(out), *OPTIONS]) == 0
    return load((out / "model.safetensors").read_bytes())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_same_command_on_s3_gives_the_same_model_also_from_a_broken_server(
    s3: Storage, whole: dict[str, torch.Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.faults = [Fault(status=503), Fault(cut=9, path="tar"), Fault(status=500, method="PUT"), Fault(status=503, method="PUT")] * 2
    assert main(["finetune", "s3://bucket/data", "--out", "s3://bucket/runs/a", *OPTIONS, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["model"] == "s3://bucket/runs/a/model.safetensors"
    assert "of-nobody" not in said.out + said.err
    assert not s3.faults
    assert same(load(s3.get("bucket/runs/a/model.safetensors")), whole)
    for key in s3.keys("bucket"):
        assert b"of-nobody" not in s3.get(f"bucket/{key}"), key

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))  # another machine
    facts = vitlab.describe("s3://bucket/runs/a")
    assert facts["file"] == "s3://bucket/runs/a"
    evaluated = vitlab.evaluate("s3://bucket/runs/a/model.safetensors", "s3://bucket/data", split="val")
    assert evaluated.to_json()["top1"]["total"] == 9
    vitlab.report("s3://bucket/runs/a")
    assert s3.get("bucket/runs/a/report.html").startswith(b"<!")
    s3.put("bucket/photos/1.jpg", jpeg(1))
    s3.put("bucket/photos/2.jpg", jpeg(2))
    assert main(["predict", "s3://bucket/runs/a", "s3://bucket/photos", "--out", "s3://bucket/out/predictions.jsonl"]) == 0
    lines = [json.loads(line) for line in s3.get("bucket/out/predictions.jsonl").splitlines()]
    assert [line["name"] for line in lines] == ["s3://bucket/photos/1.jpg", "s3://bucket/photos/2.jpg"]
    assert main(["predict", "s3://bucket/runs/a", "s3://bucket/photos", "--out", "s3://bucket/out/predictions.jsonl"]) == 1
    assert vitlab.watch("s3://bucket/runs/a").to_json()["state"] == "finished"


def test_a_run_that_is_killed_resumes_on_another_machine_bit_exactly(
    s3: Storage, whole: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Path
) -> None:
    command: list[str | Path] = [warm / "vitlab", "finetune", "s3://bucket/data", "--out", "s3://bucket/runs/b", *OPTIONS]
    with processes.started(command, env={"XDG_CACHE_HOME": str(tmp_path / "machine")}) as process:
        processes.eventually(lambda: "runs/b/last" in s3.keys("bucket"), process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    pointer = s3.get("bucket/runs/b/last").decode().strip()
    there = [key for key in s3.keys("bucket") if key.startswith(f"runs/b/{pointer}/")]
    assert any(key.endswith("progress.json") for key in there)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert main(["finetune", "s3://bucket/data", "--out", "s3://bucket/runs/b", *OPTIONS]) == 0
    assert same(load(s3.get("bucket/runs/b/model.safetensors")), whole)


def test_of_two_writers_on_one_folder_one_is_refused(s3: Storage) -> None:
    address = Address("s3://bucket/runs/c")
    first, second = Lease(address, seconds=1.0), Lease(address, seconds=8.0)
    with first.held():
        with pytest.raises(TrainingError, match=r"s3://bucket/runs/c is in use by process"), second.held():
            pass
        first.check()
    with second.held():
        second.check()


def test_an_object_is_created_by_one_of_two(s3: Storage) -> None:
    place = Address("s3://bucket/one")
    s3.faults = [Fault(reset=True, method="PUT")]  # the answer is lost before it is written
    assert remote.create(place, b"first")
    assert not remote.create(place, b"second")
    assert s3.get("bucket/one") == b"first"


def test_a_large_file_is_sent_in_parts_and_verified_by_reading_it_back(s3: Storage, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(2**20) * 101)
    remote.upload(tmp_path / "large", Address("s3://bucket/large"))
    stored = s3.client().head_object(Bucket="bucket", Key="large")
    assert stored["ContentLength"] == 101 * 2**20
    assert "-" in stored["ETag"]  # in parts, so it is no MD5
    assert sum(last - first + 1 for _, first, last in s3.ranges("large")) == 101 * 2**20
