"""Predictions of any number of images, kept or written to a file or stream as they come.

`predict_images` is `vitlab.predict` behind its options: it finds the images, resumes a file, writes results and counts failures.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal, TextIO

from PIL import Image

from vitlab.data.decode import STRANGE, stranger
from vitlab.data.decode import format_of as image_format
from vitlab.errors import DataError, UsageError
from vitlab.inference.detections import DetectedImage, DetectedImages, Detector, draw_boxes
from vitlab.inference.engine import Predictor
from vitlab.inference.images import ImageLike, ImagesLike, NamedImage, as_list_of_images, find_images, image_name
from vitlab.inference.results import (
    MARK_LENGTH,
    Csv,
    FinishedImages,
    JsonLines,
    Prediction,
    Predictions,
    Result,
    Sink,
    Unreadable,
    new_file,
    nothing_finished,
    parquet_file,
    resumed_file,
)
from vitlab.io.archive_limits import READ_IN_PLACE
from vitlab.io.atomic import only_writer, replacing
from vitlab.io.display import ProgressCallback, json_text, printable

ResultFormat = Literal["text", "jsonl", "csv", "parquet"]
_READS = "vitlab reads JPEG, PNG, WebP, GIF, BMP, TIFF, NumPy arrays and DICOM files"
_ON_STDIN = "give paths, one on each line, or the bytes of an image"
_HEAD = 256  # bytes of a file that tell its format: DICOM's mark stands after 128
_REPORTED = 20  # unreadable images that are reported one by one; results name all of them
_LONGEST_LINE = 2**16  # characters; a path has at most 4,096 bytes
_FLUSH = 32  # results between two flushes, and between two reports of progress


class Text:
    """Results for people: the image, and under it its classes."""

    def __init__(self, file: TextIO, *, top: int) -> None:
        self._file = file
        self._top = top

    def write(self, result: Result) -> None:
        """Print one result; images that could not be read are reported elsewhere."""
        if isinstance(result, Unreadable):
            return
        if isinstance(result, DetectedImage):
            self._file.write("\n".join(result.lines()) + "\n")
            return
        assert isinstance(result, Prediction)
        lines = [printable(result.name), *(f"  {100 * share:6.2f} %  {printable(label)}" for label, share in result.top(self._top))]
        self._file.write("\n".join(lines) + "\n")

    def flush(self) -> None:
        """Show everything printed so far."""
        self._file.flush()


class Drawn:
    """Boxes in a folder: each image as a PNG with its boxes drawn on it, and boxes.jsonl, which names it."""

    def __init__(self, folder: Path, file: TextIO, labels: Sequence[str]) -> None:
        self._folder = folder
        self._file = file
        self._labels = labels
        self._used: set[str] = set()

    def write(self, result: Result) -> None:
        """Draw one image and add its line; one that could not be read has a line alone."""
        described = result.to_json()
        if isinstance(result, DetectedImage):
            assert result.image_HWC is not None, "a detector that draws keeps images"
            name = self._unused(PurePosixPath(result.name.replace("\\", "/")).stem or "image")
            described |= {"drawn": name}
            drawn = io.BytesIO()
            Image.fromarray(draw_boxes(result.image_HWC, result.boxes, self._labels)).save(drawn, "PNG")
            with replacing(self._folder / name, needed=len(drawn.getvalue())) as file:
                file.write(drawn.getvalue())
        self._file.write(json_text(described) + "\n")

    def flush(self) -> None:
        """Hand the lines written so far to the operating system."""
        self._file.flush()

    def _unused(self, stem: str) -> str:
        """A file name of these letters, with a number if it was used before."""
        clean = "".join(letter if letter.isalnum() or letter in "-_. ()" else "_" for letter in stem)
        name, number = f"{clean}.png", 1
        while name in self._used:
            number += 1
            name = f"{clean}-{number}.png"
        self._used.add(name)
        return name


class Kept:
    """Results in memory."""

    def __init__(self) -> None:
        self.predictions: list[Prediction] = []
        self.detected: list[DetectedImage] = []

    def write(self, result: Result) -> None:
        """Keep one result."""
        if isinstance(result, Prediction):
            self.predictions.append(result)
        elif isinstance(result, DetectedImage):
            self.detected.append(result)

    def flush(self) -> None:
        """Nothing to do."""


def is_folder_of_boxes(out: str | os.PathLike[str] | TextIO | None, format: ResultFormat | None) -> bool:  # noqa: A002
    """Whether a detector's results go into a folder, drawn: where `out` is a path without an ending, or a folder."""
    return isinstance(out, str | os.PathLike) and format is None and (Path(out).suffix == "" or Path(out).is_dir())


def format_of(out: str | os.PathLike[str] | TextIO, format: ResultFormat | None) -> ResultFormat:  # noqa: A002
    """The format asked for, else that of the file's ending; a stream gets text, a file without a known ending JSON lines."""
    if format is not None:
        return format
    if not isinstance(out, str | os.PathLike):
        return "text"
    endings: dict[str, ResultFormat] = {".csv": "csv", ".parquet": "parquet", ".txt": "text"}
    return endings.get(Path(out).suffix.lower(), "jsonl")


def all_images(images: ImagesLike) -> tuple[Iterable[ImageLike], bool]:
    """The images, with folders, patterns and archives expanded; and whether they can be counted beforehand."""
    given = as_list_of_images(images)
    if not isinstance(given, list | tuple):
        return given, False
    if not given:
        raise UsageError("there is no image", hint="give a path, a folder, an array, ... or several")
    paths = [os.fspath(image) for image in given if isinstance(image, str | os.PathLike)]
    _check_found(paths)
    return (_expanded(given) if paths else given), True


def _check_found(paths: list[str]) -> None:
    """Refuse, before a model runs, a path that names nothing and paths without any image."""
    try:
        first = [next(find_images([path]), None) for path in paths]
    except DataError as error:
        raise UsageError(error.message, hint=error.hint) from error
    if paths and not any(first):
        swapped = any((Path(path) / "run.json").exists() for path in paths)
        hint = "the model comes first, then the images" if swapped else "endings of images are .jpg, .png, .webp, ..."
        raise DataError(f"{', '.join(paths)}: no image in it", hint=hint)


def _expanded(images: Iterable[ImageLike]) -> Iterator[ImageLike]:
    for image in images:
        if isinstance(image, str | os.PathLike):
            yield from find_images([os.fspath(image)])
        else:
            yield image


def predict_images(
    predictor: Predictor | Detector,
    images: ImagesLike,
    *,
    top: int,
    out: str | os.PathLike[str] | TextIO | None,
    format: ResultFormat | None,  # noqa: A002
    resume: bool,
    overwrite: bool,
    strict: bool,
    progress: ProgressCallback,
    notify: Callable[[str], None],
) -> Predictions | DetectedImages:
    """The predictions, or none if they were written to `out`; images that could not be read are reported to `notify`."""
    top = min(top, predictor.checkpoint.config.num_classes)
    if isinstance(predictor, Detector):
        if out is not None and format_of(out, format) not in ("text", "jsonl"):
            raise UsageError("boxes are written as text or JSON lines, or drawn", hint="give `out` boxes.jsonl, or a folder")
    elif not top:
        raise DataError("the checkpoint has no head: it gives features and no classes", hint="vitlab embed writes features")
    kept = Kept()
    with _sink(predictor, out, kept, top=top, format=format, resume=resume, overwrite=overwrite) as (sink, done):
        found, countable = all_images(images)
        total = None
        if countable:
            total = sum(image_name(image, place) not in done for place, image in enumerate(all_images(images)[0]))
        if len(done):
            notify(f"note: {len(done):,} images are in {out} already")
        results = predictor.stream(found, done=done if len(done) else None)
        failed, seen, alone = _pour(results, sink, progress, total=total, notify=notify)
    if alone is not None and not len(done):
        raise DataError(str(alone), hint=_READS if STRANGE in alone.reason else None)
    _count_unreadable(failed + done.unreadable, seen + len(done), strict=strict, notify=notify)  # also what an earlier call wrote
    return DetectedImages(kept.detected) if isinstance(predictor, Detector) else Predictions(kept.predictions)


def report_unreadable(failures: Sequence[Unreadable], seen: int, *, strict: bool, notify: Callable[[str], None]) -> None:
    """Name the first images that could not be read, and count all; DataError if there are any and `strict`, or if all are."""
    for failure in failures[:_REPORTED]:
        notify(f"unreadable: {failure}")
    _count_unreadable(len(failures), seen, strict=strict, notify=notify)


def _count_unreadable(failed: int, seen: int, *, strict: bool, notify: Callable[[str], None]) -> None:
    if not failed:
        return
    sentence = f"{failed:,} of {seen:,} images could not be read"
    if failed == seen:
        raise DataError("the image could not be read" if seen == 1 else f"none of {seen:,} images could be read", hint=_READS)
    if strict:
        raise DataError(sentence, hint="repair or remove them, or leave `strict` out to skip them")
    notify(f"note: {sentence}")


def _pour(
    results: Iterator[Result],
    sink: Sink,
    progress: ProgressCallback,
    *,
    total: int | None,
    notify: Callable[[str], None],
) -> tuple[int, int, Unreadable | None]:
    """Write results as they come; how many images could not be read, and how many there were.

    The third value is the only image if it could not be read: the error says why, and nothing is reported beside it.
    """
    failed = seen = 0
    alone: Unreadable | None = None
    progress("predicting", 0, total)
    for result in results:
        sink.write(result)
        seen += 1
        if alone is not None:
            notify(f"unreadable: {alone}")
            alone = None
        if isinstance(result, Unreadable):
            failed += 1
            if seen == 1:
                alone = result
            elif failed <= _REPORTED:
                notify(f"unreadable: {result}")
        if seen % _FLUSH == 0:
            sink.flush()
            progress("predicting", seen, total)
    sink.flush()
    return failed, seen, alone


@contextmanager
def _sink(
    predictor: Predictor | Detector,
    out: str | os.PathLike[str] | TextIO | None,
    kept: Kept,
    *,
    top: int,
    format: ResultFormat | None,  # noqa: A002
    resume: bool,
    overwrite: bool,
) -> Iterator[tuple[Sink, FinishedImages]]:
    """Where results go, and the images whose results are there already."""
    if out is None:
        if resume:
            raise UsageError("`resume` continues the JSON lines of `out`", hint="give `out` results.jsonl too")
        yield kept, nothing_finished()
        return
    chosen, mark = format_of(out, format), predictor.digest[:MARK_LENGTH]
    if resume and overwrite:
        raise UsageError("`resume` keeps what is there and `overwrite` does not", hint="leave one out")
    if resume and (chosen != "jsonl" or not isinstance(out, str | os.PathLike)):
        raise UsageError("`resume` continues the JSON lines of `out`", hint="give `out` results.jsonl too")
    if not isinstance(out, str | os.PathLike):
        if chosen == "parquet":
            raise UsageError("Parquet needs a file", hint="give `out` results.parquet")
        yield _lines(chosen, out, top, mark), nothing_finished()
        return
    path = Path(out)
    if isinstance(predictor, Detector) and is_folder_of_boxes(out, format) and not resume:
        path.mkdir(parents=True, exist_ok=True)
        with new_file(path / "boxes.jsonl", overwrite=overwrite) as file:
            yield Drawn(path, file, predictor.labels), nothing_finished()
        return
    with only_writer(path):
        if chosen == "parquet":
            if path.exists() and not overwrite:
                raise DataError(f"{path} exists already", hint="`overwrite=True` replaces it")
            with parquet_file(path, top=top, mark=mark) as sink:
                yield sink, nothing_finished()
        elif resume:
            with resumed_file(path, top=top, mark=mark) as (file, done):
                yield JsonLines(file, top=top, mark=mark), done
        else:
            with new_file(path, overwrite=overwrite) as file:
                yield _lines(chosen, file, top, mark), nothing_finished()


def _lines(format: ResultFormat, file: TextIO, top: int, mark: str) -> Sink:  # noqa: A002
    if format == "csv":
        return Csv(file, top=top)
    return Text(file, top=top) if format == "text" else JsonLines(file, top=top, mark=mark)


def images_on(stream: TextIO) -> Iterator[ImageLike]:
    """The images that a stream names, one path a line; or, if it holds the bytes of an image file, that image."""
    binary = getattr(stream, "buffer", None)  # a stream of text alone, as in a test, holds paths
    if binary is None:
        return lines_of(stream)
    head = binary.peek(_HEAD)[:_HEAD]
    if not head:
        raise DataError("there is nothing on standard input", hint=_ON_STDIN)
    if image_format(head) is not None:
        content = binary.read(READ_IN_PLACE.entry_bytes + 1)
        if len(content) > READ_IN_PLACE.entry_bytes:
            raise DataError(f"the image on standard input has more than {READ_IN_PLACE.entry_bytes:,} bytes")
        return iter([NamedImage(name="-", read=lambda: content)])
    if b"\0" in head:
        raise DataError(f"what is on standard input {STRANGE}: it is {stranger(head)}", hint=_ON_STDIN)
    return lines_of(stream)


def lines_of(stream: TextIO | None = None) -> Iterator[str]:
    """Paths on a stream (stdin unless given), one a line, as they come; DataError for a line that is no path."""
    read = (stream or sys.stdin).readline
    while line := read(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise DataError(
                f"a line of the list of images has more than {_LONGEST_LINE - 1:,} characters", hint="write one path on each line"
            )
        if path := line.rstrip("\r\n"):
            yield path
