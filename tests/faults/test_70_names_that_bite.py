"""Names and labels hold formulas, escapes, bidi marks or undecodable bytes: vitlab shows them harmlessly and goes on."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path

import pytest

from tests.data.images import jpeg, scene
from tests.inference import small
from vitlab.cli.main import main
from vitlab.inference import Predictor
from vitlab.io.display import Table, csv_cell

LABELS = ("=cmd|'/C calc'!A0", "+1", "-1", "@SUM(A1)", "\x1b[31mred\x1b[0m", "left\u202etfel", "\uff1d1+1")
NAMES = (
    b"=1+1.jpg",
    b"+x.jpg",
    b"-rf.jpg",
    b"@x.jpg",
    b"\x1b[2J.jpg",
    "bidi\u202egpj.jpg".encode(),
    b"raw\xff.jpg",
    b"line\nend.jpg",
)
BITING = ("\x1b", "\u202e", "\x07", "\x9b")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of such labels, and images of such names; it is the working folder of each command."""
    folder = tmp_path_factory.mktemp("place")
    small.saved(folder / "model.safetensors", LABELS)
    (folder / "images").mkdir()
    for seed, name in enumerate(NAMES):
        with open(os.fsencode(folder / "images") + b"/" + name, "wb") as file:  # noqa: PTH123
            file.write(b"broken" if seed == 0 else jpeg(scene(seed=seed)))
    return folder


def ran(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    monkeypatch.chdir(place / "images")
    assert main(["predict", "--backend", "torch", "../model.safetensors", *words]) == 0
    captured = capsys.readouterr()
    for biting in BITING:
        assert biting not in captured.out + captured.err
    return captured.out, captured.err


def test_csv_has_no_formula_and_no_escape_and_a_line_for_every_image(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [os.fsdecode(name) for name in NAMES]
    out, err = ran(place, monkeypatch, capsys, "--format", "csv", "--top", "7", "--", *names)
    rows = list(csv.reader(io.StringIO(out, newline="")))
    assert len(rows) == 1 + len(NAMES)
    texts = [cell for row in rows[1:] for cell in row]
    assert not [cell for cell in texts if cell.startswith(("=", "+", "-", "@", "\uff1d", "\t", "\r"))]
    assert {csv_cell(label) for label in LABELS} <= set(texts)
    assert [row[0] for row in rows[1:]] == [csv_cell(name) for name in names]
    assert "unreadable: =1+1.jpg" in err


def test_text_and_json_lines_continue_too_and_json_keeps_the_names_as_they_are(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = ran(place, monkeypatch, capsys, ".")
    assert out.count("%") == 5 * (len(NAMES) - 1)
    out, _ = ran(place, monkeypatch, capsys, ".", "--json")
    assert {json.loads(line)["name"].encode("utf-8", "surrogateescape") for line in out.splitlines()} == {
        b"./" + name for name in NAMES
    }


def test_an_undecodable_name_in_a_list_on_stdin_and_a_narrow_stdout_do_not_end_the_run(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place / "images")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"raw\xff.jpg\n")), encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["predict", "../model.safetensors", "-", "--backend", "torch"]) == 0
    assert shown.getvalue().startswith(b"raw\\udcff.jpg\n")


def test_the_csv_of_an_evaluation_is_harmless_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = ("=1", "@a")
    small.saved(tmp_path / "model.safetensors", labels)
    for label in labels:
        small.photos(tmp_path / "images" / label, 1)
    (tmp_path / "images" / "=1" / "\x1b[2J.jpg").write_bytes(b"broken")
    words = [tmp_path / "model.safetensors", tmp_path / "images", "--split", "all", "--per-image", tmp_path / "out.csv"]
    assert main(["evaluate", *map(str, words), "--backend", "torch", "--corrupt", "skip"]) == 0
    rows = list(csv.reader(io.StringIO((tmp_path / "out.csv").read_text(), newline="")))
    assert [row[1] for row in rows[1:]] == ["'=1", "'@a", "'=1"]
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err + (tmp_path / "out.csv").read_text()


def test_tables_and_html_show_escapes_and_tags_as_text(place: Path) -> None:
    predictions = Predictor(place / "model.safetensors", backend="torch")(place / "images" / os.fsdecode(NAMES[4]))
    table = Table([{"label": label, "tag": "<img onerror=x>"} for label in LABELS])
    for shown in (str(predictions), predictions._repr_html_(), str(table), table._repr_html_()):
        assert not [biting for biting in BITING if biting in shown]
    assert "<img" not in table._repr_html_()
