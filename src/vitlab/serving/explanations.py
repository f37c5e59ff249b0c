"""/v1/explain: what a ViT attended to in an image, as an array or as a PNG.

Axes: L layers, B batch, H heads, G x J patches down and across; of images H height, W width, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vitlab.data.transforms import normalise
from vitlab.inference.backends import Pixels
from vitlab.interpretation.attention import Floats, Query, query_attention, relevance, rollout
from vitlab.interpretation.paint import overlay, png
from vitlab.models.vit import ViT
from vitlab.serving import uploads as read
from vitlab.serving.models import ServedModel
from vitlab.serving.refusals import Refusal

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
            values = _attention(vit, images_BCHW, options, facts)
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


def _attention(vit: ViT, images_BCHW: torch.Tensor, options: Mapping[str, Any], facts: dict[str, Any]) -> Floats:
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
