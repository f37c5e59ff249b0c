"""Datasets: images by number, with their labels.

`dataset[i]` is a decoded sample, so torch's DataLoader takes a dataset as it is. `dataset.read(i)` is the same sample before
decoding: vitlab's own loader decodes only what a transform needs. `vitlab.data.opening.open_dataset` opens any dataset.

Axes: N images, K classes kept of each, B rows of a batch, C classes.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import DecodeLimits
from vitlab.errors import DataError
from vitlab.io.digests import DIGEST_BYTES, Content, Digests
from vitlab.io.display import printable

Pixels = NDArray[np.uint8]
"""Pixels of an image, (H, W, C)."""

Label = int | tuple[int, ...] | None
"""One class, several classes of a multi-label dataset, or None if unknown."""

UNKNOWN = -1
"""The label of an image without a label, where labels are numbers."""

SPLITS = ("train", "val", "test")
UNDECLARED = -1
"""Instead of an index in SPLITS: the data does not say to which split an image belongs."""


class Sample(NamedTuple):
    """A decoded sample, in a form that torch's default_collate can batch.

    `image` is uint8 RGB pixels [height, width, 3], all channels of an image that has 2 or more than 4 (a TIFF file, an array), or
    what the dataset's transform returns. `label` is the class, -1 if
    unknown; in a multi-label dataset it is a float32 vector of zeros and ones over all classes; in a dataset with masks it is the
    class of each pixel, uint8 [height, width], 255 for a pixel that counts for nothing; in a dataset with boxes it is a row for
    each, float32: class, left, top, right and bottom in pixels, and 1 if it counts for nothing. `name` says where the image comes
    from.
    """

    image: Any
    label: int | NDArray[np.float32] | NDArray[np.uint8]
    name: str


IGNORED, UNDEFINED = 255, 254
"""Instead of a class in a mask: a pixel that counts for nothing, and a value that should not be there."""


class RawMask(Protocol):
    """A mask before decoding: an image file, or shapes that are drawn."""

    @property
    def name(self) -> str:
        """Where the mask comes from, for messages."""
        ...

    def classes(self, size: tuple[int, ...], *, limits: DecodeLimits) -> NDArray[np.uint8]:
        """The class of each pixel of an image of (height, width) `size`, uint8 [H, W], IGNORED where a pixel counts for nothing.

        DataError if the mask is broken, has another size, or a value without a class.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexMask:
    """A mask before decoding: the bytes of an image file whose values are numbers of classes.

    `class_of` has the class of each value from 0 to 255, or IGNORED, or UNDEFINED for a value that the data does not explain.
    """

    name: str
    content: bytes
    class_of: NDArray[np.uint8]

    def classes(self, size: tuple[int, ...], *, limits: DecodeLimits) -> NDArray[np.uint8]:
        """The class of each pixel, as in RawMask."""
        from vitlab.data.decode import decode_values  # opening a dataset needs no Pillow

        values_HW = decode_values(self.content, name=self.name, limits=limits)
        check_mask_size(self.name, values_HW.shape, size)
        classes_HW: NDArray[np.uint8] = self.class_of[values_HW]
        if (classes_HW == UNDEFINED).any():
            odd = np.unique(values_HW[classes_HW == UNDEFINED]).tolist()
            raise DataError(
                f"the mask {self.name} has the value {', '.join(map(str, odd[:5]))}, which is no class and is not ignored",
                hint="classes.txt or masks.json of the data says which values are classes",
            )
        return classes_HW


def check_mask_size(name: str, mask: tuple[int, ...], image: tuple[int, ...]) -> None:
    """DataError unless a mask has the (height, width) of its image."""
    if mask[:2] != image[:2]:
        raise DataError(
            f"the mask {name} is {mask[0]}x{mask[1]} and its image {image[0]}x{image[1]}", hint="a mask needs the size of its image"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageBoxes:
    """The boxes of an image: left, top, right and bottom in pixels, counted from its upper left corner, and the class of each.

    `ignored_M` marks what counts for nothing: crowds of COCO, difficult objects of VOC. `areas_M` is the area of each object in
    pixels, which COCO gives for its outline, else that of the box. `size` is the (height, width) that the data says the image has,
    (0, 0) if it does not say.
    """

    corners_M4: NDArray[np.float64]
    codes_M: NDArray[np.int32]
    ignored_M: NDArray[np.bool_]
    areas_M: NDArray[np.float64]
    size: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return len(self.codes_M)

    def rows(self) -> NDArray[np.float32]:
        """A row for each box: class, left, top, right, bottom, and 1 if it counts for nothing, else 0."""
        return np.concatenate([self.codes_M[:, None], self.corners_M4, self.ignored_M[:, None]], axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSample:
    """A sample before decoding: `content` is the bytes of an image file, or pixels (H, W, C).

    `mask` if its pixels have classes, `boxes` if its objects have.
    """

    name: str
    content: Content
    label: Label
    mask: RawMask | None = None
    boxes: ImageBoxes | None = None


class Dataset(Protocol):
    """Labelled images by number: what a loader needs. Picklable, and cheap to open again in another process."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; a label is an index in it. Empty if no image has a label."""
        ...

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several classes."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> RawSample:
        """The sample before decoding."""
        ...

    def label(self, index: int) -> Label:
        """The label, without reading the image."""
        ...

    def fingerprint(self) -> str:
        """A hash that changes when the images, their order or their labels change."""
        ...


class _Transformed(Dataset, Protocol):
    @property
    def transform(self) -> Callable[[Pixels], Any] | None: ...


if TYPE_CHECKING:  # for type checkers a dataset is one of torch's, so that DataLoader takes it; data needs no torch to run
    from torch.utils.data import Dataset as TorchDataset

    _MapStyleBase = TorchDataset[Sample]
else:
    _MapStyleBase = object


class MapStyle(_MapStyleBase):
    """Adds `dataset[i]`, the decoded sample, to a dataset with a `transform` (None, or a function of the pixels)."""

    __slots__ = ()

    def __repr__(self: _Transformed) -> str:
        return f"<{type(self).__name__}: {len(self):,} images, {len(self.labels):,} classes>"

    def __getitem__(self: _Transformed, index: int) -> Sample:
        """The decoded sample. A negative index counts from the end."""
        from vitlab.data.decode import CHANNELS, decode, fit_channels  # opening a dataset needs no Pillow

        raw = self.read(index if index >= 0 else index + len(self))
        image: Any
        if isinstance(raw.content, bytes):
            image = decode(raw.content, name=raw.name, channels=None)
        else:
            own = raw.content.shape[2] if raw.content.ndim == 3 else 1
            image = fit_channels(raw.content, 3 if own in CHANNELS else own, name=raw.name)
        size = image.shape[:2]
        if self.transform is not None:
            image = self.transform(image)
        if raw.mask is not None:
            return Sample(image=image, label=raw.mask.classes(size, limits=DecodeLimits()), name=raw.name)
        if raw.boxes is not None:
            return Sample(image=image, label=raw.boxes.rows(), name=raw.name)
        if not self.multi_label:
            return Sample(image=image, label=raw.label if isinstance(raw.label, int) else UNKNOWN, name=raw.name)
        hot_C = np.zeros(len(self.labels), np.float32)
        hot_C[list(raw.label) if isinstance(raw.label, tuple) else []] = 1
        return Sample(image=image, label=hot_C, name=raw.name)


class Contents(Protocol):
    """Images by number: a folder, an archive, an array. Picklable; it opens its files on first use."""

    def name(self, row: int) -> str:
        """Where an image comes from, for messages."""
        ...

    def read(self, row: int) -> Content:
        """The image file's bytes, or pixels (H, W, C)."""
        ...

    def digests(self, rows: NDArray[np.int64]) -> Digests:
        """The hash of each row's content, (len(rows), 16)."""
        ...


@runtime_checkable
class RemoteReadable(Protocol):
    """Contents that may be on a server, which is slow to answer and answers many requests at once."""

    def expect(self, rows: Sequence[int]) -> None:
        """Begin to read these rows, which will be asked for soon."""
        ...

    def versions(self, rows: NDArray[np.int64]) -> Digests | None:
        """As `digests`, by what the server says of each row, without reading it; None if the rows are on disk."""
        ...


def versions_of(contents: Contents, rows: NDArray[np.int64]) -> Digests | None:
    """What the server says of each row; None if the contents are on disk."""
    return contents.versions(rows) if isinstance(contents, RemoteReadable) else None


class Masks(Protocol):
    """The masks of a dataset, one for each of its images. Picklable."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> RawMask:
        """The mask of an image, before decoding."""
        ...

    def digests(self, indices: NDArray[np.int64]) -> Digests:
        """The hash of each mask's content."""
        ...

    def meaning(self) -> bytes:
        """What their values mean, for the fingerprint of a dataset."""
        ...

    def take(self, indices: NDArray[np.int64]) -> Masks:
        """The masks of these images, in this order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexMasks:
    """Masks that are image files: `rows` are their numbers in `contents`; `class_of` as in IndexMask."""

    contents: Contents
    rows: NDArray[np.int64]
    class_of: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> IndexMask:
        """The mask of an image, before decoding."""
        row = int(self.rows[index])
        content = self.contents.read(row)
        assert isinstance(content, bytes), "masks are image files"
        return IndexMask(name=self.contents.name(row), content=content, class_of=self.class_of)

    def digests(self, indices: NDArray[np.int64]) -> Digests:
        """The hash of each mask's content."""
        return self.contents.digests(self.rows[indices])

    def meaning(self) -> bytes:
        """The class of each value."""
        return self.class_of.tobytes()

    def take(self, indices: NDArray[np.int64]) -> IndexMasks:
        """The masks of these images, in this order."""
        return replace(self, rows=self.rows[indices])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Boxes:
    """The boxes of a dataset, in a few arrays: those of image i are `corners_M4[starts_N1[i] : starts_N1[i + 1]]` and so on."""

    starts_N1: NDArray[np.int64]
    corners_M4: NDArray[np.float64]
    codes_M: NDArray[np.int32]
    ignored_M: NDArray[np.bool_]
    areas_M: NDArray[np.float64]
    sizes_N2: NDArray[np.int32]

    @classmethod
    def joined(cls, images: Sequence[ImageBoxes]) -> Boxes:
        """The boxes of these images, in this order."""
        return cls(
            starts_N1=np.cumsum([0, *map(len, images)], dtype=np.int64),
            corners_M4=np.concatenate([np.zeros((0, 4)), *(one.corners_M4 for one in images)]),
            codes_M=np.concatenate([np.zeros(0, np.int32), *(one.codes_M for one in images)]),
            ignored_M=np.concatenate([np.zeros(0, np.bool_), *(one.ignored_M for one in images)]),
            areas_M=np.concatenate([np.zeros(0), *(one.areas_M for one in images)]),
            sizes_N2=np.array([one.size for one in images], np.int32).reshape(-1, 2),
        )

    def __len__(self) -> int:
        return len(self.starts_N1) - 1

    def __getitem__(self, index: int) -> ImageBoxes:
        own = slice(int(self.starts_N1[index]), int(self.starts_N1[index + 1]))
        height, width = self.sizes_N2[index].tolist()
        return ImageBoxes(
            corners_M4=self.corners_M4[own],
            codes_M=self.codes_M[own],
            ignored_M=self.ignored_M[own],
            areas_M=self.areas_M[own],
            size=(height, width),
        )

    def digests(self, indices: NDArray[np.int64]) -> Digests:
        """The hash of each image's boxes."""
        made = []
        for index in indices.tolist():
            one, hashed = self[index], blake2b(digest_size=DIGEST_BYTES)
            for values in (one.corners_M4, one.codes_M, one.ignored_M, one.areas_M):
                hashed.update(np.ascontiguousarray(values).data)
            made.append(hashed.digest())
        return np.frombuffer(b"".join(made), np.uint8).reshape(-1, DIGEST_BYTES)

    def take(self, indices: NDArray[np.int64]) -> Boxes:
        """The boxes of these images, in this order."""
        return Boxes.joined([self[index] for index in indices.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ImageDataset(MapStyle):
    """Images in a fixed order.

    `rows` are the images' numbers in `contents`; `table` holds their labels; `splits` holds, for each image, the index in SPLITS
    of the split that the data itself declares, or -1. `notes` are sentences about what was left out or decided.
    `soft` are soft labels, which training uses if they are given; `table` then holds the likeliest class of each image.
    `masks` give each pixel a class of `labels`, `boxes` each object; the images themselves then have no label.
    """

    contents: Contents
    rows: NDArray[np.int64]
    table: LabelTable
    labels: tuple[str, ...]
    splits: NDArray[np.int8]
    notes: tuple[str, ...] = ()
    soft: SoftLabels | None = None
    masks: Masks | None = None
    boxes: Boxes | None = None
    transform: Callable[[Pixels], Any] | None = None

    def __post_init__(self) -> None:
        assert len(self.rows) == len(self.table) == len(self.splits)
        assert self.soft is None or len(self.soft) == len(self.rows)
        assert self.masks is None or len(self.masks) == len(self.rows)
        assert self.boxes is None or len(self.boxes) == len(self.rows)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several classes."""
        return self.table.multi_label

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> RawSample:
        """The sample before decoding."""
        row = int(self.rows[_checked_index(index, len(self))])
        return RawSample(
            name=self.contents.name(row),
            content=self.contents.read(row),
            label=self.table[index],
            mask=None if self.masks is None else self.masks.read(index),
            boxes=None if self.boxes is None else self.boxes[index],
        )

    def expect(self, indices: Sequence[int]) -> None:
        """Begin to read these samples, if they are on a server."""
        if isinstance(self.contents, RemoteReadable):
            self.contents.expect([int(self.rows[index]) for index in indices])

    @property
    def is_remote(self) -> bool:
        """Whether images are read from a server."""
        return versions_of(self.contents, self.rows[:1]) is not None

    def label(self, index: int) -> Label:
        """The label, without reading the image."""
        return self.table[_checked_index(index, len(self))]

    def name(self, index: int) -> str:
        """Where the image comes from, without reading it."""
        return self.contents.name(int(self.rows[_checked_index(index, len(self))]))

    def digests(self) -> Digests:
        """The hash of each image's content, (images, 16): equal for images of the same bytes."""
        return self.contents.digests(self.rows)

    def fingerprint(self) -> str:
        """32 hexadecimal digits: a hash of the class names, the labels and the content of every image, in order.

        The same images give the same fingerprint from a folder, a zip or shards, in any place.
        """
        made = blake2b(digest_size=16)
        for label in self.labels:
            made.update(label.encode("utf-8", "surrogatepass") + b"\n")
        for array in (self.table.codes.astype("<i4"), self.table.starts, self.digests()):
            made.update(b"\0" if array is None else np.ascontiguousarray(array).data)
        if self.soft is not None:
            for values in (self.soft.codes_NK.astype("<i4"), self.soft.probabilities_NK.astype("<f4")):
                made.update(np.ascontiguousarray(values).data)
        if self.masks is not None:
            made.update(self.masks.meaning())
            made.update(np.ascontiguousarray(self.masks.digests(np.arange(len(self)))).data)
        if self.boxes is not None:
            made.update(np.ascontiguousarray(self.boxes.digests(np.arange(len(self)))).data)
        return made.hexdigest()

    def take(self, indices: NDArray[np.int64], *, notes: Sequence[str] = ()) -> ImageDataset:
        """The images with these indices, in this order."""
        return replace(
            self,
            rows=self.rows[indices],
            table=self.table.take(indices),
            splits=self.splits[indices],
            notes=(*self.notes, *notes),
            soft=None if self.soft is None else self.soft.take(indices),
            masks=None if self.masks is None else self.masks.take(indices),
            boxes=None if self.boxes is None else self.boxes.take(indices),
        )


def _checked_index(index: int, count: int) -> int:
    if not 0 <= index < count:
        raise IndexError(f"image {index} of {count}")
    return index


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTable:
    """The labels of many images in one or two arrays.

    With one class per image, `codes` holds it, -1 for unknown. With several, `starts` has one number more than there are
    images, and the classes of image i are `codes[starts[i]:starts[i + 1]]`.
    """

    codes: NDArray[np.int32]
    starts: NDArray[np.int64] | None = None

    @classmethod
    def unknown(cls, count: int) -> LabelTable:
        """A table for images without labels."""
        return cls(codes=np.full(count, UNKNOWN, np.int32))

    @classmethod
    def several(cls, labels: Iterable[Sequence[int]]) -> LabelTable:
        """A table in which each image has any number of classes; duplicates are dropped, and classes are sorted."""
        rows = [sorted(set(row)) for row in labels]
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(codes=np.array([code for row in rows for code in row], np.int32), starts=starts)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several classes."""
        return self.starts is not None

    def __len__(self) -> int:
        return len(self.codes) if self.starts is None else len(self.starts) - 1

    def __getitem__(self, index: int) -> Label:
        if self.starts is not None:
            return tuple(self.codes[self.starts[index] : self.starts[index + 1]].tolist())
        code = int(self.codes[index])
        return None if code == UNKNOWN else code

    def take(self, rows: NDArray[np.int64]) -> LabelTable:
        """The labels of these rows, in this order."""
        if self.starts is None:
            return LabelTable(codes=self.codes[rows])
        return LabelTable.several(self.codes[self.starts[row] : self.starts[row + 1]].tolist() for row in rows)

    def strata(self) -> NDArray[np.int32]:
        """What a split keeps in proportion: the class; one stratum for all images if labels are several."""
        return np.zeros(len(self), np.int32) if self.starts is not None else self.codes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftLabels:
    """The likeliest classes of each image and their probabilities, which add up to 1. Rows are padded with probability 0."""

    codes_NK: NDArray[np.int32]
    probabilities_NK: NDArray[np.float32]

    def __post_init__(self) -> None:
        assert self.codes_NK.shape == self.probabilities_NK.shape

    def __len__(self) -> int:
        return len(self.codes_NK)

    def take(self, rows: NDArray[np.int64]) -> SoftLabels:
        """The labels of these images, in this order."""
        return SoftLabels(codes_NK=self.codes_NK[rows], probabilities_NK=self.probabilities_NK[rows])

    def targets(self, rows: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
        """The labels of these images as probabilities of all classes, (B, C)."""
        targets_BC = np.zeros((len(rows), classes), np.float32)
        np.add.at(targets_BC, (np.arange(len(rows))[:, None], self.codes_NK[rows]), self.probabilities_NK[rows])
        return targets_BC


def unusable_name(name: str) -> str | None:
    """Why this cannot be the name of a class, or None if it can. Class names are printed and saved as text."""
    if not name.strip():
        return "a class needs a name"
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        return "a class name may not contain line ends, control characters or undecodable bytes"
    return None


def look_alikes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of different names that are the same text in another Unicode form, as two file systems write them."""
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        first = seen.setdefault(unicodedata.normalize("NFC", name), name)
        if first != name:
            pairs.append((first, name))
    return pairs


def align_labels(dataset: Sequence[str], model: Sequence[str], *, reorder: bool = False) -> tuple[int, ...]:
    """The model's index of each class of the data; DataError if their classes differ.

    Without `reorder` both must have the same names in the same order, and the result is 0, 1, 2, ... With `reorder` the data
    may have the model's classes in another order, or only some of them.
    """
    if tuple(dataset) == tuple(model):
        return tuple(range(len(model)))  # also if two classes have one name, as two of ImageNet's do
    index_of = {name: index for index, name in enumerate(model)}
    unknown = [name for name in dataset if name not in index_of]
    missing = [name for name in model if name not in set(dataset)]
    if unknown:
        raise DataError(
            f"the data has {len(dataset)} classes and the model {len(model)}; the model does not know {listed(unknown)}"
            + (f", the data does not have {listed(missing)}" if missing else ""),
            hint="evaluate on data with the model's classes, fine-tune the model on these, or give a `mapping`",
        )
    if not reorder:
        if missing:
            raise DataError(
                f"the data has {len(dataset)} of the model's {len(model)} classes; it does not have {listed(missing)}",
                hint="set reorder to match classes by name",
            )
        if len(dataset) != len(model):
            raise DataError(
                f"the data has {len(dataset)} classes and the model {len(model)}: {listed(_duplicates(dataset))} occurs twice"
            )
        moved = [f"{printable(a)} instead of the model's {printable(b)}" for a, b in zip(dataset, model, strict=True) if a != b]
        raise DataError(
            f"data and model order their classes differently: {'; '.join(moved[:5])}"
            + (f"; and {len(moved) - 5:,} more" if len(moved) > 5 else ""),
            hint="set reorder to match classes by name",
        )
    if twice := _duplicates(model) or _duplicates(dataset):
        raise DataError(f"labels cannot be matched by name: {listed(twice)} is the name of more than one class")
    return tuple(index_of[name] for name in dataset)


def _duplicates(names: Sequence[str]) -> list[str]:
    counts = Counter(names)
    return [name for name in counts if counts[name] > 1]


def listed(names: Sequence[str], *, most: int = 5) -> str:
    """`a, b and 7 more`"""
    text = ", ".join(printable(name) for name in names[:most])
    return text + (f" and {len(names) - most:,} more" if len(names) > most else "")


_LISTED_FAULTS = 10


class Faults:
    """Collects what is wrong with the data while it is opened, so that one error names everything.

    `where` names the data; a fault is a place in it and a reason.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._faults: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._faults)

    def add(self, place: str, reason: str) -> None:
        """Record that something at `place` cannot be used, and why."""
        self._faults.append((place, reason))

    def raise_any(self, *, hint: str | None = None) -> None:
        """Raise a DataError that counts all faults and lists the first ten; do nothing if there are none."""
        if not self._faults:
            return
        shown = "; ".join(f"{printable(place)}: {reason}" for place, reason in self._faults[:_LISTED_FAULTS])
        more = f"; and {len(self._faults) - _LISTED_FAULTS:,} more" if len(self._faults) > _LISTED_FAULTS else ""
        count = "1 fault" if len(self._faults) == 1 else f"{len(self._faults):,} faults"
        raise DataError(f"{printable(self._where)}: {count}: {shown}{more}", hint=hint)
