"""Results print as aligned tables, become JSON, and show themselves in a notebook."""

from __future__ import annotations

import importlib
import json
import pkgutil
from typing import Any

import pytest

import vitlab
from vitlab.io.display import Displayed, Facts, Table, Value, cell, columns_of

ROWS = [{"name": "a", "top_1": 0.5, "n": 1000}, {"name": "long name", "top_1": 12.25, "n": 7}]


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
        ("hibou 猫 кот ñ", "hibou 猫 кот ñ"),
    ],
)
def test_a_value_is_written_as_a_person_reads_it(value: Value, text: str) -> None:
    assert cell(value) == text


def test_facts_are_a_mapping_and_their_json_is_the_same() -> None:
    given: dict[str, Any] = {"name": "ViT", "grid": [14, 14], "macs": 17, "labels": None, "deep": {"eps": 1e-6}}
    facts = Facts(given)
    assert dict(facts) == facts.to_json() == json.loads(json.dumps(facts.to_json())) == given
    assert str(facts).splitlines()[1] == "grid    14 x 14"


def test_what_is_shown_can_differ_from_the_facts() -> None:
    facts = Facts({"labels": ["a", "b"]}, shown={"labels": "2: a, b"})
    assert facts["labels"] == ["a", "b"]
    assert str(facts) == "labels  2: a, b"


def test_columns_are_aligned_and_numbers_stand_to_the_right() -> None:
    table = Table(ROWS)
    assert repr(table) == str(table) == "name       top 1      n\na            0.5  1,000\nlong name  12.25      7"
    assert table.to_json() == ROWS
    assert table[1]["n"] == 7


def test_no_rows_print_nothing_and_are_an_empty_list() -> None:
    assert str(Table([])) == ""
    assert repr(Table([])) == "<Table: empty>"
    assert Table([]).to_json() == []


@pytest.mark.parametrize("hostile", ["\x1b]0;owned\x07", "two\nlines", "back\rover", "\u202egnp.exe", "\u2028"])
def test_what_a_terminal_would_act_on_is_escaped(hostile: str) -> None:
    printed = str(Facts({"label": hostile, "deep": {hostile: hostile}}))
    assert printed.count("\n") == 1
    assert printed.replace("\n", "").isprintable()


class Page(Displayed):
    def tables(self) -> list[Any]:
        return [{"a": 1}, ROWS, "a line\nand <another>"]


def test_pieces_stand_apart_in_text_and_follow_each_other_in_html() -> None:
    assert [len(piece.splitlines()) for piece in str(Page()).split("\n\n")] == [1, 3, 2]
    html = Page()._repr_html_()
    assert html.count("<table>") == 2
    assert "&lt;another&gt;" in html


def test_columns_stay_aligned_beside_characters_of_double_width() -> None:
    names = ["\u732b", "\u043a\u043e\u0442", "long name"]
    lines = str(Table([{"class": name, "n": 5} for name in names])).splitlines()[1:]
    ends = [line[: line.index("5")] for line in lines]
    assert {columns_of(end) for end in ends} == {columns_of("long name  ")}
    assert (columns_of("\u732b"), columns_of("e\u0301")) == (2, 1)


def test_every_result_shows_itself_where_python_asks_for_it() -> None:
    """A notebook and the Python prompt: no dataclass has its own repr, which may hold the bytes of a figure."""
    for module in pkgutil.walk_packages(vitlab.__path__, "vitlab."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    classes = Displayed.__subclasses__()
    assert {"Figures", "Run"} <= {one.__name__ for one in classes}
    settings = {one.__name__: vars(one).get("__dataclass_params__") for one in classes}
    assert not [name for name, found in settings.items() if found is not None and found.repr]
