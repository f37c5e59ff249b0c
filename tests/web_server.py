"""Local web servers that answer well or badly, and record their requests: one of a file, and one of the Hugging Face Hub.

with serving(Served(content)) as served: ...  # the file is at served.address
with serving(Hub(files)) as hub: ...          # hub.address is the client's HF_ENDPOINT
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from tests import processes
from vitlab.data.catalog.sets import PublicSet, RemoteFile, find_set


class Site(Protocol):
    """What a server serves: `answer` answers a request; `path` is what the address ends in, and `protocol` the version of HTTP."""

    path: ClassVar[str]
    protocol: ClassVar[str]
    address: str

    def answer(self, request: BaseHTTPRequestHandler) -> None: ...


SiteT = TypeVar("SiteT", bound=Site)


@contextmanager
def serving(site: SiteT) -> Iterator[SiteT]:
    """Serve at `site.address` until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = site.protocol

        def do_GET(self) -> None:
            site.answer(self)

        do_HEAD = do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name is the library's)
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that leaves is part of the plan

    server = Server(("127.0.0.1", 0), Handler)
    site.address = f"http://127.0.0.1:{server.server_address[1]}{site.path}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(processes.LIMIT)


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
    """A whole answer; its length is that of the body unless the headers give another one."""
    request.send_response(status)
    for name, value in ({"Content-Length": str(len(body))} | dict(headers or {})).items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def _first_byte(request: BaseHTTPRequestHandler) -> int:
    """Where the part of a file begins that the request asks for."""
    return int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])


# --- one file -----------------------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """What is served, and how.

    `cut` closes the connection after so many bytes of a body; `reset` does so with a TCP reset; both only for the first
    `bad_answers` questions. `status` answers these with a status and no file.
    """

    path: ClassVar[str] = "/file"
    protocol: ClassVar[str] = "HTTP/1.0"

    content: bytes
    ranges: bool = True
    etag: str | None = '"one"'
    modified: str | None = None
    length: bool = True
    cut: int | None = None
    reset: bool = False
    bad_answers: int = 0
    status: int | None = None
    retry_after: str | None = None
    location: str | None = None
    encoding: str | None = None
    announced: int | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    address: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(dict(request.headers.items()))
        bad = len(self.asked) <= self.bad_answers
        if self.location is not None and request.path == self.path:
            return _send(request, 302, headers={"Location": self.location})
        if self.status is not None and bad:
            return _send(request, self.status, headers={"Retry-After": self.retry_after} if self.retry_after else None)
        same = request.headers.get("If-Range") in (None, self.etag, self.modified)
        start = _first_byte(request) if self.ranges and same else 0
        if start >= len(self.content) and start:
            return _send(request, 416)
        body = self.content[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.length:
            request.send_header("Content-Length", str(len(body) if self.announced is None else self.announced))
        for name, value in (("ETag", self.etag), ("Last-Modified", self.modified), ("Content-Encoding", self.encoding)):
            if value:
                request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body[: self.cut] if bad else body)
        if self.cut is not None and bad and self.reset:
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # on, for no time at all: closing then resets
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            request.wfile.flush()
            request.connection.close()
        return None


def plain_set(content: bytes = b"content") -> PublicSet:
    """A set of one file that is read as it is, at an address nobody has."""
    file = RemoteFile(
        name="file.bin",
        addresses=("http://127.0.0.1:9/file.bin",),
        size=len(content),
        checksum=f"sha256:{hashlib.sha256(content).hexdigest()}",
    )
    return replace(find_set("mnist"), files=(file,), name="plain")


# --- the Hub ------------------------------------------------------------------------------------------------------------------


@dataclass
class Hub:
    """A Hub with one repository: its `files` and its `name`, which is empty until a client makes the repository.

    `gated` refuses its files without the `token`, which uploads always need; `cut` ends the connection after so many bytes of the
    weights, while it is set; `corrupt` sends one wrong byte in them; `instead` is what describes the repository, if it is not the
    truth. `asked` has (path, Range header) of each request for a file's content, `requests` counts all.
    """

    path: ClassVar[str] = ""
    protocol: ClassVar[str] = "HTTP/1.1"

    files: dict[str, bytes] = field(default_factory=dict)
    name: str = "owner/name"
    private: bool = False
    gated: bool = False
    token: str = "hf_nobody"
    cut: int | None = None
    corrupt: bool = False
    instead: bytes | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    requests: int = 0
    address: str = ""

    @property
    def revision(self) -> str:
        """The commit, which changes with the files."""
        return hashlib.sha1(repr(sorted(self.files.items())).encode(), usedforsecurity=False).hexdigest()

    def entry(self, path: str) -> dict[str, object]:
        """A file in the listing of the repository: weights are stored by their SHA-256, texts as Git objects."""
        content = self.files[path]
        about: dict[str, object] = {"type": "file", "path": path, "rfilename": path, "size": len(content), "oid": self.etag(path)}
        if path.endswith(".safetensors"):
            about["lfs"] = {"oid": self.etag(path), "sha256": self.etag(path), "size": len(content), "pointerSize": 130}
        return about

    def etag(self, path: str) -> str:
        """The checksum by which the Hub names a file's content."""
        content = self.files[path]
        if path.endswith(".safetensors"):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        path, revision, api = unquote(urlsplit(request.path).path), self.revision, f"/api/models/{self.name}"
        allowed = request.headers.get("Authorization") == f"Bearer {self.token}"
        if request.command == "POST":
            content = request.rfile.read(int(request.headers.get("Content-Length") or 0))
            if not allowed:
                return _refuse(request, 401, "Unauthorized", "Invalid username or password.")
            return self._upload(request, path, content)
        if path == "/api/whoami-v2":
            return _send_json(request, {"name": "me", "type": "user", "orgs": [], "auth": {"type": "access_token"}})
        if not self.name or self.name not in path:
            return _refuse(request, 401, "RepoNotFound", "Repository Not Found")
        listed = [self.entry(name) for name in self.files]
        if path in (f"{api}/revision/main", f"{api}/revision/{revision}"):
            about = {"id": self.name, "sha": revision, "siblings": listed, "gated": self.gated, "tags": [], "private": self.private}
            return _send(request, 200, self.instead) if self.instead is not None else _send_json(request, about)
        if path == f"{api}/tree/{revision}":
            return _send_json(request, listed)
        if path.startswith(f"{api}/revision/"):
            return _refuse(request, 404, "RevisionNotFound", "Invalid rev id")
        if self.gated and not allowed:
            return _refuse(request, 403, "GatedRepo", f"Access to model {self.name} is restricted")
        return self._file(request, path.rpartition(f"/resolve/{revision}/")[2])

    def _file(self, request: BaseHTTPRequestHandler, name: str) -> None:
        if name not in self.files:
            return _refuse(request, 404, "EntryNotFound", "Entry not found")
        content, start = self.files[name], _first_byte(request)
        headers = {"X-Repo-Commit": self.revision, "ETag": f'"{self.etag(name)}"', "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        body = content[start:]
        headers["Content-Length"] = str(len(body))
        if request.command != "HEAD":
            self.asked.append((name, request.headers.get("Range", "")))
            if name.endswith(".safetensors"):
                body = (body[:-1] + bytes([body[-1] ^ 1]) if self.corrupt else body)[: self.cut]
            request.close_connection = True
        return _send(request, 206 if start else 200, body, headers)

    def _upload(self, request: BaseHTTPRequestHandler, path: str, content: bytes) -> None:
        if path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if name == self.name:
                return _send_json(request, {"error": "it is there already", "url": f"{self.address}/{name}"}, status=409)
            self.name, self.private = name, bool(asked.get("private") or asked.get("visibility") == "private")
            return _send_json(request, {"url": f"{self.address}/{name}", "name": name, "id": "1"})
        if path.endswith("/validate-yaml"):
            return _send_json(request, {"errors": [], "warnings": []})
        if "/preupload/" in path:
            modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            files = [{"path": file["path"], **modes} for file in json.loads(content)["files"]]
            return _send_json(request, {"files": files, "commitOid": "0" * 40})
        if path.startswith(f"/api/models/{self.name}/commit/"):
            for line in map(json.loads, content.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"{self.address}/{self.name}/commit/{self.revision}"
            return _send_json(request, {"commitUrl": url, "commitOid": self.revision, "success": True, "hookOutput": ""})
        return _refuse(request, 404, "NotFound", f"nothing at {path}")


def _send_json(request: BaseHTTPRequestHandler, value: object, *, status: int = 200) -> None:
    _send(request, status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str, message: str) -> None:
    _send(request, status, headers={"X-Error-Code": code, "X-Error-Message": message})
