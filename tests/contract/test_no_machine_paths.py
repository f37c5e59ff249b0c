"""Nothing in the repository knows the machine it was written on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import processes

# Written in pieces so that this file does not find itself.
MACHINE = re.compile(
    "|".join(["/ho" + r"me/\w", "/ro" + r"ot/\w", "/Us" + r"ers/\w", "/wo" + r"rk/\w", "/op" + r"t/\w", "index" + "-url"])
)


def lines_of_a_machine(text: str) -> list[str]:
    return [line for line in text.splitlines() if MACHINE.search(line)]


def test_no_file_of_the_repository_holds_a_path_of_one_machine(checkout: Path) -> None:
    listed = processes.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
    )
    names = [name for name in listed.stdout.split("\0") if name]
    assert "pyproject.toml" in names
    found = {}
    for name in names:
        file = checkout / name
        try:
            text = file.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # not text, or deleted and not yet committed
        if lines := lines_of_a_machine(text):
            found[name] = lines
    assert found == {}


@pytest.mark.parametrize("path", ["/ho" + "me/ann/vitlab", "/wo" + "rk/main", "--extra-index" + "-url x"])
def test_such_a_path_would_be_found(path: str) -> None:
    assert lines_of_a_machine(f"see {path} for more")
