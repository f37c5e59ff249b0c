"""Command line -> frozen dataclass, by tyro; what tyro would say in a box of many lines becomes one line and a hint."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from vitlab.cli.talk import UsageError
from vitlab.config.check import did_you_mean

T = TypeVar("T")


def parse(arguments: type[T], words: Sequence[str], *, verb: str) -> T:
    """The dataclass `arguments` filled from `words`, or UsageError; `--help` prints a page and raises SystemExit."""
    heard = io.StringIO()
    try:
        # tyro draws for the terminal it sees. Here it sees none, and so writes plain text that _told can read.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(heard), _columns(4096):
            return _fill(arguments, words, verb)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise _told(heard.getvalue(), verb) from None
    return _fill(arguments, words, verb)  # a help page was asked for: now let it be seen


def _fill(arguments: type[T], words: Sequence[str], verb: str) -> T:
    return tyro.cli(arguments, prog=f"vitlab {verb}", args=list(words), config=(tyro.conf.FlagCreatePairsOff,))


def one(metavar: str, read: Callable[[str], T]) -> PrimitiveConstructorSpec[T]:
    """How one word of the command line becomes a value: `read` returns it or raises ValueError with what is wrong."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: value is not None,
        str_from_instance=lambda value: ["x".join(map(str, value)) if isinstance(value, tuple) else str(value)],
    )


def unset(meaning: str) -> object:
    """For a field whose default is None: what leaving it out means, in place of `default: None` on the help page."""
    return tyro.conf.arg(help_behavior_hint=f"(default: {meaning})")


def positional(name: str) -> object:
    """For a field given by its place: what it is called on the help page and in errors."""
    return tyro.conf.arg(metavar=name)


def count(word: str) -> int:
    """A whole number of at least 0."""
    if not re.fullmatch(r"[0-9]{1,18}", word):
        raise ValueError(f"{word!r} is not a whole number of at least 0")
    return int(word)


def height_width(word: str) -> tuple[int, int]:
    """`224` or `160x224`: one side for both, or height x width, each at least 1."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})(?:x([1-9][0-9]{0,8}))?", word)
    if match is None:
        raise ValueError(f"{word!r} is neither one number (224) nor height x width (160x224)")
    return int(match[1]), int(match[2] or match[1])


def existing(word: str) -> str:
    """A file or folder that is there, or a model on the hub (`hub:owner/name`)."""
    if not word.startswith("hub:") and not Path(word).exists():
        raise ValueError(f"no file or folder called {word!r}")
    return word


Count = Annotated[int | None, one("N", count)]
HeightWidth = Annotated[tuple[int, int] | None, one("HxW", height_width)]
Existing = Annotated[str, one("FILE", existing)]


@contextlib.contextmanager
def _columns(width: int) -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _told(box: str, verb: str) -> UsageError:
    """What a box of tyro's says, in one line. A text not foreseen here keeps its own words."""
    ways = f"vitlab {verb} --help lists what it takes"
    parts = _parts(box)
    said = " ".join(line.strip() for line in parts[0]) if parts else "the command line was not understood"
    if said.startswith("Missing from"):
        names = [line.strip().split()[0] for line in parts[0] if re.match(r" {4}\S", line)]
        return UsageError(f"missing {', '.join(names)}", hint=ways)
    if match := re.match(r"Unrecognized options: ([^,]+)", said):
        meant = [line.split()[0] for part in parts[1:] for line in part if re.match(r" {4}-", line)]
        if not match[1].startswith("-"):
            return UsageError(f"unexpected argument {match[1]!r}", hint=ways)
        return UsageError(f"no option called {match[1]}", hint=f"did you mean {meant[0]}?" if meant else ways)
    if match := re.match(r"invalid choice (.+) for argument '(.+?)'\. Expected one of \((.+)\)", said):
        words = sorted(set(re.findall(r"'([^']+)'", match[3])) - {"None"})
        given = match[1].strip("'")
        hint = did_you_mean(given, words) or ways
        return UsageError(f"{match[2]}: {given!r} is not one of {', '.join(words)}", hint=hint)
    if match := re.match(r"Missing value for argument '(.+?)'", said):
        return UsageError(f"{match[1]} needs a value", hint=ways)
    return UsageError(said.removeprefix("Error parsing "))


def _parts(box: str) -> list[list[str]]:
    """The lines under a box's title, parted at its rules and empty lines. Text stands two spaces in, plus its own."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:
        text = line.removeprefix("  ").rstrip()
        if re.fullmatch(r"[ -]*", text):
            parts.append([])
        else:
            parts[-1].append(text)
    return [part for part in parts if part]
