"""The loader: batches that are the same bits with any number of workers, after any interruption, and over any number of ranks.

Axes: B rows of a batch, H height, W width, C channels.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np

from vitlab.config.data import LoaderConfig
from vitlab.data.batch import Batch, Failure, Feed, Filler, Pixels, Report, label_array
from vitlab.data.dataset import Dataset, ListedDataset
from vitlab.data.sampler import InTurn, Order, Picks, Share, Shuffled, Weighted, running_weights
from vitlab.data.workers.decoded_cache import DecodedDataset, decode_once
from vitlab.data.workers.processes import Processes
from vitlab.data.workers.threads import InCaller, Pool, Threads
from vitlab.errors import ConfigError, DataError

_LISTED = 10


class Loader:
    """Batches of a source, starting anywhere.

    `feed` says how an image becomes pixels; where workers are processes, its view and the source must be picklable.
    In training the stream never ends, takes every image once an epoch, and a batch may hold the end of one epoch and the
    beginning of the next; in evaluation it takes every image once, in the source's order, and the last batch may be smaller.
    `share` is this rank's part of each batch.

    `order` and `notes` may be read: what comes when, and what was decided, a sentence each.
    """

    def __init__(
        self,
        dataset: Dataset,
        feed: Feed,
        *,
        config: LoaderConfig,
        train: bool,
        share: Share = Share(),  # noqa: B008 (a frozen value)
    ) -> None:
        if len(dataset) == 0:
            raise DataError("there are no images to load")
        if train and config.batch_size % share.ranks:
            raise ConfigError(
                f"batch_size={config.batch_size} cannot be shared equally by {share.ranks} ranks",
                hint=f"make it a multiple of {share.ranks}: ranks of unequal batches would weigh their images differently",
            )
        self.config = config
        self.train = train
        self.share = share
        self.order: Order = _order(dataset, config) if train else InTurn(length=len(dataset))
        # Looked up here by index: workers need not know of them. Judged is by the likeliest class alone.
        self.soft = dataset.soft if train and isinstance(dataset, ListedDataset) else None
        self.dataset, note = decode_once(dataset, feed, config, ranks=share.ranks)
        self.notes: tuple[str, ...] = () if note is None else (note,)
        self._idle: list[Pool] = []  # workers of streams that have ended, for the next one
        self._end = weakref.finalize(self, _close_all, self._idle)
        self._filler = Filler(
            dataset=self.dataset,
            view=feed.view,
            shape=feed.shape,
            seed=config.seed,
            replace=train,
            patient=config.corrupt == "skip",
        )

    def __len__(self) -> int:
        """Batches from beginning to end; in training there is no end."""
        if self.order.total is None:
            raise TypeError("a training loader never ends; order.epoch_length says how many images an epoch has")
        return -(-self.order.total // self.config.batch_size)

    def __iter__(self) -> Stream:
        return self.batches()

    def batches(self, position: int = 0) -> Stream:
        """The batches from a position on: the number of images that all ranks together have consumed before.

        Workers start at the first such call, so ask for the stream before building a model; later streams find them waiting.
        They end when the loader is closed or no longer held, on any error, and with the program.
        """
        if position < 0 or (self.order.total is not None and position > self.order.total):
            raise ConfigError(f"position={position} must be from 0 to {self.order.total or 'any number'}")
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
        """End the workers of all streams that are done; a stream that is not ends its own."""
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
    """Batches one after the other, with the work on the next ones under way. Close it, or use `with`, if you leave early.

    `failures` are the images that could not be read since it began, each once, in the order they were met: what a summary
    reports, and what the budget is compared with. Each rank knows of its own.
    """

    def __init__(self, loader: Loader, pool: Pool, position: int) -> None:
        self.pool = pool
        self._loader = loader
        self._ends: dict[int, tuple[int, Picks]] = {}  # of batches under way, by number: where they end, and our rows
        self._next = 0  # the number of the next batch to give
        self._started = position  # how far work has been handed out
        self._failures: dict[int, Failure] = {}
        # For when nobody closes it: on collection, or at the end of the program.
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
            self._end()  # workers in an unknown state are no use to another stream
            raise
        return batch

    def close(self) -> None:
        """The stream is then at its end, and its workers wait for the loader's next."""
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
        loader, total = self._loader, self._loader.order.total
        ahead = loader.config.prefetch if self.pool.background else 1
        while len(self._ends) < ahead and self._started != total:
            start = self._started
            end = start + loader.config.batch_size if total is None else min(start + loader.config.batch_size, total)
            first, last = loader.share.rows(end - start)
            picks = loader.order.picks(start + first, start + last)
            number = self._next + len(self._ends)
            self.pool.start(number, picks)
            self._ends[number] = (end, picks)
            self._started = end

    def _assembled(self, images_BHWC: Pixels, reports: list[Report], picks: Picks, end: int) -> Batch:
        loader = self._loader
        failed: list[Failure] = []
        there_B = np.ones(len(picks), np.bool_)
        first = 0
        for report in reports:
            for row, failure in report.failures:
                if loader.config.corrupt == "fail":
                    raise DataError(str(failure), hint="repair or remove it, or set corrupt=skip to go on without such images")
                failed.append(failure)
                there_B[first + row] = failure.replaced_by is not None
            if report.trouble is not None:
                raise report.trouble.error()
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
        if not there_B.all():
            images_BHWC, index_B, labels = images_BHWC[there_B], index_B[there_B], labels[there_B]
        begin = end - loader.config.batch_size if loader.order.total is None else 0
        return Batch(
            images_BHWC=images_BHWC,
            labels=labels,
            index_B=index_B,
            epoch=begin // loader.order.epoch_length,
            position=end,
            failed=tuple(failed),
        )

    def _refuse_too_many(self, failed: tuple[Failure, ...]) -> None:
        """Stop above the budget: counted by image, not by showing, and in the order of batches, so the same for any workers."""
        for failure in failed:
            self._failures.setdefault(failure.index, failure)
        budget, count = self._loader.config.corrupt_budget, len(self._loader.dataset)
        if len(self._failures) / count > budget:
            listed = "; ".join(str(failure) for failure in self.failures[:_LISTED])
            raise DataError(
                f"{len(self._failures):,} of {count:,} images cannot be read, above corrupt_budget={budget:g}: {listed}",
                hint="`vitlab data check` lists all of them; repair or remove them, or raise corrupt_budget",
            )


def _close_all(pools: list[Pool]) -> None:
    while pools:
        pools.pop().close()


def _order(dataset: Dataset, config: LoaderConfig) -> Order:
    if not config.weighted:
        return Shuffled(length=len(dataset), seed=config.seed, repeats=config.repeats)
    reach_N = running_weights(
        (dataset.label(index) for index in range(len(dataset))),
        len(dataset.labels),
        balance=config.balance,
        class_weights=config.class_weights,
    )
    return Weighted(reach_N=reach_N, seed=config.seed, repeats=config.repeats)
