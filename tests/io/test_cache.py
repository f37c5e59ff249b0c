"""The cache of blocks: what it gives is what was put, it stays within its limit, and a damaged block is missing."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import processes
from tests.processes import eventually
from vitlab.errors import ConfigError
from vitlab.io.cache import BlockCache, default_limit

PATIENCE = 60.0


def used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def put(cache: BlockCache, key: str, content: bytes) -> None:
    assert cache.fill(key, lambda: content) == content


def refuse() -> bytes:
    raise AssertionError("it is there and is not fetched")


def only_file(folder: Path) -> Path:
    [file] = [file for file in folder.rglob("*") if file.is_file()]
    return file


def test_a_block_comes_back_also_in_another_process_whole_and_in_parts(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 2**30)
    put(cache, "a", b"content")
    other: BlockCache = pickle.loads(pickle.dumps(cache))
    assert cache.get("a") == other.get("a") == other.fill("a", refuse) == b"content"
    assert cache.get("a", 2, 3) == cache.get("a", 2, 3) == b"nte"
    assert cache.get("a", 2, 100) == cache.get("a", 2, 100) == b"ntent"
    assert cache.get("b") is None
    assert "a" in other
    assert "b" not in other


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:-1] + b"x", lambda data: b"", lambda data: b"x" + data[1:]]
)
@pytest.mark.parametrize("part", [False, True])
def test_a_damaged_block_is_missing_and_can_be_put_again(tmp_path: Path, damage: object, part: bool) -> None:
    def read() -> bytes | None:
        return cache.get("a", 0, 7) if part else cache.get("a")

    cache = BlockCache(tmp_path, 2**30)
    put(cache, "a", b"content")
    assert read() == b"content"
    file = only_file(tmp_path)
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    assert read() is None
    assert not file.exists()
    put(cache, "a", b"content")
    assert read() == b"content"


def test_a_block_that_is_read_in_parts_is_verified_once_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(BlockCache(tmp_path, 2**30), "a", b"content")
    cache = BlockCache(tmp_path, 2**30)
    assert not cache.is_verified("a")
    assert cache.get("a", 0, 3) == b"con"
    assert cache.is_verified("a")
    monkeypatch.setattr("vitlab.io.cache.zlib.crc32", None)
    assert cache.get("a", 3, 4) == b"tent"
    mine = BlockCache(tmp_path / "mine", 2**30)
    monkeypatch.undo()
    mine.fill("a", lambda: b"content", parts=True)
    assert mine.is_verified("a")


def test_the_limit_holds_and_the_block_used_longest_ago_goes_first(tmp_path: Path) -> None:
    limit = 600 * 100
    cache = BlockCache(tmp_path, limit)
    for number in range(1200):
        put(cache, f"block {number}", bytes(96))
    assert limit / 2 < used(tmp_path) <= limit * 1.1
    kept = [number for number in range(1200) if f"block {number}" in cache]
    assert sum(kept) / len(kept) > 600  # the mean of all is 599.5
    old = [file for file in tmp_path.rglob("*") if file.is_file()]
    for file in old:
        os.utime(file, (1, 1))
    recent = kept[0]
    assert cache.get(f"block {recent}") is not None
    for number in range(1200, 1600):
        put(cache, f"block {number}", bytes(96))
    assert f"block {recent}" in cache
    assert sum(file.exists() for file in old) < len(old) / 2


def test_two_processes_exceed_the_limit_by_two_tenths_at_most(tmp_path: Path) -> None:
    limit = 64 * 2000
    caches = [BlockCache(tmp_path, limit) for _ in range(2)]
    for number in range(1600):
        put(caches[number % 2], f"block {number}", bytes(184))
        if number % 500 == 0:
            assert used(tmp_path) <= limit * 1.2


def test_a_limit_of_zero_keeps_nothing_and_a_block_too_large_is_not_kept(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 0)
    put(cache, "a", b"content")
    assert cache.get("a") is None
    assert "a" not in cache
    cache = BlockCache(tmp_path, 1000)
    put(cache, "a", bytes(101))
    assert used(tmp_path) == 0
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = BlockCache(tmp_path / "file", 2**20)
    put(cache, "a", b"content")
    assert cache.get("a") is None


def test_one_of_several_fetches_a_block_and_the_others_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = [BlockCache(tmp_path, 2**30) for _ in range(4)]
    asked: list[int] = []
    waiting: set[int] = set()
    all_wait = threading.Event()

    def sleep(seconds: float) -> None:
        waiting.add(threading.get_ident())
        if len(waiting) == 3:
            all_wait.set()

    def fetch() -> bytes:
        asked.append(1)
        assert all_wait.wait(PATIENCE)
        return b"content"

    monkeypatch.setattr("vitlab.io.cache.time.sleep", sleep)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(cache.fill, "a", fetch) for cache in caches]
        assert [answer.result(PATIENCE) for answer in answers] == [b"content"] * 4
    assert len(asked) == 1
    assert only_file(tmp_path).name.isalnum()


def test_after_a_fetch_that_fails_the_next_one_fetches(tmp_path: Path) -> None:
    caches = [BlockCache(tmp_path, 2**30) for _ in range(2)]
    waiting, go = threading.Event(), threading.Event()

    def fail() -> bytes:
        waiting.set()
        assert go.wait(PATIENCE)
        raise KeyError

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(caches[0].fill, "a", fail)
        assert waiting.wait(PATIENCE)
        second = pool.submit(caches[1].fill, "a", lambda: b"content")
        go.set()
        assert isinstance(first.exception(PATIENCE), KeyError)
        assert second.result(PATIENCE) == b"content"
    assert caches[0].get("a") == b"content"
    assert only_file(tmp_path).name.isalnum()


def test_a_process_that_fetches_for_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.io.cache._LONGEST_WAIT", 0.0)
    cache, other = BlockCache(tmp_path, 2**30), BlockCache(tmp_path, 2**30)

    def fetch() -> bytes:
        put(other, "a", b"content")  # while the first one holds the block
        assert other.get("a") is None
        return b"content"

    assert cache.fill("a", fetch) == b"content"
    assert cache.get("a") == b"content"


def test_what_a_killed_process_left_is_no_block_and_stops_nobody(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 2**30)
    put(cache, "a", b"content")
    block = only_file(tmp_path)
    half = block.rename(block.with_name(f".{block.name}"))
    half.write_bytes(block.name.encode() * 10)
    assert cache.get("a") is None
    put(cache, "a", b"content")
    assert cache.get("a") == b"content"
    assert only_file(tmp_path) == block


FILL = """
import sys
from pathlib import Path
from vitlab.io.cache import BlockCache

cache, diary = BlockCache(Path(sys.argv[1]), 2**30), Path(sys.argv[2])


def fetch() -> bytes:
    with diary.open("a") as file:
        file.write(f"{number}\\n")
    return bytes([number]) * 300_000


for number in eval(sys.argv[3]):
    assert cache.fill(f"block {number}", fetch, parts=True) == bytes([number]) * 300_000
"""


def filled(folder: Path) -> None:
    """Each block is there as it was fetched, or missing; nothing that is read differs."""
    cache = BlockCache(folder, 2**30)
    for number in range(60):
        assert cache.get(f"block {number}", 0, 300_000) in (None, bytes([number]) * 300_000)


def test_a_cache_whose_writer_is_killed_is_used_and_filled_by_the_next(tmp_path: Path) -> None:
    folder, diary = tmp_path / "cache", tmp_path / "diary"
    diary.touch()
    for kills in range(3):
        with processes.started([sys.executable, "-c", FILL, str(folder), str(diary), "range(60)"]) as process:
            eventually(lambda: len(diary.read_text().splitlines()) >= 8 * (kills + 1), process)  # noqa: B023
            process.kill()
            process.wait(PATIENCE)
        filled(folder)
    before = len(diary.read_text().splitlines())
    processes.run([sys.executable, "-c", FILL, str(folder), str(diary), "range(60)"])
    cache = BlockCache(folder, 2**30)
    assert all(cache.get(f"block {number}") == bytes([number]) * 300_000 for number in range(60))
    assert (
        before < len(diary.read_text().splitlines()) <= 60 + 3
    )  # a killed writer loses the block that it was writing, and no other
    assert all(file.name.isalnum() for file in folder.rglob("*") if file.is_file())


def test_two_processes_that_fill_a_cache_at_once_fetch_each_block_once(tmp_path: Path) -> None:
    folder, diary = tmp_path / "cache", tmp_path / "diary"
    words = [sys.executable, "-c", FILL, str(folder), str(diary)]
    with processes.started([*words, "range(60)"]) as one, processes.started([*words, "range(59, -1, -1)"]) as other:
        assert [process.wait(PATIENCE) for process in (one, other)] == [0, 0]
    filled(folder)
    assert sorted(map(int, diary.read_text().splitlines())) == list(range(60))


def test_a_file_of_another_format_under_the_same_name_is_no_block(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 2**30)
    put(cache, "a", b"content")
    only_file(tmp_path).write_bytes(bytes(16) + b"content")
    assert cache.get("a") is None


def test_the_environment_sets_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_REMOTE_CACHE", "1.5")
    assert default_limit(tmp_path / "not" / "there") == 3 * 2**29
    for wrong in ("much", "-1", "nan"):
        monkeypatch.setenv("VITLAB_REMOTE_CACHE", wrong)
        with pytest.raises(ConfigError, match="is not a number of GiB"):
            default_limit(tmp_path)
    monkeypatch.delenv("VITLAB_REMOTE_CACHE")
    assert 0 < default_limit(tmp_path) <= 20 * 2**30
