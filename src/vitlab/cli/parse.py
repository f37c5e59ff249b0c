"""Command line -> frozen dataclass, by tyro; what tyro would say in a box of many lines becomes one line and a hint."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, TypeVar, Union

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from vitlab.cli.talk import UsageError
from vitlab.config.model import PROFILES
from vitlab.errors import did_you_mean

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
            raise _told(heard.getvalue(), arguments, words, verb) from None
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


def profile(word: str) -> str:
    """The name of a numerics profile."""
    if word not in PROFILES:
        raise ValueError(f"{word!r} is not one of {', '.join(PROFILES)}")
    return word


def existing(word: str) -> str:
    """A file or folder that is there, or a model on the hub (`hub:owner/name`)."""
    if not is_checkpoint(word):
        raise ValueError(f"no file or folder called {word!r}")
    return word


def is_checkpoint(word: str) -> bool:
    """Whether this names a file or folder that is there, or a model on the hub."""
    return word.startswith("hub:") or os.path.exists(word)  # noqa: PTH110  (Path.exists raises on a name that is too long)


# Union with None first: tyro then knows a default of None at once; for `int | None` it imports typeguard, 60 ms a start.
Count = Annotated[Union[None, int], one("N", count)]  # noqa: UP007, RUF036
HeightWidth = Annotated[Union[None, tuple[int, int]], one("HxW", height_width)]  # noqa: UP007, RUF036
Profile = Annotated[Union[None, str], one("{" + ",".join(PROFILES) + "}", profile)]  # noqa: UP007, RUF036
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


def _told(box: str, arguments: type, words: Sequence[str], verb: str) -> UsageError:
    """What a box of tyro's says, in one line. A text not foreseen here keeps its own words."""
    ways = f"vitlab {verb} --help lists what it takes"
    options = _options(arguments, verb)
    for word in words:
        option = word.partition("=")[0]
        if re.match(r"--?[A-Za-z]", option) and option.replace("_", "-") not in options:
            near = get_close_matches(option.lstrip("-"), [name.lstrip("-") for name in options], n=1)
            return UsageError(f"no option called {option}", hint=f"did you mean --{near[0]}?" if near else ways)
    parts = _parts(box)
    said = " ".join(line.strip() for line in parts[0]) if parts else "the command line was not understood"
    if said.startswith("Missing from"):
        names = [line.split()[0] for line in parts[0] if re.match(r" {4}\S", line)]
        return UsageError(f"missing {', '.join(names)}", hint=ways)
    if match := re.match(r"Unrecognized options: (.+)", said):
        first = max((word for word in words if match[1].startswith(word)), key=len, default=match[1])
        return UsageError(f"unexpected argument {first!r}", hint=ways)
    if match := re.match(r"invalid choice (.+) for argument '(.+?)'\. Expected one of \((.+)\)", said):
        choices = sorted(set(re.findall(r"'([^']+)'", match[3])) - {"None"})
        given = max((word for word in words if repr(word) == match[1]), key=len, default=match[1])
        hint = did_you_mean(given, choices) or ways
        return UsageError(f"{match[2]}: {given!r} is not one of {', '.join(choices)}", hint=hint)
    if match := re.match(r"Missing value for argument '(.+?)'", said):
        return UsageError(f"{match[1]} needs a value", hint=ways)
    return UsageError(said.removeprefix("Error parsing "))


def _options(arguments: type, verb: str) -> list[str]:
    """Every `--option` on the help page, and `-h`."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit), _columns(4096):
        _fill(arguments, ["--help"], verb)
    return ["-h", *re.findall(r"(?<!\S)--[a-z][\w.:-]*", page.getvalue())]


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
