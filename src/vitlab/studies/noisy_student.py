"""Noisy Student training (Xie et al. 2020): a teacher labels images; a student is trained on them with noise and teaches next.

    for event in noisy_student(NoisyStudent(data="pets/", unlabelled="web/", start="deit_tiny.npz"), out="runs/noisy"):

    study.json           the settings
    images.json          the labelled images (and beside it which of them, where labels are hidden)
    round-0/             the teacher: run/, if it is trained here, and result.json
    round-1/             labels/, the teacher's predictions; images.json, what the student is trained on; run/; result.json

A finished step is not repeated and an interrupted run resumes: the same call finishes a killed study.

Axes: N images of the pool, B images of a batch, C classes, K classes kept of each image.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.checkpoints import Checkpoint, describe, load
from vitlab.config.data import Split, SplitRule
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.model import variant
from vitlab.config.overrides import Overrides
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_json, from_text, to_json, to_text
from vitlab.data.dataset import ImageDataset, SoftLabels, align_labels
from vitlab.data.readers.joined import JoinedEntry, Taken, names_digest, open_member, write_joined
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import engine_for, evaluate
from vitlab.evaluation.frozen import draw
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.inference.engine import Engine
from vitlab.io.atomic import write_bytes, write_text
from vitlab.io.display import ProgressCallback, Table, printable
from vitlab.models.cost import cost
from vitlab.recipes.table import recipe
from vitlab.studies.config import NoisyStudent, NoisyStudentConfig
from vitlab.studies.study import Notify, stop, stoppable
from vitlab.training import train
from vitlab.training.events import Control, Event, Finished, Reason
from vitlab.training.plan import start_facts, survey, this_machine

KEPT = 16
"""Classes kept of a soft label; the probabilities of the others, of which there may be thousands, are too small to matter."""

_SHARD = 4096  # images in one file of predictions: what is repeated after a kill
_NOTHING_HELD_OUT = SplitRule(val=0.0, test=0.0)  # accuracy is measured on other images


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted:
    """A stage of round `round` of `of` begins; round 0 is the teacher's."""

    event: ClassVar[str] = "stage"
    round: int
    of: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelling:
    """The teacher has labelled `done` of `of` images."""

    event: ClassVar[str] = "labelling"
    done: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The pseudo-labels that are used: `taken` of the `asked` images, in `classes` of `of_classes` classes.

    `times` is how often each image with a true label is repeated beside them. `accuracy` is the fraction of the pseudo-labels that
    are correct, 0 to 1, if the true labels are known (they are hidden by `shots`); else None.
    """

    event: ClassVar[str] = "chosen"
    round: int
    asked: int
    unreadable: int
    taken: int
    classes: int
    of_classes: int
    times: int
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The evaluation of one model: the teacher in round 0, then each student.

    It was trained on `labelled` images with true labels and `pseudo` of `pool` with pseudo-labels, of which the fraction
    `pseudo_accuracy` is correct, if that is known. `correct` of `images` of the `split` are classified correctly, `top1` is that
    fraction, `interval` its 95 % bootstrap interval; `loss` is in nats per image.
    """

    round: int
    labelled: int
    pseudo: int = 0
    pool: int = 0
    pseudo_accuracy: float | None = None
    model: str | None = None
    checkpoint: str = ""
    split: str = ""
    top1: float = 0.0
    correct: int = 0
    images: int = 0
    interval: tuple[float, float] | None = None
    loss: float = 0.0
    calibration_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A model was evaluated on images that no model of the study was trained on."""

    event: ClassVar[str] = "scored"
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The study stopped on request; the same call resumes it."""

    event: ClassVar[str] = "stopped"
    reason: Reason


NoisyEvent = StageStarted | Labelling | Chosen | Scored | Stopped


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyImages:
    """The images of a study.

    `labelled` is the dataset with true labels and `labelled_rows` which of its images are used, None for all: `count` images.
    `pool` are the images that a teacher labels, `pool_rows` their indices in `unlabelled`, and `truth_N` their true classes, if
    labels were hidden. `evaluated` is the split `split` of the data; none of its images is in the others.
    """

    classes: tuple[str, ...]
    labelled: JoinedEntry
    labelled_rows: Taken | None
    count: int
    unlabelled: JoinedEntry
    pool: ImageDataset
    pool_rows: NDArray[np.int64]
    truth_N: NDArray[np.int32] | None
    evaluated: ImageDataset
    split: str
    summary: str


def gathered(data: str, unlabelled: str | None, shots: int | None, *, seed: int = 0) -> StudyImages:
    """Open all datasets; images that are labelled or evaluated on are left out of the pool, compared byte by byte."""
    splits = survey(data).splits
    split: Split = "test" if "test" in splits else "val"
    if split not in splits:
        raise DataError(
            f"{printable(data)} has no test or val split to evaluate on: it declares {', '.join(splits)}",
            hint="declare a test split, or no splits at all",
        )
    # Nothing is chosen by validation, so with a test split the images of val are trained on.
    entry = JoinedEntry(dataset=data, split="train+val" if split == "test" else "train")
    evaluated = open_member(JoinedEntry(dataset=data, split=split))
    dataset = open_member(entry)
    labelled = _with_digest(entry, dataset)
    codes_N = dataset.table.codes
    if not dataset.labels or np.any(codes_N < 0):
        raise DataError(f"{printable(data)} has images without a label", hint="give them as the unlabelled images")
    if shots is not None:
        order = draw(codes_N.astype(np.int64), classes=len(dataset.labels), seed=seed)
        drawn = np.sort(np.concatenate([of_class[:shots] for of_class in order]))
        known, labelled_rows = dataset.take(drawn), Taken(rows=drawn)
        pool_entry, pool, rows = labelled, dataset, np.setdiff1d(np.arange(len(dataset)), drawn)
    else:
        assert unlabelled is not None
        known, labelled_rows = dataset, None
        pool_entry = JoinedEntry(dataset=_as_images(unlabelled))
        pool = open_member(pool_entry)
        pool_entry, rows = _with_digest(pool_entry, pool), np.arange(len(pool))
    kept = _not_in(pool.take(rows), known, evaluated)
    if not len(kept):
        raise DataError(f"no image is left for the teacher to label: all {len(rows):,} are labelled or evaluated on")
    hidden = " (their labels are hidden)" if shots is not None else ""
    copies = f", {len(rows) - len(kept):,} copies of others left out" if len(kept) < len(rows) else ""
    rows = rows[kept]
    return StudyImages(
        classes=dataset.labels,
        labelled=labelled,
        labelled_rows=labelled_rows,
        count=len(known),
        unlabelled=pool_entry,
        pool=pool.take(rows),
        pool_rows=rows,
        truth_N=pool.table.codes[rows] if shots is not None else None,
        evaluated=evaluated,
        split=split,
        summary=f"{len(known):,} images of {len(dataset.labels):,} classes have labels, {len(rows):,} have none{hidden}{copies};"
        f" accuracy is measured on {len(evaluated):,} others ({split} split)",
    )


def _with_digest(entry: JoinedEntry, dataset: ImageDataset) -> JoinedEntry:
    """The entry with the digest of its images' names, which is checked when it is read again."""
    return JoinedEntry(dataset=entry.dataset, split=entry.split, rule=entry.rule, names=names_digest(dataset))


def _as_images(spec: str) -> str:
    """A folder is read as images without classes; anything else as it is spelled."""
    return f"images:{spec}" if Path(spec).is_dir() else spec


def _not_in(pool: ImageDataset, *others: ImageDataset) -> NDArray[np.int64]:
    """Indices of the images of the pool that are in none of the other datasets, byte for byte."""
    seen = {row.tobytes() for dataset in others for row in dataset.digests()}
    return np.array([index for index, row in enumerate(pool.digests()) if row.tobytes() not in seen], np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeacherPredictions:
    """The most probable classes of each image, in descending order, and their probabilities; all 0 for an unreadable image."""

    codes_NK: NDArray[np.int32]
    probabilities_NK: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.codes_NK)

    @property
    def confidence_N(self) -> NDArray[np.float32]:
        """The probability of the most probable class."""
        return self.probabilities_NK[:, 0]

    @property
    def unreadable(self) -> int:
        """Number of images that could not be read."""
        return int(np.count_nonzero(self.confidence_N == 0))

    def labels(self, rows: NDArray[np.int64], *, hard: bool) -> SoftLabels:
        """Pseudo-labels of these images: the kept probabilities, normalised to 1; or, if hard, the most probable class alone."""
        if hard:
            return SoftLabels(codes_NK=self.codes_NK[rows, :1], probabilities_NK=np.ones((len(rows), 1), np.float32))
        probabilities_NK = self.probabilities_NK[rows]
        return SoftLabels(codes_NK=self.codes_NK[rows], probabilities_NK=probabilities_NK / probabilities_NK.sum(1, keepdims=True))


def label_images(
    teacher: Checkpoint, pool: ImageDataset, classes: tuple[str, ...], folder: Path, *, config: EvaluateConfig
) -> Iterator[tuple[int, TeacherPredictions | None]]:
    """Predict the classes of every image, without noise: (images done, None), and at the end (all, predictions).

    Predictions are saved in `folder` and not computed again.
    """
    teacher_code_C = _teacher_codes(teacher, classes)
    folder.mkdir(parents=True, exist_ok=True)
    shards, engine = list[TeacherPredictions](), engine_for(teacher, config)
    for start in range(0, len(pool), _SHARD):
        rows = np.arange(start, min(start + _SHARD, len(pool)))
        path = folder / f"part-{start // _SHARD:05d}.npz"
        shard = _saved_predictions(path, len(rows))
        if shard is None:
            shard = _empty_predictions(len(rows), min(KEPT, len(classes)))
            for done in _predict_into(shard, engine, pool.take(rows), teacher_code_C, config):
                yield start + done, None
            file = io.BytesIO()
            np.savez(file, codes=shard.codes_NK, shares=shard.probabilities_NK)
            write_bytes(path, file.getvalue())
        shards.append(shard)
        yield start + len(rows), None
    codes_NK = np.concatenate([shard.codes_NK for shard in shards])
    probabilities_NK = np.concatenate([shard.probabilities_NK for shard in shards])
    yield len(pool), TeacherPredictions(codes_NK=codes_NK, probabilities_NK=probabilities_NK)


def choose(found: TeacherPredictions, config: NoisyStudentConfig) -> NDArray[np.int64]:
    """Indices of the images whose pseudo-label is used: confident enough and, of each class, the most confident."""
    confident = np.flatnonzero((found.confidence_N >= config.threshold) & (found.confidence_N > 0))
    if config.per_class is None:
        return confident
    # A stable sort: of equally confident images the first.
    by_confidence = confident[np.argsort(-found.confidence_N[confident], kind="stable")]
    codes = found.codes_NK[by_confidence, 0]
    chosen = [by_confidence[codes == code][: config.per_class] for code in np.unique(codes)]
    return np.sort(np.concatenate(chosen)) if chosen else confident


def _teacher_codes(teacher: Checkpoint, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """The teacher's index of each class."""
    if teacher.labels is None:
        if teacher.config.num_classes != len(classes):
            raise DataError(f"the teacher has {teacher.config.num_classes:,} classes and the data {len(classes):,}")
        return np.arange(len(classes))
    return np.array(align_labels(classes, teacher.labels, reorder=True), np.int64)


def _empty_predictions(count: int, kept: int) -> TeacherPredictions:
    return TeacherPredictions(codes_NK=np.zeros((count, kept), np.int32), probabilities_NK=np.zeros((count, kept), np.float32))


def _saved_predictions(path: Path, count: int) -> TeacherPredictions | None:
    try:
        with path.open("rb") as file:  # numpy does not close a damaged file
            stored = np.load(file, allow_pickle=False)
            found = TeacherPredictions(codes_NK=stored["codes"], probabilities_NK=stored["shares"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None  # missing or damaged: it is computed again
    return found if len(found) == count else None


def _predict_into(
    found: TeacherPredictions, engine: Engine, pool: ImageDataset, teacher_code_C: NDArray[np.int64], config: EvaluateConfig
) -> Iterator[int]:
    """Fill in the prediction of each readable image; how many images are done."""
    codes_C = torch.from_numpy(teacher_code_C)
    kept, done = found.codes_NK.shape[1], 0
    for batch, outputs in engine.run_dataset(pool, loader=config.loader()):
        if outputs is not None:
            probabilities_BK, codes_BK = torch.from_numpy(outputs.logits_BK)[:, codes_C].softmax(-1).topk(kept, dim=-1)
            found.codes_NK[batch.index_B] = codes_BK.numpy()
            found.probabilities_NK[batch.index_B] = probabilities_BK.numpy()
        done += batch.n_asked
        yield done


def noisy_student(
    study: NoisyStudent, *, out: str | Path, workers: int | None = None, control: Control | None = None
) -> Iterator[NoisyEvent | Event]:
    """Run the study and yield its events; resume what an earlier call left. The last event is a `Scored`, or `Stopped`."""
    root = Path(out)
    _check_folder(study, root)
    yield from _Rounds(study, root, workers, control or Control()).events()


def scores(out: str | Path) -> tuple[Score, ...]:
    """The saved scores of the teacher and the students so far."""
    found: list[Score] = []
    while (path := Path(out) / f"round-{len(found)}" / "result.json").is_file():
        score = from_json(Score, json.loads(path.read_text()), where=str(path))
        assert isinstance(score, Score)
        found.append(score)
    return tuple(found)


class _Rounds:
    def __init__(self, study: NoisyStudent, root: Path, workers: int | None, control: Control) -> None:
        self.study, self.root, self.control = study, root, control
        self.machine = this_machine()
        self.workers = min(2, self.machine.cores) if workers is None else workers
        self.evaluation = EvaluateConfig(workers=self.workers, corrupt="skip", seed=study.seed)

    def events(self) -> Iterator[NoisyEvent | Event]:
        study = self.study
        _check_sizes(study)
        yield StageStarted(round=0, of=study.noisy.rounds, what="reading the images")
        images = gathered(study.data, study.unlabelled, study.shots, seed=study.seed)
        yield StageStarted(round=0, of=study.noisy.rounds, what=images.summary)
        teacher = study.teacher
        if teacher is None:
            dataset = self.root / "images.json"
            if not dataset.is_file():
                write_joined(dataset, images.classes, [(images.labelled, images.labelled_rows)])
            run = self._run(f"joined:{dataset}", start=study.start, model=study.student, steps=study.teacher_steps, name="teacher")
            teacher = yield from self._trained(run, self.root / "round-0" / "run")
            if teacher is None:
                return
        score = self._evaluate(0, teacher, images, Score(round=0, labelled=images.count))
        yield Scored(score=score)
        for number in range(1, study.noisy.rounds + 1):
            if self.control.stop is not None:
                yield Stopped(reason=self.control.stop)
                return
            student = yield from self._round(number, teacher, images)
            if student is None:
                return
            teacher = student

    def _round(self, number: int, teacher: str, images: StudyImages) -> Generator[NoisyEvent | Event, None, str | None]:
        """Train one student; the path of its checkpoint, or None if the study was stopped."""
        study, folder = self.study, self.root / f"round-{number}"
        dataset, chosen_path = folder / "images.json", folder / "chosen.json"
        if dataset.is_file() and chosen_path.is_file():
            chosen = from_text(Chosen, chosen_path.read_text())
        else:
            yield StageStarted(round=number, of=study.noisy.rounds, what=f"the teacher labels {len(images.pool):,} images")
            predictions: TeacherPredictions | None = None
            for done, found in label_images(load(teacher), images.pool, images.classes, folder / "labels", config=self.evaluation):
                yield Labelling(done=done, of=len(images.pool))
                if self.control.stop is not None:
                    yield Stopped(reason=self.control.stop)
                    return None
                predictions = found  # None until the last
            assert predictions is not None
            chosen = self._choose(number, predictions, images, dataset)
            write_text(chosen_path, to_text(chosen))
        yield chosen
        run = self._run(f"joined:{dataset}", start=study.start or (None if study.student else teacher), model=study.student)
        student = yield from self._trained(self._noised(run), folder / "run", number=number)
        if student is None:
            return None
        known = Score(round=number, labelled=images.count, pseudo=chosen.taken, pool=chosen.asked, pseudo_accuracy=chosen.accuracy)
        yield Scored(score=self._evaluate(number, student, images, known))
        return student

    def _choose(self, number: int, found: TeacherPredictions, images: StudyImages, dataset: Path) -> Chosen:
        """Write the dataset of the student; what was chosen."""
        noisy = self.study.noisy
        rows = choose(found, noisy)
        if not len(rows):
            most = f"at most {float(found.confidence_N.max()):.2f}, and threshold={noisy.threshold}"
            raise DataError(
                f"the teacher is confident enough about none of {len(found):,} images: {most}",
                hint="lower the threshold, or give a better teacher",
            )
        times = 1
        if noisy.labelled_fraction:
            wanted = noisy.labelled_fraction / (1 - noisy.labelled_fraction) * len(rows)
            times = max(1, round(wanted / images.count))
        taken = Taken(rows=images.pool_rows[rows], labels=found.labels(rows, hard=noisy.labels == "hard"))
        labelled = (replace(images.labelled, times=times), images.labelled_rows)
        write_joined(dataset, images.classes, [labelled, (images.unlabelled, taken)])
        codes_N = found.codes_NK[rows, 0]
        truth_N = None if images.truth_N is None else images.truth_N[rows]
        return Chosen(
            round=number,
            asked=len(found),
            unreadable=found.unreadable,
            taken=len(rows),
            classes=len(np.unique(codes_N)),
            of_classes=len(images.classes),
            times=times,
            accuracy=None if truth_N is None else float(np.mean(truth_N == codes_N)),
        )

    def _run(
        self, dataset: str, *, start: str | None, model: str | None, steps: int | None = None, name: str = "student"
    ) -> RunConfig:
        study = self.study
        overrides = Overrides(
            model=None if start is not None else model,
            image_size=study.image_size,
            batch_size=study.batch_size,
            steps=steps or study.steps,
            epochs=None if steps else study.epochs,
            lr=study.lr,
            rule=_NOTHING_HELD_OUT,
            seed=study.seed,
            workers=self.workers,
        )
        run = recipe(
            "small-data" if start is None else "finetune-folder",
            overrides,
            data=survey(dataset, rule=_NOTHING_HELD_OUT),
            start=None if start is None else start_facts(start),
            machine=self.machine,
        )
        return replace(run, name=f"noisy-{name}")

    def _noised(self, run: RunConfig) -> RunConfig:
        """The run with the student's noise: augmentation, dropout, stochastic depth; and balanced classes."""
        noisy = self.study.noisy
        has = {known.name for known in fields(run.model)}
        model = run.model
        for name, value in (("dropout", noisy.dropout), ("drop_path", noisy.drop_path)):
            model = replace(model, **{name: value}) if name in has else model  # type: ignore[arg-type]
        augment = replace(run.data.augment, randaugment=noisy.randaugment)
        loader = replace(run.data.loader, balance=1.0 if noisy.balanced else 0.0)
        smoothing = 0.0 if noisy.labels == "soft" else run.train.smoothing  # soft labels are smooth already
        return replace(
            run,
            model=model,
            data=replace(run.data, augment=augment, loader=loader),
            train=replace(run.train, smoothing=smoothing),
        )

    def _trained(self, run: RunConfig, folder: Path, *, number: int = 0) -> Generator[NoisyEvent | Event, None, str | None]:
        """Train to the end, unless that is done; the checkpoint's path, or None if the study was stopped."""
        model = folder / "model.safetensors"
        if model.is_file():
            return str(model)
        who = "the student" if number else "the teacher"
        what = f"training {who}, {run.model.name} at {run.model.image_size[0]}x{run.model.image_size[1]}"
        yield StageStarted(round=number, of=self.study.noisy.rounds, what=what)
        last: Event | None = None
        for event in train(run, out=folder, control=self.control):
            yield event
            last = event
        assert isinstance(last, Finished)
        if last.reason not in ("finished", "patience"):
            yield Stopped(reason=last.reason)
            return None
        return str(model)

    def _evaluate(self, number: int, path: str, images: StudyImages, known: Score) -> Score:
        """Evaluate the model on images that no model was trained on, unless that is done."""
        result = self.root / f"round-{number}" / "result.json"
        if result.is_file():
            return scores(self.root)[number]
        checkpoint = load(path)
        targets = match_by_name(images.evaluated.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
        found = evaluate(checkpoint, images.evaluated, targets, config=self.evaluation).result
        assert isinstance(found, Classification)
        score = replace(
            known,
            model=checkpoint.config.name,
            checkpoint=path,
            split=images.split,
            top1=found.top1.value,
            correct=found.top1.correct,
            images=found.top1.total,
            interval=found.top1.interval,
            loss=found.loss,
            calibration_error=found.calibration.error,
        )
        result.parent.mkdir(parents=True, exist_ok=True)
        write_text(result, json.dumps(to_json(score), indent=2) + "\n")
        return score


def _check_folder(study: NoisyStudent, root: Path) -> None:
    """Save the settings; refuse a folder of a study with other settings, and say what differs."""
    path = root / "study.json"
    if not path.is_file():
        root.mkdir(parents=True, exist_ok=True)
        write_text(path, to_text(study))
        return
    before, now = to_json(from_text(NoisyStudent, path.read_text())), to_json(study)
    assert isinstance(before, dict)
    assert isinstance(now, dict)
    # A finished study accepts more rounds.
    old, new = ({**found, "noisy": {**_object(found["noisy"]), "rounds": 0}} for found in (before, now))
    if old != new:
        differ = [f"{name} {json.dumps(old[name])} -> {json.dumps(new[name])}" for name in new if old[name] != new[name]]
        raise ConfigError(f"{root} holds a study with other settings: {', '.join(differ)}", hint="choose another folder")
    if before != now:
        write_text(path, to_text(study))


def _object(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _check_sizes(study: NoisyStudent) -> None:
    """Refuse a student that is smaller than a given teacher, before anything is trained."""
    if study.teacher is None or (study.student is None and study.start is None):
        return
    student = variant(study.student) if study.student is not None else describe(str(study.start)).config
    teacher = describe(study.teacher).config
    # At one image size, as position embeddings grow with the image.
    own, teachers = (
        cost(replace(config, num_classes=0, image_size=student.image_size)).parameters for config in (student, teacher)
    )
    if own < teachers:
        raise ConfigError(
            f"the student {student.name} has {own:,} parameters and its teacher {teacher.name} {teachers:,}",
            hint="use a student as large as its teacher or larger; to train a smaller one, use distillation",
        )


# --- as a table ---------------------------------------------------------------------------------------------------------------


def run_noisy_student(
    study: NoisyStudent, out: Path, *, workers: int | None, quiet: bool, notify: Notify, progress: ProgressCallback
) -> Table:
    """Teacher and students one after another, and what each reached."""
    from vitlab.training.callbacks import console_callback
    from vitlab.training.distributed import is_main_process

    control = Control()
    display = None if quiet or not is_main_process() else console_callback(sys.stderr)
    try:
        with stoppable(control):
            for event in noisy_student(study, out=out, workers=workers, control=control):
                match event:
                    case StageStarted():
                        where = f"round {event.round} of {event.of}" if event.round else "before round 1"
                        notify(f"{where}: {event.what}")
                    case Labelling():
                        progress("labelling", event.done, event.of)
                    case Chosen():
                        notify(_chosen(event))
                    case Scored():
                        who = f"student {event.score.round}" if event.score.round else "teacher"
                        notify(f"{who}: accuracy {100 * event.score.top1:.2f} % on {event.score.images:,} images")
                    case Stopped():
                        notify(f"{event.reason}: run the same command to resume")
                        stop(control)
                    case _ if display is not None:
                        display.on_event(event)
    finally:
        if display is not None:
            display.close()
    found = scores(out)[: study.noisy.rounds + 1]
    data = {"study": to_json(study), "out": str(out), "results": [to_json(score) for score in found]}
    return Table([_score_row(score) for score in found], data=data)


def _chosen(event: Chosen) -> str:
    broken = f", {event.unreadable:,} could not be read" if event.unreadable else ""
    correct = "" if event.accuracy is None else f"; {100 * event.accuracy:.1f} % of their labels are correct"
    return (
        f"round {event.round}: {event.taken:,} of {event.asked:,} images used, in {event.classes:,} of {event.of_classes:,}"
        f" classes{broken}{correct}; each labelled image is repeated {event.times} times"
    )


def _score_row(score: Score) -> dict[str, Any]:
    low, high = score.interval or (float("nan"), float("nan"))
    return {
        "model": "teacher" if score.round == 0 else f"student {score.round}",
        "size": score.model,
        "labelled": score.labelled,
        "pseudo-labelled": score.pseudo,
        "of them correct": None if score.pseudo_accuracy is None else f"{100 * score.pseudo_accuracy:.1f} %",
        f"top-1 ({score.split})": f"{100 * score.top1:.2f} %",
        "95 %": f"{100 * low:.1f} to {100 * high:.1f}",
        "loss": round(score.loss, 4),
        "calibration error": f"{100 * score.calibration_error:.1f} %",
    }
