"""Every verb has a help page that mentions all it takes, and a line in `vitlab --help`."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from vitlab.cli.main import VERBS, main


def is_positional(arguments: type, field: str) -> bool:
    hint = get_type_hints(arguments, include_extras=True)[field]
    return any("Positional" in repr(mark) for mark in get_args(hint)[1:])


@pytest.mark.parametrize("verb", VERBS)
def test_a_help_page_mentions_every_option_of_its_verb(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([verb, "--help"]) == 0
    page = capsys.readouterr().out
    arguments = import_module(VERBS[verb][1]).Arguments
    docstring = " ".join(arguments.__doc__.split())
    assert docstring in " ".join(page.split())
    flags = [f"--{field.name.replace('_', '-')}" for field in fields(arguments) if not is_positional(arguments, field.name)]
    assert "--json" in flags
    assert [flag for flag in flags if f" {flag} " not in page] == []


@pytest.mark.parametrize("verb", VERBS)
def test_no_help_page_shows_a_default_of_none(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([verb, "--help"])
    assert "None" not in capsys.readouterr().out


def test_the_first_help_page_lists_every_verb_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    for verb, (line, _) in VERBS.items():
        assert any(text.split(maxsplit=1) == [verb, line] for text in page.splitlines())


def test_calling_vitlab_alone_is_asking_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    main(["-h"])
    assert capsys.readouterr().out == alone


def test_every_verb_file_is_in_the_table(checkout: Path) -> None:
    files = {file.stem for file in (checkout / "src" / "vitlab" / "cli").glob("*.py") if "def run(" in file.read_text()}
    assert files == {module.rsplit(".", 1)[1] for _, module in VERBS.values()}
