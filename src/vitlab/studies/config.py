"""Settings of Noisy Student training (Xie et al. 2020). No torch here: the command line reads them for its help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vitlab.config.data import Augment
from vitlab.errors import ConfigError, at_least, choice, fraction

PseudoLabels = Literal["soft", "hard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyStudentConfig:
    """A teacher labels images; a student is trained on them with noise and becomes the next teacher.

    `rounds` is the number of students. `labels`: `soft` are the teacher's probabilities, `hard` its most probable class.
    `threshold`: an image is used if the teacher's most probable class has at least this probability, 0 to 1 (the paper's 0.3).
    `per_class` is the maximum number of images of a class, the most confident first; None uses all.
    `balanced` shows every class equally often, which repeats the images of rare classes.
    `labelled_fraction` is the minimum fraction of images with true labels in an epoch: they are repeated to reach it.
    `randaugment` is (layers, magnitude) on a scale of 0 to 10; the paper's 27 of 30 is 9. None turns it off.
    `dropout` and `drop_path` are the student's, if its architecture has them. The paper uses 0.5 before the head and 0.2 on
    EfficientNets; a ViT has dropout in every layer and needs less.
    """

    rounds: int = 2
    labels: PseudoLabels = "soft"
    threshold: float = 0.3
    per_class: int | None = None
    balanced: bool = True
    labelled_fraction: float = 0.25
    randaugment: tuple[int, float] | None = (2, 9.0)
    dropout: float = 0.1
    drop_path: float = 0.1

    def __post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        choice("labels", self.labels, PseudoLabels)
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold={self.threshold} must be from 0 to 1")
        if self.per_class is not None:
            at_least("per_class", self.per_class, 1)
        for name in ("labelled_fraction", "dropout", "drop_path"):
            fraction(name, getattr(self, name))
        Augment(randaugment=self.randaugment)  # checks the values


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyStudent:
    """A Noisy Student study: its images, its models, and the settings of its runs.

    `data` has labels; with `shots`, that many images of each class keep their label and the others serve as unlabelled.
    `unlabelled` are more images; a folder is read as images without classes, whatever its subfolders are called.
    `teacher` is a checkpoint that knows the classes; without one, a teacher is trained on the labelled images first.
    `start` is the checkpoint that the teacher and every student start from; `student` is a model that is trained from scratch.
    With neither, a student starts from its teacher's weights. A student is never smaller than its teacher.
    A setting of None is the recipe's. `epochs` and `steps` are those of each run; `teacher_steps` are the teacher's own, as it
    has far fewer images and no noise.
    """

    data: str
    unlabelled: str | None = None
    shots: int | None = None
    teacher: str | None = None
    start: str | None = None
    student: str | None = None
    epochs: float | None = None
    steps: int | None = None
    teacher_steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    image_size: tuple[int, int] | None = None
    seed: int = 0
    noisy: NoisyStudentConfig = field(default_factory=NoisyStudentConfig)

    def __post_init__(self) -> None:
        if self.start is not None and self.student is not None:
            raise ConfigError("student is trained from scratch and start is a checkpoint to start from", hint="leave one out")
        if self.teacher is None and self.start is None and self.student is None:
            raise ConfigError(
                "there is no model to start from", hint="give start (a checkpoint), teacher (a checkpoint) or student (a model)"
            )
        if self.unlabelled is None and self.shots is None:
            raise ConfigError(
                "there are no images without labels", hint="give unlabelled, or shots to hide the labels of all other images"
            )
        if self.unlabelled is not None and self.shots is not None:
            raise ConfigError(
                "shots and unlabelled are both given, and both say which images have no labels",
                hint="leave one out",
            )
        if self.teacher is not None and self.teacher_steps is not None:
            raise ConfigError("teacher_steps is for a teacher that is trained here, and teacher is given", hint="leave one out")
        if self.shots is not None and self.shots < 1:
            raise ConfigError(f"shots={self.shots} must be at least 1")
