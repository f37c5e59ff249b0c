"""The paper's protocol in small: learn from one data set, fine-tune on another at a higher resolution, and see what it was worth.

A: invented letters, drawn as they are needed. B: handwritten digits, 1,347 to learn from and 450 to be judged by. The same ViT is
fine-tuned on B twice: once beginning with what A taught it, once with random values, each at the best of the rates tried for it
(docs/log.md). With all labels and with ten of each digit; nearest neighbours of raw pixels stand beside as a plain reference.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.serialize import Json
from vitlab.data.dataset import Dataset
from vitlab.data.opening import open_dataset
from vitlab.evaluation.frozen import draw
from vitlab.io.atomic import write_bytes
from vitlab.io.progress import ProgressCallback, silent
from vitlab.recipes.own import STROKES
from vitlab.recipes.table import recipe
from vitlab.reports.content import Comparison, percent
from vitlab.reports.report import Written, write_report
from vitlab.studies.runner import Done, Job, Went, on_one_core, side_by_side
from vitlab.studies.verdict import accuracy_of, judge_run
from vitlab.training.control import Control
from vitlab.training.plan import this_machine

# Digits with few labels, as packs on the disk; and what the nearest of the labelled ones says of the others.
#
# Axes: N images, M images judged by, P pixels.


def write_few(path: Path, *, shots: int, seed: int) -> Path:
    """A pack of `shots` training images of each digit, drawn by `seed`, and all test images; written once, then left alone."""
    if path.exists():
        return path
    train, test = open_dataset("digits", split="train+val"), open_dataset("digits", split="test")
    labels_N = np.array([train.label(index) for index in range(len(train))], np.int64)
    chosen = np.sort(np.concatenate([order[:shots] for order in draw(labels_N, classes=len(train.labels), seed=seed)]))
    images, labels = zip(*((train.read(int(index)).content, train.label(int(index))) for index in chosen), strict=True)
    test_images, test_labels = zip(*((test.read(index).content, test.label(index)) for index in range(len(test))), strict=True)
    file = io.BytesIO()
    np.savez(
        file,
        train_images=np.stack(images),
        train_labels=np.array(labels, np.int64),
        test_images=np.stack(test_images),
        test_labels=np.array(test_labels, np.int64),
        classes=np.array(train.labels),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, file.getvalue())
    return path


def nearest(spec: str) -> float:
    """Share of the test images, 0 to 1, whose nearest training image by Euclidean distance of pixels is of their class."""
    train_NP, train_N = _pixels(open_dataset(spec, split="train+val"))
    test_MP, test_M = _pixels(open_dataset(spec, split="test"))
    # |a - b|^2 = |a|^2 - 2ab + |b|^2, and |a|^2 is the same for all b
    distance_MN = (train_NP**2).sum(1) - 2 * test_MP @ train_NP.T
    return float(np.mean(train_N[distance_MN.argmin(1)] == test_M))


def _pixels(dataset: Dataset) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rows = [np.asarray(dataset.read(index).content, np.float64).reshape(-1) for index in range(len(dataset))]
    return np.stack(rows), np.array([dataset.label(index) for index in range(len(dataset))], np.int64)


Start = Literal["pretrained", "random"]

SHOTS = 10
SEEDS = (0, 1, 2)
_DIGITS = 1_347
_FINE = (48, 48)  # pixels; A is learned at 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much is learned: images of A, updates with all labels of B, updates with few. `data` is A, else the recipe's."""

    letters: int
    all_steps: int
    few_steps: int
    data: DataFacts | None = None


BUDGETS: dict[str, Budget] = {
    "full": Budget(letters=100_000, all_steps=600, few_steps=300),
    "tiny": Budget(
        letters=32, all_steps=2, few_steps=2, data=replace(STROKES, dataset=f"{STROKES.dataset},samples_per_class=10", images=1000)
    ),
}

# The peak learning rate of each fine-tuning, for batches of 64 and 50: the best of those tried on held-out training digits.
RATES: dict[tuple[Start, Literal["all", "few"]], float] = {
    ("pretrained", "all"): 3e-3,
    ("pretrained", "few"): 3e-3,
    ("random", "all"): 3e-3,
    ("random", "few"): 2e-3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. Shares of the 450 test digits, 0 to 1; `few` has one for each seed.

    `fitted` is the lowest share of its own training digits that any of the row's models tells right, None for neighbours.
    """

    name: str
    few: tuple[float, ...]
    all: float
    fitted: float | None

    @property
    def few_mean(self) -> float:
        """Over the seeds."""
        return fmean(self.few)

    @property
    def few_deviation(self) -> float:
        """Between the seeds; 0 of one."""
        return stdev(self.few) if len(self.few) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it. `letters` is the share of letters never seen before that pre-training tells right."""

    rows: tuple[Row, ...]
    letters: float
    pretrained: Path
    random: Path
    pretraining: Path
    gain_few: float
    gain_all: float


def jobs_of(out: Path, budget: Budget) -> tuple[Job, ...]:
    """All runs: pre-training, and for both beginnings one fine-tuning with all labels and one a seed with few of them.

    The few labels are written as packs under `out/data`.
    """
    images = (budget.data or STROKES).images
    letters = recipe("quickstart", Overrides(epochs=budget.letters / images), data=budget.data)
    first = Job(
        name="letters",
        title="pre-train on invented letters",
        run=on_one_core(letters),
        out=out / "letters",
        verdict=judge_run,
    )
    dataset = str(first.out / "model.safetensors")
    start = StartFacts(path=dataset, model=first.run.model, preprocess=first.run.preprocess)
    made = [first]
    packs = {seed: write_few(out / "data" / f"digits-{SHOTS}-labels-{seed}.npz", shots=SHOTS, seed=seed) for seed in SEEDS}
    whole = DataFacts(dataset="digits", images=_DIGITS, classes=10, channels=1, side=8)
    titles: dict[Start, str] = {"random": "from random values", "pretrained": "pre-trained"}
    for begun, words in titles.items():
        after = (first.name,) if begun == "pretrained" else ()
        begins = start if begun == "pretrained" else None
        overrides = Overrides(image_size=_FINE, lr=RATES[begun, "all"], steps=budget.all_steps, batch_size=64)
        run = _finetuning(overrides, whole, begins)
        made.append(
            Job(
                name=f"{begun}-all", title=f"{words}, all labels", run=run, out=out / f"{begun}-all", verdict=judge_run, after=after
            )
        )
        for seed, pack in packs.items():
            few = replace(whole, dataset=str(pack), images=SHOTS * 10)
            overrides = Overrides(image_size=_FINE, lr=RATES[begun, "few"], steps=budget.few_steps, batch_size=50, seed=seed)
            run = _finetuning(overrides, few, begins)
            name, title = f"{begun}-{SHOTS}-labels-{seed}", f"{words}, {SHOTS} labels a digit, draw {seed + 1} of {len(packs)}"
            made.append(Job(name=name, title=title, run=run, out=out / name, verdict=judge_run, after=after))
    return tuple(made)


def quickstart(out: Path, *, budget: Budget, control: Control) -> Iterator[Went | Done | Outcome]:
    """Make all runs that are not made yet, two at a time where there are two cores; the last event is the outcome.

    Without an outcome it was asked to stop. Called again with the same folder it goes on.
    """
    out.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(out, budget)
    results: dict[str, dict[str, Json]] = {}
    for event in side_by_side(jobs, lanes=min(2, this_machine().cores), control=control):
        if isinstance(event, Done):
            results[event.job] = event.result
        yield event
    if len(results) == len(jobs):
        yield _outcome(out, results)


def _outcome(out: Path, results: dict[str, dict[str, Json]]) -> Outcome:
    def row(begun: Start, name: str) -> Row:
        few = [results[f"{begun}-{SHOTS}-labels-{seed}"] for seed in SEEDS]
        whole = results[f"{begun}-all"]
        return Row(
            name=name,
            few=tuple(accuracy_of(result, "test") for result in few),
            all=accuracy_of(whole, "test"),
            fitted=min(accuracy_of(result, "train") for result in (*few, whole)),
        )

    pretrained, random = row("pretrained", "ViT, pre-trained on letters"), row("random", "ViT, from random values")
    packs = [out / "data" / f"digits-{SHOTS}-labels-{seed}.npz" for seed in SEEDS]
    neighbour = Row(
        name="nearest neighbour of raw pixels", few=tuple(nearest(str(pack)) for pack in packs), all=nearest("digits"), fitted=None
    )
    return Outcome(
        rows=(pretrained, random, neighbour),
        letters=accuracy_of(results["letters"], "test"),
        pretrained=out / "pretrained-all",
        random=out / "random-all",
        pretraining=out / "letters",
        gain_few=pretrained.few_mean - random.few_mean,
        gain_all=pretrained.all - random.all,
    )


def _finetuning(overrides: Overrides, labels: DataFacts, start: StartFacts | None) -> RunConfig:
    """On every labelled digit there is, and without a look at held-out ones: what is to be chosen was chosen before."""
    run = recipe("quickstart-finetune", overrides, data=labels, start=start)
    augment = replace(run.data.augment, crop="squash")  # every image as it is
    data = replace(run.data, train_split="train+val", evaluate_split=None, augment=augment)
    # Seconds long: a checkpoint half way is enough, and each one waits for the disk.
    return on_one_core(replace(run, data=data, train=replace(run.train, save_every=max(1, run.train.steps // 2))))


# The quickstart's report: that of the pre-trained run, with all runs compared in it.


def write_quickstart_report(outcome: Outcome, path: Path, *, progress: ProgressCallback = silent) -> Written:
    """Write the report as `path`."""
    return write_report(
        outcome.pretrained,
        path,
        comparison=_comparison(outcome),
        title="Quickstart: what pre-training is worth",
        cores=1,
        progress=progress,
    )


def _comparison(outcome: Outcome) -> Comparison:
    return Comparison(
        title="With what the letters taught it, and without",
        heads=("", f"{SHOTS} labels a digit", "all 1,347 labels"),
        rows=tuple(_cells(row) for row in outcome.rows),
        sentences=_sentences(outcome),
        curves=(("pre-trained", outcome.pretrained), ("from random values", outcome.random)),
    )


def _sentences(outcome: Outcome) -> tuple[str, ...]:
    fitted = min(row.fitted for row in outcome.rows if row.fitted is not None)
    few, whole = 100 * outcome.gain_few, 100 * outcome.gain_all
    what = f"""Shares of the 450 test digits told right. With {SHOTS} labels a digit: the mean of {len(SEEDS)} draws of the labels,
        and the deviation between them."""
    gain = f"""Pre-training is worth {few:.1f} points with {SHOTS} labels a digit and {whole:.1f} points with all of them. Both
        models are the same ViT, fine-tuned alike: as many updates, no augmentation, each at the best of the learning rates tried
        for it on training digits that were held out."""
    learned = "all" if fitted == 1 else f"at least {percent(fitted)}"
    end = f"""Both end with {learned} of the digits they learned from told right. Pre-training saw nothing but invented letters:
        among 100 kinds it tells {percent(outcome.letters)} of those it has not seen."""
    reference = """Digits of 8 x 8 pixels, all in the same place and of the same size, are easy for nearest neighbours: they are
        the plain reference."""
    return tuple(" ".join(words.split()) for words in (what, gain, end, reference))


def _cells(row: Row) -> tuple[str, str, str]:
    return row.name, f"{100 * row.few_mean:.1f} ± {100 * row.few_deviation:.1f} %", percent(row.all)
