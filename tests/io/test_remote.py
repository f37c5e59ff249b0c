"""Requests are repeated while that may help, and no longer; what arrives is complete and verified; errors say what to do."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from vitlab.errors import DataError, StorageError
from vitlab.io import cache, remote
from vitlab.io.address import Address

A = Address("memory://io/a.bin")


class Server:
    """A file system of one file, which fails as often as it is told; `asked` counts its requests."""

    async_impl = False

    def __init__(self, content: bytes, faults: list[Exception | bytes] | None = None) -> None:
        self.content = content
        self.faults = list(faults or [])
        self.asked = 0

    def _fault(self) -> bytes | None:
        self.asked += 1
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        return fault

    def info(self, path: str) -> dict[str, Any]:
        return {"type": "file", "size": len(self.content), "ETag": '"1"'}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        fault = self._fault()
        return self.content[start:end] if fault is None else fault

    def put_file(self, local: str, path: str) -> None:
        fault = self._fault()
        self.content = Path(local).read_bytes() if fault is None else fault


class StatusError(Exception):
    """As the packages have them: a status, and the address with its secret in the text."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} for https://me:pa55word@host/x?token=pa55word")
        self.status = status


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Server], list[float]]:
    """Let a server answer for all addresses; the pauses between attempts, which take no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def begin(server: Server) -> list[float]:
        pauses: list[float] = []
        monkeypatch.setattr(remote, "_system", lambda address: server)
        monkeypatch.setattr("vitlab.io.remote.time.sleep", pauses.append)
        return pauses

    return begin


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """fsspec's memory, empty, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/io"):
        system.rm("/io", recursive=True)


TEMPORARY = [StatusError(500), StatusError(503), StatusError(429), TimeoutError(), ConnectionResetError(), b"cut", b""]


@pytest.mark.parametrize("fault", TEMPORARY, ids=lambda fault: str(fault)[:12] or type(fault).__name__)
def test_what_may_work_later_is_asked_again(fault: Exception | bytes, serve: Callable[[Server], list[float]]) -> None:
    server = Server(b"0123456789", [fault] * 3)
    pauses = serve(server)
    assert remote.read_range(A, 2, 5) == b"23456"
    assert server.asked == 4
    assert len(pauses) == 3


def test_attempts_are_limited_and_pauses_grow_with_chance(serve: Callable[[Server], list[float]]) -> None:
    server = Server(b"0123456789", [StatusError(503)] * 100)
    pauses = serve(server)
    with pytest.raises(StorageError, match=r"cannot read memory://io/a.bin.*7 times in a row") as caught:
        remote.read_range(A, 0, 5)
    assert server.asked == remote.PATIENCE.attempts == 7
    assert caught.value.hint is not None
    assert all(0.5 <= pause / (0.25 * 2**number) <= 1.5 for number, pause in enumerate(pauses))
    serve(Server(b"", [StatusError(503)] * 100))
    assert remote.PATIENCE.pause(30) <= 1.5 * remote.PATIENCE.longest
    assert len({remote.PATIENCE.pause(1) for _ in range(10)}) > 1


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (FileNotFoundError(), DataError, "does not exist"),
        (PermissionError("Forbidden"), StorageError, "access is denied"),
        (StatusError(401), StorageError, "access is denied"),
        (StatusError(404), DataError, "does not exist"),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate credentials"), StorageError, "no credentials for memory"),
        (ValueError("odd"), StorageError, "odd"),
    ],
)
def test_what_will_not_work_later_is_asked_once(
    fault: Exception, error: type[Exception], words: str, serve: Callable[[Server], list[float]]
) -> None:
    server = Server(b"0123456789", [fault] * 9)
    pauses = serve(server)
    with pytest.raises(error, match=words):
        remote.read_range(A, 0, 5)
    assert server.asked == 1
    assert not pauses


@pytest.mark.parametrize("status", [500, 403, 418])
def test_no_secret_is_in_an_error_or_its_causes(status: int, serve: Callable[[Server], list[float]]) -> None:
    serve(Server(b"0123456789", [StatusError(status)] * 9))
    with pytest.raises(StorageError) as caught:
        remote.read_range(Address("https://me:pa55word@host/x?token=pa55word"), 0, 5)
    fault: BaseException | None = caught.value
    assert fault is not None
    assert fault.__cause__ is None
    assert fault.__suppress_context__
    assert "pa55word" not in f"{fault} {fault!r}"


def test_a_server_that_sends_whole_files_is_refused(serve: Callable[[Server], list[float]]) -> None:
    serve(Server(b"0123456789", [b"0123456789"]))
    with pytest.raises(StorageError, match="whole files instead of ranges"):
        remote.read_range(A, 0, 5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges (offset, length) that the server is asked for, from now on."""
    found: list[tuple[int, int]] = []
    plain = remote.read_range

    def read_range(address: Address, offset: int, length: int, *, begun: None) -> bytes:
        found.append((offset, length))
        return plain(address, offset, length)

    monkeypatch.setattr(remote, "read_range", read_range)
    return found


def stamp(address: Address = A) -> remote.Stamp:
    found = remote.info(address)
    assert found is not None
    return found.stamp


def cached(tmp_path: Path) -> list[Path]:
    return sorted(entry for entry in (tmp_path / "cache").rglob("*") if entry.is_file())


def test_a_range_is_read_once_and_again_if_its_copy_is_damaged(memory: Any, tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    memory.pipe_file("/io/a.bin", bytes(range(200)))
    file = remote.RemoteFile(A, stamp())
    assert file.read(10, 50) == file.read(10, 50) == bytes(range(10, 60))
    assert asked == [(10, 50)]
    [block] = cached(tmp_path)
    block.write_bytes(block.read_bytes()[:-1] + b"?")
    assert file.read(10, 50) == bytes(range(10, 60))
    assert asked == [(10, 50)] * 2
    assert file.read(190, 50) == bytes(range(190, 200))


@pytest.fixture
def blocks(memory: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[remote.RemoteFile]:
    """A file of 230 different bytes that is read in blocks of 100."""
    monkeypatch.setattr(remote, "_BLOCK", 100)
    monkeypatch.setattr(remote, "_process", remote._Process())
    memory.pipe_file("/io/a.bin", bytes(range(230)))
    yield remote.RemoteFile(A, stamp(), blocks=True)
    remote._process.close()


def test_each_block_is_asked_for_once_whatever_is_read_and_expected(
    blocks: remote.RemoteFile, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = [(offset, length) for offset in (0, 7, 99, 100, 150, 229) for length in (0, 1, 40, 101, 200)]
    blocks.expect(ranges)
    for _ in range(2):
        for offset, length in ranges:
            assert blocks.read(offset, length) == bytes(range(230))[offset : offset + length]
        remote._process.close()
        monkeypatch.setattr(remote, "_process", remote._Process())  # another process
    assert sorted(asked) == [(0, 100), (100, 100), (200, 30)]


def test_blocks_are_expected_in_other_threads_and_an_error_there_reaches_the_reader(
    blocks: remote.RemoteFile, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def read_range(address: Address, offset: int, length: int, *, begun: None) -> bytes:
        threads.append(threading.current_thread().name)
        assert go.wait(60)
        raise StorageError("broken")

    go = threading.Event()
    monkeypatch.setattr(remote, "read_range", read_range)
    blocks.expect([(0, 10), (20, 10)])
    blocks.expect([(30, 10)])
    coming = list(remote._process.coming.values())
    assert len(coming) == 1
    go.set()
    with pytest.raises(StorageError, match="broken"):
        blocks.read(0, 10)
    assert isinstance(coming[0].exception(60), StorageError)
    assert threads[0].startswith("remote")


def test_who_waits_for_a_block_has_it_before_it_is_written(
    blocks: remote.RemoteFile, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    go, write = threading.Event(), cache._written

    def late(path: str, partial: str, handle: int, content: bytes) -> bool:
        assert go.wait(30)
        return write(path, partial, handle, content)

    monkeypatch.setattr(cache, "_written", late)
    blocks.expect([(0, 10), (120, 10)])
    assert blocks.read(5, 50) == bytes(range(5, 55))
    assert blocks.read(110, 20) == bytes(range(110, 130))
    go.set()
    remote._process.close()
    assert sorted(asked) == [(0, 100), (100, 100)]
    assert blocks.read(5, 50) == bytes(range(5, 55))  # from the cache
    assert len(asked) == 2


def test_a_damaged_block_is_fetched_again_and_one_that_does_not_stay_by_exact_ranges(
    blocks: remote.RemoteFile, tmp_path: Path, asked: list[tuple[int, int]]
) -> None:
    assert blocks.read(10, 20) == bytes(range(10, 30))
    [block] = cached(tmp_path)
    block.write_bytes(block.read_bytes()[:-1] + b"?")
    assert blocks.read(20, 20) == bytes(range(20, 40))
    assert asked == [(0, 100)] * 2
    block.unlink()
    assert blocks.read(10, 20) == bytes(range(10, 30))
    assert asked[2:] == [(10, 20)]
    blocks.expect([(90, 20)])
    assert blocks.read(90, 20) == bytes(range(90, 110))
    assert asked[3:] == [(90, 20)]


def test_a_file_that_changes_is_refused_also_in_blocks(blocks: remote.RemoteFile, memory: Any, tmp_path: Path) -> None:
    memory.pipe_file("/io/a.bin", bytes(230))
    with pytest.raises(DataError, match="has changed since it was opened"):
        blocks.read(0, 10)
    assert not cached(tmp_path)


def test_the_fraction_of_data_that_is_kept_is_what_half_of_the_cache_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for gib, expected in (("4", 1.0), ("2", 1.0), ("1", 0.5), ("0", 0.0)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / gib))
        monkeypatch.setenv("VITLAB_REMOTE_CACHE", gib)
        assert remote.fraction_kept(2**30) == expected
        assert remote.fraction_kept(0) == 1.0


@pytest.mark.parametrize("expect", [False, True])
def test_of_data_that_does_not_fit_the_same_part_is_kept_in_every_epoch(
    memory: Any, tmp_path: Path, asked: list[tuple[int, int]], expect: bool
) -> None:
    content = bytes(range(256)) * 8
    memory.pipe_file("/io/a.bin", content)
    file, ranges = remote.RemoteFile(A, stamp(), kept=0.25), [(offset, 8) for offset in range(0, 2048, 8)]
    epochs: list[set[tuple[int, int]]] = []
    for order in (ranges, ranges[::-1], ranges[::2] + ranges[1::2]):
        asked.clear()
        if expect:
            file.expect(order)
        assert all(file.read(offset, length) == content[offset : offset + length] for offset, length in order)
        assert len(asked) == len(set(asked))
        epochs.append(set(asked))
    first, second, third = epochs
    assert first == set(ranges)
    assert second == third  # the rest is asked for again, and never removes what is kept
    assert len(second) == len(ranges) - len(cached(tmp_path))
    assert 0.15 < len(cached(tmp_path)) / len(ranges) < 0.35


def test_a_copy_of_a_file_is_made_again_when_it_is_damaged_or_the_file_changes(memory: Any) -> None:
    memory.pipe_file("/io/a.bin", b"first")
    path = remote.fetch(A)
    assert path.read_bytes() == b"first"
    assert remote.fetch(A) == path
    path.write_bytes(b"wrong")
    assert remote.fetch(A).read_bytes() == b"first"
    memory.pipe_file("/io/a.bin", b"second one")
    assert remote.fetch(A).read_bytes() == b"second one"


def test_a_file_that_arrives_cut_is_sent_again_and_one_that_never_arrives_is_an_error(
    tmp_path: Path, serve: Callable[[Server], list[float]]
) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    server = Server(b"", [b"012", b"01234x6789"])
    serve(server)
    remote.upload(tmp_path / "x", A)
    assert server.content == b"0123456789"
    serve(Server(b"", [b"012"] * 100))
    with pytest.raises(StorageError, match=r"cannot write .*3 of 10 bytes"):
        remote.upload(tmp_path / "x", A)


def test_one_of_several_creators_succeeds_and_a_repeated_attempt_counts_as_the_same(memory: Any) -> None:
    assert remote.create(A, b"one")
    assert not remote.create(A, b"two")
    assert remote.create(A, b"one")  # the answer to the first attempt was lost
    assert memory.cat_file("/io/a.bin") == b"one"


def test_results_arrive_when_the_block_succeeds_and_not_otherwise(memory: Any) -> None:
    with remote.staged(A) as path:
        path.write_bytes(b"result")
        assert not memory.exists("/io/a.bin")
    assert memory.cat_file("/io/a.bin") == b"result"
    with pytest.raises(DataError, match="exists already"), remote.staged(A):
        pass

    def fail() -> None:
        with remote.staged(A, overwrite=True) as path:
            path.write_bytes(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert memory.cat_file("/io/a.bin") == b"result"
    folder = Address("memory://io/folder")
    with remote.staged(folder) as path:
        (path / "in").mkdir(parents=True)
        (path / "in" / "x").write_bytes(b"x")
    assert memory.cat_file("/io/folder/in/x") == b"x"


@pytest.mark.parametrize(
    ("scheme", "package", "hint"),
    [
        ("s3", "s3fs", "vitlab[cloud]"),
        ("gs", "gcsfs", "pip install gcsfs"),
        ("az", "adlfs", "pip install adlfs"),
        ("hf", "huggingface_hub", "pip install huggingface_hub"),
        ("https", "aiohttp", "vitlab[cloud]"),
        ("s3", "fsspec", "vitlab[cloud]"),
    ],
)
def test_a_missing_package_is_named(scheme: str, package: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    monkeypatch.setattr(remote, "_process", remote._Process())
    with pytest.raises(StorageError, match=f"addresses need {package}") as caught:
        remote.info(Address(f"{scheme}://bucket/x"))
    assert hint in str(caught.value.hint)
