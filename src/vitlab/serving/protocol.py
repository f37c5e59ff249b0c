"""uvicorn's HTTP protocol with what it does not limit: the time a request takes to arrive, its headers, the connections.

uvicorn closes a connection that is idle after an answer, but waits forever for the rest of a request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from vitlab.serving.refusals import CODES, RETRY_AFTER

_MOST_HEADER_BYTES = 64 << 10
_LINGER = 2.0  # seconds that a connection has to take a last answer before it is closed


class LimitedProtocol(HttpToolsProtocol):
    """One connection. A subclass that the server makes sets its limits.

    `on_refusal(status, code, client)` is called for a request that the application never saw.
    """

    receive_seconds = 20.0
    max_connections = 512
    on_refusal: Callable[[int, str, str], None]

    _arriving: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _in_body = False
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse("not_ready", "the server has as many connections as it may")
        else:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if not self._in_body:
            self._header_bytes += len(data)
            if self._arriving is None:
                self._expect()  # the next request of a kept connection begins
        super().data_received(data)
        if self._header_bytes > _MOST_HEADER_BYTES and not self._refused:
            self._refuse("headers_too_large", "the headers have more than 65,536 bytes")

    def on_headers_complete(self) -> None:
        self._header_bytes, self._in_body = 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._arrived()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse("bad_request", "this is not a valid HTTP request")

    @property
    def _answers(self) -> bool:
        """Whether the application has a request of this connection that it has not answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _expect(self) -> None:
        """Close the connection if no whole request has arrived in time. The application answers 408 to one whose headers have."""
        self._arrived()
        self._arriving = self.loop.call_later(self.receive_seconds, self._late)

    def _arrived(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _late(self) -> None:
        self._arriving = None
        if self.transport.is_closing():
            return
        if self._answers:
            self._arriving = self.loop.call_later(_LINGER, self._close)  # the application is about to answer
        elif self._header_bytes:
            self._refuse("too_slow", f"the request did not arrive within {self.receive_seconds:g} s")
        else:
            self._close()

    def _refuse(self, code: str, message: str) -> None:
        """Answer without the application, then close."""
        self._refused = True
        self._arrived()
        if self._answers:
            self._close()  # in the middle of another answer
            return
        status = CODES[code][0]
        self.on_refusal(status, code, self.client[0] if self.client else "")
        body = json.dumps({"error": {"code": code, "message": message, "hint": None}}).encode()
        retry = f"retry-after: {RETRY_AFTER}\r\n" if status in (429, 503) else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{retry}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()  # a reset would take the answer away from a client that is still sending
        self._arriving = self.loop.call_later(_LINGER, self._close)

    def _close(self) -> None:
        self._arriving = None
        if not self.transport.is_closing():
            self.transport.close()


def protocol_class(
    *, receive_seconds: float, max_connections: int, on_refusal: Callable[[int, str, str], None]
) -> type[LimitedProtocol]:
    """The protocol with these limits; uvicorn makes one object for each connection."""
    limits = {"receive_seconds": receive_seconds, "max_connections": max_connections, "on_refusal": staticmethod(on_refusal)}
    return type("ServedProtocol", (LimitedProtocol,), limits)
