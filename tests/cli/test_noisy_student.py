"""`vitlab study noisy-student` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data.containers import as_folder
from tests.studies.test_noisy_student import KINDS, patch
from vitlab.cli.main import main

QUICK = ("--student", "ViT-Mini/8", "--image-size", "16", "--steps", "6", "--batch-size", "12", "--workers", "0", "--rounds", "1")


@pytest.fixture
def data(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.chdir(tmp_path)
    for part, count, at in (("train", 8, 0), ("test", 4, 100)):
        files = {f"{kind}/{number}.png": patch(code, at + number) for code, kind in enumerate(KINDS) for number in range(count)}
        as_folder(tmp_path / "pets" / part, files)
    return Path("pets")


def output(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, list[str]]:
    assert main(["study", "noisy-student", *words]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err.splitlines()


def test_a_table_of_teacher_and_students_is_printed_and_progress_is_reported(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, said = output(capsys, str(data), "--shots", "2", "--threshold", "0", *QUICK)
    head, teacher, student = out.splitlines()
    assert head.split()[:2] == ["model", "size"]
    assert teacher.startswith("teacher")
    assert student.startswith("student 1")
    assert Path("runs/pets-noisy-student/round-1/run/model.safetensors").is_file()
    assert any("6 images of 3 classes have labels, 18 have none" in line for line in said)
    assert any("18 of 18 images" in line and "correct" in line for line in said)
    again, said = output(capsys, str(data), "--shots", "2", "--threshold", "0", *QUICK, "--json")
    found = json.loads(again)
    assert [result["round"] for result in found["results"]] == [0, 1]
    assert found["study"]["shots"] == 2
    assert not any(line.startswith("step ") for line in said), "nothing is done twice"


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ((), 2, "missing DATA"),
        (("pets", "--shots", "x"), 2, "not a whole number"),
        (("pets", "--labels", "firm"), 2, "firm"),
        (("pets", "--threshold", "2"), 2, "2"),
        (("pets", "--randaugment", "9"), 2, "neither none nor layers,magnitude"),
        (("pets", "--teacher", "nowhere.npz"), 2, "nowhere.npz"),
        (("pets", "--shots", "2"), 1, "no model to start from"),
        (("pets", "--student", "ViT-Mini/8"), 1, "no images without labels"),
        (("pets", "--student", "ViT-Minor/8", "--shots", "2"), 1, "ViT-Minor/8"),
        (("nowhere", "--student", "ViT-Mini/8", "--shots", "2"), 1, "nowhere"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_a_hint(
    data: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, why: str
) -> None:
    out, said = output(capsys, *words, code=code)
    assert not out
    error = next(line for line in said if line.startswith("error: "))
    assert why in error


def test_studies_are_listed_and_a_near_miss_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 0
    assert "noisy-student" in capsys.readouterr().out
    assert main(["study", "noisy-studnet"]) == 2
    assert "did you mean noisy-student?" in capsys.readouterr().err
    assert main(["study", "--json"]) == 2
