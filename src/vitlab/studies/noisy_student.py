"""Noisy Student training (Xie et al. 2020): a teacher labels images, a student learns from them with noise, and teaches next.

    study.json           what was asked for
    images.json        the labelled images alone (and beside it which ones, where labels are hidden)
    round-0/             the teacher: run/, where it is made here, and result.json
    round-1/             labels/ what the teacher thinks; images.json what the student learns from; run/; result.json

Every step whose result is there is left out, and a run that was stopped goes on: the same call finishes a killed study.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints import describe, load
from vitlab.config.data import Split, SplitRule
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.model import variant
from vitlab.config.overrides import Overrides
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_json, from_text, to_json, to_text
from vitlab.data.dataset import ImageDataset
from vitlab.data.readers.joined import JoinedEntry, Taken, names_digest, open_member, write_joined
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.frozen import draw
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.io.atomic import write_text
from vitlab.io.names import printable
from vitlab.models.cost import cost
from vitlab.recipes.table import recipe
from vitlab.studies.config import NoisyStudent
from vitlab.studies.pseudo_labels import Opinions, choose, opinions
from vitlab.training import train
from vitlab.training.control import Control
from vitlab.training.events import Event, Finished, Reason
from vitlab.training.plan import start_facts, survey, this_machine

# What a Noisy Student study tells of, beside the events of its runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Something begins, in round `round` (0 is the teacher's) of `of`."""

    event: ClassVar[str] = "stage"
    round: int
    of: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The teacher has labelled `done` of `of` images."""

    event: ClassVar[str] = "asking"
    done: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The teacher's labels that are taken: `taken` of the `asked` images, in `classes` of `of_classes` classes.

    `times` is how often each image with a true label is there beside them. `right` is the share of the taken labels that are
    true, 0 to 1, where labels were only hidden; else None.
    """

    event: ClassVar[str] = "chosen"
    round: int
    asked: int
    unreadable: int
    taken: int
    classes: int
    of_classes: int
    times: int
    right: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a model came to: the teacher's in round 0, then each student's.

    It learned from `labelled` images with true labels and from `pseudo` of `pool` without, whose labels are right to a share of
    `pseudo_right` where that is known. `top1` is the share of `images` told right, `right` their number, `interval` the 95 %
    one by bootstrap; `loss` is in nats an image.
    """

    round: int
    labelled: int
    pseudo: int = 0
    pool: int = 0
    pseudo_right: float | None = None
    model: str | None = None
    checkpoint: str = ""
    judged_by: str = ""
    top1: float = 0.0
    right: int = 0
    images: int = 0
    interval: tuple[float, float] | None = None
    loss: float = 0.0
    calibration_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A model was judged by images that no model of the study learned from."""

    event: ClassVar[str] = "judged"
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A stop was asked for; the same call goes on from here."""

    event: ClassVar[str] = "stopped"
    reason: Reason


NoisyEvent = Stage | Asking | Chosen | Judged | Stopped


# The images of a Noisy Student study: those with labels, those without, and those that judge.
#
# Axes: N images of the pool.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Images:
    """`labelled` is where the true labels are and `labelled_rows` which of them are used, None for all: `count` images.

    `pool` are the images a teacher is asked about, `pool_rows` their numbers in `unlabelled`, and `truth_N` the classes they
    really have, where they were only hidden. `judged` is the `judged_by` part of the data, of which no image is in the others.
    """

    classes: tuple[str, ...]
    labelled: JoinedEntry
    labelled_rows: Taken | None
    count: int
    unlabelled: JoinedEntry
    pool: ImageDataset
    pool_rows: NDArray[np.int64]
    truth_N: NDArray[np.int32] | None
    judged: ImageDataset
    judged_by: str
    told: str


def gathered(data: str, unlabelled: str | None, shots: int | None, *, seed: int = 0) -> Images:
    """Open everything, and leave out of the pool what is labelled or judged by, image by image."""
    parts = survey(data).splits
    judged_by: Split = "test" if "test" in parts else "val"
    if judged_by not in parts:
        raise DataError(
            f"{printable(data)} has no part to judge by: it declares {', '.join(parts)}", hint="declare a test part, or none"
        )
    # Nothing is chosen by val, so where there is a test part val may be learned from.
    learned = JoinedEntry(dataset=data, split="train+val" if judged_by == "test" else "train")
    judged = open_member(JoinedEntry(dataset=data, split=judged_by))
    dataset = open_member(learned)
    labelled = _named(learned, dataset)
    codes_N = dataset.table.codes
    if not dataset.labels or np.any(codes_N < 0):
        raise DataError(f"{printable(data)} has images without a label", hint="give them as the unlabelled images")
    if shots is not None:
        drawn = np.sort(
            np.concatenate([of[:shots] for of in draw(codes_N.astype(np.int64), classes=len(dataset.labels), seed=seed)])
        )
        rest = np.setdiff1d(np.arange(len(dataset)), drawn)
        known, entry, whole, rows = dataset.take(drawn), labelled, dataset, rest
        taken: Taken | None = Taken(rows=drawn)
    else:
        assert unlabelled is not None
        known, taken = dataset, None
        entry = JoinedEntry(dataset=_as_images(unlabelled))
        whole = open_member(entry)
        entry, rows = _named(entry, whole), np.arange(len(whole))
    kept = _others(whole.take(rows), known, judged)
    if not len(kept):
        raise DataError(f"no image is left to be labelled by a teacher: all {len(rows):,} are labelled or judged by already")
    hidden = " (they are hidden)" if shots is not None else ""
    copies = f", {len(rows) - len(kept):,} copies of others left out" if len(kept) < len(rows) else ""
    rows = rows[kept]
    return Images(
        classes=dataset.labels,
        labelled=labelled,
        labelled_rows=taken,
        count=len(known),
        unlabelled=entry,
        pool=whole.take(rows),
        pool_rows=rows,
        truth_N=whole.table.codes[rows] if shots is not None else None,
        judged=judged,
        judged_by=judged_by,
        told=f"{len(known):,} images of {len(dataset.labels):,} classes have labels, {len(rows):,} have none{hidden}{copies};"
        f" judged is by {len(judged):,} others ({judged_by})",
    )


def _named(entry: JoinedEntry, dataset: ImageDataset) -> JoinedEntry:
    return JoinedEntry(dataset=entry.dataset, split=entry.split, rule=entry.rule, names=names_digest(dataset))


def _as_images(spec: str) -> str:
    """A folder is taken as images without classes; anything else as it is spelled."""
    return f"images:{spec}" if Path(spec).is_dir() else spec


def _others(pool: ImageDataset, known: ImageDataset, judged: ImageDataset) -> NDArray[np.int64]:
    """The images of the pool that are, to the byte, in neither of the other two."""
    seen = {row.tobytes() for dataset in (known, judged) for row in dataset.digests()}
    return np.array([index for index, row in enumerate(pool.digests()) if row.tobytes() not in seen], np.int64)


_WHOLE = SplitRule(val=0.0, test=0.0)  # of the joined images nothing is held out: judged is by others


def noisy_student(
    study: NoisyStudent, *, out: str | Path, workers: int | None = None, control: Control | None = None
) -> Iterator[NoisyEvent | Event]:
    """Do the study, telling everything; go on where an earlier call was stopped. The last event is a `Judged`, or `Stopped`."""
    root = Path(out)
    _begin(study, root)
    yield from _Course(study, root, workers, control or Control()).events()


def scores(out: str | Path) -> tuple[Score, ...]:
    """What the teacher and the students so far came to."""
    found: list[Score] = []
    while (path := Path(out) / f"round-{len(found)}" / "result.json").is_file():
        score = from_json(Score, json.loads(path.read_text()), where=str(path))
        assert isinstance(score, Score)
        found.append(score)
    return tuple(found)


class _Course:
    def __init__(self, study: NoisyStudent, root: Path, workers: int | None, control: Control) -> None:
        self.study, self.root, self.control = study, root, control
        self.machine = this_machine()
        self.workers = min(2, self.machine.cores) if workers is None else workers
        self.judging = EvaluateConfig(workers=self.workers, corrupt="skip", seed=study.seed)

    def events(self) -> Iterator[NoisyEvent | Event]:
        study = self.study
        _refuse_smaller(study)
        yield Stage(round=0, of=study.noisy.rounds, what="looking at the images")
        images = gathered(study.data, study.unlabelled, study.shots, seed=study.seed)
        yield Stage(round=0, of=study.noisy.rounds, what=images.told)
        teacher = study.teacher
        if teacher is None:
            dataset = self.root / "images.json"
            if not dataset.is_file():
                write_joined(dataset, images.classes, [(images.labelled, images.labelled_rows)])
            run = self._run(f"joined:{dataset}", start=study.start, model=study.student, steps=study.teacher_steps, name="teacher")
            teacher = yield from self._trained(run, self.root / "round-0" / "run")
            if teacher is None:
                return
        score = self._judged(0, teacher, images, Score(round=0, labelled=images.count))
        yield Judged(score=score)
        for number in range(1, study.noisy.rounds + 1):
            if self.control.stop is not None:
                yield Stopped(reason=self.control.stop)
                return
            student = yield from self._round(number, teacher, images)
            if student is None:
                return
            teacher = student

    def _round(self, number: int, teacher: str, images: Images) -> Generator[NoisyEvent | Event, None, str | None]:
        """One student; the path of its checkpoint, or None where a stop was asked for."""
        study, folder = self.study, self.root / f"round-{number}"
        dataset, chosen_path = folder / "images.json", folder / "chosen.json"
        if dataset.is_file() and chosen_path.is_file():
            chosen = from_text(Chosen, chosen_path.read_text())
        else:
            yield Stage(round=number, of=study.noisy.rounds, what=f"the teacher labels {len(images.pool):,} images")
            said: Opinions | None = None
            for done, whole in opinions(load(teacher), images.pool, images.classes, folder / "labels", config=self.judging):
                yield Asking(done=done, of=len(images.pool))
                if self.control.stop is not None:
                    yield Stopped(reason=self.control.stop)
                    return None
                said = whole  # None but for the last
            assert said is not None
            chosen = self._choose(number, said, images, dataset)
            write_text(chosen_path, to_text(chosen))
        yield chosen
        run = self._run(f"joined:{dataset}", start=study.start or (None if study.student else teacher), model=study.student)
        student = yield from self._trained(self._noised(run), folder / "run", number=number)
        if student is None:
            return None
        known = Score(round=number, labelled=images.count, pseudo=chosen.taken, pool=chosen.asked, pseudo_right=chosen.right)
        yield Judged(score=self._judged(number, student, images, known))
        return student

    def _choose(self, number: int, found: Opinions, images: Images, dataset: Path) -> Chosen:
        """Write what the student learns from, and say what was chosen."""
        noisy = self.study.noisy
        rows = choose(found, noisy)
        if not len(rows):
            sure = f"at most {float(found.confidence_N.max()):.2f}, and threshold={noisy.threshold}"
            raise DataError(
                f"the teacher is sure enough of none of {len(found):,} images: {sure}",
                hint="a lower threshold, or a better teacher",
            )
        times = 1
        if noisy.labelled_share:
            wanted = noisy.labelled_share / (1 - noisy.labelled_share) * len(rows)
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
            right=None if truth_N is None else float(np.mean(truth_N == codes_N)),
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
            rule=_WHOLE,
            seed=study.seed,
            workers=self.workers,
        )
        run = recipe(
            "small-data" if start is None else "finetune-folder",
            overrides,
            data=survey(dataset, rule=_WHOLE),
            start=None if start is None else start_facts(start),
            machine=self.machine,
        )
        return replace(run, name=f"noisy-{name}")

    def _noised(self, run: RunConfig) -> RunConfig:
        """The run made harder: distorted images, dropped units and layers, classes alike."""
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
        """Train to the end, or find it trained; the checkpoint's path, or None where a stop was asked for."""
        model = folder / "model.safetensors"
        if model.is_file():
            return str(model)
        who = "the student" if number else "the teacher"
        what = f"{who}, {run.model.name} at {run.model.image_size[0]}x{run.model.image_size[1]}, learns"
        yield Stage(round=number, of=self.study.noisy.rounds, what=what)
        last: Event | None = None
        for event in train(run, out=folder, control=self.control):
            yield event
            last = event
        assert isinstance(last, Finished)
        if last.reason not in ("finished", "patience"):
            yield Stopped(reason=last.reason)
            return None
        return str(model)

    def _judged(self, number: int, path: str, images: Images, known: Score) -> Score:
        """The model judged by images that nobody learned from; what was found before is not found again."""
        result = self.root / f"round-{number}" / "result.json"
        if result.is_file():
            return scores(self.root)[number]
        checkpoint = load(path)
        targets = match_by_name(images.judged.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
        found = evaluate(checkpoint, images.judged, targets, config=self.judging).result
        assert isinstance(found, Classification)
        score = replace(
            known,
            model=checkpoint.config.name,
            checkpoint=path,
            judged_by=images.judged_by,
            top1=found.top1.value,
            right=found.top1.correct,
            images=found.top1.total,
            interval=found.top1.interval,
            loss=found.loss,
            calibration_error=found.calibration.error,
        )
        result.parent.mkdir(parents=True, exist_ok=True)
        write_text(result, json.dumps(to_json(score), indent=2) + "\n")
        return score


def _begin(study: NoisyStudent, root: Path) -> None:
    """Keep what is asked for; refuse a folder that was begun with something else, with what differs."""
    path = root / "study.json"
    if not path.is_file():
        root.mkdir(parents=True, exist_ok=True)
        write_text(path, to_text(study))
        return
    before, now = to_json(from_text(NoisyStudent, path.read_text())), to_json(study)
    assert isinstance(before, dict)
    assert isinstance(now, dict)
    # More rounds may follow a study that has ended.
    old, new = ({**told, "noisy": {**_object(told["noisy"]), "rounds": 0}} for told in (before, now))
    if old != new:
        differ = [f"{name} {json.dumps(old[name])} -> {json.dumps(new[name])}" for name in new if old[name] != new[name]]
        raise ConfigError(f"{root} was begun with another study: {', '.join(differ)}", hint="choose another folder")
    if before != now:
        write_text(path, to_text(study))


def _object(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _refuse_smaller(study: NoisyStudent) -> None:
    """Before anything is done: only a teacher that is given can be larger than what the students are made of."""
    if study.teacher is None or (study.student is None and study.start is None):
        return
    student = variant(study.student) if study.student is not None else describe(str(study.start)).config
    teacher = describe(study.teacher).config
    # Of one size, as positions grow with the image.
    mine, theirs = (cost(replace(config, num_classes=0, image_size=student.image_size)).parameters for config in (student, teacher))
    if mine < theirs:
        raise ConfigError(
            f"the student {student.name} has {mine:,} parameters and its teacher {teacher.name} {theirs:,}",
            hint="a noisy student is as large as its teacher or larger; for a smaller one use distillation",
        )
