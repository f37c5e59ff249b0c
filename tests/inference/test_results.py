"""Results in files: what is read back is what was predicted, and an interrupted file is continued to the same end."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from vitlab.errors import DataError
from vitlab.inference import Prediction, Unreadable
from vitlab.inference.results import Csv, FinishedImages, JsonLines, new_file, parquet_file, resumed_file
from vitlab.io.display import printable

MARK = "0123456789abcdef"
NAMES = ["a.jpg", "b,c.jpg", 'quo"te.jpg', "new\nline.jpg", "ünïcode 猫.jpg", "\udcff.jpg", "z.jpg"]


def results() -> list[Prediction | Unreadable]:
    rng = np.random.default_rng(0)
    made: list[Prediction | Unreadable] = [
        Prediction(name=name, logits=rng.normal(size=4).astype(np.float32), labels=("cat", "dog", "owl, barn", "emu"))
        for name in NAMES
    ]
    made[2] = Unreadable(name=NAMES[2], reason="it is broken")
    return made


def written(path: Path, *, top: int = 2) -> list[dict[str, Any]]:
    with new_file(path, overwrite=False) as file:
        sink = JsonLines(file, top=top, mark=MARK)
        for result in results():
            sink.write(result)
    return [json.loads(line) for line in path.read_text().splitlines()]


def continue_to_the_end(path: Path) -> int:
    """Do what `predict --resume` does; how many images were left to do."""
    done_now = 0
    with resumed_file(path, top=2, mark=MARK) as (file, done):
        sink = JsonLines(file, top=2, mark=MARK)
        for result in results():
            if result.name not in done:
                sink.write(result)
                done_now += 1
    return done_now


def test_json_lines_hold_names_labels_and_probabilities_of_every_result(tmp_path: Path) -> None:
    lines = written(tmp_path / "out.jsonl")
    assert [line["name"] for line in lines] == NAMES
    assert all(line["checkpoint"] == MARK for line in lines)
    for line, result in zip(lines, results(), strict=True):
        if isinstance(result, Unreadable):
            assert line["error"] == result.reason
        else:
            assert [(best["label"], best["probability"]) for best in line["top"]] == [
                (label, pytest.approx(chance, abs=1e-6)) for label, chance in result.top(2)
            ]


def test_csv_survives_commas_quotes_and_line_ends_in_names() -> None:
    text = io.StringIO(newline="")
    sink = Csv(text, top=6)
    for result in results():
        sink.write(result)
    rows = list(csv.DictReader(io.StringIO(text.getvalue(), newline="")))
    assert [row["name"] for row in rows] == list(map(printable, NAMES))
    assert rows[2]["error"] == "it is broken"
    assert rows[0]["label_1"] == results()[0].top(1)[0][0]  # type: ignore[union-attr]
    assert rows[0]["label_5"] == ""  # there are four classes


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    with parquet_file(path, top=3, mark=MARK) as sink:
        for result in results():
            sink.write(result)
    table = pq.read_table(path)
    assert table.schema.metadata[b"vitlab_checkpoint"] == MARK.encode()
    rows = table.to_pylist()
    assert rows[4]["name"] == NAMES[4]
    assert rows[2] == {"name": NAMES[2], "labels": None, "probabilities": None, "error": "it is broken"}
    first = results()[0]
    assert isinstance(first, Prediction)
    assert list(zip(rows[0]["labels"], rows[0]["probabilities"], strict=True)) == [
        (label, pytest.approx(chance)) for label, chance in first.top(3)
    ]


def test_an_interrupted_parquet_file_never_appears(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"

    def interrupted() -> None:
        with parquet_file(path, top=3, mark=MARK) as sink:
            sink.write(results()[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_off_at_any_byte_is_continued_to_the_same_content(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    written(path)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        left = continue_to_the_end(path)
        assert path.read_bytes() == whole
        assert left == len(NAMES) - whole[:length].count(b"\n")


def test_a_file_that_is_not_there_yet_is_begun(tmp_path: Path) -> None:
    assert continue_to_the_end(tmp_path / "new.jsonl") == len(NAMES)
    assert continue_to_the_end(tmp_path / "new.jsonl") == 0


def test_what_was_written_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"

    def interrupted() -> None:
        with resumed_file(path, top=2, mark=MARK) as (file, _):
            JsonLines(file, top=2, mark=MARK).write(results()[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert continue_to_the_end(path) == len(NAMES) - 1


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"name,label\n", "not JSON"),
        (b"[1, 2]\n", "not a prediction"),
        (b'{"label": 3}\n', "not a prediction"),
        (b'{"name": "a", "top": [1, 2], "checkpoint": "ffff"}\n', "another model"),
        (b'{"name": "a", "top": [1, 2]}\n', "another model"),
        (b'{"name": "a", "top": [1, 2, 3], "checkpoint": "0123456789abcdef"}\n', "has 3 labels, but top=2"),
        (b"\xff\xfe\n", "not JSON"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_was(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line + b"half a li")
    with pytest.raises(DataError, match=complaint):
        continue_to_the_end(path)
    assert path.read_bytes() == line + b"half a li"


def test_a_file_that_is_there_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("mine")
    with pytest.raises(DataError, match="exists already"), new_file(path, overwrite=False):
        pass
    assert path.read_text() == "mine"
    with new_file(path, overwrite=True):
        pass
    assert path.read_text() == ""
    with pytest.raises(DataError, match="cannot write"), new_file(tmp_path / "no" / "out.jsonl", overwrite=False):
        pass


def test_finished_names_are_found_and_others_are_not() -> None:
    from vitlab.inference.results import name_hash

    done = FinishedImages(np.array([name_hash(f"{number}.jpg") for number in range(0, 2000, 2)], np.uint64))
    assert len(done) == 1000
    assert [f"{number}.jpg" in done for number in range(2000)] == [number % 2 == 0 for number in range(2000)]
    assert "a" not in FinishedImages(np.zeros(0, np.uint64))
