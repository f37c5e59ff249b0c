"""`vitlab data list|fetch|check|pack|show`: public data sets, and what to know of one's own before training on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union

import tyro

from vitlab.cli.parse import Count, count, one, parse, positional, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_facts, print_json, print_rows
from vitlab.cli.talk import UsageError, note
from vitlab.config.data import OnBroken, Split
from vitlab.config.serialize import Json, to_json
from vitlab.errors import did_you_mean

Word = Annotated[Union[None, str], one("NAME", str)]  # noqa: UP007, RUF036  (None first, as in vitlab.cli.parse)
Folder = Annotated[Union[None, str], one("FOLDER", str)]  # noqa: UP007, RUF036
Number = Annotated[int, one("N", count)]
Data = Annotated[tyro.conf.Positional[str], positional("DATA")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListArguments:
    """List the public data sets of the paper and of VTAB, or say all of one."""

    name: Annotated[tyro.conf.Positional[Word], positional("NAME"), unset("all of them")] = None
    """a set, to be told its files, checksums, licence, citation, split rule and how it is read"""

    json: bool = False
    """print JSON"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchArguments:
    """Fetch a public data set: resumed where it broke off, verified by its checksum, unpacked and ready to be read."""

    name: Annotated[tyro.conf.Positional[str], positional("NAME")]
    """a set of `vitlab data list`"""

    into: Annotated[Folder, unset("data/NAME")] = None
    """folder it is put into"""

    given: Annotated[tuple[str, ...], tyro.conf.arg(name="from", metavar="FILE", help_behavior_hint="(default: download)")] = ()
    """files or a folder downloaded by other means, to be verified and used in place of a download"""

    json: bool = False
    """print one JSON object"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckArguments:
    """Look at every image: broken files, duplicates, leaks between parts, class balance, sizes, odd modes."""

    data: Data
    """a folder of class folders, a zip, a CSV list, shards, digits, kind:path, ..."""

    strict: bool = False
    """end with exit code 1 where there is a problem"""

    label_column: Annotated[Word, unset("the first that is known")] = None
    """column of the labels, where a list has several"""

    shown: Number = 10
    """findings of each kind to print; --json has all"""

    json: bool = False
    """print one JSON object"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackArguments:
    """Write images as tar shards in the WebDataset layout: the same bytes each time, and resumed where it was stopped."""

    data: Data
    """a folder of class folders, a zip, a CSV list, digits, kind:path, ..."""

    folder: Annotated[tyro.conf.Positional[str], positional("FOLDER")]
    """where the shards go: a new folder, or one where packing was stopped"""

    split: Split = "all"
    """the part of the data to pack"""

    name: Annotated[Word, unset("none")] = None
    """begins the name of each shard: NAME-train-000000.tar"""

    shard_mib: Number = 256
    """mebibytes a shard may have"""

    max_side: Annotated[Count, unset("bytes stay as they are")] = None
    """make images smaller whose longer side has more pixels"""

    quality: Number = 95
    """of JPEG and WebP that are made smaller, 1 to 100"""

    shuffle: Annotated[Count, unset("keep the order")] = None
    """seed of a shuffled order, for readers that cannot shuffle"""

    broken: OnBroken = "fail"
    """what an image that cannot be read does"""

    json: bool = False
    """print one JSON object"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowArguments:
    """Write a contact sheet: some images of each class, with their labels, as one PNG."""

    data: Data
    """a folder of class folders, a zip, a CSV list, shards, digits, generated, kind:path, ..."""

    out: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """the PNG file to write"""

    count: Number = 64
    """about how many images"""

    seed: Number = 0
    """of the choice of images"""

    side: Number = 96
    """pixels of the square an image is fitted into"""

    split: Split = "all"
    """the part of the data to choose from"""

    json: bool = False
    """print one JSON object"""


def _list(arguments: ListArguments) -> None:
    from vitlab.data.catalog.sets import SETS, find_set

    if arguments.name is not None:
        from vitlab.data.catalog.facts import set_facts

        print_facts(set_facts(find_set(arguments.name), json=arguments.json), json=arguments.json)
        return
    rows: list[dict[str, Json]] = [
        {
            "name": entry.name,
            "title": entry.title,
            "images": sum(entry.counts.values()),
            "classes": entry.classes,
            "bytes": entry.size,
            "fetch": "by hand" if entry.by_hand else "yes",
            "licence": entry.licence,
        }
        for entry in SETS
    ]
    print_rows(rows, json=arguments.json)


def _fetch(arguments: FetchArguments) -> None:
    from pathlib import Path

    from vitlab.data.catalog.fetch import fetch
    from vitlab.data.catalog.sets import find_set

    entry = find_set(arguments.name)
    folder = Path(arguments.into or f"data/{entry.name}").expanduser()
    with bar(of_bytes=True, lines=True) as tell:
        fetched = fetch(entry, folder, given=[Path(word).expanduser() for word in arguments.given], tell=tell)
    for file in fetched.files:
        if not file.trusted:
            note(f"note: nobody publishes a checksum of {file.name}: its sha256 {file.sha256} is recorded, and will be held to")
    note(f"licence: {entry.licence}")
    facts: dict[str, Json] = {
        "name": entry.name,
        "folder": str(fetched.folder),
        "files": [f"{file.name} ({file.origin}, {file.bytes:,} bytes, sha256 {file.sha256})" for file in fetched.files],
        "data": fetched.data,
    }
    if arguments.json:
        facts["files"] = to_json(fetched.files)
    print_facts(facts, json=arguments.json)


def _check(arguments: CheckArguments) -> None:
    from vitlab.cli.report_table import print_report, report_json
    from vitlab.data.quality.check import check_dataset as check
    from vitlab.errors import DataError

    with bar(lines=True) as tell:
        report = check(arguments.data, label_column=arguments.label_column, tell=tell)
    if arguments.json:
        print_json(report_json(report))
    else:
        print_report(report, most=arguments.shown)
    problems = report.problems()
    if arguments.strict and problems:
        raise DataError(f"{arguments.data}: {'; '.join(problem.said for problem in problems)}")


def _pack(arguments: PackArguments) -> None:
    from pathlib import Path

    from vitlab.config.data import PackConfig
    from vitlab.data.pack import pack

    config = PackConfig(
        name=arguments.name,
        shard_bytes=arguments.shard_mib * 2**20,
        max_side=arguments.max_side,
        quality=arguments.quality,
        shuffle=arguments.shuffle,
        broken=arguments.broken,
    )
    with bar(lines=True) as tell:
        packed = pack(arguments.data, Path(arguments.folder).expanduser(), split=arguments.split, config=config, tell=tell)
    if packed.reused:
        note(f"note: {packed.reused:,} shards were there already")
    for name in packed.skipped:
        note(f"skipped: {name}")
    if arguments.json:
        print_json(
            {
                "folder": str(packed.folder),
                "images": packed.images,
                "skipped": list(packed.skipped),
                "reused": packed.reused,
                "shards": to_json(packed.shards),
            }
        )
        return
    print_facts({"data": str(packed.folder), "images": packed.images, "skipped": len(packed.skipped)}, json=False)
    print()
    print_rows([{"shard": shard.name, "images": shard.images, "bytes": shard.bytes} for shard in packed.shards], json=False)


def _show(arguments: ShowArguments) -> None:
    from pathlib import Path

    from vitlab.data.opening import open_dataset
    from vitlab.data.quality.contact_sheet import write_sheet

    dataset = open_dataset(arguments.data, split=arguments.split)
    with bar() as tell:
        shown = write_sheet(
            dataset,
            Path(arguments.out).expanduser(),
            title=arguments.data,
            count=arguments.count,
            seed=arguments.seed,
            side=arguments.side,
            tell=tell,
        )
    facts: dict[str, Json] = {"file": arguments.out, "images": shown.images, "classes": shown.classes}
    facts |= {"broken": shown.broken, "image_size": [shown.height, shown.width]}
    print_facts(facts, json=arguments.json)


# action -> (its line in `vitlab data --help`, what it takes, what it does)
ACTIONS: dict[str, tuple[str, type, Callable[[Any], None]]] = {
    "list": ("the public data sets of the paper and of VTAB", ListArguments, _list),
    "fetch": ("download one of them, verified", FetchArguments, _fetch),
    "check": ("look for broken images, duplicates, leaks, imbalance", CheckArguments, _check),
    "pack": ("write tar shards", PackArguments, _pack),
    "show": ("write a contact sheet", ShowArguments, _show),
}


def run(words: Sequence[str]) -> None:
    """Do what the first word says."""
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return
    if words[0] not in ACTIONS:
        ways = "vitlab data --help lists what there is"
        if words[0].startswith("-"):
            raise UsageError(f"no option called {words[0]}", hint=ways)
        raise UsageError(f"data has no {words[0]!r}", hint=did_you_mean(words[0], list(ACTIONS)) or ways)
    _, arguments, act = ACTIONS[words[0]]
    act(parse(arguments, words[1:], verb=f"data {words[0]}"))


def _help() -> str:
    width = max(map(len, ACTIONS))
    lines = [f"  {action:{width}}  {line}" for action, (line, _, _) in ACTIONS.items()]
    return "\n".join(
        [
            "usage: vitlab data ACTION ...",
            "",
            "List, fetch, check, pack and show data sets.",
            "",
            "actions:",
            *lines,
            "",
            "vitlab data ACTION --help says what an action takes.",
        ]
    )
