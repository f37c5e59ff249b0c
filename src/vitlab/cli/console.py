"""What the command line writes: results to stdout; errors, hints, notes and progress to stderr, each on one line; help texts.

Imports no argument parser, so that `vitlab --help` is fast.
"""

from __future__ import annotations

import inspect
import io
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from vitlab.errors import ConfigError, VitlabError
from vitlab.io.display import ProgressCallback, json_text, printable

NAMES = {"start": "from", "given": "from", "target": "class"}
"""Parameters whose option has another name: `from` and `class` are words of Python."""

_LINE_EVERY = 10.0  # seconds between two lines of progress without a terminal
_STALE = 2.0  # seconds after which a bar that does not move makes room for another


def accept_any_text() -> None:
    """Accept every file name: keep undecodable bytes on stdin, and escape on stdout what its encoding lacks."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def show(value: Any, *, as_json: bool) -> None:
    """Print a result as its table, or as one JSON value."""
    if as_json:
        print(json_text(value.to_json(), indent=2))
    elif text := str(value):
        print(text)


def error(fault: VitlabError, *, options: Collection[str] = (), given: Collection[str] = (), ways: str | None = None) -> None:
    """Print `error: ...` and, if there is one, `hint: ...`.

    `options` are the parameters of the verb and `given` those in the command: the sentence calls the given ones by their option,
    the hint all of them. `ways` is the hint for wrong usage that has none.
    """
    note(f"error: {with_options(fault.message, given)}")
    hint = fault.hint or (ways if isinstance(fault, ConfigError) else None)
    if hint is not None:
        note(f"hint: {with_options(hint, options)}")


def note(text: str) -> None:
    """Print one line that is not part of the result."""
    print(printable(as_options(text)), file=sys.stderr)


_PARAMETER = re.compile(r"`([a-z][a-z_0-9]*)(?:=([^`\s]+))?`")


def as_options(text: str) -> str:
    """A message of a function with its `parameters` as options: `overwrite=True` is --overwrite, `to=native` is --to native."""

    def option(found: re.Match[str]) -> str:
        value = "" if found[2] in (None, "True") else f" {found[2]}"
        return f"--{NAMES.get(found[1], found[1]).replace('_', '-')}{value}"

    return _PARAMETER.sub(option, text)


_SETTING = re.compile(r"(?<![\w.`-])([a-z][a-z_0-9]*)=('[^'`]*'|[^\s,;:()`']+)")


def with_options(text: str, names: Collection[str]) -> str:
    """The text with `batch_size=0` as --batch-size 0, for those names."""

    def option(found: re.Match[str]) -> str:
        if found[1] not in names:
            return found[0]
        value = found[2].strip("'")
        return f"--{NAMES.get(found[1], found[1]).replace('_', '-')}" + ("" if value == "True" else f" {value}")

    return _SETTING.sub(option, text)


class Notes(logging.Handler):
    """Prints what vitlab logs: notes, what was chosen, images that could not be read."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        note(record.getMessage())


@contextmanager
def logged() -> Iterator[None]:
    """Within the block, print what vitlab logs; under torchrun only the first process does."""
    log, handler = logging.getLogger("vitlab"), Notes()
    level, propagates = log.level, log.propagate
    if os.environ.get("RANK", "0") == "0":
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


@contextmanager
def bar(*, of_bytes: bool = False) -> Iterator[ProgressCallback]:
    """A progress callback: bars on a terminal, which go away when the block ends; elsewhere a line every ten seconds.

    `of_bytes`: bytes are counted, as of a download, which also gets a line when it begins.
    """
    if not sys.stderr.isatty():
        yield _Lines(begin=of_bytes)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if of_bytes else MofNCompleteColumn(),
        TextColumn("{task.fields[speed_text]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        tasks: dict[str, tuple[TaskID, float]] = {}

        def progress(description: str, done: int, total: int | None) -> None:
            now = time.monotonic()
            if description not in tasks:
                for other, (task, moved) in list(tasks.items()):
                    if now - moved > _STALE or display._tasks[task].finished:
                        display.remove_task(tasks.pop(other)[0])
                tasks[description] = display.add_task(printable(description), total=total, speed_text=""), now
            task, _ = tasks[description]
            tasks[description] = task, now
            speed = display._tasks[task].speed
            text = "" if not speed else f"{speed / 1e6:.1f} MB/s" if of_bytes else f"{speed:.1f}/s"
            display.update(task, completed=done, total=total, speed_text=text)

        yield progress


class _Lines:
    """A line every ten seconds: what is done, how much of it, and of how much."""

    def __init__(self, *, begin: bool) -> None:
        self._begin = begin
        self._last: dict[str, float] = {}

    def __call__(self, description: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if self._begin and description not in self._last:
            note(description)
        if now - self._last.setdefault(description, now) >= _LINE_EVERY:
            self._last[description] = now
            note(f"{description}: {done:,}" + (f" of {total:,} ({100 * done // total} %)" if total else ""))


def reader_left() -> bool:
    """Whether standard output is the pipe that broke; if so, nothing more is written to it, not even when the interpreter ends."""
    left = [stream for stream in (sys.stdout, sys.stderr) if _is_broken(stream)]
    for stream in left:
        _discard(stream)
    return bool(left)


def give_up() -> None:
    """Drop what standard output still buffers, so that the interpreter does not write it again when it ends."""
    _discard(sys.stdout)


def _is_broken(stream: TextIO) -> bool:
    try:
        stream.flush()
    except BrokenPipeError:
        return True
    if sys.platform == "win32":
        return False
    # An unbuffered stream (PYTHONUNBUFFERED) has nothing left to flush: ask the system whether its pipe has a reader.
    import select

    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # replaced by an object that is no file
        return False
    asked = select.poll()
    asked.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in asked.poll(0))


def _discard(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


# --- help texts, from the docstrings of `vitlab.api` --------------------------------------------------------------------------


def description(function: Callable[..., Any]) -> str:
    """What a verb does: the docstring without its arguments and what is returned."""
    text = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:")[0]
    return "\n\n".join(part for part in text.strip().split("\n\n") if not part.startswith("Returns"))


def summary(function: Callable[..., Any]) -> str:
    """The first sentence, up to a colon, for a list of verbs."""
    first = description(function).split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[a-z)])[.:] ", first, maxsplit=1)[0].rstrip(".")


def arguments(function: Callable[..., Any]) -> dict[str, tuple[str, str | None]]:
    """Parameter -> its text, and its default if the text ends in `(default: ...)`."""
    section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")[2]
    found: dict[str, tuple[str, str | None]] = {}
    for entry in re.split(r"\n(?= {4}\w)", section):
        name, colon, text = entry.strip().partition(":")
        if colon:
            text = " ".join(text.split())
            match = re.fullmatch(r"(.*?) ?\(default: (.*)\)", text)
            found[name] = (match[1], match[2]) if match else (text, None)
    return found
