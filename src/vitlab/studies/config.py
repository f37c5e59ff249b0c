"""Noisy Student training (Xie et al. 2020): which images a teacher's word is taken for, how, and what makes learning it hard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vitlab.config.data import Augment
from vitlab.errors import ConfigError, at_least, choice, fraction

PseudoLabels = Literal["soft", "hard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyStudentConfig:
    """A teacher labels images, a student learns from them with noise, and becomes the next teacher.

    `rounds` counts students. `labels`: `soft` takes the teacher's probabilities, `hard` the class it thinks likeliest.
    `threshold`: an image is taken where the teacher gives its likeliest class at least that much, 0 to 1 (the paper's 0.3).
    `per_class` is the most images taken of a class, those the teacher is surest of first; None takes all.
    `balanced` shows every class equally often, which repeats the images of classes that have few.
    `labelled_share` is what the images with true labels make up of an epoch, at least: they are repeated up to it.
    `randaugment` is (layers, magnitude), on the scale where 10 is the usual end; the paper's 27 of 30 is 9. None for none.
    `dropout` and `drop_path` are the student's, as far as its kind of model has them. The paper has 0.5 before the head and 0.2
    on EfficientNets; a ViT drops in every layer, and wants less.
    """

    rounds: int = 2
    labels: PseudoLabels = "soft"
    threshold: float = 0.3
    per_class: int | None = None
    balanced: bool = True
    labelled_share: float = 0.25
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
        for name in ("labelled_share", "dropout", "drop_path"):
            fraction(name, getattr(self, name))
        Augment(randaugment=self.randaugment)  # refuses what it cannot be


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyStudent:
    """A study: its images, its models, and how each of its runs goes.

    `data` has labels; with `shots`, that many images of each class keep theirs and the others are taken for unlabelled.
    `unlabelled` is where more images are; a folder is taken as images without classes, whatever its folders are called.
    `teacher` is a checkpoint that knows the classes; without one it is made first, of the labelled images alone.
    `start` is the checkpoint that the teacher and every student begin with; `student` a variant that begins with random values.
    With neither a student begins with its teacher's weights. A student is never smaller than its teacher.
    Of the runs, None leaves a setting to the recipe; `epochs` and `steps` are those of each run, but for a teacher that is made
    with `teacher_steps`: it has far fewer images to learn, and no noise to overcome.
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
            raise ConfigError("student begins with random values and start with a checkpoint's", hint="leave one out")
        if self.teacher is None and self.start is None and self.student is None:
            raise ConfigError("there is no model to begin with", hint="give a checkpoint to start from, a teacher, or a variant")
        if self.unlabelled is None and self.shots is None:
            raise ConfigError(
                "there are no images without labels", hint="say where they are, or hide the labels of all but some shots"
            )
        if self.unlabelled is not None and self.shots is not None:
            raise ConfigError(
                "shots hides labels to take the images for unlabelled ones, and there are others that have none",
                hint="leave one out",
            )
        if self.teacher is not None and self.teacher_steps is not None:
            raise ConfigError("teacher_steps is for a teacher that is made, and one is given", hint="leave one out")
        if self.shots is not None and self.shots < 1:
            raise ConfigError(f"shots={self.shots} must be at least 1")
