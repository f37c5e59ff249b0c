"""`vitlab describe NAME|FILE`: what a variant would be, or what a checkpoint is. A variant's name needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitlab.models.facts import model_facts
from vitlab.cli.parse import Count, HeightWidth, Profile, is_checkpoint, parse, positional, unset
from vitlab.cli.table import print_facts
from vitlab.cli.talk import UsageError, note
from vitlab.config.serialize import Json, to_json
from vitlab.config.variants import name_of, variant
from vitlab.errors import ConfigError

_FILE_ENDINGS = (".safetensors", ".npz", ".pt", ".pth", ".bin", ".json", ".onnx", "/")
_FILE_BEGINNINGS = (".", "/", "~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Say what a variant (ViT-B/16, R50+ViT-L/32, BiT-R152x4, ...) or a checkpoint is."""

    model: Annotated[tyro.conf.Positional[str], positional("NAME|FILE")]
    """a variant's name, a checkpoint's file or folder, or hub:owner/name"""

    image_size: Annotated[HeightWidth, unset("the variant's own")] = None
    """of a variant: pixels, 224 or 160x224"""

    num_classes: Annotated[Count, unset("1000")] = None
    """of a variant: classes of the head, 0 for no head"""

    channels: Annotated[Count, unset("3")] = None
    """of a variant: channels of an image"""

    heads: Annotated[Count, unset("what the file says, else width / 64")] = None
    """of a file that does not say: attention heads"""

    grid: Annotated[HeightWidth, unset("what the file says, else square")] = None
    """of a file that does not say: patches down x across"""

    profile: Annotated[Profile, unset("the authors', or what the file implies")] = None
    """whose numerics"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> None:
    """Print what the named model is."""
    arguments = parse(Arguments, words, verb="describe")
    if is_checkpoint(arguments.model):
        print_facts(_file_facts(arguments), json=arguments.json)
    else:
        print_facts(_variant_facts(arguments), json=arguments.json)


def _variant_facts(arguments: Arguments) -> dict[str, Json]:
    _refuse({"--heads": arguments.heads, "--grid": arguments.grid}, f"is for a file, and there is none called {arguments.model}")
    try:
        config = variant(
            arguments.model,
            image_size=arguments.image_size,
            num_classes=arguments.num_classes,
            channels=3 if arguments.channels is None else arguments.channels,
            profile=arguments.profile,
        )
    except ConfigError:
        if arguments.model.endswith(_FILE_ENDINGS) or arguments.model.startswith(_FILE_BEGINNINGS):
            raise UsageError(f"no file or folder called {arguments.model!r}") from None
        raise
    facts: dict[str, Json] = {"name": name_of(config), **model_facts(config)}
    return facts | {"config": to_json(config)} if arguments.json else facts


def _file_facts(arguments: Arguments) -> dict[str, Json]:
    of_variant: dict[str, object] = {
        "--image-size": arguments.image_size,
        "--num-classes": arguments.num_classes,
        "--channels": arguments.channels,
    }
    _refuse(of_variant, f"is for a variant's name, and {arguments.model} says its own")
    from vitlab.checkpoints import describe

    said = describe(arguments.model, heads=arguments.heads, grid=arguments.grid, profile=arguments.profile)
    for line in said.notes:
        note(f"note: {line}")
    facts: dict[str, Json] = {"file": arguments.model, "format": said.format, "name": name_of(said.config)}
    facts |= model_facts(said.config) | {"parameters": said.parameters, "dtypes": list(said.dtypes)}
    facts |= {"preprocess": to_json(said.preprocess), "labels": to_json(said.labels), "metadata": to_json(said.metadata)}
    if arguments.json:
        return facts | {"notes": to_json(said.notes), "config": to_json(said.config)}
    short = {key: value for key, value in said.metadata.items() if key != "recipe"}  # a whole config: --json shows it
    return facts | {"labels": _first(said.labels), "metadata": to_json(short) or None}


def _refuse(options: dict[str, object], why: str) -> None:
    """UsageError for the first of these options that was given."""
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{option} {why}")


def _first(labels: Sequence[str] | None, *, printable: int = 4) -> str | None:
    """The first labels and how many there are."""
    if not labels:
        return None
    more = ", ..." if len(labels) > printable else ""
    return f"{len(labels):,}: {', '.join(labels[:printable])}{more}"
