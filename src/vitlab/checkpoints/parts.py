"""Tensors in several files: each process of a training run writes its own rows, and reading joins them.

    model-part-0-of-2.safetensors     the first rows of every sharded tensor, and every tensor that is not sharded
    model-part-1-of-2.safetensors     the rows that follow

A tensor is the concatenation of its rows in all parts, in their order; a part without rows of a tensor does not contain it. Parts
of weights have the header of a native file, with digests, config and labels. Any number of processes can read parts of any number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from vitlab.checkpoints.checkpoint import check_state
from vitlab.checkpoints.containers.safetensors_file import Header, OpenFile, open_safetensors, write_encoded
from vitlab.checkpoints.native import HeaderFacts, checked_tensors, read_facts, sealed_header
from vitlab.errors import CheckpointError
from vitlab.io.files import open_regular

_PART = re.compile(r"(?P<stem>.+)-part-(?P<rank>\d{1,6})-of-(?P<ranks>\d{1,6})\.safetensors")


def part_name(stem: str, rank: int, ranks: int) -> str:
    """`model-part-0-of-2.safetensors`"""
    return f"{stem}-part-{rank}-of-{ranks}.safetensors"


def is_part(name: str) -> bool:
    """Whether this is the name of a part."""
    return _PART.fullmatch(name) is not None


def parts_in(folder: Path, stem: str) -> tuple[Path, ...]:
    """The parts of `stem` in their order, if there are any; CheckpointError names those that are missing."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise CheckpointError(f"cannot read the folder {folder}: {error.strerror}") from error
    found = [match for name in names if (match := _PART.fullmatch(name)) and match["stem"] == stem]
    if not found:
        return ()
    totals = {int(match["ranks"]) for match in found}
    if len(totals) > 1:
        raise CheckpointError(f"{folder} holds parts of {stem} of {' and of '.join(map(str, sorted(totals)))} processes")
    (ranks,) = totals
    missing = sorted(set(range(ranks)) - {int(match["rank"]) for match in found})
    if missing:
        raise CheckpointError(f"{folder}: of {ranks} parts of {stem}, {', '.join(map(str, missing))} missing")
    return tuple(folder / part_name(stem, rank, ranks) for rank in range(ranks))


def write_weights_part(path: Path, state: Mapping[str, Tensor], facts: HeaderFacts, *, rank: int, ranks: int) -> None:
    """Write the rows of one process with digests; atomic and durable."""
    write_encoded(path, sealed_header(state, facts, part=f"{rank} of {ranks}"), state)


def read_weights(paths: Sequence[Path], *, values: bool = True) -> tuple[dict[str, Tensor], HeaderFacts]:
    """The joined weights and their facts, after all digests are checked; without `values`, from headers, on the meta device."""
    with ExitStack() as stack:
        opened = [stack.enter_context(open_safetensors(path)) for path in paths]
        each = [read_facts(file, part=f"{rank} of {len(paths)}") for rank, file in enumerate(opened)]
        if any(facts != each[0] for facts in each):
            raise CheckpointError(f"the parts in {paths[0].parent} are not of one checkpoint: their headers differ")
        shapes = [file.shapes() for file in opened]
        check_state(_joined(shapes), each[0].config, where=str(paths[0].parent))
        return _joined([checked_tensors(file) for file in opened] if values else shapes), each[0]


class Pieces(Mapping[str, Tensor]):
    """The tensors of one file or of all its parts; each is read and joined when it is used, so that one is in memory at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._headers: dict[Path, Header] = {}
        self._places: dict[str, list[Path]] = {}
        for path in paths:
            with open_safetensors(path) as opened:
                self._headers[path] = opened.header
            for name in opened.header.entries:
                self._places.setdefault(name, []).append(path)

    def all(self) -> dict[str, Tensor]:
        """Every tensor, in memory."""
        with ExitStack() as stack:
            return _joined([stack.enter_context(open_safetensors(path)).tensors() for path in self._headers])

    def __getitem__(self, name: str) -> Tensor:
        rows = []
        for path in self._places[name]:
            with open_regular(path) as file:
                rows.append(OpenFile(path=path, header=self._headers[path], file=file).tensor(name))
        return _below(rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _below([part[name] for part in parts if name in part]) for name in names}


def _below(rows: list[Tensor]) -> Tensor:
    if len(rows) == 1:
        return rows[0]
    try:
        return torch.cat(rows)
    except RuntimeError as error:  # rows of other lengths
        raise CheckpointError(f"the parts of a tensor do not fit together: {str(error)[:120]}") from error
