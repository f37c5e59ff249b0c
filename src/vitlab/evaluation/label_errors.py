"""Likely wrong labels and outliers of a dataset, by the features of a model: `vitlab data check DATA --model MODEL`.

Labels are checked by confident learning (Northcutt, Jiang and Chuang 2021). A linear classifier is fitted to frozen features and
predicts each image out of fold, so that no image teaches its own label. The threshold of class j is the mean probability of j over
the images labelled j; an image whose most probable class among those above their thresholds is not its label is likely wrong,
unless its label is the most probable class of all. An outlier is far from its nearest neighbours, compared with the other images.

Axes: N images, K classes, D width of the features, B a block of images.
"""

from __future__ import annotations

import base64
import csv
import html
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.checkpoints import Checkpoint
from vitlab.config.data import DecodeLimits
from vitlab.config.evaluation import EvaluateConfig, ProbeConfig
from vitlab.data.check import DataCheck
from vitlab.data.dataset import SPLITS, UNDECLARED, Dataset, ImageDataset
from vitlab.data.decode import as_rgb, decode
from vitlab.errors import DataError
from vitlab.evaluation.evaluation import name_in
from vitlab.evaluation.features import Features, FeatureStore, extract_features, model_key
from vitlab.evaluation.frozen import choose_strength, fit, select, unit
from vitlab.io.atomic import replacing
from vitlab.io.display import Block, Displayed, ProgressCallback, csv_cell, printable, silent
from vitlab.objective.metrics import log_softmax

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FOLDS = 5
_NEIGHBOURS = 10
_FAR = 5.0  # deviations (1.4826 times the median one) above the median distance: 1 normal image in 3 million
_BLOCK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """An image whose label is likely wrong: the class that is predicted out of fold, and both probabilities."""

    index: int
    name: str
    label: str
    suggested: str
    label_probability: float
    suggested_probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """An image unlike all others: the mean cosine distance to its nearest neighbours, and how many deviations that is too far."""

    index: int
    name: str
    label: str
    distance: float
    deviations: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LabelCheck(Displayed):
    """What a model finds in a dataset besides the checks of `data check`, which are in `check`.

    `suspects` are the likely wrong labels, the most certain first; `outliers` the farthest first. `accuracy` is the fraction of
    images whose label is predicted out of fold. `files` are the page and the list that were written.
    """

    check: DataCheck
    images: int
    accuracy: float
    suspects: tuple[Suspect, ...]
    outliers: tuple[Outlier, ...]
    files: tuple[Path, ...] = ()

    @property
    def problems(self) -> list[str]:
        """What should be looked at before training."""
        found = "1 label is likely wrong" if len(self.suspects) == 1 else f"{len(self.suspects):,} labels are likely wrong"
        return [*self.check.problems, *([found] if self.suspects else [])]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        fields = {
            "suspects": [{name: getattr(one, name) for name in Suspect.__dataclass_fields__} for one in self.suspects],
            "outliers": [{name: getattr(one, name) for name in Outlier.__dataclass_fields__} for one in self.outliers],
        }
        return {
            **self.check.to_json(),
            "label_check": {"images": self.images, "accuracy": self.accuracy, **fields},
            "files": [str(path) for path in self.files],
        }

    def tables(self) -> Iterator[Block]:
        """The checks, then the first suspects and outliers."""
        yield from self.check.tables()
        yield {
            "labels predicted": f"{100 * self.accuracy:.2f} % of {self.images:,}, each by a classifier fitted to other images",
            "likely wrong labels": len(self.suspects),
            "outliers": len(self.outliers),
            **({"written": ", ".join(map(str, self.files))} if self.files else {}),
        }
        shown = self.check.shown
        if self.suspects and shown:
            yield [
                {"likely_wrong": one.name, "label": one.label, "suggested": one.suggested, "probability": one.suggested_probability}
                for one in self.suspects[:shown]
            ]
            yield from _others(len(self.suspects) - shown)
        if self.outliers and shown:
            yield [
                {"outlier": one.name, "label": one.label, "deviations": round(one.deviations, 1)} for one in self.outliers[:shown]
            ]
            yield from _others(len(self.outliers) - shown)


def _others(count: int) -> Iterator[Block]:
    if count > 0:
        yield f"and {count:,} more (JSON has all)"


def check_labels(
    checkpoint: Checkpoint,
    dataset: Dataset,
    check: DataCheck,
    *,
    config: EvaluateConfig = EvaluateConfig(corrupt="skip"),  # noqa: B008 (a frozen value)
    progress: ProgressCallback = silent,
) -> tuple[LabelCheck, Features]:
    """Check the labels of a dataset with one class per image; also the features, for whoever wants more of them."""
    if dataset.multi_label or not dataset.labels:
        raise DataError("labels are checked where each image has one", hint="leave `model` out")
    features = extract_features(checkpoint, dataset, config=config, store=FeatureStore(model_key(checkpoint)), progress=progress)
    names = [name_in(dataset, int(index)) for index in features.indices_N]
    chance_NK = out_of_fold(features, progress=progress)
    labels_N = features.labels_N
    rows = np.arange(len(labels_N))
    suspects = []
    for row, meant in confident_errors(chance_NK, labels_N):
        suspects.append(
            Suspect(
                index=int(features.indices_N[row]),
                name=names[row],
                label=features.names[labels_N[row]],
                suggested=features.names[meant],
                label_probability=float(chance_NK[row, labels_N[row]]),
                suggested_probability=float(chance_NK[row, meant]),
            )
        )
    distance_N = neighbour_distances(features.features_ND)
    middle = float(np.median(distance_N))
    spread = 1.4826 * float(np.median(np.abs(distance_N - middle))) or 1.0
    deviation_N = (distance_N - middle) / spread
    far = [int(row) for row in np.argsort(-deviation_N, kind="stable") if deviation_N[row] > _FAR]
    outliers = [
        Outlier(
            index=int(features.indices_N[row]),
            name=names[row],
            label=features.names[labels_N[row]],
            distance=float(distance_N[row]),
            deviations=float(deviation_N[row]),
        )
        for row in far
    ]
    accuracy = float((chance_NK.argmax(1) == labels_N)[rows].mean())
    found = LabelCheck(check=check, images=len(labels_N), accuracy=accuracy, suspects=tuple(suspects), outliers=tuple(outliers))
    return found, features


def out_of_fold(features: Features, *, folds: int = FOLDS, seed: int = 0, progress: ProgressCallback = silent) -> Floats:
    """The probabilities of every image by a linear classifier that was fitted to the other folds, (N, K).

    Folds have every class in proportion. The regularisation is chosen once, on the first fold.
    """
    labels_N, classes = features.labels_N, len(features.names)
    fold_N = np.empty(len(labels_N), np.int64)
    order = np.random.default_rng(seed).permutation(len(labels_N))
    for label in range(classes):
        own = order[labels_N[order] == label]
        fold_N[own] = np.arange(len(own)) % folds
    if len(set(fold_N.tolist())) < folds:
        raise DataError(f"no class has {folds} images, which the folds need", hint="leave `model` out")
    config = ProbeConfig(per_decade=1, tolerance=1e-4, most_steps=200)
    l2 = choose_strength(select(features, fold_N != 0), select(features, fold_N == 0), config)[0].l2
    chance_NK = np.empty((len(labels_N), classes))
    for fold in range(folds):
        classifier = fit(select(features, fold_N != fold), classes=classes, l2=l2, config=config)
        held_N = fold_N == fold
        chance_NK[held_N] = np.exp(log_softmax(classifier.logits(features.features_ND[held_N])))
        progress("folds", fold + 1, folds)
    return chance_NK


def confident_errors(chance_NK: Floats, labels_N: Ints) -> Iterator[tuple[int, int]]:
    """(row, class that is meant) of each image off the diagonal of the confident joint; the most certain error first.

    The order is that of the probability of the label minus that of the class that is meant.
    """
    classes = chance_NK.shape[1]
    threshold_K = np.array(
        [chance_NK[labels_N == label, label].mean() if (labels_N == label).any() else np.inf for label in range(classes)]
    )
    confident_NK = np.where(chance_NK >= threshold_K, chance_NK, -np.inf)
    meant_N = confident_NK.argmax(1)
    predicted_N = chance_NK.argmax(1)  # where the label is the most probable class, it is no error
    wrong = np.flatnonzero(np.isfinite(confident_NK.max(1)) & (meant_N != labels_N) & (predicted_N != labels_N))
    margin = chance_NK[wrong, labels_N[wrong]] - chance_NK[wrong, meant_N[wrong]]
    for row in wrong[np.argsort(margin, kind="stable")]:
        yield int(row), int(meant_N[row])


def neighbour_distances(features_ND: NDArray[np.float32], *, k: int = _NEIGHBOURS) -> Floats:
    """The mean cosine distance of each image to its k nearest others."""
    unit_ND = unit(features_ND)
    k = min(k, len(unit_ND) - 1)
    if k < 1:
        return np.zeros(len(unit_ND))
    found = np.empty(len(unit_ND))
    for first in range(0, len(unit_ND), _BLOCK):
        cosine_BN = unit_ND[first : first + _BLOCK] @ unit_ND.T
        rows = np.arange(len(cosine_BN))
        cosine_BN[rows, first + rows] = -np.inf
        found[first : first + len(rows)] = 1 - np.partition(cosine_BN, -k, axis=1)[:, -k:].mean(1)
    return found


def write_corrections(path: Path, found: LabelCheck, dataset: Dataset, data: str) -> None:
    """A CSV file to correct: file, split, label, suggested label and probabilities; the suspects first.

    Of a folder it lists every image, with paths relative to the list, so that the corrected list is itself a dataset. Of other
    data it lists the suspects.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "split", "label", "suggested", "label_probability", "suggested_probability"])
    folder = Path(data).is_dir() and isinstance(dataset, ImageDataset)

    def place(name: str) -> str:
        return os.path.relpath(name, path.absolute().parent) if folder else name

    for one in found.suspects:
        numbers = (f"{one.label_probability:.4f}", f"{one.suggested_probability:.4f}")
        row = [place(one.name), _split(dataset, one.index), one.label, one.suggested]
        writer.writerow([*map(csv_cell, row), *numbers])
    if folder:
        said = {one.index for one in found.suspects}
        for index in range(len(dataset)):
            label = dataset.label(index)
            if index not in said and isinstance(label, int):
                row = [place(name_in(dataset, index)), _split(dataset, index), dataset.labels[label], ""]
                writer.writerow([*map(csv_cell, row), "", ""])
    content = text.getvalue().encode("utf-8", "surrogateescape")
    with replacing(path, needed=len(content)) as file:
        file.write(content)


def _split(dataset: Dataset, index: int) -> str:
    code = int(dataset.splits[index]) if isinstance(dataset, ImageDataset) else UNDECLARED
    return "" if code == UNDECLARED else SPLITS[code]


# --- the page -----------------------------------------------------------------------------------------------------------------
# The page of `vitlab data check --model`: likely wrong labels and outliers, each with its image. One file, without a network.

_THUMBNAIL = 160  # pixels of a thumbnail
_MOST_SHOWN = 500  # images of a kind
_PAGE_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 1rem }
h1 { overflow-wrap: anywhere } figure { margin: 0; overflow-wrap: anywhere }
img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: #8882; margin-bottom: .4rem }
b { display: block } small { opacity: .75 } s { opacity: .75 }
"""


def write_page(path: Path, found: LabelCheck, dataset: Dataset, *, progress: ProgressCallback = silent) -> None:
    """Write the page; an image that cannot be shown is a grey square with its name."""
    suspects, outliers = found.suspects[:_MOST_SHOWN], found.outliers[:_MOST_SHOWN]
    total, data = len(suspects) + len(outliers), found.check.report.data
    cards = []
    for place, one in enumerate(suspects):
        label, suggested = (
            f"<small>{100 * value:.1f}&nbsp;%</small>" for value in (one.label_probability, one.suggested_probability)
        )
        classes = f"<s>{_escaped(one.label)}</s> {label}<b>{_escaped(one.suggested)}? {suggested}</b>"
        words = f"{classes}<small>{_place_in_data(one.name, data)}</small>"
        cards.append(f"<figure>{_thumbnail(dataset, one.index, one.name)}{words}</figure>")
        progress("page", place + 1, total)
    far = []
    for place, odd in enumerate(outliers):
        remark = f"{odd.deviations:.1f} deviations from its neighbours"
        words = f"<b>{_escaped(odd.label)}</b><small>{remark}<br>{_place_in_data(odd.name, data)}</small>"
        far.append(f"<figure>{_thumbnail(dataset, odd.index, odd.name)}{words}</figure>")
        progress("page", len(suspects) + place + 1, total)
    title = _escaped(data)
    count = len(found.suspects)
    wrong = "1 label is likely wrong" if count == 1 else f"{count:,} labels are likely wrong"
    more = f" The first {_MOST_SHOWN:,} are shown." if len(found.suspects) > _MOST_SHOWN else ""
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Labels of {title}</title>
<style>{_PAGE_STYLE}</style></head><body>
<h1>Labels of {title}</h1>
<p>{found.images:,} images; {100 * found.accuracy:.1f} % of their labels are predicted by a classifier fitted to the others.</p>
<h2>{wrong}</h2>
<p>The label is struck out; the suggestion below it is the class that a classifier predicts. Both have their probability. The most
certain come first.{more}</p>
<main>{"".join(cards)}</main>
<h2>{len(found.outliers):,} {"outlier" if len(found.outliers) == 1 else "outliers"}</h2>
<p>Images that are far from their nearest neighbours, the farthest first: look whether they belong here.</p>
<main>{"".join(far)}</main>
</body></html>
"""
    content = text.encode()
    with replacing(path, needed=len(content)) as file:
        file.write(content)


def _escaped(words: str) -> str:
    return html.escape(printable(words))


def _place_in_data(name: str, data: str) -> str:
    """Where an image is inside the data; the page's title says where the data is."""
    return _escaped(name.removeprefix(data).lstrip("/") or name)


def _thumbnail(dataset: Dataset, index: int, name: str) -> str:
    sample = dataset.read(index)
    try:
        content = sample.content
        pixels = (
            decode(content, name=name, limits=DecodeLimits(), channels=None, scale="percentile")
            if isinstance(content, bytes)
            else content
        )
    except DataError:
        return "<img alt='cannot be read'>"
    thumb = Image.fromarray(as_rgb(pixels))
    thumb.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    thumb.convert("RGB").save(buffer, "JPEG", quality=80)
    return f'<img alt="{_escaped(name)}" src="data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
