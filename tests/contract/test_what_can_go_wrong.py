"""The page of faults and the tests of faults list the same cases."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import CHECKOUT

PAGE = CHECKOUT / "docs" / "concepts" / "what-can-go-wrong.md"
FAULTS = CHECKOUT / "tests" / "faults"
CASES = 73


def rows() -> dict[int, str]:
    """The last cell of each case."""
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in PAGE.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert all(len(row) == 4 for row in cells)
    found = {int(row[0]): row[3].strip() for row in cells}
    assert len(found) == len(cells), "a case stands there twice"
    return found


def files_of_faults() -> dict[int, Path]:
    """The test file of each case, by its number."""
    files = sorted(FAULTS.glob("test_*.py"))
    found = {int(file.name[5:7]): file for file in files}
    assert len(found) == len(files), "a case has two files"
    return found


def test_every_case_is_on_the_page_in_order_with_its_test() -> None:
    assert list(rows()) == list(range(1, CASES + 1))
    files = files_of_faults()
    for number, cell in rows().items():
        assert number in files, f"case {number} has no test"
        assert cell == f"`{files[number].name}`"


def test_every_test_of_a_fault_is_on_the_page_and_begins_with_a_sentence() -> None:
    assert set(files_of_faults()) <= set(rows())
    for file in files_of_faults().values():
        first = file.read_text().splitlines()[0]
        assert re.fullmatch(r'""".{20,}', first), f"{file.name} begins with {first!r}"
