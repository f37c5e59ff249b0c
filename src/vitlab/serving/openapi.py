"""/openapi.json: the endpoints, their options, and the schema of every answer. A test holds the server to it."""

from __future__ import annotations

from typing import Any

from vitlab import __version__
from vitlab.serving.config import ServeConfig
from vitlab.serving.explorer import FORMATS, METHODS
from vitlab.serving.refusals import CODES

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
