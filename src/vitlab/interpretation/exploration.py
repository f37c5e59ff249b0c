"""What the explorer shows: of a model once (`explore_model`), and of each image (`explore_image`).

A part that a model does not have is None, and `missing` says why, in the words of the error that asking for it raises. A map has
one value for each patch of a ViT; a model without patches is covered and shuffled in windows of 16 pixels.

Axes: L layers, R queries (tokens whose attention is kept), H heads (of images: height), W width, C channels or classes, K classes
that are shown, N tokens (in maps and positions: patches), D width, G x J patches down and across.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.checkpoints import Checkpoint
from vitlab.data.transforms import normalise
from vitlab.errors import ConfigError, at_least
from vitlab.inference.backends import evaluating
from vitlab.inference.folded import activation_of
from vitlab.inference.results import Prediction
from vitlab.interpretation.attention import (
    AT_ONCE,
    Floats,
    as_floats,
    class_attention,
    distance,
    needs_attention,
    needs_head,
    on_grid,
    pool_reads,
    relevance,
    roll,
    what_is_read,
)
from vitlab.interpretation.features import class_activation, place_features, principal_components
from vitlab.interpretation.occlusion import WINDOW, filled
from vitlab.interpretation.paint import Pixels, feature_maps, filter_tiles
from vitlab.interpretation.weights import first_filters, meets_pixels_by, position_similarity, principal_filters
from vitlab.models.attention_variants import AttentionCapture
from vitlab.models.record import Record
from vitlab.models.recurrent import Recurrent
from vitlab.models.vit import ViT

MOST_CLASSES = 10  # whose probabilities are followed through the layers and under covered patches
MOST_NUMBERS = 96  # of a patch's embedding, enough to see
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelView:
    """What is the same for all images.

    `tokens` are the names of the tokens before the patches, and `reads` what the head reads, in words. `filters` are the filters on
    the pixels, drawn; `similarity_NN` is the cosine similarity of positions, from -1 to 1, and `positions_ND` the first numbers of
    each patch's position embedding. `shuffles` are the sides of the blocks, in patches, that can be shuffled.
    """

    family: str
    grid: tuple[int, int]
    step: tuple[int, int]
    layers: int
    heads: int
    width: int
    tokens: tuple[str, ...]
    reads: str
    filters_of: str | None
    filters: Pixels | None
    similarity_NN: Floats | None
    positions_ND: Floats | None
    shuffles: tuple[int, ...]
    missing: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changed:
    """An image with patches covered or moved, and what the model says: the probability of each class of the answer, (C,).

    `order_N` gives, for each place in reading order, the patch that is there.
    """

    pixels_HWC: Pixels
    order_N: tuple[int, ...]
    probabilities_C: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exploration:
    """One image as a model sees it.

    `classes` are the numbers of the classes that are shown, the most probable first, with `probabilities_C` of all classes.
    `target` is the class that relevance explains. `lens_LK`: the probability of the shown classes if the head read the tokens after
    each layer. `queries` are tokens, and `attention_RLHN` what they attend to. `norms_LHN` is the length of each token's value
    vector: attention times it is the filtered value. `distance_LH` is in pixels. `maps` by name: rollout, relevance, pool,
    activation, occlusion. `features` are the layers' (or stages') patch features as colours. `embedding_ND` holds the first numbers
    of each embedded patch, before positions are added. `covered_NK`: probabilities with one patch covered; `shuffled`: by the side
    of the blocks.
    """

    name: str
    pixels_HWC: Pixels
    probabilities_C: Floats
    classes: tuple[int, ...]
    target: int | None
    lens_LK: Floats | None
    queries: tuple[int, ...]
    attention_RLHN: Floats | None
    norms_LHN: Floats | None
    distance_LH: Floats | None
    maps: dict[str, Floats]
    features: tuple[Pixels, ...]
    embedding_ND: Floats | None
    covered_NK: Floats | None
    shuffled: dict[int, Changed]
    missing: dict[str, str]


def explore_model(checkpoint: Checkpoint) -> ModelView:
    """What the explorer shows of the model itself."""
    model, missing = checkpoint.model, dict[str, str]()
    vit = model if isinstance(model, ViT) else None
    config = None if vit is None else vit.config
    grid, step = patches_of(checkpoint)
    tokens: list[str] = []
    if config is not None:
        tokens += ["class token"] * config.class_token + ["distillation token"] * config.distill_token
        tokens += [f"register {number}" for number in range(config.register_tokens)]
    similarity_GJGJ = _tried("positions", missing, lambda: position_similarity(model))
    met_by = _tried("filters", missing, lambda: meets_pixels_by(model))
    return ModelView(
        family=checkpoint.config.title,
        grid=grid,
        step=step,
        layers=0 if vit is None else len(vit.encoder.blocks),
        heads=0 if config is None else config.heads,
        width=checkpoint.config.feature_width if config is None else config.width,
        tokens=tuple(tokens),
        reads="the mean of the last feature maps" if config is None else what_is_read(config),
        filters_of=met_by,
        filters=None if met_by is None else _tried("filters", missing, lambda: _filters(checkpoint)),
        similarity_NN=None if similarity_GJGJ is None else similarity_GJGJ.reshape(grid[0] * grid[1], -1),
        positions_ND=None if vit is None or similarity_GJGJ is None else _positions(vit, grid),
        shuffles=_shuffles(checkpoint, missing),
        missing=missing,
    )


def patches_of(checkpoint: Checkpoint) -> tuple[tuple[int, int], tuple[int, int]]:
    """The grid of patches of the model's input and a patch's size in pixels, both (down, across)."""
    height, width = checkpoint.preprocess.image_size
    step = checkpoint.model.config.step if isinstance(checkpoint.model, ViT) else (min(WINDOW, height), min(WINDOW, width))
    return (-(-height // step[0]), -(-width // step[1])), step


def explore_image(
    checkpoint: Checkpoint,
    pixels_HWC: Pixels,
    *,
    name: str,
    target: int | None = None,
    stride: int | None = None,
    cover: bool = False,
    shuffle: bool = False,
    at_once: int = 32,
) -> Exploration:
    """Everything about one image, given as the pixels of the model's input.

    `target` is the class to explain, by default the predicted one. `stride` keeps the attention of every `stride`-th patch, down
    and across, besides that of the tokens before the patches; None keeps that of no patch (`attention_of` gives one). `cover` also
    computes the answer with each patch covered, a forward pass each, `at_once` together; `shuffle` those with patches shuffled.
    """
    model, missing = checkpoint.model, dict[str, str]()
    image_1CHW = _normalised(checkpoint, pixels_HWC)
    grid, _ = patches_of(checkpoint)
    vit = _tried("attention", missing, lambda: needs_attention(model, "attention"))
    inside = None if vit is None else _inside(vit, image_1CHW, grid, stride)
    if inside is None:
        with evaluating(model), torch.inference_mode():
            logits_1C: Tensor = model(image_1CHW)
    else:
        logits_1C = inside.logits_1C
    has_head = _tried("answer", missing, lambda: _headed(checkpoint)) is not None
    probabilities_C = _probabilities(checkpoint, logits_1C)[0] if has_head else np.zeros(0, np.float32)
    lens_LC = _probabilities(checkpoint, inside.lens_LC) if inside is not None and has_head else None
    classes = _shown_classes(probabilities_C, lens_LC)
    explained = target if target is not None or not has_head else classes[0]
    maps = dict[str, Floats]()
    if inside is not None:
        maps["rollout"] = inside.rollout_GJ
        if vit is not None and vit.pool is not None:
            maps["pool"] = class_attention(vit, image_1CHW)[0, 0].mean(0)
    if has_head:
        evidence = ("relevance", relevance) if vit is not None else ("activation", class_activation)
        found = _tried(evidence[0], missing, lambda: evidence[1](model, image_1CHW, explained))
        if found is not None:
            maps[evidence[0]] = found[0]
    covered_NK, shuffled = None, dict[int, Changed]()
    if cover and has_head:
        covered_NK, maps["occlusion"] = _covered(checkpoint, image_1CHW, probabilities_C, classes, explained, at_once)
    if shuffle and has_head:
        for side in _shuffles(checkpoint, missing):
            shuffled[side] = changed_answer(checkpoint, pixels_HWC, order=shuffled_order(grid, side, seed=0))
    return Exploration(
        name=name,
        pixels_HWC=pixels_HWC,
        probabilities_C=probabilities_C,
        classes=classes,
        target=explained,
        lens_LK=None if lens_LC is None else lens_LC[:, list(classes)],
        queries=() if inside is None else inside.queries,
        attention_RLHN=None if inside is None else inside.attention_RLHN,
        norms_LHN=None if inside is None else inside.norms_LHN,
        distance_LH=None if inside is None else inside.distance_LH,
        maps=maps,
        features=_stage_features(checkpoint, image_1CHW) if inside is None else inside.features,
        embedding_ND=None if inside is None else inside.embedding_ND,
        covered_NK=covered_NK,
        shuffled=shuffled,
        missing=missing,
    )


def kept_queries(prefix: int, grid: tuple[int, int], stride: int | None) -> list[int]:
    """The tokens before the patches, and every `stride`-th patch down and across, centred in the grid; None for no patch."""
    if stride is None:
        return list(range(prefix))
    at_least("stride", stride, 1)
    rows, columns = (range((size - 1) % stride // 2, size, stride) for size in grid)
    return [*range(prefix), *(prefix + row * grid[1] + column for row in rows for column in columns)]


def attention_of(checkpoint: Checkpoint, pixels_HWC: Pixels, token: int) -> Floats:
    """What one token, by its place in the sequence, attends to in every layer and head, (L, H, N)."""
    vit = needs_attention(checkpoint.model, "attention")
    image_1CHW = _normalised(checkpoint, pixels_HWC)
    record = Record(attention=False, captures=True)
    with evaluating(vit), torch.inference_mode():
        tokens = vit.encode_images(image_1CHW, record).shape[1]
        if not 0 <= token < tokens:
            raise ConfigError(f"there is no token {token}: the sequence has {tokens}, numbered from 0")
        return as_floats(torch.stack([capture.rows(token, token + 1)[0, :, 0] for capture in record.captures]))


def changed_answer(
    checkpoint: Checkpoint, pixels_HWC: Pixels, *, covered: Sequence[int] = (), order: Sequence[int] | None = None
) -> Changed:
    """The answer with patches moved, then some places covered by the mean colour; numbers of patches are in reading order."""
    needs_head(checkpoint.model, "covering patches")
    grid, step = patches_of(checkpoint)
    count = grid[0] * grid[1]
    for place in covered:
        if not 0 <= place < count:
            raise ConfigError(f"there is no patch {place}: the image has {count}, numbered from 0")
    if order is not None:
        pixels_HWC = _moved(pixels_HWC, order, grid, step)
    image_1CHW = _normalised(checkpoint, pixels_HWC).clone()
    for place in covered:
        top, left = place // grid[1] * step[0], place % grid[1] * step[1]
        image_1CHW[:, :, top : top + step[0], left : left + step[1]] = 0
    with evaluating(checkpoint.model), torch.inference_mode():
        probabilities_C = _probabilities(checkpoint, checkpoint.model(image_1CHW))[0]
    return Changed(pixels_HWC=pixels_HWC, order_N=tuple(order or range(count)), probabilities_C=probabilities_C)


def shuffled_order(grid: tuple[int, int], side: int, *, seed: int) -> tuple[int, ...]:
    """For each place the patch that goes there when blocks of `side` x `side` patches are shuffled."""
    at_least("side", side, 1)
    if grid[0] % side or grid[1] % side:
        raise ConfigError(f"blocks of {side} x {side} do not divide a grid of {grid[0]} x {grid[1]} patches")
    down, across = grid[0] // side, grid[1] // side
    blocks = np.random.default_rng(seed).permutation(down * across)
    place_GJ = np.arange(grid[0] * grid[1]).reshape(grid)
    cut = place_GJ.reshape(down, side, across, side).swapaxes(1, 2).reshape(down * across, side, side)
    moved_GJ = cut[blocks].reshape(down, across, side, side).swapaxes(1, 2).reshape(grid)
    return tuple(moved_GJ.reshape(-1).tolist())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Inside:
    """What one pass through a ViT shows."""

    logits_1C: Tensor
    lens_LC: Tensor
    queries: tuple[int, ...]
    attention_RLHN: Floats
    norms_LHN: Floats
    distance_LH: Floats
    rollout_GJ: Floats
    features: tuple[Pixels, ...]
    embedding_ND: Floats


def _inside(vit: ViT, image_1CHW: Tensor, grid: tuple[int, int], stride: int | None) -> _Inside:
    prefix, step = vit.config.prefix_tokens, vit.config.step
    queries = kept_queries(prefix, grid, stride)
    record = Record(attention=False, captures=True, tokens=True)
    with evaluating(vit), torch.inference_mode(False), torch.enable_grad():  # only then a record keeps the values
        z_1ND = vit.encode_images(image_1CHW.clone().detach().requires_grad_(), record).detach()
    with evaluating(vit), torch.inference_mode():
        norm = vit.encoder.norm
        layers = [z if norm is None else norm(z) for z in record.tokens_BND]
        attention = [_rows(capture, queries) for capture in record.captures]
        values = [capture.values_BHNK for capture in record.captures if capture.values_BHNK is not None]
        far = [distance(capture, grid, step, prefix)[0] for capture in record.captures]
        rolled_1N = roll(pool_reads(vit, z_1ND), record.captures)[:, 0, prefix:]
        embedded_1ND = vit.embed(image_1CHW)
        return _Inside(
            logits_1C=vit.logits_from(z_1ND),
            lens_LC=torch.cat([vit.logits_from(z) for z in layers]),
            queries=tuple(queries),
            attention_RLHN=as_floats(torch.stack(attention, dim=1)),
            norms_LHN=as_floats(torch.stack([value[0].float().norm(dim=-1) for value in values])),
            distance_LH=as_floats(torch.stack(far)),
            rollout_GJ=as_floats(on_grid(rolled_1N, grid)[0]),
            features=_as_colours([z_1ND.view(1, *grid, -1) for z_1ND in (embedded_1ND, *(z[:, prefix:] for z in layers))]),
            embedding_ND=as_floats(embedded_1ND[0, :, :MOST_NUMBERS]),
        )


def _rows(capture: AttentionCapture, queries: Sequence[int]) -> Tensor:
    """The attention of these tokens, (R, H, N); neighbours are computed together."""
    parts, start = [], 0
    while start < len(queries):
        stop = start + 1
        while stop < len(queries) and stop - start < AT_ONCE and queries[stop] == queries[stop - 1] + 1:
            stop += 1
        parts.append(capture.rows(queries[start], queries[stop - 1] + 1)[0].transpose(0, 1))
        start = stop
    heads, tokens = capture.keys_BHNK.shape[1:3]
    return torch.cat(parts) if parts else torch.zeros(0, heads, tokens)


def _stage_features(checkpoint: Checkpoint, image_1CHW: Tensor) -> tuple[Pixels, ...]:
    """The features of each stage of a model without patches, or of each layer of a recurrent one."""
    model = checkpoint.model
    stages = len(model.layers) if isinstance(model, Recurrent) else _stages(model, image_1CHW)
    return _as_colours([place_features(model, image_1CHW, layer=stage) for stage in range(stages)])


def _stages(model: nn.Module, image_1CHW: Tensor) -> int:
    record = Record(attention=False, maps=True)
    with evaluating(model), torch.inference_mode():
        model(image_1CHW, record)
    return len(record.maps_BCHW)


def _as_colours(features: Sequence[Tensor]) -> tuple[Pixels, ...]:
    """Features (1, G, J, D) as one pixel a patch; grey where all patches are the same."""
    shown = []
    for features_1GJD in features:
        grid = features_1GJD.shape[1], features_1GJD.shape[2]
        try:
            shown.append(feature_maps(principal_components(features_1GJD.float().cpu()).scores_BGJM, grid)[0])
        except ConfigError:  # no variance, no components
            shown.append(np.full((*grid, 3), 128, np.uint8))
    return tuple(shown)


def _filters(checkpoint: Checkpoint) -> Pixels:
    model = checkpoint.model
    principal = meets_pixels_by(model) == "patch embedding"
    filters_MPQC = principal_filters(model) if principal else first_filters(model)[:28]
    return filter_tiles(filters_MPQC, scale=max(1, 28 // max(filters_MPQC.shape[1:3])), paper=(128, 128, 128))


def _positions(vit: ViT, grid: tuple[int, int]) -> Floats | None:
    with torch.inference_mode():
        added_1ND = vit.position.added(0, grid)
    return None if added_1ND is None else as_floats(added_1ND[0, vit.config.prefix_tokens :, :MOST_NUMBERS])


def _normalised(checkpoint: Checkpoint, pixels_HWC: Pixels) -> Tensor:
    like = next(checkpoint.model.parameters())
    images_BCHW = normalise(torch.from_numpy(np.ascontiguousarray(pixels_HWC))[None], checkpoint.preprocess)
    return images_BCHW.to(device=like.device, dtype=like.dtype)


def _headed(checkpoint: Checkpoint) -> bool:
    needs_head(checkpoint.model, "the answer")
    return True


def _probabilities(checkpoint: Checkpoint, logits_BC: Tensor) -> Floats:
    activation = activation_of(checkpoint)
    rows = as_floats(logits_BC)
    return np.stack([Prediction(name="", logits=logits_C, activation=activation).probabilities for logits_C in rows])


def _shown_classes(probabilities_C: Floats, lens_LC: Floats | None) -> tuple[int, ...]:
    """The five most probable classes, then those that lead after some layer, the last layers' first."""
    best = np.argsort(-probabilities_C, kind="stable")[:5].tolist()
    if lens_LC is not None:
        best += [int(lens_C.argmax()) for lens_C in lens_LC[::-1]]
    return tuple(dict.fromkeys(best))[:MOST_CLASSES]


def _covered(
    checkpoint: Checkpoint, image_1CHW: Tensor, probabilities_C: Floats, classes: tuple[int, ...], target: int | None, at_once: int
) -> tuple[Floats, Floats]:
    """The probabilities of the shown classes with each patch covered, (N, K), and the target's loss in nats, (G, J)."""
    grid, step = patches_of(checkpoint)
    assert target is not None, "a model with a head has a class to explain"
    with evaluating(checkpoint.model), torch.inference_mode():
        parts = [_probabilities(checkpoint, logits_BC) for logits_BC in filled(checkpoint.model, image_1CHW, step, grid, at_once)]
    covered_NC = np.concatenate(parts)
    least = np.float32(1e-30)
    loss_N = np.log(np.maximum(probabilities_C[target], least)) - np.log(np.maximum(covered_NC[:, target], least))
    return covered_NC[:, list(classes)], loss_N.reshape(grid)


def _shuffles(checkpoint: Checkpoint, missing: dict[str, str]) -> tuple[int, ...]:
    """Sides of blocks that divide the grid: at most three, the largest first, down to single patches."""
    (down, across), (high, wide) = patches_of(checkpoint)
    if (down * high, across * wide) != checkpoint.preprocess.image_size:
        missing["shuffle"] = "the last patches reach past the edge of the image, so patches cannot change places"
        return ()
    if down * across == 1:
        missing["shuffle"] = "the image is one patch"
        return ()
    sides = [side for side in range(1, max(down, across)) if down % side == 0 and across % side == 0]
    return tuple(sorted({sides[0], sides[len(sides) // 2], sides[-1]}, reverse=True))


def _moved(pixels_HWC: Pixels, order: Sequence[int], grid: tuple[int, int], step: tuple[int, int]) -> Pixels:
    """The pixels with patch `order[n]` at place n."""
    if sorted(order) != list(range(grid[0] * grid[1])):
        raise ConfigError(f"an order names each of the {grid[0] * grid[1]} patches once")
    (down, across), (high, wide) = grid, step
    if pixels_HWC.shape[:2] != (down * high, across * wide):
        raise ConfigError("the last patches reach past the edge of the image, so patches cannot change places")
    cut = pixels_HWC.reshape(down, high, across, wide, -1).swapaxes(1, 2).reshape(down * across, high, wide, -1)
    moved = cut[list(order)].reshape(down, across, high, wide, -1).swapaxes(1, 2)
    return np.ascontiguousarray(moved.reshape(pixels_HWC.shape))


def _tried(part: str, missing: dict[str, str], make: Callable[[], T]) -> T | None:
    """The part, or None, and why the model does not have it."""
    try:
        return make()
    except ConfigError as refusal:
        missing[part] = refusal.message
        return None
