"""The ASGI application: its endpoints, the envelope around each of them, and their description, /openapi.json.

The envelope gives a request its id, asks for the API key, turns every error into JSON, adds security headers, and writes one log
line and the counters. No traceback and no path of the server leaves the process.

The page at `/` (`vitlab.reports.explorer`) has endpoints that only it uses: they answer with arrays in binary form
(`vitlab.io.arrays`). No image is kept: the page sends it each time.

Axes: L layers, B batch, H heads, G x J patches down and across; of images H height, W width, C channels.
"""

from __future__ import annotations

import asyncio
import hmac
import random
import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitlab import __version__
from vitlab.data.transforms import normalise
from vitlab.errors import DataError
from vitlab.inference.backends import Pixels
from vitlab.inference.results import Prediction
from vitlab.inference.search_index import Index
from vitlab.interpretation.attention import Floats, Query, query_attention, relevance, rollout
from vitlab.interpretation.exploration import (
    ModelView,
    attention_of,
    changed_answer,
    explore_image,
    explore_model,
    patches_of,
    shuffled_order,
)
from vitlab.interpretation.paint import overlay, png
from vitlab.io.arrays import pack_arrays
from vitlab.io.display import json_text, printable
from vitlab.models.vit import ViT
from vitlab.reports.explorer import BUILTIN, Neighbourhood, answer_facts, image_bytes, model_bytes, page_files, served_page
from vitlab.serving import requests as read
from vitlab.serving.config import ServeConfig
from vitlab.serving.models import Answer, ServedModel
from vitlab.serving.requests import CODES, Refusal, refusal_of
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
    """The application of a service: the endpoints, and the page at `/`."""
    routes: list[BaseRoute] = [
        Route("/v1/predict", _predict, methods=["POST"]),
        Route("/v1/embed", _embed, methods=["POST"]),
        Route("/v1/explain", _explain, methods=["POST"]),
        Route("/v1/models", _models, methods=["GET"]),
        Route("/healthz", _health, methods=["GET"]),
        Route("/readyz", _ready, methods=["GET"]),
        Route("/metrics", _metrics, methods=["GET"]),
        Route("/openapi.json", _openapi, methods=["GET"]),
        *explorer_routes(service),
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


# --- /v1/explain --------------------------------------------------------------------------------------------------------------

METHODS = ("attention", "rollout", "relevance")
FORMATS = ("json", "png")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A map over the patches of an image: `values` (G, J), or (H, G, J) with one map for each head; or a PNG of it."""

    facts: dict[str, Any]
    image: bytes | None


def explain(model: ServedModel, pixels_HWC: Pixels, options: Mapping[str, Any]) -> Explanation:
    """The explanation that the options ask for."""
    method = read.word(options, "method", METHODS, "rollout")
    form = read.word(options, "format", FORMATS, "json")
    how = read.word(options, "overlay", ("shade", "colour"), "shade")
    vit = model.checkpoint.model
    if method not in model.explanations or not isinstance(vit, ViT):
        known = ", ".join(model.explanations) or "it has no attention between patches"
        raise Refusal("invalid_option", f"{method} is not defined for the model {model.name}", hint=known)
    images_BCHW = normalise(torch.from_numpy(pixels_HWC[None]), model.checkpoint.preprocess)
    if method != "attention":
        for name in ("layer", "head", "query"):
            if name in options:
                raise Refusal("invalid_option", f"{name} is for method=attention, not for {method}")
    if method != "relevance" and "class" in options:
        raise Refusal("invalid_option", f"class is for method=relevance, not for {method}")
    facts: dict[str, Any] = {"model": model.name, "method": method}
    match method:
        case "attention":
            values = _attended(vit, images_BCHW, options, facts)
        case "rollout":
            values = rollout(vit, images_BCHW)[0]
        case _:
            chosen = _class(model, vit, images_BCHW, options)
            values = relevance(vit, images_BCHW, chosen)[0]
            facts["class"] = chosen
    if form == "png":
        heat_GJ = values if values.ndim == 2 else values.mean(0)
        return Explanation(facts=facts, image=png(overlay(pixels_HWC, heat_GJ, "colour" if how == "colour" else "shade")))
    return Explanation(facts=facts | {"shape": list(values.shape), "values": values.tolist()}, image=None)


def _attended(vit: ViT, images_BCHW: torch.Tensor, options: Mapping[str, Any], facts: dict[str, Any]) -> Floats:
    layers, heads = len(vit.encoder.blocks), vit.config.heads
    layer = read.whole(options, "layer", -1, least=-layers, most=layers - 1)
    head = read.whole(options, "head", None, least=0, most=heads - 1)
    grid = vit.config.grid_of((images_BCHW.shape[2], images_BCHW.shape[3]))
    asked = read.patch(options, "query")
    if asked is None:
        asked = "class" if vit.config.class_token else (grid[0] // 2, grid[1] // 2)
    query: Query = "class" if asked == "class" else "distill" if asked == "distill" else (int(asked[0]), int(asked[1]))
    assert layer is not None, "it has a default"
    values_HGJ: Floats = query_attention(vit, images_BCHW, query, layers=[layer])[0, 0]
    facts |= {"layer": layer % layers, "head": head, "query": query if isinstance(query, str) else list(query)}
    return values_HGJ if head is None else np.asarray(values_HGJ[head])


def _class(model: ServedModel, vit: ViT, images_BCHW: torch.Tensor, options: Mapping[str, Any]) -> int:
    """A class by its label or its number from 0; the predicted one if none is given."""
    value, labels = options.get("class"), model.checkpoint.labels
    if labels is not None and isinstance(value, str) and value in labels:
        return labels.index(value)
    chosen = read.whole(options, "class", None, least=0, most=model.checkpoint.config.num_classes - 1)
    if chosen is not None:
        return chosen
    like = next(vit.parameters())
    with torch.inference_mode():
        return int(vit(images_BCHW.to(device=like.device, dtype=like.dtype)).argmax())


# --- the page at /, and the endpoints that only it uses -----------------------------------------------------------------------

_KINDS = {".js": "text/javascript", ".css": "text/css", ".jpg": "image/jpeg"}
_ASSETS, _BASE = "explorer", "v1/explorer"  # relative: the page may be behind a prefix
Work = Callable[[ServedModel, Pixels, Mapping[str, Any]], bytes]


def explorer_routes(service: Service) -> list[BaseRoute]:
    """What the application mounts besides its own endpoints."""
    files = dict(page_files())
    opened = None if service.config.index is None else Index(service.config.index)
    views = WeakKeyDictionary[ServedModel, tuple[ModelView, Neighbourhood | None]]()

    def view_of(model: ServedModel) -> tuple[ModelView, Neighbourhood | None]:
        """What is the same for all images: computed once, also for a model that replaces another."""
        if model not in views:
            view, near = explore_model(model.checkpoint), None
            if opened is not None and model.name == service.models.sources[0].name:
                try:
                    near = Neighbourhood.of(opened, model.checkpoint)
                except DataError as refusal:  # another model made the index; the rest of the page does without it
                    view.missing["nearest images"] = refusal.message
            views[model] = view, near
        return views[model]

    async def page(request: Request) -> Response:
        return HTMLResponse(served_page(_start(service), _ASSETS))

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise Refusal("not_found", "there is no such path")
        return Response(files[name], media_type=_KINDS[name[name.rindex(".") :]], headers={"cache-control": "no-cache"})

    async def model(request: Request) -> Response:
        service.check_open(0)
        found = service.models.find(request.query_params.get("model"))

        def described() -> bytes:
            view, near = view_of(found)
            return model_bytes(view, name=found.name, neighbourhood=near)

        return _binary(await asyncio.to_thread(described))

    def image(model: ServedModel, pixels_HWC: Pixels, options: Mapping[str, Any]) -> bytes:
        name = printable(str(options.get("name", "image"))[:200])
        view, near = view_of(model)
        found = explore_image(model.checkpoint, pixels_HWC, name=name)
        neighbours = None if near is None else near.nearest(model.checkpoint, pixels_HWC)
        return image_bytes(view, model.checkpoint, found, neighbours=neighbours)

    def computing(work: Work, *known: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return _binary(await service.compute(request, ("model", *known), work))

        return endpoint

    return [
        Route("/", page, methods=["GET"]),
        Route(f"/{_ASSETS}/{{name}}", asset, methods=["GET"]),
        Route(f"/{_BASE}/model", model, methods=["GET"]),
        Route(f"/{_BASE}/image", computing(image, "name"), methods=["POST"]),
        Route(f"/{_BASE}/attention", computing(_attention, "token"), methods=["POST"]),
        Route(f"/{_BASE}/change", computing(_change, "covered", "side", "seed"), methods=["POST"]),
    ]


def _start(service: Service) -> dict[str, Any]:
    names = [source.name for source in service.models.sources]
    return {
        "title": f"How {names[0]} sees" if len(names) == 1 else "How models see",
        "served": True,
        "keyed": bool(service.config.keys),
        "base": _BASE,
        "assets": _ASSETS,
        "models": [{"name": name} for name in names],
        "images": list(BUILTIN),
    }


def _attention(model: ServedModel, pixels_HWC: Pixels, options: Mapping[str, Any]) -> bytes:
    token = read.whole(options, "token", 0, least=0, most=1 << 20)
    assert token is not None, "it has a default"
    return pack_arrays({"token": token}, {"attention": attention_of(model.checkpoint, pixels_HWC, token)})


def _change(model: ServedModel, pixels_HWC: Pixels, options: Mapping[str, Any]) -> bytes:
    grid, _ = patches_of(model.checkpoint)
    text = str(options.get("covered", ""))
    if not re.fullmatch(r"(?:[0-9]{1,7}(?:,[0-9]{1,7})*)?", text):
        raise Refusal("invalid_option", "covered is a list of the numbers of patches, separated by commas")
    side = read.whole(options, "side", None, least=1, most=max(grid))
    seed = read.whole(options, "seed", 0, least=0, most=1 << 20)
    assert seed is not None, "it has a default"
    order = None if side is None else shuffled_order(grid, side, seed=seed)
    changed = changed_answer(model.checkpoint, pixels_HWC, covered=[int(word) for word in text.split(",") if word], order=order)
    arrays = {} if order is None else {"order": np.array(order, np.float32)}
    return pack_arrays({"answer": answer_facts(model.checkpoint, changed.probabilities_C)}, arrays)


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


# --- /openapi.json: the endpoints, their options, and the schema of every answer; a test holds the server to it ---------------

Json = dict[str, Any]


def _object(properties: Json, *, optional: tuple[str, ...] = ()) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


_TEXT: Json = {"type": "string"}
_WHOLE: Json = {"type": "integer"}
_NUMBER: Json = {"type": "number"}
_FRACTION: Json = {"type": "number", "minimum": 0, "maximum": 1}
_ERROR_FIELDS = {"code": {"type": "string", "enum": list(CODES)}, "message": _TEXT, "hint": {"type": ["string", "null"]}}
_REF = "#/components/schemas/"
_UNREAD: Json = _object({"name": _TEXT, "error": {"$ref": f"{_REF}Error"}})

SCHEMAS: Json = {
    "Error": _object(_ERROR_FIELDS),
    "Refusal": _object({"error": {"$ref": f"{_REF}Error"}}),
    "Prediction": _object(
        {
            "name": _TEXT,
            "top": _list(_object({"label": _TEXT, "probability": _FRACTION})),
            "probabilities": {**_list(_FRACTION), "description": "of every class, in class order"},
        },
        optional=("probabilities",),
    ),
    "Unread": {**_UNREAD, "description": "an image of several that could not be read; the others are answered"},
    "Predictions": _object(
        {"model": _TEXT, "predictions": _list({"oneOf": [{"$ref": f"{_REF}Prediction"}, {"$ref": f"{_REF}Unread"}]})}
    ),
    "Embedding": _object({"name": _TEXT, "features": _list(_NUMBER)}),
    "Embeddings": _object(
        {
            "model": _TEXT,
            "width": _WHOLE,
            "embeddings": _list({"oneOf": [{"$ref": f"{_REF}Embedding"}, {"$ref": f"{_REF}Unread"}]}),
        }
    ),
    "Explanation": _object(
        {
            "model": _TEXT,
            "method": {"type": "string", "enum": list(METHODS)},
            "layer": _WHOLE,
            "head": {"type": ["integer", "null"]},
            "query": {"oneOf": [_TEXT, {**_list(_WHOLE), "minItems": 2, "maxItems": 2}]},
            "class": _WHOLE,
            "shape": {**_list(_WHOLE), "description": "of values: [rows, columns], or [heads, rows, columns]"},
            "values": {"type": "array"},
        },
        optional=("layer", "head", "query", "class"),
    ),
    "Model": _object(
        {
            "name": _TEXT,
            "architecture": _TEXT,
            "classes": _WHOLE,
            "labelled": {"type": "boolean"},
            "features": _WHOLE,
            "image_size": {**_list(_WHOLE), "description": "[height, width]"},
            "channels": _WHOLE,
            "parameters": _WHOLE,
            "activation": {"type": "string", "enum": ["softmax", "sigmoid"]},
            "backend": _TEXT,
            "digest": {**_TEXT, "description": "equal digests mean equal answers"},
            "explanations": _list({"type": "string", "enum": list(METHODS)}),
        }
    ),
    "Models": _object({"models": _list({"$ref": f"{_REF}Model"})}),
    "Health": _object({"status": {"type": "string", "enum": ["ok", "ready"]}, "version": _TEXT}),
}

# Option -> its schema and what it means; of each endpoint that takes images.
_MODEL = {"model": (_TEXT, "name of the model (default: the first)")}
OPTIONS: dict[str, dict[str, tuple[Json, str]]] = {
    "/v1/predict": {
        **_MODEL,
        "top": ({"type": "integer", "minimum": 1, "default": 5}, "number of classes"),
        "probabilities": ({"type": "boolean", "default": False}, "add the probability of every class"),
    },
    "/v1/embed": _MODEL,
    "/v1/explain": {
        **_MODEL,
        "method": ({"type": "string", "enum": list(METHODS), "default": "rollout"}, "what is shown"),
        "format": ({"type": "string", "enum": list(FORMATS), "default": "json"}, "an array, or a PNG of the image with the map"),
        "layer": (_WHOLE, "of attention: the layer, from 0 or negative from the end (default: the last)"),
        "head": (_WHOLE, "of attention: the head, from 0 (default: all)"),
        "query": (_TEXT, "of attention: class, distill, or row,column of a patch (default: class, or the patch in the middle)"),
        "class": (_TEXT, "of relevance: a label, or the number of a class (default: the predicted one)"),
        "overlay": ({"type": "string", "enum": ["shade", "colour"], "default": "shade"}, "of a PNG: how the map is drawn"),
    },
}
_ANSWERS = {
    "/v1/predict": ("post", "Classify images", "Predictions"),
    "/v1/embed": ("post", "The features of images", "Embeddings"),
    "/v1/explain": ("post", "What a ViT attended to in an image", "Explanation"),
    "/v1/models": ("get", "The models of this server", "Models"),
    "/healthz": ("get", "Whether the server lives", "Health"),
    "/readyz": ("get", "Whether the server accepts requests", "Health"),
}
_OF_THE_PAGE = {
    "/v1/explorer/model": ("get", "What is the same for all images of a model"),
    "/v1/explorer/image": ("post", "Everything about an image but the attention of its patches"),
    "/v1/explorer/attention": ("post", "What one token attends to, in every layer and head"),
    "/v1/explorer/change": ("post", "The answer with patches covered or shuffled"),
}
_WITH_IMAGES: tuple[str, ...] = (
    "bad_request",
    "too_slow",
    "body_too_large",
    "too_many_pixels",
    "unsupported_media_type",
    "unsupported_image",
)
_WITH_IMAGES += ("invalid_option", "no_image", "too_many_images", "unreadable_image", "not_found", "queue_full", "failed")
_WITH_IMAGES += ("not_ready", "no_memory", "too_late")


def document(config: ServeConfig) -> Json:
    """The OpenAPI 3.1 description of a server with these settings."""
    paths: Json = {}
    for path, (method, summary, schema) in _ANSWERS.items():
        content: Json = {"application/json": {"schema": {"$ref": f"{_REF}{schema}"}}}
        if path == "/v1/explain":
            content["image/png"] = {}
        codes = list(_WITH_IMAGES) if method == "post" else ["not_ready"] if path == "/readyz" else []
        if path.startswith("/v1/"):
            codes += ["not_ready"] if method == "get" else []
            codes += ["no_key"] if config.keys else []
        operation: Json = {
            "summary": summary,
            "responses": {"200": {"description": summary, "content": content}, **_refusals(codes)},
        }
        if path in OPTIONS:
            operation["parameters"] = [
                {"name": name, "in": "query", "required": False, "schema": shape, "description": text}
                for name, (shape, text) in OPTIONS[path].items()
            ]
            operation["requestBody"] = _body(path)
        if config.keys and path.startswith("/v1/"):
            operation["security"] = [{"bearer": []}, {"header": []}]
        paths[path] = {method: operation}
    plain: Json = {
        "200": {"description": "Prometheus text", "content": {"text/plain": {}}},
        **_refusals(["no_key"] if config.keys else []),
    }
    paths["/metrics"] = {"get": {"summary": "Counters for Prometheus", "responses": plain}}
    for path, (method, summary) in _OF_THE_PAGE.items():
        codes = [*_WITH_IMAGES] if method == "post" else ["not_found", "not_ready"]
        answer: Json = {"200": {"description": "arrays in binary form", "content": {"application/octet-stream": {}}}}
        responses = answer | _refusals(codes + (["no_key"] if config.keys else []))
        paths[path] = {method: {"summary": f"{summary}; for the page at /", "responses": responses}}
    schema_of_schemas: Json = {"200": {"description": "This document", "content": {"application/json": {}}}}
    paths["/openapi.json"] = {"get": {"summary": "This document", "responses": schema_of_schemas}}
    components: Json = {"schemas": SCHEMAS}
    if config.keys:
        bearer = {"type": "http", "scheme": "bearer"}
        components["securitySchemes"] = {"bearer": bearer, "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
    info = {"title": "vitlab", "version": __version__, "description": "Vision Transformers over HTTP. No URL is ever fetched."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _refusals(codes: list[str]) -> Json:
    """One response a status; a client tells codes apart by `error.code`."""
    found: Json = {}
    for code in codes:
        status, meaning = CODES[code]
        entry = found.setdefault(
            str(status), {"description": "", "content": {"application/json": {"schema": {"$ref": f"{_REF}Refusal"}}}}
        )
        entry["description"] += f"{'; ' if entry['description'] else ''}{code}: {meaning}"
    return found


def _body(path: str) -> Json:
    binary = {"type": "string", "format": "binary"}
    image = {"oneOf": [_TEXT, _object({"name": _TEXT, "data": _TEXT}, optional=("name",))], "description": "base64"}
    options = {name: shape for name, (shape, _) in OPTIONS[path].items()}
    several = path != "/v1/explain"
    form = {"file": {"type": "array", "items": binary} if several else binary} | options
    fields = {"image": image} | ({"images": _list(image)} if several else {}) | options
    return {
        "required": True,
        "content": {
            "image/*": {"schema": binary},
            "multipart/form-data": {"schema": {"type": "object", "properties": form}},
            "application/json": {"schema": {"type": "object", "properties": fields}},
        },
    }
