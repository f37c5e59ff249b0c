"""A download is complete and verified, or there is no file and a reason."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import stat
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from tests import processes
from tests.web_server import Served, serving
from vitlab.data.catalog import download as web
from vitlab.data.catalog.download import Patience, download, take
from vitlab.data.catalog.sets import RemoteFile
from vitlab.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
HASTY = Patience(attempts=3, wait=0.01, timeout=5)
ONCE = Patience(attempts=1)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def remote(*addresses: str, size: int | None = len(CONTENT), checksum: str | None = SUM) -> RemoteFile:
    return RemoteFile(name="file.bin", addresses=addresses, size=size, checksum=checksum, said_by="a test")


def unknown(*addresses: str) -> RemoteFile:
    """A file of which the catalogue knows neither size nor checksum."""
    return remote(*addresses, size=None, checksum=None)


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_arrives_is_what_was_served(tmp_path: Path) -> None:
    with serving(Served(CONTENT)) as server:
        digest = download(remote(server.address), tmp_path / "new" / "file.bin", patience=HASTY)
    assert (tmp_path / "new" / "file.bin").read_bytes() == CONTENT
    assert f"sha256:{digest}" == SUM
    assert left_in(tmp_path / "new") == {"file.bin"}


def test_progress_is_reported_from_nothing_to_all_of_it(tmp_path: Path) -> None:
    found: list[tuple[str, int, int | None]] = []
    with serving(Served(CONTENT)) as server:
        download(remote(server.address), tmp_path / "file.bin", progress=lambda *step: found.append(step))
    counts = [done for what, done, _ in found if what == "downloading file.bin"]
    assert [counts[0], counts[-1]] == [0, len(CONTENT)]
    assert counts == sorted(counts)
    assert {total for _, _, total in found} == {len(CONTENT)}


def test_a_new_file_has_the_mode_of_new_files(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with serving(Served(CONTENT)) as server:
        download(remote(server.address), tmp_path / "file.bin")
    assert (tmp_path / "file.bin").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_length_nobody_knows_needs_a_checksum(tmp_path: Path) -> None:
    with serving(Served(CONTENT, length=False)) as server:
        with pytest.raises(DataError, match="does not give the file's length"):
            download(unknown(server.address), tmp_path / "file.bin", patience=ONCE)
        download(remote(server.address, size=None), tmp_path / "file.bin", patience=ONCE)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_another_size_than_the_catalogs_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    with serving(Served(b"<html>moved</html>")) as server, pytest.raises(DataError, match="offers 18 bytes instead of"):
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert left_in(tmp_path) == set()
    assert len(server.asked) == 1


def test_a_server_without_ranges_is_asked_for_all_of_it_again(tmp_path: Path) -> None:
    with serving(Served(CONTENT, ranges=False, cut=300_000, bad_answers=1)) as server:
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_a_later_call_continues_with_what_an_earlier_one_left(tmp_path: Path) -> None:
    with serving(Served(CONTENT, cut=500_000, bad_answers=1)) as server:
        with pytest.raises(DataError):
            download(remote(server.address), tmp_path / "file.bin", patience=ONCE)
        assert left_in(tmp_path) == {".file.bin.partial", ".file.bin.partial.json"}
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked[1]["Range"] == "bytes=500000-"
    assert left_in(tmp_path) == {"file.bin"}


@pytest.mark.parametrize(("etag", "modified"), [('"two"', None), (None, "Tue, 04 Jan 2022 00:00:00 GMT")])
def test_a_file_that_changed_at_the_server_is_begun_again(tmp_path: Path, etag: str | None, modified: str | None) -> None:
    with serving(Served(CONTENT[::-1], cut=500_000, bad_answers=1)) as server:
        with pytest.raises(DataError):
            download(unknown(server.address), tmp_path / "file.bin", patience=ONCE)
        server.content, server.etag, server.modified = CONTENT, etag, modified
        download(unknown(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_partial_download_without_a_validator_is_not_continued(tmp_path: Path) -> None:
    with serving(Served(CONTENT, etag='W/"weak"', cut=500_000, bad_answers=1)) as server:
        with pytest.raises(DataError):
            download(unknown(server.address), tmp_path / "file.bin", patience=ONCE)
        download(unknown(server.address), tmp_path / "file.bin", patience=ONCE)
    assert "Range" not in server.asked[1]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_beginning_of_something_else_is_found_by_the_checksum_and_begun_again(tmp_path: Path) -> None:
    with serving(Served(CONTENT, cut=500_000, bad_answers=1)) as server:
        with pytest.raises(DataError):
            download(remote(server.address), tmp_path / "file.bin", patience=ONCE)
        (tmp_path / ".file.bin.partial").write_bytes(b"x" * 400_000)
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_file_that_became_shorter_is_begun_again(tmp_path: Path) -> None:
    with serving(Served(CONTENT, cut=500_000, bad_answers=1)) as server:
        with pytest.raises(DataError):
            download(unknown(server.address), tmp_path / "file.bin", patience=ONCE)
        server.content = CONTENT[:1000]
        download(unknown(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT[:1000]


def test_a_download_that_was_stopped_before_it_was_verified_is_not_fetched_again(tmp_path: Path) -> None:
    with serving(Served(CONTENT, cut=1000, bad_answers=1)) as server:
        with pytest.raises(DataError):
            download(remote(server.address), tmp_path / "file.bin", patience=ONCE)
        (tmp_path / ".file.bin.partial").write_bytes(CONTENT)
        download(remote(server.address), tmp_path / "file.bin", patience=ONCE)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_the_next_address_is_asked_where_the_first_has_nothing(tmp_path: Path) -> None:
    with serving(Served(CONTENT, status=404, bad_answers=99)) as first, serving(Served(CONTENT)) as second:
        download(remote(first.address, second.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_machine_without_a_network_is_reported_so_and_what_to_do(tmp_path: Path) -> None:
    with serving(Served(CONTENT)) as server:
        closed = server.address  # nobody listens there once the block has ended
    with pytest.raises(DataError, match="offline") as caught:
        download(remote(closed), tmp_path / "file.bin", patience=HASTY)
    assert f"download {closed} yourself, then give that file to `given`" in str(caught.value.hint)
    assert left_in(tmp_path) == set()


def test_a_redirection_is_followed(tmp_path: Path) -> None:
    with serving(Served(CONTENT)) as target, serving(Served(b"", location=target.address.replace("/file", "/moved"))) as server:
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/file", "data:text/plain,x"])
def test_a_redirection_out_of_http_is_refused(tmp_path: Path, location: str) -> None:
    with serving(Served(CONTENT, location=location)) as server, pytest.raises(DataError, match="not an http address"):
        download(unknown(server.address), tmp_path / "file.bin", patience=HASTY)
    assert left_in(tmp_path) == set()
    assert len(server.asked) == 1


def test_a_redirection_from_https_to_http_is_refused() -> None:
    request, body = urllib.request.Request("https://example.org/file"), io.BytesIO()
    follow = web._Redirections().redirect_request
    with pytest.raises(web.RefusedError, match="plain http"):
        follow(request, body, 302, "Found", http.client.HTTPMessage(), "http://example.org/file")
    followed = follow(request, body, 302, "Found", http.client.HTTPMessage(), "https://example.org/other")
    assert followed is not None
    assert followed.full_url == "https://example.org/other"


def test_a_file_is_on_disk_before_it_has_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, Path.replace

    def recorded_sync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def recorded_rename(path: Path, target: Path) -> Path:
        done.append("name")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(Path, "replace", recorded_rename)
    with serving(Served(CONTENT)) as server:
        download(remote(server.address), tmp_path / "file.bin")
    assert done == ["file", "name", "folder"]


def test_an_address_that_is_not_http_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(CONTENT)
    with pytest.raises(DataError, match="not an http address"):
        download(remote((tmp_path / "secret").as_uri()), tmp_path / "file.bin", patience=HASTY)
    assert left_in(tmp_path) == {"secret"}


def test_a_body_that_was_compressed_on_the_way_is_refused(tmp_path: Path) -> None:
    with serving(Served(CONTENT, encoding="gzip")) as server, pytest.raises(DataError, match="gzip"):
        download(remote(server.address), tmp_path / "file.bin", patience=HASTY)


def test_a_checksum_nobody_published_is_recorded_and_held_to(tmp_path: Path) -> None:
    with serving(Served(CONTENT)) as server:
        download(unknown(server.address), tmp_path / "file.bin")
        assert (tmp_path / "file.bin.sha256").read_text() == f"{SUM.removeprefix('sha256:')}  file.bin\n"
        (tmp_path / "file.bin").unlink()
        server.content = CONTENT[::-1]
        with pytest.raises(DataError, match="is not the expected file"):
            download(unknown(server.address), tmp_path / "file.bin")
    assert left_in(tmp_path) == {"file.bin.sha256"}


def test_a_damaged_record_of_a_checksum_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "file.bin.sha256").write_text("nonsense\n")
    with pytest.raises(DataError, match="no SHA-256"):
        download(unknown("http://127.0.0.1:9/file"), tmp_path / "file.bin")


def test_two_at_once_do_not_write_the_same_file(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(what: str, done: int, total: int | None) -> None:
        inside.set()
        assert go_on.wait(processes.LIMIT)

    with serving(Served(CONTENT)) as server:
        target = tmp_path / "file.bin"
        first = threading.Thread(target=lambda: download(remote(server.address), target, progress=wait))
        first.start()
        assert inside.wait(processes.LIMIT)
        with pytest.raises(DataError, match="another process is downloading"):
            download(remote(server.address), target, patience=HASTY)
        go_on.set()
        first.join(processes.LIMIT)
    assert target.read_bytes() == CONTENT


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be written"):
        download(remote("http://127.0.0.1:9/file"), tmp_path / "taken" / "file.bin", patience=ONCE)


def test_a_file_that_was_fetched_by_other_means_is_verified_and_taken(tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(CONTENT)
    target = tmp_path / "in" / "file.bin"
    assert f"sha256:{take(tmp_path / 'given', remote('http://nowhere.invalid/file'), target)}" == SUM
    assert target.read_bytes() == (tmp_path / "given").read_bytes()
    assert left_in(tmp_path / "in") == {"file.bin"}


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"x", b""])
def test_another_file_is_not_taken_for_the_one_that_is_meant(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "given").write_bytes(content)
    with pytest.raises(DataError, match=r"given is not file\.bin"):
        take(tmp_path / "given", remote("http://nowhere.invalid/file"), tmp_path / "in" / "file.bin")
    assert left_in(tmp_path / "in") == set()


def test_a_missing_file_cannot_be_taken(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        take(tmp_path / "nothing", replace(remote("http://nowhere.invalid/file"), checksum=None), tmp_path / "file.bin")


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"wait": -1.0}, {"timeout": 0.0}])
def test_impatience_without_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(Patience(), **wrong)  # type: ignore[arg-type]
