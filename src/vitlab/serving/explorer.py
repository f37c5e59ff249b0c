"""What a model sees in an image: /v1/explain, and the page at `/` (`vitlab.reports.explorer`) with the endpoints that only it uses.

- `POST /v1/explain`: what a ViT attended to, as an array or as a PNG;
- `GET /v1/explorer/model`: what is the same for all images of a model;
- `POST /v1/explorer/image`: everything about an image but the attention of its patches;
- `POST /v1/explorer/attention`: what one token attends to, in every layer and head;
- `POST /v1/explorer/change`: the answer with patches covered or shuffled.

No image is kept: the page sends it each time. Those of the explorer answer with arrays in binary form (`vitlab.io.arrays`).
Axes: L layers, B batch, H heads, G x J patches down and across; of images H height, W width, C channels.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from vitlab.data.transforms import normalise
from vitlab.errors import DataError
from vitlab.inference.backends import Pixels
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
from vitlab.io.display import printable
from vitlab.models.vit import ViT
from vitlab.reports.explorer import BUILTIN, answer_facts, image_bytes, model_bytes, page_files, served_page
from vitlab.reports.neighbours import Neighbourhood
from vitlab.serving import uploads as read
from vitlab.serving.models import ServedModel
from vitlab.serving.refusals import Refusal
from vitlab.serving.service import Service

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


# --- the explorer -------------------------------------------------------------------------------------------------------------

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
