"""From one spelling to a list of shards: a path, a folder, a glob, braces, or several of these joined by `::`."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

from vitlab.data.files.names import shown
from vitlab.data.kinds.offenders import Offenders
from vitlab.errors import DataError

_MOST = 100_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=//)|pipe:")


def shard_paths(pattern: str, *, ending: str) -> list[Path]:
    """The files a pattern names, in its order; those of a folder or a glob sorted by code point.

    `data/train-{000..012}.tar` counts with leading zeros, `{a,b}` lists. A folder stands for every file in and below it with
    this `ending`. Addresses are refused: shards are read by position, from disk; nothing is run and nothing is fetched.
    """
    offenders = Offenders(pattern)
    found: list[Path] = []
    for piece in pattern.split("::"):
        if address := _ADDRESS.match(piece):
            raise DataError(
                f"{shown(piece)} is not read: {address.group()} would run a program or fetch from a network",
                hint="give the path of shards on disk",
            )
        for spelled in _braced(piece, pattern):
            path = Path(spelled).expanduser()
            if path.is_dir():
                inside = sorted(path.rglob(f"*{ending}"), key=str)
            elif path.is_file():
                inside = [path]
            else:
                inside = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207
            if not inside:
                offenders.add(spelled, f"no file with the ending {ending} in it" if path.is_dir() else "no such file")
            found.extend(inside)
    seen: set[Path] = set()
    for path in found:
        if path.resolve() in seen:
            offenders.add(str(path), "named twice")
        elif not path.is_file():
            offenders.add(str(path), "no ordinary file")
        seen.add(path.resolve())
    offenders.refuse(hint="shards are named by a path, a folder, a glob or braces: 'train-{000..012}.tar'")
    return found


def _braced(text: str, pattern: str) -> list[str]:
    spelled = [text]
    while (braces := _BRACES.search(spelled[0])) is not None:
        choices = list(_choices(braces.group(1), pattern))
        if len(choices) * len(spelled) > _MOST:
            raise DataError(f"{shown(pattern)} names more than {_MOST:,} shards")
        spelled = [_BRACES.sub(lambda _, word=word: word, name, count=1) for name in spelled for word in choices]  # type: ignore[misc]
    return spelled


def _choices(inside: str, pattern: str) -> Iterator[str]:
    for word in inside.split(","):
        counted = _RANGE.fullmatch(word)
        if counted is None:
            yield word
            continue
        first, last = counted.groups()
        if int(last) < int(first) or int(last) - int(first) >= _MOST:
            raise DataError(f"{shown(pattern)}: {{{word}}} counts from {first} to {last}")
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{width}d}"
