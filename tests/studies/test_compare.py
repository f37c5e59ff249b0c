"""Comparison of models: published numbers, and what is measured on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vitlab.cli.main import main
from vitlab.config import variant
from vitlab.config.published import PUBLISHED
from vitlab.errors import ConfigError
from vitlab.models.cost import cost
from vitlab.studies import compare as memory
from vitlab.studies.compare import (
    Peak,
    Speed,
    SpeedRatio,
    compared_models,
    draw_compared,
    measure_memory,
    measure_speed,
    speed_ratios,
)

# The column of "Transformers or CNNs?": GMACs at 224 and 384 pixels.
COLUMN = {
    "Swin-T": ("4.5", "14.0"),
    "Swin-S": ("8.7", "27.0"),
    "Swin-B": ("15.4", "47.1"),
    "Swin-L": ("34.5", "103.9"),
    "ConvNeXt-T": ("4.5", "13.1"),
    "ConvNeXt-S": ("8.7", "25.5"),
    "ConvNeXt-B": ("15.4", "45.1"),
    "ConvNeXt-L": ("34.4", "101.0"),
    "ConvNeXt-XL": ("60.9", "179.0"),
}


@pytest.mark.parametrize("name", COLUMN)
def test_multiply_adds_are_the_published_ones_to_the_printed_digit(name: str) -> None:
    counted = tuple(f"{cost(variant(name, image_size=size)).macs / 1e9:.1f}" for size in (224, 384))
    assert counted == COLUMN[name]


@pytest.mark.parametrize(("name", "size"), [key for key, rows in PUBLISHED.items() if rows[0].gmacs])
def test_every_quoted_count_is_the_count_of_the_model_here(name: str, size: int) -> None:
    quoted = PUBLISHED[name, size][0].gmacs
    assert quoted is not None
    assert cost(variant(name, image_size=size)).macs / 1e9 == pytest.approx(quoted, rel=0.06)


def test_speed_is_measured_for_every_model_and_lies_within_its_spread() -> None:
    configs = [variant("ViT-Mini/8", image_size=32), variant("LSTM-Mini/8", image_size=32)]
    for speed in measure_speed(configs, batch=2, rounds=3):
        assert 0 < speed.low <= speed.median <= speed.high


def test_speeds_are_related_to_the_published_ones_pair_by_pair() -> None:
    rows = compared_models([variant("Swin-T"), variant("ConvNeXt-T"), variant("ConvNeXt-S"), variant("Swin-T", image_size=384)])
    timed = [
        replace(row, speed=Speed(median=place + 2.0, low=1.0, high=9.0, batch=1)) for place, row in enumerate(rows)
    ]  # 2 for Swin-T, 3 for ConvNeXt-T, whose pair it is
    (pair,) = speed_ratios(timed)
    assert (pair.first, pair.second) == ("ConvNeXt-T 224", "Swin-T 224")
    assert pair.here == 1.5
    assert pair.there == pytest.approx(774.7 / 757.9)


def test_a_sentence_says_how_speeds_differ_from_the_published_ones() -> None:
    sentence = SpeedRatio(first="A", second="B", here=0.5, there=1.0).sentence
    assert sentence == (
        "on this machine A is 0.50 times as fast as B, on a V100 1.00 times: this machine favours B, by a factor of 2.00"
    )
    assert SpeedRatio(first="A", second="B", here=3.0, there=1.5).sentence.endswith("favours A, by a factor of 2.00")
    assert SpeedRatio(first="A", second="B", here=1.0, there=1.02).sentence.endswith("nearly the same")


def test_the_memory_of_a_process_holds_the_weights_and_grows_with_the_model() -> None:
    if not Path("/proc/self/status").is_file():
        pytest.skip("this system does not report the memory of a process")
    small, large = (variant("ViT-Ti/16", image_size=32, num_classes=classes) for classes in (10, 80_000))
    first, second = measure_memory([small, large])
    assert first.bytes is not None
    assert second.bytes is not None
    assert first.bytes > 4 * cost(small).parameters
    assert second.bytes - first.bytes > 0.9 * 4 * (cost(large).parameters - cost(small).parameters)


def test_memory_that_cannot_be_measured_is_a_dash_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    words = ["study", "compare", "ViT-Mini/8", "LSTM-Mini/8", "--speed", "--rounds", "1", "--batch-size", "1"]
    assert main(words) == 0
    printed = capsys.readouterr()
    header, *rows = printed.out.splitlines()
    at = header.index("measured")
    assert [row[at:].split()[0] for row in rows] == ["-", "-"]
    assert printed.err.count("memory is not measured: this system has no") == 1
    assert main([*words, "--json"]) == 0
    assert [row["measured_memory_bytes"] for row in json.loads(capsys.readouterr().out)["models"]] == [None, None]


def test_a_process_that_dies_while_it_is_measured_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "status").touch()
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(memory, "_CHILD", "import os; os.kill(os.getpid(), 9)")
    assert measure_memory([variant("ViT-Mini/8")]) == [Peak(bytes=None, why="the process died of signal 9: too little memory?")]
    monkeypatch.setattr(memory, "_CHILD", "raise SystemError('no room')")
    assert measure_memory([variant("ViT-Mini/8")]) == [Peak(bytes=None, why="the process failed: SystemError: no room")]


def test_the_table_is_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "compare", "Swin-B", "ViT-B/16", "--image-size", "224,384", "--plot", str(tmp_path / "all.svg")]) == 0
    printed = capsys.readouterr()
    assert [line.split()[:2] for line in printed.out.splitlines()[1:]] == [
        ["Swin-B", "224"],
        ["ViT-B/16", "224"],
        ["Swin-B", "384"],
        ["ViT-B/16", "384"],
    ]
    assert "source: Dosovitskiy" in printed.err
    assert "<svg" in (tmp_path / "all.svg").read_text()


def test_json_holds_the_source_of_published_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "compare", "ConvNeXt-XL", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["parameters"] == 350_196_968
    assert row["published"][0]["source"].startswith("Liu et al. 2022")


def test_an_impossible_image_size_is_left_out_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "compare", "ViT-H/14", "Swin-T", "--image-size", "224,384"]) == 0
    assert "left out: ViT-H/14 at 384x384" in capsys.readouterr().err


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "compare", "Swin-Q"]) == 1
    assert "did you mean Swin-" in capsys.readouterr().err
    assert main(["study", "compare", "--data", "digits"]) == 2
    with pytest.raises(ConfigError, match="neither"):
        draw_compared(compared_models([variant("Swin-T")]), tmp_path / "all.pdf")
    with pytest.raises(ConfigError, match="no models"):
        compared_models([])
