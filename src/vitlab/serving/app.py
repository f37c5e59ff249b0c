"""The ASGI application: its endpoints, and the envelope around each of them.

The envelope gives a request its id, asks for the API key, turns every error into JSON, adds security headers, and writes one log
line and the counters. No traceback and no path of the server leaves the process.
"""

from __future__ import annotations

import hmac
import random
import re
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitlab import __version__
from vitlab.inference.results import Prediction
from vitlab.io.display import json_text
from vitlab.io.text import printable
from vitlab.serving import explorer
from vitlab.serving import uploads as read
from vitlab.serving.batching import Answer
from vitlab.serving.explanations import explain
from vitlab.serving.models import ServedModel
from vitlab.serving.openapi import OPTIONS, document
from vitlab.serving.refusals import Refusal, refusal_of
from vitlab.serving.service import Answered, Service

_LEFT = 499  # in the log and the counters: the client closed its connection before the answer
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH"})
_SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def create_app(service: Service) -> Starlette:
    """The application of a service: the endpoints below, and the page of `explorer.py`."""
    routes: list[BaseRoute] = [
        Route("/v1/predict", _predict, methods=["POST"]),
        Route("/v1/embed", _embed, methods=["POST"]),
        Route("/v1/explain", _explain, methods=["POST"]),
        Route("/v1/models", _models, methods=["GET"]),
        Route("/healthz", _health, methods=["GET"]),
        Route("/readyz", _ready, methods=["GET"]),
        Route("/metrics", _metrics, methods=["GET"]),
        Route("/openapi.json", _openapi, methods=["GET"]),
        *explorer.routes(service),
    ]
    paths = frozenset(route.path for route in routes if isinstance(route, Route))
    middleware = [Middleware(Envelope, service=service, paths=paths)]
    if service.config.origins:
        headers = ["authorization", "content-type", "x-api-key", "x-request-id"]
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(service.config.origins),
            allow_methods=["GET", "POST"],
            allow_headers=headers,
            expose_headers=["x-request-id", "retry-after"],
        )
        middleware.append(cors)
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _refuse, Refusal: _refuse})
    app.router.redirect_slashes = False
    app.state.service = service
    return app


# --- endpoints ----------------------------------------------------------------------------------------------------------------


async def _predict(request: Request) -> Response:
    service: Service = request.app.state.service
    model, (top, wants_all), answered = await service.predict(request, tuple(OPTIONS["/v1/predict"]), _of_predict)

    def shown(name: str, answer: Answer) -> dict[str, Any]:
        predictor = model.predictor
        prediction = Prediction(name=name, logits=answer.logits_K, labels=predictor.labels, activation=predictor.activation)
        found = prediction.to_json(top)
        return found | {"probabilities": prediction.probabilities.tolist()} if wants_all else found

    return _json({"model": model.name, "predictions": _each(answered, shown)})


def _of_predict(model: ServedModel, options: Mapping[str, Any]) -> tuple[int, bool]:
    classes = model.checkpoint.config.num_classes
    if not classes:
        raise Refusal("invalid_option", f"the model {model.name} has no head and predicts no classes", hint="use /v1/embed")
    top = read.whole(options, "top", 5, least=1, most=1 << 20)
    assert top is not None, "it has a default"
    return min(top, classes), read.flag(options, "probabilities")


async def _embed(request: Request) -> Response:
    service: Service = request.app.state.service
    model, _, answered = await service.predict(request, tuple(OPTIONS["/v1/embed"]), lambda model, options: None)
    embeddings = _each(answered, lambda name, answer: {"name": name, "features": answer.features_D.tolist()})
    return _json({"model": model.name, "width": model.checkpoint.config.feature_width, "embeddings": embeddings})


def _each(answered: Answered, shown: Callable[[str, Answer], dict[str, Any]]) -> list[dict[str, Any]]:
    """An entry for each image: what it was answered, or why it could not be read."""
    return [
        {"name": image.name, "error": answer.to_json()} if isinstance(answer, Refusal) else shown(image.name, answer)
        for image, answer in answered
    ]


async def _explain(request: Request) -> Response:
    service: Service = request.app.state.service
    found = await service.compute(request, tuple(OPTIONS["/v1/explain"]), explain)
    return _json(found.facts) if found.image is None else Response(found.image, media_type="image/png")


async def _models(request: Request) -> Response:
    service: Service = request.app.state.service
    if not service.models.loaded:
        raise Refusal("not_ready", "the server is loading its models")
    return _json({"models": [model.to_json() for model in service.models]})


async def _health(request: Request) -> Response:
    return _json({"status": "ok", "version": __version__})


async def _ready(request: Request) -> Response:
    service: Service = request.app.state.service
    if not service.ready:
        raise Refusal("not_ready", "the server is shutting down" if service.draining else "the server is loading its models")
    return _json({"status": "ready", "version": __version__})


async def _metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _openapi(request: Request) -> Response:
    service: Service = request.app.state.service
    return _json(document(service.config))


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json_text(value).encode(), status_code=status, headers=headers, media_type="application/json")


# --- the envelope -------------------------------------------------------------------------------------------------------------


class Envelope:
    """Around every request: id, key, errors as JSON, headers, log, counters."""

    def __init__(self, app: ASGIApp, *, service: Service, paths: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._paths = paths
        self._keys = [key.encode() for key in service.config.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else f"{random.getrandbits(128):032x}"
        state = scope.setdefault("state", {})
        state |= {"id": request_id, "error": ""}
        status = 0

        async def enveloped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = MutableHeaders(scope=message)
                own["x-request-id"] = request_id
                for name, value in _SECURITY.items():
                    own.setdefault(name, value)
                if scope["path"].startswith("/v1/"):
                    own["cache-control"] = "no-store"
            await send(message)

        try:
            if self._needs_key(scope) and not self._has_key(headers):
                raise Refusal("no_key", "an API key of this server is needed", hint="send Authorization: Bearer KEY")
            await self._app(scope, receive, enveloped)
        except ClientDisconnect:
            status, state["error"] = _LEFT, "client_left"
        except Exception as fault:  # noqa: BLE001 - everything that goes wrong becomes an answer
            refusal = _as_refusal(fault)
            state["error"] = refusal.code
            if refusal.code == "failed":
                lines = traceback.format_exception(fault)
                self._service.log.event("error", {"request_id": request_id, "message": "".join(lines)})
            if status == 0:
                await _refused(refusal)(scope, receive, enveloped)
        self._record(scope, status, state["error"], request_id, time.perf_counter() - began, headers)

    def _needs_key(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return bool(self._keys) and (path.startswith("/v1/") or path == "/metrics") and scope["method"] != "OPTIONS"

    def _has_key(self, headers: Headers) -> bool:
        """Compare with every key, in a time that does not depend on how much of one is right."""
        words = headers.get("authorization", "").split(" ")
        given = words[1] if len(words) == 2 and words[0].lower() == "bearer" else headers.get("x-api-key", "")
        return any(hmac.compare_digest(given.encode(), key) for key in self._keys)

    def _record(self, scope: Scope, status: int, error: str, request_id: str, seconds: float, headers: Headers) -> None:
        """Count the request and write its line. Names that a client chose freely are not used as labels."""
        metrics = self._service.metrics
        path = scope["path"] if scope["path"] in self._paths else "other"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        metrics.requests.labels(path, method, str(status)).inc()
        metrics.seconds.labels(path).observe(seconds)
        line = {
            "request_id": request_id,
            "client": scope["client"][0] if scope.get("client") else None,
            "method": scope["method"],
            "path": printable(scope["path"][:200]),
            "status": status,
            "milliseconds": round(1000 * seconds, 1),
            "bytes": headers.get("content-length", "")[:20] or None,
        }
        self._service.log.event("request", line | ({"error": error} if error else {}))


async def _refuse(request: Request, fault: Exception) -> Response:
    """A refusal of an endpoint or of the router as a response."""
    refusal = _as_refusal(fault)
    request.state.error = refusal.code
    return _refused(refusal)


def _refused(refusal: Refusal) -> Response:
    return _json({"error": refusal.to_json()}, status=refusal.status, headers=refusal.headers)


def _as_refusal(fault: Exception) -> Refusal:
    if isinstance(fault, HTTPException):
        match fault.status_code:
            case 404:
                hint = "there are /v1/predict, /v1/embed, /v1/explain, /v1/models and others: /openapi.json lists them"
                return Refusal("not_found", "there is no such path", hint=hint)
            case 405:
                return Refusal("method_not_allowed", "the path does not take this method", hint="/openapi.json lists the methods")
            case _:
                return Refusal("bad_request", "the request cannot be understood")
    return refusal_of(fault)
