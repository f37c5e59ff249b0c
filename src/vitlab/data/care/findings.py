"""What a look through a data set found: plain values, to be printed or written as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

ProblemKind = Literal["layout", "broken", "leak", "conflict", "duplicate", "empty class", "missing class"]

_UNBALANCED = 10.0  # times as many pictures in the largest class as in the smallest


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture by its name, the part it belongs to, and its label or labels in words; None where there is none."""

    name: str
    part: str | None
    label: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something in the layout of the data for which training would refuse it."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A picture that cannot be decoded, and why."""

    picture: Picture
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Twins:
    """Pictures that are the same: `exact` in every byte, or nearly, with the least correlation of two of their thumbnails.

    `mirrored` where some are so only in a mirror; `leak` where they are in different parts; `conflict` where their labels differ.
    """

    exact: bool
    likeness: float
    mirrored: bool
    leak: bool
    conflict: bool
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount:
    """How many pictures a class has, in each part and in all."""

    label: str
    total: int
    parts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The least, middle and greatest of some numbers."""

    least: int
    median: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the sound pictures, in pixels, upright."""

    height: Spread
    width: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """A picture that is sound and unusual, and in which way."""

    picture: Picture
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something to repair: its kind, how often, and one sentence."""

    kind: ProblemKind
    count: int
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it. `parts` and `stored` (format and colours) count pictures; `sizes` is None where no picture is sound."""

    data: str
    pictures: int
    parts: dict[str, int]
    faults: tuple[Fault, ...]
    broken: tuple[Broken, ...]
    twins: tuple[Twins, ...]
    classes: tuple[ClassCount, ...]
    sizes: Sizes | None
    stored: dict[str, int]
    odd: tuple[Odd, ...]
    notes: tuple[str, ...]

    @property
    def imbalance(self) -> float | None:
        """How many times as many pictures the largest class has as the smallest that has any; None below two classes."""
        counts = [entry.total for entry in self.classes if entry.total]
        return max(counts) / min(counts) if len(counts) > 1 else None

    def problems(self) -> list[Problem]:
        """What should be repaired before training, the gravest first."""
        leaks = [twins for twins in self.twins if twins.leak]
        near_leaks = sum(not twins.exact for twins in leaks)
        within = [twins for twins in self.twins if twins.exact and not twins.leak]
        gone = [(entry.label, part) for entry in self.classes if entry.total for part, count in entry.parts.items() if not count]
        found: list[tuple[ProblemKind, int, str]] = [
            ("layout", len(self.faults), "faults in the layout, for which training would refuse the data"),
            ("broken", len(self.broken), "pictures cannot be decoded"),
            ("leak", len(leaks), f"groups of the same picture are in more than one part ({near_leaks:,} of them near duplicates)"),
            ("conflict", sum(twins.conflict for twins in self.twins), "groups of the same picture have different labels"),
            ("duplicate", len(within), "groups of identical files are within one part"),
            ("empty class", sum(not entry.total for entry in self.classes), "classes have no picture"),
            ("missing class", len(gone), "times a class has no picture in a part"),
        ]
        return [Problem(kind=kind, count=count, said=f"{count:,} {said}") for kind, count, said in found if count]

    def remarks(self) -> list[str]:
        """What is worth knowing and need not be wrong, a sentence each."""
        said = []
        near = [twins for twins in self.twins if not twins.exact and not twins.leak]
        if near:
            mirrored = sum(twins.mirrored for twins in near)
            said.append(f"{len(near):,} groups of near duplicates are within one part ({mirrored:,} of them mirrored)")
        if self.imbalance is not None and self.imbalance >= _UNBALANCED:
            said.append(f"the largest class has {self.imbalance:.0f} times as many pictures as the smallest")
        kinds = Counter(odd.what for odd in self.odd)
        said.extend(f"{count:,} {'picture is' if count == 1 else 'pictures are'} {what}" for what, count in kinds.most_common())
        colours = Counter[str]()
        for stored, count in self.stored.items():
            colours["grey" if stored.endswith("grey") else "colour"] += count
        if len(colours) == 2:
            said.append(f"{colours['grey']:,} pictures are grey and {colours['colour']:,} in colour")
        return [*said, *self.notes]
