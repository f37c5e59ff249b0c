"""Features of a dataset's images: extracted once, in batches, and cached.

A feature is the input of the model's head. `FeatureStore` keeps features in the user's cache folder by the hash of the image's
bytes: another split, order, label or container of the same images finds them again, and interrupted work resumes where it stopped.

Axes: B rows of a batch, N images, D width of the features; H height, W width, C channels; 16 bytes of a hash.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from vitlab import __version__
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.checkpoints.native import tensors_digest
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.serialize import to_text
from vitlab.data.batch import Failure
from vitlab.data.dataset import Dataset, ImageDataset, Label, RawSample
from vitlab.errors import DataError
from vitlab.evaluation.evaluation import engine_for
from vitlab.inference.backends import evaluating
from vitlab.inference.engine import Engine
from vitlab.io.cache import cache_folder
from vitlab.io.digests import DIGEST_BYTES, Digests, digest
from vitlab.io.display import ProgressCallback, silent

Rows = NDArray[np.float32]

_KEPT_AT_ONCE = 1024  # images: how much an interruption loses at most
_LAYOUT = 2  # of what is kept; change it, or the version of vitlab, to extract everything again


class FeatureStore:
    """The cached features of one model. `key` identifies it, and must change with whatever changes a feature.

    `trouble` is the reason why features could not be kept (a full disk, no permission), or None; extraction continues either way.
    """

    def __init__(self, key: str) -> None:
        self.folder = cache_folder() / "features" / key
        self.trouble: str | None = None

    def lookup(self, digests_N16: Digests) -> tuple[NDArray[np.bool_], Rows | None]:
        """Which of these images are cached, (N,), and their features, in order; None if none is."""
        wanted_N = _as_text(digests_N16)
        order_N = np.argsort(wanted_N, kind="stable")
        known_N = np.zeros(len(wanted_N), np.bool_)
        found_ND: Rows | None = None
        for digests_M16, features_MD in self._chunks():
            if found_ND is not None and features_MD.shape[1] != found_ND.shape[1]:
                continue
            low_M = np.searchsorted(wanted_N, _as_text(digests_M16), side="left", sorter=order_N)
            high_M = np.searchsorted(wanted_N, _as_text(digests_M16), side="right", sorter=order_N)
            for row in np.flatnonzero(high_M > low_M):  # more than one if the same image appears twice
                if found_ND is None:
                    found_ND = np.zeros((len(wanted_N), features_MD.shape[1]), np.float32)
                places = order_N[low_M[row] : high_M[row]]
                found_ND[places] = features_MD[row]
                known_N[places] = True
        return known_N, None if found_ND is None else found_ND[known_N]

    def keep(self, digests_N16: Digests, features_ND: Rows) -> None:
        """Keep the features of some images: all of them or, if that is not possible, none."""
        if self.trouble is not None or not len(digests_N16):
            return
        name = blake2b(np.ascontiguousarray(digests_N16).data, digest_size=DIGEST_BYTES).hexdigest()
        partial = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self.folder, prefix=".partial-")
            with os.fdopen(handle, "wb") as out:
                np.savez(out, allow_pickle=False, digests=digests_N16, features=features_ND)
            os.replace(partial, self.folder / f"{name}.npz")  # noqa: PTH105
        except OSError as error:
            self.trouble = f"features are not kept: {error.strerror or error} ({self.folder})"
            if partial is not None:
                Path(partial).unlink(missing_ok=True)

    def _chunks(self) -> Iterator[tuple[Digests, Rows]]:
        """What is kept, a file at a time; damaged files count as absent."""
        for path in sorted(self.folder.glob("*.npz")):
            try:
                with path.open("rb") as file:  # numpy leaves a damaged file open
                    stored = np.load(file, allow_pickle=False)
                    if not isinstance(stored, NpzFile):
                        continue
                    digests_M16, features_MD = stored["digests"], stored["features"]
            except (OSError, ValueError, EOFError, KeyError, BadZipFile):
                continue
            whole = digests_M16.dtype == np.uint8 and digests_M16.shape == (len(features_MD), DIGEST_BYTES)
            if whole and features_MD.dtype == np.float32 and features_MD.ndim == 2:
                yield digests_M16, features_MD


def _as_text(digests_N16: Digests) -> NDArray[np.bytes_]:
    """Each hash as one value that can be sorted; all have the same length, so none is cut short."""
    return np.ascontiguousarray(digests_N16).view(f"S{DIGEST_BYTES}").reshape(len(digests_N16))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Features:
    """The features and the class of each image that could be read, in the dataset's order.

    `indices_N` are the images' indices in their dataset, `names` the names of the classes. `failures` are the images that could
    not be read: they have no row, but in a test set they count as wrong. `cached` of the images were not read now but known from
    before. `notes` says what else there is to know.
    """

    features_ND: NDArray[np.float32]
    labels_N: NDArray[np.int64]
    indices_N: NDArray[np.int64]
    names: tuple[str, ...]
    failures: tuple[Failure, ...] = ()
    cached: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.features_ND.ndim == 2
        assert self.labels_N.shape == self.indices_N.shape == self.features_ND.shape[:1]

    def __len__(self) -> int:
        return len(self.labels_N)

    @property
    def total(self) -> int:
        """All images, unreadable ones included: the denominator of an accuracy."""
        return len(self) + len(self.failures)


def joined(parts: Sequence[Features]) -> Features:
    """Features of several datasets with the same classes as one; indices stay those of their own dataset."""
    assert len({part.names for part in parts}) == 1, "the datasets have the same classes"
    return Features(
        features_ND=np.concatenate([part.features_ND for part in parts]),
        labels_N=np.concatenate([part.labels_N for part in parts]),
        indices_N=np.concatenate([part.indices_N for part in parts]),
        names=parts[0].names,
        failures=tuple(failure for part in parts for failure in part.failures),
        cached=sum(part.cached for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def model_key(checkpoint: Checkpoint) -> str:
    """32 hexadecimal digits that depend on the weights, their type, the config, the preprocessing and the version of vitlab."""
    made = sha256(f"{_LAYOUT} {__version__} {_dtype(checkpoint)}".encode())
    made.update(tensors_digest(checkpoint.model.state_dict()).encode())
    made.update(to_text(checkpoint.config).encode() + to_text(checkpoint.preprocess).encode())
    return made.hexdigest()[:32]


def extract_features(
    checkpoint: Checkpoint,
    dataset: Dataset,
    *,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    store: FeatureStore | None = None,
    engine: Engine | None = None,
    description: str = "features",
    progress: ProgressCallback = silent,
) -> Features:
    """The features of every image of a dataset with one class per image.

    `store` (`FeatureStore(model_key(checkpoint))`) gives the features it has and keeps the others; None keeps nothing. `engine` is
    one for this checkpoint, if there is one already. Memory is 4 D bytes per image.
    """
    labels_N = labels_of(dataset)
    digests_N16 = None if store is None else digests_of(dataset)
    known_N, found_MD = np.zeros(len(dataset), np.bool_), None
    if store is not None and digests_N16 is not None:
        known_N, found_MD = store.lookup(digests_N16)
    extraction = _Extraction(dataset=dataset, store=store, digests_N16=digests_N16, made={}, failures=[])
    if len(missing := _to_read(known_N, config)):
        with evaluating(checkpoint.model):
            engine = engine_for(checkpoint, config) if engine is None else engine
            extraction.run(engine, missing, config, description, progress)
    else:
        progress(description, len(dataset), len(dataset))
    made, failures = extraction.made, extraction.failures
    read_N = known_N.copy()
    read_N[list(made)] = True
    if not read_N.any():
        raise DataError(f"none of {len(dataset):,} images could be read; the first: {failures[0]}")
    width = len(next(iter(made.values()))) if made else _width(found_MD)
    features_ND = np.empty((len(dataset), width), np.float32)
    if found_MD is not None:
        features_ND[known_N] = found_MD
    for index, row in made.items():
        features_ND[index] = row
    return Features(
        features_ND=features_ND if read_N.all() else features_ND[read_N],
        labels_N=labels_N[read_N],
        indices_N=np.flatnonzero(read_N).astype(np.int64),
        names=dataset.labels,
        failures=tuple(failures),
        cached=int(known_N.sum()),
        notes=() if store is None or store.trouble is None else (store.trouble,),
    )


def labels_of(dataset: Dataset) -> NDArray[np.int64]:
    """The class of each image; refuses a dataset whose images have none, or several."""
    if dataset.multi_label:
        raise DataError("these images may have several classes; few-shot, k-NN and probe need one class per image")
    if isinstance(dataset, ImageDataset):
        labels_N = dataset.table.codes.astype(np.int64)
    else:
        labels_N = np.array([-1 if (label := dataset.label(index)) is None else label for index in range(len(dataset))], np.int64)
    if (unknown := np.count_nonzero(labels_N < 0)) > 0:
        raise DataError(f"{unknown:,} of {len(dataset):,} images have no label", hint="use a split that has labels")
    return labels_N


def digests_of(dataset: Dataset) -> Digests:
    """The hash of each image's content, (N, 16)."""
    if isinstance(dataset, ImageDataset):
        return dataset.digests()
    made = b"".join(digest(dataset.read(index).content) for index in range(len(dataset)))
    return np.frombuffer(made, np.uint8).reshape(len(dataset), -1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subset(Dataset):
    """Some samples of a dataset, by their indices."""

    dataset: Dataset
    indices: NDArray[np.int64]

    @property
    def labels(self) -> tuple[str, ...]:
        """The dataset's classes."""
        return self.dataset.labels

    @property
    def multi_label(self) -> bool:
        """As the dataset."""
        return self.dataset.multi_label

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> RawSample:
        """The sample as the dataset gives it."""
        return self.dataset.read(int(self.indices[index]))

    def label(self, index: int) -> Label:
        """The image's label, without reading it."""
        return self.dataset.label(int(self.indices[index]))

    def fingerprint(self) -> str:
        """Of the dataset and of the indices."""
        made = sha256(self.dataset.fingerprint().encode())
        made.update(self.indices.astype("<i8").tobytes())
        return made.hexdigest()[:32]


def _to_read(known_N: NDArray[np.bool_], config: EvaluateConfig) -> NDArray[np.int64]:
    """The images that are not cached; if broken ones are skipped, one that is cached goes with them.

    A broken image is never cached, so it comes again each time; and a loader refuses images that are all broken.
    """
    missing_N = ~known_N
    if config.corrupt == "skip" and missing_N.any() and not missing_N.all():
        missing_N[known_N.argmax()] = True
    return np.flatnonzero(missing_N).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Extraction:
    """Features that are being extracted: `made` by the image's index, and the images that could not be read."""

    dataset: Dataset
    store: FeatureStore | None
    digests_N16: Digests | None
    made: dict[int, NDArray[np.float32]]
    failures: list[Failure]

    def run(
        self, engine: Engine, missing: NDArray[np.int64], config: EvaluateConfig, description: str, progress: ProgressCallback
    ) -> None:
        """Extract the features of the images with these indices; what is interrupted is kept as far as it is."""
        whole = len(missing) == len(self.dataset)
        some: Dataset = self.dataset if whole else Subset(dataset=self.dataset, indices=missing)
        before = len(self.dataset) - len(missing)
        unkept: list[int] = []

        def report(what: str, done: int, total: int | None) -> None:
            progress(what, before + done, len(self.dataset))

        try:
            for batch, outputs in engine.run_dataset(
                some, loader=config.loader(), features=True, description=description, progress=report
            ):
                self.failures.extend(replace(failure, index=int(missing[failure.index])) for failure in batch.failed)
                if outputs is not None:
                    assert outputs.features_BD is not None, "features were asked for"
                    _refuse_infinite(outputs.features_BD)
                    indices = missing[batch.index_B].tolist()
                    self.made.update(zip(indices, outputs.features_BD, strict=True))
                    unkept += indices
                if len(unkept) >= _KEPT_AT_ONCE:
                    self._keep(unkept)
        finally:
            self._keep(unkept)

    def _keep(self, indices: list[int]) -> None:
        if self.store is not None and self.digests_N16 is not None and indices:
            self.store.keep(self.digests_N16[indices], np.stack([self.made[index] for index in indices]))
        indices.clear()


def _refuse_infinite(features_BD: NDArray[np.float32]) -> None:
    if not np.isfinite(features_BD).all():
        raise DataError("the model's features contain nan or infinity", hint="its weights are damaged, or overflow")


def _dtype(checkpoint: Checkpoint) -> str:
    return str(next(checkpoint.model.parameters()).dtype)


def _width(found_MD: NDArray[np.float32] | None) -> int:
    assert found_MD is not None, "something was read or cached"
    return int(found_MD.shape[1])
