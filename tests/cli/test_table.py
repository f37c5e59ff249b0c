"""What is printed can be read: aligned by eyes, and back by programs."""

from __future__ import annotations

import json

import pytest

from vitlab.cli.table import cell, print_facts, print_rows
from vitlab.config.serialize import Json

ROWS: list[dict[str, Json]] = [{"name": "a", "top_1": 0.5, "n": 1000}, {"name": "long name", "top_1": 12.25, "n": 7}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (197, "197"),
        (3072, "3,072"),
        (86_567_656, "86,567,656 (86.6 M)"),
        (17_563_828_224, "17,563,828,224 (17.6 G)"),
        (2_500_000_000_000, "2,500,000,000,000 (2.5 T)"),
        (1e-6, "1e-06"),
        (0.123456, "0.1235"),
        ([224, 160], "224 x 160"),
        ([3, 4, 6, 3], "[3, 4, 6, 3]"),
        ([0.5, 0.25], "[0.5, 0.25]"),
        (["cat", "dog"], "cat, dog"),
        ([], "-"),
        ({"norm_eps": 1e-6, "gelu": "tanh"}, "norm eps 1e-06, gelu tanh"),
    ],
)
def test_a_value_is_written_as_a_person_reads_it(value: Json, text: str) -> None:
    assert cell(value) == text


def test_facts_as_json_are_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    facts: dict[str, Json] = {"name": "ViT", "grid": [14, 14], "macs": 17, "labels": None, "deep": {"eps": 1e-6}}
    print_facts(facts, json=True)
    assert json.loads(capsys.readouterr().out) == facts


def test_rows_as_json_are_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, json=True)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_columns_are_aligned_and_numbers_stand_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, json=False)
    assert capsys.readouterr().out == ("name       top 1      n\na            0.5  1,000\nlong name  12.25      7\n")


def test_no_rows_print_nothing_and_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], json=False)
    assert capsys.readouterr().out.strip() == ""
    print_rows([], json=True)
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("hostile", ["\x1b]0;owned\x07", "two\nlines", "back\rover", "\u202egnp.exe", "\u2028"])
def test_what_a_terminal_would_act_on_is_escaped(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_facts({"label": hostile, "deep": {hostile: hostile}}, json=False)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 2
    assert printed.replace("\n", "").isprintable()


def test_letters_of_other_scripts_are_left_alone() -> None:
    assert cell("hibou 猫 кот ñ") == "hibou 猫 кот ñ"
