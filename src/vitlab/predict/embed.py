"""The features of every picture of a source, into an index."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from vitlab.data.care.progress import Tell, silent
from vitlab.data.listed import ListedSource
from vitlab.data.source import Source
from vitlab.data.view import Pixels
from vitlab.predict.index import new_index
from vitlab.predict.prediction import Unreadable
from vitlab.predict.predictor import Predictor
from vitlab.predict.reading import Named


def embed(predictor: Predictor, source: Source, path: Path, *, made_by: str, tell: Tell = silent) -> tuple[Unreadable, ...]:
    """Write the features of a source's pictures to an .npz or .parquet index; returns those that could not be read.

    `made_by` is the checkpoint's path, kept in the index so that a search finds the model again.
    """
    unreadable: list[Unreadable] = []
    pictures = (_named(source, index) for index in range(len(source)))
    with new_index(
        path, classes=source.labels, multi_label=source.multi_label, digest=predictor.features_digest, made_by=made_by
    ) as index:
        for place, result in enumerate(predictor.stream(pictures, features=True)):
            if isinstance(result, Unreadable):
                unreadable.append(result)
            else:
                assert result.features is not None, "features were asked for"
                index.add(result.name, source.label(place), result.features)
            tell("embedding", place + 1, len(source))
    return tuple(unreadable)


def _named(source: Source, index: int) -> Named:
    name = source.name(index) if isinstance(source, ListedSource) else f"picture {index}"
    return Named(name=name, read=partial(_content, source, index))


def _content(source: Source, index: int) -> bytes | Pixels:
    return source[index].content
