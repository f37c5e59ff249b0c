"""The benchmark of time budgets: it measures what is missing, once, and shows it as a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import minutes
from tests.training.small import run_to, small_run

_LINE = {"dataset": "pets", "split": "val", "seed": 0, "seconds": 60.0, "image_size": 128}


def _run(monkeypatch: pytest.MonkeyPatch, out: Path, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["minutes.py", "--out", str(out), *words])
    minutes.main()


def test_a_run_that_was_measured_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, float]] = []

    def measured(data: str, start: str, method: minutes.Method, *, minutes: float, seed: int, split: str) -> dict[str, Any]:
        asked.append((data, minutes))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {"accuracy": 0.5, "seconds": 60.0, "image_size": 128}

    monkeypatch.setattr(minutes, "measured", measured)
    words = ("--datasets", "digits", "--methods", "planned,zero head; 128 px", "--minutes", "1,4")
    with pytest.raises(KeyboardInterrupt):
        _run(monkeypatch, tmp_path / "lines.jsonl", *words)
    _run(monkeypatch, tmp_path / "lines.jsonl", *words)
    assert asked == [("digits", 1.0), ("digits", 1.0), ("digits", 1.0), ("digits", 4.0), ("digits", 4.0)]
    assert len(minutes.known(tmp_path / "lines.jsonl")) == 4
    assert capsys.readouterr().out.count("**50.0%**") == 4


def test_the_best_method_of_a_column_is_bold() -> None:
    lines = [
        _LINE | {"method": "planned", "minutes": 1.0, "accuracy": 0.75},
        _LINE | {"method": "zero", "minutes": 1.0, "accuracy": 0.5},
    ]
    text = minutes.table([*lines, _LINE | {"method": "zero", "minutes": 4.0, "accuracy": 0.25}])
    assert "| pets (val) | planned | **75.0%** (60 s, 128 px) |  |" in text
    assert "| pets (val) | zero | 50.0% (60 s, 128 px) | **25.0%** (60 s, 128 px) |" in text


def test_a_fitted_head_is_measured_on_held_out_images(tmp_path: Path) -> None:
    run_to(small_run(steps=5), tmp_path / "start")
    method = minutes.Method(head="fitted", alone=True)
    row = minutes.measured("digits", str(tmp_path / "start"), method, minutes=1, seed=0, split="val")
    assert 0.3 < row["accuracy"] <= 1
    assert row["steps"] == 0
    json.dumps(row)
