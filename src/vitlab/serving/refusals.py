"""Requests that the server does not fulfil: a status, a stable code for programs, one sentence and one hint for people."""

from __future__ import annotations

from typing import Any

from vitlab.config.data import DecodeLimits
from vitlab.data.decode import format_of, read_header
from vitlab.errors import CheckpointError, DataError, OutOfMemoryError, VitlabError

CODES: dict[str, tuple[int, str]] = {
    "bad_request": (400, "the request is not valid HTTP, or its body is not what its headers say"),
    "no_key": (401, "the request has no API key of this server"),
    "not_found": (404, "there is no such path or model"),
    "method_not_allowed": (405, "the path does not take this method"),
    "too_slow": (408, "the request did not arrive in time"),
    "body_too_large": (413, "the body is larger than the limit"),
    "too_many_pixels": (413, "an image has more pixels than the limit, by its header"),
    "unsupported_media_type": (415, "the body is neither an image, nor a form with files, nor JSON"),
    "unsupported_image": (415, "an image is in no supported format"),
    "invalid_option": (422, "an option is unknown, or its value is not possible"),
    "no_image": (422, "the request holds no image"),
    "too_many_images": (422, "the request holds more images than the limit"),
    "unreadable_image": (422, "an image is broken or truncated"),
    "headers_too_large": (431, "the headers are larger than 64 KiB"),
    "queue_full": (429, "the server has as many images in its queue as it may: ask again after Retry-After seconds"),
    "failed": (500, "the server could not compute the answer: its log says why"),
    "not_ready": (503, "the server starts, ends or has too many connections: ask again after Retry-After seconds"),
    "no_memory": (503, "the server has no memory left for this request: ask again after Retry-After seconds"),
    "too_late": (504, "the answer was not ready in time"),
}
"""Code -> status and meaning; nothing else is ever refused. `/openapi.json` lists them."""

RETRY_AFTER = 1
"""Seconds after which a refused client may ask again: the queue takes about as long."""


class Refusal(Exception):  # noqa: N818 (an answer, not a fault)
    """A request that is not fulfilled; `code` is one of `CODES`."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = CODES[code][0]
        self.message = message
        self.hint = hint

    @property
    def headers(self) -> dict[str, str]:
        """What the response has to say besides its body."""
        found = {}
        if self.status in (429, 503):
            found["retry-after"] = str(RETRY_AFTER)
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        return found

    def to_json(self) -> dict[str, Any]:
        """The value of `error` in a response."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


def refusal_of(error: Exception, content: bytes | None = None, limits: DecodeLimits | None = None) -> Refusal:
    """An error of vitlab as a refusal; `content` is the image that was read, under `limits`."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, OutOfMemoryError | MemoryError):
        return Refusal("no_memory", "the server has no memory for this request", hint="ask again, or send a smaller image")
    if isinstance(error, DataError) and content is not None and limits is not None:
        return Refusal(_code_of_image(content, limits), error.message, hint=_hint(error))
    if isinstance(error, CheckpointError):
        return Refusal("failed", error.message, hint="look at the model: its weights overflow or are damaged")
    if isinstance(error, VitlabError):
        return Refusal("invalid_option", error.message, hint=_hint(error))
    return Refusal("failed", "the server could not compute the answer", hint="its log has the reason, by the request's id")


def _hint(error: VitlabError) -> str | None:
    return None if error.hint is None or "max_" in error.hint else error.hint  # limits are not the client's to raise


def _code_of_image(content: bytes, limits: DecodeLimits) -> str:
    if not content:
        return "no_image"
    if format_of(content) not in limits.formats:
        return "unsupported_image"
    try:
        header = read_header(content)
    except ValueError:
        return "unreadable_image"
    return "too_many_pixels" if header is not None and header.height * header.width > limits.max_pixels else "unreadable_image"
