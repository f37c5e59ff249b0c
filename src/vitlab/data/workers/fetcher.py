"""The process beside a worker that reads images from a server for it.

Requests, checksums and the cache need the interpreter's lock many times for each image. In the worker's own interpreter they would
stop the thread that decodes again and again; here they run on another core, and the worker receives the bytes of its images, in the
order in which it needs them, as cheaply as from a file.

Both are forks of the launcher (worker.py) and are joined by a socket. The worker sends rows; for each of them it receives a head
(`_HEAD`) and the bytes, or a pickled error. The fetcher ends when the socket closes.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from vitlab.data.batch import Filler
from vitlab.data.dataset import Contents, ImageDataset, RemoteReadable
from vitlab.errors import StorageError, VitlabError
from vitlab.io.digests import Digests

_COUNT = struct.Struct("<q")  # rows of a request, each of which follows as such a number
_HEAD = struct.Struct("<?q")  # whether these are the bytes of an image, not an error; their number
_BUFFER = 2**20  # bytes that the socket may hold, if the system allows it


def needs_fetcher(filler: Filler) -> bool:
    """Whether the images are on a server."""
    dataset = filler.dataset
    return isinstance(dataset, ImageDataset) and isinstance(dataset.contents, RemoteReadable) and dataset.is_remote


def serve(filler: Filler, connection: socket.socket) -> None:
    """Read what the worker asks for until it closes the connection, then end the process."""
    dataset = filler.dataset
    assert isinstance(dataset, ImageDataset)
    contents = dataset.contents
    assert isinstance(contents, RemoteReadable)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    rows: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_send_all, args=(dataset.contents, rows, connection), daemon=True).start()
    while True:
        try:
            (count,) = _COUNT.unpack(_received(connection, _COUNT.size))
            asked = struct.unpack(f"<{count}q", _received(connection, count * _COUNT.size))
        except (EOFError, OSError):
            os._exit(0)
        contents.expect(asked)
        for row in asked:
            rows.put(row)


def _send_all(contents: Contents, rows: SimpleQueue[int], connection: socket.socket) -> None:
    while True:
        good, data = _read(contents, rows.get())
        try:
            connection.sendall(_HEAD.pack(good, len(data)) + data)
        except OSError:
            os._exit(0)  # the worker is gone


def _read(contents: Contents, row: int) -> tuple[bool, bytes]:
    try:
        content = contents.read(row)
        assert isinstance(content, bytes), "images on a server are files"
    except (VitlabError, OSError) as error:
        return False, pickle.dumps(error)
    except Exception:  # noqa: BLE001 (a bug: the worker reads the row itself and has all of the traceback)
        return False, b""
    return True, content


class FetchedContents:
    """The contents of a dataset, whose expected rows come from the fetcher at the other end of a connection.

    One thread expects pieces of batches; another begins and reads them, in the same order.
    """

    def __init__(self, contents: Contents, connection: socket.socket) -> None:
        self._contents = contents
        self._connection = connection
        self._pieces: deque[tuple[int, ...]] = deque()
        self._piece: deque[int] = deque()  # the rows of this piece that are not received

    def name(self, row: int) -> str:
        """Where an image comes from."""
        return self._contents.name(row)

    def expect(self, rows: Sequence[int]) -> None:
        """Ask for the rows of a piece."""
        self._pieces.append(tuple(rows))
        with suppress(OSError):  # `read` reports that the fetcher has ended
            self._connection.sendall(struct.pack(f"<{len(rows) + 1}q", len(rows), *rows))

    def begin_piece(self) -> None:
        """From now on, the rows of the next piece are read. What was not read of the one before is dropped."""
        with suppress(StorageError):  # `read` reports that the fetcher has ended
            while self._piece:
                self._receive()
        self._piece = deque(self._pieces.popleft())

    def read(self, row: int) -> bytes:
        """The bytes of an image: from the fetcher if it is the next one of the piece; else they are read here."""
        good, data = self._receive() if self._piece and self._piece[0] == row else (False, b"")
        if good:
            return data
        if data:
            raise pickle.loads(data)  # noqa: S301 (made by our own fetcher, at the other end of a socket without a name)
        content = self._contents.read(row)
        assert isinstance(content, bytes), "images on a server are files"
        return content

    def _receive(self) -> tuple[bool, bytes]:
        self._piece.popleft()
        try:
            good, length = _HEAD.unpack(_received(self._connection, _HEAD.size))
            return good, _received(self._connection, length)
        except (EOFError, OSError):
            raise StorageError(
                "the process that fetches images for this worker has ended",
                hint="its output is above; if there is none, memory ran out: use fewer workers, a smaller prefetch or batch_size",
            ) from None

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each file's content."""
        return self._contents.digests(rows)

    def versions(self, rows: NDArray[np.int64]) -> Digests | None:
        """What the server says of each file."""
        assert isinstance(self._contents, RemoteReadable)
        return self._contents.versions(rows)


def _received(connection: socket.socket, length: int) -> bytes:
    """So many bytes; EOFError if the connection ends before."""
    data = connection.recv(length, socket.MSG_WAITALL) if length else b""
    while len(data) < length:
        more = connection.recv(length - len(data), socket.MSG_WAITALL)
        if not more:
            raise EOFError
        data += more
    return data
