"""The data of a run: its splits, and the record of them, `data.npz` in the run folder. A resumed run compares its data with it.

    classes     their names, in order; none for masked patch prediction, which uses no labels
    samples     name, label and order of every sample of the training split and of the evaluation split
    content     the hash of each sample's content; in a split above 10,000 samples, that of 10,000 evenly spaced ones

A sample's name is, below the dataset's own path, the path of its file, the member of its zip or tar shard, or the number of its row
in a Parquet file or array. The content of a sample is the bytes of its image file, and of its mask if it has one, or its pixels if
the dataset holds pixels. On a server it is known by the version of its file and its place in it, so that nothing is read. So
the record is the same in another place, and after a copy that changes the times of files. Synthetic data, and every other dataset
that is not an `ImageDataset`, gives a number of samples and one hash of all of them.

A record of 1,281,167 samples takes a few seconds to make and some ten megabytes.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.config.data import Split
from vitlab.config.run import RunConfig
from vitlab.data.dataset import Dataset, ImageDataset, listed, versions_of
from vitlab.data.opening import open_dataset
from vitlab.data.readers.recognise import READERS
from vitlab.data.split import take_split
from vitlab.errors import DataError, TrainingError
from vitlab.io.address import address_of, is_address
from vitlab.io.arrays import open_npz
from vitlab.io.atomic import replacing
from vitlab.io.digests import DIGEST_BYTES, Digests
from vitlab.io.files import Names

_VERSION = 1
_MOST_HASHED = 10_000  # samples of a split whose content is read; the first start of a run waits for it
_MOST_NAMED = 3  # samples of each kind of change in a message
_SPLITS = ("train", "evaluate")
_DRAWN_STREAM = 205  # a random stream of the run's seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitRecord:
    """The samples of one split. `codes` are their labels; `digests` the hashes of their content, of all or of evenly spaced ones.

    A dataset that does not name its samples has no names, no codes, and one digest of everything.
    """

    count: int
    names: Names
    codes: NDArray[np.int64]
    digests: Digests

    @classmethod
    def of(cls, dataset: Dataset, place: str) -> SplitRecord:
        """The record of a split; names begin after `place`, the path of the dataset, or after its folder if it is a list."""
        if not isinstance(dataset, ImageDataset):
            made = blake2b(dataset.fingerprint().encode(), digest_size=DIGEST_BYTES).digest()
            digests = np.frombuffer(made, np.uint8).reshape(1, DIGEST_BYTES)
            return cls(count=len(dataset), names=Names(()), codes=np.zeros(0, np.int64), digests=digests)
        name_of = dataset.contents.name
        beginnings = (place, os.path.join(os.path.dirname(place), ""), "/", ", ")  # noqa: PTH118, PTH120 (a Path has no last slash)
        names = Names(_without(name_of(row), beginnings) for row in dataset.rows.tolist())
        return cls(count=len(dataset), names=names, codes=_codes(dataset), digests=_digests(dataset))

    def changes(self, now: SplitRecord) -> list[str]:
        """What `now` has otherwise, `2 added (a/7.png, b/3.png)` and so on; empty if it is the same."""
        if self.count == now.count and all(
            np.array_equal(mine, its) for mine, its in zip(self._arrays(), now._arrays(), strict=True)
        ):
            return []
        if not len(self.names) or not len(now.names):
            return ["others" if now.count == self.count else f"{now.count:,} instead of {self.count:,}"]
        before, after = Counter(self.names), Counter(now.names)
        old, new = self._facts(), now._facts()
        kinds = {
            "added": list((after - before).elements()),
            "removed": list((before - after).elements()),
            "changed": [name for name, facts in new.items() if name in old and _differ(old[name], facts)],
        }
        found = [f"{len(names):,} {kind} ({listed(names, most=_MOST_NAMED)})" for kind, names in kinds.items() if names]
        return found or ["the same samples in another order"]

    def _arrays(self) -> tuple[NDArray[np.generic], ...]:
        blob, ends = self.names.buffers()
        return np.frombuffer(blob, np.uint8), ends, self.codes, self.digests

    def _facts(self) -> dict[str, tuple[int, bytes | None]]:
        """The label of each sample, and the hash of its content where it is known."""
        hashes = dict(zip(_spaced(self.count).tolist(), map(bytes, self.digests), strict=True))
        return {name: (code, hashes.get(row)) for row, (name, code) in enumerate(zip(self.names, self.codes.tolist(), strict=True))}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataRecord:
    """The classes and the samples of a run: of its training split, and of its evaluation split if it has one."""

    labels: tuple[str, ...]
    splits: Mapping[str, SplitRecord]

    @classmethod
    def of(cls, run: RunConfig, train: Dataset, evaluate: Dataset | None) -> DataRecord:
        """The record of a run's data; it reads the content of at most 10,000 samples of each split."""
        place = _place(run.data.dataset)
        splits = {"train": SplitRecord.of(train, place)}
        if evaluate is not None:
            splits["evaluate"] = SplitRecord.of(evaluate, place)
        return cls(labels=() if run.train.masked is not None else train.labels, splits=splits)

    def changes(self, now: DataRecord) -> list[str]:
        """What the data of `now` has otherwise, a clause for each split; a split that only one of them has is not compared."""
        both = [name for name in _SPLITS if name in self.splits and name in now.splits]
        changes = ((name, self.splits[name].changes(now.splits[name])) for name in both)
        return [
            f"{'training' if name == 'train' else 'evaluation'} samples: {', '.join(found)}" for name, found in changes if found
        ]

    def write(self, path: Path) -> None:
        """Write the record, atomically."""
        arrays: dict[str, NDArray[np.generic]] = {
            "version": np.array([_VERSION], np.int64),
            "labels": np.frombuffer(json.dumps(self.labels).encode(), np.uint8),
        }
        for name, split in self.splits.items():
            blob, ends, codes, digests = split._arrays()
            counted = np.array([split.count], np.int64)
            arrays |= {f"{name}_count": counted, f"{name}_names": blob, f"{name}_ends": ends}
            arrays |= {f"{name}_codes": codes, f"{name}_digests": digests}
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **arrays)
        with replacing(path, needed=file.tell(), error=TrainingError) as out:
            out.write(file.getbuffer())

    @classmethod
    def read(cls, path: Path) -> DataRecord:
        """The record in a file; TrainingError if it is damaged."""
        try:
            arrays = {name: array.load() for name, array in open_npz(path).items()}
            if arrays["version"].tolist() != [_VERSION]:
                raise ValueError("it was written by another version of vitlab")
            labels = json.loads(arrays["labels"].tobytes())
            if not isinstance(labels, list):
                raise ValueError("it has no list of classes")
            splits = {name: _split(arrays, name) for name in _SPLITS if f"{name}_count" in arrays}
            return cls(labels=tuple(map(str, labels)), splits=splits)
        except (DataError, OSError, KeyError, ValueError, TypeError, IndexError, RecursionError) as error:
            reason = error.message if isinstance(error, DataError) else f"cannot read {path}: {error}"
            raise TrainingError(
                f"the record of the run's data is damaged: {reason}", hint=f"delete {path} to resume without comparing the data"
            ) from error


def open_splits(run: RunConfig, dataset: Dataset | None = None) -> tuple[Dataset, Dataset | None]:
    """The training split and the evaluation split, if the run has one; `dataset` is all of the data, if it is open already."""
    whole = open_dataset(run.data.dataset, split="all", rule=run.data.rule) if dataset is None else dataset
    evaluate = run.data.evaluate_split
    return _taken(run, run.data.train_split, whole), None if evaluate is None else _taken(run, evaluate, whole)


def _taken(run: RunConfig, split: Split, whole: Dataset) -> Dataset:
    if isinstance(whole, ImageDataset):
        return take_split(whole, split, run.data.rule, where=run.data.dataset)
    return open_dataset(run.data.dataset, split=split, rule=run.data.rule)


def some_images(dataset: Dataset, count: int, *, seed: int) -> Dataset:
    """So many images of a split, drawn by the seed, in its order; all of them if `count` is 0 or the dataset draws its images."""
    if not count or count >= len(dataset) or not isinstance(dataset, ImageDataset):
        return dataset
    drawn = np.random.default_rng([seed, _DRAWN_STREAM]).permutation(len(dataset))[:count]
    return dataset.take(np.sort(drawn))


def data_record(run: RunConfig) -> DataRecord:
    """The record of a run's data as it is now."""
    return DataRecord.of(run, *open_splits(run))


def same_data(run: RunConfig, path: Path, dataset: Dataset | None = None, *, now: DataRecord | None = None) -> bool:
    """Whether a run's data is still that of the record at `path`; also True if there is none, as in folders of earlier versions.

    `dataset` is all of the data, if it is open already; `now` is its record, if that is known already.
    """
    if not path.exists():
        return True
    known = DataRecord.read(path)
    now = now or DataRecord.of(run, *open_splits(run, dataset))
    return known.labels == now.labels and not known.changes(now)


def refuse_other_labels(before: tuple[str, ...], now: tuple[str, ...], *, where: Path) -> None:
    """DataError if the data has other classes, or another order of them, than the run in `where` began with.

    The weights of a head mean these classes in this order, so `--override` does not help.
    """
    if before == now:
        return
    gone, new = ([name for name in one if name not in set(other)] for one, other in ((before, now), (now, before)))
    moved = [f"{one} is now {other}" for one, other in zip(before, now, strict=False) if one != other]
    what = "; ".join([f"no longer there: {listed(gone)}"] * bool(gone) + [f"new: {listed(new)}"] * bool(new)) or listed(moved)
    raise DataError(
        f"the run in {where} began with the classes {listed(before)}, and the data now has {listed(now)} ({what})",
        hint="give the data its old classes, or train on the new ones in another folder with `out`",
    )


def _place(spec: str) -> str:
    prefix, _, rest = spec.partition(":")
    place = rest if prefix in READERS and rest else spec
    return str(address_of(place)) if is_address(place) else str(Path(place).expanduser())


def _without(name: str, beginnings: Iterable[str]) -> str:
    for beginning in beginnings:
        name = name.removeprefix(beginning)
    return name


def _codes(dataset: ImageDataset) -> NDArray[np.int64]:
    """A number for each sample that changes with its label: the class, or a checksum of several or soft labels."""
    table, soft = dataset.table, dataset.soft
    if table.starts is not None:
        rows: Iterable[bytes] = (
            table.codes[start:end].tobytes() for start, end in zip(table.starts, table.starts[1:], strict=False)
        )
    elif soft is not None:
        rows = (code.tobytes() + weight.tobytes() for code, weight in zip(soft.codes_NK, soft.probabilities_NK, strict=True))
    else:
        return table.codes.astype(np.int64)
    return np.fromiter(map(zlib.crc32, rows), np.int64, len(dataset))


def _spaced(count: int) -> NDArray[np.int64]:
    """The samples whose content is hashed."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, _MOST_HASHED)).astype(np.int64))


def _digests(dataset: ImageDataset) -> Digests:
    chosen = _spaced(len(dataset))
    rows = dataset.rows[chosen]
    if (versions := versions_of(dataset.contents, rows)) is not None:  # no rank reads images of another for the record
        return versions
    try:
        found_of_images = dataset.contents.digests(rows)
        for targets in (dataset.masks, dataset.boxes):
            found_of_images = found_of_images if targets is None else found_of_images ^ targets.digests(chosen)
        return found_of_images
    except DataError:  # the loader decides whether an unreadable image ends the run; its hash is zero
        found = np.zeros((len(rows), DIGEST_BYTES), np.uint8)
        for place in range(len(rows)):
            try:
                found[place] = dataset.contents.digests(rows[place : place + 1])[0]
            except DataError:
                continue
        return found


def _differ(before: tuple[int, bytes | None], now: tuple[int, bytes | None]) -> bool:
    (code, content), (code_now, content_now) = before, now
    return code != code_now or (content is not None and content_now is not None and content != content_now)


def _split(arrays: Mapping[str, NDArray[np.generic]], name: str) -> SplitRecord:
    count = int(arrays[f"{name}_count"].tolist()[0])
    names = Names.from_buffers(arrays[f"{name}_names"].tobytes(), arrays[f"{name}_ends"].astype(np.int64))
    codes, digests = arrays[f"{name}_codes"].astype(np.int64), arrays[f"{name}_digests"].astype(np.uint8)
    hashed = len(_spaced(count)) if len(names) else 1
    if len(codes) != len(names) or (len(names) and len(names) != count) or digests.shape != (hashed, DIGEST_BYTES):
        raise ValueError(f"its arrays of the {name} split do not belong together")
    return SplitRecord(count=count, names=names, codes=codes, digests=digests)
