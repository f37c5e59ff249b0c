"""The images that words of a command line name: files, folders, patterns, zip archives, and what is inside them."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from vitlab.data.readers.folder import is_hidden, is_image
from vitlab.errors import DataError
from vitlab.inference.predictor import split_archive
from vitlab.io.zip import read_zip_index

_PATTERN = "*?["


def find_images(words: Iterable[str]) -> Iterator[str]:
    """The paths of all images the words name, in the order of the words and sorted below each; found as they are asked for.

    A file is taken whatever it is called; in a folder and a zip archive those with the ending of a image are, hidden ones
    left out. Links are followed, but no folder is entered twice. DataError for a word that names nothing.
    """
    for word in words:
        yield from _named(word)


def _named(word: str) -> Iterator[str]:
    if os.path.isdir(word):  # noqa: PTH112 (a Path cannot hold every name)
        yield from _below(word)
    elif os.path.isfile(word):  # noqa: PTH113
        yield from _inside(word) if word.lower().endswith(".zip") else (word,)
    elif split_archive(word) is not None:
        yield word
    elif any(mark in word for mark in _PATTERN):
        found = sorted(glob.glob(word, recursive=True))  # noqa: PTH207 (a Path cannot hold every pattern)
        if not found:
            raise DataError(f"nothing matches {word!r}", hint="** stands for folders within folders")
        for path in found:
            if os.path.isdir(path):  # noqa: PTH112
                if "**" not in word:  # which finds what is in folders by itself
                    yield from _below(path)
            elif is_image(path):
                yield path
    else:
        raise DataError(f"no file or folder called {word!r}")


def _below(root: str) -> Iterator[str]:
    """Images of a folder and the folders in it; each folder's entries are listed when its turn comes."""
    entered: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            status = os.stat(folder)  # noqa: PTH116
            names = sorted(os.listdir(folder))  # noqa: PTH208
        except OSError as error:
            raise DataError(f"{folder} cannot be read: {error.strerror}") from error
        if (status.st_dev, status.st_ino) in entered:
            continue
        entered.add((status.st_dev, status.st_ino))
        folders = []
        for name in names:
            if is_hidden(name):
                continue
            path = os.path.join(folder, name)  # noqa: PTH118
            if is_image(name) and not os.path.isdir(path):  # noqa: PTH112
                yield path
            elif os.path.isdir(path):  # noqa: PTH112
                folders.append(path)
        waiting += reversed(folders)


def _inside(archive: str) -> Iterator[str]:
    for name in read_zip_index(Path(archive)).names:
        if is_image(name) and not is_hidden(name):
            yield f"{archive}/{name}"
