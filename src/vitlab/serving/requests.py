"""A request: read as images and options, or refused.

The body is an image itself, a form with files, or JSON with base64. No URL is ever fetched. Options are text (query, form) or
JSON values. `whole`, `flag`, `word` and `patch` read one by its name. A Refusal has a status, a stable code for programs, one
sentence and one hint for people.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from vitlab.config.data import DecodeLimits
from vitlab.data.decode import format_of, read_header
from vitlab.errors import CheckpointError, DataError, OutOfMemoryError, VitlabError, did_you_mean
from vitlab.io.display import printable
from vitlab.serving.config import ServeConfig

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


# --- what a request holds -----------------------------------------------------------------------------------------------------

_FILES = ("file", "files", "image", "images")
_LONGEST_NAME = 200
_MOST_FIELDS = 32
_HOW = 'send an image as the body, a form (curl -F file=@cat.jpg), or JSON with base64: {"image": "..."}'


@dataclass(frozen=True, slots=True)
class Upload:
    """One image file as it was sent."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Sent:
    """What a client sent: its images, and its options by name, as text or as JSON values."""

    images: list[Upload]
    options: dict[str, Any]


class Memory:
    """Bytes that all bodies together hold at this moment."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    @contextmanager
    def reserved(self) -> Iterator[Callable[[int], None]]:
        """Within the block, a function that takes more bytes or refuses; all of them are given back at its end."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.held + count > self._most:
                raise Refusal("no_memory", "the bodies of other requests take all memory that they may", hint="ask again")
            taken += count
            self.held += count

        try:
            yield take
        finally:
            self.held -= taken


async def read_request(request: Request, config: ServeConfig, take: Callable[[int], None], known: tuple[str, ...]) -> Sent:
    """The images and options of a request; `known` are the options that its endpoint has. Refusal says what is wrong."""
    options: dict[str, Any] = dict(request.query_params)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        async with asyncio.timeout(config.receive_seconds):
            match kind:
                case "multipart/form-data":
                    images = await _form(request, config, take, options)
                case "application/json":
                    body = b"".join([chunk async for chunk in _chunks(request, config, take)])
                    images = await asyncio.to_thread(_json, body, options)
                case _ if kind in ("", "application/octet-stream") or kind.startswith("image/"):
                    body = b"".join([chunk async for chunk in _chunks(request, config, take)])
                    images = [Upload("image 0", body)] if body else []
                case _:
                    raise Refusal("unsupported_media_type", f"the body is {printable(kind[:100])}, not an image", hint=_HOW)
    except TimeoutError:
        raise Refusal("too_slow", f"the request did not arrive within {config.receive_seconds:g} s") from None
    _check_options(options, known)
    if not images:
        raise Refusal("no_image", "the request holds no image", hint=_HOW)
    if len(images) > config.max_images:
        raise Refusal("too_many_images", f"the request holds {len(images)} images; the limit is {config.max_images}")
    return Sent(images, options)


async def _chunks(request: Request, config: ServeConfig, take: Callable[[int], None]) -> AsyncGenerator[bytes, None]:
    """The body, as it arrives; Refusal as soon as it is too large."""
    too_large = Refusal("body_too_large", f"the body has more than {config.max_body:,} bytes")
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told[:20]) > config.max_body:
        raise too_large
    arrived = 0
    async for chunk in request.stream():
        arrived += len(chunk)
        if arrived > config.max_body:
            raise too_large
        take(len(chunk))
        yield chunk


class _InMemory(MultiPartParser):
    """Starlette's parser; what it would put into files on a disk stays in memory, which `max_body` limits."""

    spool_max_size = 0  # 0: SpooledTemporaryFile never moves to a disk


async def _form(request: Request, config: ServeConfig, take: Callable[[int], None], options: dict[str, Any]) -> list[Upload]:
    stream = _chunks(request, config, take)
    parser = _InMemory(request.headers, stream, max_files=config.max_images + 1, max_fields=_MOST_FIELDS, max_part_size=1024)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            message = f"the request holds more than {config.max_images} images"
            raise Refusal("too_many_images", message) from None
        raise Refusal("bad_request", f"the form cannot be read: {printable(error.message)[:200]}") from None
    images: list[Upload] = []
    try:
        for field, value in form.multi_items():
            if isinstance(value, UploadFile):
                if field not in _FILES:
                    raise Refusal("invalid_option", f"no file field called {_short(field)}", hint=f"use {' or '.join(_FILES)}")
                name = _short(value.filename or f"image {len(images)}")
                images.append(Upload(name, value.file.read()))
            else:
                options[field] = value
    finally:
        await form.close()
    return images


def _json(body: bytes, options: dict[str, Any]) -> list[Upload]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal("bad_request", "the body is not JSON") from error
    if not isinstance(found, dict):
        raise Refusal("bad_request", "the body is not a JSON object", hint='for example {"image": "... base64 ..."}')
    options |= {name: value for name, value in found.items() if name not in ("image", "images")}
    if "image" in found and "images" in found:
        raise Refusal("invalid_option", "the request has both image and images", hint="leave one out")
    images = [found["image"]] if "image" in found else found.get("images", [])
    if not isinstance(images, list):
        raise Refusal("invalid_option", "images is not a list")
    return [_decoded(image, place) for place, image in enumerate(images)]


def _decoded(image: Any, place: int) -> Upload:
    """An image in base64, alone or as {"name": ..., "data": ...}."""
    name, data = (
        (image.get("name", f"image {place}"), image.get("data")) if isinstance(image, Mapping) else (f"image {place}", image)
    )
    if not isinstance(name, str) or not isinstance(data, str):
        hint = 'give base64, or {"name": "cat.jpg", "data": "... base64 ..."}'
        raise Refusal("invalid_option", f"image {place} is not text in base64; URLs are not fetched", hint=hint)
    head, comma, rest = data.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        data = rest
    try:
        return Upload(_short(name), base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        message = f"image {place} is not base64; URLs are not fetched"
        raise Refusal("invalid_option", message, hint="give the bytes of the image file in base64") from None


def _check_options(options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) or f"options are {', '.join(known)}"
            raise Refusal("invalid_option", f"no option called {_short(name)}", hint=hint)


def _short(name: str) -> str:
    return printable(name[:_LONGEST_NAME]) or "image"


__all__ = ["ClientDisconnect", "Memory", "Sent", "Upload", "read_request"]


def whole(options: Mapping[str, Any], name: str, default: int | None, *, least: int, most: int) -> int | None:
    """A whole number from `least` to `most`."""
    if (value := options.get(name)) is None:
        return default
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise Refusal("invalid_option", f"{name}={_shown(value)} is not a whole number from {least} to {most}")
    return int(text)


def flag(options: Mapping[str, Any], name: str) -> bool:
    """true or false; false if it is absent."""
    value = options.get(name, False)
    if isinstance(value, bool):
        return value
    if value not in ("true", "false", "1", "0"):
        raise Refusal("invalid_option", f"{name}={_shown(value)} is neither true nor false")
    return value in ("true", "1")


def word(options: Mapping[str, Any], name: str, words: Sequence[str], default: str) -> str:
    """One of the words."""
    value = options.get(name, default)
    if value not in words:
        hint = did_you_mean(str(value)[:100], words)
        raise Refusal("invalid_option", f"{name}={_shown(value)} is not one of {', '.join(words)}", hint=hint)
    return str(value)


def patch(options: Mapping[str, Any], name: str) -> str | tuple[int, int] | None:
    """`class`, `distill`, or a patch: `3,5` as text, [3, 5] in JSON; None if it is absent."""
    value = options.get(name)
    if value is None or value in ("class", "distill"):
        return value
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    if not (match := re.fullmatch(r"([0-9]{1,6}),([0-9]{1,6})", text)):
        raise Refusal("invalid_option", f"{name}={_shown(value)} is neither row,column of a patch nor class nor distill")
    return int(match[1]), int(match[2])


def _shown(value: Any) -> str:
    return printable(repr(value)[:100])
