"""The native checkpoint: one .safetensors file with weights, config, preprocessing, labels, and digests of all of it.

The header's metadata, all text:

    vitlab.version        "1"
    vitlab.config         the model's config as JSON
    vitlab.preprocess     its preprocessing as JSON
    vitlab.labels         the classes' names as a JSON list, or absent
    vitlab.recipe         the training run's config as JSON, or absent
    vitlab.metrics        its results, a JSON object of numbers ("nan" and "inf" as text), or absent
    vitlab.notes          a JSON list of sentences
    vitlab.tensors_sha256 of the tensors: for each in the order of its name's code points, `["name","F32",[2,3]]` as JSON in
                          ASCII and a newline, then its bytes as in the file. It does not depend on the rest of the header:
                          the same weights have the same digest in every file.
    vitlab.header_sha256  of the file's first bytes up to the first tensor's, with the 64 digits of this digest itself as zeros
    vitlab.part           "0 of 2" in a file that holds only some rows of the tensors (see below), else absent

So one of the two digests covers every byte of the file. They detect damage; they are not a signature.

Tensors in several files: each process of a training run writes its own rows, and reading joins them.

    model-part-0-of-2.safetensors     the first rows of every sharded tensor, and every tensor that is not sharded
    model-part-1-of-2.safetensors     the rows that follow

A tensor is the concatenation of its rows in all parts, in their order; a part without rows of a tensor does not contain it. Parts
of weights have the header of a native file, with digests, config and labels. Any number of processes can read parts of any number.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.checkpoints.checkpoint import Checkpoint, check_finite, check_labels, check_preprocess, check_state
from vitlab.checkpoints.containers.safetensors_file import (
    CODES,
    MAX_HEADER,
    Check,
    Header,
    OpenFile,
    encode_header,
    flat_bytes,
    open_safetensors,
    write_encoded,
)
from vitlab.config.data import Preprocess, named_classes
from vitlab.config.model import ModelConfig
from vitlab.config.renamed import current_recipe
from vitlab.config.serialize import Json, from_json, parsed, to_json
from vitlab.errors import CheckpointError, ConfigError
from vitlab.io.files import open_regular
from vitlab.models.grid_detector import GridHead
from vitlab.models.segmenter import MaskTransformer

VERSION = 1
_PREFIX = "vitlab."
_BLANK = "0" * 64
REPAIR = "its training diverged: take an earlier checkpoint"
_REQUIRED = ("config", "preprocess", "notes", "tensors_sha256", "header_sha256")
_OPTIONAL = ("labels", "recipe", "metrics")

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderFacts:
    """What a native header contains beside the tensors."""

    config: ModelConfig
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    recipe: dict[str, Json] | None = None
    metrics: dict[str, float] | None = None
    notes: tuple[str, ...] = ()


_OTHER_ENDINGS = (".npz", ".pth", ".pt", ".bin", ".onnx")


def save(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write a checkpoint as one .safetensors file, which `load` reads bit for bit; a crash or a full disk leaves the old file.

    The weights keep their dtype. What could not be loaded again (another config's weights, too few labels, NaN) is refused here.
    A head that was replaced (`model.head = nn.Linear(width, 5)`) is saved with its number of classes; the labels of the old one
    are left out.
    """
    if not isinstance(checkpoint, Checkpoint):
        raise CheckpointError(
            f"cannot save {path}: a {type(checkpoint).__name__} is not a Checkpoint, which also knows its preprocessing and labels",
            hint="vitlab.load gives one; or vitlab.Checkpoint(model=model, config=model.config, preprocess=...) makes one",
        )
    if Path(path).suffix.lower() in _OTHER_ENDINGS:
        raise CheckpointError(
            f"cannot save {path}: this is the ending of another format",
            hint="save writes .safetensors; vitlab.convert writes other formats",
        )
    model = checkpoint.model
    if isinstance(getattr(model, "head", None), torch.nn.Sequential):
        raise CheckpointError(
            f"cannot save {path}: the head is an nn.Sequential, and a checkpoint's head is one nn.Linear",
            hint="torch.save(model.state_dict(), ...) keeps it, without preprocessing and labels",
        )
    config = replace(checkpoint.config, num_classes=_classes(getattr(model, "head", None)))
    built = getattr(model, "config", None)  # another library's module has none
    if built is None or replace(built, num_classes=config.num_classes) != config:
        raise CheckpointError(f"cannot save {path}: the model was built from another config than the checkpoint says")
    facts = HeaderFacts(
        config=config,
        preprocess=checkpoint.preprocess,
        labels=checkpoint.labels if config == checkpoint.config or len(checkpoint.labels or ()) == config.num_classes else None,
        recipe=checkpoint.recipe,
        metrics=checkpoint.metrics,
        notes=(*checkpoint.history, *checkpoint.notes),
    )
    state = model.state_dict()
    check_finite(state, where=f"cannot save {path}", hint=REPAIR)
    write_native(Path(path), state, facts)


def _classes(head: object) -> int:
    """The classes of a head: 0 for none, and for nn.Identity."""
    if isinstance(head, MaskTransformer | GridHead):
        return head.num_classes
    return head.out_features if isinstance(head, torch.nn.Linear) else 0


def write_native(path: Path, state: State, facts: HeaderFacts, *, check: Check | None = None) -> None:
    """Write weights and facts as a native file; `check` is called with the finished file before it is renamed."""
    check_state(state, facts.config, where=str(path))
    check_labels(facts.labels, named_classes(facts.config))
    check_preprocess(facts.preprocess, facts.config)
    header = sealed_header(state, facts)
    write_encoded(path, header, state, check=check)


def sealed_header(state: State, facts: HeaderFacts, *, part: str | None = None) -> Header:
    """The header of a native file, with its digests; `part` is for a file that holds only some rows of the tensors."""
    metadata = {"format": "pt", f"{_PREFIX}version": str(VERSION)}  # "format": other libraries expect it of PyTorch's tensors
    metadata |= {_PREFIX + key: text for key, text in _texts(facts).items()}
    if part is not None:
        metadata[f"{_PREFIX}part"] = part
    metadata[f"{_PREFIX}tensors_sha256"] = tensors_digest(state)
    blank = encode_header(state, metadata | {f"{_PREFIX}header_sha256": _BLANK})
    header = encode_header(state, metadata | {f"{_PREFIX}header_sha256": _header_digest(blank.text)})
    if len(header.text) > MAX_HEADER:
        raise CheckpointError(
            f"config, labels, recipe and notes make {len(header.text):,} bytes, more than the {MAX_HEADER:,} a header may have"
        )
    return header


def is_native(metadata: Mapping[str, str]) -> bool:
    """Whether a header is vitlab's, even if a part of it is damaged."""
    return any(key.startswith(_PREFIX) for key in metadata)


def read_native(opened: OpenFile) -> tuple[dict[str, torch.Tensor], HeaderFacts]:
    """Weights and facts of a native file; CheckpointError if any byte has changed since it was written."""
    facts = read_facts(opened)
    check_state(opened.shapes(), facts.config, where=str(opened.path))
    return checked_tensors(opened), facts


def checked_tensors(opened: OpenFile) -> dict[str, torch.Tensor]:
    """The tensors of a native file or part; CheckpointError if their digest is wrong."""
    tensors = opened.tensors()
    if tensors_digest(tensors) != opened.header.metadata[f"{_PREFIX}tensors_sha256"]:
        raise _damaged(opened.path, "its weights do not have the SHA-256 that its header says")
    return tensors


def read_facts(opened: OpenFile, *, part: str | None = None) -> HeaderFacts:
    """The facts of a native header, after its digest is checked; no tensor is read. `part` is which part the file must be."""
    path, header = opened.path, opened.header
    entries = {key.removeprefix(_PREFIX): text for key, text in header.metadata.items() if key.startswith(_PREFIX)}
    _check_version(entries.pop("version", None), path)
    digest = entries.get("header_sha256", "")
    if header.text.count(digest.encode()) != 1 or _header_digest(header.text.replace(digest.encode(), _BLANK.encode())) != digest:
        raise _damaged(path, "its header does not have the SHA-256 that it says")
    said = entries.pop("part", None)
    if said != part:
        what = "a whole checkpoint" if said is None else f"part {said} of a checkpoint that several processes wrote"
        raise CheckpointError(f"{path} is {what}", hint="give the folder of all parts")
    odd = sorted(set(_REQUIRED) - entries.keys()) + sorted(entries.keys() - {*_REQUIRED, *_OPTIONAL})
    if odd:
        raise _damaged(path, f"its header lacks or adds {', '.join(odd[:5])}")
    try:
        facts = _facts(entries)
    except (ValueError, ConfigError) as error:
        raise CheckpointError(f"{path}: its header cannot be understood: {str(error)[:200]}") from error
    check_labels(facts.labels, named_classes(facts.config))
    check_preprocess(facts.preprocess, facts.config)
    return facts


def summary(opened: OpenFile, facts: HeaderFacts) -> dict[str, Json]:
    """The rest of a native header: what is neither config, preprocessing, labels nor notes."""
    metadata = opened.header.metadata
    said: dict[str, Json] = {
        "version": metadata[f"{_PREFIX}version"],
        "tensors_sha256": metadata[f"{_PREFIX}tensors_sha256"],
    }
    optional: dict[str, Json] = {"recipe": facts.recipe, "metrics": to_json(facts.metrics)}
    return said | {key: value for key, value in optional.items() if value is not None}


def tensors_digest(tensors: State) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of the tensors, as the docstring of this module defines it."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        code = CODES.get(tensor.dtype, str(tensor.dtype))
        digest.update(json.dumps([name, code, list(tensor.shape)], separators=(",", ":")).encode("ascii") + b"\n")
        digest.update(flat_bytes(tensor))
    return digest.hexdigest()


def _header_digest(text: bytes) -> str:
    return hashlib.sha256(len(text).to_bytes(8, "little") + text).hexdigest()


def _texts(facts: HeaderFacts) -> dict[str, str]:
    """The facts as JSON in ASCII, so that any string survives, even one that UTF-8 cannot encode."""
    values: dict[str, Json] = {
        "config": to_json(facts.config),
        "preprocess": to_json(facts.preprocess),
        "labels": None if facts.labels is None else list(facts.labels),
        "recipe": facts.recipe,
        "metrics": None if facts.metrics is None else {name: _number(value) for name, value in facts.metrics.items()},
        "notes": list(facts.notes),
    }
    try:
        return {
            key: json.dumps(value, separators=(",", ":"), allow_nan=False) for key, value in values.items() if value is not None
        }
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint's recipe, labels or notes are not plain JSON values: {error}") from error


def _facts(entries: Mapping[str, str]) -> HeaderFacts:
    recipe = parsed(entries["recipe"]) if "recipe" in entries else None
    metrics = from_json(dict[str, float | str], parsed(entries["metrics"]), where="metrics") if "metrics" in entries else None
    if recipe is not None and not isinstance(recipe, dict):
        raise ConfigError("recipe should be an object")
    return HeaderFacts(
        config=_value(ModelConfig, entries, "config"),
        preprocess=_value(Preprocess, entries, "preprocess"),
        labels=_value(tuple[str, ...], entries, "labels") if "labels" in entries else None,
        recipe=None if recipe is None else current_recipe(recipe),
        metrics=None if metrics is None else {name: float(value) for name, value in metrics.items()},
        notes=_value(tuple[str, ...], entries, "notes"),
    )


def _value(kind: Any, entries: Mapping[str, str], key: str) -> Any:
    return from_json(kind, parsed(entries[key]), where=key)


def _number(value: float) -> Json:
    """A metric for JSON, which has neither NaN nor Inf."""
    return value if math.isfinite(value) else str(float(value))


def _check_version(text: str | None, path: Path) -> None:
    if text is None or re.fullmatch(r"[1-9][0-9]{0,5}", text) is None:
        raise _damaged(path, "its header does not say its version")
    if int(text) > VERSION:
        raise CheckpointError(
            f"{path} is of the native format's version {text}, and this vitlab knows up to {VERSION}",
            hint="upgrade vitlab: pip install -U vitlab",
        )


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path} was damaged or changed after vitlab wrote it: {why}", hint="use another copy of the file")


# --- tensors in several files -------------------------------------------------------------------------------------------------

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
