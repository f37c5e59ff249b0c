"""The server's log: one JSON object a line, written by a thread of its own, so that a slow or full disk never delays a request."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from vitlab.io.display import json_text

_MOST_LINES = 10_000  # that wait to be written; further ones are dropped and counted
_PATIENCE = 5.0  # seconds that writing may take at the end


class Log:
    """Writes lines to a stream; `on_drop` is called for each line that could not be written."""

    def __init__(self, stream: TextIO, *, on_drop: Callable[[], None]) -> None:
        self._stream = stream
        self._on_drop = on_drop
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="vitlab-log", daemon=True)
        self._thread.start()

    def event(self, event: str, fields: dict[str, Any]) -> None:
        """Write one line; it is ASCII, and control characters are escaped."""
        if self._lines.qsize() >= _MOST_LINES:
            self._on_drop()
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._lines.put(json_text({"time": now, "event": event} | fields))

    def note(self, sentence: str) -> None:
        """Write one sentence."""
        self.event("note", {"message": sentence})

    def close(self) -> None:
        """Write what waits, if that is possible in a few seconds."""
        self._lines.put(None)
        self._thread.join(_PATIENCE)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a full disk, a reader that left; ValueError: the stream is closed
                self._on_drop()
