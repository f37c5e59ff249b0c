"""From words to a frozen dataclass; what does not fit is refused in one line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import tyro

from vitlab.cli.parse import Count, HeightWidth, count, height_width, is_checkpoint, one, parse, positional, unset
from vitlab.cli.talk import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """Nested settings."""

    rate: float = 0.1
    """a number"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """For tests."""

    first: Annotated[tyro.conf.Positional[str], positional("FIRST")]
    """the first"""

    size: Annotated[HeightWidth, unset("own")] = None
    """a size"""

    number: Annotated[Count, unset("none")] = None
    """a number"""

    seed: Annotated[int, one("N", count)] = 7
    """a seed"""

    kind: Literal["red", "green"] = "red"
    """a choice"""

    rate: float = 0.5
    """a number"""

    inner: Inner = Inner()
    """nested"""

    flag: bool = False
    """a flag"""


def filled(*words: str) -> Arguments:
    return parse(Arguments, words, verb="probe")


def test_what_is_left_out_keeps_its_default() -> None:
    assert filled("a") == Arguments(first="a")


def test_each_option_sets_its_field() -> None:
    words = ("a", "--size", "160x224", "--number=3", "--seed", "0", "--kind", "green", "--inner.rate", "2", "--flag")
    assert filled(*words) == Arguments(first="a", size=(160, 224), number=3, seed=0, kind="green", inner=Inner(rate=2.0), flag=True)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ((), "missing FIRST", "vitlab probe --help lists what it takes"),
        (("a", "--szie", "3"), "no option called --szie", "did you mean --size?"),
        (("--szie", "3", "a"), "no option called --szie", "did you mean --size?"),
        (("a", "--inner.rte=3"), "no option called --inner.rte", "did you mean --inner.rate?"),
        (("a", "-x"), "no option called -x", "vitlab probe --help lists what it takes"),
        (("a", "--no-flag"), "no option called --no-flag", "did you mean --flag?"),
        (("a", "b, c"), "unexpected argument 'b, c'", "vitlab probe --help lists what it takes"),
        (("a", "--kind", "gren"), "--kind: 'gren' is not one of green, red", "did you mean green?"),
        (("a", "--size"), "--size needs a value", "vitlab probe --help lists what it takes"),
        (("a", "--size", "1x2x3"), "--size: '1x2x3' is neither one number (224) nor height x width (160x224)", None),
        (("a", "--seed", "1.5"), "--seed: '1.5' is not a whole number of at least 0", None),
    ],
)
def test_what_is_not_understood_is_told_in_one_line_and_a_hint(words: tuple[str, ...], message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        filled(*words)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize("words", [("a", "--rate", "fast"), ("a", "--inner.rate", "fast")])
def test_a_refusal_of_the_parser_itself_is_one_line_that_names_option_and_value(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        filled(*words)
    assert words[1] in caught.value.message
    assert "fast" in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("terminal", ["20", "80", "5000"])
def test_what_is_told_does_not_depend_on_the_terminal(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", terminal)
    word = "w" * 500
    with pytest.raises(UsageError, match=f"unexpected argument '{word}'"):
        filled("a", word)
    assert os.environ["COLUMNS"] == terminal


def test_help_is_printed_once_and_ends_the_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        filled("--help")
    assert leaving.value.code in (None, 0)
    assert capsys.readouterr().out.count("usage: vitlab probe") == 1


@pytest.mark.parametrize(("word", "size"), [("224", (224, 224)), ("160x224", (160, 224)), ("1x1", (1, 1))])
def test_a_size_is_one_number_or_two(word: str, size: tuple[int, int]) -> None:
    assert height_width(word) == size


@pytest.mark.parametrize("word", ["", "0", "0x4", "4x0", "-4", "4x", "x4", "4 x 4", "4x4x4", "1e3", "٤", "9" * 30])
def test_what_is_no_size_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="neither one number"):
        height_width(word)


@pytest.mark.parametrize("word", ["", "-1", "1.0", "1_000", "٤", "9" * 30])
def test_what_is_no_count_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        count(word)


def test_a_name_too_long_for_a_file_is_no_file() -> None:
    assert not is_checkpoint("x" * 10_000)
