"""Pictures read ahead by threads, in order, while the model works."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from PIL import Image

from vitlab.data.view import Pixels
from vitlab.errors import DataError
from vitlab.predict.prediction import Unreadable
from vitlab.predict.reading import Picture, Reader, name_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Read:
    """A picture as the model sees it, or why it could not be read."""

    name: str
    seen: Pixels | Unreadable


class ReadAhead:
    """Pictures read by threads, at most `ahead` before they are taken, given back in order."""

    def __init__(self, reader: Reader, pictures: Iterator[Picture], *, workers: int, ahead: int) -> None:
        self._reader = reader
        self._pictures = pictures
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="predict") if workers else None
        self._ahead = ahead
        self._under_way: deque[Future[Read]] = deque()
        self._place = 0

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, count: int) -> list[Read]:
        """The next pictures, fewer only at the end; the ones after them are under way when this returns."""
        taken: list[Read] = []
        self._start(self._ahead)
        while len(taken) < count and self._under_way:
            taken.append(self._under_way.popleft().result())
            self._start(1)
        return taken

    def _start(self, most: int) -> None:
        room = self._ahead - len(self._under_way)
        for picture in islice(self._pictures, min(most, room)):
            name = name_of(picture, self._place)
            self._place += 1
            if isinstance(picture, Image.Image):
                _load(picture)
            if self._pool is None:
                self._under_way.append(Future())
                self._under_way[-1].set_result(self._read(picture, name))
            else:
                self._under_way.append(self._pool.submit(self._read, picture, name))

    def _read(self, picture: Picture, name: str) -> Read:
        try:
            return Read(name=name, seen=self._reader(picture, name))
        except DataError as error:
            return Read(name=name, seen=Unreadable(name=name, reason=error.message))


def _load(image: Image.Image) -> None:
    """Decoded in the caller's thread: Pillow may not load one image from two threads, and a list may hold it twice."""
    with suppress(OSError):  # raised again, and said with its name, where it is read
        image.load()
