"""What every format takes and gives: `matches(raw)`, `read(raw, hints)`, `write(state, config, preprocess, labels)`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from vitlab.checkpoints.containers.read import RawFile
from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.serialize import Json
from vitlab.config.vit import Numerics, Pool, PositionKind, ViTConfig
from vitlab.config.vit_parts import ResNetStem
from vitlab.errors import CheckpointError, at_least, pair
from vitlab.models.families import build_on_meta

State = Mapping[str, Tensor]
Container = Literal["npz", "safetensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the caller states about a file that does not contain it.

    `heads` of attention; `grid` of patches (down, across) that the positions stand for; `profile` whose numerics the weights
    are run with, instead of those the format implies.
    """

    heads: int | None = None
    grid: tuple[int, int] | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        if self.heads is not None:
            at_least("heads", self.heads, 1)
        if self.grid is not None:
            object.__setattr__(self, "grid", pair("grid", self.grid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model in a file: its config, its weights, and notes of what was guessed."""

    config: ModelConfig
    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A file of another format, read: the model under vitlab's names, its preprocessing, and notes of what was guessed or left out.

    `labels` are the classes' names in the order of the logits, where the file has them.
    """

    format: str
    config: ModelConfig
    state: dict[str, Tensor]
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A model in another format, ready to be written.

    `tensors` go into one file of type `container`; `metadata` is for the header of a safetensors file. `sidecars` are JSON files by
    name, for a destination that is a folder. `weights_name` is the name of the tensors' file in such a folder; `no_folder` says why
    this model cannot be written as a folder.
    `notes` say where the format's own readers treat the model differently from vitlab; `alone` says it for readers that get the
    tensors without the sidecars.
    """

    container: Container
    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict)
    sidecars: dict[str, Json] = field(default_factory=dict)
    weights_name: str = "model.safetensors"
    no_folder: str | None = None
    notes: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


class Layout(Protocol):
    """One layout, to write and to read back."""

    def read(self, raw: RawFile, hints: Hints) -> Reading:
        """The model of a file of this layout; CheckpointError lists what does not fit."""
        ...

    def write(self, state: State, config: ModelConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> Written:
        """The model in this layout; CheckpointError names what the layout cannot express."""
        ...


class Format(Layout, Protocol):
    """What a module of this folder provides: a layout that is recognised by its keys."""

    def matches(self, raw: RawFile) -> bool:
        """Whether a file has this layout, by its keys alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Expressible:
    """The choices of a ViT that a layout has keys for; every layout has those of the paper's plain ViT.

    `bare_positions`: positions for the patches alone although there is a class token. `class_token_unpooled`: a class token
    that mean pooling ignores. `traits`: those of `ViTConfig.traits` that the layout has keys for or implies.
    `every_layer`: positions that each layer adds.
    """

    format: str
    pools: tuple[Pool, ...] = ("token",)
    positions: tuple[PositionKind, ...] = ("learned-1d",)
    bare_positions: bool = False
    class_token_unpooled: bool = False
    stem: bool = False
    distill_token: bool = False
    register_tokens: bool = False
    representation: bool = False
    norm_after_mean: bool = False
    layer_scale: bool = False
    without_qkv_bias: bool = False
    traits: tuple[str, ...] = ()
    every_layer: bool = False


_ELSEWHERE = {  # by family; others have the native format only
    "vit": "jax-npz, big-vision, timm, huggingface, torchvision or native",
    "resnet": "bit-npz, timm or native",
    "swin": "swin, timm or native",
    "convnext": "convnext, timm or native",
    "efficientnet": "timm or native",
}


def not_of(format_name: str, holds: str, config: ModelConfig) -> CheckpointError:
    """The error for a format of another family of models; it names the formats of this one."""
    hint = f"{config.title} can be written as {_ELSEWHERE.get(config.family, 'native only')}"
    return CheckpointError(f"{format_name} holds {holds}, and this is {config.title}", hint=hint)


def only_vit(config: ModelConfig, name: str) -> ViTConfig:
    """The config, if it is a ViT's or a hybrid's; CheckpointError for other families."""
    if not isinstance(config, ViTConfig):
        raise not_of(name, "ViTs", config)
    return config


def refuse(config: ViTConfig, can: Expressible, *, also: Sequence[str] = ()) -> None:
    """CheckpointError with everything of this model that the format cannot express; `also` adds reasons."""
    reasons = [*_tokens(config, can), *_pooling(config, can), *_positions(config, can), *_layers(config, can), *also]
    if reasons:
        raise CheckpointError(
            f"{can.format} cannot express {'; '.join(reasons)}", hint="the native format holds every model: `to=native`"
        )


def numerics_notes(config: ViTConfig, implied: Numerics, *, reader: str) -> list[str]:
    """Notes of where the format's own readers compute something else than this model."""
    notes = []
    if config.numerics.gelu != implied.gelu:
        notes.append(
            f"this model has the {config.numerics.gelu} GELU and {reader} uses the {implied.gelu} one:"
            " its logits will differ slightly"
        )
    if config.numerics.norm_eps != implied.norm_eps:
        notes.append(
            f"this model's LayerNorm eps is {config.numerics.norm_eps:g} and {reader} uses {implied.norm_eps:g}:"
            " its logits will differ slightly"
        )
    if config.pad and config.image_size != (config.grid[0] * config.step[0], config.grid[1] * config.step[1]):
        notes.append(f"this model pads its images at the right and lower edge, which {reader} does not do")
    return notes


def heads_notes(config: ViTConfig, *, reader: str) -> list[str]:
    """A note for readers that get the tensors alone, if the heads are not 64 wide, as those of most published models are."""
    if config.width == 64 * config.heads:
        return []
    return [f"the tensors do not say that there are {config.heads} heads: {reader} needs num_heads={config.heads}"]


def stem_notes(stem: ResNetStem, implied: ResNetStem, *, reader: str) -> list[str]:
    """The same for the ResNet before a hybrid's patches."""
    names = ("standardise", "standardise_eps", "norm_eps", "groups")
    other = [name for name in names if getattr(stem, name) != getattr(implied, name)]
    listed = ", ".join(f"{name} {getattr(stem, name)} against {getattr(implied, name)}" for name in other)
    return [f"this model's stem differs from {reader}'s in {listed}: its logits will differ slightly"] if other else []


def _tokens(config: ViTConfig, can: Expressible) -> list[str]:
    reasons = []
    if config.register_tokens and not can.register_tokens:
        reasons.append(f"register tokens (register_tokens={config.register_tokens})")
    if config.distill_token and not can.distill_token:
        reasons.append("a distillation token (distill_token=True)")
    return reasons


def _pooling(config: ViTConfig, can: Expressible) -> list[str]:
    reasons = []
    if config.pool not in can.pools:
        reasons.append(f"pool={config.pool!r}")
    elif config.class_token and config.pool in ("mean", "map") and not can.class_token_unpooled:
        reasons.append(f"a class token beside pool={config.pool!r}")
    if config.norm_after_pool and not (can.norm_after_mean and config.pool == "mean"):
        reasons.append(f"norm_after_pool=True with pool={config.pool!r}")
    if config.representation_width and not can.representation:
        reasons.append(f"a hidden layer before the head (representation_width={config.representation_width})")
    return reasons


def _positions(config: ViTConfig, can: Expressible) -> list[str]:
    position = config.position
    if position.kind not in can.positions:
        return [f"positions of the kind {position.kind!r}"]
    if position.kind == "none":
        return []
    reasons = []
    if position.place != "stem" and not (can.every_layer and position.place == "every"):
        reasons.append(f"positions added at more places than the stem (position.place={position.place!r})")
    learned_without = position.kind == "learned-1d" and config.prefix_tokens and not position.prefix
    if learned_without and not can.bare_positions:
        reasons.append("a class token without a position (position.prefix=False)")
    return reasons


def _layers(config: ViTConfig, can: Expressible) -> list[str]:
    reasons = []
    if config.stem is not None and not can.stem:
        reasons.append("a hybrid's ResNet stem")
    if config.conv_stem is not None:
        reasons.append("a convolutional stem (conv_stem)")
    if config.attention != "global":
        reasons.append(f"attention={config.attention!r}")
    if config.layer_scale and not can.layer_scale:
        reasons.append("layer scale (layer_scale above 0)")
    if not config.qkv_bias and not can.without_qkv_bias:
        reasons.append("attention without biases (qkv_bias=False)")
    return reasons + [trait for trait in config.traits if trait not in can.traits]


# --- tables of keys -----------------------------------------------------------------------------------------------------------

Shapes = Mapping[str, tuple[int, ...]]
Passage = Callable[[Sequence[Tensor]], Sequence[Tensor]]

SHOWN = 20  # keys of a kind named in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`ours` and `theirs` are keys of the same numbers; the passages take one side's tensors in order and give the other's."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    to_ours: Passage
    to_theirs: Passage


def same(ours: str, theirs: str) -> Row:
    """The same tensor under two names."""
    return Row(ours=(ours,), theirs=(theirs,), to_ours=_unchanged, to_theirs=_unchanged)


def turned(ours: str, theirs: str) -> Row:
    """A linear layer's weight, (out, in) with us and (in, out) with them."""
    return Row(ours=(ours,), theirs=(theirs,), to_ours=_transposed, to_theirs=_transposed)


def kernel(ours: str, theirs: str) -> Row:
    """A convolution's weight, (out, in, height, width) with us and (height, width, in, out) with them."""
    return Row(
        ours=(ours,),
        theirs=(theirs,),
        to_ours=lambda tensors: [tensors[0].permute(3, 2, 0, 1)],
        to_theirs=lambda tensors: [tensors[0].permute(2, 3, 1, 0)],
    )


def shaped(ours: str, theirs: str, our_shape: tuple[int, ...], their_shape: tuple[int, ...]) -> Row:
    """The same numbers in the same order in another shape; -1 stands for what remains."""
    return Row(
        ours=(ours,),
        theirs=(theirs,),
        to_ours=lambda tensors: [tensors[0].reshape(our_shape)],
        to_theirs=lambda tensors: [tensors[0].reshape(their_shape)],
    )


def stacked(ours: str, theirs: Sequence[str]) -> Row:
    """One tensor of ours that holds several equal ones of theirs, one below the other along the first axis."""
    parts = len(theirs)
    return Row(
        ours=(ours,),
        theirs=tuple(theirs),
        to_ours=lambda tensors: [torch.cat(list(tensors))],
        to_theirs=lambda tensors: tensors[0].chunk(parts),
    )


def layer(ours: str, theirs: str, *, bias: bool = True) -> Iterator[Row]:
    """Weight and bias of a layer that both sides hold alike."""
    yield same(f"{ours}.weight", f"{theirs}.weight")
    if bias:
        yield same(f"{ours}.bias", f"{theirs}.bias")


def native_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Key -> shape of our state dict for that model."""
    return {key: tuple(tensor.shape) for key, tensor in build_on_meta(config).state_dict().items()}


def to_ours(tensors: Mapping[str, Tensor], rows: Sequence[Row], shapes: Shapes, *, where: str) -> dict[str, Tensor]:
    """Their tensors under our names, each exactly, in our order; CheckpointError lists every key that does not fit.

    `shapes` are those of our model; `where` names the file in the error.
    """
    _check_table(rows, shapes)
    account(tensors, their_shapes(rows, shapes), where=where)
    if all(tensor.is_meta for tensor in tensors.values()):  # only shapes were read: nothing to pass
        types = {key: tensors[row.theirs[0]].dtype for row in rows for key in row.ours}
        return {key: torch.empty(shape, dtype=types[key], device="meta") for key, shape in shapes.items()}
    found: dict[str, Tensor] = {}
    for row in rows:
        found.update(zip(row.ours, row.to_ours([tensors[key] for key in row.theirs]), strict=True))
    return {key: found[key].contiguous() for key in shapes}


def to_theirs(state: Mapping[str, Tensor], rows: Sequence[Row], shapes: Shapes) -> dict[str, Tensor]:
    """Our tensors under their names, each exactly and in memory of its own; refuses a state that is not of that model."""
    _check_table(rows, shapes)
    account(state, shapes, where="the model's state")
    found: dict[str, Tensor] = {}
    for row in rows:
        found.update(zip(row.theirs, row.to_theirs([state[key] for key in row.ours]), strict=True))
    return {key: _owned(tensor) for key, tensor in found.items()}


def their_shapes(rows: Sequence[Row], shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Key -> shape on their side, worked out by passing tensors without values through the table."""
    found: dict[str, tuple[int, ...]] = {}
    for row in rows:
        given = row.to_theirs([torch.empty(shapes[key], device="meta") for key in row.ours])
        found.update((key, tuple(tensor.shape)) for key, tensor in zip(row.theirs, given, strict=True))
    return found


def account(tensors: Mapping[str, Tensor], expected: Shapes, *, where: str) -> None:
    """Refuse tensors that are not exactly the expected ones, listing all that is unknown, missing or of another shape."""
    unknown = [key for key in tensors if key not in expected]
    missing = [key for key in expected if key not in tensors]
    both = [key for key in expected if key in tensors]
    wrong = [
        f"{key} is {tuple(tensors[key].shape)} and should be {expected[key]}"
        for key in both
        if tuple(tensors[key].shape) != expected[key]
    ]
    odd = [f"{key} holds {tensors[key].dtype}" for key in both if not tensors[key].is_floating_point()]
    faults = [
        *_listed("unknown keys", unknown),
        *_listed("missing keys", missing),
        *_listed("wrong shapes", wrong),
        *_listed("not floating point", odd),
    ]
    if faults:
        raise CheckpointError(
            f"{where} does not fit the model its keys describe: {'; '.join(faults)}",
            hint="either the file is incomplete or it holds a kind of model that vitlab does not have",
        )


def _listed(kind: str, items: Collection[str]) -> list[str]:
    if not items:
        return []
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return [f"{len(items)} {kind}: {', '.join(list(items)[:SHOWN])}{more}"]


def _check_table(rows: Sequence[Row], shapes: Shapes) -> None:
    ours = [key for row in rows for key in row.ours]
    theirs = [key for row in rows for key in row.theirs]
    assert len(ours) == len(set(ours)), "a table names one of our keys twice"
    assert len(theirs) == len(set(theirs)), "a table names one of their keys twice"
    assert set(ours) == set(shapes), f"a table and the model disagree: {sorted(set(ours) ^ set(shapes))[:SHOWN]}"


def _unchanged(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return tensors


def _transposed(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return [tensors[0].T]


def _owned(tensor: Tensor) -> Tensor:
    """Contiguous, and sharing memory with nothing: two views of one storage cannot be written to a safetensors file."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)
