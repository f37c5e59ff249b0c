"""`vitlab convert IN OUT --to FORMAT`: the same weights in another format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from vitlab.cli.parse import Count, Existing, HeightWidth, Profile, parse, positional, unset
from vitlab.cli.table import print_facts
from vitlab.cli.talk import note
from vitlab.config.serialize import Json

Format = Literal["native", "jax-npz", "big-vision", "timm", "huggingface", "torchvision", "bit-npz", "swin", "convnext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Write a checkpoint in another format. The weights stay the same, bit for bit."""

    dataset: Annotated[tyro.conf.Positional[Existing], positional("IN")]
    """a checkpoint of any format, which is found out from the file itself, or hub:owner/name"""

    target: Annotated[tyro.conf.Positional[str], positional("OUT")]
    """the file to write; for huggingface a folder, for timm a folder if OUT has no ending"""

    to: Format
    """the format to write"""

    heads: Annotated[Count, unset("what the file says, else width / 64")] = None
    """attention heads, for a file that does not say"""

    grid: Annotated[HeightWidth, unset("what the file says, else square")] = None
    """patches down x across, for a file that does not say"""

    profile: Annotated[Profile, unset("what the file implies")] = None
    """whose numerics the weights are run with"""

    overwrite: bool = False
    """replace OUT where it exists"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> None:
    """Convert one checkpoint and say what was done."""
    arguments = parse(Arguments, words, verb="convert")
    from vitlab.checkpoints import convert

    notes = convert(
        arguments.dataset,
        arguments.target,
        to=arguments.to,
        heads=arguments.heads,
        grid=arguments.grid,
        profile=arguments.profile,
        overwrite=arguments.overwrite,
    )
    for line in notes:
        note(f"note: {line}")
    facts: dict[str, Json] = {"from": arguments.dataset, "to": arguments.target, "format": arguments.to}
    if arguments.json:
        facts["notes"] = list(notes)
    print_facts(facts, json=arguments.json)
