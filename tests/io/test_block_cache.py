"""The cache of blocks: what it gives is what was put, it stays within its limit, and a damaged block is missing."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from vitlab.errors import ConfigError
from vitlab.io.block_cache import BlockCache, default_limit


def used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_a_block_comes_back_also_in_another_process(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 2**30)
    cache.put("a", b"content")
    other: BlockCache = pickle.loads(pickle.dumps(cache))
    assert cache.get("a") == other.get("a") == b"content"
    assert cache.get("b") is None


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:-1] + b"x", lambda data: b"", lambda data: b"x" + data[1:]]
)
def test_a_damaged_block_is_missing_and_can_be_put_again(tmp_path: Path, damage: object) -> None:
    cache = BlockCache(tmp_path, 2**30)
    cache.put("a", b"content")
    [file] = [file for file in tmp_path.rglob("*") if file.is_file()]
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    assert cache.get("a") is None
    assert not file.exists()
    cache.put("a", b"content")
    assert cache.get("a") == b"content"


def test_the_limit_holds_and_the_block_used_longest_ago_goes_first(tmp_path: Path) -> None:
    limit = 64 * 600
    cache = BlockCache(tmp_path, limit)
    for number in range(1200):
        cache.put(f"block {number}", bytes(84))
    assert limit / 2 < used(tmp_path) <= limit
    kept = [number for number in range(1200) if cache.get(f"block {number}") is not None]
    assert sum(kept) / len(kept) > 600  # the mean of all is 599.5
    old = [file for file in tmp_path.rglob("*") if file.is_file()]
    for file in old:
        os.utime(file, (1, 1))
    for number in range(1200, 3000):
        cache.put(f"block {number}", bytes(84))
    assert not any(file.exists() for file in old)


def test_two_processes_exceed_the_limit_by_two_tenths_at_most(tmp_path: Path) -> None:
    limit = 64 * 2000
    caches = [BlockCache(tmp_path, limit) for _ in range(2)]
    for number in range(1600):
        caches[number % 2].put(f"block {number}", bytes(184))
        if number % 500 == 0:
            assert used(tmp_path) <= limit * 1.2


def test_a_limit_of_zero_keeps_nothing_and_a_block_too_large_is_not_kept(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, 0)
    cache.put("a", b"content")
    assert cache.get("a") is None
    cache = BlockCache(tmp_path, 64 * 100)
    cache.put("a", bytes(101))
    assert used(tmp_path) == 0


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = BlockCache(tmp_path / "file", 2**20)
    cache.put("a", b"content")
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
