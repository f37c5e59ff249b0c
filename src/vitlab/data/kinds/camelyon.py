"""PatchCamelyon as its authors publish it: HDF5 files of 96-pixel patches, a file of pictures and one of labels a part.

The files are read as downloaded (`.h5.gz`, unpacked once into the cache folder) or unpacked (`.h5`); needs h5py.
"""

from __future__ import annotations

from pathlib import Path

from vitlab.data.files.blocks import find_file, from_blocks
from vitlab.data.files.hdf5 import Hdf5Block, read_numbers
from vitlab.data.files.names import shown
from vitlab.data.files.unpacked import unpacked
from vitlab.data.listed import ListedSource
from vitlab.data.split import TEST, TRAIN, VAL
from vitlab.errors import DataError

CLASSES = ("no tumour", "tumour")  # in the middle 32x32 pixels of a patch

_STEM = "camelyonpatch_level_2_split"
_PARTS = (("train", TRAIN), ("valid", VAL), ("test", TEST))


def has_camelyon(folder: Path) -> bool:
    """Whether the folder holds the pictures of a part."""
    return any(_file(folder, word, "x") is not None for word, _ in _PARTS)


def open_camelyon(folder: Path) -> ListedSource:
    """The patches of train, valid and test, as far as they are there, in the order of the files."""
    blocks, codes, parts = [], [], []
    for word, part in _PARTS:
        pictures, labels = _file(folder, word, "x"), _file(folder, word, "y")
        if pictures is None and labels is None:
            continue
        if pictures is None or labels is None:
            kind = "x" if pictures is None else "y"
            raise DataError(f"{shown(str(folder))} holds no {_STEM}_{word}_{kind}.h5, nor the same packed (.gz)")
        blocks.append(Hdf5Block(_readable(pictures), "x", where=str(pictures)))
        codes.append(read_numbers(_readable(labels), "y", where=str(labels)))  # (N, 1, 1, 1)
        parts.append(part)
    if not blocks:
        raise DataError(f"{shown(str(folder))} holds no {_STEM}_train_x.h5, nor the same packed (.gz)")
    return from_blocks(blocks, codes, parts, CLASSES)


def _file(folder: Path, word: str, kind: str) -> Path | None:
    name = f"{_STEM}_{word}_{kind}.h5"
    return find_file(folder, [name, f"{name}.gz"])


def _readable(file: Path) -> Path:
    return unpacked(file) if file.suffix == ".gz" else file
