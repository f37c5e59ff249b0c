"""Typed values of a config.json of another library: the value, None if it is absent, or an error that names it."""

from __future__ import annotations

from collections.abc import Mapping

from vitlab.errors import CheckpointError

Sidecar = Mapping[str, object]
LIMIT = 1e30


def whole(data: Sidecar, key: str) -> int | None:
    """A whole number of at least 0."""
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(key, value, "a whole number")
    return value


def number(data: Sidecar, key: str) -> float | None:
    """Any number."""
    value = data.get(key)
    if value is None:
        return None
    if (found := _finite(value)) is None:
        raise _wrong(key, value, "a number")
    return found


def text(data: Sidecar, key: str) -> str | None:
    """A string."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _wrong(key, value, "a string")
    return value


def flag(data: Sidecar, key: str, default: bool) -> bool:
    """True or false."""
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(key, value, "true or false")
    return value


def numbers(data: Sidecar, key: str) -> tuple[float, ...] | None:
    """A list of numbers; one number alone is a list of one."""
    value = data.get(key)
    if value is None:
        return None
    items = list(value) if isinstance(value, list | tuple) else [value]
    found = [finite for item in items if (finite := _finite(item)) is not None]
    if not items or len(found) != len(items):
        raise _wrong(key, value, "a list of numbers")
    return tuple(found)


def wholes(data: Sidecar, key: str) -> tuple[int, ...] | None:
    """A list of whole numbers of at least 0."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(type(item) is int and item >= 0 for item in value):
        raise _wrong(key, value, "a list of whole numbers")
    return tuple(value)


def size(data: Sidecar, key: str) -> tuple[int, int] | None:
    """(height, width), from one number, from two, or from an object with `height` and `width`."""
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, dict):
        value = [value.get("height"), value.get("width")]
    sides = list(value) if isinstance(value, list | tuple) else [value, value]
    found = [side for side in sides if isinstance(side, int) and not isinstance(side, bool) and side > 0]
    if len(sides) != 2 or len(found) != 2:
        raise _wrong(key, data.get(key), "a size in pixels")
    return found[0], found[1]


def within(data: Sidecar, key: str) -> Sidecar:
    """An object; empty if it is absent."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(key, value, "an object")
    return value


def names(value: object, count: int, *, key: str) -> tuple[str, ...] | None:
    """Class names in the order of the logits, from a list or from an object by number; None if there are not `count`."""
    if isinstance(value, dict):
        listed = [value.get(str(i), value.get(i)) for i in range(count)] if len(value) == count else []
    elif isinstance(value, list | tuple):
        listed = list(value)
    else:
        raise _wrong(key, value, "a list or an object of names")
    if len(listed) != count or not all(isinstance(name, str) for name in listed):
        return None
    return tuple(str(name) for name in listed)


def _finite(value: object) -> float | None:
    """A finite number below 1e30; not true or false."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and -LIMIT < value < LIMIT
    return float(value) if real and isinstance(value, int | float) else None


def _wrong(key: str, value: object, wanted: str) -> CheckpointError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return CheckpointError(f"the JSON file says {key}={shown}, which is not {wanted}")
