"""Occlusion: how much log-probability a class loses when one patch of the image is hidden, for each patch in turn.

Axes: B batch, C channels or classes, G x J windows down and across, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from vitlab.errors import ConfigError, at_least, choice, pair
from vitlab.inference.backends import evaluating
from vitlab.interpretation.attention import (
    Floats,
    a_class_each,
    as_floats,
    batches,
    chosen_classes,
    needs_attention,
    needs_head,
)
from vitlab.interpretation.config import Occluder
from vitlab.models.vit import ViT

WINDOW = 16  # pixels, for a model without patches


def occlusion(
    model: nn.Module,
    images_BCHW: Tensor,
    classes: int | Sequence[int] | None = None,
    *,
    how: Occluder = "fill",
    window: int | tuple[int, int] | None = None,
    at_once: int = 32,
) -> Floats:
    """The loss of the class's log-probability when a window of the image is hidden, (B, G, J), in nats; negative where it gains.

    `how`: `fill` covers the window with the mean colour, 0 after normalisation, and works for every classifier; `remove` takes the
    patch's token out of the sequence. `classes` as for `relevance`. `window` is in pixels (height, width), for `fill`: a ViT's
    patch by default, else 16. There is one image for each window, and `at_once` of them go through the model together.
    """
    choice("how", how, Occluder)
    at_least("at_once", at_once, 1)
    needs_head(model, "occlusion")
    wanted = a_class_each(classes, len(images_BCHW))
    maps, done = [], 0
    with evaluating(model), torch.inference_mode():
        for part_BCHW in batches(model, images_BCHW, bytes_each=1 << 28):  # one by one: each is many images by itself
            logits_1C: Tensor = model(part_BCHW)
            chosen = int(chosen_classes(logits_1C, None if wanted is None else wanted[done : done + 1])[0])
            variants, grid = _without(model, part_BCHW, how, window, at_once)
            whole = logits_1C.float().log_softmax(1)[0, chosen]
            left_N = torch.cat([logits_BC.float().log_softmax(1)[:, chosen] for logits_BC in variants])
            maps.append((whole - left_N).view(grid).cpu())
            done += 1
    return as_floats(torch.stack(maps))


def _without(
    model: nn.Module, image_1CHW: Tensor, how: Occluder, window: int | tuple[int, int] | None, at_once: int
) -> tuple[Iterator[Tensor], tuple[int, int]]:
    """The logits without each window in reading order, some at a time, and how many windows there are down and across."""
    if how == "remove":
        vit = needs_attention(model, "removing a patch's token")
        if window is not None:
            raise ConfigError("how='remove' removes whole patches", hint="window is for how='fill'")
        return _removed(vit, image_1CHW, at_once), vit.config.grid_of((image_1CHW.shape[2], image_1CHW.shape[3]))
    size = pair("window", window) if window is not None else model.config.step if isinstance(model, ViT) else (WINDOW, WINDOW)
    at_least("window", min(size), 1)
    grid = -(-image_1CHW.shape[2] // size[0]), -(-image_1CHW.shape[3] // size[1])
    return filled(model, image_1CHW, size, grid, at_once), grid


def filled(model: nn.Module, image_1CHW: Tensor, size: tuple[int, int], grid: tuple[int, int], at_once: int) -> Iterator[Tensor]:
    """The logits with each window in turn covered by the mean colour, some windows at a time."""
    places = torch.split(torch.arange(grid[0] * grid[1]), at_once)
    for some in places:
        images_BCHW = image_1CHW.repeat(len(some), 1, 1, 1)
        for variant, place in enumerate(some.tolist()):
            top, left = place // grid[1] * size[0], place % grid[1] * size[1]
            images_BCHW[variant, :, top : top + size[0], left : left + size[1]] = 0
        yield model(images_BCHW)


def _removed(vit: ViT, image_1CHW: Tensor, at_once: int) -> Iterator[Tensor]:
    config = vit.config
    inside = config.position.rotary is not None or config.position.bias is not None
    if config.attention != "global" or config.position.kind == "relative" or config.position.place != "stem" or inside:
        raise ConfigError("this model needs the whole grid, so no patch can be removed from its sequence", hint="use how='fill'")
    if config.grid_of((image_1CHW.shape[2], image_1CHW.shape[3])) == (1, 1):
        raise ConfigError("the image is one patch: without it nothing is left", hint="use how='fill'")
    grid = vit.check_images(image_1CHW, None)
    z_1ND = torch.cat([*vit.prefix(1), vit.embed(image_1CHW)], dim=1)
    if (E_pos_1ND := vit.position.added(0, grid)) is not None:
        z_1ND = z_1ND + E_pos_1ND  # eq. 1; each patch keeps its position when another goes
    tokens = z_1ND.shape[1]
    for some in torch.split(torch.arange(config.prefix_tokens, tokens, device=z_1ND.device), at_once):
        kept_N = torch.arange(tokens - 1, device=z_1ND.device)
        kept_BN = kept_N + (kept_N >= some[:, None])
        yield vit.logits_from(vit.encoder(z_1ND[0][kept_BN], vit.position, grid))
