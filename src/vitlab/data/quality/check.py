"""A report of a data set: what is broken, what is there twice or in two splits, how classes and sizes are spread.

report = check("pets/")
report.problems()          # what should be repaired before training, a sentence each
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import GifImagePlugin

from vitlab.config.data import DecodeLimits, ImageFormat, SplitRule
from vitlab.data.dataset import SPLITS, UNDECLARED, Dataset, Faults, ImageDataset, RawSample
from vitlab.data.decode import Header, check, decode
from vitlab.data.jpeg import orientation_of
from vitlab.data.opening import open_dataset
from vitlab.data.quality.duplicates import SIDE, NearPair, is_flat, near_pairs, thumbnail
from vitlab.data.readers.folder import DiskContents, LeftOut, class_folders, walk_images
from vitlab.data.readers.recognise import parse_spec
from vitlab.data.split import assign_splits
from vitlab.errors import DataError
from vitlab.io.digests import digest
from vitlab.io.prefetch import chunks, prefetched
from vitlab.io.progress import ProgressCallback, silent

# What a look through a data set found: plain values, to be printed or written as JSON.

ProblemKind = Literal["layout", "broken", "leak", "conflict", "duplicate", "empty class", "missing class"]

_UNBALANCED = 10.0  # times as many images in the largest class as in the smallest


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image by its name, the split it belongs to, and its label or labels in words; None where there is none."""

    name: str
    split: str | None
    label: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something in the layout of the data for which training would refuse it."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """An image that cannot be decoded, and why."""

    image: Image
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """Images that are the same: `exact` in every byte, or nearly, with the least correlation of two of their thumbnails.

    `mirrored` where some are so only in a mirror; `leak` where they are in different splits; `conflict` where their labels differ.
    """

    exact: bool
    likeness: float
    mirrored: bool
    leak: bool
    conflict: bool
    images: tuple[Image, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount:
    """How many images a class has, in each split and in all."""

    label: str
    total: int
    splits: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The least, middle and greatest of some numbers."""

    least: int
    median: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the sound images, in pixels, upright."""

    height: Spread
    width: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """An image that is sound and unusual, and in which way."""

    image: Image
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something to repair: its kind, how often, and one sentence."""

    kind: ProblemKind
    count: int
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it. `splits` and `stored` (format and colours) count images; `sizes` is None where no image is sound."""

    data: str
    images: int
    splits: dict[str, int]
    faults: tuple[Fault, ...]
    broken: tuple[Broken, ...]
    twins: tuple[Twins, ...]
    classes: tuple[ClassCount, ...]
    sizes: Sizes | None
    stored: dict[str, int]
    odd: tuple[Odd, ...]
    notes: tuple[str, ...]

    @property
    def imbalance(self) -> float | None:
        """How many times as many images the largest class has as the smallest that has any; None below two classes."""
        counts = [entry.total for entry in self.classes if entry.total]
        return max(counts) / min(counts) if len(counts) > 1 else None

    def problems(self) -> list[Problem]:
        """What should be repaired before training, the gravest first."""
        leaks = [twins for twins in self.twins if twins.leak]
        near_leaks = sum(not twins.exact for twins in leaks)
        within = [twins for twins in self.twins if twins.exact and not twins.leak]
        gone = [(entry.label, split) for entry in self.classes if entry.total for split, count in entry.splits.items() if not count]
        found: list[tuple[ProblemKind, int, str]] = [
            ("layout", len(self.faults), "faults in the layout, for which training would refuse the data"),
            ("broken", len(self.broken), "images cannot be decoded"),
            ("leak", len(leaks), f"groups of the same image are in more than one split ({near_leaks:,} of them near duplicates)"),
            ("conflict", sum(twins.conflict for twins in self.twins), "groups of the same image have different labels"),
            ("duplicate", len(within), "groups of identical files are within one split"),
            ("empty class", sum(not entry.total for entry in self.classes), "classes have no image"),
            ("missing class", len(gone), "times a class has no image in a split"),
        ]
        return [Problem(kind=kind, count=count, said=f"{count:,} {said}") for kind, count, said in found if count]

    def remarks(self) -> list[str]:
        """What is worth knowing and need not be wrong, a sentence each."""
        said = []
        near = [twins for twins in self.twins if not twins.exact and not twins.leak]
        if near:
            mirrored = sum(twins.mirrored for twins in near)
            said.append(f"{len(near):,} groups of near duplicates are within one split ({mirrored:,} of them mirrored)")
        if self.imbalance is not None and self.imbalance >= _UNBALANCED:
            said.append(f"the largest class has {self.imbalance:.0f} times as many images as the smallest")
        kinds = Counter(odd.what for odd in self.odd)
        said.extend(f"{count:,} {'image is' if count == 1 else 'images are'} {what}" for what, count in kinds.most_common())
        colours = Counter[str]()
        for stored, count in self.stored.items():
            colours["grey" if stored.endswith("grey") else "colour"] += count
        if len(colours) == 2:
            said.append(f"{colours['grey']:,} images are grey and {colours['colour']:,} in colour")
        return [*said, *self.notes]


# What one image of a source is: whole or broken, its size, how it is stored, and what is unusual about that.

_ENDINGS: dict[str, ImageFormat] = {
    ".jpg": "jpeg", ".jpeg": "jpeg", ".jpe": "jpeg", ".jfif": "jpeg", ".png": "png", ".webp": "webp", ".bmp": "bmp",
    ".gif": "gif", ".tif": "tiff", ".tiff": "tiff",
}  # fmt: skip
_PNG_COLOURS = {0: "grey", 2: "colour", 3: "palette", 4: "grey", 6: "colour"}
_PNG_WITH_OPACITY = (4, 6)
_JPEG_COLOURS = {1: "grey", 3: "colour", 4: "CMYK"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """An image that could be decoded as a whole.

    `digest` is that of its content; `height` and `width` are in pixels, upright; `stored` is its format and colours
    (`jpeg, colour`); `odd` says what is unusual about it, in words; `thumb` is its grey thumbnail, None where it is too small.
    """

    digest: bytes
    height: int
    width: int
    stored: str
    odd: tuple[str, ...]
    thumb: NDArray[np.uint8] | None


def look_at(sample: RawSample, limits: DecodeLimits) -> Look:
    """Decode an image as a whole and say what it is; DataError where it is broken."""
    content = sample.content
    if isinstance(content, bytes):
        header = check(content, name=sample.name, limits=limits)
        image_HWC = decode(content, name=sample.name, limits=limits)
        colours, odd = _stored(content, header)
        said = _ENDINGS.get(PurePosixPath(sample.name).suffix.lower())
        if said is not None and said != header.format:
            odd.append(f"{header.format} called {PurePosixPath(sample.name).suffix.lower()}")
        stored = f"{header.format}, {colours}"
    else:
        image_HWC, odd = content, []
        stored = f"pixels, {'grey' if content.shape[2] == 1 else 'colour'}"
    height, width = image_HWC.shape[:2]
    return Look(
        digest=digest(content),
        height=height,
        width=width,
        stored=stored,
        odd=tuple(odd),
        thumb=thumbnail(image_HWC) if min(height, width) >= SIDE else None,
    )


def _stored(content: bytes, header: Header) -> tuple[str, list[str]]:
    """The colours of a sound image, and what is odd about them, from its own headers."""
    odd: list[str] = []
    match header.format:
        case "jpeg":
            assert header.jpeg is not None
            colours = _JPEG_COLOURS.get(header.jpeg.components, f"{header.jpeg.components} components")
            if colours == "CMYK":
                odd.append("CMYK")
            exif = header.jpeg.exif
        case "png":
            colours, exif = _png(content, odd)
        case "webp":
            colours, exif = _webp(content, odd)
        case "gif":
            colours, exif = "palette", b""
            with GifImagePlugin.GifImageFile(io.BytesIO(content)) as image:
                if "transparency" in image.info:
                    odd.append("transparent")
                if image.n_frames > 1:
                    odd.append("animated")
        case _:
            colours, exif = "colour", b""
    if (orientation := orientation_of(exif)) != 1:
        odd.append(f"turned by EXIF ({orientation})")
    return colours, odd


def _png(content: bytes, odd: list[str]) -> tuple[str, bytes]:
    depth, kind = content[24], content[25]
    chunks = _png_chunks(content)
    if depth == 16:
        odd.append("16 bits")
    if kind in _PNG_WITH_OPACITY or b"tRNS" in chunks:
        odd.append("transparent")
    if b"acTL" in chunks:
        odd.append("animated")
    return _PNG_COLOURS.get(kind, "colour"), chunks.get(b"eXIf", b"")


def _png_chunks(content: bytes) -> dict[bytes, bytes]:
    """The chunks by type; of those of one type the last."""
    chunks = {}
    place = 8
    while place + 8 <= len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        kind = content[place + 4 : place + 8]
        chunks[kind] = b"" if kind == b"IDAT" else content[place + 8 : place + 8 + length]
        place += length + 12
    return chunks


def _webp(content: bytes, odd: list[str]) -> tuple[str, bytes]:
    exif = b""
    if content[12:16] == b"VP8X":
        flags = content[20]
        if flags & 0x10:
            odd.append("transparent")
        if flags & 0x02:
            odd.append("animated")
        if flags & 0x08 and (place := content.find(b"EXIF", 30)) >= 0:
            exif = content[place + 8 :].removeprefix(b"Exif\0\0")
    elif content[12:16] == b"VP8L" and content[24] & 0x10:  # the bit after the two sizes of 14 bits
        odd.append("transparent")
    return "colour", exif


# Which images of a data set are the same, byte for byte or nearly, and whether that crosses its splits or its labels.


def exact_twins(looks: Sequence[Look | None], images: Sequence[Image]) -> list[Twins]:
    """Groups of images with the same content."""
    same: dict[bytes, list[int]] = defaultdict(list)
    for index, look in enumerate(looks):
        if look is not None:
            same[look.digest].append(index)
    return [_twins(members, images, likeness=1.0, exact=True) for members in same.values() if len(members) > 1]


def near_twins(looks: Sequence[Look | None], images: Sequence[Image], *, progress: ProgressCallback = silent) -> list[Twins]:
    """Groups of images that are not the same bytes and show nearly the same; of identical files the first stands for all.

    Images too small for a thumbnail, and those with nothing to be seen in them, are left out.
    """
    seen: set[bytes] = set()
    members, thumbs = [], []
    for index, look in enumerate(looks):
        if look is not None and look.thumb is not None and look.digest not in seen:
            seen.add(look.digest)
            members.append(index)
            thumbs.append(look.thumb)
    if len(thumbs) < 2:
        return []
    thumb_NHW = np.stack(thumbs)
    kept = np.flatnonzero(~is_flat(thumb_NHW))
    if len(kept) < 2:
        return []
    pairs = near_pairs(thumb_NHW[kept], progress=progress)
    return [
        _twins(
            [members[kept[place]] for place in group],
            images,
            likeness=min(pair.likeness for pair in within),
            mirrored=any(pair.mirrored for pair in within),
        )
        for group, within in _groups(pairs)
    ]


def _twins(
    members: Sequence[int], images: Sequence[Image], *, likeness: float, exact: bool = False, mirrored: bool = False
) -> Twins:
    group = tuple(images[index] for index in members)
    return Twins(
        exact=exact,
        likeness=likeness,
        mirrored=mirrored,
        leak=len({image.split for image in group if image.split is not None}) > 1,
        conflict=len({image.label for image in group if image.label is not None}) > 1,
        images=group,
    )


def _groups(pairs: Iterable[NearPair]) -> list[tuple[list[int], list[NearPair]]]:
    """Images that hang together by pairs, in order, with the pairs among them."""
    leader: dict[int, int] = {}

    def lead(place: int) -> int:
        while (above := leader.setdefault(place, place)) != place:
            leader[place] = leader[above]  # the way up gets shorter each time it is gone
            place = leader[above]
        return place

    listed = list(pairs)
    for pair in listed:
        one, other = sorted((lead(pair.first), lead(pair.second)))
        leader[other] = one
    within: dict[int, list[NearPair]] = defaultdict(list)
    for pair in listed:
        within[lead(pair.first)].append(pair)
    return [
        (sorted({place for pair in group for place in (pair.first, pair.second)}), group) for _, group in sorted(within.items())
    ]


_CHUNK = 32  # images looked at in one go
_TINY = 32  # pixels: a side below this, and below a quarter of the usual, is far too small
_ODD_SHAPE = 2.5  # times wider or narrower than is usual here


def check_dataset(
    spec: str,
    *,
    rule: SplitRule | None = None,
    limits: DecodeLimits | None = None,
    label_column: str | None = None,
    progress: ProgressCallback = silent,
) -> Report:
    """Look at every image of the data that `spec` names, in all its splits, and report.

    `rule` makes the splits of data that declares none, as it would for training; `limits` are those of the image gate. Every
    image is decoded as a whole. A folder that training would refuse is looked at as far as it goes.
    """
    dataset, faults = _open(spec, label_column)
    splits, notes = _splits(dataset, rule or SplitRule(), spec)
    images: list[Image] = []
    looks: list[Look | None] = []
    broken = []
    with closing(_looks(dataset, limits or DecodeLimits())) as seen:
        for index, (name, made) in enumerate(seen):
            images.append(Image(name=name, split=splits[index], label=_label(dataset, index)))
            looks.append(made if isinstance(made, Look) else None)
            if isinstance(made, str):
                broken.append(Broken(image=images[index], reason=made))
            progress("looking at images", index + 1, len(dataset))
    sizes = _sizes(looks)
    if small := sum(look is not None and look.thumb is None for look in looks):
        notes.append(f"{small:,} images are below 32 pixels, too small to be compared for near duplicates")
    return Report(
        data=spec,
        images=len(dataset),
        splits={split: splits.count(split) for split in SPLITS if split in splits},
        faults=tuple(faults),
        broken=tuple(broken),
        twins=(*exact_twins(looks, images), *near_twins(looks, images, progress=progress)),
        classes=_classes(dataset, splits),
        sizes=sizes,
        stored=dict(Counter(look.stored for look in looks if look is not None).most_common()),
        odd=tuple(_odd(looks, images)),
        notes=(*(dataset.notes if isinstance(dataset, ImageDataset) else ()), *notes),
    )


class _Collected(Faults):
    """Keeps the faults of a folder for the report, where others stop at them."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.faults: list[Fault] = []

    def add(self, place: str, reason: str) -> None:
        """Remember a fault."""
        super().add(place, reason)
        self.faults.append(Fault(place=place, reason=reason))

    def raise_any(self, *, hint: str | None = None) -> None:
        """Continue in spite of the faults."""


def _open(spec: str, label_column: str | None) -> tuple[Dataset, list[Fault]]:
    """All images of the data, and for a folder that would be refused everything that is wrong with it."""
    try:
        return open_dataset(spec, split="all", label_column=label_column), []
    except DataError as refusal:
        root = _refused_folder(spec)
        if root is None:
            raise
        collected, left_out = _Collected(spec), LeftOut()
        names, folders = walk_images(root, collected, left_out)
        contents = DiskContents(root, names)
        try:
            dataset = class_folders(contents, names, where=spec, faults=collected, left_out=left_out, folders=folders)
        except DataError:
            raise refusal from None  # there is nothing in it to look at
        return dataset, collected.faults


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


def _splits(dataset: Dataset, rule: SplitRule, where: str) -> tuple[list[str | None], list[str]]:
    """The split of each image, as the data declares it or else as the rule makes it, and what there is to say about that."""
    if not isinstance(dataset, ImageDataset):
        return [None] * len(dataset), []
    codes, notes = dataset.splits, []
    if set(codes.tolist()) == {UNDECLARED}:
        try:
            codes = assign_splits(dataset.digests(), dataset.table, rule, labels=dataset.labels, where=where)
            notes.append("it declares no splits: these are the ones that training would make by the hash of each image")
        except DataError as refusal:
            first, *others = refusal.message.split("; ")
            notes.append(f"no splits can be made of it: {first}{'; and so on' if others else ''}")
    return [None if code == UNDECLARED else SPLITS[code] for code in codes.tolist()], notes


def _looks(dataset: Dataset, limits: DecodeLimits) -> Generator[tuple[str, Look | str], None, None]:
    """The name of each image in order, with what it is or why it cannot be decoded; looked at by several threads."""

    def look(indices: range) -> list[tuple[str, Look | str]]:
        return [_look(dataset, index, limits) for index in indices]

    with closing(prefetched(look, chunks(len(dataset), _CHUNK))) as ready:  # decoding releases the interpreter's lock
        for looks in ready:
            yield from looks


def _look(dataset: Dataset, index: int, limits: DecodeLimits) -> tuple[str, Look | str]:
    name = dataset.name(index) if isinstance(dataset, ImageDataset) else ""
    try:
        sample = dataset.read(index)
        return sample.name, look_at(sample, limits)
    except DataError as error:
        return name, error.message


def _label(dataset: Dataset, index: int) -> str | None:
    label = dataset.label(index)
    if isinstance(label, tuple):
        return ", ".join(dataset.labels[code] for code in label)
    return None if label is None else dataset.labels[label]


def _classes(dataset: Dataset, splits: Sequence[str | None]) -> tuple[ClassCount, ...]:
    """The images of each class, in each split that has labels."""
    counts: Counter[tuple[int, str | None]] = Counter()
    for index, split in enumerate(splits):
        label = dataset.label(index)
        for code in label if isinstance(label, tuple) else () if label is None else (label,):
            counts[code, split] += 1
    present = [split for split in SPLITS if any(found == split for _, found in counts)]
    return tuple(
        ClassCount(
            label=name,
            total=sum(counts[code, split] for split in (*SPLITS, None)),
            splits={split: counts[code, split] for split in present},
        )
        for code, name in enumerate(dataset.labels)
    )


def _sizes(looks: Sequence[Look | None]) -> Sizes | None:
    sound = [look for look in looks if look is not None]
    if not sound:
        return None
    return Sizes(height=_spread([look.height for look in sound]), width=_spread([look.width for look in sound]))


def _spread(numbers: Sequence[int]) -> Spread:
    return Spread(least=min(numbers), median=int(np.median(numbers)), most=max(numbers))


def _odd(looks: Sequence[Look | None], images: Sequence[Image]) -> Iterator[Odd]:
    """What is unusual: in itself, or beside the others."""
    sound = [look for look in looks if look is not None]
    if not sound:
        return
    usual_side = float(np.median([min(look.height, look.width) for look in sound]))
    usual_shape = float(np.median([look.width / look.height for look in sound]))
    for look, image in zip(looks, images, strict=True):
        if look is None:
            continue
        for what in look.odd:
            yield Odd(image=image, what=what)
        if min(look.height, look.width) < min(_TINY, usual_side / 4):
            yield Odd(image=image, what="far smaller than the others")
        elif not 1 / _ODD_SHAPE <= look.width / look.height / usual_shape <= _ODD_SHAPE:
            yield Odd(image=image, what="far wider or narrower than the others")
        if look.thumb is not None and is_flat(look.thumb[None])[0]:
            yield Odd(image=image, what="of one colour, with nothing to be seen")
