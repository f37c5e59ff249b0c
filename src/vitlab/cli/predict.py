"""`vitlab predict CHECKPOINT IMAGE...`: what is in the images, one or a million."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitlab.cli.opening import File, Opening
from vitlab.cli.parse import count, one, parse, positional, unset
from vitlab.cli.progress import bar
from vitlab.cli.talk import UsageError, note, printable
from vitlab.errors import DataError

if TYPE_CHECKING:
    from vitlab.inference import Prediction, Predictor, Unreadable
    from vitlab.inference.results import Finished, Sink
    from vitlab.io.progress import ProgressCallback

BackendWord = Literal["auto", "torch", "compile", "onnxruntime", "openvino"]
_REPORTED = 20  # unreadable images told one by one; results name all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Opening):
    """Say what is in images: the likeliest labels of each, in order, of one image or a folder of a million."""

    images: Annotated[tyro.conf.Positional[tuple[str, ...]], positional("IMAGE|DIR|GLOB|ZIP|-")]
    """images, folders of them, quoted patterns, zip archives or files inside them, or - for a list of paths on stdin"""

    top: Annotated[int, one("N", count)] = 5
    """labels an image"""

    json: bool = False
    """print one JSON object a line"""

    csv: bool = False
    """print CSV"""

    parquet: Annotated[File, unset("not written")] = None
    """Parquet file to write"""

    out: Annotated[File, unset("standard output")] = None
    """file for JSON lines, or with --csv for CSV"""

    resume: bool = False
    """go on with the JSON lines of --out: images that are in it already are left out"""

    overwrite: bool = False
    """replace the file of --out or --parquet where it exists"""

    strict: bool = False
    """end with exit code 1 if an image could not be read"""

    backend: BackendWord = "auto"
    """what runs the model; auto is torch until a measurement on this machine found another one faster"""

    merge: Annotated[int, one("N", count)] = 0
    """pairs of alike patches joined a layer, on average, in a ViT: faster, and slightly other answers"""

    batch_size: Annotated[int, one("N", count)] = 32
    """images at once"""

    workers: Annotated[int, one("N", count)] = 2
    """threads that read images ahead"""


def run(words: Sequence[str]) -> None:
    """Predict, and print or write results as they come."""
    arguments = parse(Arguments, words, verb="predict")
    _refuse_contradictions(arguments)
    stdin = arguments.images == ("-",)
    if not stdin:
        _refuse_nothing(arguments.images)
    from vitlab.inference import Predictor
    from vitlab.inference.images import find_images

    predictor = Predictor(
        arguments.open(),
        backend=arguments.backend,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        device=arguments.device,
        merge=arguments.merge,
        notify=lambda sentence: note(f"note: {sentence}"),
    )
    for line in predictor.notes[len(predictor.checkpoint.notes) :]:
        note(f"note: {line}")
    top = min(arguments.top, predictor.checkpoint.config.num_classes)
    if not top:
        raise DataError("the checkpoint has no head: it gives features and no classes", hint="vitlab embed writes features")
    with _sink(arguments, predictor, top) as (sink, done), _bar_beside(arguments) as tell:
        total = None if stdin else sum(path not in done for path in find_images(arguments.images))
        paths = _lines() if stdin else find_images(arguments.images)
        unreadable, seen = _pour(predictor.stream(paths, done=done if len(done) else None), sink, tell, total=total)
    # Of all that is in the file, so that work in two sittings ends as work in one.
    _report(unreadable + done.unreadable, seen + len(done), strict=arguments.strict)


def _refuse_contradictions(arguments: Arguments) -> None:
    forms = [name for name in ("json", "csv", "parquet") if getattr(arguments, name)]
    if len(forms) > 1:
        raise UsageError(f"--{forms[0]} and --{forms[1]} are two forms of the same", hint="leave one out")
    if not arguments.images:
        raise UsageError("missing IMAGE|DIR|GLOB|ZIP|-", hint="vitlab predict --help lists what it takes")
    if "-" in arguments.images and len(arguments.images) > 1:
        raise UsageError("- is for a list on stdin, and stands alone")
    if arguments.parquet and arguments.out:
        raise UsageError("--parquet and --out are two files for the same", hint="leave one out")
    if arguments.resume and (not arguments.out or arguments.csv):
        raise UsageError("--resume goes on with the JSON lines of --out", hint="say --out results.jsonl --resume")
    if arguments.resume and arguments.overwrite:
        raise UsageError("--resume keeps what is there and --overwrite does not", hint="leave one out")
    if not arguments.top:
        raise UsageError("--top: at least 1 label an image")


def _refuse_nothing(words: Sequence[str]) -> None:
    """Before a model is loaded: every word must name something, and there must be an image."""
    from vitlab.inference.images import find_images

    try:
        first = [next(find_images([word]), None) for word in words]
    except DataError as error:
        raise UsageError(error.message, hint=error.hint) from error
    if not any(first):
        raise DataError(f"{', '.join(words)}: no image in it", hint="endings of images are .jpg, .png, .webp, ...")


@contextmanager
def _sink(arguments: Arguments, predictor: Predictor, top: int) -> Iterator[tuple[Sink, Finished]]:
    """Where results go, and the names that are there already."""
    from pathlib import Path

    from vitlab.inference.results import MARK_LENGTH, Csv, JsonLines, resumed_file, new_file, nothing_finished, parquet_file

    mark = predictor.digest[:MARK_LENGTH]
    if arguments.parquet is not None:
        if Path(arguments.parquet).exists() and not arguments.overwrite:
            raise DataError(f"{arguments.parquet} is there already", hint="--overwrite replaces it")
        with parquet_file(Path(arguments.parquet), top=top, mark=mark) as sink:
            yield sink, nothing_finished()
    elif arguments.resume and arguments.out is not None:
        with resumed_file(Path(arguments.out), top=top, mark=mark) as (file, done):
            if len(done):
                note(f"note: {len(done):,} images are in {arguments.out} already")
            yield JsonLines(file, top=top, mark=mark), done
    elif arguments.out is not None:
        with new_file(Path(arguments.out), overwrite=arguments.overwrite) as file:
            yield Csv(file, top=top) if arguments.csv else JsonLines(file, top=top, mark=mark), nothing_finished()
    elif arguments.json:
        yield JsonLines(sys.stdout, top=top, mark=mark), nothing_finished()
    elif arguments.csv:
        yield Csv(sys.stdout, top=top), nothing_finished()
    else:
        yield _Page(top), nothing_finished()


class _Page:
    """Results for eyes: the image, and under it its labels."""

    def __init__(self, top: int) -> None:
        self._top = top

    def write(self, result: Prediction | Unreadable) -> None:
        """Print one."""
        from vitlab.inference import Unreadable

        if isinstance(result, Unreadable):
            return  # told on stderr
        print(printable(result.name))
        for label, probability in result.top(self._top):
            print(f"  {100 * probability:6.2f} %  {printable(label)}")

    def flush(self) -> None:
        """What was printed can be seen."""
        sys.stdout.flush()


def _pour(results: Iterator[Prediction | Unreadable], sink: Sink, tell: ProgressCallback, *, total: int | None) -> tuple[int, int]:
    """Write results as they come; how many images could not be read, and how many there were."""
    from vitlab.inference import Unreadable

    unreadable = seen = 0
    tell("predicting", 0, total)
    for result in results:
        sink.write(result)
        seen += 1
        if isinstance(result, Unreadable):
            unreadable += 1
            if unreadable <= _REPORTED:
                note(f"unreadable: {result}")
        if seen % 32 == 0:
            sink.flush()
            tell("predicting", seen, total)
    sink.flush()
    return unreadable, seen


def _report(unreadable: int, seen: int, *, strict: bool) -> None:
    if not unreadable:
        return
    told = f"{unreadable:,} of {seen:,} images could not be read"
    if strict:
        raise DataError(told)
    note(f"note: {told}")


@contextmanager
def _bar_beside(arguments: Arguments) -> Iterator[ProgressCallback]:
    """A bar, unless results themselves scroll by on the same terminal."""
    from vitlab.io.progress import silent

    if arguments.out is None and arguments.parquet is None and sys.stdout.isatty():
        yield silent
        return
    with bar() as tell:
        yield tell


def _lines() -> Iterator[str]:
    """Paths on stdin, one a line, as they come."""
    for line in sys.stdin:
        if path := line.rstrip("\r\n"):
            yield path
