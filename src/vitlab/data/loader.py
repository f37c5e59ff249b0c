"""The loader: batches that are bit-identical with any number of workers, after a resume, and over any number of ranks.

torch's DataLoader takes the same datasets; this loader also resumes at any position at once, and names the image when a worker
dies or hangs.

Axes: B rows of a batch, H height, W width, C channels.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import LoaderConfig
from vitlab.data.batch import Batch, Failure, Filler, Pipeline, Report, label_array
from vitlab.data.dataset import Boxes, Dataset, ImageDataset, Pixels
from vitlab.data.decoded_cache import DecodedDataset, cache_decoded
from vitlab.data.frame import VISIBLE, BatchBoxes, batch_boxes, move_boxes
from vitlab.data.sampler import Indices, Picks, RandomSampler, Sampler, SequentialSampler, Share, WeightedSampler, running_weights
from vitlab.data.worker_processes import Processes
from vitlab.data.worker_threads import InCaller, Pool, Threads
from vitlab.errors import ConfigError, DataError

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
