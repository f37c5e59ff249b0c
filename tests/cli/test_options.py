"""From a function's signature and the words of a command line to its arguments; what does not fit is refused in one line."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pytest

from vitlab.cli import console
from vitlab.cli.console import NAMES
from vitlab.cli.main import VERBS
from vitlab.cli.options import (
    WORDS,
    count,
    documentation,
    existing,
    in_options,
    numbers,
    parameters,
    parse,
    severities,
    size,
    strength,
)
from vitlab.config.renamed import OPTIONS
from vitlab.errors import UsageError

if TYPE_CHECKING:
    from vitlab.api import FileName, Positive, Size


def probe(
    first: str,
    others: Sequence[str] = (),
    *,
    needed: str,
    image_size: Size | None = None,
    number: int | None = None,
    seed: int = 7,
    kind: Literal["red", "green"] = "red",
    rate: Positive = 0.5,
    flag: bool = False,
    out: FileName | None = None,
    start: str | None = None,
    progress: object = None,
) -> None:
    """Try a signature: all kinds of parameters.

    Returns nothing.

    Args:
        first: the first
        others: the others (default: none)
        needed: what is needed
        image_size: a size (default: own)
        number: a number
            on two lines (default: none)
        seed: a seed
        kind: a choice
        rate: a rate
        flag: a flag
        out: a file (default: none)
        start: where to start (default: nowhere)
    """


def filled(*words: str, function: Callable[..., Any] = probe) -> dict[str, Any]:
    arguments, _ = parse(function, words, verb="probe", notice=lambda text: None)
    return arguments


DEFAULTS: dict[str, Any] = {
    "first": "a", "others": (), "needed": "n", "image_size": None, "number": None, "seed": 7, "kind": "red", "rate": 0.5,
    "flag": False, "out": None, "start": None,
}  # fmt: skip


def test_what_is_left_out_keeps_the_functions_default() -> None:
    assert filled("a", "--needed", "n") == DEFAULTS


def test_each_option_sets_its_parameter() -> None:
    words = "a b c --needed n --image-size 160x224 --number=3 --seed 0 --kind green --rate 2 --flag --out o.png --from there"
    asked = {"others": ("b", "c"), "image_size": (160, 224), "number": 3, "seed": 0, "kind": "green", "rate": 2.0}
    assert filled(*words.split()) == DEFAULTS | asked | {"flag": True, "out": "o.png", "start": "there"}


def test_json_is_an_option_of_every_verb() -> None:
    assert parse(probe, ["a", "--needed", "n", "--json"], verb="probe", notice=lambda text: None)[1] is True
    assert parse(probe, ["a", "--needed", "n"], verb="probe", notice=lambda text: None)[1] is False


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("", "missing FIRST, --needed", "lists"),
        ("a", "missing --needed", "lists"),
        ("a --needed n --sede 3", "no option called --sede", "did you mean --seed?"),
        ("--sede 3 a --needed n", "no option called --sede", "did you mean --seed?"),
        ("a --needed n -x", "no option called -x", "lists"),
        ("a --needed n --first b", "no option called --first", "by its place: vitlab probe FIRST"),
        ("a --needed n --no-flag", "no option called --no-flag", "did you mean --flag?"),
        ("a --needed n --kind gren", "--kind: 'gren' is not one of red, green", "did you mean green?"),
        ("a --needed n --image-size", "--image-size needs a value", "lists"),
        (
            "a --needed n --image-size 1x2x3",
            "--image-size: '1x2x3' is neither one number (224) nor height x width (160x224)",
            "lists",
        ),
        ("a --needed n --seed 1.5", "--seed: '1.5' is not a whole number of at least 0", "lists"),
        ("a --needed n --rate fast", "--rate: 'fast' is not a number above 0", "lists"),
    ],
)
def test_what_is_not_understood_is_one_line_and_a_hint(words: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        filled(*words.split())
    assert caught.value.message == message
    assert hint in str(caught.value.hint)


def test_a_help_page_calls_parameters_by_their_options() -> None:
    text = "with `image_size` or `kind=red` of `first`, `flag=True`, `start`; `embed` and `vitlab embed` are verbs"
    told = "with --image-size or --kind red of FIRST, --flag, --from; embed and `vitlab embed` are verbs"
    assert in_options(probe, text) == told


def test_no_help_page_has_a_parameter_in_backticks() -> None:
    for verb, function in VERBS.items():
        page = "\n".join(f"{text} {unset}" for text, unset in documentation(function).values())
        assert not re.findall(r"`[a-z_0-9]+`", in_options(function, page)), verb


@pytest.mark.parametrize("terminal", ["20", "80", "5000"])
def test_an_error_does_not_depend_on_the_terminal(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", terminal)
    word = "w" * 500
    with pytest.raises(UsageError, match=f"'{word}'"):
        filled("a", "--needed", "n", "--kind", word)
    assert os.environ["COLUMNS"] == terminal


def test_help_is_printed_once_and_ends_the_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        filled("--help")
    assert leaving.value.code in (None, 0)
    page = capsys.readouterr().out
    assert page.count("usage: vitlab probe") == 1
    assert "Try a signature" in page
    assert "Returns" not in page
    assert "(default: own)" in page
    assert "False" not in page


def test_a_docstring_is_read_line_by_line() -> None:
    assert console.summary(probe) == "Try a signature"
    assert console.arguments(probe)["number"] == ("a number on two lines", "none")
    assert console.arguments(probe)["seed"] == ("a seed", None)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_is_a_parameter_of_its_function_with_the_same_default(verb: str) -> None:
    function = VERBS[verb]
    required = [one for one in parameters(function) if one.default is one.empty]
    words = [_example(one) for one in required if one.kind is one.POSITIONAL_OR_KEYWORD]
    for one in required:
        if one.kind is one.KEYWORD_ONLY:
            words += [f"--{one.name.replace('_', '-')}", _example(one)]
    arguments, as_json = parse(function, words, verb=verb, notice=lambda text: None)
    assert as_json is False
    assert {*arguments} == {*inspect.signature(function).parameters} - {"progress"}
    assert {name: value for name, value in arguments.items() if name not in {one.name for one in required}} == {
        one.name: one.default for one in parameters(function) if one.default is not one.empty
    }


def _example(parameter: inspect.Parameter) -> str:
    """A word that any parameter takes: the folder here exists, and a format has a name."""
    return "timm" if parameter.name == "to" else "."


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_documented_and_says_what_leaving_it_out_means(verb: str) -> None:
    function = VERBS[verb]
    documented = documentation(function)
    for parameter in parameters(function):
        text, unset = documented[parameter.name]
        assert text
        if parameter.default is None:
            assert unset is not None, f"{verb}: {parameter.name} does not say what None means"


@pytest.mark.parametrize("verb", VERBS)
def test_a_docstring_documents_no_parameter_that_is_not_there(verb: str) -> None:
    assert {*console.arguments(VERBS[verb])} <= {*inspect.signature(VERBS[verb]).parameters}


def test_every_renamed_option_is_an_option_of_today() -> None:
    for verb, table in OPTIONS.items():
        options = {
            f"--{NAMES.get(one.name, one.name).replace('_', '-')}"
            for one in parameters(VERBS[verb])
            if one.kind is one.KEYWORD_ONLY
        }
        for old, new in table.items():
            assert old not in options
            assert new == "" or new.partition("=")[0] in options


def test_types_of_the_command_line_are_types_of_the_functions() -> None:
    import vitlab.api

    source = inspect.getsource(vitlab.api)
    assert [name for name in WORDS if f"{name}" not in source] == []


@pytest.mark.parametrize(("word", "value"), [("224", (224, 224)), ("160x224", (160, 224)), ("1x1", (1, 1))])
def test_a_size_is_one_number_or_two(word: str, value: tuple[int, int]) -> None:
    assert size(word) == value


@pytest.mark.parametrize("word", ["", "0", "0x4", "4x0", "-4", "4x", "x4", "4 x 4", "4x4x4", "1e3", "٤", "9" * 30])
def test_what_is_no_size_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="neither one number"):
        size(word)


@pytest.mark.parametrize("word", ["", "-1", "1.0", "1_000", "٤", "9" * 30])
def test_what_is_no_count_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        count(word)


def test_a_list_of_numbers_has_commas() -> None:
    assert numbers("1,5,10,25") == (1, 5, 10, 25)
    assert numbers("7") == (7,)
    for word in ("", "1,,2", "0", "-1", "1.5", "٣"):
        with pytest.raises(ValueError, match=r"whole number|at least 1"):
            numbers(word)


@pytest.mark.parametrize(("word", "levels"), [("3", (3,)), ("1-5", (1, 2, 3, 4, 5)), ("5,1-2", (1, 2, 5))])
def test_severities_are_numbers_ranges_and_lists(word: str, levels: tuple[int, ...]) -> None:
    assert severities(word) == levels


@pytest.mark.parametrize("word", ["", "0", "6", "1-", "5-1", "a", "1;2"])
def test_other_severities_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"severity|backwards"):
        severities(word)


def test_the_strength_of_randaugment_is_two_numbers_or_none() -> None:
    assert strength("2,9") == (2, 9.0)
    assert strength("none") is None
    for word in ("", "2", "2,", "a,9", "2,9,1"):
        with pytest.raises(ValueError, match="neither none nor"):
            strength(word)


def test_a_name_too_long_for_a_file_is_no_file() -> None:
    with pytest.raises(ValueError, match="no file or folder"):
        existing("x" * 10_000)


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--learning-rate", "--lr"),
        ("--learning_rate", "--lr"),
        ("--pretrained", "--from"),
        ("--img-size", "--image-size"),
        ("--num-workers", "--workers"),
        ("--output-dir", "--out"),
        ("--epoch", "--epochs"),
    ],
)
def test_the_option_of_another_library_is_answered_with_the_one_here(option: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"no option called {option}") as refused:
        parse(VERBS["finetune"], ["data", option, "1"], verb="finetune", notice=lambda text: None)
    assert refused.value.hint == f"did you mean {meant}?"


@pytest.mark.parametrize(("verb", "usage"), [("models", " [PATTERN] "), ("describe", " MODEL"), ("study compare", " [NAME]")])
def test_an_argument_that_may_be_left_out_is_in_brackets(verb: str, usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(VERBS[verb], ["--help"], verb=verb, notice=print)
    assert usage in capsys.readouterr().out.splitlines()[0]
