"""`vitlab embed` writes what `vitlab similar` finds, with the model that made it and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inference import small
from vitlab.cli.main import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small.saved(tmp_path / "model.safetensors")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    small.photos(tmp_path / "photos", 8)
    return tmp_path / "photos"


def output(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 1) -> str:
    assert main([*map(str, words)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return next(line for line in captured.err.splitlines() if line.startswith("error: "))


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_an_image_is_most_like_itself(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    index = tmp_path / f"index.{ending}"
    made = output(capsys, "embed", model, f"images:{photos}", index)
    assert (made["images"], made["unreadable"]) == (8, 0)
    found = output(capsys, "similar", photos / "photo-003.jpg", index, "--top", "3")
    assert len(found) == 3
    assert found[0]["name"] == str(photos / "photo-003.jpg")
    assert found[0]["similarity"] == pytest.approx(1, abs=1e-5)
    assert [item["similarity"] for item in found] == sorted((item["similarity"] for item in found), reverse=True)


def test_the_checkpoint_may_have_moved_and_another_one_is_refused(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "index.npz"
    output(capsys, "embed", model, f"images:{photos}", index)
    model.rename(tmp_path / "moved.safetensors")
    query = photos / "photo-000.jpg"
    assert "which" in refused(capsys, "similar", query, index, code=2)
    assert output(capsys, "similar", query, index, "--checkpoint", tmp_path / "moved.safetensors")
    other = small.saved(tmp_path / "other.safetensors", seed=1)
    assert "did not make" in refused(capsys, "similar", query, index, "--checkpoint", other)
    assert "did not make" in refused(
        capsys, "similar", query, index, "--checkpoint", tmp_path / "moved.safetensors", "--resize", "squash"
    )


def test_images_embedded_at_another_size_are_found_at_that_size(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "index.npz"
    output(capsys, "embed", model, f"images:{photos}", index, "--image-size", "48")
    found = output(capsys, "similar", photos / "photo-005.jpg", index, "--image-size", "48")
    assert found[0]["name"].endswith("photo-005.jpg")


def test_unreadable_images_are_left_out_and_reported(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "bad.jpg").write_bytes(b"junk")
    assert main(["embed", str(model), f"images:{photos}", str(tmp_path / "index.npz"), "--strict"]) == 1
    captured = capsys.readouterr()
    assert "unreadable: " in captured.err
    assert captured.err.splitlines()[-1] == "error: 1 of 9 images could not be read"
    assert (tmp_path / "index.npz").exists()


def test_wrong_words_are_refused(model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "neither .npz nor .parquet" in refused(capsys, "embed", model, f"images:{photos}", tmp_path / "a.txt", code=2)
    (tmp_path / "index.npz").write_text("mine")
    assert "exists already" in refused(capsys, "embed", model, f"images:{photos}", tmp_path / "index.npz")
    assert "not a search index" in refused(capsys, "similar", photos / "photo-000.jpg", tmp_path / "index.npz")
    output(capsys, "embed", model, f"images:{photos}", tmp_path / "index.npz", "--overwrite")
    assert "does not exist" in refused(capsys, "similar", "nowhere.jpg", tmp_path / "index.npz")
    assert "no file or folder" in refused(capsys, "similar", "a.jpg", "nowhere.npz", code=2)
    assert "--top" in refused(capsys, "similar", "a.jpg", tmp_path / "index.npz", "--top", "0", code=2)
