"""`vitlab study compare MODEL...`: models side by side, by cost, publication, and speed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Union

import tyro

from vitlab.cli.parse import count, existing, height_width, one, parse, unset
from vitlab.cli.progress import bar
from vitlab.cli.table import print_json, print_rows
from vitlab.cli.talk import UsageError, note
from vitlab.config.model import ModelConfig
from vitlab.config.serialize import Json
from vitlab.config.variants import name_of, variant
from vitlab.errors import ConfigError

if TYPE_CHECKING:
    from vitlab.studies.compare import Against, Compared

# "Transformers or CNNs?": the two families at both sizes.
_DEFAULT = ("Swin-T", "ConvNeXt-T", "Swin-S", "ConvNeXt-S", "Swin-B", "ConvNeXt-B", "Swin-L", "ConvNeXt-L", "ConvNeXt-XL")
_SIZES = ((224, 224), (384, 384))


def sizes(word: str) -> tuple[tuple[int, int], ...]:
    """`224,384` or `160x224`."""
    return tuple(height_width(part) for part in word.split(","))


Models = Annotated[tuple[str, ...], tyro.conf.arg(metavar="[MODEL ...]", help_behavior_hint="(default: Swin and ConvNeXt)")]
Sizes = Annotated[Union[None, tuple[tuple[int, int], ...]], one("N,HxW,...", sizes)]  # noqa: UP007, RUF036
Checkpoints = Annotated[Union[None, tuple[str, ...]], one("FILE,...", lambda word: tuple(map(existing, word.split(","))))]  # noqa: UP007, RUF036
Text = Annotated[Union[None, str], one("FILE", str)]  # noqa: UP007, RUF036


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """One table for any list of models: parameters, multiply-adds, activations, memory, published accuracy, and speed here."""

    models: tyro.conf.Positional[Models] = ()
    """names: ViT-B/16, R50+ViT-B/16, BiT-R50x1, Swin-T, ConvNeXt-B, EfficientNet-B0, LSTM-S/16, ..."""

    image_size: Annotated[Sizes, unset("224 and 384; each model's own where models are named")] = None
    """sizes of the images, each model at each of them"""

    speed: bool = False
    """measure images a second here, all models in turn, and the memory that a process with each of them takes"""

    batch_size: Annotated[int, one("N", count)] = 4
    """images at once, where speed is measured"""

    rounds: Annotated[int, one("N", count)] = 5
    """how often each is measured"""

    checkpoints: Annotated[Checkpoints, unset("none")] = None
    """trained models to judge by --data: their accuracy is a column"""

    data: Annotated[Text, unset("none")] = None
    """labelled images to judge --checkpoints by"""

    plot: Annotated[Text, unset("none")] = None
    """file to draw accuracy (or, with --speed, images a second) against multiply-adds into: .png or .svg"""

    json: bool = False
    """print one JSON object"""


def run(words: Sequence[str]) -> None:
    """Compare, print, and draw if asked to."""
    arguments = parse(Arguments, words, verb="study compare")
    if (arguments.checkpoints is None) != (arguments.data is None):
        raise UsageError("--checkpoints and --data go together")
    configs = _configs(arguments)
    from vitlab.studies.compare import against, compared, peaks, rates

    rows = compared(configs) if configs else []
    if arguments.checkpoints is not None and arguments.data is not None:
        rows += _judged(arguments.checkpoints, arguments.data)
    if arguments.speed:
        with bar() as tell:
            found = rates([row.config for row in rows], batch=arguments.batch_size, rounds=arguments.rounds, tell=tell)
            taken = peaks([row.config for row in rows], tell=tell)
        rows = [replace(row, rate=rate, peak=peak) for row, rate, peak in zip(rows, found, taken, strict=True)]
    pairs = against(rows)
    if arguments.json:
        print_json({"models": [_facts(row) for row in rows], "against": [_pair(pair) for pair in pairs]})
    else:
        print_rows([_shown(row, arguments) for row in rows], json=False)
        _say(rows, pairs)
    if arguments.plot is not None:
        from pathlib import Path

        from vitlab.studies.plot import draw_compared

        path = Path(arguments.plot)
        path.write_bytes(draw_compared(rows, path))
        note(f"drawn: {path}")


def _configs(arguments: Arguments) -> list[ModelConfig]:
    if not arguments.models and arguments.checkpoints is not None:
        return []
    wanted = arguments.image_size or (None if arguments.models else _SIZES)
    found, left_out = list[ModelConfig](), list[str]()
    for size in wanted or (None,):
        for name in arguments.models or _DEFAULT:
            try:
                found.append(variant(name, image_size=size))
            except ConfigError as error:
                if size is None or "multiple of the patch" not in error.message:
                    raise
                left_out.append(f"{name} at {size[0]}x{size[1]}: {error.message}")
    for line in left_out:
        note(f"left out: {line}")
    return found


def _judged(paths: Sequence[str], data: str) -> list[Compared]:
    """Checkpoints as rows, their accuracy measured on every image of the data."""
    from vitlab.checkpoints import load
    from vitlab.evaluation.classification import Classification
    from vitlab.evaluation.evaluation import evaluate, open_split
    from vitlab.evaluation.label_mapping import match_by_name
    from vitlab.studies.compare import compared

    rows = []
    for path in paths:
        checkpoint = load(path)
        source, said = open_split(data, None, checkpoint)
        for line in said:
            note(f"note: {line}")
        targets = match_by_name(source.labels, checkpoint.labels, classes=checkpoint.config.num_classes, subset=True)
        with bar() as tell:
            result = evaluate(checkpoint, source, targets, progress=tell).result
        if not isinstance(result, Classification):
            raise UsageError("--data: images of one class each are compared by")
        row = compared([checkpoint.config])[0]
        rows.append(replace(row, name=f"{path} ({row.name})", published=(), measured=100 * result.top1.value))
    return rows


def _shown(row: Compared, arguments: Arguments) -> dict[str, Json]:
    shown: dict[str, Json] = {
        "model": row.name,
        "pixels": f"{row.image_size[0]}" if row.image_size[0] == row.image_size[1] else "{}x{}".format(*row.image_size),
        "parameters": f"{row.cost.parameters / 1e6:.2f} M",
        "GMACs": f"{row.gmacs:.1f}" if row.gmacs >= 1 else f"{row.gmacs:.2f}",
        "activations": f"{row.cost.activations / 1e6:.1f} M",
        "memory": f"{row.memory / 1e6:,.0f} MB",
    }
    if row.peak is not None:
        shown["measured"] = "-" if row.peak.bytes is None else f"{row.peak.bytes / 1e6:,.0f} MB"
    if row.rate is not None:
        shown["images/s"] = f"{row.rate.middle:.1f} ({row.rate.low:.1f} to {row.rate.high:.1f})"
    if arguments.checkpoints is not None:
        shown["measured top-1"] = "-" if row.measured is None else f"{row.measured:.2f} %"
    shown["published top-1, from"] = "; ".join(f"{quoted.top1:g} % {quoted.learned}" for quoted in row.published) or "-"
    return shown


def _facts(row: Compared) -> dict[str, Json]:
    facts: dict[str, Json] = {
        "model": row.name,
        "variant": name_of(row.config),
        "image_size": list(row.image_size),
        "parameters": row.cost.parameters,
        "macs": row.cost.macs,
        "activations": row.cost.activations,
        "memory_bytes": row.memory,
        "measured_memory_bytes": None if row.peak is None else row.peak.bytes,
        "measured_top1": row.measured,
        "published": [
            {
                "top1": quoted.top1,
                "learned": quoted.learned,
                "source": quoted.source,
                "gmacs": quoted.gmacs,
                "rate_v100": quoted.rate,
            }
            for quoted in row.published
        ],
        "rate": None,
    }
    if row.rate is not None:
        rate = row.rate
        facts["rate"] = {"middle": rate.middle, "low": rate.low, "high": rate.high, "batch": rate.batch}
    return facts


def _pair(pair: Against) -> dict[str, Json]:
    return {"first": pair.first, "second": pair.second, "here": pair.here, "published": pair.there, "told": pair.told}


def _say(rows: Sequence[Compared], pairs: Sequence[Against]) -> None:
    """Sources, and how speeds relate here and where they were published."""
    for source in dict.fromkeys(quoted.source for row in rows for quoted in row.published):
        note(f"source: {source}")
    for why in dict.fromkeys(row.peak.why for row in rows if row.peak is not None and row.peak.bytes is None):
        note(f"note: memory is not measured: {why}")
    for pair in pairs:
        note(f"speed: {pair.told}")
    if pairs:
        note("note: speeds on a V100 GPU are those of the ConvNeXt paper, Table 1, which measured both families alike")
