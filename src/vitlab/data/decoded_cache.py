"""A cache of decoded images: one file of pixels, in memory or on disk, that all workers map and none copies.

A cache must not change batches. So `auto` caches nothing if the transform of some images differs by a bit with and without it (it
does for a transform that decodes only a part of a JPEG). A file on disk is verified, and made again if it is damaged.

The file holds the pixels end to end; then a table, which is an .npz (sizes, labels, names, and why some images could not be
decoded); then 64 bytes: a mark, where the table begins and ends, and the SHA-256 of everything before.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import errno
import io
import json
import mmap
import os
import shutil
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import CachePolicy, LoaderConfig
from vitlab.data.batch import Decode, Pipeline
from vitlab.data.dataset import UNKNOWN, Dataset, ImageDataset, Label, LabelTable, Pixels, RawSample
from vitlab.data.frame import Framed
from vitlab.data.sampler import rng_of
from vitlab.errors import ConfigError, DataError
from vitlab.io.atomic import locked, sync_folder
from vitlab.io.cache import cache_folder
from vitlab.io.files import Names
from vitlab.io.machine import memory_available, nameless_file, prefetched

_MARK = b"vitlab-images-v1"
_TRAILER = struct.Struct("<16sQQ32s")
_BLOCK = 64  # images decoded before the next are written


class DecodedDataset:
    """A dataset of decoded pixels in a file of `write_decoded`. It is pickled as `place`.

    `place` is the path of the file, or the number of an open file in memory, which worker processes must inherit.
    """

    def __init__(self, place: Path | int) -> None:
        if isinstance(place, int):
            place = os.dup(place)  # our own, to be closed by us
            weakref.finalize(self, os.close, place)
        self.place = place
        with open(place, "rb", closefd=isinstance(place, Path)) as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start, stop, _ = _trailer(self._bytes)
        with np.load(io.BytesIO(self._bytes[start:stop]), allow_pickle=False) as table:
            facts = json.loads(table["told"].tobytes())
            self._shape_N3: NDArray[np.int32] = table["shape_N3"]
            self._start_N: NDArray[np.int64] = table["start_N"]
            self._names = Names.from_buffers(table["letters"].tobytes(), table["ends"])
            self._table = LabelTable(codes=table["codes"], starts=table["starts"] if facts["multi_label"] else None)
        self._key = str(facts["key"])
        self.labels = tuple(facts["labels"])
        self._reasons: dict[str, str] = facts["reasons"]

    def __reduce__(self) -> tuple[type[DecodedDataset], tuple[Path | int]]:
        return DecodedDataset, (self.place,)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Open files that a worker process must inherit."""
        return () if isinstance(self.place, Path) else (self.place,)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several classes."""
        return self._table.multi_label

    def __len__(self) -> int:
        return len(self._table)

    def read(self, index: int) -> RawSample:
        """The pixels of an image; DataError if it could not be decoded."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        if (reason := self._reasons.get(str(index))) is not None:
            raise DataError(reason)
        height, width, channels = self._shape_N3[index].tolist()
        pixels = np.frombuffer(self._bytes, np.uint8, height * width * channels, int(self._start_N[index]))
        return RawSample(name=self._names[index], content=pixels.reshape(height, width, channels), label=self._table[index])

    def label(self, index: int) -> Label:
        """The label, without reading the image."""
        return self._table[index]

    def name(self, index: int) -> str:
        """Where the image comes from."""
        return self._names[index]

    def fingerprint(self) -> str:
        """The key of the file, which depends on the dataset and on how it was decoded."""
        return self._key


def write_decoded(dataset: Dataset, decode: Decode, file: IO[bytes], *, key: str, threads: int) -> None:
    """Decode every image of a dataset into an open, empty file; `key` becomes its fingerprint."""
    made = sha256()
    shapes: list[tuple[int, ...]] = []
    starts: list[int] = []
    names: list[str] = []
    reasons: dict[str, str] = {}
    length = 0
    for index, (name, pixels) in enumerate(_decoded(dataset, decode, threads)):
        names.append(name)
        starts.append(length)
        if isinstance(pixels, str):
            reasons[str(index)] = pixels
            shapes.append((0, 0, 0))
            continue
        flat = np.ascontiguousarray(pixels).reshape(-1).data
        made.update(flat)
        file.write(flat)
        shapes.append(pixels.shape)
        length += len(flat)

    labels = _label_table([dataset.label(index) for index in range(len(dataset))], multi_label=dataset.multi_label)
    facts = {"key": key, "labels": dataset.labels, "multi_label": dataset.multi_label, "reasons": reasons}
    letters, ends = Names(names).buffers()
    table = io.BytesIO()
    np.savez(
        table,
        told=np.frombuffer(json.dumps(facts).encode(), np.uint8),
        shape_N3=np.array(shapes, np.int32),
        start_N=np.array(starts, np.int64),
        codes=labels.codes,
        starts=np.zeros(0, np.int64) if labels.starts is None else labels.starts,
        letters=np.frombuffer(letters, np.uint8),
        ends=ends,
    )
    made.update(table.getbuffer())
    file.write(table.getbuffer())
    file.write(_TRAILER.pack(_MARK, length, length + len(table.getbuffer()), made.digest()))
    file.flush()


def is_sound(path: Path) -> bool:
    """Whether the file exists and is undamaged; reading all of it also brings it into memory."""
    if not path.is_file() or path.stat().st_size < _TRAILER.size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            _, stop, digest = _trailer(content)
        except DataError:
            return False
        with memoryview(content) as view, view[:stop] as hashed:
            return sha256(hashed).digest() == digest


def _trailer(content: mmap.mmap) -> tuple[int, int, bytes]:
    """Where the table begins and ends, and the digest of everything before that end."""
    place = len(content) - _TRAILER.size
    mark, start, stop, digest = _TRAILER.unpack_from(content, max(0, place))
    if mark != _MARK or not 0 <= start <= stop == place:
        raise DataError("this is not a file of decoded images, or it is cut off")
    return start, stop, digest


def _decoded(dataset: Dataset, decode: Decode, threads: int) -> Iterator[tuple[str, Pixels | str]]:
    """Each image's name, and its pixels or the reason why there are none, in order."""

    def one(index: int) -> tuple[str, Pixels | str]:
        name = f"image {index}"
        try:
            sample = dataset.read(index)
            name = sample.name
            pixels = decode(sample)
        except (DataError, OSError) as error:
            return name, error.message if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        assert pixels.dtype == np.uint8, f"{name} was decoded to {pixels.dtype}"
        assert pixels.ndim == 3, f"{name} was decoded to {pixels.ndim} axes"
        return name, pixels

    # Decoding releases the interpreter's lock, and threads need neither copies nor pickles of the dataset.
    with closing(prefetched(one, range(len(dataset)), threads=max(1, threads), depth=_BLOCK)) as decoded:
        yield from decoded


def _label_table(labels: Sequence[Label], *, multi_label: bool) -> LabelTable:
    if multi_label:
        return LabelTable.several(label if isinstance(label, tuple) else () for label in labels)
    return LabelTable(codes=np.array([UNKNOWN if label is None else label for label in labels], np.int32))


_SAMPLES = 16
_GIB = 2**30
_MOST_MEMORY = 4 * _GIB  # that `auto` takes, and not more than a quarter of what is available
_MOST_DISK = 64 * _GIB  # likewise
_UNFINISHED = ".unfinished"


def cache_decoded(dataset: Dataset, pipeline: Pipeline, config: LoaderConfig, *, ranks: int = 1) -> tuple[Dataset, str | None]:
    """The dataset to read from, cached if asked for or (`auto`) worthwhile, and a sentence about it."""
    if config.cache == "none" or (config.cache == "auto" and pipeline.decode is None):
        return dataset, None
    if config.cache == "auto" and isinstance(dataset, ImageDataset) and dataset.is_remote:
        return dataset, None  # each rank would have to read all of it; what it reads itself is cached as it is
    if pipeline.decode is None:
        raise ConfigError(f"cache={config.cache} needs a pipeline that decodes", hint="set cache=none")
    trial = _try_some(dataset, pipeline, pipeline.decode, config.seed, stop_if_useless=config.cache == "auto")
    size = f"{len(dataset):,} images, about {_bytes(trial.total)} decoded"
    where: CachePolicy = config.cache
    if config.cache == "auto":
        where, why = _choice(trial, config, ranks)
        if where == "none":
            return dataset, f"decoded images are not cached: {why}"
    elif config.cache == "memory" and trial.total > memory_available():
        raise DataError(
            f"cache=memory: {size}, but only {_bytes(memory_available())} of memory are available",
            hint="set cache=disk or cache=none",
        )
    changed = "; with this cache the pixels of batches differ from those without it" if trial.differs else ""
    key = blake2b(f"{dataset.fingerprint()}\0{pipeline.settings}".encode(), digest_size=16).hexdigest()
    threads = max(1, config.workers)
    if where == "memory":
        with nameless_file() as file:
            write_decoded(dataset, pipeline.decode, file, key=key, threads=threads)
            return DecodedDataset(file.fileno()), f"{size}, cached in memory{changed}"
    path = _folder(config) / f"{key}.images"
    try:
        again = _on_disk(path, dataset, pipeline.decode, threads)
    except OSError as error:
        problem = f"cannot write {path}: {os.strerror(error.errno or 0)}"
        if config.cache == "auto":
            return dataset, f"decoded images are not cached: {problem}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            problem += f"; about {trial.total:,} bytes are needed and {shutil.disk_usage(path.parent).free:,} are free"
        raise DataError(problem, hint="free some space, set another cache_folder, or set cache=none") from error
    return DecodedDataset(path), f"{size}, cached in {path}{again}{changed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    total: int  # estimated bytes of all decoded images
    differs: bool  # whether the transform of decoded pixels differs from that of the file
    pixels: bool  # whether the dataset holds pixels anyway


def _try_some(dataset: Dataset, pipeline: Pipeline, decode: Decode, seed: int, *, stop_if_useless: bool) -> _Trial:
    """Decode and transform some images, evenly spread, with and without the cache; stop early if the cache is of no use."""
    sizes: list[int] = []
    differs = pixels = False
    for index in np.unique(np.linspace(0, len(dataset) - 1, _SAMPLES).astype(np.int64)).tolist():
        try:
            sample = dataset.read(index)
            decoded = replace(sample, content=decode(sample))
        except (DataError, OSError):
            continue  # the loader handles broken images by its own policy
        assert isinstance(decoded.content, np.ndarray)
        sizes.append(decoded.content.nbytes)
        pixels = pixels or not isinstance(sample.content, bytes)
        for epoch in range(2):
            plain, cached = (_pixels(pipeline.transform(one, rng_of(seed, epoch, index))) for one in (sample, decoded))
            differs = differs or not np.array_equal(plain, cached)
        if stop_if_useless and (pixels or differs):
            break
    return _Trial(total=round(float(np.mean(sizes or [0])) * len(dataset)), differs=differs, pixels=pixels)


def _pixels(made: Pixels | Framed) -> Pixels:
    return made.image_HWC if isinstance(made, Framed) else made


def _choice(trial: _Trial, config: LoaderConfig, ranks: int) -> tuple[CachePolicy, str]:
    """Where `auto` caches images: memory, disk or none; and the reason for none."""
    if trial.pixels:
        return "none", "the dataset holds pixels already"
    if trial.differs:
        return "none", "the transform decodes only a part of each image, so a cache would change its pixels"
    # Ranks on one machine each have their own cache in memory, and share one file on disk.
    memory = min(_MOST_MEMORY, memory_available() // 4) / ranks
    if trial.total <= memory:
        return "memory", ""
    disk = min(_MOST_DISK, shutil.disk_usage(_existing(_folder(config))).free // 4)
    if trial.total <= disk:
        return "disk", ""
    return "none", f"about {_bytes(trial.total)}, more than {_bytes(memory)} of memory or {_bytes(disk)} of disk"


def _folder(config: LoaderConfig) -> Path:
    return cache_folder() / "decoded" if config.cache_folder is None else Path(config.cache_folder).expanduser()


def _existing(folder: Path) -> Path:
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())


def _on_disk(path: Path, dataset: Dataset, decode: Decode, threads: int) -> str:
    """Make the file unless it exists undamaged; returns the end of the note."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")):  # a second rank waits, and then finds the file
        if is_sound(path):
            return ", found and verified"
        damaged = path.exists()
        for left in path.parent.glob(f"{path.name}.*{_UNFINISHED}"):  # left by a killed writer: we hold the lock
            left.unlink()
        unfinished = path.with_name(f"{path.name}.{os.getpid()}{_UNFINISHED}")
        try:
            with unfinished.open("xb") as file:
                write_decoded(dataset, decode, file, key=path.stem, threads=threads)
                os.fsync(file.fileno())
            unfinished.replace(path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
        return ", made again because it was damaged" if damaged else ""


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
