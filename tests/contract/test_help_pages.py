"""Every verb has a help page that mentions all it takes, and a line in `vitlab --help`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import tyro

from vitlab.cli.main import VERBS, main
from vitlab.cli.study import STUDIES


def flags_of(arguments: type) -> Iterator[str]:
    """The options of a verb, those of a dataclass inside it too, by the names they are given on the command line."""
    hints = get_type_hints(arguments, include_extras=True)
    for field in fields(arguments):
        hint = hints[field.name]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        inner = get_args(hint)[0] if marks else hint
        if is_dataclass(inner) and isinstance(inner, type):
            yield from flags_of(inner)
        elif not any("Positional" in repr(mark) for mark in marks):
            names = [vars(mark)["name"] for mark in marks if isinstance(mark, type(tyro.conf.arg()))]
            given = [name for name in names if name is not None]
            yield f"--{(given[0] if given else field.name).replace('_', '-')}"


def pages() -> dict[tuple[str, ...], type]:
    """The words before `--help` of each page that says what is taken, and what that is: a verb, or each action of one."""
    found: dict[tuple[str, ...], type] = {}
    for verb, (_, name) in VERBS.items():
        module = vars(import_module(name))
        if "ACTIONS" in module:
            found |= {(verb, action): arguments for action, (_, arguments, _) in module["ACTIONS"].items()}
        elif "STUDIES" in module:
            found |= {(verb, study): import_module(place).Arguments for study, (_, place) in module["STUDIES"].items()}
        else:
            found[(verb,)] = module["Arguments"]
    return found


@pytest.mark.parametrize(
    ("words", "arguments"), pages().items(), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_a_help_page_mentions_every_option_of_its_verb(
    words: tuple[str, ...], arguments: type, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*words, "--help"]) == 0
    page = capsys.readouterr().out
    assert arguments.__doc__ is not None
    docstring = " ".join(arguments.__doc__.split())
    assert docstring in " ".join(page.split())
    flags = list(flags_of(arguments))
    assert "--json" in flags
    assert [flag for flag in flags if f" {flag} " not in page] == []


@pytest.mark.parametrize("words", pages(), ids=" ".join)
def test_no_help_page_shows_a_default_of_none(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main([*words, "--help"])
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
    tables = [*VERBS.values(), *STUDIES.values()]
    assert files == {module.rsplit(".", 1)[1] for _, module in tables}
