"""`vitlab data`: every action through the command line, as text and as JSON, and what it says where something is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.data.containers import as_folder
from tests.data.images import jpeg, scene
from tests.web_server import Served, plain_set, serving
from vitlab.cli.main import main
from vitlab.data.catalog.sets import SETS
from vitlab.data.opening import open_dataset


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    files = {
        f"{part}/{label}/{number}.jpg": jpeg(scene(48, 64, seed=1000 * (part == "test") + 100 * (label == "dog") + number))
        for part in ("train", "test")
        for label in ("cat", "dog")
        for number in range(3)
    }
    return as_folder(tmp_path / "images", files)


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["data", *words]) == code
    return capsys.readouterr().out


def test_the_list_has_a_line_for_every_set(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "list").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [entry.name for entry in SETS]
    rows = json.loads(printed(capsys, "list", "--json"))
    assert [row["name"] for row in rows] == [entry.name for entry in SETS]
    assert {row["fetch"] for row in rows} == {"yes", "by hand", "not public"}


@pytest.mark.parametrize("entry", SETS, ids=lambda entry: entry.name)
def test_a_dataset_is_shown_with_files_checksums_licence_and_spelling(capsys: pytest.CaptureFixture[str], entry: object) -> None:
    known = next(known for known in SETS if known is entry)
    page = printed(capsys, "list", known.name)
    for text in (known.licence, known.citation, known.split, known.page):
        assert text in page
    for file in known.files:
        assert (file.checksum or "no checksum") in page
    found = json.loads(printed(capsys, "list", known.name, "--json"))
    assert [file["checksum"] for file in found["files"]] == [file.checksum for file in known.files]


def test_fetching_says_where_the_data_is_and_how_it_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with serving(Served(b"content")) as server:
        entry = plain_set()
        entry = replace(entry, files=(replace(entry.files[0], addresses=(server.address,)),))
        monkeypatch.setattr("vitlab.data.catalog.sets.SETS", (entry,))
        found = json.loads(printed(capsys, "fetch", "plain", "--json"))
    assert found["data"] == "mnist:data/plain"
    assert (tmp_path / "data" / "plain" / "file.bin").read_bytes() == b"content"
    assert found["files"][0]["origin"] == "downloaded"
    assert main(["data", "fetch", "plain"]) == 0
    captured = capsys.readouterr()
    assert "already there" in captured.out
    assert "verifying file.bin" in captured.err, "without a terminal progress is printed in lines"


def test_a_file_can_be_given_in_place_of_a_download(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.data.catalog.sets.SETS", (plain_set(),))
    (tmp_path / "by hand").write_bytes(b"content")
    page = printed(capsys, "fetch", "plain", "--into", str(tmp_path / "out"), "--from", str(tmp_path / "by hand"))
    assert "given" in page
    assert (tmp_path / "out" / "file.bin").read_bytes() == b"content"


def test_several_files_can_be_given(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = plain_set()
    files = tuple(replace(entry.files[0], name=name) for name in ("one.bin", "two.bin"))
    monkeypatch.setattr("vitlab.data.catalog.sets.SETS", (replace(entry, files=files),))
    for file in files:
        (tmp_path / file.name).write_bytes(b"content")
    words = ["--from", str(tmp_path / "one.bin"), str(tmp_path / "two.bin"), "--into", str(tmp_path / "out"), "--json"]
    found = json.loads(printed(capsys, "fetch", "plain", *words))
    assert [file["origin"] for file in found["files"]] == ["given", "given"]


def test_a_checksum_nobody_publishes_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = plain_set()
    entry = replace(entry, files=(replace(entry.files[0], checksum=None, size=None),))
    monkeypatch.setattr("vitlab.data.catalog.sets.SETS", (entry,))
    (tmp_path / "file.bin").write_bytes(b"content")
    assert main(["data", "fetch", "plain", "--into", str(tmp_path / "out"), "--from", str(tmp_path / "file.bin")]) == 0
    found = capsys.readouterr().err
    assert "nobody publishes a checksum of file.bin" in found
    assert (tmp_path / "out" / "file.bin.sha256").read_text().split()[0] in found


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        (["fetch", "cifar"], 1, "called 'cifar'", "did you mean cifar10"),
        (["fetch", "imagenet"], 1, "download it yourself", "https://image-net.org/download"),
        (["fetch"], 2, "missing NAME", "vitlab data fetch --help"),
        (["check", "nowhere"], 1, "nowhere does not exist", ""),
        (["check", "digits", "--shown", "many"], 2, "--shown: 'many' is not a whole number", ""),
        (["chek"], 2, "data has no verb called 'chek'", "did you mean check"),
        (["--json"], 2, "no option called --json", "vitlab data --help"),
        (["show", "digits"], 2, "missing --out", "vitlab data show --help"),
        (["show", "digits", "--out", "x.png", "--count", "0"], 1, "--count 0 must be from 1", ""),
        (["show", "digits", "--out", "x.jpg"], 2, "x.jpg does not end in .png", "PNG"),
        (["pack", "digits", "out", "--quality", "0"], 1, "--quality 0 must be from 1 to 100", ""),
        (["pack", "digits", "out", "--split", "dev"], 2, "--split: 'dev' is not one of", ""),
        (["list", "pets", "more"], 2, "unexpected argument 'more'", ""),
    ],
)
def test_an_error_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: list[str], code: int, message: str, hint: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["data", *words]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert message in lines[0]
    assert hint in (lines[1] if len(lines) > 1 else "")
    assert list(tmp_path.iterdir()) == []


def test_checking_sound_data_finds_no_problems(capsys: pytest.CaptureFixture[str], images: Path) -> None:
    page = printed(capsys, "check", str(images), "--strict")
    assert "no problems" in page
    assert "12 (train 6, test 6)" in page


def test_strictness_makes_problems_an_error(capsys: pytest.CaptureFixture[str], images: Path) -> None:
    (images / "test" / "cat" / "leak.jpg").write_bytes((images / "train" / "cat" / "1.jpg").read_bytes())
    (images / "test" / "cat" / "broken\n.jpg").write_bytes(b"nonsense")
    assert "leak: 1 group of" in printed(capsys, "check", str(images))
    assert main(["data", "check", str(images), "--strict"]) == 1
    captured = capsys.readouterr()
    assert "identical: " in captured.out
    assert "broken\\n.jpg" in captured.out, "a name stays on its line"
    assert "1 image cannot be decoded" in captured.err.splitlines()[-1]
    found = json.loads(printed(capsys, "check", str(images), "--json"))
    assert {problem["kind"]: problem["count"] for problem in found["problems"]} == {"broken": 1, "leak": 1}
    (group,) = found["duplicates"]
    assert {(image["split"], image["label"]) for image in group["images"]} == {("train", "cat"), ("test", "cat")}


def test_no_more_findings_are_printed_than_asked_for(capsys: pytest.CaptureFixture[str], images: Path) -> None:
    for number in range(6):
        (images / "test" / "cat" / f"broken{number}.jpg").write_bytes(b"nonsense")
    page = printed(capsys, "check", str(images), "--shown", "2")
    assert page.count("nonsense") == 0
    assert sum("broken" in line and ".jpg" in line for line in page.splitlines()) == 2
    assert "and 4 more (JSON has all)" in page


def test_a_large_group_of_copies_stays_readable(capsys: pytest.CaptureFixture[str], images: Path) -> None:
    for number in range(20):
        (images / "train" / "cat" / f"copy{number}.jpg").write_bytes((images / "train" / "cat" / "1.jpg").read_bytes())
    (line,) = (line for line in printed(capsys, "check", str(images)).splitlines() if "identical" in line and "=" in line)
    assert line.count(".jpg") == 4
    assert line.endswith("= 17 more")


def test_packing_and_reading_again(capsys: pytest.CaptureFixture[str], images: Path, tmp_path: Path) -> None:
    page = printed(capsys, "pack", str(images), str(tmp_path / "shards"), "--name", "pets", "--max-side", "32")
    assert "pets-train-000000.tar" in page
    found = json.loads(
        printed(capsys, "pack", str(images), str(tmp_path / "shards"), "--name", "pets", "--max-side", "32", "--json")
    )
    assert (found["images"], found["reused"]) == (12, 2)
    assert open_dataset(tmp_path / "shards", split="test").labels == ("cat", "dog")


def test_showing_writes_a_sheet(capsys: pytest.CaptureFixture[str], images: Path, tmp_path: Path) -> None:
    found = json.loads(printed(capsys, "show", str(images), "--out", str(tmp_path / "sheet.png"), "--count", "8", "--json"))
    assert (found["images"], found["classes"], found["broken"]) == (8, 2, 0)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert [sheet.height, sheet.width] == found["image_size"]


def test_data_alone_lists_its_actions(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys)
    assert page == printed(capsys, "--help")
    for action in ("list", "fetch", "check", "pack", "show"):
        assert any(line.split()[:1] == [action] for line in page.splitlines())
