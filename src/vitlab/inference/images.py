"""What a user may give as an image: a path, a member of a zip archive, bytes, a PIL image, an array, a tensor; and finding images.

Axes: H height, W width, C channels.
"""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.decode import from_pillow
from vitlab.data.readers.folder import is_hidden, is_image
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import DataError, masked
from vitlab.io.address import Address, address_of, is_address, place_of
from vitlab.io.archive_limits import READ_IN_PLACE
from vitlab.io.display import printable
from vitlab.io.files import near_name, open_regular, read_bytes
from vitlab.io.remote import files_below, info, is_file, matches, read_all
from vitlab.io.zip import ZipContents, read_zip_index

Pixels = NDArray[np.uint8]

_PATTERN = "*?["


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedImage:
    """An image that is read when it is needed: `read` gives an encoded file, or pixels (H, W, C)."""

    name: str
    read: Callable[[], bytes | Pixels]


ImageLike = str | os.PathLike[str] | bytes | Image.Image | NDArray[np.uint8] | torch.Tensor | NamedImage
"""One image in any form."""

ImagesLike = ImageLike | Iterable[ImageLike]
"""One image, or any number of them."""


def as_list_of_images(images: ImagesLike) -> Iterable[ImageLike]:
    """The images themselves; one image alone becomes a list of one.

    An array of shape (H, W) or (H, W, C), or a tensor (H, W) or (C, H, W), is one image; with one axis more it is several.
    """
    if isinstance(images, str | bytes | os.PathLike | Image.Image | NamedImage):
        return [images]
    if isinstance(images, np.ndarray | torch.Tensor):
        return list(images) if images.ndim == 4 else [images]
    return images


def image_name(image: ImageLike, index: int) -> str:
    """A path as it was given; `image 3` for an image without a name, `index` being its place in the input, from 0."""
    match image:
        case str():
            return masked(image)
        case os.PathLike():
            return os.fspath(image)
        case NamedImage():
            return image.name
    return f"image {index}"


def load_pil(image: ImageLike) -> None:
    """Decode a PIL image in the caller's thread: Pillow must not load one image from two threads, and a list may hold it twice."""
    if isinstance(image, Image.Image):
        with suppress(OSError):  # raised again, with the image's name, where it is read
            image.load()


class ImageReader:
    """Reads images and applies the model's transform. Safe to share between threads; keeps zip archives open."""

    def __init__(self, transform: EvaluationTransform) -> None:
        self._transform = transform
        self._archives: dict[str, tuple[ZipContents, dict[str, int]]] = {}
        self._lock = threading.Lock()

    def __call__(self, image: ImageLike, name: str) -> Pixels:
        """uint8 (H, W, C) of the model's input size; DataError names an image that cannot be read."""
        transform = self._transform
        match image:
            case str() | os.PathLike():
                return transform.apply(self._read_file(os.fspath(image)), name=printable(name))
            case NamedImage():
                return transform.apply(image.read(), name=printable(name))
            case bytes() | np.ndarray():
                return transform.apply(image, name=name)
            case Image.Image():
                own, limits = transform.preprocess, transform.limits
                pixels_HWC = from_pillow(image, name=name, limits=limits, channels=own.channels, scale=own.pixel_scale)
                return transform.apply(pixels_HWC, name=name)
            case torch.Tensor():
                return transform.apply(_pixels_of_tensor(image, name), name=name)
        raise DataError(
            f"{name} is a {type(image).__name__}, not an image",
            hint="give a path, bytes, a PIL image, a uint8 array [height, width, channels] or a tensor [channels, height, width]",
        )

    def _read_file(self, path: str) -> bytes:
        if is_address(path):
            archive = split_archive(path)
            return self._read_member(*archive) if archive else read_all(address_of(path), most=READ_IN_PLACE.entry_bytes)
        try:
            return read_bytes(path, most=READ_IN_PLACE.entry_bytes)
        except DataError as error:
            if not isinstance(error.__cause__, NotADirectoryError | FileNotFoundError):
                raise
            split = split_archive(path)
            if split is None:
                raise DataError(f"{printable(path)} does not exist") from error
            return self._read_member(*split)

    def _read_member(self, archive: str, inside: str) -> bytes:
        with self._lock:
            if archive not in self._archives:
                index = read_zip_index(place_of(archive))
                self._archives[archive] = ZipContents(index), {name: row for row, name in enumerate(index.names)}
            contents, row_of = self._archives[archive]
        if inside not in row_of:
            raise DataError(f"{printable(archive)} has no file {printable(inside)}")
        return contents.read(row_of[inside])


def split_archive(path: str) -> tuple[str, str] | None:
    """`photos.zip/cats/1.jpg` as the archive on disk and the name inside it; None if no part of the path is an archive."""
    at = path.lower().find(".zip/")
    while at >= 0:
        archive = path[: at + 4]
        if is_file(address_of(archive)) if is_address(archive) else os.path.isfile(archive):  # noqa: PTH113
            return archive, path[at + 5 :]
        at = path.lower().find(".zip/", at + 1)
    return None


def _pixels_of_tensor(tensor: torch.Tensor, name: str) -> Pixels:
    """uint8 (C, H, W) from 0 to 255, or floating point from 0 to 1, as pixels (H, W, C)."""
    if tensor.ndim not in (2, 3):
        raise DataError(f"{name} is a tensor of shape {list(tensor.shape)}, not [channels, height, width]")
    if tensor.is_floating_point():
        low, high = (float(tensor.min()), float(tensor.max())) if tensor.numel() else (0.0, 0.0)
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"{name} is a tensor with values from {low:.3g} to {high:.3g}; pixels are from 0 to 1",
                hint="undo its normalisation, or call the model itself: model(images_BCHW)",
            )
        tensor = (tensor.float() * 255).round().to(torch.uint8)
    if tensor.dtype != torch.uint8:
        raise DataError(f"{name} is a tensor of {tensor.dtype}", hint="give uint8 from 0 to 255, or floating point from 0 to 1")
    image = tensor.detach().cpu()
    pixels: Pixels = (image if image.ndim == 2 else image.permute(1, 2, 0)).contiguous().numpy()
    return pixels


def find_images(words: Iterable[str]) -> Iterator[str]:
    """The paths of all images that the words name: files, folders, quoted patterns, zip archives and files inside them.

    The order is that of the words, and sorted within each; paths are found as they are taken. A file is taken whatever its name; in
    a folder or zip archive, files with an image's extension are, except hidden ones. Links are followed, but no folder is
    entered twice. DataError for a word that names nothing.
    """
    for word in words:
        yield from _named_by(word)


def _named_by(word: str) -> Iterator[str]:
    if is_address(word):
        yield from _at_address(address_of(word))
    elif os.path.isdir(word):  # noqa: PTH112 (a Path cannot hold every name)
        yield from _in_folder(word)
    elif os.path.isfile(word):  # noqa: PTH113
        yield from _in_archive(word) if word.lower().endswith(".zip") else (word,)
    elif split_archive(word) is not None:
        yield word
    elif any(mark in word for mark in _PATTERN):
        found = sorted(glob.glob(word, recursive=True))  # noqa: PTH207 (a Path cannot hold every pattern)
        if not found:
            raise DataError(f"nothing matches {word!r}", hint="** matches folders within folders")
        for path in found:
            if os.path.isdir(path):  # noqa: PTH112
                if "**" not in word:  # which finds files in folders by itself
                    yield from _in_folder(path)
            elif is_image(path):
                yield path
    elif os.path.lexists(word):
        open_regular(word, error=DataError).close()  # refuses a pipe, a device, a link that leads nowhere
        yield word
    else:
        raise DataError(
            f"no file or folder called {word!r}", hint=near_name(Path(word)) or "give an image, a folder, a zip or a pattern"
        )


def _at_address(address: Address) -> Iterator[str]:
    """The images that an address names: a file, those of a zip archive or of a folder, those that a pattern matches."""
    if any(mark in address.path for mark in ("*[" if address.scheme.startswith("http") else _PATTERN)):
        found = [file for file in matches(address) if is_image(file.name)]
        if not found:
            raise DataError(f"nothing matches {address}")
        yield from (file.text for file in found)
    elif split_archive(address.text) is not None:
        yield address.text
    elif not address.is_folder and info(address) is not None:
        yield from _in_archive(address.text) if address.name.lower().endswith(".zip") else (address.text,)
    else:
        for name in files_below(address):
            if is_image(name) and not is_hidden(name):
                yield (address / name).text


def _in_folder(root: str) -> Iterator[str]:
    """Images of a folder and of the folders in it; a folder is listed when its turn comes."""
    entered: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            status = os.stat(folder)  # noqa: PTH116
            names = sorted(os.listdir(folder))  # noqa: PTH208
        except OSError as error:
            raise DataError(f"{folder} cannot be read: {error.strerror}") from error
        if (status.st_dev, status.st_ino) in entered:
            continue
        entered.add((status.st_dev, status.st_ino))
        folders = []
        for name in names:
            if is_hidden(name):
                continue
            path = os.path.join(folder, name)  # noqa: PTH118
            if is_image(name) and not os.path.isdir(path):  # noqa: PTH112
                yield path
            elif os.path.isdir(path):  # noqa: PTH112
                folders.append(path)
        waiting += reversed(folders)


def _in_archive(archive: str) -> Iterator[str]:
    for name in read_zip_index(place_of(archive)).names:
        if is_image(name) and not is_hidden(name):
            yield f"{archive}/{name}"
