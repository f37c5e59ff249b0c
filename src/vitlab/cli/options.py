"""Function -> options: the command line of a verb, read from the signature and docstring of its function in `vitlab.api`.

Parameters before the `*` are given by their place, the others as `--options`. How one word becomes a value is decided by the
parameter's annotation: `WORDS` maps each type of api.py to a parser. tyro does the parsing.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import os
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, make_dataclass
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from vitlab import api
from vitlab.cli import console
from vitlab.cli.console import NAMES
from vitlab.config import data, renamed
from vitlab.config.grid_detector import DetectorKind
from vitlab.config.model import Task
from vitlab.config.run import RunConfig
from vitlab.config.segmenter import Decoder
from vitlab.config.train import HeadStart, Offload, Precision, Strategy, Trainable
from vitlab.errors import ConfigError, UsageError, did_you_mean
from vitlab.interpretation import config as interpretation
from vitlab.io.address import is_address
from vitlab.recipes.table import RECIPES
from vitlab.studies.config import PseudoLabels

NOT_OPTIONS = ("progress",)
_HINT = "; hint: "
"""What parts a ValueError's sentence from its hint; tyro passes both on as one text."""


# --- words of the command line -> values --------------------------------------------------------------------------------------


def _word(metavar: str, read: Callable[[str], Any] = str, *, many: bool = False) -> type:
    """A type of api.py as the command line has it: `read` makes a value of a word or raises ValueError; `many` takes several."""
    return type(metavar, (), {"metavar": metavar, "read": staticmethod(read), "many": many})


def count(word: str) -> int:
    """A whole number of at least 0."""
    if not re.fullmatch(r"[0-9]{1,18}", word):
        raise ValueError(f"{word!r} is not a whole number of at least 0")
    return int(word)


def whole(word: str) -> int:
    """A whole number."""
    if not re.fullmatch(r"-?[0-9]{1,18}", word):
        raise ValueError(f"{word!r} is not a whole number")
    return int(word)


def number(word: str) -> float:
    """A number."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{word!r} is not a number")
    return value


def positive(word: str) -> float:
    """A number above 0."""
    with contextlib.suppress(ValueError):
        if (value := number(word)) > 0:
            return value
    raise ValueError(f"{word!r} is not a number above 0")


def fraction(word: str) -> float:
    """A number of at least 0 and below 1."""
    with contextlib.suppress(ValueError):
        if 0 <= (value := number(word)) < 1:
            return value
    raise ValueError(f"{word!r} is not a number of at least 0 and below 1")


def size(word: str) -> tuple[int, int]:
    """`224` or `160x224`: one side for both, or height x width, each at least 1."""
    match = re.fullmatch(r"([1-9][0-9]{0,8})(?:x([1-9][0-9]{0,8}))?", word)
    if match is None:
        raise ValueError(f"{word!r} is neither one number (224) nor height x width (160x224)")
    return int(match[1]), int(match[2] or match[1])


def sizes(word: str) -> tuple[tuple[int, int], ...]:
    """`8,16,16x32`: sizes."""
    return tuple(size(part) for part in word.split(","))


def numbers(word: str) -> tuple[int, ...]:
    """`1,5,10`: whole numbers of at least 1."""
    parts = tuple(count(part) for part in word.split(","))
    if not all(parts):
        raise ValueError(f"{word!r}: each number is at least 1")
    return parts


def layers(word: str) -> tuple[int, ...]:
    """`3,7,11`: numbers of layers from 0."""
    return tuple(count(part) for part in word.split(","))


def learning_rates(word: str) -> tuple[float, ...]:
    """`0.001,0.003`: numbers above 0."""
    return tuple(positive(part) for part in word.split(","))


def severities(word: str) -> tuple[int, ...]:
    """`3`, `1-5` or `1,3,5`."""
    if not re.fullmatch(r"[1-5](-[1-5])?(,[1-5](-[1-5])?)*", word):
        raise ValueError(f"{word!r} is neither a severity from 1 to 5, nor a range (1-5), nor a list (1,3,5)")
    found: set[int] = set()
    for part in word.split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise ValueError(f"{part!r} runs backwards")
        found.update(range(int(low), int(high or low) + 1))
    return tuple(sorted(found))


def patch(word: str) -> str | tuple[int, int]:
    """`3,5`, `class` or `distill`."""
    if word in ("class", "distill"):
        return word
    if not (match := re.fullmatch(r"([0-9]{1,9}),([0-9]{1,9})", word)):
        raise ValueError(f"{word!r} is neither row,column of a patch (3,5) nor class nor distill")
    return int(match[1]), int(match[2])


def strength(word: str) -> tuple[int, float] | None:
    """`2,9` or `none`."""
    if word == "none":
        return None
    if not (match := re.fullmatch(r"([0-9]{1,9}),([0-9.]{1,9})", word)):
        raise ValueError(f"{word!r} is neither none nor layers,magnitude (2,9)")
    return int(match[1]), number(match[2])


def recipe(word: str) -> str:
    """The name of a recipe."""
    if word not in RECIPES:
        hint = did_you_mean(word, list(RECIPES)) or f"recipes are {', '.join(RECIPES)}"
        raise ValueError(f"no recipe called {word!r}{_HINT}{hint}")
    return word


def existing(word: str) -> str:
    """A file or folder that exists, an address (s3://...), or a model on the hub (`hub:owner/name`)."""
    if not word.startswith("hub:") and not is_address(word) and not os.path.exists(word):  # noqa: PTH110 (Path.exists raises on a name that is too long)
        near = _near(word)
        raise ValueError(f"no file or folder called {word!r}" + (_HINT + near if near else ""))
    return word


def _near(word: str) -> str | None:
    from vitlab.io.files import near_name  # imports numpy, which a help page does not need

    return near_name(Path(word))


def checkpoint(word: str) -> str:
    """A file or folder that exists, a model on the hub, or the name of public weights."""
    with contextlib.suppress(ValueError):
        return existing(word)
    from vitlab.config.public_weights import find_weights

    try:
        find_weights(word)
    except ConfigError as error:
        near = error.hint if error.hint and error.hint.startswith("did you mean") else _near(word)
        hint = near or "`vitlab models` lists public weights"
        raise ValueError(f"no file, folder or public weights called {word!r}{_HINT}{hint}") from None
    return word


# What the names in annotations of api.py are here.
WORDS: dict[str, Any] = {
    "FileName": _word("FILE"),
    "Folder": _word("FOLDER"),
    "ModelLike": _word("MODEL", checkpoint),
    "ModelsLike": _word("MODEL", many=True),
    "Existing": _word("", existing),
    "ModelOrName": _word("NAME|FILE"),
    "Layer": _word("N", whole),
    "ImagesLike": _word("IMAGE...", many=True),
    "Size": _word("HxW", size),
    "Sizes": _word("HxW,...", sizes),
    "Names": _word("NAME,..."),
    "Numbers": _word("N,...", numbers),
    "Layers": _word("N,...", layers),
    "LearningRates": _word("X,...", learning_rates),
    "Severities": _word("1-5", severities),
    "Patch": _word("ROW,COLUMN|class|distill", patch),
    "RandAugment": _word("N,X|none", strength),
    "RecipeName": _word("NAME", recipe),
    "Fraction": _word("X", fraction),
    "Positive": _word("X", positive),
    "Split": data.Split,
    "Resize": data.Resize,
    "Interpolation": data.Interpolation,
    "PixelScale": data.PixelScale,
    "CorruptPolicy": data.CorruptPolicy,
    "OnBroken": data.OnBroken,
    "FigureName": _word("NAME"),
    "Form": interpretation.Form,
    "Occluder": interpretation.Occluder,
    "Overlay": interpretation.Overlay,
    "Theme": interpretation.Theme,
    "Precision": Precision,
    "HeadStart": HeadStart,
    "Task": Task,
    "Decoder": Decoder,
    "DetectorKind": DetectorKind,
    "Trainable": Trainable,
    "Offload": Offload,
    "Strategy": Strategy,
    "PseudoLabels": PseudoLabels,
    "EngineName": Literal["local", "ray"],
    "BackendName": Literal["auto", "torch", "compile", "onnxruntime", "openvino"],
    "Tta": Literal["mirror", "crops"],
    "ResultFormat": Literal["text", "jsonl", "csv", "parquet"],
    "RunConfig": RunConfig,
    "TextIO": TextIO,
    "Run": str,
    "ProgressCallback": object,
}
_PLAIN = {str: _word("TEXT"), int: _word("N", count), float: _word("X", number)}


def _choice(kind: Any) -> type:
    """One of the words of a `Literal` type."""
    words = get_args(kind)

    def read(word: str) -> str:
        if word not in words:
            near = did_you_mean(word, words)
            raise ValueError(f"{word!r} is not one of {', '.join(words)}" + (_HINT + near if near else ""))
        return word

    return _word("{" + ",".join(words) + "}", read)


def _kind(annotation: Any) -> Any:
    """The type of a parameter on the command line; of a union, the first member that a word can express."""
    members = [annotation] if get_origin(annotation) not in (Union, types.UnionType) else list(get_args(annotation))
    for member in members:
        if isinstance(member, type) and hasattr(member, "metavar"):
            return member
    for member in members:
        if member is bool:
            return bool
        if get_origin(member) is Literal:
            return _choice(member)
        if member in _PLAIN:
            return _PLAIN[member]
        if get_origin(member) in (Sequence, tuple) and get_args(member)[0] is str:
            return _word("NAME", many=True)
    raise TypeError(f"{annotation} cannot be given on a command line")


# --- signature -> options -----------------------------------------------------------------------------------------------------


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function that are options of its verb."""
    return [one for one in inspect.signature(function).parameters.values() if one.name not in NOT_OPTIONS]


@cache
def _arguments(function: Callable[..., Any]) -> type:
    """A dataclass for tyro: one field a parameter, and `json`."""
    asked = parameters(function)
    annotations = {one.name: one.annotation for one in asked}
    hints = get_type_hints(
        type("Hints", (), {"__annotations__": annotations}), {**vars(api), **WORDS, "os": os}, include_extras=True
    )
    helps = documentation(function)
    spoken = partial(in_options, function)
    texts = {name: (spoken(text), unset and spoken(unset)) for name, (text, unset) in helps.items()}
    fields = [_field(one, _kind(hints[one.name]), *texts[one.name]) for one in asked]
    fields.append(
        ("json", Annotated[bool, tyro.conf.arg(name="json", help="print JSON", help_behavior_hint="")], field(default=False))
    )
    made = make_dataclass(function.__name__, fields, kw_only=True)
    made.__doc__ = spoken(console.description(function))
    return made


_IN_BACKTICKS = re.compile(r"`([a-z][a-z_0-9]*)(?:=([^`\s]+))?`")


def in_options(function: Callable[..., Any], text: str) -> str:
    """A docstring's text on a help page: `image_size` is --image-size, what is given by its place is DATA, other words are bare."""
    known = {one.name: one for one in parameters(function)}

    def spoken(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name not in known:
            return found[0].strip("`")
        if known[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and name not in NAMES:
            return name.upper()
        return f"--{NAMES.get(name, name).replace('_', '-')}" + (f" {value}" if value not in (None, "True") else "")

    return _IN_BACKTICKS.sub(spoken, text)


def _field(parameter: inspect.Parameter, kind: Any, text: str, unset: str | None) -> tuple[str, Any, Any]:
    name, default = NAMES.get(parameter.name, parameter.name), parameter.default
    by_place = parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name not in NAMES
    hint = f"(default: {unset})" if unset is not None else "" if default is False else None
    if kind is not bool and kind.many and default is parameter.empty:
        hint = "(required)"  # tyro takes none of many for a default
    value = field() if default is parameter.empty else field(default=default)
    if kind is bool:
        return parameter.name, Annotated[bool, tyro.conf.arg(name=name, help=text, help_behavior_hint=hint)], value
    metavar = kind.metavar if kind.metavar and (kind not in _PLAIN.values() or not by_place) else parameter.name.upper()
    if by_place and default is not parameter.empty:
        metavar = f"[{metavar}]"
    arg = tyro.conf.arg(name=name, help=text, metavar=metavar, help_behavior_hint=hint)
    if kind.many:
        shape: Any = Annotated[tuple[str, ...], arg]
    else:
        spec = PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar,
            instance_from_str=lambda words: kind.read(words[0]),
            is_instance=lambda value: value is not None,
            str_from_instance=lambda value: [",".join(map(str, value)) if isinstance(value, tuple) else str(value)],
        )
        # None first: tyro then knows a default of None at once; for `X | None` it imports typeguard, 60 ms a start.
        stored = Union[None, str] if default is None else tuple if isinstance(default, tuple) else str  # noqa: UP007
        shape = Annotated[stored, spec, arg]
    return parameter.name, Annotated[shape, tyro.conf.Positional] if by_place else shape, value


def documentation(function: Callable[..., Any]) -> dict[str, tuple[str, str | None]]:
    """Parameter -> its help, and its default if the text ends in `(default: ...)`.

    Parameters that several functions share are documented at `predict`, `finetune` and, for studies, `study_scaling`.
    """
    known = inspect.signature(function).parameters
    first, second = (api.finetune, api.predict) if "lr" in known else (api.predict, api.finetune)
    found = {**console.arguments(second), **console.arguments(first)}
    if "transfer" in known:
        found |= console.arguments(api.study_scaling)
    found |= console.arguments(function)
    return {one.name: found[one.name] for one in parameters(function)}


# --- parsing, and errors in one line ------------------------------------------------------------------------------------------


def parse(
    function: Callable[..., Any], words: Sequence[str], *, verb: str, notice: Callable[[str], None]
) -> tuple[dict[str, Any], bool]:
    """The arguments of a function from the words of a command line, and whether JSON is asked for.

    UsageError for words that cannot be understood; `--help` prints a page and raises SystemExit.
    """
    arguments, words = _arguments(function), _of_today(words, verb, notice)
    heard = io.StringIO()
    try:
        # Without a terminal, tyro writes plain text that _usage_error can read.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(heard), _columns(4096):
            filled = _fill(arguments, words, verb)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise _usage_error(heard.getvalue(), arguments, words, verb) from None
        filled = _fill(arguments, words, verb)  # a help page: print it
    given = dict(vars(filled))
    as_json = given.pop("json")
    return given, as_json


def _fill(arguments: type, words: Sequence[str], verb: str) -> Any:
    return tyro.cli(arguments, prog=f"vitlab {verb}", args=list(words), config=(tyro.conf.FlagCreatePairsOff,))


def _of_today(words: Sequence[str], verb: str, notice: Callable[[str], None]) -> list[str]:
    """The words with options of earlier releases replaced; a notice says so."""
    table = renamed.OPTIONS.get(verb, {})
    found = list[str]()
    for word in words:
        option, equals, value = word.partition("=")
        if option not in table:
            found.append(word)
            continue
        new = table[option]
        notice(f"note: {option} is now {new or 'given without an option'}; the old name goes away in the next release")
        found += [new + equals + value] if new else [value] if equals else []
    return found


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


def _usage_error(box: str, arguments: type, words: Sequence[str], verb: str) -> UsageError:
    """The error that tyro prints in a box, as one sentence and a hint. An unknown text is kept as it is."""
    ways = f"vitlab {verb} --help lists what it takes"
    options = _options(arguments, verb)
    for word in words:
        option = word.partition("=")[0]
        if re.match(r"--?[A-Za-z]", option) and option.replace("_", "-") not in options:
            known = [name.lstrip("-") for name in options]
            said = option.lstrip("-").replace("_", "-")
            named = (*renamed.ELSEWHERE.get(said, ()), NAMES.get(option.lstrip("-"), ""))
            near = [name for name in named if name in known] or get_close_matches(said, known, n=1)
            if said in (by_place := _by_place(arguments)):
                usage = f"vitlab {verb} {' '.join(by_place.values())}"
                return UsageError(f"no option called {option}", hint=f"give it by its place: {usage}")
            return UsageError(f"no option called {option}", hint=f"did you mean --{near[0]}?" if near else ways)
    parts = _parts(box)
    text = " ".join(line.strip() for line in parts[0]) if parts else "the command line was not understood"
    if text.startswith("Missing from"):
        names = [line.split()[0] for line in parts[0] if re.match(r" {4}\S", line)]
        return UsageError(f"missing {', '.join(names)}", hint=ways)
    if match := re.match(r"Unrecognized options: (.+)", text):
        first = max((word for word in words if match[1].startswith(word)), key=len, default=match[1])
        return UsageError(f"unexpected argument {first!r}", hint=ways)
    if match := re.match(r"Missing value for argument '(.+?)'", text):
        return UsageError(f"{match[1]} needs a value", hint=ways)
    text, _, hint = text.removeprefix("Error parsing ").partition(_HINT)
    return UsageError(text, hint=hint or ways)


def _options(arguments: type, verb: str) -> list[str]:
    """Every `--option` on the help page, and `-h`."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit), _columns(4096):
        _fill(arguments, ["--help"], verb)
    return ["-h", *re.findall(r"(?<!\S)--[a-z][\w.:-]*", page.getvalue())]


def _by_place(arguments: type) -> dict[str, str]:
    """The arguments that are given by their place: name -> how the usage line shows it."""
    hints = get_type_hints(arguments, include_extras=True)
    shown = {}
    for name, hint in hints.items():
        marks = get_args(hint)[1:]
        if tyro.conf.Positional in marks:
            shown[name.replace("_", "-")] = next(str(mark.metavar) for mark in marks if hasattr(mark, "metavar"))
    return shown


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
