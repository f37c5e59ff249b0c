"""The errors of vitlab: each has one sentence, and one hint of what to do about it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

T = TypeVar("T")

_USER = re.compile(r"(?i)(?<=https://|.http://)[^/?#@\s'\"]+@|(?<=://)[^/?#@\s'\"]*:[^/?#@\s'\"]*@")
_QUERY = re.compile(r"(?<=[?&])([^=&#\s'\"]+)=[^&#\s'\")>]*[^&#\s'\")>:;,.]")
_WORD = re.compile(r"`([a-z_]+)=(?!(?:True|False|None)`)([A-Za-z][\w.+-]*)`")  # a setting that is a word
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s]+")


def masked(text: str) -> str:
    """The text without the secrets of the addresses in it: `user:password@` and the values of a query become `***`."""
    if "://" not in text:
        return text
    return _URL.sub(lambda address: _QUERY.sub(r"\1=***", _USER.sub("***@", address.group())), text)


class VitlabError(Exception):
    """An error a user can understand and act on; the command line prints it as `error:` and `hint:` lines.

    `message` is one sentence that names what is wrong; `hint` says what to do, or is None. `result` is the result of a strict
    function that raises although it has one.
    """

    result: Any = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        message = masked(message)  # a message is printed and logged
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else masked(hint)

    def __str__(self) -> str:
        text = self.message if self.hint is None else f"{self.message} (hint: {self.hint})"
        return _WORD.sub(r"`\1='\2'`", text)  # as Python is written; the command line makes options of both parts


class ConfigError(VitlabError):
    """A setting that is unknown, of the wrong type, or impossible beside the others."""


class UsageError(ConfigError):
    """Arguments that contradict each other or are missing: of a function or a command line (exit code 2)."""


class DataError(VitlabError):
    """An image, folder, archive or label that cannot be used as it is."""


class CheckpointError(VitlabError):
    """A weights file that is damaged, unknown, unsafe, or does not fit the model."""


class TrainingError(VitlabError):
    """A run that cannot start or continue."""


class DivergedError(TrainingError):
    """A run whose loss or weights are no longer finite: its settings do not work, for example the learning rate is too high."""


class OutOfMemoryError(VitlabError):
    """A model, an image or a file that does not fit into memory, even one image at a time."""


class StorageError(VitlabError):
    """Object storage or a web server that cannot be used: no package, no credentials, no permission, no answer in time."""


class ClusterError(VitlabError):
    """A cluster that cannot be reached, or whose machines cannot do the work."""


class ExportError(VitlabError):
    """An exported model that could not be written or does not match its original."""


# The checks that configs make of their fields; each error names the field.


def choice(field: str, value: str, options: Any) -> None:
    """Refuse a word that is not one of the `Literal` type `options`."""
    words = [str(word) for word in get_args(options)]
    if value not in words:
        raise ConfigError(f"{field}={value!r} is not one of {', '.join(words)}", hint=did_you_mean(str(value), words))


LARGEST_SIDE = 1 << 15
"""Pixels of a side of an image that a model takes, and cells of a grid."""
LARGEST_WIDTH = 1 << 20
"""Numbers in a vector, and classes of a head."""
MOST_LAYERS = 1 << 12
"""Layers or blocks of a model."""


def at_least(field: str, value: float, least: float, most: float = math.inf) -> None:
    """Refuse a number below `least` or above `most`, and NaN."""
    if not value >= least:
        raise ConfigError(f"{field}={value} must be at least {least}")
    if value > most:
        raise ConfigError(f"{field}={value} must be at most {most:,}")


def stages(field: str, numbers: Sequence[int]) -> None:
    """Refuse too many stages or too many layers in a stage."""
    at_least(f"the number of {field}", len(numbers), 1, 16)
    for number in numbers:
        at_least(field, number, 1, MOST_LAYERS)


def fraction(field: str, value: float) -> None:
    """Refuse a number outside [0, 1)."""
    if not 0 <= value < 1:
        raise ConfigError(f"{field}={value} must be at least 0 and below 1")


def pair(field: str, value: int | Sequence[int]) -> tuple[int, int]:
    """(height, width), from one number for both or from two, each from 1 to 32,768."""
    height, width = (value, value) if isinstance(value, int) else _two(field, value)
    for side in (height, width):
        if type(side) is not int or side < 1:
            raise ConfigError(f"{field}={value} must be one or two whole numbers of at least 1: height, width")
        at_least(field, side, 1, LARGEST_SIDE)
    return height, width


def _two(field: str, value: Sequence[int]) -> tuple[int, int]:
    if len(value) != 2:
        raise ConfigError(f"{field}={value} must be one or two whole numbers: height, width")
    return value[0], value[1]


def entry_named(table: Mapping[str, T], word: str) -> T | None:
    """The entry of the table under that word, in upper or lower case, or None."""
    return next((entry for name, entry in table.items() if name.casefold() == word.casefold()), None)


def did_you_mean(word: str, known: Sequence[str], *, count: int = 1) -> str | None:
    """A hint that names the closest known words, else one that the word begins with (val: validation); None if nothing is close."""
    folded = {name.casefold(): name for name in known}
    close = [folded[name] for name in get_close_matches(word.casefold(), list(folded), n=count, cutoff=0.5)]
    close = close or [name for short, name in folded.items() if len(short) >= 3 and word.casefold().startswith(short)][:count]
    return f"did you mean {' or '.join(close)}?" if close else None
