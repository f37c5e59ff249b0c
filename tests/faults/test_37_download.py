"""A download is wrong, short, broken off or too large for the disk: nothing has the file's name, and tries have an end."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.data.test_download import CONTENT, HASTY, ONCE, SUM, left_in, remote
from tests.web_server import Served, serving
from vitlab.data.catalog.download import download
from vitlab.errors import DataError


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_bad_hash_leaves_nothing_and_names_both_sums(tmp_path: Path, algorithm: str) -> None:
    wrong = "0" * hashlib.new(algorithm).digest_size * 2
    with serving(Served(CONTENT)) as server, pytest.raises(DataError) as caught:
        download(remote(server.address, checksum=f"{algorithm}:{wrong}"), tmp_path / "file.bin", patience=HASTY)
    assert hashlib.new(algorithm, CONTENT).hexdigest() in caught.value.message
    assert wrong in caught.value.message
    assert left_in(tmp_path) == set()
    assert len(server.asked) == 1, "a whole file that is wrong would be wrong again"


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_breaks_is_gone_on_with_from_where_it_broke(tmp_path: Path, reset: bool) -> None:
    with serving(Served(CONTENT, cut=300_000, reset=reset, bad_answers=2)) as server:
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    if not reset:  # a reset may take bytes with it that were already on their way
        assert [asked.get("Range") for asked in server.asked] == [None, "bytes=300000-", "bytes=600000-"]
        assert [asked.get("If-Range") for asked in server.asked] == [None, '"one"', '"one"']


def test_a_short_body_is_never_taken_for_the_file(tmp_path: Path) -> None:
    with serving(Served(CONTENT, ranges=False, cut=1000, bad_answers=99)) as server, pytest.raises(DataError) as caught:
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert "ended after 1,000 of 1,048,576 bytes" in caught.value.message
    assert server.address in str(caught.value.hint)
    assert "file.bin" not in left_in(tmp_path)
    assert len(server.asked) == HASTY.attempts


def test_a_body_without_a_length_is_held_to_the_size_that_is_known(tmp_path: Path) -> None:
    with serving(Served(CONTENT[:-1], length=False)) as server, pytest.raises(DataError, match="ended after"):
        download(remote(server.address), tmp_path / "file.bin", patience=ONCE)
    assert "file.bin" not in left_in(tmp_path)


def test_a_body_longer_than_it_should_be_is_refused(tmp_path: Path) -> None:
    with serving(Served(CONTENT + b"more", length=False)) as server, pytest.raises(DataError, match="more than 1,048,576"):
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert "file.bin" not in left_in(tmp_path)


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_file_that_is_not_there_is_not_asked_for_again(tmp_path: Path, status: int) -> None:
    with serving(Served(CONTENT, status=status, bad_answers=99)) as server, pytest.raises(DataError, match=str(status)):
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert len(server.asked) == 1
    assert left_in(tmp_path) == set()


@pytest.mark.parametrize("status", [503, 429])
def test_a_busy_server_is_asked_again_and_not_for_ever(tmp_path: Path, status: int) -> None:
    with serving(Served(CONTENT, status=status, retry_after="0", bad_answers=1)) as server:
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert len(server.asked) == 2
    with serving(Served(CONTENT, status=status, bad_answers=99)) as server, pytest.raises(DataError, match="3 tries"):
        download(remote(server.address), tmp_path / "other.bin", patience=HASTY)
    assert len(server.asked) == HASTY.attempts


def test_a_full_disk_leaves_nothing_under_the_name_and_keeps_what_came(tmp_path: Path) -> None:
    script = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from vitlab.data.catalog.download import download\nfrom vitlab.data.catalog.sets import RemoteFile\n"
        "from vitlab.errors import DataError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
        "file = RemoteFile(name='file.bin', addresses=(sys.argv[1],), size=int(sys.argv[2]), checksum=sys.argv[3])\n"
        "try:\n    download(file, Path(sys.argv[4]))\n"
        "except DataError as fault:\n    print(fault.message); print(fault.hint)\n"
    )
    with serving(Served(CONTENT)) as server:
        words = [server.address, str(len(CONTENT)), SUM, str(tmp_path / "file.bin")]
        done = processes.run([sys.executable, "-c", script, *words])
        assert "too full for file.bin" in done.stdout
        assert "1,048,576 more bytes are needed" in done.stdout
        assert done.stderr == ""
        assert left_in(tmp_path) == {".file.bin.partial", ".file.bin.partial.json"}
        assert (tmp_path / ".file.bin.partial").read_bytes() == CONTENT[:400_000]
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)  # the disk has room again
    assert server.asked[1]["Range"] == "bytes=400000-"
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_file_larger_than_the_disk_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    with serving(Served(CONTENT, announced=2**60)) as server, pytest.raises(DataError, match="too full"):
        download(remote(server.address, size=2**60), tmp_path / "file.bin", patience=HASTY)
    assert left_in(tmp_path) == set()
