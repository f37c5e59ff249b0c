"""A local Hugging Face Hub for the real client: repositories in memory that are made, filled by commits, and downloaded.

    with hub_server(monkeypatch_or_environment) as hub: ...

It answers what huggingface_hub asks when it makes a repository, uploads a folder and downloads a snapshot.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_local"


@dataclass
class LocalHub:
    """`repositories`: owner/name -> path -> content; `private` names those that are private; `asked` are the requests."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    asked: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""

    def revision(self, name: str) -> str:
        """A commit that changes with the files."""
        digest = hashlib.sha1(usedforsecurity=False)
        for path, content in sorted(self.repositories[name].items()):
            digest.update(path.encode() + b"\0" + content)
        return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self._path()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if name in self.hub.repositories:
                self._send(409, {"error": "You already created this model repo", "url": f"{self.hub.address}/{name}"})
                return
            self.hub.repositories[name] = {}
            if asked.get("private") or asked.get("visibility") == "private":
                self.hub.private.add(name)
            self._send(200, {"url": f"{self.hub.address}/{name}", "name": name, "id": "1"})
        elif "/preupload/" in path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(content)["files"]
            ]
            self._send(200, {"files": files, "commitOid": "0" * 40})
        elif "/commit/" in path:
            name = path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in content.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.hub.repositories[name][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            revision = self.hub.revision(name)
            made = {"commitUrl": f"{self.hub.address}/{name}/commit/{revision}", "commitOid": revision, "success": True}
            self._send(200, made | {"hookOutput": ""})
        elif path.endswith("/validate-yaml") or path == "/api/validate-yaml":
            self._send(200, {"errors": [], "warnings": []})
        else:
            self._send(404, {"error": f"nothing at {path}"})

    def _path(self) -> str:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path))
        return path

    def _answer(self, *, body: bool) -> None:
        path = self._path()
        if path == "/api/whoami-v2":
            self._send(200, {"name": "me", "type": "user", "orgs": [], "auth": {"type": "access_token"}}, body=body)
            return
        if path.startswith("/api/models/"):
            name, _, rest = path.removeprefix("/api/models/").partition("/revision/")
            name = name.partition("/tree/")[0]
            if name not in self.hub.repositories:
                self._send(404, {"error": "Repository not found"}, code="RepoNotFound", body=body)
                return
            revision = self.hub.revision(name)
            files = self.hub.repositories[name]
            if "/tree/" in path:
                entries = [{"type": "file", "path": file, "size": len(files[file]), "oid": _etag(files[file])} for file in files]
                self._send(200, entries, body=body)
                return
            if rest and rest.partition("?")[0] not in ("main", revision):
                self._send(404, {"error": "Invalid rev id"}, code="RevisionNotFound", body=body)
                return
            info = {"id": name, "modelId": name, "sha": revision, "private": name in self.hub.private, "tags": []}
            self._send(200, info | {"siblings": [{"rfilename": file} for file in files], "downloads": 0, "likes": 0}, body=body)
            return
        name, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        content = self.hub.repositories.get(name, {}).get(file)
        if content is None:
            self._send(404, {"error": "Entry not found"}, code="EntryNotFound", body=body)
            return
        self.send_response(200)
        self.send_header("ETag", f'"{_etag(content)}"')
        self.send_header("X-Repo-Commit", self.hub.revision(name))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _send(self, status: int, value: object, *, code: str | None = None, body: bool = True) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        if body:
            self.wfile.write(text)


def _etag(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def hub_server() -> Iterator[LocalHub]:
    """A hub on 127.0.0.1 while the block runs; give its `address` to the client as HF_ENDPOINT, and TOKEN as HF_TOKEN."""
    hub = LocalHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=30)
