"""Quality checks of a dataset: broken images, duplicates, leaks between splits, class counts and image sizes.

report = check_dataset("pets/")
report.problems()          # what should be repaired before training
"""

from __future__ import annotations

import io
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import GifImagePlugin

from vitlab.config.data import DecodeLimits, ImageFormat, SplitRule
from vitlab.config.serialize import to_json
from vitlab.data.dataset import IGNORED, SPLITS, UNDECLARED, Dataset, Faults, ImageBoxes, ImageDataset, RawSample
from vitlab.data.decode import CHANNELS, Header, check, decode, has_pages, open_numbers, tiff_numbers
from vitlab.data.duplicates import SIDE, NearPair, is_flat, near_pairs, thumbnail
from vitlab.data.jpeg import orientation_of
from vitlab.data.opening import open_dataset
from vitlab.data.readers.boxes import open_boxes
from vitlab.data.readers.folder import DiskContents, LeftOut, class_folders, walk_images
from vitlab.data.readers.masks import open_masks
from vitlab.data.readers.recognise import parse_spec
from vitlab.data.split import assign_splits
from vitlab.errors import DataError
from vitlab.io.digests import digest
from vitlab.io.display import Block, Displayed, ProgressCallback, printable, silent
from vitlab.io.machine import chunks, prefetched

ProblemKind = Literal["layout", "broken", "mask", "box", "leak", "conflict", "duplicate", "empty class", "missing class"]

_UNBALANCED = 10.0  # images of the largest class over those of the smallest


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image: its name, its split and its label or labels as text, each None if there is none."""

    name: str
    split: str | None
    label: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault in the layout of the data, because of which training would refuse it."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """An image that cannot be decoded, and why."""

    image: Image
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """A group of duplicates: `exact` copies, or near duplicates, with the lowest correlation of two of their thumbnails.

    `mirrored`: some are mirror images; `leak`: they are in different splits; `conflict`: their labels differ.
    """

    exact: bool
    likeness: float
    mirrored: bool
    leak: bool
    conflict: bool
    images: tuple[Image, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount:
    """The number of images of a class, in total and per split."""

    label: str
    total: int
    splits: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Minimum, median and maximum of some numbers."""

    least: int
    median: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the readable images, in pixels, upright."""

    height: Spread
    width: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """An image that can be read but is unusual, and why."""

    image: Image
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something to repair: its kind, its count, and one sentence."""

    kind: ProblemKind
    count: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of all checks. `splits` and `stored` (format, colours) count images; `sizes` is None without readable images.

    `masks` are images whose mask is broken or does not fit, `boxes` images with a box that is empty or outside of the image.
    """

    data: str
    images: int
    splits: dict[str, int]
    faults: tuple[Fault, ...]
    broken: tuple[Broken, ...]
    duplicates: tuple[Duplicates, ...]
    classes: tuple[ClassCount, ...]
    sizes: Sizes | None
    stored: dict[str, int]
    odd: tuple[Odd, ...]
    notes: tuple[str, ...]
    masks: tuple[Broken, ...] = ()
    boxes: tuple[Broken, ...] = ()

    @property
    def imbalance(self) -> float | None:
        """Images of the largest class over those of the smallest non-empty one; None with fewer than two classes."""
        counts = [entry.total for entry in self.classes if entry.total]
        return max(counts) / min(counts) if len(counts) > 1 else None

    def problems(self) -> list[Problem]:
        """What should be repaired before training, the most severe first."""
        leaks = [group for group in self.duplicates if group.leak]
        near_leaks = sum(not group.exact for group in leaks)
        within = [group for group in self.duplicates if group.exact and not group.leak]
        gone = [(entry.label, split) for entry in self.classes if entry.total for split, count in entry.splits.items() if not count]
        found: list[tuple[ProblemKind, int, str]] = [
            ("layout", len(self.faults), "fault[s] in the layout, for which training would refuse the data"),
            ("broken", len(self.broken), "image[s] cannot be decoded"),
            ("mask", len(self.masks), "mask[s] with values without a class, of another size than the image, or broken"),
            ("box", len(self.boxes), "image[s] with boxes that are empty, reach outside of the image, or are for another size"),
            ("leak", len(leaks), f"group[s] of the same image in more than one split ({near_leaks:,} of them near duplicates)"),
            ("conflict", sum(group.conflict for group in self.duplicates), "group[s] of the same image with different labels"),
            ("duplicate", len(within), "group[s] of identical files within one split"),
            ("empty class", sum(not entry.total for entry in self.classes), "class[es] without an image"),
            ("missing class", len(gone), "case[s] of a class without an image in a split"),
        ]
        return [Problem(kind=kind, count=count, text=_counted(count, text)) for kind, count, text in found if count]

    def remarks(self) -> list[str]:
        """Observations that are not necessarily problems, one sentence each."""
        text = []
        near = [group for group in self.duplicates if not group.exact and not group.leak]
        if near:
            mirrored = sum(group.mirrored for group in near)
            text.append(_counted(len(near), f"group[s] of near duplicates within one split ({mirrored:,} of them mirrored)"))
        if self.imbalance is not None and self.imbalance >= _UNBALANCED:
            text.append(f"the largest class has {self.imbalance:.0f} times as many images as the smallest")
        kinds = Counter(odd.what for odd in self.odd)
        text.extend(f"{count:,} {'image is' if count == 1 else 'images are'} {what}" for what, count in kinds.most_common())
        colours = Counter[str]()
        for stored, count in self.stored.items():
            colours["grey" if stored.endswith("grey") else "other" if stored.endswith("channels") else "colour"] += count
        if colours["grey"] and colours["colour"]:
            text.append(f"{_counted(colours['grey'], 'image[s]')} in grey and {colours['colour']:,} in colour")
        return [*text, *self.notes]


_IF_SEVERAL, _KEPT = re.compile(r"\[(\w+)\]"), r"\1"


def _counted(count: int, text: str) -> str:
    """`text` with its number; what stands in brackets is left out for one."""
    return f"{count:,} {_IF_SEVERAL.sub('' if count == 1 else _KEPT, text)}"


_ENDINGS: dict[str, ImageFormat] = {
    ".jpg": "jpeg", ".jpeg": "jpeg", ".jpe": "jpeg", ".jfif": "jpeg", ".png": "png", ".webp": "webp", ".bmp": "bmp",
    ".gif": "gif", ".tif": "tiff", ".tiff": "tiff", ".npy": "npy", ".dcm": "dicom", ".dicom": "dicom",
}  # fmt: skip
_DEEP = "16 bits"
_PAGES = "of several pages, of which the first is read"
_CHANNELS_FIRST = "of more channels than rows, as if saved as [channels, height, width]"
_DARK = 64  # levels of 8 bits: a quarter of them
_PNG_COLOURS = {0: "grey", 2: "colour", 3: "palette", 4: "grey", 6: "colour"}
_PNG_WITH_OPACITY = (4, 6)
_JPEG_COLOURS = {1: "grey", 3: "colour", 4: "CMYK"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """Facts about an image that could be decoded.

    `digest` is the hash of its content; `height` and `width` are in pixels, upright; `stored` is its format and colours
    (`jpeg, colour`); `channels` is 3 for grey and colour images, or another number; `odd` says what is unusual; `thumb` is its grey
    thumbnail, None if the image is too small. `classes` are those of its mask or boxes, and `mask_fault` and `box_fault` say what
    is wrong with these.
    """

    digest: bytes
    height: int
    width: int
    channels: int
    stored: str
    odd: tuple[str, ...]
    thumb: NDArray[np.uint8] | None
    classes: tuple[int, ...] = ()
    mask_fault: str | None = None
    box_fault: str | None = None


def image_facts(sample: RawSample, limits: DecodeLimits) -> ImageFacts:
    """Decode a whole image, and its mask if it has one, and describe it; DataError if the image is broken."""
    content = sample.content
    if isinstance(content, bytes):
        header = check(content, name=sample.name, limits=limits)
        image_HWC = decode(content, name=sample.name, limits=limits, channels=None, scale="percentile")
        colours, odd = _stored(content, header, sample.name, limits)
        if _DEEP in odd and int(decode(content, name=sample.name, limits=limits, channels=None).max()) < _DARK:
            odd.append("almost black, in the lowest quarter of 16 bits, unless the pixel scale is percentile or file")
        if (channels := image_HWC.shape[2]) != 3:
            colours = f"{channels} channels"
        text = _ENDINGS.get(PurePosixPath(sample.name).suffix.lower())
        if text is not None and text != header.format:
            odd.append(f"{header.format} called {PurePosixPath(sample.name).suffix.lower()}")
        stored = f"{header.format}, {colours}"
    else:
        image_HWC, odd = content, []
        channels = content.shape[2]
        stored = f"pixels, {'grey' if channels == 1 else 'colour' if channels in CHANNELS else f'{channels} channels'}"
    height, width = image_HWC.shape[:2]
    classes: tuple[int, ...] = ()
    mask_fault: str | None = None
    if sample.mask is not None:
        try:
            classes_HW = sample.mask.classes((height, width), limits=limits)
            classes = tuple(code for code in np.unique(classes_HW).tolist() if code != IGNORED)
            odd += [] if classes else ["without a pixel that counts"]
        except DataError as error:
            mask_fault = error.message
    if sample.boxes is not None:
        classes = tuple(np.unique(sample.boxes.codes_M).tolist())
        odd += [] if classes else ["without a box"]
    return ImageFacts(
        digest=digest(content),
        height=height,
        width=width,
        channels=3 if channels in CHANNELS else channels,
        stored=stored,
        odd=tuple(odd),
        thumb=thumbnail(image_HWC) if min(height, width) >= SIDE else None,
        classes=classes,
        mask_fault=mask_fault,
        box_fault=None if sample.boxes is None else _box_fault(sample.name, sample.boxes, (height, width)),
    )


_OVER_THE_EDGE = 1.0  # pixels by which a box may reach over the edge of its image: tools round


def _box_fault(name: str, boxes: ImageBoxes, size: tuple[int, int]) -> str | None:
    """What is wrong with the boxes of an image of (height, width) `size`, or None."""
    height, width = size
    if boxes.size not in ((0, 0), size):
        return f"{name}: its boxes are for an image of {boxes.size[0]}x{boxes.size[1]}, and it is {height}x{width}"
    for number, corners in enumerate(boxes.corners_M4.tolist(), start=1):
        left, top, right, bottom = corners
        where = f"{name}: box {number} ({', '.join(f'{edge:g}' for edge in corners)})"
        if right <= left or bottom <= top:
            return f"{where} has no area"
        if right <= 0 or bottom <= 0 or left >= width or top >= height:
            return f"{where} is outside of the image, which is {height}x{width}"
        if max(-left, -top, right - width, bottom - height) > _OVER_THE_EDGE:
            return f"{where} reaches over the edge of the image, which is {height}x{width}"
    return None


def _stored(content: bytes, header: Header, name: str, limits: DecodeLimits) -> tuple[str, list[str]]:
    """The colours of an image, and what is unusual, from its headers."""
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
                try:
                    animated = image.is_animated
                except (IndexError, struct.error):  # Pillow's answers to a damaged second frame; the first one is what is read
                    animated = True
                if animated:
                    odd.append("animated")
        case "tiff":
            bits, grey = tiff_numbers(content)
            colours, exif = "grey" if grey else "colour", b""
            odd += [_DEEP] if bits == 16 else []
            odd += [_PAGES] if has_pages(content) else []
        case "npy" | "dicom":
            stored = open_numbers(content, header, name=name, limits=limits)
            colours, exif = "grey" if stored.channels == 1 else "colour", b""
            odd += [_DEEP] if stored.bits == 16 else []
            odd += [_CHANNELS_FIRST] if stored.channels > stored.height else []
        case "bmp":
            colours, exif = "colour", b""
    if (orientation := orientation_of(exif)) != 1:
        odd.append(f"turned by EXIF ({orientation})")
    return colours, odd


def _png(content: bytes, odd: list[str]) -> tuple[str, bytes]:
    depth, kind = content[24], content[25]
    chunks = _png_chunks(content)
    if depth == 16:
        odd.append(_DEEP)
    if kind in _PNG_WITH_OPACITY or b"tRNS" in chunks:
        odd.append("transparent")
    if b"acTL" in chunks:
        odd.append("animated")
    return _PNG_COLOURS.get(kind, "colour"), chunks.get(b"eXIf", b"")


def _png_chunks(content: bytes) -> dict[bytes, bytes]:
    """The chunks by type; the last one of each type."""
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


def exact_duplicates(facts: Sequence[ImageFacts | None], images: Sequence[Image]) -> list[Duplicates]:
    """Groups of images with the same content."""
    same: dict[bytes, list[int]] = defaultdict(list)
    for index, one in enumerate(facts):
        if one is not None:
            same[one.digest].append(index)
    return [_duplicates(members, images, likeness=1.0, exact=True) for members in same.values() if len(members) > 1]


def near_duplicates(
    facts: Sequence[ImageFacts | None], images: Sequence[Image], *, progress: ProgressCallback = silent
) -> list[Duplicates]:
    """Groups of images with different bytes that look nearly the same; one of each group of identical files is compared.

    Images that are too small for a thumbnail, or of one colour, are ignored.
    """
    seen: set[bytes] = set()
    members, thumbs = [], []
    for index, one in enumerate(facts):
        if one is not None and one.thumb is not None and one.digest not in seen:
            seen.add(one.digest)
            members.append(index)
            thumbs.append(one.thumb)
    if len(thumbs) < 2:
        return []
    thumb_NHW = np.stack(thumbs)
    kept = np.flatnonzero(~is_flat(thumb_NHW))
    if len(kept) < 2:
        return []
    pairs = near_pairs(thumb_NHW[kept], progress=progress)
    return [
        _duplicates(
            [members[kept[place]] for place in group],
            images,
            likeness=min(pair.likeness for pair in within),
            mirrored=any(pair.mirrored for pair in within),
        )
        for group, within in _groups(pairs)
    ]


def _duplicates(
    members: Sequence[int], images: Sequence[Image], *, likeness: float, exact: bool = False, mirrored: bool = False
) -> Duplicates:
    group = tuple(images[index] for index in members)
    return Duplicates(
        exact=exact,
        likeness=likeness,
        mirrored=mirrored,
        leak=len({image.split for image in group if image.split is not None}) > 1,
        conflict=len({image.label for image in group if image.label is not None}) > 1,
        images=group,
    )


def _groups(pairs: Iterable[NearPair]) -> list[tuple[list[int], list[NearPair]]]:
    """Images that are connected by pairs, in order, with these pairs (union-find)."""
    leader: dict[int, int] = {}

    def lead(place: int) -> int:
        while (above := leader.setdefault(place, place)) != place:
            leader[place] = leader[above]  # shortens the path for the next time
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


_CHUNK = 32  # images checked at a time
_TINY = 32  # pixels; a side below this and below a quarter of the median is unusually small
_ODD_SHAPE = 2.5  # times wider or narrower than the median


def check_dataset(
    spec: str,
    *,
    rule: SplitRule | None = None,
    limits: DecodeLimits | None = None,
    label_column: str | None = None,
    progress: ProgressCallback = silent,
) -> Report:
    """Check every image of all splits of a dataset.

    `rule` makes splits if the data declares none, as for training; `limits` are those of decoding. Every image is decoded
    completely. A folder that training would refuse is checked as far as possible.
    """
    dataset, faults = _open(spec, label_column)
    splits, notes = _splits(dataset, rule or SplitRule(), spec)
    images: list[Image] = []
    facts: list[ImageFacts | None] = []
    broken = []
    with closing(_all_facts(dataset, limits or DecodeLimits())) as seen:
        for index, (name, made) in enumerate(seen):
            images.append(Image(name=name, split=splits[index], label=_label(dataset, index)))
            facts.append(made if isinstance(made, ImageFacts) else None)
            if isinstance(made, str):
                broken.append(Broken(image=images[index], reason=made))
            progress("checking images", index + 1, len(dataset))
    sizes = _sizes(facts)
    if small := sum(one is not None and one.thumb is None for one in facts):
        notes.append(f"{small:,} images are below 32 pixels, too small for the search for near duplicates")
    return Report(
        data=spec,
        images=len(dataset),
        splits={split: splits.count(split) for split in SPLITS if split in splits},
        faults=tuple(faults),
        broken=tuple(broken),
        duplicates=(*exact_duplicates(facts, images), *near_duplicates(facts, images, progress=progress)),
        classes=_classes(dataset, splits, facts),
        sizes=sizes,
        stored=dict(Counter(one.stored for one in facts if one is not None).most_common()),
        odd=tuple(_odd(facts, images)),
        notes=(*(dataset.notes if isinstance(dataset, ImageDataset) else ()), *notes),
        masks=tuple(
            Broken(image=image, reason=one.mask_fault)
            for image, one in zip(images, facts, strict=True)
            if one is not None and one.mask_fault is not None
        ),
        boxes=tuple(
            Broken(image=image, reason=one.box_fault)
            for image, one in zip(images, facts, strict=True)
            if one is not None and one.box_fault is not None
        ),
    )


class _Collected(Faults):
    """Collects the faults of a folder for the report, and raises none."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.faults: list[Fault] = []

    def add(self, place: str, reason: str) -> None:
        """Record a fault."""
        super().add(place, reason)
        self.faults.append(Fault(place=place, reason=reason))

    def raise_any(self, *, hint: str | None = None) -> None:
        """Continue in spite of the faults."""


def _open(spec: str, label_column: str | None) -> tuple[Dataset, list[Fault]]:
    """All images of the data, and the faults of a folder that training would refuse."""
    try:
        return open_dataset(spec, split="all", label_column=label_column), []
    except DataError as refusal:
        root = _refused_folder(spec)
        if root is None:
            return _open_refused_targets(spec, refusal)
        collected, left_out = _Collected(spec), LeftOut()
        names, folders = walk_images(root, collected, left_out)
        contents = DiskContents(root, names)
        try:
            dataset = class_folders(contents, names, where=spec, faults=collected, left_out=left_out, folders=folders)
        except DataError:
            raise refusal from None  # there is nothing to check
        return dataset, collected.faults


def _open_refused_targets(spec: str, refusal: DataError) -> tuple[Dataset, list[Fault]]:
    """Images with masks or boxes of which some have no partner; `refusal` is raised for any other data."""
    try:
        reader, place = parse_spec(spec)
    except DataError:
        raise refusal from None
    if reader not in ("masks", "boxes"):
        raise refusal
    collected, opener = _Collected(spec), open_masks if reader == "masks" else open_boxes
    return opener(Path(place).expanduser(), faults=collected), collected.faults


def _refused_folder(spec: str) -> Path | None:
    """The folder of class folders, or None if the data has another reader."""
    if not spec:
        return None
    try:
        reader, place = parse_spec(spec)
    except DataError:
        return None
    root = Path(place).expanduser()
    return root if reader == "folder" and root.is_dir() else None


def _splits(dataset: Dataset, rule: SplitRule, where: str) -> tuple[list[str | None], list[str]]:
    """The split of each image, as the data declares it or as the rule makes it, and notes."""
    if not isinstance(dataset, ImageDataset):
        return [None] * len(dataset), []
    codes, notes = dataset.splits, []
    if set(codes.tolist()) == {UNDECLARED}:
        try:
            codes = assign_splits(dataset.digests(), dataset.table, rule, labels=dataset.labels, where=where)
            notes.append("the data declares no splits: these are the ones that training would make")
        except DataError as refusal:
            first, *others = refusal.message.split("; ")
            notes.append(f"no splits can be made of it, so training would refuse it: {first}{'; and so on' if others else ''}")
    return [None if code == UNDECLARED else SPLITS[code] for code in codes.tolist()], notes


def _all_facts(dataset: Dataset, limits: DecodeLimits) -> Generator[tuple[str, ImageFacts | str], None, None]:
    """The name of each image in order, with its facts or the reason why it cannot be decoded; several threads work on it."""

    def one(indices: range) -> list[tuple[str, ImageFacts | str]]:
        return [_facts_of(dataset, index, limits) for index in indices]

    with closing(prefetched(one, chunks(len(dataset), _CHUNK))) as ready:  # decoding releases the interpreter's lock
        for facts in ready:
            yield from facts


def _facts_of(dataset: Dataset, index: int, limits: DecodeLimits) -> tuple[str, ImageFacts | str]:
    name = dataset.name(index) if isinstance(dataset, ImageDataset) else ""
    try:
        sample = dataset.read(index)
        return sample.name, image_facts(sample, limits)
    except DataError as error:
        return name, error.message


def _label(dataset: Dataset, index: int) -> str | None:
    label = dataset.label(index)
    if isinstance(label, tuple):
        return ", ".join(dataset.labels[code] for code in label)
    return None if label is None else dataset.labels[label]


def _classes(dataset: Dataset, splits: Sequence[str | None], facts: Sequence[ImageFacts | None]) -> tuple[ClassCount, ...]:
    """The images of each class, in each split that has labels; of masks and boxes, the images with a pixel or object of it."""
    counts: Counter[tuple[int, str | None]] = Counter()
    for index, (split, made) in enumerate(zip(splits, facts, strict=True)):
        label = dataset.label(index)
        in_mask = () if made is None else made.classes
        for code in label if isinstance(label, tuple) else in_mask if label is None else (label,):
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


def _sizes(facts: Sequence[ImageFacts | None]) -> Sizes | None:
    sound = [one for one in facts if one is not None]
    if not sound:
        return None
    return Sizes(height=_spread([one.height for one in sound]), width=_spread([one.width for one in sound]))


def _spread(numbers: Sequence[int]) -> Spread:
    return Spread(least=min(numbers), median=int(np.median(numbers)), most=max(numbers))


def _odd(facts: Sequence[ImageFacts | None], images: Sequence[Image]) -> Iterator[Odd]:
    """What is unusual about images, by themselves or compared with the others."""
    sound = [one for one in facts if one is not None]
    if not sound:
        return
    usual_side = float(np.median([min(one.height, one.width) for one in sound]))
    usual_shape = float(np.median([one.width / one.height for one in sound]))
    usual_channels = Counter(one.channels for one in sound).most_common(1)[0][0]
    for one, image in zip(facts, images, strict=True):
        if one is None:
            continue
        if one.channels != usual_channels:
            words = "grey or colour" if one.channels == 3 else f"of {one.channels} channels"
            most = "grey or colour" if usual_channels == 3 else f"of {usual_channels} channels"
            yield Odd(image=image, what=f"{words}, while most are {most}")
        for what in one.odd:
            yield Odd(image=image, what=what)
        if min(one.height, one.width) < min(_TINY, usual_side / 4):
            yield Odd(image=image, what="far smaller than the others")
        elif not 1 / _ODD_SHAPE <= one.width / one.height / usual_shape <= _ODD_SHAPE:
            yield Odd(image=image, what="far wider or narrower than the others")
        if one.thumb is not None and is_flat(one.thumb[None])[0]:
            yield Odd(image=image, what="of one colour")


# --- as a table and as JSON ---------------------------------------------------------------------------------------------------

_MEMBERS = 4  # images of a group that are printed


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DataCheck(Displayed):
    """What was found in a dataset: `report` has everything, `problems` what should be repaired before training.

    At most `shown` findings of each kind are printed.
    """

    report: Report
    shown: int = 10

    @property
    def problems(self) -> list[str]:
        """What should be repaired before training, the gravest first, a sentence each."""
        return [problem.text for problem in self.report.problems()]

    def to_json(self) -> dict[str, Any]:
        """The whole report, its problems and remarks first."""
        report = self.report
        everything = to_json(report)
        assert isinstance(everything, dict)
        problems = [to_json(problem) for problem in report.problems()]
        return {"problems": problems, "remarks": report.remarks(), "imbalance": report.imbalance, **everything}

    def tables(self) -> Iterable[Block]:
        """What is there, what is wrong, and the first findings of each kind."""
        report = self.report
        problems = report.problems()
        leaks = [group for group in report.duplicates if group.leak]
        conflicts = [group for group in report.duplicates if group.conflict and not group.leak]
        within = [group for group in report.duplicates if not group.leak and not group.conflict]
        yield _facts(report)
        yield from _lines("problems" if problems else "no problems", [f"{problem.kind}: {problem.text}" for problem in problems])
        yield from _lines("remarks", report.remarks(), empty=False)
        yield from self._section("faults", [f"{fault.place}: {fault.reason}" for fault in report.faults])
        yield from self._section("broken images", [broken.reason for broken in report.broken])
        yield from self._section("masks", [broken.reason for broken in report.masks])
        yield from self._section("boxes", [broken.reason for broken in report.boxes])
        yield from self._section("leaks between splits", [_group(group) for group in leaks])
        yield from self._section("the same image with different labels", [_group(group) for group in conflicts])
        yield from self._section("duplicates within a split", [_group(group) for group in within])
        yield from self._section("odd images", _odd_images(report.odd))
        yield from _lines("classes", self._classes(), empty=False)

    def _section(self, title: str, lines: Sequence[str]) -> Iterable[Block]:
        if not lines or not self.shown:
            return
        more = [f"and {len(lines) - self.shown:,} more (JSON has all)"] if len(lines) > self.shown else []
        yield from _lines(title, [*lines[: self.shown], *more])

    def _classes(self) -> list[str]:
        """The smallest and the largest classes, or all if they are few."""
        ordered = sorted(self.report.classes, key=lambda entry: (entry.total, entry.label))
        lines = [f"{entry.total:,}  {entry.label}" + (f"  ({_counts(entry.splits)})" if entry.splits else "") for entry in ordered]
        if len(lines) <= 2 * self.shown:
            return lines
        return [*lines[: self.shown], f"... {len(lines) - 2 * self.shown:,} more ...", *lines[-self.shown :]] if self.shown else []


def _lines(title: str, lines: Sequence[str], *, empty: bool = True) -> Iterable[Block]:
    if lines or empty:
        yield "\n".join([title, *(f"  {printable(line)}" for line in lines)])


def _facts(report: Report) -> dict[str, Any]:
    splits = f" ({_counts(report.splits)})" if report.splits else ""
    facts: dict[str, Any] = {"data": report.data, "images": f"{report.images:,}{splits}"}
    counts = [entry.total for entry in report.classes]
    if counts:
        ratio = "" if report.imbalance is None else f", ratio {report.imbalance:.3g}"
        facts["classes"] = f"{len(counts):,}: {min(counts):,} to {max(counts):,} images each{ratio}"
    if report.sizes is not None:
        facts["sizes"] = f"height {_spread_text(report.sizes.height)}, width {_spread_text(report.sizes.width)} pixels"
    facts["stored"] = "; ".join(f"{kind}: {count:,}" for kind, count in report.stored.items()) or None
    return facts


def _counts(splits: dict[str, int]) -> str:
    return ", ".join(f"{split} {count:,}" for split, count in splits.items())


def _spread_text(spread: Spread) -> str:
    if spread.least == spread.most:
        return f"{spread.least:,}"
    return f"{spread.least:,} to {spread.most:,} (median {spread.median:,})"


def _group(group: Duplicates) -> str:
    how = "identical" if group.exact else f"{group.likeness:.3f} alike" + (", mirrored" if group.mirrored else "")
    more = f" = {len(group.images) - _MEMBERS:,} more" if len(group.images) > _MEMBERS else ""
    return f"{how}: {' = '.join(map(_image, group.images[:_MEMBERS]))}{more}"


def _odd_images(found: Sequence[Odd]) -> list[str]:
    """A line for each kind of oddity, with the names of its first images."""
    names = defaultdict[str, list[str]](list)
    for odd in found:
        names[odd.what].append(odd.image.name)
    return [
        f"{what}: {', '.join(each[:_MEMBERS])}" + (f" and {len(each) - _MEMBERS:,} more" if len(each) > _MEMBERS else "")
        for what, each in names.items()
    ]


def _image(image: Image) -> str:
    return f"{image.name} [{', '.join(word for word in (image.split, image.label) if word)}]"
