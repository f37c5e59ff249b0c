"""What a model attends to: attention maps, attention distance (Fig. 7), attention rollout (Fig. 6), relevance for a class,
and attention as a filter: the weights A of a layer, the values v, and the filtered values A v (eq. 7).

The first half runs a model for inspection (evaluation mode, a few images at a time) and refuses models without attention.

Axes: L layers, B batch, C channels or classes, H heads (of images: height), W width, N tokens, R some of the N queries, Q rows that
are rolled out, G x J patches down and across, K width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.inference.backends import evaluating
from vitlab.models.attention_variants import AttentionCapture, attention_weights
from vitlab.models.model import Model
from vitlab.models.record import Record
from vitlab.models.vit import ViT

Floats = NDArray[np.float32]
AT_ONCE = 64  # queries in a block: 12 heads of 4,096 tokens then take 13 MB instead of 805
_KEPT = 256 << 20  # bytes of queries, keys and values that one pass may keep


class Rows(Protocol):
    """The attention of one layer, computed by rows: an `AttentionCapture`, or anything with the same method."""

    def rows(self, first: int, last: int) -> Tensor:
        """The attention of the tokens `first` to `last` - 1 to all tokens, (B, H, R, N)."""
        ...


def blocks(layer: Rows, first: int, last: int) -> Iterator[tuple[slice, Tensor]]:
    """The rows of the tokens `first` to `last` - 1, a block at a time: which tokens, and (B, H, R, N)."""
    for start in range(first, last, AT_ONCE):
        stop = min(start + AT_ONCE, last)
        yield slice(start, stop), layer.rows(start, stop)


def needs_attention(model: nn.Module, what: str) -> ViT:
    """The model if its patches attend to each other; else ConfigError that says why, and which figures it has."""
    if isinstance(model, ViT):
        return model
    if not isinstance(model, Model):
        raise ConfigError(f"{what} is for vitlab's own models, not for a {type(model).__name__}")
    raise ConfigError(
        f"{what} is not defined for {model.config.title}: it has no attention between all patches",
        hint="filters, features and occlusion work for every model",
    )


def what_is_read(config: ViTConfig) -> str:
    """In words, the tokens that the model's pool reads."""
    match config.pool:
        case "token":
            return "the class and the distillation token" if config.distill_token else "the class token"
        case "mean":
            return "the mean of all tokens" if config.pooling.prefix else "the mean of the patches"
        case "token+mean":
            return "the class token and the mean of the patches"
        case "map":
            return "the query of the attention pool"


def batches(model: nn.Module, images_BCHW: Tensor, *, bytes_each: int) -> Iterator[Tensor]:
    """The images in the model's type and on its device, as many at a time as memory allows at `bytes_each` an image."""
    if images_BCHW.ndim != 4 or not len(images_BCHW):
        raise ConfigError(f"images must be (batch, channels, height, width), not of shape {tuple(images_BCHW.shape)}")
    like = next(model.parameters())
    count = min(max(1, _KEPT // max(bytes_each, 1)), 32)
    for part_BCHW in torch.split(images_BCHW, count):
        yield part_BCHW.to(device=like.device, dtype=like.dtype)


def bytes_kept(model: ViT, images_BCHW: Tensor, layers: int) -> int:
    """Bytes that the queries and keys of one image take in that many layers."""
    grid = model.config.grid_of((int(images_BCHW.shape[-2]), int(images_BCHW.shape[-1])))
    tokens = model.config.prefix_tokens + grid[0] * grid[1]
    return 2 * layers * tokens * model.config.width * next(model.parameters()).element_size()


def chosen_layers(count: int, layers: Sequence[int] | None) -> list[int]:
    """The numbers of the chosen layers, from 0, in the given order; None means all, negative counts from the end."""
    asked = range(count) if layers is None else layers
    for layer in asked:
        if not -count <= layer < count:
            raise ConfigError(f"there is no layer {layer}: the model has {count}, numbered from 0")
    return [layer % count for layer in asked]


def a_class_each(classes: int | Sequence[int] | None, images: int) -> list[int] | None:
    """One class an image, from one for all or one for each; None where the model chooses."""
    if classes is None:
        return None
    asked = [classes] * images if isinstance(classes, int) else list(classes)
    if len(asked) != images:
        raise ConfigError(f"{len(asked)} classes for {images} images", hint="give one class, or one for each image")
    return asked


def chosen_classes(logits_BC: Tensor, asked: Sequence[int] | None) -> Tensor:
    """A class for each image, (B,): the given one, or the one with the highest logit."""
    count = logits_BC.shape[1]
    if asked is None:
        return logits_BC.argmax(1)
    for label in asked:
        if not 0 <= label < count:
            raise ConfigError(f"there is no class {label}: the model has {count}, numbered from 0")
    return torch.tensor(asked, device=logits_BC.device)


def needs_head(model: nn.Module, what: str) -> None:
    """Refuse a model without classes."""
    if not isinstance(model, Model):
        raise ConfigError(f"{what} is for vitlab's own models, not for a {type(model).__name__}")
    if model.config.num_classes < 2:
        classes = "no head" if model.config.num_classes == 0 else "one class only"
        raise ConfigError(f"{what} explains the logit of a class, but this {type(model).__name__} has {classes}")


def on_grid(x_BN: Tensor, grid: tuple[int, int]) -> Tensor:
    """The last axis, patches in reading order, as two: rows and columns."""
    return x_BN.reshape(*x_BN.shape[:-1], *grid)


def as_floats(tensor: Tensor) -> Floats:
    """A float32 array of the tensor's values."""
    array: Floats = tensor.detach().float().cpu().numpy()
    return array


Query = Literal["class", "distill"] | tuple[int, int]  # a token by its name, or a patch by (row, column) from 0


def class_attention(model: nn.Module, images_BCHW: Tensor, *, layers: Sequence[int] | None = None) -> Floats:
    """The attention of the class token to the patches, (L, B, H, G, J); without one, that of the attention pool, as one layer.

    Attention to prefix tokens is left out and the rest is not renormalised, so that a map sums to at most one.
    """
    vit = needs_attention(model, "class-token attention")
    if vit.config.class_token:
        return query_attention(vit, images_BCHW, "class", layers=layers)
    if vit.pool is None:
        raise ConfigError(
            "the model has no class token: its head sees the mean of the patches",
            hint="use rollout, which starts from that mean, or query_attention for one patch",
        )
    if layers is not None:
        raise ConfigError(
            "the model has no class token: its attention pool attends once, after the last layer", hint="leave layers out"
        )
    return _probe_attention(vit, images_BCHW)


def query_attention(model: nn.Module, images_BCHW: Tensor, query: Query, *, layers: Sequence[int] | None = None) -> Floats:
    """The attention of one token to the patches, (L, B, H, G, J): a patch by (row, column) from 0, or "class" or "distill".

    Attention to prefix tokens is left out and the rest is not renormalised, so that a map sums to at most one.
    """
    vit = needs_attention(model, "attention")
    chosen = chosen_layers(len(vit.encoder.blocks), layers)
    parts = []
    with evaluating(vit), torch.inference_mode():
        for part_BCHW in batches(vit, images_BCHW, bytes_each=bytes_kept(vit, images_BCHW, len(chosen))):
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            token = place_of(query, vit.config, grid)
            record = Record(layers=chosen, attention=False, captures=True)
            vit.encode_images(part_BCHW, record)
            seen = dict(zip(record.recorded, record.captures, strict=True))
            rows_LBHN = torch.stack([seen[layer].rows(token, token + 1)[:, :, 0] for layer in chosen])
            parts.append(on_grid(rows_LBHN[..., vit.config.prefix_tokens :], grid).cpu())
    return as_floats(torch.cat(parts, dim=1))


def place_of(query: Query, config: ViTConfig, grid: tuple[int, int]) -> int:
    """The index of the token in the sequence."""
    match query:
        case "class":
            if not config.class_token:
                raise ConfigError("the model has no class token", hint="query a patch by (row, column)")
            return 0
        case "distill":
            if not config.distill_token:
                raise ConfigError("the model has no distillation token", hint="query a patch by (row, column)")
            return int(config.class_token)
        case (row, column):
            if not (0 <= row < grid[0] and 0 <= column < grid[1]):
                raise ConfigError(f"there is no patch ({row}, {column}): the grid is {grid[0]} x {grid[1]}, numbered from 0")
            return config.prefix_tokens + row * grid[1] + column


def _probe_attention(vit: ViT, images_BCHW: Tensor) -> Floats:
    assert vit.pool is not None
    parts = []
    with evaluating(vit), torch.inference_mode():
        for part_BCHW in batches(vit, images_BCHW, bytes_each=bytes_kept(vit, images_BCHW, 1)):
            z_BND = vit.encode_images(part_BCHW)
            first = first_pooled(vit.config)
            q_BH1K, k_BHNK, _ = vit.pool.query_key_value(z_BND[:, first:])
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            patches_BHN = attention_weights(q_BH1K, k_BHNK, None)[:, :, 0, vit.config.prefix_tokens - first :]
            parts.append(on_grid(patches_BHN, grid).float().cpu())
    return as_floats(torch.cat(parts)[None])


def attention_distance(model: nn.Module, images_BCHW: Tensor, *, layers: Sequence[int] | None = None) -> Floats:
    """Mean attention distance of each head, (L, H), in pixels of the input, over images and query patches (Fig. 7 right, Fig. 11).

    The authors' definition (app. D.7): the distance between the centres of two patches, weighted by attention. Prefix tokens are
    left out on both sides and the rest is not renormalised. The paper's figure averages 128 images.
    """
    vit = needs_attention(model, "attention distance")
    chosen = chosen_layers(len(vit.encoder.blocks), layers)
    total_LH = torch.zeros(len(chosen), vit.config.heads, dtype=torch.float64)
    with evaluating(vit), torch.inference_mode():
        for part_BCHW in batches(vit, images_BCHW, bytes_each=bytes_kept(vit, images_BCHW, len(chosen))):
            record = Record(layers=chosen, attention=False, captures=True)
            vit.encode_images(part_BCHW, record)
            grid, seen = (
                vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3])),
                dict(zip(record.recorded, record.captures, strict=True)),
            )
            for place, layer in enumerate(chosen):
                total_LH[place] += distance(seen[layer], grid, vit.config.step, vit.config.prefix_tokens).sum(0).cpu()
    return as_floats(total_LH / len(images_BCHW))


def distance(layer: Rows, grid: tuple[int, int], step: tuple[int, int], prefix: int) -> Tensor:
    """One layer's mean distance, (B, H); neighbouring patches are `step` pixels apart (down, across)."""
    patches = grid[0] * grid[1]
    total_BH: Tensor | None = None
    for tokens, rows_BHRN in blocks(layer, prefix, prefix + patches):
        far_RN = apart(torch.arange(tokens.start - prefix, tokens.stop - prefix, device=rows_BHRN.device), grid, step)
        part_BH = (rows_BHRN[..., prefix:] * far_RN.to(rows_BHRN.dtype)).sum((-2, -1)).double()
        total_BH = part_BH if total_BH is None else total_BH + part_BH
    assert total_BH is not None, "a grid has patches"
    return total_BH / patches


def apart(place_R: Tensor, grid: tuple[int, int], step: tuple[int, int]) -> Tensor:
    """Pixels between the centres of some patches, given by their numbers in reading order, and of all patches, (R, N)."""
    place_N = torch.arange(grid[0] * grid[1], device=place_R.device)
    down_RN = (place_R[:, None] // grid[1] - place_N // grid[1]) * float(step[0])
    across_RN = (place_R[:, None] % grid[1] - place_N % grid[1]) * float(step[1])
    return torch.hypot(down_RN, across_RN)


def rollout(model: nn.Module, images_BCHW: Tensor) -> Floats:
    """Attention rollout (Abnar & Zuidema 2020; app. D.8, Fig. 6 and 14): the contribution of each patch, (B, G, J).

    It averages heads, adds the identity for the residual connection, and multiplies the layers. It starts from what the pool reads:
    the class token; with a distillation token, both; with mean pooling, all patches alike; with attention pooling, what its query
    attends to. Contributions of patches and prefix tokens sum to one.
    """
    vit = needs_attention(model, "attention rollout")
    maps = []
    with evaluating(vit), torch.inference_mode():
        for part_BCHW in batches(vit, images_BCHW, bytes_each=bytes_kept(vit, images_BCHW, len(vit.encoder.blocks))):
            record = Record(attention=False, captures=True)
            z_BND = vit.encode_images(part_BCHW, record)
            row_B1N = roll(pool_reads(vit, z_BND), record.captures)
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            maps.append(on_grid(row_B1N[:, 0, vit.config.prefix_tokens :], grid).cpu())
    return as_floats(torch.cat(maps))


def roll(row_BQN: Tensor, layers: Sequence[Rows]) -> Tensor:
    """Rows of contributions, followed from the last layer back to the first, (B, Q, N).

    With the identity as `row_BQN` the result is the whole matrix; one row needs no memory of N x N. The rows of (A + I) / 2 sum to
    one; the authors' A + I differs by a factor of two a layer, which does not change the image.
    """
    for layer in reversed(layers):
        row_BQN = (row_BQN + through(row_BQN, layer)) / 2
    return row_BQN


def through(row_BQN: Tensor, layer: Rows) -> Tensor:
    """The rows times the layer's attention, averaged over heads, (B, Q, N); tokens that contribute nothing are skipped."""
    out_BQN = torch.zeros_like(row_BQN)
    asking = row_BQN.ne(0).any(0).any(0).nonzero().flatten().tolist()
    if asking:
        for tokens, rows_BHRN in blocks(layer, asking[0], asking[-1] + 1):
            out_BQN += row_BQN[:, :, tokens] @ rows_BHRN.mean(1)
    return out_BQN


def first_pooled(config: ViTConfig) -> int:
    """The first token that mean and attention pooling read."""
    return 0 if config.pooling.prefix else config.prefix_tokens


def pool_reads(model: ViT, z_BND: Tensor) -> Tensor:
    """The contribution of each token to the pooled vector, (B, 1, N); it sums to one."""
    config = model.config
    batch, tokens = z_BND.shape[:2]
    row_B1N = torch.zeros(batch, 1, tokens, device=z_BND.device)
    first = first_pooled(config)
    if model.pool is not None:
        q_BH1K, k_BHNK, _ = model.pool.query_key_value(z_BND[:, first:])
        row_B1N[:, :, first:] = attention_weights(q_BH1K, k_BHNK, None).mean(1).float()
    elif config.pool == "mean":
        row_B1N[:, :, first:] = 1 / (tokens - first)
    elif config.pool == "token+mean":
        row_B1N[:, :, 0] = 0.5
        row_B1N[:, :, first:] += 0.5 / (tokens - first)
    else:
        read = 1 + int(config.distill_token)
        row_B1N[:, :, :read] = 1 / read
    return row_B1N


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GradientWeighted:
    """A layer's attention times its gradient; negative values count as zero.

    The fused kernel never exposes its attention A, but its output A V has a gradient G, and the gradient of A is G times V
    transposed: exact, for any rows without the others.
    """

    capture: AttentionCapture
    values_BHNK: Tensor
    gradient_BHNK: Tensor

    def rows(self, first: int, last: int) -> Tensor:
        """The weighted attention of the tokens `first` to `last` - 1 to all tokens, (B, H, R, N), at least 0."""
        gain_BHRN = self.gradient_BHNK[:, :, first:last].float() @ self.values_BHNK.float().transpose(-2, -1)
        return (gain_BHRN * self.capture.rows(first, last)).relu()


def relevance(model: nn.Module, images_BCHW: Tensor, classes: int | Sequence[int] | None = None) -> Floats:
    """Gradient-weighted attention (Chefer et al. 2021): the evidence of each patch for a class, (B, G, J), at least 0.

    `classes` is one for all images or one for each; None takes the predicted class. Each layer adds its attention times its
    gradient, without negative values and averaged over heads.
    """
    vit = needs_attention(model, "gradient-weighted attention")
    needs_head(vit, "gradient-weighted attention")
    wanted = a_class_each(classes, len(images_BCHW))
    maps, done = [], 0
    with evaluating(vit):
        for part_BCHW in batches(vit, images_BCHW, bytes_each=4 * bytes_kept(vit, images_BCHW, len(vit.encoder.blocks))):
            own = None if wanted is None else wanted[done : done + len(part_BCHW)]
            done += len(part_BCHW)
            row_BN = _relevance(vit, part_BCHW, own)
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            maps.append(on_grid(row_BN[:, vit.config.prefix_tokens :], grid).cpu())
    return as_floats(torch.cat(maps))


def _relevance(vit: ViT, images_BCHW: Tensor, classes: Sequence[int] | None) -> Tensor:
    record = Record(attention=False, captures=True)
    with torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller is in
        z_BND = vit.encode_images(images_BCHW.clone().detach().requires_grad_(), record)
        if vit.pool is None:
            probe_BH1N, logits_BC = None, vit.logits_from(z_BND)
        else:
            q_BH1K, k_BHNK, v_BHNK = vit.pool.query_key_value(z_BND[:, first_pooled(vit.config) :])
            probe_BH1N = attention_weights(q_BH1K, k_BHNK, None)
            features_BD = vit.represent(vit.pool.project(probe_BH1N @ v_BHNK))
            assert vit.head is not None, "needs_head has checked it"
            logits_BC = vit.head(features_BD)
        chosen_B = chosen_classes(logits_BC, classes)
        chosen = logits_BC.gather(1, chosen_B[:, None]).sum()
        mixed = [capture.mixed_BHNK for capture in record.captures if capture.mixed_BHNK is not None]
        values = [capture.values_BHNK for capture in record.captures if capture.values_BHNK is not None]
        gradients = torch.autograd.grad(chosen, mixed if probe_BH1N is None else [*mixed, probe_BH1N])
    with torch.inference_mode():
        parts = zip(record.captures, values, gradients[: len(mixed)], strict=True)
        layers = [GradientWeighted(capture=capture, values_BHNK=value, gradient_BHNK=own) for capture, value, own in parts]
        if probe_BH1N is None:
            start_B1N = row_B1N = pool_reads(vit, z_BND)
        else:
            gain_BHN = (gradients[-1] * probe_BH1N).relu()[:, :, 0]
            row_B1N = torch.nn.functional.pad(gain_BHN.mean(1), (first_pooled(vit.config), 0))[:, None].float()
            start_B1N = torch.zeros_like(row_B1N)
        for layer in reversed(layers):
            row_B1N = row_B1N + through(row_B1N, layer)
        return (row_B1N - start_B1N)[:, 0]  # the pool's own reading says nothing about the class


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filtered:
    """One layer: the attention of one token, (B, H, G, J), and by patch the values and the filtered values, (B, H, G, J, K)."""

    filter_BHGJ: Tensor
    values_BHGJK: Tensor
    filtered_BHGJK: Tensor


def filtered_values(model: nn.Module, images_BCHW: Tensor, query: Query, *, layer: int = -1) -> Filtered:
    """What a layer's attention makes of its values; `query` is the token whose filter is returned.

    The filtered values of a patch are the mean of all tokens' values, weighted by what it attends to; prefix tokens are part of it.
    """
    vit = needs_attention(model, "the attention filter")
    (chosen,) = chosen_layers(len(vit.encoder.blocks), [layer])
    prefix, filters, values, filtered = vit.config.prefix_tokens, list[Tensor](), list[Tensor](), list[Tensor]()
    with evaluating(vit), torch.enable_grad():  # a layer keeps its values where gradients flow
        for part_BCHW in batches(vit, images_BCHW, bytes_each=1 << 24):
            grid = vit.config.grid_of((part_BCHW.shape[2], part_BCHW.shape[3]))
            record = Record(layers=[chosen], attention=False, captures=True)
            vit.encode_images(part_BCHW.clone().requires_grad_(), record)
            (seen,) = record.captures
            assert seen.values_BHNK is not None
            assert seen.mixed_BHNK is not None
            token = place_of(query, vit.config, grid)
            filters.append(on_grid(seen.rows(token, token + 1)[:, :, 0, prefix:], grid).detach().float().cpu())
            for kept, numbers_BHNK in ((values, seen.values_BHNK), (filtered, seen.mixed_BHNK)):
                b, h, _, k = numbers_BHNK.shape
                kept.append(numbers_BHNK[:, :, prefix:].reshape(b, h, *grid, k).detach().float().cpu())
    return Filtered(filter_BHGJ=torch.cat(filters), values_BHGJK=torch.cat(values), filtered_BHGJK=torch.cat(filtered))
