"""A report of a data set: what is broken, what is there twice or in two parts, how classes and sizes are spread.

report = check("pets/")
report.problems()          # what should be repaired before training, a sentence each
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from vitlab.config.decode import DecodeLimits
from vitlab.config.source import SplitRule
from vitlab.data.care.findings import Broken, ClassCount, Fault, Odd, Picture, Report, Sizes, Spread
from vitlab.data.care.likeness import is_flat
from vitlab.data.care.looks import Look, look_at
from vitlab.data.care.progress import Tell, silent
from vitlab.data.care.twins import exact_twins, near_twins
from vitlab.data.files.ahead import chunks, done_ahead
from vitlab.data.files.disk import DiskContents, walk_pictures
from vitlab.data.files.pictures import LeftOut
from vitlab.data.kinds.folder import class_folders
from vitlab.data.kinds.offenders import Offenders
from vitlab.data.kinds.recognise import parse_spec
from vitlab.data.listed import PARTS, UNDECLARED, ListedSource
from vitlab.data.source import Source, open_source
from vitlab.data.split import assign_parts
from vitlab.errors import DataError

_CHUNK = 32  # pictures looked at in one go
_TINY = 32  # pixels: a side below this, and below a quarter of the usual, is far too small
_ODD_SHAPE = 2.5  # times wider or narrower than is usual here


def check(
    spec: str,
    *,
    rule: SplitRule | None = None,
    limits: DecodeLimits | None = None,
    label_column: str | None = None,
    tell: Tell = silent,
) -> Report:
    """Look at every picture of the data that `spec` names, in all its parts, and report.

    `rule` makes the parts of data that declares none, as it would for training; `limits` are those of the image gate. Every
    picture is decoded as a whole. A folder that training would refuse is looked at as far as it goes.
    """
    source, faults = _open(spec, label_column)
    parts, notes = _parts(source, rule or SplitRule(), spec)
    pictures: list[Picture] = []
    looks: list[Look | None] = []
    broken = []
    with closing(_looks(source, limits or DecodeLimits())) as seen:
        for index, (name, made) in enumerate(seen):
            pictures.append(Picture(name=name, part=parts[index], label=_label(source, index)))
            looks.append(made if isinstance(made, Look) else None)
            if isinstance(made, str):
                broken.append(Broken(picture=pictures[index], reason=made))
            tell("looking at pictures", index + 1, len(source))
    sizes = _sizes(looks)
    if small := sum(look is not None and look.thumb is None for look in looks):
        notes.append(f"{small:,} pictures are below 32 pixels, too small to be compared for near duplicates")
    return Report(
        data=spec,
        pictures=len(source),
        parts={part: parts.count(part) for part in PARTS if part in parts},
        faults=tuple(faults),
        broken=tuple(broken),
        twins=(*exact_twins(looks, pictures), *near_twins(looks, pictures, tell=tell)),
        classes=_classes(source, parts),
        sizes=sizes,
        stored=dict(Counter(look.stored for look in looks if look is not None).most_common()),
        odd=tuple(_odd(looks, pictures)),
        notes=(*(source.notes if isinstance(source, ListedSource) else ()), *notes),
    )


class _Collected(Offenders):
    """Keeps the faults of a folder for the report, where others stop at them."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.faults: list[Fault] = []

    def add(self, place: str, reason: str) -> None:
        """Remember a fault."""
        super().add(place, reason)
        self.faults.append(Fault(place=place, reason=reason))

    def refuse(self, *, hint: str | None = None) -> None:
        """Go on all the same."""


def _open(spec: str, label_column: str | None) -> tuple[Source, list[Fault]]:
    """All pictures of the data, and for a folder that would be refused everything that is wrong with it."""
    try:
        return open_source(spec, split="all", label_column=label_column), []
    except DataError as refusal:
        root = _refused_folder(spec)
        if root is None:
            raise
        collected, left_out = _Collected(spec), LeftOut()
        names, folders = walk_pictures(root, collected, left_out)
        contents = DiskContents(root, names)
        try:
            source = class_folders(contents, names, where=spec, offenders=collected, left_out=left_out, folders=folders)
        except DataError:
            raise refusal from None  # there is nothing in it to look at
        return source, collected.faults


def _refused_folder(spec: str) -> Path | None:
    """The folder of class folders that is meant, or None where the data is of another kind."""
    if not spec:
        return None
    try:
        kind, place = parse_spec(spec)
    except DataError:
        return None
    root = Path(place).expanduser()
    return root if kind == "folder" and root.is_dir() else None


def _parts(source: Source, rule: SplitRule, where: str) -> tuple[list[str | None], list[str]]:
    """The part of each picture, as the data declares it or else as the rule makes it, and what there is to say about that."""
    if not isinstance(source, ListedSource):
        return [None] * len(source), []
    codes, notes = source.parts, []
    if set(codes.tolist()) == {UNDECLARED}:
        try:
            codes = assign_parts(source.digests(), source.table, rule, labels=source.labels, where=where)
            notes.append("it declares no parts: these are the ones that training would make by the hash of each picture")
        except DataError as refusal:
            first, *others = refusal.message.split("; ")
            notes.append(f"no parts can be made of it: {first}{'; and so on' if others else ''}")
    return [None if code == UNDECLARED else PARTS[code] for code in codes.tolist()], notes


def _looks(source: Source, limits: DecodeLimits) -> Generator[tuple[str, Look | str], None, None]:
    """The name of each picture in order, with what it is or why it cannot be decoded; looked at by several threads."""

    def look(indices: range) -> list[tuple[str, Look | str]]:
        return [_look(source, index, limits) for index in indices]

    return done_ahead(look, chunks(len(source), _CHUNK))  # decoding releases the interpreter's lock


def _look(source: Source, index: int, limits: DecodeLimits) -> tuple[str, Look | str]:
    name = source.name(index) if isinstance(source, ListedSource) else ""
    try:
        example = source[index]
        return example.name, look_at(example, limits)
    except DataError as error:
        return name, error.message


def _label(source: Source, index: int) -> str | None:
    label = source.label(index)
    if isinstance(label, tuple):
        return ", ".join(source.labels[code] for code in label)
    return None if label is None else source.labels[label]


def _classes(source: Source, parts: Sequence[str | None]) -> tuple[ClassCount, ...]:
    """The pictures of each class, in each part that has labels."""
    counts: Counter[tuple[int, str | None]] = Counter()
    for index, part in enumerate(parts):
        label = source.label(index)
        for code in label if isinstance(label, tuple) else () if label is None else (label,):
            counts[code, part] += 1
    present = [part for part in PARTS if any(found == part for _, found in counts)]
    return tuple(
        ClassCount(
            label=name,
            total=sum(counts[code, part] for part in (*PARTS, None)),
            parts={part: counts[code, part] for part in present},
        )
        for code, name in enumerate(source.labels)
    )


def _sizes(looks: Sequence[Look | None]) -> Sizes | None:
    sound = [look for look in looks if look is not None]
    if not sound:
        return None
    return Sizes(height=_spread([look.height for look in sound]), width=_spread([look.width for look in sound]))


def _spread(numbers: Sequence[int]) -> Spread:
    return Spread(least=min(numbers), median=int(np.median(numbers)), most=max(numbers))


def _odd(looks: Sequence[Look | None], pictures: Sequence[Picture]) -> Iterator[Odd]:
    """What is unusual: in itself, or beside the others."""
    sound = [look for look in looks if look is not None]
    if not sound:
        return
    usual_side = float(np.median([min(look.height, look.width) for look in sound]))
    usual_shape = float(np.median([look.width / look.height for look in sound]))
    for look, picture in zip(looks, pictures, strict=True):
        if look is None:
            continue
        for what in look.odd:
            yield Odd(picture=picture, what=what)
        if min(look.height, look.width) < min(_TINY, usual_side / 4):
            yield Odd(picture=picture, what="far smaller than the others")
        elif not 1 / _ODD_SHAPE <= look.width / look.height / usual_shape <= _ODD_SHAPE:
            yield Odd(picture=picture, what="far wider or narrower than the others")
        if look.thumb is not None and is_flat(look.thumb[None])[0]:
            yield Odd(picture=picture, what="of one colour, with nothing to be seen")
