"""Dataclass <-> JSON, strict both ways: what is written is accepted back, and nothing else is."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitlab.config.renamed import OLD_FAMILY, current
from vitlab.errors import ConfigError, did_you_mean

T = TypeVar("T")
_MOST_LEVELS = 64
_TOO_DEEP = f"it is nested more than {_MOST_LEVELS} levels deep"
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def to_json(value: Any) -> Json:
    """A config as plain lists, dicts and scalars; a config of a model writes its `family` first."""
    if is_dataclass(value) and not isinstance(value, type):
        tag: dict[str, Json] = {"family": family} if (family := _family(type(value))) else {}
        return tag | {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a config")


def to_text(value: Any) -> str:
    """A config as indented JSON text."""
    return json.dumps(to_json(value), indent=2, allow_nan=False) + "\n"


def parsed(text: str | bytes) -> Json:
    """The value of a JSON text; ValueError for NaN and Infinity, which JSON does not have, and for nesting beyond 64 levels."""
    try:
        value: Json = json.loads(text, parse_constant=no_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level: list[Json] = [value]
    for _ in range(_MOST_LEVELS):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def _inside(value: Json) -> Iterable[Json]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def no_constant(word: str) -> Json:
    """Refuse NaN and Infinity: the `parse_constant` of `json.loads`."""
    raise ValueError(f"{word} is not JSON")


def from_text(kind: type[T], text: str) -> T:
    """The config that `to_text` wrote; ConfigError says where the text departs from it."""
    try:
        data = parsed(text)
    except ValueError as error:
        raise ConfigError(f"this is not JSON: {str(error)[:200]}", hint="every run's folder has its config as run.json") from error
    value: T = from_json(kind, data)
    return value


def from_json(kind: Any, data: Json, *, where: str = "") -> Any:
    """A value of type `kind` (a dataclass, a union of them, or a plain type) from plain JSON; `where` names the place in errors."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _from_union(arguments, data, where)
    if origin is Literal:
        if data not in arguments:
            raise ConfigError(
                f"{where or 'value'}={data!r} is not one of {', '.join(map(repr, arguments))}",
                hint=did_you_mean(str(data), [str(word) for word in arguments]),
            )
        return data
    if origin is tuple:
        return _from_list(arguments, data, where)
    if origin is dict:
        if not isinstance(data, dict):
            raise _wrong(where, "an object", data)
        return {key: from_json(arguments[1], item, where=_join(where, key)) for key, item in data.items()}
    if is_dataclass(kind):
        return _from_object(kind, data, where)
    return _from_scalar(kind, data, where)


def _from_object(kind: Any, data: Json, where: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong(where, f"an object ({kind.__name__})", data)
    family = _family(kind)
    given = current(kind.__name__, data)
    if family is not None and (said := given.pop("family", family)) != family:
        raise ConfigError(f"{_join(where, 'family')}={said!r} should be {family!r}")
    known = {field.name: field for field in fields(kind)}
    for key in given:
        if key not in known:
            raise ConfigError(f"no setting called {_join(where, key)}", hint=did_you_mean(key, list(known)))
    missing = [
        name for name, field in known.items() if name not in given and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"{kind.__name__} needs {', '.join(_join(where, name) for name in missing)}")
    hints = _hints(kind)
    return kind(**{key: from_json(hints[key], item, where=_join(where, key)) for key, item in given.items()})


def _from_union(arguments: tuple[Any, ...], data: Json, where: str) -> Any:
    if data is None and type(None) in arguments:
        return None
    members = [member for member in arguments if member is not type(None)]
    if len(members) == 1:
        return from_json(members[0], data, where=where)
    tagged = {_family(member): member for member in members if isinstance(member, type) and is_dataclass(member)}
    if len(tagged) == len(members):
        if not isinstance(data, dict):
            raise _wrong(where, "an object", data)
        family = data.get("family", data.get(OLD_FAMILY))
        if not isinstance(family, str) or family not in tagged:
            raise ConfigError(f"{_join(where, 'family')}={family!r} is not one of {', '.join(map(str, tagged))}")
        return from_json(tagged[family], data, where=where)
    for member in members:
        try:
            return from_json(member, data, where=where)
        except ConfigError:
            continue
    raise _wrong(where, " or ".join(str(member) for member in members), data)


def _from_list(arguments: tuple[Any, ...], data: Json, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _wrong(where, "a list", data)
    if arguments[-1] is Ellipsis:
        kinds: tuple[Any, ...] = (arguments[0],) * len(data)
    else:
        kinds = arguments
    if len(kinds) != len(data):
        raise _wrong(where, f"a list of {len(kinds)}", data)
    return tuple(
        from_json(kind, item, where=f"{where}[{place}]") for place, (kind, item) in enumerate(zip(kinds, data, strict=True))
    )


def _from_scalar(kind: Any, data: Json, where: str) -> Any:
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError as error:
            raise _wrong(where, "a number that a float can hold", data) from error
    if kind in (int, str, bool) and type(data) is kind:
        return data
    raise _wrong(where, {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, str(kind)), data)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _family(kind: type) -> str | None:
    family = vars(kind).get("family")
    return family if isinstance(family, str) else None


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _wrong(where: str, wanted: str, data: Json) -> ConfigError:
    return ConfigError(f"{where or 'the config'} should be {wanted}, not {json.dumps(data)[:60]}")
