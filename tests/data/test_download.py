"""A download: whole and verified under its name, or nothing there and a reason told."""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.data.web_server import Served, serving
from vitlab.data.download import Patience, download, take
from vitlab.data.public_set import RemoteFile
from vitlab.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
HASTY = Patience(attempts=3, wait=0.01, timeout=5)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def remote(*addresses: str, size: int | None = len(CONTENT), checksum: str | None = SUM) -> RemoteFile:
    return RemoteFile(name="file.bin", addresses=addresses, size=size, checksum=checksum, said_by="a test")


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_arrives_is_what_was_served(tmp_path: Path) -> None:
    with serving(Served(CONTENT)) as server:
        digest = download(remote(server.address), tmp_path / "new" / "file.bin", patience=HASTY)
    assert (tmp_path / "new" / "file.bin").read_bytes() == CONTENT
    assert f"sha256:{digest}" == SUM
    assert left_in(tmp_path / "new") == {"file.bin"}


def test_progress_is_told_from_nothing_to_all_of_it(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    with serving(Served(CONTENT)) as server:
        download(remote(server.address), tmp_path / "file.bin", tell=lambda *step: told.append(step))
    fetched = [step for step in told if step[0] == "downloading file.bin"]
    assert [fetched[0][1], fetched[-1][1]] == [0, len(CONTENT)]
    assert [done for _, done, _ in fetched] == sorted(done for _, done, _ in fetched)
    assert {total for _, _, total in told} == {len(CONTENT)}


def test_a_new_file_has_the_mode_of_new_files(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with serving(Served(CONTENT)) as server:
        download(remote(server.address), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_bad_hash_leaves_nothing_and_names_both_sums(tmp_path: Path, algorithm: str) -> None:
    wrong = f"{algorithm}:{'0' * hashlib.new(algorithm).digest_size * 2}"
    with serving(Served(CONTENT)) as server, pytest.raises(DataError, match="0000, ") as caught:
        download(remote(server.address, checksum=wrong) if algorithm == "" else remote(server.address, checksum=wrong),
                 tmp_path / "file.bin")  # fmt: skip
    assert hashlib.new(algorithm, CONTENT).hexdigest() in caught.value.message
    assert left_in(tmp_path) == set()
    assert len(server.asked) == 1, "a whole file that is wrong would be wrong again"


def test_a_connection_that_breaks_is_gone_on_with_from_where_it_broke(tmp_path: Path) -> None:
    with serving(Served(CONTENT, cut=300_000, bad_answers=2)) as server:
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [asked.get("Range") for asked in server.asked] == [None, "bytes=300000-", "bytes=600000-"]
    assert [asked.get("If-Range") for asked in server.asked] == [None, '"one"', '"one"']


def test_a_reset_is_gone_on_with_too(tmp_path: Path) -> None:
    with serving(Served(CONTENT, cut=300_000, reset=True, bad_answers=1)) as server:
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_short_body_is_never_taken_for_the_file(tmp_path: Path) -> None:
    with serving(Served(CONTENT, ranges=False, cut=1000, bad_answers=99)) as server, pytest.raises(DataError) as caught:
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert "ended after 1,000 of 1,048,576 bytes" in caught.value.message
    assert server.address in str(caught.value.hint)
    assert not (tmp_path / "file.bin").exists()
    assert len(server.asked) == 1 + HASTY.attempts - 1


def test_a_server_without_ranges_is_asked_for_all_of_it_again(tmp_path: Path) -> None:
    with serving(Served(CONTENT, ranges=False, cut=300_000, bad_answers=1)) as server:
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_a_later_call_goes_on_with_what_an_earlier_one_left(tmp_path: Path) -> None:
    with serving(Served(CONTENT, cut=500_000, bad_answers=1)) as server:
        with pytest.raises(DataError):
            download(remote(server.address), tmp_path / "file.bin", patience=Patience(attempts=1))
        assert left_in(tmp_path) == {".file.bin.partial", ".file.bin.partial.json"}
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked[1]["Range"] == "bytes=500000-"
    assert left_in(tmp_path) == {"file.bin"}


@pytest.mark.parametrize("told", [{"etag": '"two"'}, {"etag": None, "modified": "Tue, 04 Jan 2022 00:00:00 GMT"}])
def test_a_file_that_changed_meanwhile_is_begun_again(tmp_path: Path, told: dict[str, str]) -> None:
    other = CONTENT[::-1]
    known = remote("", size=None, checksum=None)
    with serving(Served(other, cut=500_000, bad_answers=1)) as server:
        with pytest.raises(DataError):
            download(RemoteFile(**{**_fields(known), "addresses": (server.address,)}), tmp_path / "file.bin",
                     patience=Patience(attempts=1))  # fmt: skip
        server.content, server.etag = CONTENT, told["etag"]
        server.modified = told.get("modified")
        download(RemoteFile(**{**_fields(known), "addresses": (server.address,)}), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def _fields(file: RemoteFile) -> dict[str, object]:
    return {name: getattr(file, name) for name in file.__dataclass_fields__}
