"""Tables of keys: a layout is a list of rows, each an exact conversion of some of its tensors to some of vitlab's and back.

A table accounts for every key. What it does not know, what it misses and what has another shape is listed and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitlab.config.model import ModelConfig
from vitlab.errors import CheckpointError
from vitlab.models.families import build_on_meta

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
