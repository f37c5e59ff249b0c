"""The pictures of a Noisy Student study: those with labels, those without, and those that judge.

Axes: N pictures of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.config.source import Split
from vitlab.data.files.names import shown
from vitlab.data.kinds.joined import JoinedEntry, Taken, names_digest, open_member
from vitlab.data.listed import ListedSource
from vitlab.errors import DataError
from vitlab.evaluate.fewshot import draw
from vitlab.train.survey import survey


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pictures:
    """`labelled` is where the true labels are and `labelled_rows` which of them are used, None for all: `count` pictures.

    `pool` are the pictures a teacher is asked about, `pool_rows` their numbers in `unlabelled`, and `truth_N` the classes they
    really have, where they were only hidden. `judged` is the `judged_by` part of the data, of which no picture is in the others.
    """

    classes: tuple[str, ...]
    labelled: JoinedEntry
    labelled_rows: Taken | None
    count: int
    unlabelled: JoinedEntry
    pool: ListedSource
    pool_rows: NDArray[np.int64]
    truth_N: NDArray[np.int32] | None
    judged: ListedSource
    judged_by: str
    told: str


def gathered(data: str, unlabelled: str | None, shots: int | None, *, seed: int = 0) -> Pictures:
    """Open everything, and leave out of the pool what is labelled or judged by, picture by picture."""
    parts = survey(data).parts
    judged_by: Split = "test" if "test" in parts else "val"
    if judged_by not in parts:
        raise DataError(
            f"{shown(data)} has no part to judge by: it declares {', '.join(parts)}", hint="declare a test part, or none"
        )
    # Nothing is chosen by val, so where there is a test part val may be learned from.
    learned = JoinedEntry(source=data, split="train+val" if judged_by == "test" else "train")
    judged = open_member(JoinedEntry(source=data, split=judged_by))
    source = open_member(learned)
    labelled = _named(learned, source)
    codes_N = source.table.codes
    if not source.labels or np.any(codes_N < 0):
        raise DataError(f"{shown(data)} has pictures without a label", hint="give them as the unlabelled pictures")
    if shots is not None:
        drawn = np.sort(
            np.concatenate([of[:shots] for of in draw(codes_N.astype(np.int64), classes=len(source.labels), seed=seed)])
        )
        rest = np.setdiff1d(np.arange(len(source)), drawn)
        known, entry, whole, rows = source.take(drawn), labelled, source, rest
        taken: Taken | None = Taken(rows=drawn)
    else:
        assert unlabelled is not None
        known, taken = source, None
        entry = JoinedEntry(source=_as_pictures(unlabelled))
        whole = open_member(entry)
        entry, rows = _named(entry, whole), np.arange(len(whole))
    kept = _others(whole.take(rows), known, judged)
    if not len(kept):
        raise DataError(f"no picture is left to be labelled by a teacher: all {len(rows):,} are labelled or judged by already")
    hidden = " (they are hidden)" if shots is not None else ""
    copies = f", {len(rows) - len(kept):,} copies of others left out" if len(kept) < len(rows) else ""
    rows = rows[kept]
    return Pictures(
        classes=source.labels,
        labelled=labelled,
        labelled_rows=taken,
        count=len(known),
        unlabelled=entry,
        pool=whole.take(rows),
        pool_rows=rows,
        truth_N=whole.table.codes[rows] if shots is not None else None,
        judged=judged,
        judged_by=judged_by,
        told=f"{len(known):,} pictures of {len(source.labels):,} classes have labels, {len(rows):,} have none{hidden}{copies};"
        f" judged is by {len(judged):,} others ({judged_by})",
    )


def _named(entry: JoinedEntry, source: ListedSource) -> JoinedEntry:
    return JoinedEntry(source=entry.source, split=entry.split, rule=entry.rule, names=names_digest(source))


def _as_pictures(spec: str) -> str:
    """A folder is taken as pictures without classes; anything else as it is spelled."""
    return f"pictures:{spec}" if Path(spec).is_dir() else spec


def _others(pool: ListedSource, known: ListedSource, judged: ListedSource) -> NDArray[np.int64]:
    """The pictures of the pool that are, to the byte, in neither of the other two."""
    seen = {row.tobytes() for source in (known, judged) for row in source.digests()}
    return np.array([index for index, row in enumerate(pool.digests()) if row.tobytes() not in seen], np.int64)
