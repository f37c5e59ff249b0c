"""One line for each picture, as CSV: what it is, what the model chose, how sure it was, and what could not be read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitlab.checkpoint.files.atomic import replacing
from vitlab.data.source import Source
from vitlab.evaluate.answers import Answers
from vitlab.evaluate.classify import Judged
from vitlab.evaluate.evaluation import Evaluation, name_in
from vitlab.evaluate.mapping import Targets
from vitlab.objective.metrics import top_classes

Row = Sequence[str | int]

_LINE_BYTES = 200  # about, for the message of a full disk


def write_per_image(path: Path, evaluation: Evaluation, source: Source) -> None:
    """Write the CSV; it appears whole or not at all.

    Columns: name, label, chosen, confidence, right (1 or 0), rank (how many classes the model held for likelier than the right
    one), loss, real (whether the choice is one of the ReaL labels; empty without any), error (why the picture could not be
    read; the rest is then empty). Where a picture may have several classes: name, labels (parted by |), best, logit, error.
    """
    answers, targets = evaluation.answers, evaluation.targets
    rows = (
        _several(answers, targets, source)
        if evaluation.judged is None
        else _one(answers, evaluation.judged, targets, source, evaluation.real)
    )
    with replacing(path, needed=_LINE_BYTES * answers.asked) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        text.flush()
        text.detach()  # the file is not the wrapper's to close


def _one(answers: Answers, judged: Judged, targets: Targets, source: Source, real: Sequence[Sequence[int]] | None) -> Iterator[Row]:
    yield ["name", "label", "chosen", "confidence", "right", "rank", "loss", "real", "error"]
    for row, index in enumerate(answers.indices_N.tolist()):
        chosen, rank = int(judged.chosen_N[row]), int(judged.rank_N[row])
        classes = None if real is None else real[index]
        yield [
            name_in(source, index),
            targets.labels[int(answers.labels[row])],
            targets.names[chosen],
            f"{judged.confidence_N[row]:.6f}",
            int(rank == 0),
            rank,
            f"{judged.loss_N[row]:.6f}",
            int(chosen in classes) if classes else "",
            "",
        ]
    for failure in answers.failures:
        label = source.label(failure.index)
        assert isinstance(label, int)
        yield [failure.name, targets.labels[label], "", "", 0, "", "", "", failure.reason]


def _several(answers: Answers, targets: Targets, source: Source) -> Iterator[Row]:
    yield ["name", "labels", "best", "logit", "error"]
    for row, index in enumerate(answers.indices_N.tolist()):
        best = int(top_classes(answers.logits_NC[row : row + 1], 1)[0, 0])
        labels = _named(source.label(index), targets)
        yield [name_in(source, index), labels, targets.names[best], f"{answers.logits_NC[row, best]:.6f}", ""]
    for failure in answers.failures:
        yield [failure.name, _named(source.label(failure.index), targets), "", "", failure.reason]


def _named(label: object, targets: Targets) -> str:
    assert isinstance(label, tuple)
    return "|".join(targets.labels[code] for code in label)
