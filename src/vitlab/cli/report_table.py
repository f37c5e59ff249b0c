"""The report of `vitlab data check` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from vitlab.cli.table import print_facts
from vitlab.config.serialize import Json, to_json
from vitlab.data.quality.check import Image, Report, Spread, Twins
from vitlab.io.names import printable

_MEMBERS = 4  # images of a group that are printed


def report_json(report: Report) -> dict[str, Json]:
    """All of a report, with its problems and remarks first."""
    told = to_json(report)
    assert isinstance(told, dict)
    problems: list[Json] = [to_json(problem) for problem in report.problems()]
    remarks: list[Json] = list(report.remarks())
    return {"problems": problems, "remarks": remarks, "imbalance": report.imbalance, **told}


def print_report(report: Report, *, most: int) -> None:
    """What is there, what is wrong, and up to `shown` findings of each kind."""
    print_facts(_summary(report), json=False)
    problems = report.problems()
    print()
    print("no problems" if not problems else "problems")
    for problem in problems:
        print(f"  {problem.kind}: {problem.said}")
    if remarks := report.remarks():
        print()
        print("remarks")
        for remark in remarks:
            print(f"  {printable(remark)}")
    leaks = [twins for twins in report.twins if twins.leak]
    conflicts = [twins for twins in report.twins if twins.conflict and not twins.leak]
    within = [twins for twins in report.twins if not twins.leak and not twins.conflict]
    _section("faults", [f"{fault.place}: {fault.reason}" for fault in report.faults], most)
    _section("broken images", [broken.reason for broken in report.broken], most)
    _section("leaks", map(_said, leaks), most, total=len(leaks))
    _section("the same image with different labels", map(_said, conflicts), most, total=len(conflicts))
    _section("duplicates within a part", map(_said, within), most, total=len(within))
    _section("odd images", [f"{odd.what}: {odd.image.name}" for odd in report.odd], most)
    _section("classes", _classes(report, most), 2 * most + 1)


def _summary(report: Report) -> dict[str, Json]:
    parts = ", ".join(f"{part} {count:,}" for part, count in report.parts.items())
    told: dict[str, Json] = {"data": report.data, "images": f"{report.images:,}" + (f" ({parts})" if parts else "")}
    counts = [entry.total for entry in report.classes]
    if counts:
        spread = f"{min(counts):,} to {max(counts):,} images each"
        ratio = "" if report.imbalance is None else f", ratio {report.imbalance:.3g}"
        told["classes"] = f"{len(counts):,}: {spread}{ratio}"
    if report.sizes is not None:
        told["sizes"] = f"height {_spread(report.sizes.height)}, width {_spread(report.sizes.width)} pixels"
    told["stored"] = "; ".join(f"{kind}: {count:,}" for kind, count in report.stored.items()) or None
    return told


def _spread(spread: Spread) -> str:
    if spread.least == spread.most:
        return f"{spread.least:,}"
    return f"{spread.least:,} to {spread.most:,} (median {spread.median:,})"


def _said(twins: Twins) -> str:
    how = "identical" if twins.exact else f"{twins.likeness:.3f} alike" + (", mirrored" if twins.mirrored else "")
    more = f" = {len(twins.images) - _MEMBERS:,} more" if len(twins.images) > _MEMBERS else ""
    return f"{how}: {' = '.join(map(_image, twins.images[:_MEMBERS]))}{more}"


def _image(image: Image) -> str:
    return f"{image.name} [{', '.join(word for word in (image.part, image.label) if word)}]"


def _classes(report: Report, most: int) -> list[str]:
    """The smallest and the largest classes, or all where they are few."""
    ordered = sorted(report.classes, key=lambda entry: (entry.total, entry.label))
    lines = []
    for entry in ordered if len(ordered) <= 2 * most else [*ordered[:most], None, *ordered[-most:]] if most else []:
        if entry is None:
            lines.append(f"... {len(ordered) - 2 * most:,} more ...")
            continue
        parts = ", ".join(f"{part} {count:,}" for part, count in entry.parts.items())
        lines.append(f"{entry.total:,}  {entry.label}" + (f"  ({parts})" if parts else ""))
    return lines


def _section(title: str, lines: Iterable[str], most: int, *, total: int | None = None) -> None:
    if total is None:
        lines = list(lines)
        total = len(lines)
    if not total or not most:
        return
    print()
    print(title)
    for line in islice(lines, most):
        print(f"  {printable(line)}")
    if total > most:
        print(f"  and {total - most:,} more (--shown {total}, or --json)")
