"""Every verb has a help page that names all its options, and a line in `vitlab --help`."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from vitlab.cli.console import NAMES, arguments, description, summary
from vitlab.cli.main import GROUPS, VERBS, main
from vitlab.cli.options import in_options, parameters
from vitlab.config.data import Resize


@pytest.mark.parametrize("verb", VERBS)
def test_a_help_page_says_what_the_verb_does_and_names_every_option(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*verb.split(), "--help"]) == 0
    page = capsys.readouterr().out
    assert " ".join(in_options(VERBS[verb], description(VERBS[verb])).split()) in " ".join(page.split())
    options = [one for one in parameters(VERBS[verb]) if one.kind is one.KEYWORD_ONLY or one.name in NAMES]
    for option in [*(NAMES.get(one.name, one.name).replace("_", "-") for one in options), "json"]:
        assert f" --{option} " in page


@pytest.mark.parametrize("verb", VERBS)
def test_no_help_page_shows_a_value_of_python(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*verb.split(), "--help"])
    page = capsys.readouterr().out
    assert "None" not in page
    assert "False" not in page
    assert re.findall(r"\b[a-z_]+=[a-z]\S*", page) == []  # a setting is an option


def test_the_first_help_page_lists_every_verb_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = [text.split(maxsplit=1) for text in capsys.readouterr().out.splitlines()]
    for verb, function in VERBS.items():
        if " " not in verb:
            assert [verb, summary(function)] in lines
    for group in GROUPS:
        assert any(line[:1] == [group] for line in lines)


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_page_of_a_group_lists_its_verbs(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group]) == 0
    alone = capsys.readouterr().out
    main([group, "--help"])
    assert capsys.readouterr().out == alone
    lines = [text.split(maxsplit=1) for text in alone.splitlines()]
    for verb, function in VERBS.items():
        if verb.startswith(f"{group} "):
            assert [verb.removeprefix(f"{group} "), summary(function)] in lines


def test_a_line_of_the_first_page_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 120] == []


def test_calling_vitlab_alone_is_asking_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    main(["-h"])
    assert capsys.readouterr().out == alone


@pytest.mark.parametrize("verb", VERBS)
def test_a_text_that_explains_one_way_to_resize_explains_all(verb: str) -> None:
    text = arguments(VERBS[verb]).get("resize", ("", None))[0]
    assert "squash:" not in text or [way for way in get_args(Resize) if f"{way}:" not in text] == []


@pytest.mark.parametrize("verb", VERBS)
def test_no_text_says_that_an_option_is_required_and_has_a_default(verb: str) -> None:
    assert [name for name, (text, default) in arguments(VERBS[verb]).items() if default and text.endswith("required")] == []
