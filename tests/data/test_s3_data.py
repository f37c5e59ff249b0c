"""Datasets on a real S3-compatible server, which is slow, busy or broken: the same batches, and each rank reads its own bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.data.containers import as_tar, as_zip
from tests.s3 import Fault, Storage, jpeg, moto_server, storage
from vitlab.config.data import Augment, DecodeLimits, LoaderConfig, WorkerKind
from vitlab.data.dataset import ImageDataset, Pixels
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.sampler import Share
from vitlab.data.transforms import training_pipeline
from vitlab.errors import DataError, StorageError
from vitlab.io import remote

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")
pytestmark = pytest.mark.cluster

SIZE = (16, 16)
ALL = "s3://data/set/{train-000,train-001,val-000}.tar"  # it declares a val split, so none has to be made of what the images hold


def on_disk(shards: Path) -> str:
    return f"{shards}/{{train-000,train-001,val-000}}.tar"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards for training and one for validation, on disk."""
    folder = tmp_path_factory.mktemp("shards")
    for place, (name, count) in enumerate([("train-000", 24), ("train-001", 24), ("val-000", 12)]):
        files = {}
        for number in range(count):
            files[f"{number:04d}.jpg"] = jpeg(100 * place + number)
            files[f"{number:04d}.cls"] = str(number % 3).encode()
        as_tar(folder / f"{name}.tar", files)
    as_zip(folder / "images.zip", {f"{number % 3}/{number}.jpg": jpeg(number) for number in range(12)})
    return folder


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with moto_server() as address:
        yield address


@pytest.fixture
def s3(upstream: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """The server with the shards; an empty cache; short pauses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PATIENCE", remote.Patience(first=0.01, longest=0.1, timeout=5.0))
    with storage(upstream, monkeypatch, "data") as server:
        for file in shards.iterdir():
            server.put(f"data/set/{file.name}", file.read_bytes())
        monkeypatch.setattr(remote, "_process", remote._Process())
        yield server
        remote._process.close()  # no thread of this test asks the next one's server


def loader(data: str, *, rank: int = 0, ranks: int = 1, workers: int = 0, kind: WorkerKind = "thread") -> Loader:
    config = LoaderConfig(batch_size=8, seed=7, workers=workers, worker_kind=kind, timeout=60.0)
    pipeline = training_pipeline(Augment(image_size=SIZE), channels=3, limits=DecodeLimits())
    return Loader(open_dataset(data, split="train"), pipeline, config=config, train=True, share=Share(rank=rank, ranks=ranks))


def batches(data: str, count: int, *, position: int = 0, workers: int = 0, kind: WorkerKind = "thread") -> list[Pixels]:
    with loader(data, workers=workers, kind=kind) as made, made.batches(position) as stream:
        return [next(stream).images_BHWC for _ in range(count)]


def test_batches_from_a_slow_server_are_those_from_disk_from_any_position(s3: Storage, shards: Path) -> None:
    s3.latency = 0.005
    ours, theirs = (
        batches("s3://data/set/train-{000..001}.tar::s3://data/set/val-000.tar", 9, workers=2),
        batches(on_disk(shards), 9),
    )
    assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))
    later = batches(ALL, 4, position=5 * 8)
    assert all(np.array_equal(one, other) for one, other in zip(later, theirs[5:], strict=True))


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(status=500, code="InternalError", path="tar")] * 3,
        [Fault(status=503, path="tar")] * 5,
        [Fault(cut=50, path="tar")] * 3,
        [Fault(cut=0, path="tar")] * 3,
        [Fault(reset=True, path="tar")] * 3,
        [Fault(status=429, code="TooManyRequests", path="tar"), Fault(status=500, path="tar"), Fault(cut=10, path="tar")],
        [Fault(status=503, method="HEAD", path="tar")] * 3,
    ],
    ids=["500", "503", "cut", "empty", "reset", "mixed", "503 of HEAD"],
)
def test_a_busy_or_broken_server_changes_no_bit(s3: Storage, shards: Path, faults: list[Fault]) -> None:
    s3.faults = list(faults)
    ours, theirs = batches(ALL, 7), batches(on_disk(shards), 7)
    assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert not s3.faults


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(status=503, path="tar"), Fault(cut=50, path="tar"), Fault(reset=True, path="tar"), Fault(status=500, path="tar")],
        [Fault(reset=True, path="tar")] * 12,
    ],
    ids=["mixed", "reset"],
)
def test_ranges_that_are_asked_for_together_arrive_from_a_broken_server_too(
    s3: Storage, shards: Path, faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITLAB_REMOTE_CACHE", "0")
    s3.latency = 0.005
    made = loader(ALL, workers=1)
    s3.requests.clear()
    s3.faults = list(faults)
    with made, made.batches() as stream:
        ours = [next(stream).images_BHWC for _ in range(7)]
    assert all(np.array_equal(one, other) for one, other in zip(ours, batches(on_disk(shards), 7), strict=True))
    assert not s3.faults
    assert len(set(s3.ranges(".tar"))) < len(s3.ranges(".tar"))  # what failed was asked for again


def test_a_server_that_stays_broken_ends_the_run_with_a_sentence_and_is_no_broken_image(s3: Storage) -> None:
    made = loader(ALL)
    s3.faults = [Fault(status=503, path="tar")] * 1000
    with made, made.batches() as stream, pytest.raises(DataError, match=r"7 times in a row") as caught:
        next(stream)
    assert "corrupt" not in str(caught.value.hint)


def test_a_server_that_does_not_answer_ends_in_time(s3: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(ALL, split="all")
    monkeypatch.setattr(remote, "PATIENCE", remote.Patience(attempts=2, first=0.01, timeout=0.3))
    s3.faults = [Fault(hang=3.0, path="tar"), Fault(hang=3.0, method="HEAD", path="tar")] * 4
    with pytest.raises(StorageError, match="2 times in a row"):
        dataset.read(0)


def overlap(one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
    return one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]


def test_no_rank_reads_the_bytes_of_another(s3: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_REMOTE_CACHE", "0")  # so data does not fit, and is read by exact ranges
    whole = open_dataset(ALL, split="train")
    assert isinstance(whole, ImageDataset)
    read: list[list[tuple[str, int, int]]] = []
    for rank in range(2):
        made = loader(ALL, rank=rank, ranks=2)
        s3.requests.clear()
        with made, made.batches() as stream:
            picked = [int(index) for _ in range(3) for index in next(stream).index_B]
        ranges = s3.ranges(".tar")
        assert len(ranges) == len(picked) == 12  # one request an image, and nothing else
        sizes = {len(whole.read(index).content) for index in picked}
        assert {last - first + 1 for _, first, last in ranges} == sizes
        read.append(ranges)
    assert not any(overlap(one, other) for one in read[0] for other in read[1])


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_ranks_and_workers_of_a_machine_ask_for_each_block_once(
    s3: Storage, monkeypatch: pytest.MonkeyPatch, shards: Path, kind: WorkerKind
) -> None:
    if kind == "thread":  # worker processes have blocks of the usual size, of which a shard is one
        monkeypatch.setattr(remote, "_BLOCK", 8192)
    s3.latency = 0.01
    workers = 2 if kind == "thread" else 1
    loaders = [loader(ALL, rank=rank, ranks=2, workers=workers, kind=kind) for rank in range(2)]
    s3.requests.clear()
    ours: list[list[Pixels]] = [[], []]
    with loaders[0] as first, loaders[1] as second, first.batches() as one, second.batches() as other:
        for _ in range(6):
            ours[0].append(next(one).images_BHWC)
            ours[1].append(next(other).images_BHWC)
    theirs = batches(on_disk(shards), 6)
    assert all(np.array_equal(np.concatenate(rows), batch) for rows, batch in zip(zip(*ours, strict=True), theirs, strict=True))
    ranges = s3.ranges(".tar")
    assert len(ranges) >= 2
    assert len(set(ranges)) == len(ranges) < 48
    assert not any(overlap(a, b) for number, a in enumerate(ranges) for b in ranges[:number])


def test_a_second_epoch_comes_from_the_cache_and_a_damaged_block_from_the_server(
    s3: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_BLOCK", 8192)
    first = batches(ALL, 6)
    asked = s3.ranges(".tar")
    s3.requests.clear()
    assert all(np.array_equal(one, other) for one, other in zip(first, batches(ALL, 6), strict=True))
    assert not s3.ranges(".tar")
    blocks = sorted(file for file in (tmp_path / "cache" / "vitlab" / "remote").rglob("*") if file.is_file())
    assert 2 < len(blocks) <= len(asked) < 48
    blocks[1].write_bytes(blocks[1].read_bytes()[:-3] + b"???")
    assert all(np.array_equal(one, other) for one, other in zip(first, batches(ALL, 6), strict=True))
    assert len(s3.ranges(".tar")) == 1


def test_data_larger_than_the_cache_is_read_by_exact_ranges_and_the_limit_holds(
    s3: Storage, tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = sum((shards / f"{name}.tar").stat().st_size for name in ("train-000", "train-001", "val-000"))
    limit = sizes // 2
    monkeypatch.setenv("VITLAB_REMOTE_CACHE", str(limit / 2**30))
    made = loader(ALL)
    s3.requests.clear()
    with made, made.batches() as stream:
        ours = [next(stream).images_BHWC for _ in range(9)]
    assert all(np.array_equal(one, other) for one, other in zip(ours, batches(on_disk(shards), 9), strict=True))
    assert 48 <= len(s3.ranges(".tar")) <= 72
    assert all(last - first < 3000 for _, first, last in s3.ranges(".tar"))
    kept = [file.stat().st_size for file in (tmp_path / "cache" / "vitlab" / "remote").rglob("*") if file.is_file()]
    assert 0 < sum(kept) <= limit * 1.1


def test_a_zip_and_a_folder_are_read_with_one_request_an_image(s3: Storage, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_REMOTE_CACHE", "0")
    for number in range(6):
        s3.put(f"data/folder/{number % 2}/{number}.jpg", jpeg(number))
    for spec, count in (("s3://data/set/images.zip", 12), ("s3://data/folder", 6)):
        dataset = open_dataset(spec, split="all")
        s3.requests.clear()
        contents = [dataset.read(index).content for index in range(count)]
        assert len([one for one in s3.requests if one.method == "GET" and not one.query.startswith("list")]) == count
        assert sorted(contents) == sorted(jpeg(number) for number in range(count))


def test_a_zip_that_fits_the_cache_is_read_in_blocks(s3: Storage, shards: Path) -> None:
    dataset = open_dataset("s3://data/set/images.zip", split="all")
    s3.requests.clear()
    assert sorted(dataset.read(index).content for index in range(12)) == sorted(jpeg(number) for number in range(12))
    assert len(s3.ranges("images.zip")) == 1


def test_missing_credentials_a_missing_bucket_and_a_missing_key_are_told_apart_without_a_secret(
    s3: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spec in ("s3://no-such-bucket/x.tar", "s3://data/no-such-key.tar"):
        with pytest.raises(DataError, match=rf"{spec} does not exist"):
            open_dataset(spec)
    s3.faults = [Fault(status=403, code="AccessDenied", method="HEAD")]
    with pytest.raises(StorageError, match="access is denied") as denied:
        open_dataset("s3://data/set/train-000.tar")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(remote, "_process", remote._Process())
    with pytest.raises(StorageError, match="there are no credentials for s3") as missing:
        open_dataset("s3://data/set/train-000.tar")
    for error in (denied, missing):
        assert "AWS_ACCESS_KEY_ID" in str(error.value.hint)
        assert "of-nobody" not in str(error.value)


def test_worker_processes_read_from_the_server_too(s3: Storage, shards: Path) -> None:
    s3.latency = 0.005
    ours = batches(ALL, 7, workers=2, kind="process")
    assert all(np.array_equal(one, other) for one, other in zip(ours, batches(on_disk(shards), 7), strict=True))


def test_shards_on_a_web_server_are_read_by_ranges_and_a_token_is_not_printed(s3: Storage, shards: Path) -> None:
    s3.client().put_object_acl(Bucket="data", Key="set/val-000.tar", ACL="public-read")
    address = f"{s3.address}/data/set/val-000.tar?token=of-nobody"
    ours, theirs = open_dataset(f"shards:{address}", split="all"), open_dataset(str(shards / "val-000.tar"), split="all")
    assert ours.fingerprint() == theirs.fingerprint()
    ranges = s3.ranges("val-000.tar")
    assert all(first < last < (shards / "val-000.tar").stat().st_size for _, first, last in ranges)
    assert isinstance(ours, ImageDataset)
    assert "of-nobody" not in ours.name(0)
    assert "token=***" in ours.name(0)
