"""Running a server: the socket, the models, signals, uvicorn and what it does not limit.

    with Server(sources, config) as server:      # in a thread, for notebooks and tests
        print(server.url)
    Server(sources, config).run()                # until SIGTERM or Ctrl-C

SIGTERM and Ctrl-C drain: no new request is accepted, every accepted one is answered. A second one ends at once. SIGHUP loads the
model files again; a model that does not load is not taken over. uvicorn runs on uvloop where that is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from types import FrameType, TracebackType
from typing import TextIO, TypeVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.evaluation import BackendName
from vitlab.errors import ConfigError, UsageError, VitlabError
from vitlab.io.display import Facts
from vitlab.serving.app import create_app
from vitlab.serving.config import ServeConfig
from vitlab.serving.models import Models, Running, ServedModel, Source
from vitlab.serving.port import bind, listen
from vitlab.serving.requests import CODES, RETRY_AFTER
from vitlab.serving.service import Log, Metrics, Service

T = TypeVar("T")
_KEEP_ALIVE = 75  # seconds that a connection may be idle: longer than proxies keep theirs, so that none sends into a closing one
_MARGIN = 5.0  # seconds beyond the limits of a request that draining may take


class Server:
    """A server that is bound to its port and has opened its models; `run` serves. `url` is where.

    Errors come at once: a port that is taken, a model that does not load. `log` receives a JSON object a line.
    `bound` is a socket that is bound already.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        config: ServeConfig,
        *,
        backend: BackendName = "auto",
        device: str = "auto",
        merge: int = 0,
        log: TextIO | None = None,
        bound: socket.socket | None = None,
    ) -> None:
        _check_names(sources)
        self.config = config
        self._socket = bind(config.host, config.port) if bound is None else bound
        try:
            self._opened: dict[str, Checkpoint] = {source.name: source.open() for source in sources}
            listen(self._socket, config)
        except BaseException:
            self._socket.close()
            raise
        self.port = int(self._socket.getsockname()[1])
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.url = f"http://{host}:{self.port}"
        self.models = Models(sources)
        self.metrics = Metrics(lambda: self.service.waiting)
        self.log = Log(sys.stderr if log is None else log, on_drop=self.metrics.dropped_lines.inc)
        self.service = Service(config, self.models, self.metrics, self.log)
        self._running = Running(
            config=config,
            backend=backend,
            device=device,
            merge=merge,
            count_batches=self.metrics.count_batches,
            notify=self.log.note,
            on_death=self._died,
        )
        self._fault: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                create_app(self.service),
                http=protocol_class(
                    receive_seconds=config.receive_seconds,
                    max_connections=config.max_connections,
                    on_refusal=self._refused_early,
                ),
                loop="auto",  # uvloop, where it can be installed
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=round(config.receive_seconds + config.answer_seconds + _MARGIN),
            )
        )
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()

    def run(self, *, on_ready: Callable[[str], None] | None = None) -> Facts:
        """Serve until a signal, then drain; what was served. VitlabError if the server had to end by itself."""
        began = time.monotonic()
        with self._signals(), asyncio.Runner(loop_factory=self._uvicorn.config.get_loop_factory()) as runner:
            runner.run(self._serve(on_ready))
        if self._fault is not None:
            raise VitlabError(f"the server had to end: {self._fault}", hint="the log says more") from self._fault
        requests = sum(
            int(sample.value)
            for family in self.metrics.requests.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        )
        return Facts({"url": self.url, "requests": requests, "seconds": round(time.monotonic() - began, 1)})

    def stop(self) -> None:
        """Drain and end. For any thread; a second call ends at once."""
        if self._uvicorn.should_exit:
            self._uvicorn.force_exit = True
        self.service.draining = True
        self._uvicorn.should_exit = True

    def reload(self) -> None:
        """Open the model files again, and take over those that load; in a thread, while requests are answered."""
        threading.Thread(target=self._reload, name="vitlab-reload", daemon=True).start()

    def __enter__(self) -> Server:
        """Serve in a thread, and wait until requests are accepted."""
        self._thread = threading.Thread(target=self.run, name="vitlab-server", daemon=True)
        self._thread.start()
        while not self._ready.wait(0.1):
            if not self._thread.is_alive():
                raise VitlabError(f"the server did not start: {self._fault}")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Drain and end."""
        assert self._thread is not None
        self.stop()
        self._thread.join()

    async def _serve(self, on_ready: Callable[[str], None] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.log.event("listening", {"url": self.url, "models": list(self._opened), "pid": os.getpid()})
        threading.Thread(target=self._start, args=(on_ready,), name="vitlab-start", daemon=True).start()
        try:
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            await asyncio.to_thread(self.service.close)
            self.log.event("ended", {"reason": "failed" if self._fault else "asked to"})
            await asyncio.to_thread(self.log.close)

    def _start(self, on_ready: Callable[[str], None] | None) -> None:
        """Make the models ready, one after another; an error ends the server."""
        try:
            for source in self.models.sources:
                model = ServedModel(source.name, self._opened.pop(source.name), self._running)
                if self.service.draining:  # the server was asked to end meanwhile, and did not wait
                    return
                self._in_loop(partial(self.models.put, model))
        except Exception as error:  # noqa: BLE001 - whatever it is, the server cannot serve
            self._died(error)
            return
        self.log.event("ready", {"url": self.url, "backends": {model.name: model.predictor.backend.name for model in self.models}})
        self._ready.set()
        if on_ready is not None:
            on_ready(self.url)

    def _reload(self) -> None:
        with self.models.reloading:
            for source in self.models.sources:
                try:
                    model = ServedModel(source.name, source.open(), self._running, before=self.models.find(source.name))
                except Exception as error:  # noqa: BLE001 - whatever it is, the model that runs stays
                    self.metrics.reloads.labels("refused").inc()
                    self.log.event("reload", {"model": source.name, "outcome": "refused", "message": str(error)})
                    continue
                before = self._in_loop(partial(self.models.put, model))
                self.metrics.reloads.labels("taken over").inc()
                self.log.event("reload", {"model": source.name, "outcome": "taken over", "digest": model.digest})
                if before is not None:
                    before.batcher.close()

    def _refused_early(self, status: int, code: str, client: str) -> None:
        """Count and log a request that did not reach the application."""
        self.metrics.requests.labels("other", "other", str(status)).inc()
        self.log.event("request", {"client": client, "status": status, "error": code})

    def _in_loop(self, function: Callable[[], T]) -> T:
        """Call a function in the event loop's thread, where requests find their models; its result."""
        assert self._loop is not None

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def _died(self, error: BaseException) -> None:
        self._fault = error
        self.log.event("error", {"message": f"{type(error).__name__}: {error}"})
        self.stop()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Within the block, signals drain and reload; the caller's handlers are restored. Only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def end(number: int, frame: FrameType | None) -> None:
            self.stop()

        def again(number: int, frame: FrameType | None) -> None:
            self.reload()

        handlers = {signal.SIGTERM: end, signal.SIGINT: end, signal.SIGHUP: again}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Uvicorn(uvicorn.Server):
    """uvicorn, which leaves signals to `Server`: it would end by the signal itself, not with exit code 0."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def _check_names(sources: Sequence[Source]) -> None:
    if not sources:
        raise UsageError("no model given", hint="vitlab serve MODEL")
    names = [source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two models are called {name}", hint="clients choose a model by its file name: rename one")


def announce(url: str) -> None:
    """Print the address on standard output, for whoever started the server; a reader that left does not matter."""
    with suppress(OSError, ValueError):
        print(url, flush=True)


# --- what uvicorn does not limit: the time a request takes to arrive, its headers, the connections ----------------------------

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
