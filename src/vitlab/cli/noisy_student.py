"""`vitlab study noisy-student DATA`: images without labels put to use, round after round."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Union

import tyro

from vitlab.cli.changes import Folder, Number, Word, share
from vitlab.cli.opening import among
from vitlab.cli.parse import Count, HeightWidth, count, existing, one, parse, positional, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_json, print_rows
from vitlab.cli.talk import note
from vitlab.cli.training import default_out
from vitlab.config.serialize import Json, to_json
from vitlab.studies.config import NoisyStudent, NoisyStudentConfig, PseudoLabels

if TYPE_CHECKING:
    from vitlab.studies.noisy_student import Chosen, NoisyEvent, Score
    from vitlab.training.control import Control
    from vitlab.training.events import Event

_OWN = "the recipe's own"


def strength(word: str) -> tuple[int, float] | None:
    """`2,9` or `none`."""
    if word == "none":
        return None
    layers, comma, magnitude = word.partition(",")
    try:
        if comma:
            return int(layers), float(magnitude)
    except ValueError:
        pass
    raise ValueError(f"{word!r} is neither none nor layers,magnitude (2,9)")


Checkpoint = Annotated[Union[None, str], one("CHECKPOINT", existing)]  # noqa: UP007, RUF036
Data = Annotated[Union[None, str], one("DATA", str)]  # noqa: UP007, RUF036
Share = Annotated[float, one("X", share)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Noisy Student training (Xie et al. 2020). An interrupted study goes on with the same command."""

    data: Annotated[tyro.conf.Positional[str], positional("DATA")]
    """labelled images: class folders, a zip, cifar10:PATH, ...; judged is by their test part"""

    unlabelled: Annotated[Data, unset("those that --shots hides")] = None
    """images without labels: any folder, whatever is in it, a zip, ..."""

    shots: Annotated[Count, unset("all")] = None
    """how many images of each class keep their label; the others serve as unlabelled"""

    start: Annotated[Checkpoint, tyro.conf.arg(name="from", help_behavior_hint="(default: see --teacher and --student)")] = None
    """checkpoint that the teacher and every student begin with"""

    teacher: Annotated[Checkpoint, unset("made of the labelled images")] = None
    """checkpoint of a teacher that knows the classes"""

    student: Annotated[Word, unset("as the teacher")] = None
    """variant of the students, which then begin with random values"""

    out: Annotated[Folder, unset("runs/ and the data's name")] = None
    """where everything is kept"""

    rounds: Annotated[int, one("N", count)] = 2
    """how many students, each the teacher of the next"""

    labels: Annotated[PseudoLabels, among(PseudoLabels)] = "soft"
    """soft: the teacher's probabilities; hard: its choice"""

    threshold: Share = 0.3
    """how sure a teacher must be of an image for its label to be taken, 0 to 1"""

    per_class: Annotated[Count, unset("all")] = None
    """the most images a class that are taken, the surest first"""

    unbalanced: bool = False
    """show classes as often as they come, not all equally often"""

    labelled_share: Share = 0.25
    """of what a student sees, at least this much has true labels"""

    randaugment: Annotated[Union[None, tuple[int, float]], one("N,X|none", strength), unset("2,9")] = (2, 9.0)  # noqa: UP007, RUF036
    """noise: layers and magnitude of RandAugment"""

    dropout: Share = 0.1
    """noise: share of units left out"""

    drop_path: Share = 0.1
    """noise: stochastic depth, the last layer's rate"""

    steps: Annotated[Count, unset(_OWN)] = None
    """updates of each run"""

    teacher_steps: Annotated[Count, unset("as of each run")] = None
    """updates of the teacher, which has fewer images to learn and no noise to overcome"""

    epochs: Annotated[Number, unset(_OWN)] = None
    """how often each image is seen, in place of --steps"""

    batch_size: Annotated[Count, unset(_OWN)] = None
    """images of an update"""

    lr: Annotated[Number, unset(_OWN)] = None
    """the learning rate at its peak"""

    image_size: Annotated[HeightWidth, unset(_OWN)] = None
    """pixels the models see"""

    seed: Annotated[int, one("N", count)] = 0
    """of the shots, initial values, order, augmentation and dropout"""

    workers: Annotated[Count, unset("at most 2")] = None
    """processes that read images"""

    json: bool = False
    """print one JSON object at the end"""


def run(words: Sequence[str]) -> int:
    """Do the study, and print what teacher and students came to."""
    arguments = parse(Arguments, words, verb="study noisy-student")
    from vitlab.studies.noisy_student import noisy_student, scores
    from vitlab.training.control import INTERRUPTED, TERMINATED, Control, signals

    study = NoisyStudent(
        data=arguments.data,
        unlabelled=arguments.unlabelled,
        shots=arguments.shots,
        teacher=arguments.teacher,
        start=arguments.start,
        student=arguments.student,
        epochs=arguments.epochs,
        steps=arguments.steps,
        teacher_steps=arguments.teacher_steps,
        batch_size=arguments.batch_size,
        lr=arguments.lr,
        image_size=arguments.image_size,
        seed=arguments.seed,
        noisy=NoisyStudentConfig(
            rounds=arguments.rounds,
            labels=arguments.labels,
            threshold=arguments.threshold,
            per_class=arguments.per_class,
            balanced=not arguments.unbalanced,
            labelled_share=arguments.labelled_share,
            randaugment=arguments.randaugment,
            dropout=arguments.dropout,
            drop_path=arguments.drop_path,
        ),
    )
    out = arguments.out or default_out(arguments.data, after="-noisy-student")
    control = Control()
    with signals(control):
        stopped = _told(noisy_student(study, out=out, workers=arguments.workers, control=control), control)
    if stopped:
        return TERMINATED if stopped == "terminated" else INTERRUPTED
    found = scores(out)[: study.noisy.rounds + 1]
    if arguments.json:
        print_json({"study": to_json(study), "out": out, "results": [to_json(score) for score in found]})
    else:
        print_rows([_row(score) for score in found], json=False)
    return 0


def _told(events: Iterator[NoisyEvent | Event], control: Control) -> str | None:
    """Say on stderr what happens; why it was stopped, or None where it came to its end."""
    from vitlab.studies.noisy_student import Asking, Chosen, Judged, Stage, Stopped
    from vitlab.training.callbacks import console_callback

    listener = console_callback(sys.stderr)
    reason: str | None = None
    try:
        with bar(lines=True) as tell:
            for event in events:
                match event:
                    case Stage():
                        where = f"round {event.round} of {event.of}" if event.round else "before round 1"
                        note(f"{where}: {event.what}")
                    case Asking():
                        tell("labelling", event.done, event.of)
                    case Chosen():
                        note(_chosen(event))
                    case Judged():
                        score = event.score
                        who = f"student {score.round}" if score.round else "teacher"
                        note(f"{who}: {100 * score.top1:.2f} % of {score.images:,} images right")
                    case Stopped():
                        reason = event.reason
                        note(f"{event.reason}: the same command goes on")
                    case _:
                        listener.on_event(event)
    finally:
        listener.close()
    return reason


def _chosen(event: Chosen) -> str:
    broken = f", {event.unreadable:,} could not be read" if event.unreadable else ""
    right = "" if event.right is None else f"; {100 * event.right:.1f} % of their labels are right"
    return (
        f"round {event.round}: {event.taken:,} of {event.asked:,} images taken, in {event.classes:,} of {event.of_classes:,}"
        f" classes{broken}{right}; each labelled one is there {event.times} times"
    )


def _row(score: Score) -> dict[str, Json]:
    low, high = score.interval or (float("nan"), float("nan"))
    return {
        "model": "teacher" if score.round == 0 else f"student {score.round}",
        "size": score.model,
        "labelled": score.labelled,
        "pseudo-labelled": score.pseudo,
        "of them right": None if score.pseudo_right is None else f"{100 * score.pseudo_right:.1f} %",
        f"top-1 ({score.judged_by})": f"{100 * score.top1:.2f} %",
        "95 %": f"{100 * low:.1f} to {100 * high:.1f}",
        "loss": round(score.loss, 4),
        "calibration error": f"{100 * score.calibration_error:.1f} %",
    }
