"""The scripts of examples/ run, as a user starts them, and leave what they promise."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path

import pytest

import vitlab
from tests.conftest import CHECKOUT
from tests.data.images import jpeg, scene
from tests.inference import small

EXAMPLES = CHECKOUT / "examples"


def run(monkeypatch: pytest.MonkeyPatch, name: str, *words: str | Path) -> None:
    """`python examples/NAME.py WORDS`, in this process."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small.saved(tmp_path / "model.safetensors")


def test_classify_folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    photos = small.photos(tmp_path / "photos", 4)
    run(monkeypatch, "classify_folder", model, tmp_path / "photos", "--out", tmp_path / "out.csv", "--unsure", "2")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = vitlab.Predictor(model)(photos)
    assert [row["label"] for row in rows] == expected.labels
    assert capsys.readouterr().out.count("%") == 2 * 3


def test_finetune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(24):
        folder = tmp_path / "pets" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(jpeg(scene(40, 40, seed=number)))
    start, out = small.saved(tmp_path / "start.safetensors"), tmp_path / "run"
    words = ("--out", out, "--epochs", "1", "--image-size", "32", "--device", "cpu")
    run(monkeypatch, "finetune", tmp_path / "pets", start, *words)
    assert vitlab.load(out / "model.safetensors").labels == ("cat", "dog")
    assert (out / "report.html").is_file()
    assert str(out / "model.safetensors") in capsys.readouterr().out


def test_attention_map(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (photo,) = small.photos(tmp_path / "photos", 1)
    run(monkeypatch, "attention_map", model, photo, "--out", tmp_path / "rollout.png")
    assert (tmp_path / "rollout.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "4 x 4 patches" in said
    assert said.count("attends most to") == vitlab.load(model).config.heads  # type: ignore[union-attr]


@pytest.mark.usefixtures("onnx_operators")
def test_convert_and_export(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "exported"
    run(monkeypatch, "convert_and_export", model, out)
    parameters = vitlab.describe(model)["parameters"]
    assert [vitlab.describe(out / name)["parameters"] for name in ("official.npz", "huggingface", "timm")] == [parameters] * 3
    assert (out / "model.onnx").is_file()
    assert "ONNX Runtime" in capsys.readouterr().out


def test_training_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.safetensors"
    run(monkeypatch, "training_loop", "--epochs", "3", "--image-size", "16", "--out", out)
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert vitlab.load(out).labels == tuple("0123456789")


def test_every_example_is_short_and_has_its_test() -> None:
    scripts = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert {f"test_{name}" for name in scripts} < set(globals())
    assert max(scripts.values()) <= 60
