"""What a Noisy Student study tells of, beside the events of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitlab.train.events import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Something begins, in round `round` (0 is the teacher's) of `of`."""

    event: ClassVar[str] = "stage"
    round: int
    of: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The teacher has labelled `done` of `of` pictures."""

    event: ClassVar[str] = "asking"
    done: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The teacher's labels that are taken: `taken` of the `asked` pictures, in `classes` of `of_classes` classes.

    `times` is how often each picture with a true label is there beside them. `right` is the share of the taken labels that are
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

    It learned from `labelled` pictures with true labels and from `pseudo` of `pool` without, whose labels are right to a share of
    `pseudo_right` where that is known. `top1` is the share of `pictures` told right, `right` their number, `interval` the 95 %
    one by bootstrap; `loss` is in nats a picture.
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
    pictures: int = 0
    interval: tuple[float, float] | None = None
    loss: float = 0.0
    calibration_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A model was judged by pictures that no model of the study learned from."""

    event: ClassVar[str] = "judged"
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A stop was asked for; the same call goes on from here."""

    event: ClassVar[str] = "stopped"
    reason: Reason


NoisyEvent = Stage | Asking | Chosen | Judged | Stopped
