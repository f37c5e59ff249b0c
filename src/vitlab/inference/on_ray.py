"""Inference on a Ray cluster: the same results as in one process, bit for bit, as parts of a folder that a later call resumes.

    names or dataset -> chunks -> readers (Ray Data: read, decode) -> models (Ray Data: actors that keep one warm) -> parts on disk

Ray Data streams the chunks: a reader stops when decoded images wait for a model, and a model when results wait for this process,
which writes them. A reader or model that dies, alone or with its node, is started again elsewhere, and its chunk is done again.
Chunks are cut at multiples of the batch size (`config.hardware.Cut`), so every batch holds what it holds in one process. The code
that reads, runs and writes is that of one process too: `read_batches` or the loader, `Predictor`, the rows of `results.py` and
`search_index.py`.

An error of vitlab in a worker comes back as a row and is raised here, with its hint.

Axes: B batch, H height, W width, C channels of an image; D width of the features.
"""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch

from vitlab import __version__
from vitlab.checkpoints import Checkpoint
from vitlab.config.data import LoaderConfig
from vitlab.config.evaluation import BackendName, EvaluateConfig, Tta
from vitlab.config.hardware import Cut, RayConfig
from vitlab.data.batch import Failure
from vitlab.data.dataset import Dataset, ImageDataset
from vitlab.data.loader import Loader
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import ClusterError, ConfigError, DataError, OutOfMemoryError, UsageError, VitlabError
from vitlab.inference.engine import Engine, ImageBatch, Predictor, read_batches
from vitlab.inference.images import ImageReader, ImagesLike, as_list_of_images, find_images
from vitlab.inference.results import (
    GROUP_ROWS,
    MARK_LENGTH,
    JsonLines,
    Predictions,
    Unreadable,
    load_pyarrow,
    predictions_row,
    predictions_schema,
)
from vitlab.inference.search_index import BLOCK, Features, index_table, label_text
from vitlab.inference.writing import ResultFormat, all_images, format_of, report_unreadable
from vitlab.io.display import ProgressCallback, printable
from vitlab.io.machine import is_out_of_memory
from vitlab.io.parts import Chunk, Lines, PartFormat, Parts, open_parts
from vitlab.io.ray_cluster import Attempts, Resources, connected, error_text, explained, raise_error, resources

_RETRIES = 4  # of a chunk whose worker died
_MOST_BLOCKS = 2000  # of the list of chunks; Ray Data plans a task for each
_MODEL_SHARE = 0.9  # of a core, for a model; its readers have the rest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadBatch:
    """A batch that a reader made: `first` is the place of its first image in the input; `labels` are texts, if it knows them."""

    first: int
    images: ImageBatch
    labels: tuple[str | None, ...] | None = None


class Source(Protocol):
    """Where readers find images. Picklable; `opened` is called once in each reader."""

    def opened(self) -> OpenSource:
        """Ready to read."""
        ...


class OpenSource(Protocol):
    """Reads a range of the input."""

    def read(self, first: int, count: int, names: Sequence[str]) -> Iterator[ReadBatch]:
        """The batches of `count` images from the place `first`; `names` are their paths, if the driver knows them."""
        ...


class Work(Protocol):
    """What a model makes of the batches of a chunk. Picklable."""

    def chunk(self, predictor: Predictor, batches: Sequence[ReadBatch]) -> Chunk:
        """The results, as the bytes of a part."""
        ...


# --- sources --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Files by their paths, below the folder `base` where they are relative."""

    transform: EvaluationTransform
    batch_size: int
    base: str

    def opened(self) -> OpenSource:
        """In the folder `base`."""
        _enter(self.base)
        return _OpenFiles(self, ImageReader(self.transform))


class _OpenFiles:
    def __init__(self, source: FileSource, reader: ImageReader) -> None:
        self._source = source
        self._reader = reader  # keeps zip archives open

    def read(self, first: int, count: int, names: Sequence[str]) -> Iterator[ReadBatch]:
        with closing(read_batches(self._reader, names, batch_size=self._source.batch_size, workers=0)) as batches:
            for batch in batches:
                yield ReadBatch(first=first, images=batch)
                first += len(batch.names)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetSource:
    """The samples of a dataset, in its order."""

    dataset: Dataset
    transform: EvaluationTransform
    loader: LoaderConfig
    base: str

    def opened(self) -> OpenSource:
        """In the folder `base`."""
        _enter(self.base)
        config = replace(self.loader, workers=0)
        return _OpenDataset(self.dataset, Loader(self.dataset, self.transform.pipeline(), config=config, train=False))


class _OpenDataset:
    def __init__(self, dataset: Dataset, loader: Loader) -> None:
        self._dataset = dataset
        self._loader = loader

    def read(self, first: int, count: int, names: Sequence[str]) -> Iterator[ReadBatch]:
        end = first + count
        with self._loader.batches(first) as batches:
            while first < end:
                batch = next(batches)
                places = range(first, batch.position)
                failed = tuple(replace(failure, index=failure.index - first) for failure in batch.failed)
                yield ReadBatch(
                    first=first,
                    images=ImageBatch(
                        names=tuple(sample_name(self._dataset, place) for place in places),
                        images_BHWC=batch.images_BHWC,
                        failed=failed,
                    ),
                    labels=tuple(label_text(self._dataset.label(place), self._dataset.labels) for place in places),
                )
                first = batch.position


def sample_name(dataset: Dataset, index: int) -> str:
    """The name of a sample, as an index of features has it."""
    return dataset.name(index) if isinstance(dataset, ImageDataset) else f"image {index}"


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise ClusterError(
            f"{socket.gethostname()} has no folder {printable(folder)}",
            hint="every node must see the images at the same path: use a shared disk, or absolute paths",
        ) from error


# --- work -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictLines:
    """Predictions as JSON lines."""

    top: int
    mark: str

    def chunk(self, predictor: Predictor, batches: Sequence[ReadBatch]) -> Chunk:
        """A line for each image."""
        text = io.StringIO(newline="")
        sink = JsonLines(text, top=self.top, mark=self.mark)
        failures, rows = [], 0
        for result in predictor.of_batches(batch.images for batch in batches):
            sink.write(result)
            rows += 1
            if isinstance(result, Unreadable):
                failures.append((result.name, result.reason))
        return Chunk(content=text.getvalue().encode(), rows=rows, failures=tuple(failures))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictTable:
    """Predictions as rows of Parquet."""

    top: int
    mark: str

    def chunk(self, predictor: Predictor, batches: Sequence[ReadBatch]) -> Chunk:
        """A row for each image."""
        results = list(predictor.of_batches(batch.images for batch in batches))
        rows = [predictions_row(result, self.top) for result in results]
        table = load_pyarrow()[0].Table.from_pylist(rows, schema=predictions_schema(self.mark))
        failures = tuple((result.name, result.reason) for result in results if isinstance(result, Unreadable))
        return Chunk(content=table_bytes(table), rows=len(rows), failures=failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedTable:
    """Features as rows of a Parquet index; an image that cannot be read has no row."""

    digest: str
    made_by: str

    def chunk(self, predictor: Predictor, batches: Sequence[ReadBatch]) -> Chunk:
        """A row for each image that could be read."""
        rows: list[tuple[str, str | None, Features]] = []
        failures: list[tuple[str, str]] = []
        run = predictor.engine.run_read([batch.images for batch in batches], features=True)
        for read, (batch, outputs) in zip(batches, run, strict=True):
            failed = {failure.index for failure in batch.failed}
            failures += ((failure.name, failure.reason) for failure in batch.failed)
            if outputs is None:
                continue
            assert outputs.features_BD is not None, "features were asked for"
            assert read.labels is not None, "a dataset knows its labels"
            places = [place for place in range(len(batch.names)) if place not in failed]
            for place, features_D in zip(places, outputs.features_BD, strict=True):
                rows.append((printable(batch.names[place]), read.labels[place], features_D))
        width = predictor.checkpoint.config.feature_width
        table = index_table(rows, width=width, digest=self.digest, made_by=self.made_by)
        return Chunk(content=table_bytes(table), rows=len(rows), failures=tuple(failures))


def table_bytes(table: Any) -> bytes:
    """An Arrow table as the bytes of a stream."""
    arrow = load_pyarrow()[0]
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Parquet: a part is its chunks one after the other; the file has groups of `group` rows, as one process writes them."""

    group: int
    ending: str = ".parquet"

    def write(self, file: BinaryIO, contents: Sequence[bytes]) -> None:
        """Write a part."""
        arrow, parquet = load_pyarrow()
        tables = [arrow.ipc.open_stream(content).read_all() for content in contents]
        with parquet.ParquetWriter(file, tables[0].schema) as writer:
            self._grouped(writer, iter(tables))

    def join(self, file: BinaryIO, parts: Sequence[Path]) -> None:
        """Write all parts as one file."""
        parquet = load_pyarrow()[1]
        with parquet.ParquetWriter(file, parquet.read_schema(parts[0])) as writer:
            self._grouped(writer, (parquet.read_table(path) for path in parts))

    def _grouped(self, writer: Any, tables: Iterator[Any]) -> None:
        arrow = load_pyarrow()[0]
        held: Any = None
        for table in tables:
            held = table if held is None else arrow.concat_tables([held, table])
            while held.num_rows >= self.group:
                writer.write_table(held.slice(0, self.group).combine_chunks())
                held = held.slice(self.group)
        if held is not None and held.num_rows:
            writer.write_table(held.combine_chunks())


PREDICTIONS: dict[str, PartFormat] = {"jsonl": Lines(), "parquet": Tables(group=GROUP_ROWS)}
"""The formats of predictions that can be written in parts."""
FEATURES = Tables(group=BLOCK)


# --- the pipeline ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a worker runs the model. `auto` as a backend is torch: if each worker chose, their last bits would differ."""

    batch_size: int
    backend: BackendName = "auto"
    merge: int = 0
    tta: Tta | None = None
    device: str = "auto"


def data_digest(names: Iterable[str]) -> tuple[str, int]:
    """16 hexadecimal digits that change with the names, their number and their order; and their number."""
    made, count = sha256(), 0
    for name in names:
        made.update(name.encode("utf-8", "surrogatepass") + b"\0")
        count += 1
    return made.hexdigest()[:16], count


def dataset_digest(dataset: Dataset) -> str:
    """16 hexadecimal digits that change with the classes, and with the name and label of any sample; not with its pixels."""
    if not isinstance(dataset, ImageDataset):
        return sha256(dataset.fingerprint().encode()).hexdigest()[:16]
    samples = (f"{dataset.name(index)}\n{dataset.label(index)}" for index in range(len(dataset)))
    return data_digest([*dataset.labels, "", *samples])[0]


def run_on_ray(
    checkpoint: Checkpoint,
    source: Source,
    work: Work,
    cut: Cut,
    parts: Parts,
    *,
    settings: ModelSettings,
    config: RayConfig,
    description: str,
    progress: ProgressCallback,
    names: Iterable[str] | None = None,
) -> None:
    """Make the missing parts on a Ray cluster; `names` are the paths of all images, in order, where the source needs them."""
    missing = parts.missing
    done = cut.images - sum(count for part in missing for _, count in cut.chunks(part))
    progress(description, done, cut.images)
    if not missing:
        return
    load_pyarrow()
    with connected(config.address, purpose="clusters") as ray:
        layout = Layout.of(resources(ray), config, settings)
        pipeline = _pipeline(
            ray, checkpoint, source, work, list(_rows(cut, missing, names)), settings, layout, readers=config.readers
        )
        try:
            found = iter(pipeline.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
            with closing(found) as tables:  # so that Ray Data stops before the connection ends
                for row in (row for table in tables for row in table.to_pylist()):
                    raise_error(row["error"])
                    failures = tuple((name, reason) for name, reason in json.loads(row["failures"]))
                    parts.add(row["part"], row["place"], Chunk(content=row["content"], rows=row["rows"], failures=failures))
                    done += row["count"]
                    progress(description, done, cut.images)
        except ray.exceptions.RayError as error:
            raise explained(error, doing=f"{description} on Ray failed") from error
    assert not parts.missing, "every chunk came back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What runs on the cluster: `actors` models, each with so many threads, on GPUs or not."""

    actors: int
    threads: int
    gpu: bool

    @classmethod
    def of(cls, have: Resources, config: RayConfig, settings: ModelSettings) -> Layout:
        """A model on each GPU or, without GPUs, on each core, unless `actors` says otherwise; then they share the cores."""
        wants_gpu = settings.device.startswith("cuda")
        if wants_gpu and not have.gpus:
            raise ConfigError(f"device={settings.device!r}, but no node of the cluster has a GPU", hint="device='auto' or 'cpu'")
        gpu = have.gpus > 0 and settings.device != "cpu"
        most = have.gpus if gpu else have.cores
        actors = config.actors or most
        if actors > most:
            raise ConfigError(
                f"actors={actors}, but the {have.nodes} nodes of the cluster have {most} {'GPUs' if gpu else 'cores'}",
                hint=f"use `actors={most}`, or 0 for one on each",
            )
        threads = 1 if gpu else max(1, min(have.cores // actors, have.node_cores, torch.get_num_threads()))
        return cls(actors=actors, threads=threads, gpu=gpu)


def _rows(cut: Cut, missing: Sequence[int], names: Iterable[str] | None) -> Iterator[dict[str, Any]]:
    """A row for each chunk. Names are compressed: those of a hundred million images take about a gigabyte then."""
    given = None if names is None else iter(names)
    wanted = set(missing)
    for part in range(cut.parts):
        for place, (first, count) in enumerate(cut.chunks(part)):
            own: list[str] = []
            if given is not None:
                own = list(islice(given, count))
            if part in wanted:
                packed = zlib.compress(json.dumps(own).encode(), 1) if own else b""
                yield {"part": part, "place": place, "first": first, "count": count, "names": packed}


def _names(row: dict[str, Any]) -> list[str]:
    return json.loads(zlib.decompress(row["names"])) if row["names"] else []


def _pipeline(
    ray: Any,
    checkpoint: Checkpoint,
    source: Source,
    work: Work,
    rows: list[dict[str, Any]],
    settings: ModelSettings,
    layout: Layout,
    *,
    readers: int,
) -> Any:
    """The dataset of Ray Data whose rows are results; it runs when it is iterated over."""
    from ray import data

    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    attempts = ray.remote(Attempts).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote()
    model_cores = _MODEL_SHARE * layout.threads
    chunks = data.from_items(rows, override_num_blocks=min(len(rows), _MOST_BLOCKS))
    reading = (ray.put(source), attempts, __version__)
    running = (ray.put(checkpoint), attempts, work, settings, layout)
    models = data.ActorPoolStrategy(size=max(1, min(layout.actors, len(rows))))
    on_gpu = 1 if layout.gpu else 0
    if not readers:
        return chunks.map_batches(
            ReadingModel,
            fn_constructor_args=(reading, running),
            batch_size=1,  # a chunk
            batch_format="pyarrow",
            compute=models,
            num_cpus=layout.threads,
            num_gpus=on_gpu,
        )
    decoded = chunks.map_batches(
        Reader,
        fn_constructor_args=reading,
        batch_size=1,
        batch_format="pyarrow",
        compute=data.ActorPoolStrategy(size=max(1, min(layout.actors * readers, len(rows)))),
        num_cpus=round((layout.threads - model_cores) / readers, 4),
    )
    return decoded.map_batches(
        Model,
        fn_constructor_args=running,
        batch_size=1,
        batch_format="pyarrow",
        compute=models,
        num_cpus=model_cores,
        num_gpus=on_gpu,
    )


def _begin(attempts: Any, worker: str, row: dict[str, Any], first: str) -> None:
    import ray

    if ray.get(attempts.begin.remote(worker, row["part"], row["place"])) > 1 + _RETRIES:
        raise ClusterError(
            f"{1 + _RETRIES} workers died while they {worker} {row['count']} images, the first {printable(first)}",
            hint="the usual reason is memory that ran out: use fewer `actors` or a smaller `batch_size`",
        )


class Reader:
    """A worker that reads and decodes. It opens its source when the first chunk comes, so that an error is a row."""

    def __init__(self, source: Any, attempts: Any, version: str) -> None:
        self._source = source
        self._attempts = attempts
        self._version = version
        self._opened: OpenSource | None = None

    def __call__(self, table: Any) -> Iterator[Any]:
        """Chunk after chunk, with the pixels of its images."""
        for row in table.to_pylist():
            names = _names(row)
            try:
                _begin(self._attempts, "read", row, names[0] if names else f"number {row['first']}")
                if self._opened is None:
                    self._opened = self._open()
                batches = list(self._opened.read(row["first"], row["count"], names))
            except VitlabError as error:
                yield _packed(row, [], error=error)
            else:
                yield _packed(row, batches)

    def _open(self) -> OpenSource:
        import ray

        if self._version != __version__:
            raise ClusterError(
                f"{socket.gethostname()} has vitlab {__version__}, and the command was given to {self._version}",
                hint="install the same version on every node",
            )
        source: Source = ray.get(self._source)
        return source.opened()


class Model:
    """A worker that keeps a model warm. It builds it when the first chunk comes, so that an error is a row."""

    def __init__(self, checkpoint: Any, attempts: Any, work: Work, settings: ModelSettings, layout: Layout) -> None:
        self._checkpoint = checkpoint
        self._attempts = attempts
        self._work = work
        self._settings = settings
        self._layout = layout
        self._predictor: Predictor | None = None

    def __call__(self, table: Any) -> Any:
        """The results of each chunk."""
        return _results([self._result(row) for row in _unpacked(table)])

    def _result(self, row: dict[str, Any]) -> dict[str, Any]:
        found = {name: row[name] for name in ("part", "place", "count")}
        chunk, error = Chunk(content=b"", rows=0), row["error"]
        if not error:
            try:
                _begin(self._attempts, "ran", row, row["batches"][0].images.names[0])
                if self._predictor is None:
                    self._predictor = self._loaded()
                chunk = self._work.chunk(self._predictor, row["batches"])
            except VitlabError as fault:
                error = error_text(fault)
        return {**found, "rows": chunk.rows, "content": chunk.content, "failures": json.dumps(chunk.failures), "error": error}

    def _loaded(self) -> Predictor:
        import ray

        where = socket.gethostname()
        settings, layout = self._settings, self._layout
        torch.set_num_threads(layout.threads)
        try:
            checkpoint: Checkpoint = ray.get(self._checkpoint)
            checkpoint.model.eval()
            return Predictor(
                checkpoint,
                backend="torch" if settings.backend == "auto" else settings.backend,
                batch_size=settings.batch_size,
                workers=0,
                device=(settings.device if settings.device.startswith("cuda") else "cuda") if layout.gpu else "cpu",
                merge=settings.merge,
                tta=settings.tta,
            )
        except VitlabError as error:
            raise type(error)(f"the model does not load on {where}: {error.message}", hint=error.hint) from error
        except Exception as error:  # whatever a library says: it must reach the user as a sentence
            kind = OutOfMemoryError if is_out_of_memory(error) else ClusterError
            raise kind(
                f"the model does not load on {where}: {type(error).__name__}: {error}",
                hint="every node needs the same vitlab and its extras, and memory for the model",
            ) from error


class ReadingModel:
    """Both in one process: a model that reads its images itself, between its chunks."""

    def __init__(self, reading: tuple[Any, Any, str], running: tuple[Any, Any, Work, ModelSettings, Layout]) -> None:
        self._reader = Reader(*reading)
        self._model = Model(*running)

    def __call__(self, table: Any) -> Iterator[Any]:
        """The results of each chunk."""
        for read in self._reader(table):
            yield self._model(read)


# --- rows between workers -------------------------------------------------------------------------------------------------------


def _packed(row: dict[str, Any], batches: Sequence[ReadBatch], *, error: VitlabError | None = None) -> Any:
    """A chunk as an Arrow table of one row: pixels as bytes, everything else as JSON."""
    arrow = load_pyarrow()[0]
    header = [
        {
            "first": batch.first,
            "names": batch.images.names,
            "failed": [(failure.index, failure.name, failure.reason) for failure in batch.images.failed],
            "labels": batch.labels,
            "shape": batch.images.images_BHWC.shape,
        }
        for batch in batches
    ]
    pixels = b"".join(np.ascontiguousarray(batch.images.images_BHWC).data for batch in batches)
    columns = {
        **{name: arrow.array([row[name]], arrow.int64()) for name in ("part", "place", "count")},
        "header": arrow.array([json.dumps(header)], arrow.large_string()),
        "pixels": arrow.array([pixels], arrow.large_binary()),
        "error": arrow.array([error_text(error)], arrow.string()),
    }
    return arrow.table(columns)


def _unpacked(table: Any) -> Iterator[dict[str, Any]]:
    """The chunks of a table, with their `batches`."""
    for place in range(table.num_rows):
        row = {name: table[name][place].as_py() for name in ("part", "place", "count", "error")}
        pixels = np.frombuffer(table["pixels"][place].as_buffer(), np.uint8)
        batches, start = [], 0
        for header in json.loads(table["header"][place].as_py()):
            size = int(np.prod(header["shape"]))
            images = ImageBatch(
                names=tuple(header["names"]),
                images_BHWC=pixels[start : start + size].reshape(header["shape"]),
                failed=tuple(Failure(index=index, name=name, reason=reason) for index, name, reason in header["failed"]),
            )
            batches.append(
                ReadBatch(
                    first=header["first"], images=images, labels=None if header["labels"] is None else tuple(header["labels"])
                )
            )
            start += size
        yield {**row, "batches": batches}


def _results(rows: list[dict[str, Any]]) -> Any:
    arrow = load_pyarrow()[0]
    kinds = {name: arrow.int64() for name in ("part", "place", "count", "rows")}
    kinds |= {"content": arrow.large_binary(), "failures": arrow.large_string(), "error": arrow.string()}
    return arrow.table({name: arrow.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


# --- what the verbs call --------------------------------------------------------------------------------------------------------


def place_of_parts(out: Path, endings: Sequence[str]) -> tuple[Path, Path | None]:
    """The folder of parts, and the file that they are joined to: none where `out` has no file's ending and is itself the folder."""
    if out.suffix in endings:
        return out.with_name(f"{out.name}.parts"), out
    if out.suffix in (".csv", ".txt", ".npz") or out.is_file():
        raise UsageError(f"`out`: a cluster writes {' or '.join(endings)}, or a folder of parts, and not {printable(str(out))}")
    return out, None


def predict_on_ray(
    checkpoint: Checkpoint,
    images: ImagesLike,
    *,
    top: int,
    out: str | os.PathLike[str],
    format: ResultFormat | None,  # noqa: A002
    overwrite: bool,
    strict: bool,
    settings: ModelSettings,
    config: RayConfig,
    progress: ProgressCallback,
    notify: Callable[[str], None],
) -> Predictions:
    """Write the predictions of files to `out`, a file or a folder of parts; the same call resumes, and keeps finished parts."""
    top = min(top, checkpoint.config.num_classes)
    if not top:
        raise DataError("the checkpoint has no head: it gives features and no classes", hint="vitlab embed writes features")
    words = _words(images)
    path = Path(out)
    folder, file = place_of_parts(path, [form.ending for form in PREDICTIONS.values()])
    chosen = format_of(path, format)
    if chosen not in PREDICTIONS or (file is not None and path.suffix != PREDICTIONS[chosen].ending):
        raise UsageError(f"a cluster writes {' or '.join(PREDICTIONS)}, not {chosen} to {printable(str(path))}")
    _refuse_finished(file, overwrite)
    predictor = Predictor(checkpoint, backend="torch", device="cpu", merge=settings.merge, tta=settings.tta, workers=0)
    mark = predictor.digest[:MARK_LENGTH]
    digest, count = data_digest(find_images(words))
    cut = Cut(images=count, batch_size=settings.batch_size, part_size=config.part_size)
    job = job_facts("predict", mark, digest, cut, settings) | {"top": top, "format": chosen}
    work: Work = PredictLines(top=top, mark=mark) if chosen == "jsonl" else PredictTable(top=top, mark=mark)
    source = FileSource(transform=predictor.engine.transform, batch_size=settings.batch_size, base=str(Path.cwd()))
    with open_parts(folder, job, chunk_counts(cut), PREDICTIONS[chosen], overwrite=overwrite) as parts:
        note_resumed(parts, notify)
        run_on_ray(
            checkpoint,
            source,
            work,
            cut,
            parts,
            settings=settings,
            config=config,
            description="predicting",
            progress=progress,
            names=find_images(words),
        )
        failures = parts.failures
        if file is not None:
            parts.join(file)
            parts.remove()
    report_unreadable([Unreadable(name=name, reason=reason) for name, reason in failures], count, strict=strict, notify=notify)
    return Predictions([])


def embed_on_ray(
    checkpoint: Checkpoint,
    dataset: Dataset,
    path: Path,
    *,
    made_by: str,
    overwrite: bool,
    settings: ModelSettings,
    config: RayConfig,
    progress: ProgressCallback,
    notify: Callable[[str], None],
) -> tuple[Unreadable, ...]:
    """Write the features of a dataset's images to a .parquet index or a folder of parts; returns those that could not be read."""
    folder, file = place_of_parts(path, [FEATURES.ending])
    _refuse_finished(file, overwrite)
    engine = Engine(checkpoint, backend="torch", device="cpu", merge=settings.merge)
    cut = Cut(images=len(dataset), batch_size=settings.batch_size, part_size=config.part_size)
    job = job_facts("embed", engine.digest[:MARK_LENGTH], dataset_digest(dataset), cut, settings)
    loader = EvaluateConfig(batch_size=settings.batch_size, workers=0, corrupt="skip").loader()
    source = DatasetSource(dataset=dataset, transform=engine.transform, loader=loader, base=str(Path.cwd()))
    with open_parts(folder, job, chunk_counts(cut), FEATURES, overwrite=overwrite) as parts:
        note_resumed(parts, notify)
        run_on_ray(
            checkpoint,
            source,
            EmbedTable(digest=engine.digest, made_by=made_by),
            cut,
            parts,
            settings=settings,
            config=config,
            description="embedding",
            progress=progress,
        )
        failures = tuple(Unreadable(name=name, reason=reason) for name, reason in parts.failures)
        if len(failures) == len(dataset):
            raise DataError("no image could be read, so there is no index to write")
        if file is not None:
            parts.join(file)
            parts.remove()
    return failures


def _words(images: ImagesLike) -> list[str]:
    """The paths, folders, patterns and archives that were given; UsageError for images that are not files."""
    given = list(as_list_of_images(images))
    all_images(given)  # refuses what names nothing
    words = [os.fspath(image) for image in given if isinstance(image, str | os.PathLike)]
    if len(words) < len(given):
        raise UsageError("a cluster reads images from files", hint="give paths, folders or archives, or leave `engine` out")
    return words


def job_facts(verb: str, model: str, data: str, cut: Cut, settings: ModelSettings) -> dict[str, str | int]:
    """What decides the content of the parts."""
    return {
        "verb": verb,
        "model": model,
        "data": data,
        "images": cut.images,
        "batch size": cut.batch_size,
        "part size": cut.part_images,
        "backend": "torch" if settings.backend == "auto" else settings.backend,
        "vitlab": __version__,
    }


def chunk_counts(cut: Cut) -> list[int]:
    """The number of chunks of each part."""
    return [len(cut.chunks(part)) for part in range(cut.parts)]


def _refuse_finished(file: Path | None, overwrite: bool) -> None:
    if file is not None and file.exists() and not overwrite:
        raise DataError(f"{printable(str(file))} exists already", hint="`overwrite=True` replaces it")


def note_resumed(parts: Parts, notify: Callable[[str], None]) -> None:
    """Say what an earlier call has done."""
    if parts.finished:
        notify(f"note: {len(parts.finished):,} of {len(parts.paths):,} parts are in {printable(str(parts.folder))} already")
