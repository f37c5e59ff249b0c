"""A folder of parts holds whole parts of one job: none is lost, doubled or half, whatever ended the job before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vitlab.errors import DataError
from vitlab.io.parts import Chunk, Lines, Parts, open_parts

JOB: dict[str, str | int] = {"verb": "predict", "model": "abc", "images": 10}
COUNTS = (2, 2, 1)


@contextmanager
def opened(folder: Path, **changed: str | int) -> Iterator[Parts]:
    with open_parts(folder, JOB | changed, COUNTS, Lines()) as parts:
        yield parts


def chunk(part: int, place: int) -> Chunk:
    failures = ((f"{part}-{place}.jpg", "broken"),) if place else ()
    return Chunk(content=f"{part} {place}\n".encode(), rows=1, failures=failures)


def fill(parts: Parts, *wanted: int) -> None:
    for part in wanted:
        for place in reversed(range(COUNTS[part])):  # chunks come in any order
            parts.add(part, place, chunk(part, place))


WHOLE = b"0 0\n0 1\n1 0\n1 1\n2 0\n"


def test_the_union_is_the_chunks_in_their_order_whatever_order_they_came_in(tmp_path: Path) -> None:
    with opened(tmp_path / "parts") as parts:
        fill(parts, 2, 0, 1)
        assert b"".join(path.read_bytes() for path in parts.paths) == WHOLE
        assert [name for name, _ in parts.failures] == ["0-1.jpg", "1-1.jpg"]
        parts.join(tmp_path / "all.jsonl")
        parts.remove()
    assert (tmp_path / "all.jsonl").read_bytes() == WHOLE
    assert not (tmp_path / "parts").exists()


def test_a_part_appears_with_its_last_chunk_and_a_chunk_that_comes_twice_is_written_once(tmp_path: Path) -> None:
    with opened(tmp_path) as parts:
        parts.add(0, 1, chunk(0, 1))
        parts.add(0, 1, chunk(0, 1))
        assert not parts.path(0).exists()
        parts.add(0, 0, chunk(0, 0))
        parts.add(0, 0, chunk(0, 0))
        assert parts.path(0).read_bytes() == b"0 0\n0 1\n"
    assert len((tmp_path / "parts.jsonl").read_text().splitlines()) == 1


def test_finished_parts_are_kept_and_others_are_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as parts:
        fill(parts, 0, 2)
        parts.add(1, 0, chunk(1, 0))  # half of a part: lost with the process
    with opened(tmp_path) as parts:
        assert parts.missing == [1]
        fill(parts, 1)
        assert [name for name, _ in parts.failures] == ["0-1.jpg", "1-1.jpg"]
    with opened(tmp_path) as parts:
        assert parts.missing == []


@pytest.mark.parametrize("damage", ["absent", "shorter", "changed", "line cut off", "no line"])
def test_a_part_that_is_not_what_its_line_says_is_made_again(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path) as parts:
        fill(parts, 0, 1, 2)
    path, lines = tmp_path / "part-000001.jsonl", tmp_path / "parts.jsonl"
    match damage:
        case "absent":
            path.unlink()
        case "shorter":
            path.write_bytes(path.read_bytes()[:-1])
        case "changed":
            path.write_bytes(path.read_bytes().replace(b"1 1", b"1 7"))
        case "line cut off":
            kept = sorted(lines.read_text().splitlines(keepends=True), key=lambda line: json.loads(line)["part"] == 1)
            lines.write_text("".join(kept)[:-9])
        case "no line":
            lines.write_text("".join(line for line in lines.read_text().splitlines(True) if json.loads(line)["part"] != 1))
    with opened(tmp_path) as parts:
        assert parts.missing == [1]
        fill(parts, 1)
    with opened(tmp_path) as parts:
        assert parts.missing == []
        assert b"".join(path.read_bytes() for path in parts.paths) == WHOLE


def test_another_job_is_refused_by_what_differs_unless_it_may_overwrite(tmp_path: Path) -> None:
    with opened(tmp_path) as parts:
        fill(parts, 0)
    with (
        pytest.raises(DataError, match="belongs to another job: its model is abc, and here it is xyz"),
        opened(tmp_path, model="xyz"),
    ):
        pass
    with open_parts(tmp_path, JOB | {"model": "xyz"}, COUNTS, Lines(), overwrite=True) as parts:
        assert parts.missing == [0, 1, 2]
        assert not parts.path(0).exists()


def test_a_folder_of_other_files_and_one_in_use_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(DataError, match="holds other files"), opened(tmp_path):
        pass
    with opened(tmp_path / "a"), pytest.raises(DataError, match="in use by process"), opened(tmp_path / "a"):
        pass


def test_a_full_disk_is_an_error_and_leaves_whole_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as parts:
        fill(parts, 0)

        def full(self: Lines, file: object, contents: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Lines, "write", full)
        with pytest.raises(DataError, match="No space left") as caught:
            fill(parts, 1)
        assert caught.value.hint is not None
    assert sorted(path.name for path in tmp_path.glob("*part-*")) == ["part-000000.jsonl"]
    monkeypatch.undo()
    with opened(tmp_path) as parts:
        assert parts.missing == [1, 2]
