"""One question to an http server: the bytes of a file from some place on, and what the server says of the file."""

from __future__ import annotations

import email.utils
import http.client
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import IO
from urllib.parse import urlsplit

from vitlab import __version__

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 60.0  # seconds; a server may ask for more, and is then asked again sooner


class PassingError(Exception):
    """Something that may be over at the next try. `wait` is how many seconds the server asks for."""

    def __init__(self, reason: str, *, offline: bool = False, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.offline = offline
        self.wait = wait


class BeyondTheEndError(PassingError):
    """The file at the server is no longer than what is already here."""


class RefusedError(Exception):
    """Something that will not change by trying again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: from which byte on, of how many (None where the server does not say), and which version of the file.

    `version` is what to show the server later to be given the rest of the same version, or None.
    """

    address: str
    start: int
    total: int | None
    version: str | None
    body: IO[bytes]

    def chunks(self, size: int) -> Iterator[bytes]:
        """The bytes as they come, at most `size` at a time; PassingError where the connection breaks."""
        while True:
            try:
                chunk = self.body.read(size)
            except (OSError, http.client.HTTPException) as error:
                raise PassingError(f"the connection broke: {_words(error)}") from error
            if not chunk:
                return
            yield chunk


@contextmanager
def ask(address: str, *, start: int = 0, version: str | None = None, timeout: float) -> Iterator[Answer]:
    """Ask for a file from byte `start` on, if it is still of this `version`; a server may answer with all of it instead.

    Redirections are followed, but only to http and https, and never from https to http.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise RefusedError(f"{address} is no http address")
    # Compressed on the way it would be other bytes than those the checksum is of.
    headers = {"User-Agent": f"vitlab/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if version is not None:
            headers["If-Range"] = version
    try:
        response = _opener().open(urllib.request.Request(address, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        raise _unwilling(error, address, start) from error
    except urllib.error.URLError as error:
        raise _unreachable(error.reason, address) from error
    except (OSError, http.client.HTTPException) as error:
        raise PassingError(f"the connection to {address} broke: {_words(error)}") from error
    with response:
        yield _answer(response, address)


def _answer(response: http.client.HTTPResponse, address: str) -> Answer:
    headers = response.headers
    if (coding := headers.get("Content-Encoding", "identity").lower()) != "identity":
        raise RefusedError(f"{address} sends the file compressed ({coding}), which was not asked for")
    length = headers.get("Content-Length", "")
    total = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
    start = 0
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        part = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)", headers.get("Content-Range", ""))
        if part is None:
            raise RefusedError(f"{address} sends a part of the file and does not say which")
        start, total = int(part[1]), None if part[2] == "*" else int(part[2])
    elif response.status != HTTPStatus.OK:
        raise RefusedError(f"{address} answers with status {response.status}, and no file")
    etag = headers.get("ETag")
    strong = etag if etag and not etag.startswith("W/") else None  # a weak one does not promise the same bytes
    return Answer(address=address, start=start, total=total, version=strong or headers.get("Last-Modified"), body=response)


def _unwilling(error: urllib.error.HTTPError, address: str, start: int) -> Exception:
    said = f"{address} answers {error.code} {error.reason}"
    if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
        return BeyondTheEndError(said)
    if error.code in _PASSING:
        return PassingError(said, wait=_wait(error.headers.get("Retry-After")))
    if 300 <= error.code < 400:
        return RefusedError(f"{address} redirects to what is no http address ({error.headers.get('Location')})")
    return RefusedError(said)


def _unreachable(reason: object, address: str) -> Exception:
    host = urlsplit(address).hostname
    match reason:
        case ssl.SSLCertVerificationError():
            return RefusedError(f"the certificate of {host} cannot be verified: {reason.verify_message}")
        case socket.gaierror():
            return PassingError(f"{host} is not found", offline=True)
        case OSError():
            return PassingError(f"{host} cannot be reached: {_words(reason)}", offline=True)
        case _:
            return RefusedError(f"{address} cannot be opened: {reason}")


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "nothing came for too long"
    text = error.strerror if isinstance(error, OSError) else str(error)
    return text or type(error).__name__


def _wait(retry_after: str | None) -> float:
    """Seconds, from a number or a date."""
    if retry_after is None:
        return 0.0
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        return min(float(retry_after), _LONGEST_WAIT)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after).timestamp()
    except ValueError:
        return 0.0
    return min(max(moment - time.time(), 0.0), _LONGEST_WAIT)


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows redirections within http and https."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """The request for the new address; RefusedError where it leads out of http or to a less safe scheme."""
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https"):
            fp.close()
            raise RefusedError(f"{req.full_url} redirects to what is no http address ({newurl})")
        if old == "https" and new == "http":
            fp.close()
            raise RefusedError(f"{req.full_url} redirects from https to plain http ({newurl})")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """urllib with its http handlers alone: no file:, no ftp:, no data:, whatever an address or a redirection says."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirections(),
    ):
        opener.add_handler(handler)
    return opener
