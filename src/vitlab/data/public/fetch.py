"""A public data set of the catalogue, brought to a folder and made ready to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlab.data.care.progress import Tell, silent
from vitlab.data.public.download import Patience, by_hand, download, take
from vitlab.data.public.public_set import PublicSet, RemoteFile
from vitlab.data.public.sums import fault_of, recorded, sum_of
from vitlab.errors import DataError

Origin = Literal["downloaded", "given", "already there"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """One file of a set, in place: `sha256` is what it has, `trusted` whether that was compared with a published sum."""

    name: str
    bytes: int
    sha256: str
    origin: Origin
    trusted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A set in its folder. `data` is the spelling that reads it, or None where nothing here reads its format."""

    folder: Path
    files: tuple[FetchedFile, ...]
    data: str | None


def fetch(
    entry: PublicSet,
    folder: Path,
    *,
    given: Sequence[Path] = (),
    patience: Patience | None = None,
    tell: Tell = silent,
) -> Fetched:
    """Bring the files of a set to `folder`, verified, and unpack and list them as its spelling needs.

    `given` are files, or folders of files, that were downloaded by other means: they are taken in place of a download, by
    their names. What is already in the folder is verified and left alone.
    """
    if entry.by_hand is not None:
        raise DataError(f"{entry.title} has no direct address: it must be fetched by hand", hint=entry.by_hand)
    found = _named(given, entry)
    fetched = []
    for file in entry.files:
        target = folder / file.name
        origin: Origin
        if target.exists():
            origin, digest = "already there", _verified(file, target, tell)
        elif file.name in found:
            origin, digest = "given", take(found[file.name], file, target, tell=tell)
        else:
            origin, digest = "downloaded", download(file, target, patience=patience, tell=tell)
        size = target.stat().st_size
        fetched.append(FetchedFile(name=file.name, bytes=size, sha256=digest, origin=origin, trusted=file.checksum is not None))
    from vitlab.data.public.arrange import arrange  # brings numpy, which a refusal above need not wait for

    arrange(entry, folder, tell=tell)
    data = None if entry.spelling is None else entry.spelling.format(folder=folder)
    return Fetched(folder=folder, files=tuple(fetched), data=data)


def _named(given: Sequence[Path], entry: PublicSet) -> dict[str, Path]:
    """The given files by the names of the set's files; DataError for one that is none of them."""
    wanted = [file.name for file in entry.files]
    found: dict[str, Path] = {}
    for path in given:
        if path.is_dir():
            here = {name: path / name for name in wanted if (path / name).is_file()}
            if not here:
                raise DataError(f"{path} holds no file of {entry.title}", hint=f"they are called {', '.join(wanted)}")
            found |= here
        elif not path.is_file():
            raise DataError(f"there is no file {path}")
        elif path.name in wanted:
            found[path.name] = path
        elif len(wanted) == 1:
            found[wanted[0]] = path  # whatever a browser called it: the checksum will tell
        else:
            raise DataError(f"{path} is no file of {entry.title} by its name", hint=f"they are called {', '.join(wanted)}")
    return found


def _verified(file: RemoteFile, target: Path, tell: Tell) -> str:
    expected = file.checksum or recorded(target)
    try:
        fault = fault_of(target, expected, size=file.size, tell=tell)
        digest = (expected or "").partition("sha256:")[2]
        seen = digest or sum_of(target, "sha256", tell=tell)
    except OSError as error:
        raise DataError(f"{target} cannot be read: {error.strerror}") from error
    if fault is not None:
        raise DataError(f"{target} is there, and is not the file it should be: {fault}", hint=f"remove it; or {by_hand(file)}")
    return seen
