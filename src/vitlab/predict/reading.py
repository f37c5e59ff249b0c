"""Everything a user may call a picture: a path, a member of a zip, bytes, Pillow's image, an array, a tensor.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitlab.config.source import READ_IN_PLACE
from vitlab.data.decode import from_pillow
from vitlab.data.files.names import shown
from vitlab.data.files.zips import ZipContents, read_zip_index
from vitlab.data.view import EvaluationView, Pixels
from vitlab.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """A picture that is read when its turn comes: `read` gives an encoded file, or pixels (H, W, C)."""

    name: str
    read: Callable[[], bytes | Pixels]


Picture = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8] | torch.Tensor | Named


def name_of(picture: Picture, place: int) -> str:
    """A path as it was given; `picture 3` for what has no name, `place` being its place among all, from 0."""
    match picture:
        case str():
            return picture
        case os.PathLike():
            return os.fspath(picture)
        case Named():
            return picture.name
    return f"picture {place}"


class Reader:
    """Reads pictures and gives the model's view of them. Safe to share between threads; keeps the zip archives it has opened."""

    def __init__(self, view: EvaluationView) -> None:
        self._view = view
        self._archives: dict[str, tuple[ZipContents, dict[str, int]]] = {}
        self._lock = threading.Lock()

    def __call__(self, picture: Picture, name: str) -> Pixels:
        """uint8 [H, W, C] of the model's size; DataError, naming the picture, where it cannot be read."""
        match picture:
            case str() | os.PathLike():
                return self._view.see(self._file(os.fspath(picture)), name=shown(name))
            case Named():
                return self._view.see(picture.read(), name=shown(name))
            case bytes() | np.ndarray():
                return self._view.see(picture, name=name)
            case Image.Image():
                view = self._view
                pixels_HWC = from_pillow(picture, name=name, limits=view.limits, channels=view.preprocess.channels)
                return view.see(pixels_HWC, name=name)
            case torch.Tensor():
                return self._view.see(_of_tensor(picture, name), name=name)
        raise DataError(
            f"{name} is a {type(picture).__name__}, which is no picture",
            hint="give a path, bytes, a Pillow image, a uint8 array [height, width, channels] or tensor [channels, height, width]",
        )

    def _file(self, path: str) -> bytes:
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a Path cannot hold every name)
                size = os.fstat(file.fileno()).st_size
                if size > READ_IN_PLACE.entry_bytes:
                    limit = READ_IN_PLACE.entry_bytes
                    raise DataError(f"{shown(path)} has {size:,} bytes; a picture may have {limit:,} (entry_bytes)")
                return file.read()
        except (NotADirectoryError, FileNotFoundError) as error:
            split = split_archive(path)
            if split is None:
                raise DataError(f"{shown(path)} does not exist") from error
            return self._member(*split)
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
            raise DataError(f"{shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from error

    def _member(self, archive: str, inside: str) -> bytes:
        with self._lock:
            if archive not in self._archives:
                index = read_zip_index(Path(archive))
                self._archives[archive] = ZipContents(index), {name: row for row, name in enumerate(index.names)}
            contents, row_of = self._archives[archive]
        if inside not in row_of:
            raise DataError(f"{shown(archive)} holds no file {shown(inside)}")
        return contents.read(row_of[inside])


def split_archive(path: str) -> tuple[str, str] | None:
    """`photos.zip/cats/1.jpg` as the archive on disk and the name inside it; None where no part of the path is an archive."""
    at = path.lower().find(".zip/")
    while at >= 0:
        archive = path[: at + 4]
        if os.path.isfile(archive):  # noqa: PTH113
            return archive, path[at + 5 :]
        at = path.lower().find(".zip/", at + 1)
    return None


def _of_tensor(tensor: torch.Tensor, name: str) -> Pixels:
    """uint8 [C, H, W] of 0..255, or floating point of 0..1, as pixels [H, W, C]."""
    if tensor.ndim not in (2, 3):
        raise DataError(f"{name} is a tensor of shape {list(tensor.shape)}, not [channels, height, width]")
    if tensor.is_floating_point():
        low, high = (float(tensor.min()), float(tensor.max())) if tensor.numel() else (0.0, 0.0)
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"{name} is a tensor of numbers from {low:.3g} to {high:.3g}, and pixels are from 0 to 1",
                hint="undo its normalisation, or call the model itself: model(images_BCHW)",
            )
        tensor = (tensor.float() * 255).round().to(torch.uint8)
    if tensor.dtype != torch.uint8:
        raise DataError(f"{name} is a tensor of {tensor.dtype}", hint="give uint8 from 0 to 255, or floating point from 0 to 1")
    image = tensor.detach().cpu()
    pixels: Pixels = (image if image.ndim == 2 else image.permute(1, 2, 0)).contiguous().numpy()
    return pixels
