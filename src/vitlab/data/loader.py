"""The loader: batches that are bit-identical with any number of workers, after a resume, and over any number of ranks.

torch's DataLoader takes the same datasets; this loader also resumes at any position at once, names the image when a worker dies or
hangs, and keeps decoded images in a cache.

Axes: B rows of a batch, H height, W width, C channels; N images of a cache.
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
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import CachePolicy, LoaderConfig
from vitlab.data.batch import (
    VISIBLE,
    Batch,
    BatchBoxes,
    Decode,
    Failure,
    Filler,
    Framed,
    Pipeline,
    Report,
    batch_boxes,
    label_array,
    move_boxes,
)
from vitlab.data.dataset import UNKNOWN, Boxes, Dataset, ImageDataset, Label, LabelTable, Pixels, RawSample
from vitlab.data.sampler import (
    Indices,
    Picks,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Share,
    WeightedSampler,
    rng_of,
    running_weights,
)
from vitlab.data.worker_processes import Processes
from vitlab.data.worker_threads import InCaller, Pool, Threads
from vitlab.errors import ConfigError, DataError
from vitlab.io.atomic import locked, sync_folder
from vitlab.io.cache import cache_folder
from vitlab.io.files import Names
from vitlab.io.machine import memory_available, nameless_file, prefetched

_LISTED = 10


class Loader:
    """Batches of a dataset, from any position.

    `pipeline` says how a sample becomes pixels; for worker processes its transform and the dataset must be picklable.
    In training the stream never ends, takes every image once per epoch, and a batch may hold the end of one epoch and the start
    of the next. In evaluation it takes every image once, in the dataset's order, and the last batch may be smaller.
    `share` selects this rank's rows of each batch.

    `sampler` says which image comes when; `notes` are sentences about what was decided.
    """

    def __init__(
        self,
        dataset: Dataset,
        pipeline: Pipeline,
        *,
        config: LoaderConfig,
        train: bool,
        share: Share = Share(),  # noqa: B008 (a frozen value)
    ) -> None:
        if len(dataset) == 0:
            raise DataError("there are no images to load")
        if train and config.batch_size < share.ranks:
            raise ConfigError(
                f"batch_size={config.batch_size} is below the number of ranks, {share.ranks}: some would have no images",
                hint=f"use a batch size of at least {share.ranks}, or fewer ranks",
            )
        self.config = config
        self.train = train
        self.share = share
        self.sampler: Sampler = _sampler(dataset, config) if train else SequentialSampler(length=len(dataset))
        # Soft labels are looked up here by index, so workers do not need them. Evaluation uses the likeliest class alone.
        self.soft = dataset.soft if train and isinstance(dataset, ImageDataset) else None
        self.dataset, note = cache_decoded(dataset, pipeline, config, ranks=share.ranks)
        self.notes: tuple[str, ...] = () if note is None else (note,)
        self._idle: list[Pool] = []  # workers of streams that have ended, for the next stream
        self._end = weakref.finalize(self, _close_all, self._idle)
        self.masks = pipeline.masks
        # Boxes too: transforms say where they put an image, and its boxes are moved here.
        self.boxes = dataset.boxes if pipeline.boxes and isinstance(dataset, ImageDataset) else None
        self._filler = Filler(
            dataset=self.dataset,
            transform=pipeline.transform,
            shape=pipeline.shape,
            seed=config.seed,
            replace=train,
            skip=config.corrupt == "skip",
        )

    def __len__(self) -> int:
        """Number of batches; TypeError in training, where there is no end."""
        if self.sampler.total is None:
            raise TypeError("a training loader never ends; sampler.epoch_length is the number of images of an epoch")
        return -(-self.sampler.total // self.config.batch_size)

    def __iter__(self) -> Stream:
        return self.batches()

    def batches(self, position: int = 0) -> Stream:
        """The batches from a position, which is the number of images that all ranks together have consumed before.

        The first call starts the workers, so make it before building a model; later calls reuse them. Workers end when the loader
        is closed or garbage-collected, on any error, and with the program.
        """
        if position < 0 or (self.sampler.total is not None and position > self.sampler.total):
            raise ConfigError(f"position={position} must be from 0 to {self.sampler.total or 'any number'}")
        if not self._end.alive:
            raise DataError("this loader has been closed")
        pool = self._idle.pop() if self._idle else self._new_pool()
        try:
            pool.forget()
            return Stream(self, pool, position)
        except BaseException:
            pool.close()
            raise

    def close(self) -> None:
        """End the workers of all finished streams; a stream that is still in use ends its own."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _new_pool(self) -> Pool:
        config = self.config
        if config.workers == 0:
            return InCaller(self._filler)
        if config.worker_kind == "thread":
            return Threads(self._filler, workers=config.workers, timeout=config.timeout)
        keep = self.dataset.descriptors if isinstance(self.dataset, DecodedDataset) else ()
        rows = -(-config.batch_size // self.share.ranks)
        return Processes(self._filler, workers=config.workers, timeout=config.timeout, slots=config.prefetch, rows=rows, keep=keep)


class Stream(Iterator[Batch]):
    """An iterator over batches that prefetches the next ones. Close it, or use `with`, if you stop early.

    `failures` are the images that could not be read so far, each once, in order; `corrupt_budget` limits their number. Each rank
    knows its own.
    """

    def __init__(self, loader: Loader, pool: Pool, position: int) -> None:
        self.pool = pool
        self._loader = loader
        self._ends: dict[int, tuple[int, Picks]] = {}  # of batches in progress, by number: their end position, and our rows
        self._next = 0  # number of the next batch to return
        self._started = position  # position up to which work has been handed out
        self._failures: dict[int, Failure] = {}
        # If nobody closes it: on garbage collection, or at the end of the program.
        self._end = weakref.finalize(self, pool.close)
        if pool.background:
            self._start_more()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Images that could not be read so far, each once."""
        return tuple(self._failures.values())

    def __next__(self) -> Batch:
        try:
            if self._end.alive:
                self._start_more()
            if not self._end.alive or self._next not in self._ends:
                self.close()
                raise StopIteration
            end, picks = self._ends.pop(self._next)
            images_BHWC, reports = self.pool.finish(self._next)
            self._next += 1
            batch = self._assembled(images_BHWC, reports, picks, end)
            self._refuse_too_many(batch.failed)
            if self.pool.background:
                self._start_more()
        except StopIteration:
            raise
        except BaseException:
            self._end()  # workers in an unknown state cannot serve another stream
            raise
        return batch

    def close(self) -> None:
        """End the stream; its workers wait for the loader's next stream."""
        if self._end.detach() is None:
            return
        if self._loader._end.alive:
            self._loader._idle.append(self.pool)
        else:
            self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start_more(self) -> None:
        loader, total = self._loader, self._loader.sampler.total
        depth = loader.config.prefetch if self.pool.background else 1
        while len(self._ends) < depth and self._started != total:
            start = self._started
            end = start + loader.config.batch_size if total is None else min(start + loader.config.batch_size, total)
            first, last = loader.share.rows(end - start)
            picks = loader.sampler.picks(start + first, start + last)
            number = self._next + len(self._ends)
            self.pool.start(number, picks)
            self._ends[number] = (end, picks)
            self._started = end

    def _assembled(self, images_BHWC: Pixels, reports: list[Report], picks: Picks, end: int) -> Batch:
        loader = self._loader
        failed: list[Failure] = []
        present_B = np.ones(len(picks), np.bool_)
        first = 0
        for report in reports:
            for row, failure in report.failures:
                if loader.config.corrupt == "fail":
                    raise DataError(str(failure), hint="repair or remove it, or set `corrupt=skip` to continue without such images")
                failed.append(failure)
                present_B[first + row] = failure.replaced_by is not None
            if report.fatal is not None:
                raise report.fatal.error()
            first += len(report.index)
        index_B = np.array([index for report in reports for index in report.index], np.int64)
        if loader.soft is None:
            labels = label_array(
                [label for report in reports for label in report.labels],
                len(loader.dataset.labels),
                multi_label=loader.dataset.multi_label,
            )
        else:
            labels = loader.soft.targets(index_B, len(loader.dataset.labels))
        boxes_BM6 = None if loader.boxes is None else self._moved_boxes(loader.boxes, reports, index_B, present_B)
        if not present_B.all():
            images_BHWC, index_B, labels = images_BHWC[present_B], index_B[present_B], labels[present_B]
        masks_BHW: Pixels | None = None
        if loader.masks:
            images_BHWC, masks_BHW = np.ascontiguousarray(images_BHWC[..., :-1]), np.ascontiguousarray(images_BHWC[..., -1])
        begin = end - loader.config.batch_size if loader.sampler.total is None else 0
        return Batch(
            images_BHWC=images_BHWC,
            labels=labels,
            index_B=index_B,
            epoch=begin // loader.sampler.epoch_length,
            position=end,
            failed=tuple(failed),
            masks_BHW=masks_BHW,
            boxes_BM6=boxes_BM6,
        )

    def _moved_boxes(self, boxes: Boxes, reports: list[Report], index_B: Indices, present_B: NDArray[np.bool_]) -> BatchBoxes:
        frames = [frame for report in reports for frame in report.frames]
        visible = VISIBLE if self._loader.train else 0.0
        rows = []
        for index, frame, present in zip(index_B.tolist(), frames, present_B.tolist(), strict=True):
            if present:
                assert frame is not None, "a transform of images with boxes says where it puts them"
                rows.append(move_boxes(boxes[index], frame, visible=visible))
        return batch_boxes(rows)

    def _refuse_too_many(self, failed: tuple[Failure, ...]) -> None:
        """DataError above the budget. Each image counts once, in the order of batches, so workers make no difference."""
        for failure in failed:
            self._failures.setdefault(failure.index, failure)
        budget, count = self._loader.config.corrupt_budget, len(self._loader.dataset)
        if len(self._failures) / count > budget:
            listed = "; ".join(str(failure) for failure in self.failures[:_LISTED])
            raise DataError(
                f"{len(self._failures):,} of {count:,} images cannot be read, above corrupt_budget={budget:g}: {listed}",
                hint="`vitlab data check` lists them all; repair or remove them, or raise corrupt_budget in the config of the run",
            )


def _close_all(pools: list[Pool]) -> None:
    while pools:
        pools.pop().close()


def _sampler(dataset: Dataset, config: LoaderConfig) -> Sampler:
    if not config.weighted:
        return RandomSampler(length=len(dataset), seed=config.seed, repeats=config.repeats)
    reach_N = running_weights(
        (dataset.label(index) for index in range(len(dataset))),
        len(dataset.labels),
        balance=config.balance,
        class_weights=config.class_weights,
    )
    return WeightedSampler(reach_N=reach_N, seed=config.seed, repeats=config.repeats)


# --- the cache of decoded images ---------------------------------------------------------------------------------------------

# One file of pixels, in memory or on disk, that all workers map and none copies.
#
# A cache must not change batches. So `auto` caches nothing if the transform of some images differs by a bit with and without it (it
# does for a transform that decodes only a part of a JPEG). A file on disk is verified, and made again if it is damaged.
#
# The file holds the pixels end to end; then a table, which is an .npz (sizes, labels, names, and why some images could not be
# decoded); then 64 bytes: a mark, where the table begins and ends, and the SHA-256 of everything before.

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
