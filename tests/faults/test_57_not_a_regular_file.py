"""A pipe, socket, device, link loop or folder stands where a file should be: vitlab names it and never waits for it."""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.inference import small
from vitlab.cli.main import main
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.inference.writing import lines_of
from vitlab.io.files import read_bytes

pytestmark = pytest.mark.timeout(60)  # a guard: what waits for a pipe waits for ever


@contextmanager
def strangers(folder: Path) -> Iterator[dict[str, str]]:
    """One entry of each kind that is not a regular file, named like an image: its name, and what vitlab calls it."""
    os.mkfifo(folder / "pipe.jpg")
    (folder / "device.jpg").symlink_to("/dev/zero")
    (folder / "loop.jpg").symlink_to("loop.jpg")
    (folder / "folder.jpg").mkdir()
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as end:
        os.chdir(folder)  # the path of a socket has at most some 100 letters
        end.bind("socket.jpg")
        os.chdir(here)
        yield {
            "pipe.jpg": "it is a pipe",
            "device.jpg": "it is a device",
            "loop.jpg": "symbolic links",
            "socket.jpg": "it is a socket",
        }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.saved(tmp_path_factory.mktemp("model") / "model.safetensors")


def test_predict_names_them_in_a_folder_and_classifies_the_images_beside_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small.photos(tmp_path, 1)
    with strangers(tmp_path) as kinds:
        assert main(["predict", str(model), str(tmp_path), "--json", "--backend", "torch"]) == 0
    found = {Path(line["name"]).name: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(found) == {*kinds, "photo-000.jpg"}
    assert found["photo-000.jpg"]["top"]
    for name, kind in kinds.items():
        assert kind in found[name]["error"]


def test_a_list_on_stdin_names_them_and_continues(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small.photos(tmp_path, 1)
    with strangers(tmp_path) as kinds:
        names = [*kinds, "folder.jpg", "photo-000.jpg"]
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{tmp_path / name}\n" for name in names)))
        assert main(["predict", str(model), "-", "--json", "--backend", "torch"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line, kind in zip(found, [*kinds.values(), "it is a folder"], strict=False):
        assert kind in line["error"]
    assert found[-1]["top"]


def test_a_list_without_line_ends_is_not_read_without_bound() -> None:
    with pytest.raises(DataError, match="more than 65,535 characters"):
        list(lines_of(io.StringIO("\0" * 2**20)))


@pytest.mark.parametrize("name", ["pipe.jpg", "device.jpg", "loop.jpg", "socket.jpg"])
def test_a_command_refuses_one_that_it_is_given_by_name(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with strangers(tmp_path) as kinds:
        given = str(tmp_path / name)
        for words in (
            ["predict", str(model), given],
            ["inspect", str(model), given, "--figure", "rollout", "--out", str(tmp_path / "figures")],
            ["predict", str(model), str(model), "--labels", given],
            ["train", given, "--out", str(tmp_path / "run")],
            ["describe", given],
        ):
            assert main(words) in (1, 2), words
            said = capsys.readouterr().err
            assert name in said, words
            assert name == "loop.jpg" or kinds[name] in said, words  # a link that leads nowhere is no file


def test_a_dataset_refuses_them_in_one_error_and_as_a_manifest(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        small.photos(tmp_path / label, 1)
    with strangers(tmp_path / "cat") as kinds:
        with pytest.raises(DataError) as refused:
            open_dataset(tmp_path)
        for name in kinds:
            assert f"cat/{name}: " in refused.value.message
        for name in kinds:
            with pytest.raises(DataError, match=name):
                open_dataset(f"manifest:{tmp_path / 'cat' / name}")


def test_a_file_that_becomes_a_pipe_after_the_folder_was_listed_is_not_waited_for(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        small.photos(tmp_path / label, 1)
    dataset = open_dataset(tmp_path, split="all")
    (tmp_path / "cat" / "photo-000.jpg").unlink()
    os.mkfifo(tmp_path / "cat" / "photo-000.jpg")
    with pytest.raises(DataError, match="it is a pipe"):
        dataset[0]


def test_a_file_above_its_bound_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(2**40)  # a terabyte that takes no room
    with pytest.raises(DataError, match=r"1,099,511,627,776 bytes; the limit is"):
        read_bytes(tmp_path / "large.jpg")
