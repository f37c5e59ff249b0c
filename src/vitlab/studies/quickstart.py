"""The quickstart: the paper's protocol in miniature, to show what pre-training gains.

A ViT is pre-trained on synthetic letters and fine-tuned at a higher resolution on handwritten digits (1,347 to train on, 450 to
test on). The same ViT is also trained on the digits from scratch. Each uses the best of the learning rates that were tried for it
(docs/log.md). Both are trained with all labels once, and with ten labels a digit for several seeds, which the table compares;
nearest neighbours of raw pixels are the plain reference.

Axes: N training images, M test images, P pixels.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints import load
from vitlab.config.overrides import DataFacts, Overrides, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.serialize import Json
from vitlab.data.dataset import Dataset
from vitlab.data.opening import open_dataset
from vitlab.evaluation.frozen import draw
from vitlab.inference.images import NamedImage
from vitlab.io.atomic import write_bytes
from vitlab.io.display import Facts, ProgressCallback, silent
from vitlab.recipes.own import STROKES
from vitlab.recipes.table import recipe
from vitlab.reports.content import Comparison, percent
from vitlab.reports.explorer import WrittenExplorer, write_explorer
from vitlab.reports.report import WrittenReport, write_report
from vitlab.studies.study import (
    Done,
    Job,
    JobProgress,
    Notify,
    accuracy_text,
    counts_of,
    evaluate_run,
    on_one_core,
    run_jobs,
    stop,
    stoppable,
)
from vitlab.training.events import Control
from vitlab.training.plan import this_machine


def write_few(path: Path, *, shots: int, seed: int) -> Path:
    """Write a pack of `shots` training images of each digit, drawn by `seed`, and all test images, unless `path` exists."""
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
    """Accuracy, 0 to 1, of the label of the nearest training image by Euclidean distance of pixels, on the test split."""
    train_NP, train_N = _pixels(open_dataset(spec, split="train+val"))
    test_MP, test_M = _pixels(open_dataset(spec, split="test"))
    # |a - b|^2 = |a|^2 - 2ab + |b|^2, and |a|^2 is the same for all b
    distance_MN = (train_NP**2).sum(1) - 2 * test_MP @ train_NP.T
    return float(np.mean(train_N[distance_MN.argmin(1)] == test_M))


def _pixels(dataset: Dataset) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rows = [np.asarray(dataset.read(index).content, np.float64).reshape(-1) for index in range(len(dataset))]
    return np.stack(rows), np.array([dataset.label(index) for index in range(len(dataset))], np.int64)


Start = Literal["pretrained", "scratch"]

SHOTS = 10
SEEDS = (0, 1, 2)
_DIGITS = 1_347
_FINE = (48, 48)  # pixels; pre-training uses 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long to train: letters of pre-training, steps with all labels, steps with few.

    `data` are the letters, None for the recipe's.
    """

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
LEARNING_RATES: dict[tuple[Start, Literal["all", "few"]], float] = {
    ("pretrained", "all"): 3e-3,
    ("pretrained", "few"): 3e-3,
    ("scratch", "all"): 3e-3,
    ("scratch", "few"): 2e-3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartRow:
    """One row of the table: accuracy on the 450 test digits, 0 to 1; `few` has one number for each seed, `all` is one run.

    `fitted` is the lowest accuracy of the row's models on the digits they were trained on, None for neighbours.
    """

    name: str
    few: tuple[float, ...]
    all: float
    fitted: float | None

    @property
    def few_mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.few)

    @property
    def few_deviation(self) -> float:
        """Standard deviation between the seeds; 0 for one seed."""
        return stdev(self.few) if len(self.few) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result. `letters` is the accuracy of the pre-trained model on unseen letters; gains are differences of accuracy."""

    rows: tuple[QuickstartRow, ...]
    letters: float
    pretrained: Path
    scratch: Path
    pretraining: Path
    gain_few: float
    gain_all: float


def jobs_of(out: Path, budget: Budget) -> tuple[Job, ...]:
    """All runs: pre-training, and for both starts one run with all labels and one for each seed with few of them.

    The images with few labels are written as packs in `out/data`.
    """
    images = (budget.data or STROKES).images
    letters = recipe("quickstart", Overrides(epochs=budget.letters / images), data=budget.data)
    first = Job(
        name="letters",
        title="pre-train on synthetic letters",
        run=on_one_core(letters),
        out=out / "letters",
        evaluate=evaluate_run,
    )
    start = StartFacts(path=str(first.out / "model.safetensors"), model=first.run.model, preprocess=first.run.preprocess)
    made = [first]
    packs = {seed: write_few(out / "data" / f"digits-{SHOTS}-labels-{seed}.npz", shots=SHOTS, seed=seed) for seed in SEEDS}
    whole = DataFacts(dataset="digits", images=_DIGITS, classes=10, channels=1, side=8)
    titles: dict[Start, str] = {"scratch": "from scratch", "pretrained": "pre-trained"}
    for origin, words in titles.items():
        after = (first.name,) if origin == "pretrained" else ()
        checkpoint = start if origin == "pretrained" else None
        overrides = Overrides(image_size=_FINE, lr=LEARNING_RATES[origin, "all"], steps=budget.all_steps, batch_size=64)
        run = _finetuning(overrides, whole, checkpoint)
        made.append(
            Job(
                name=f"{origin}-all",
                title=f"{words}, all labels",
                run=run,
                out=out / f"{origin}-all",
                evaluate=evaluate_run,
                after=after,
            )
        )
        for seed, pack in packs.items():
            few = replace(whole, dataset=str(pack), images=SHOTS * 10)
            overrides = Overrides(
                image_size=_FINE, lr=LEARNING_RATES[origin, "few"], steps=budget.few_steps, batch_size=50, seed=seed
            )
            run = _finetuning(overrides, few, checkpoint)
            name, title = f"{origin}-{SHOTS}-labels-{seed}", f"{words}, {SHOTS} labels a digit, seed {seed + 1} of {len(packs)}"
            made.append(Job(name=name, title=title, run=run, out=out / name, evaluate=evaluate_run, after=after))
    return tuple(made)


def quickstart(out: Path, *, budget: Budget, control: Control) -> Iterator[JobProgress | Done | Outcome]:
    """Run what is not finished yet, two runs at a time where there are two cores; the last event is the outcome.

    A stopped quickstart has no outcome; call it again with the same folder to resume.
    """
    out.mkdir(parents=True, exist_ok=True)
    jobs = jobs_of(out, budget)
    results: dict[str, dict[str, Json]] = {}
    for event in run_jobs(jobs, processes=min(2, this_machine().cores), control=control):
        if isinstance(event, Done):
            results[event.job] = event.result
        yield event
    if len(results) == len(jobs):
        yield _outcome(out, results)


def _outcome(out: Path, results: dict[str, dict[str, Json]]) -> Outcome:
    def row(origin: Start, name: str) -> QuickstartRow:
        few = [results[f"{origin}-{SHOTS}-labels-{seed}"] for seed in SEEDS]
        whole = results[f"{origin}-all"]
        return QuickstartRow(
            name=name,
            few=tuple(counts_of(result, "test").accuracy for result in few),
            all=counts_of(whole, "test").accuracy,
            fitted=min(counts_of(result, "train").accuracy for result in (*few, whole)),
        )

    pretrained, scratch = row("pretrained", "ViT, pre-trained on letters"), row("scratch", "ViT, from scratch")
    packs = [out / "data" / f"digits-{SHOTS}-labels-{seed}.npz" for seed in SEEDS]
    neighbour = QuickstartRow(
        name="nearest neighbour of raw pixels", few=tuple(nearest(str(pack)) for pack in packs), all=nearest("digits"), fitted=None
    )
    return Outcome(
        rows=(pretrained, scratch, neighbour),
        letters=counts_of(results["letters"], "test").accuracy,
        pretrained=out / "pretrained-all",
        scratch=out / "scratch-all",
        pretraining=out / "letters",
        gain_few=pretrained.few_mean - scratch.few_mean,
        gain_all=pretrained.all - scratch.all,
    )


def _finetuning(overrides: Overrides, labels: DataFacts, start: StartFacts | None) -> RunConfig:
    """Train on every labelled digit, without validation: the settings were chosen before."""
    run = recipe("quickstart-finetune", overrides, data=labels, start=start)
    augment = replace(run.data.augment, crop="squash")  # the whole image
    data = replace(run.data, train_split="train+val", evaluate_split=None, augment=augment)
    # The run takes seconds: one checkpoint half way is enough, and each one waits for the disk.
    return on_one_core(replace(run, data=data, train=replace(run.train, save_every=max(1, run.train.steps // 2))))


def write_quickstart_explorer(outcome: Outcome, path: Path, *, progress: ProgressCallback = silent) -> WrittenExplorer:
    """Write the explorer of the pre-trained run with all labels, with one test digit of each class, as `path`."""
    digits = open_dataset("digits", split="test")
    first = {digits.label(index): index for index in reversed(range(len(digits)))}
    images = [
        NamedImage(name=digits.labels[label], read=partial(_content, digits, first[label])) for label in range(len(digits.labels))
    ]
    checkpoint = load(outcome.pretrained / "model.safetensors")
    title = "How the quickstart's ViT sees digits"
    return write_explorer(path, {"ViT of the quickstart": checkpoint}, images, title=title, progress=progress)


def _content(dataset: Dataset, index: int) -> bytes | NDArray[np.uint8]:
    return dataset.read(index).content


def write_quickstart_report(
    outcome: Outcome, path: Path, *, explorer: Path | None = None, progress: ProgressCallback = silent
) -> WrittenReport:
    """Write the report of the pre-trained run with all labels, with the comparison of all rows, as `path`.

    It links to `explorer`, a file in the same folder.
    """
    return write_report(
        outcome.pretrained,
        path,
        comparison=_comparison(outcome),
        title="Quickstart: what pre-training gains",
        cores=1,
        explorer=None if explorer is None else explorer.name,
        progress=progress,
    )


def _comparison(outcome: Outcome) -> Comparison:
    return Comparison(
        title="With and without pre-training",
        heads=("", f"{SHOTS} labels a digit"),
        rows=tuple((row.name, few_cell(row)) for row in outcome.rows),
        sentences=_sentences(outcome),
        curves=(("pre-trained, all labels", outcome.pretrained), ("from scratch, all labels", outcome.scratch)),
    )


def few_cell(row: QuickstartRow) -> str:
    """The accuracy with few labels as the tables show it: mean and standard deviation over the seeds."""
    return f"{100 * row.few_mean:.1f} ± {100 * row.few_deviation:.1f} %"


def _sentences(outcome: Outcome) -> tuple[str, ...]:
    fitted = min(row.fitted for row in outcome.rows if row.fitted is not None)
    what = f"""Accuracy on the 450 test digits with {SHOTS} labels a digit: mean and standard deviation over {len(SEEDS)} seeds,
        each of which draws other labels."""
    gain = f"""Pre-training gains {100 * outcome.gain_few:.1f} points. Both models are the same ViT, fine-tuned alike: the same
        number of steps, no augmentation, each with the best of the learning rates tried for it on held-out training digits."""
    end = f"""On the digits they were trained on, the accuracy of both is {"" if fitted == 1 else "at least "}{percent(fitted)}.
        Pre-training uses synthetic letters only: its accuracy on unseen letters of 100 classes is {percent(outcome.letters)}."""
    reference = """Nearest neighbours of raw pixels are a strong reference here, as all digits have 8 x 8 pixels, one place and
        one size."""
    return tuple(" ".join(words.split()) for words in (what, gain, end, reference))


# --- as a table ---------------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def run_quickstart(out: Path, budget: str, progress: ProgressCallback, notify: Notify) -> Facts:
    """All runs of the quickstart, its table, and its report."""
    outcome = _finished(lambda control: quickstart(out, budget=BUDGETS[budget], control=control), Outcome, progress, notify)
    explorer = write_quickstart_explorer(outcome, out / "explorer.html", progress=progress)
    written = write_quickstart_report(outcome, out / "report.html", explorer=explorer.path, progress=progress)
    rows = [{"": row.name, f"accuracy with {SHOTS} labels a digit": few_cell(row)} for row in outcome.rows]
    model = str(outcome.pretrained / "model.safetensors")
    notify("note: report and explorer open in any browser; docs/guides/first-steps.md continues from here with your own images")
    return Facts(
        {
            "rows": [_quickstart_row(row) for row in outcome.rows],
            "gain_few": outcome.gain_few,
            "gain_all": outcome.gain_all,
            "letters": outcome.letters,
            "report": str(written.path),
            "explorer": str(explorer.path),
            "model": model,
            "pretrained": str(outcome.pretraining / "model.safetensors"),
        },
        shown=[rows, {"report": str(written.path), "explorer": str(explorer.path), "model": model}],
    )


def _quickstart_row(row: QuickstartRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "few": list(row.few),
        "few_mean": row.few_mean,
        "few_deviation": row.few_deviation,
        "all": row.all,
        "fitted": row.fitted,
    }


def _finished(events: Callable[[Control], Iterator[Any]], wanted: type[T], progress: ProgressCallback, notify: Notify) -> T:
    """The last event of a study of runs side by side; their progress is reported on the way."""
    control, result = Control(), None
    with stoppable(control):
        for event in events(control):
            if isinstance(event, JobProgress):
                progress(event.title, event.step, event.steps)
            elif isinstance(event, Done):
                progress(event.title, event.steps, event.steps)
                notify(f"{event.title}: {'done before' if event.before else 'done'}{accuracy_text(event)}")
            else:
                result = event
    if result is None:
        notify("stopped: finished runs and checkpoints are kept; run the same command to resume")
        stop(control)
    assert isinstance(result, wanted)
    return result
