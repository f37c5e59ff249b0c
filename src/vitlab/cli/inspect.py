"""`vitlab inspect CHECKPOINT [IMAGE...] --figure NAMES --out DIR`: figures of a model's inside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Union, get_args

import tyro

from vitlab.cli.opening import Opening
from vitlab.cli.parse import Count, one, parse, positional, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_json, print_rows
from vitlab.cli.talk import UsageError, note
from vitlab.config.serialize import Json
from vitlab.errors import ConfigError, DataError, did_you_mean
from vitlab.interpretation.config import OF_THE_WEIGHTS, FigureName, Form, InspectConfig, Occluder, Overlay, Theme

if TYPE_CHECKING:
    from pathlib import Path

    from vitlab.checkpoints import Checkpoint
    from vitlab.interpretation.figures import Drawn
    from vitlab.interpretation.images import Seen

_FEW, _MANY = 12, 128  # images of a sheet; images of the mean distance, as many as in the paper's (app. D.7)
NAMES: tuple[FigureName, ...] = get_args(FigureName)


def _figures(word: str) -> tuple[FigureName, ...]:
    known: dict[str, FigureName] = {name: name for name in NAMES}
    if word == "all":
        return NAMES
    chosen = []
    for name in word.split(","):
        if name not in known:
            near = did_you_mean(name, NAMES)
            raise ValueError(f"{name!r} is not one of {', '.join(NAMES)}, all" + (f"; {near}" if near else ""))
        chosen.append(known[name])
    return tuple(dict.fromkeys(chosen))


def _layer(word: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", word):
        raise ValueError(f"{word!r} is not a whole number")
    return int(word)


def _query(word: str) -> str | tuple[int, int]:
    if word in ("class", "distill"):
        return word
    if not (match := re.fullmatch(r"([0-9]{1,9}),([0-9]{1,9})", word)):
        raise ValueError(f"{word!r} is neither row,column of a patch (3,5) nor class nor distill")
    return int(match[1]), int(match[2])


# None first, as in vitlab.cli.parse.
Layer = Annotated[Union[None, int], one("N", _layer)]  # noqa: UP007, RUF036
QueryWord = Annotated[Union[None, str, tuple[int, int]], one("ROW,COLUMN|class|distill", _query)]  # noqa: UP007, RUF036
ClassWord = Annotated[Union[None, str], one("LABEL|N", str)]  # noqa: UP007, RUF036


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Opening):
    """Draw a model's inside: the filters and positions of its weights; of images, how far heads look (distance), where the answer
    comes from (rollout), what a patch (attention) and the class token (class) look at, what speaks for a class (relevance), which
    places are alike (features), and what is missed when it is gone (occlusion)."""

    images: Annotated[tyro.conf.Positional[tuple[str, ...]], positional("IMAGE|DIR|GLOB|ZIP"), unset("none")] = ()
    """images, folders of them, quoted patterns, zip archives or files inside them"""

    figure: Annotated[tuple[FigureName, ...], one("NAME[,NAME...]|all", _figures)]
    """filters, positions, distance, rollout, attention, class, relevance, features, occlusion; or all that the model has"""

    out: Annotated[str, one("DIR", str)]
    """folder for the figures; made if it is not there"""

    layer: Annotated[Layer, unset("the last, or all where they are drawn side by side")] = None
    """layer, or a ResNet's stage, from 0 or negative from the end"""

    head: Annotated[Count, unset("all")] = None
    """head of attention, from 0"""

    query: Annotated[QueryWord, unset("the patch in the middle")] = None
    """whose attention is drawn"""

    target: Annotated[ClassWord, unset("the likeliest in each image"), tyro.conf.arg(name="class")] = None
    """class that relevance and occlusion ask for, by its label or its number from 0"""

    overlay: Overlay = "shade"
    """darken what is not looked at, or lay colours over the image"""

    occluder: Occluder = "fill"
    """cover a patch with the mean colour, or take its token out"""

    theme: Theme = "light"
    """on white paper or on dark"""

    format: Form = "png"
    """PNG, or SVG"""

    count: Annotated[Count, unset("128 for distance, else 12")] = None
    """images at most, evenly out of all that are found"""

    arrays: bool = False
    """also write each figure's array as .npy"""

    overwrite: bool = False
    """replace figures that are there already"""

    json: bool = False
    """print a JSON list: what was written, and the figures' numbers"""


def run(words: Sequence[str]) -> None:
    """Draw, write, and say what was written."""
    arguments = parse(Arguments, words, verb="inspect")
    from pathlib import Path

    needing = [name for name in arguments.figure if name not in OF_THE_WEIGHTS]
    every = arguments.figure == NAMES
    if needing and not arguments.images and not every:
        raise UsageError(f"the figure {needing[0]} needs images", hint="vitlab inspect CHECKPOINT IMAGE... --figure ...")
    if arguments.count == 0:
        raise UsageError("--count: at least 1 image")
    wanted = [name for name in arguments.figure if arguments.images or name in OF_THE_WEIGHTS]
    out = Path(arguments.out)
    _refuse_present(arguments, out, wanted)
    rows: list[dict[str, Json]] = []
    from vitlab.interpretation.figures import Subject, draw

    checkpoint = arguments.open()
    few, many = _seen(arguments, wanted, checkpoint)
    with bar() as tell:
        for place, name in enumerate(wanted):
            tell(f"drawing {name}", place, len(wanted))
            seen = many if name == "distance" else few
            try:
                drawn = draw(name, Subject(checkpoint=checkpoint, config=_config(arguments), seen=seen))
            except ConfigError as refusal:
                if not every:
                    raise
                note(f"note: no {name}: {refusal.message}")
                continue
            rows.append(_write(drawn, out, arguments))
        tell("drawing", len(wanted), len(wanted))
    if arguments.json:
        print_json(rows)
    else:
        print_rows([{key: row[key] for key in ("figure", "shape", "least", "most", "file")} for row in rows], json=False)


def _refuse_present(arguments: Arguments, out: Path, wanted: Sequence[FigureName]) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out: {arguments.out} is a file", hint="give a folder")
    for name in wanted:
        file = out / f"{name}.{arguments.format}"
        if file.exists() and not arguments.overwrite:
            raise DataError(f"{file} is there already", hint="--overwrite replaces it")


def _seen(arguments: Arguments, wanted: Sequence[FigureName], checkpoint: Checkpoint) -> tuple[Seen | None, Seen | None]:
    """The images of sheets, and those of the mean distance: more, because it is a mean."""
    from vitlab.inference.images import find_images
    from vitlab.interpretation.images import see, spread

    if not arguments.images:
        return None, None
    try:
        found = list(find_images(arguments.images))
    except DataError as error:
        raise UsageError(error.message, hint=error.hint) from error
    if not found:
        raise DataError(f"{', '.join(arguments.images)}: no image in it", hint="endings of images are .jpg, .png, .webp, ...")
    sheets = any(name not in OF_THE_WEIGHTS and name != "distance" for name in wanted)
    few = see(checkpoint, spread(found, arguments.count or _FEW)) if sheets else None
    many = see(checkpoint, spread(found, arguments.count or _MANY)) if "distance" in wanted else None
    return few, many


def _config(arguments: Arguments) -> InspectConfig:
    return InspectConfig(
        layer=arguments.layer,
        head=arguments.head,
        query=arguments.query,
        target=arguments.target,
        occluder=arguments.occluder,
        overlay=arguments.overlay,
        theme=arguments.theme,
        form=arguments.format,
    )


def _write(drawn: Drawn, out: Path, arguments: Arguments) -> dict[str, Json]:
    import io

    import numpy as np

    from vitlab.errors import DataError
    from vitlab.io.atomic import cannot_write, write_bytes

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise cannot_write(out, fault, error=DataError) from fault
    file = out / f"{drawn.name}.{arguments.format}"
    write_bytes(file, drawn.file)
    told: dict[str, Json] = {"figure": drawn.name, "file": str(file)}
    if arguments.arrays:
        array = io.BytesIO()
        np.save(array, drawn.array, allow_pickle=False)
        write_bytes(file.with_suffix(".npy"), array.getvalue())
        told["array"] = str(file.with_suffix(".npy"))
    told |= {"shape": list(drawn.array.shape), "least": float(drawn.array.min()), "most": float(drawn.array.max())}
    return told | {"mean": float(drawn.array.mean()), **drawn.facts}
