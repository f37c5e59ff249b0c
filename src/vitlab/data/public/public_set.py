"""What the catalogue says of a public data set: its files, where they are, and how they are read once fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Arrangement = Literal[
    "as fetched", "unpacked", "pets", "flowers102", "dtd", "caltech101", "sun397", "clevr", "kitti"
]  # what is done with the files once they are there; `vitlab.data.public.arrange` holds one function each

_TFDS = "TensorFlow Datasets"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a set: its name here, its addresses (the first is tried first), bytes, and published checksum.

    `checksum` is `sha256:...` or `md5:...`, or None where none could be verified; `said_by` names who publishes it, or says
    why there is none.
    """

    name: str
    addresses: tuple[str, ...]
    size: int | None
    checksum: str | None
    said_by: str = _TFDS


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSet:
    """A data set as its publisher offers it.

    `counts` are pictures by part; `split` says who divides them and how; `spelling` is the `--data` that reads the set once
    fetched, where `{folder}` is where it was put, or None where nothing here reads its format yet. `by_hand` says, for a set
    that has no direct address, what to do instead.
    """

    name: str
    title: str
    classes: int
    pixels: str
    counts: dict[str, int]
    files: tuple[RemoteFile, ...] = ()
    page: str
    licence: str
    citation: str
    split: str
    spelling: str | None
    arrangement: Arrangement = "as fetched"
    by_hand: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def size(self) -> int | None:
        """Bytes to download, or None where a file's size is not known or there is none to download."""
        sizes = [file.size for file in self.files]
        return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


def alike(address: str, rows: Sequence[tuple[str, int, str]], *, mirrors: Sequence[str] = ()) -> tuple[RemoteFile, ...]:
    """Files whose addresses and names begin alike; a row is the rest of the name, the bytes and the SHA-256."""
    start = address.rpartition("/")[2]
    return tuple(
        RemoteFile(
            name=start + end,
            addresses=tuple(place + end for place in (address, *mirrors)),
            size=size,
            checksum=f"sha256:{digest}",
        )
        for end, size, digest in rows
    )
