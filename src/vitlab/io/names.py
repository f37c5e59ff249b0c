"""Lists of names in little memory; `printable` names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vitlab.io.text import printable

__all__ = ["Names", "printable"]


class Names:
    """An immutable list of names in two buffers: a million of them are pickled, forked and loaded at once.

    A list of str would be copied into every forked worker, because reading a str changes its reference count.
    Names are those of the file system, including undecodable bytes.
    """

    __slots__ = ("_blob", "_ends")

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self._blob = b"".join(encoded)
        self._ends: NDArray[np.int64] = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    @classmethod
    def from_buffers(cls, blob: bytes, ends: NDArray[np.int64]) -> Names:
        """The names of these `buffers`; ValueError if they are inconsistent."""
        if ends.ndim != 1 or len(ends) == 0 or ends[0] != 0 or ends[-1] != len(blob) or np.any(np.diff(ends) < 0):
            raise ValueError("these buffers do not hold names")
        names = cls(())
        names._blob, names._ends = blob, ends
        return names

    def buffers(self) -> tuple[bytes, NDArray[np.int64]]:
        """All characters end to end, and where each name ends, starting with 0."""
        return self._blob, self._ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._blob[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        ends = self._ends.tolist()
        for start, end in pairwise(ends):
            yield self._blob[start:end].decode("utf-8", "surrogateescape")

    def take(self, rows: NDArray[np.int64]) -> Names:
        """The names of these rows, in this order."""
        return Names(self[int(row)] for row in rows)
