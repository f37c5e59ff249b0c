"""The report of `vitlab data check` as a table and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vitlab.config.serialize import to_json
from vitlab.data.quality.check import Duplicates, Image, Odd, Report, Spread
from vitlab.io.display import Block, Displayed
from vitlab.io.text import printable

_MEMBERS = 4  # images of a group that are printed


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCheck(Displayed):
    """What was found in a dataset: `report` has everything, `problems` what should be repaired before training.

    At most `shown` findings of each kind are printed.
    """

    report: Report
    shown: int = 10

    @property
    def problems(self) -> list[str]:
        """What should be repaired before training, the gravest first, a sentence each."""
        return [problem.text for problem in self.report.problems()]

    def to_json(self) -> dict[str, Any]:
        """The whole report, its problems and remarks first."""
        report = self.report
        everything = to_json(report)
        assert isinstance(everything, dict)
        problems = [to_json(problem) for problem in report.problems()]
        return {"problems": problems, "remarks": report.remarks(), "imbalance": report.imbalance, **everything}

    def tables(self) -> Iterable[Block]:
        """What is there, what is wrong, and the first findings of each kind."""
        report = self.report
        problems = report.problems()
        leaks = [group for group in report.duplicates if group.leak]
        conflicts = [group for group in report.duplicates if group.conflict and not group.leak]
        within = [group for group in report.duplicates if not group.leak and not group.conflict]
        yield _facts(report)
        yield from _lines("problems" if problems else "no problems", [f"{problem.kind}: {problem.text}" for problem in problems])
        yield from _lines("remarks", report.remarks(), empty=False)
        yield from self._section("faults", [f"{fault.place}: {fault.reason}" for fault in report.faults])
        yield from self._section("broken images", [broken.reason for broken in report.broken])
        yield from self._section("masks", [broken.reason for broken in report.masks])
        yield from self._section("boxes", [broken.reason for broken in report.boxes])
        yield from self._section("leaks between splits", [_group(group) for group in leaks])
        yield from self._section("the same image with different labels", [_group(group) for group in conflicts])
        yield from self._section("duplicates within a split", [_group(group) for group in within])
        yield from self._section("odd images", _odd_images(report.odd))
        yield from _lines("classes", self._classes(), empty=False)

    def _section(self, title: str, lines: Sequence[str]) -> Iterable[Block]:
        if not lines or not self.shown:
            return
        more = [f"and {len(lines) - self.shown:,} more (JSON has all)"] if len(lines) > self.shown else []
        yield from _lines(title, [*lines[: self.shown], *more])

    def _classes(self) -> list[str]:
        """The smallest and the largest classes, or all if they are few."""
        ordered = sorted(self.report.classes, key=lambda entry: (entry.total, entry.label))
        lines = [f"{entry.total:,}  {entry.label}" + (f"  ({_counts(entry.splits)})" if entry.splits else "") for entry in ordered]
        if len(lines) <= 2 * self.shown:
            return lines
        return [*lines[: self.shown], f"... {len(lines) - 2 * self.shown:,} more ...", *lines[-self.shown :]] if self.shown else []


def _lines(title: str, lines: Sequence[str], *, empty: bool = True) -> Iterable[Block]:
    if lines or empty:
        yield "\n".join([title, *(f"  {printable(line)}" for line in lines)])


def _facts(report: Report) -> dict[str, Any]:
    splits = f" ({_counts(report.splits)})" if report.splits else ""
    facts: dict[str, Any] = {"data": report.data, "images": f"{report.images:,}{splits}"}
    counts = [entry.total for entry in report.classes]
    if counts:
        ratio = "" if report.imbalance is None else f", ratio {report.imbalance:.3g}"
        facts["classes"] = f"{len(counts):,}: {min(counts):,} to {max(counts):,} images each{ratio}"
    if report.sizes is not None:
        facts["sizes"] = f"height {_spread(report.sizes.height)}, width {_spread(report.sizes.width)} pixels"
    facts["stored"] = "; ".join(f"{kind}: {count:,}" for kind, count in report.stored.items()) or None
    return facts


def _counts(splits: dict[str, int]) -> str:
    return ", ".join(f"{split} {count:,}" for split, count in splits.items())


def _spread(spread: Spread) -> str:
    if spread.least == spread.most:
        return f"{spread.least:,}"
    return f"{spread.least:,} to {spread.most:,} (median {spread.median:,})"


def _group(group: Duplicates) -> str:
    how = "identical" if group.exact else f"{group.likeness:.3f} alike" + (", mirrored" if group.mirrored else "")
    more = f" = {len(group.images) - _MEMBERS:,} more" if len(group.images) > _MEMBERS else ""
    return f"{how}: {' = '.join(map(_image, group.images[:_MEMBERS]))}{more}"


def _odd_images(found: Sequence[Odd]) -> list[str]:
    """A line for each kind of oddity, with the names of its first images."""
    names = defaultdict[str, list[str]](list)
    for odd in found:
        names[odd.what].append(odd.image.name)
    return [
        f"{what}: {', '.join(each[:_MEMBERS])}" + (f" and {len(each) - _MEMBERS:,} more" if len(each) > _MEMBERS else "")
        for what, each in names.items()
    ]


def _image(image: Image) -> str:
    return f"{image.name} [{', '.join(word for word in (image.split, image.label) if word)}]"
