"""The report of `vitlab data check` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from vitlab.cli.table import print_facts
from vitlab.cli.talk import printable
from vitlab.config.serialize import Json, to_json
from vitlab.data.quality.check import Picture, Report, Spread, Twins

_MEMBERS = 4  # pictures of a group that are printed


def report_json(report: Report) -> dict[str, Json]:
    """All of a report, with its problems and remarks first."""
    told = to_json(report)
    assert isinstance(told, dict)
    problems: list[Json] = [to_json(problem) for problem in report.problems()]
    remarks: list[Json] = list(report.remarks())
    return {"problems": problems, "remarks": remarks, "imbalance": report.imbalance, **told}


def print_report(report: Report, *, shown: int) -> None:
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
    _section("faults", [f"{fault.place}: {fault.reason}" for fault in report.faults], shown)
    _section("broken pictures", [broken.reason for broken in report.broken], shown)
    _section("leaks", map(_said, leaks), shown, total=len(leaks))
    _section("the same picture with different labels", map(_said, conflicts), shown, total=len(conflicts))
    _section("duplicates within a part", map(_said, within), shown, total=len(within))
    _section("odd pictures", [f"{odd.what}: {odd.picture.name}" for odd in report.odd], shown)
    _section("classes", _classes(report, shown), 2 * shown + 1)


def _summary(report: Report) -> dict[str, Json]:
    parts = ", ".join(f"{part} {count:,}" for part, count in report.parts.items())
    told: dict[str, Json] = {"data": report.data, "pictures": f"{report.pictures:,}" + (f" ({parts})" if parts else "")}
    counts = [entry.total for entry in report.classes]
    if counts:
        spread = f"{min(counts):,} to {max(counts):,} pictures each"
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
    more = f" = {len(twins.pictures) - _MEMBERS:,} more" if len(twins.pictures) > _MEMBERS else ""
    return f"{how}: {' = '.join(map(_picture, twins.pictures[:_MEMBERS]))}{more}"


def _picture(picture: Picture) -> str:
    return f"{picture.name} [{', '.join(word for word in (picture.part, picture.label) if word)}]"


def _classes(report: Report, shown: int) -> list[str]:
    """The smallest and the largest classes, or all where they are few."""
    ordered = sorted(report.classes, key=lambda entry: (entry.total, entry.label))
    lines = []
    for entry in ordered if len(ordered) <= 2 * shown else [*ordered[:shown], None, *ordered[-shown:]] if shown else []:
        if entry is None:
            lines.append(f"... {len(ordered) - 2 * shown:,} more ...")
            continue
        parts = ", ".join(f"{part} {count:,}" for part, count in entry.parts.items())
        lines.append(f"{entry.total:,}  {entry.label}" + (f"  ({parts})" if parts else ""))
    return lines


def _section(title: str, lines: Iterable[str], shown: int, *, total: int | None = None) -> None:
    if total is None:
        lines = list(lines)
        total = len(lines)
    if not total or not shown:
        return
    print()
    print(title)
    for line in islice(lines, shown):
        print(f"  {printable(line)}")
    if total > shown:
        print(f"  and {total - shown:,} more (--shown {total}, or --json)")
