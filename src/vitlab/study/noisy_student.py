"""Noisy Student training (Xie et al. 2020): a teacher labels pictures, a student learns from them with noise, and teaches next.

    study.json           what was asked for
    pictures.json        the labelled pictures alone (and beside it which ones, where labels are hidden)
    round-0/             the teacher: run/, where it is made here, and result.json
    round-1/             labels/ what the teacher thinks; pictures.json what the student learns from; run/; result.json

Every step whose result is there is left out, and a run that was stopped goes on: the same call finishes a killed study.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from vitlab.checkpoint import describe, load
from vitlab.config.change import Change, changed
from vitlab.config.evaluate import EvaluateConfig
from vitlab.config.noisy_student import NoisyStudent
from vitlab.config.recipes import recipe
from vitlab.config.run import RunConfig
from vitlab.config.source import SplitRule
from vitlab.config.text import from_json, from_text, to_json, to_text
from vitlab.config.variants import name_of, variant
from vitlab.config.wish import Wish
from vitlab.data.files.durable import write_text
from vitlab.data.kinds.joined import Taken, write_joined
from vitlab.errors import ConfigError, DataError
from vitlab.evaluate.classify import Classification
from vitlab.evaluate.evaluation import evaluate
from vitlab.evaluate.mapping import match_by_name
from vitlab.model.cost import cost
from vitlab.study.noisy_events import Asking, Chosen, Judged, NoisyEvent, Score, Stage, Stopped
from vitlab.study.noisy_pictures import Pictures, gathered
from vitlab.study.pseudo_labels import Opinions, choose, opinions
from vitlab.train import train
from vitlab.train.control import Control
from vitlab.train.events import Event, Finished
from vitlab.train.survey import start_facts, survey, this_machine

_WHOLE = SplitRule(val=0.0, test=0.0)  # of the joined pictures nothing is held out: judged is by others


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
        yield Stage(round=0, of=study.noisy.rounds, what="looking at the pictures")
        pictures = gathered(study.data, study.unlabelled, study.shots, seed=study.seed)
        yield Stage(round=0, of=study.noisy.rounds, what=pictures.told)
        teacher = study.teacher
        if teacher is None:
            source = self.root / "pictures.json"
            if not source.is_file():
                write_joined(source, pictures.classes, [(pictures.labelled, pictures.labelled_rows)])
            run = self._run(f"joined:{source}", start=study.start, model=study.student, steps=study.teacher_steps, name="teacher")
            teacher = yield from self._trained(run, self.root / "round-0" / "run")
            if teacher is None:
                return
        score = self._judged(0, teacher, pictures, Score(round=0, labelled=pictures.count))
        yield Judged(score=score)
        for number in range(1, study.noisy.rounds + 1):
            if self.control.stop is not None:
                yield Stopped(reason=self.control.stop)
                return
            student = yield from self._round(number, teacher, pictures)
            if student is None:
                return
            teacher = student

    def _round(self, number: int, teacher: str, pictures: Pictures) -> Generator[NoisyEvent | Event, None, str | None]:
        """One student; the path of its checkpoint, or None where a stop was asked for."""
        study, folder = self.study, self.root / f"round-{number}"
        source, chosen_path = folder / "pictures.json", folder / "chosen.json"
        if source.is_file() and chosen_path.is_file():
            chosen = from_text(Chosen, chosen_path.read_text())
        else:
            yield Stage(round=number, of=study.noisy.rounds, what=f"the teacher labels {len(pictures.pool):,} pictures")
            said: Opinions | None = None
            for done, whole in opinions(load(teacher), pictures.pool, pictures.classes, folder / "labels", config=self.judging):
                yield Asking(done=done, of=len(pictures.pool))
                if self.control.stop is not None:
                    yield Stopped(reason=self.control.stop)
                    return None
                said = whole  # None but for the last
            assert said is not None
            chosen = self._choose(number, said, pictures, source)
            write_text(chosen_path, to_text(chosen))
        yield chosen
        run = self._run(f"joined:{source}", start=study.start or (None if study.student else teacher), model=study.student)
        student = yield from self._trained(self._noised(run), folder / "run", number=number)
        if student is None:
            return None
        known = Score(round=number, labelled=pictures.count, pseudo=chosen.taken, pool=chosen.asked, pseudo_right=chosen.right)
        yield Judged(score=self._judged(number, student, pictures, known))
        return student

    def _choose(self, number: int, found: Opinions, pictures: Pictures, source: Path) -> Chosen:
        """Write what the student learns from, and say what was chosen."""
        noisy = self.study.noisy
        rows = choose(found, noisy)
        if not len(rows):
            sure = f"at most {float(found.confidence_N.max()):.2f}, and threshold={noisy.threshold}"
            raise DataError(
                f"the teacher is sure enough of none of {len(found):,} pictures: {sure}",
                hint="a lower threshold, or a better teacher",
            )
        times = 1
        if noisy.labelled_share:
            wanted = noisy.labelled_share / (1 - noisy.labelled_share) * len(rows)
            times = max(1, round(wanted / pictures.count))
        taken = Taken(rows=pictures.pool_rows[rows], labels=found.labels(rows, hard=noisy.labels == "hard"))
        labelled = (replace(pictures.labelled, times=times), pictures.labelled_rows)
        write_joined(source, pictures.classes, [labelled, (pictures.unlabelled, taken)])
        codes_N = found.codes_NK[rows, 0]
        truth_N = None if pictures.truth_N is None else pictures.truth_N[rows]
        return Chosen(
            round=number,
            asked=len(found),
            unreadable=found.unreadable,
            taken=len(rows),
            classes=len(np.unique(codes_N)),
            of_classes=len(pictures.classes),
            times=times,
            right=None if truth_N is None else float(np.mean(truth_N == codes_N)),
        )

    def _run(
        self, source: str, *, start: str | None, model: str | None, steps: int | None = None, name: str = "student"
    ) -> RunConfig:
        study = self.study
        wish = Wish(
            data=survey(source, rule=_WHOLE),
            start=None if start is None else start_facts(start),
            machine=self.machine,
            model=None if start is not None else model,
            image_size=study.image_size,
            batch_size=study.batch_size,
            steps=steps or study.steps,
            epochs=None if steps else study.epochs,
            lr=study.lr,
            rule=_WHOLE,
            seed=study.seed,
        )
        run = recipe("small-data" if start is None else "finetune-folder", wish)
        return replace(changed(run, Change(workers=self.workers)), name=f"noisy-{name}")

    def _noised(self, run: RunConfig) -> RunConfig:
        """The run made harder: distorted pictures, dropped units and layers, classes alike."""
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
        what = f"{who}, {name_of(run.model)} at {run.model.image_size[0]}x{run.model.image_size[1]}, learns"
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

    def _judged(self, number: int, path: str, pictures: Pictures, known: Score) -> Score:
        """The model judged by pictures that nobody learned from; what was found before is not found again."""
        result = self.root / f"round-{number}" / "result.json"
        if result.is_file():
            return scores(self.root)[number]
        checkpoint = load(path)
        targets = match_by_name(pictures.judged.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
        found = evaluate(checkpoint, pictures.judged, targets, config=self.judging).result
        assert isinstance(found, Classification)
        score = replace(
            known,
            model=name_of(checkpoint.config),
            checkpoint=path,
            judged_by=pictures.judged_by,
            top1=found.top1.value,
            right=found.top1.right,
            pictures=found.top1.of,
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
    # Of one size, as positions grow with the picture.
    mine, theirs = (cost(replace(config, num_classes=0, image_size=student.image_size)).parameters for config in (student, teacher))
    if mine < theirs:
        raise ConfigError(
            f"the student {name_of(student)} has {mine:,} parameters and its teacher {name_of(teacher)} {theirs:,}",
            hint="a noisy student is as large as its teacher or larger; for a smaller one use distillation",
        )
