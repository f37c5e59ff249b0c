"""Images with masks, which give each pixel a class: a folder of images beside a folder of masks, VOC's layout, masks.json, or COCO.

    data/images/train/a.jpg   data/masks/train/a.png        also data/train/images/a.jpg, and without splits
    data/JPEGImages/a.jpg     data/SegmentationClass/a.png  VOC, with ImageSets/Segmentation/train.txt and val.txt
    data/masks.json           {"images": "pets.zip", "masks": "trimaps.zip", "classes": {"pet": 1, "background": 2}, "ignore": [3]}

A mask has the path of its image, another ending, and the image's size. Its values are the indices of a palette or grey levels.
`classes.txt` names the values 0, 1, 2, ..., a line each; the "classes" of masks.json name any values. 255 is always ignored, and
"ignore" adds others. Without names, the values that occur are the classes. A folder may be a zip, and the images and masks that
masks.json names may be anywhere, relative to it; its "masks" may be a COCO file, whose layouts are those of `coco.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import DecodeLimits
from vitlab.config.segmenter import MOST_CLASSES
from vitlab.data.dataset import (
    IGNORED,
    SPLITS,
    UNDECLARED,
    UNDEFINED,
    Faults,
    ImageDataset,
    IndexMasks,
    LabelTable,
    listed,
    unusable_name,
)
from vitlab.data.readers.coco import has_coco_masks, open_coco_masks, zip_has_coco_masks
from vitlab.data.readers.folder import LeftOut, Place, read_settings
from vitlab.data.split import split_named
from vitlab.errors import DataError
from vitlab.io.display import printable
from vitlab.io.zip import read_zip_index

MASKS_JSON = "masks.json"
_CLASSES_TXT = "classes.txt"
_IMAGES, _MASKS = "images", "masks"
_VOC_IMAGES, _VOC_MASKS, _VOC_LISTS = "JPEGImages", "SegmentationClass", "ImageSets/Segmentation"
_SETTINGS = ("images", "masks", "classes", "ignore")
_VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
_REPAIR = "give each image a mask of the same path, or remove it"

Classes = Mapping[str, int]
"""The value of each class in the masks, in the order of the classes."""


def is_masks_zip(path: Path, names: Iterable[str]) -> bool:
    """Whether a zip of these paths holds images and masks in one of the layouts."""
    return _has_layout(names) or (any(name.lower().endswith(".json") for name in names) and zip_has_coco_masks(path))


def is_masks_folder(root: Path) -> bool:
    """Whether a folder holds images and masks; of the folders in it only their names are read, and COCO files."""
    return _is_layout(root) or has_coco_masks(root)


def _has_layout(names: Iterable[str]) -> bool:
    parts = {part for name in names for part in PurePosixPath(name).parts[:-1]}
    return {_IMAGES, _MASKS} <= parts or {_VOC_IMAGES, _VOC_MASKS} <= parts


def _is_layout(root: Path) -> bool:
    if (root / MASKS_JSON).is_file():
        return True
    inside = [root, *(entry for entry in root.iterdir() if split_named(entry.name) is not None and entry.is_dir())]
    pairs = ((_IMAGES, _MASKS), (_VOC_IMAGES, _VOC_MASKS))
    return any((place / one).is_dir() and (place / other).is_dir() for place in inside for one, other in pairs)


def _is_coco_place(path: Path) -> bool:
    """Whether COCO files give the masks of a folder or zip, or a path is one."""
    if path.is_dir():
        return not _is_layout(path) and has_coco_masks(path)
    if path.suffix.lower() == ".json":
        return path.name != MASKS_JSON
    return path.is_file() and not _has_layout(read_zip_index(path).names) and zip_has_coco_masks(path)


def open_masks(path: Path, *, faults: Faults | None = None) -> ImageDataset:
    """The images at `path` with their masks; one error lists everything that is wrong."""
    if _is_coco_place(path):
        return open_coco_masks(path, faults=faults)
    faults, left_out = Faults(str(path)) if faults is None else faults, LeftOut()
    settings_file = path if path.suffix == ".json" else path / MASKS_JSON
    settings = _settings(settings_file) if settings_file.is_file() else {}
    root = settings_file.parent if settings else path
    if str(settings.get("masks", "")).lower().endswith(".json"):
        if settings.keys() - {"images", "masks"} and (settings["classes"] is not None or "ignore" in settings):
            raise DataError(f"{settings_file} names classes or ignored values, and a COCO file has its own", hint="leave them out")
        return open_coco_masks(root / str(settings["masks"]), images=root / str(settings["images"]), faults=faults)
    if "images" in settings:
        images = Place.open(root / str(settings["images"]), faults, left_out)
        masks = Place.open(root / str(settings["masks"]), faults, left_out)
        image_rows_of, mask_rows_of = _by_path(images), _by_path(masks)
        listed_splits: dict[str, int] | None = None
    else:
        images = masks = Place.open(root, faults, left_out)
        image_rows_of, mask_rows_of, listed_splits = _by_layout(images, faults)
    keys = _paired(images, masks, image_rows_of, mask_rows_of, listed_splits, faults)
    faults.raise_any(hint=_REPAIR)
    if not keys:
        raise DataError(f"{printable(str(path))} holds no image with a mask", hint=_REPAIR)
    rows_of_masks = np.array([mask_rows_of[key] for key in keys], np.int64)
    classes, note = _classes(settings, images, masks, rows_of_masks, voc=listed_splits is not None)
    for name in (_CLASSES_TXT, *((MASKS_JSON,) if settings else ()), *(_voc_list(split) for split in SPLITS)):
        if images.text(name) is not None:
            left_out.used(name)
    splits = [_split_of(key) if listed_splits is None else listed_splits.get(key, UNDECLARED) for key in keys]
    undeclared = UNDECLARED in splits and listed_splits is None
    if unlisted := len(mask_rows_of.keys() - listed_splits.keys()) if listed_splits else 0:
        note = (*note, f"{unlisted} masks left out that no list of {_VOC_LISTS} names")
    return ImageDataset(
        contents=images.contents,
        rows=np.array([image_rows_of[key] for key in keys], np.int64),
        table=LabelTable.unknown(len(keys)),
        labels=tuple(classes),
        splits=np.array([UNDECLARED if undeclared else split for split in splits], np.int8),
        notes=(*note, *left_out.notes()),
        masks=IndexMasks(contents=masks.contents, rows=rows_of_masks, class_of=_class_of(classes, _ignored(settings))),
    )


def _settings(path: Path) -> dict[str, object]:
    """The settings of masks.json."""
    found = read_settings(path, _SETTINGS)
    if ("images" in found) != ("masks" in found):
        raise DataError(
            f"{path} needs both images and masks, or neither", hint="neither: they are beside it, in images/ and masks/"
        )
    return found


def _by_path(place: Place) -> dict[str, int]:
    """The row of each image by its path without the ending."""
    return {_stem(place.names[row]): row for row in place.rows}


def _by_layout(place: Place, faults: Faults) -> tuple[dict[str, int], dict[str, int], dict[str, int] | None]:
    """Images and masks of one place by their common path, and the splits that VOC's lists declare."""
    parts = {part for row in place.rows for part in PurePosixPath(place.names[row]).parts[:-1]}
    voc = {_VOC_IMAGES, _VOC_MASKS} <= parts
    names = (_VOC_IMAGES, _VOC_MASKS) if voc else (_IMAGES, _MASKS)
    found: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for row in place.rows:
        folders = PurePosixPath(place.names[row]).parts
        for side, name in enumerate(names):
            if name in folders[:-1]:
                at = folders.index(name)
                found[side][_stem("/".join((*folders[:at], *folders[at + 1 :])))] = row
                break
    return found[0], found[1], _voc_splits(place, list(found[1]), faults) if voc else None


def _voc_list(split: str) -> str:
    return f"{_VOC_LISTS}/{split}.txt"


def _voc_splits(place: Place, keys: Sequence[str], faults: Faults) -> dict[str, int]:
    """The split of each image that a list of VOC names, none for the others; an image of two lists is a fault."""
    splits: dict[str, int] = {}
    around = {key.rpartition("/")[0] for key in keys}
    for split, name in enumerate(SPLITS):
        text = place.text(_voc_list(name))
        for line in sorted({line.strip() for line in (text or "").splitlines()} - {""}):
            found = {f"{folder}/{line}" if folder else line: split for folder in around}
            if twice := splits.keys() & found.keys():
                other = SPLITS[splits[min(twice)]]
                faults.add(line, f"is in {_voc_list(other)} and in {_voc_list(name)}")
            splits |= found
    return splits


def _paired(
    images: Place,
    masks: Place,
    image_rows_of: Mapping[str, int],
    mask_rows_of: Mapping[str, int],
    listed_splits: Mapping[str, int] | None,
    faults: Faults,
) -> list[str]:
    """The paths that have an image and a mask, sorted; what has only one of them is a fault, but an image of VOC may have none."""
    wanted = set(image_rows_of) if listed_splits is None else set(listed_splits) or set(mask_rows_of)
    for key in sorted(wanted):
        if key not in mask_rows_of:
            faults.add(images.names[image_rows_of[key]] if key in image_rows_of else key, "has no mask")
        elif key not in image_rows_of:
            faults.add(masks.names[mask_rows_of[key]], "is a mask without an image")
    for key in sorted(set(mask_rows_of) - wanted) if listed_splits is None else ():
        faults.add(masks.names[mask_rows_of[key]], "is a mask without an image")
    return sorted(key for key in wanted if key in image_rows_of and key in mask_rows_of)


def _split_of(key: str) -> int:
    """The split that a folder of the path names."""
    first = next((split for part in key.split("/")[:-1] if (split := split_named(part)) is not None), None)
    return UNDECLARED if first is None else first


def _classes(
    settings: Mapping[str, object], images: Place, masks: Place, rows: NDArray[np.int64], *, voc: bool
) -> tuple[Classes, tuple[str, ...]]:
    """The classes and their values, and a note if they had to be found in the masks."""
    given = settings.get("classes")
    if given is not None:
        return _checked(given, MASKS_JSON), ()
    text = images.text(_CLASSES_TXT)
    if text is not None:
        return _checked([line.strip() for line in text.splitlines() if line.strip()], _CLASSES_TXT), ()
    if voc:
        return _checked(list(_VOC_CLASSES), "VOC"), ()
    values = _values_in(masks, rows) - set(_ignored(settings))
    if len(values) < 2:
        raise DataError(
            f"the masks of {printable(str(masks.path))} have {len(values)} values that count: segmentation needs two classes"
        )
    named = ", ".join(map(str, sorted(values)))
    note = f"the classes have no names: the values {named} of all {len(rows):,} masks are taken; {_CLASSES_TXT} can name them"
    return _checked({f"value {value}": value for value in sorted(values)}, "the masks"), (note,)


def _values_in(masks: Place, rows: NDArray[np.int64]) -> set[int]:
    """All values of all masks; a mask that cannot be read is reported when its turn comes."""
    from vitlab.data.decode import decode_values  # opening other datasets needs no Pillow

    found: set[int] = set()
    for row in rows.tolist():
        content = masks.contents.read(row)
        assert isinstance(content, bytes)
        try:
            found |= set(np.unique(decode_values(content, name=masks.contents.name(row), limits=DecodeLimits())).tolist())
        except DataError:
            continue
    return found


def _checked(given: object, where: str) -> Classes:
    """Names and values as given: an object of names and values, or a list of names for the values 0, 1, 2, ..."""
    if isinstance(given, list):
        names = [name for name in given if isinstance(name, str)]
        given = {name: value for value, name in enumerate(names)} if len(set(names)) == len(given) else None
    if not isinstance(given, dict):
        raise DataError(f"the classes of {where} must be different names, or an object of names and values")
    if not 2 <= len(given) <= MOST_CLASSES:
        raise DataError(f"{where} names {len(given)} classes; there must be from 2 to {MOST_CLASSES}")
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 255:
            raise DataError(f"{where}: the value of {printable(str(name))} must be a whole number from 0 to 255, not {value!r}")
        if reason := unusable_name(str(name)):
            raise DataError(f"{where}: {printable(str(name))}: {reason}")
    if len(set(given.values())) != len(given):
        raise DataError(f"{where} gives one value to several classes: {listed([str(name) for name in given])}")
    return {str(name): int(value) for name, value in given.items()}


def _ignored(settings: Mapping[str, object]) -> tuple[int, ...]:
    given = settings.get("ignore", [])
    values = given if isinstance(given, list) else [given]
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 255:
            raise DataError(f"{MASKS_JSON}: ignore must be whole numbers from 0 to 255, not {value!r}")
    return (*values, IGNORED)


def _class_of(classes: Classes, ignored: Iterable[int]) -> NDArray[np.uint8]:
    """The class of each value; DataError if a value is both a class and ignored."""
    table = np.full(256, UNDEFINED, np.uint8)
    for number, value in enumerate(classes.values()):
        table[value] = number
    for value in ignored:
        if table[value] != UNDEFINED and table[value] != IGNORED:
            name = list(classes)[int(table[value])]
            raise DataError(f"the value {value} is the class {printable(name)} and is ignored too", hint="255 is always ignored")
        table[value] = IGNORED
    return table


def _stem(name: str) -> str:
    return name[: -len(suffix)] if (suffix := PurePosixPath(name).suffix) else name
