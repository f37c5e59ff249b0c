"""`vitlab finetune DATA --from CHECKPOINT`: labelled images and a checkpoint in, a classifier of these images out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Union

import tyro

from vitlab.cli.changes import Changes, Folder, Number, RecipeName, Share, Shared, Word, number
from vitlab.cli.choosing import Choice, checkpoint_in, chosen_run, rule_of
from vitlab.cli.parse import existing, one, parse, positional
from vitlab.cli.parse import unset as unless
from vitlab.cli.talk import UsageError, note
from vitlab.cli.training import Job, default_out, perform
from vitlab.config.run import RunConfig
from vitlab.recipes.paper import TABLE_4, rates_of

_SPREAD = (0.3, 1.0, 3.0)  # of a recipe's own rate, where the paper has no grid


def rates(word: str) -> tuple[float, ...]:
    """Numbers above 0 with commas between them."""
    return tuple(number(part) for part in word.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Fine-tune a checkpoint on labelled images. What is chosen for you, and why, is said on stderr."""

    data: Annotated[tyro.conf.Positional[str], positional("DATA")]
    """a folder of class folders, a zip, digits, cifar10:PATH, ..."""

    start: Annotated[
        Union[None, str],  # noqa: UP007, RUF036
        one("CHECKPOINT", existing),
        tyro.conf.arg(name="from", help_behavior_hint="(default: random values, by the recipe small-data)"),
    ] = None
    """a checkpoint of any format, hub:owner/name, or the folder of a run"""

    out: Annotated[Folder, unless("runs/ and the data's name")] = None
    """where the run is kept; an unfinished run there goes on"""

    recipe: Annotated[RecipeName, unless("finetune-folder with --from, small-data without")] = None
    """finetune-imagenet, -cifar10, -cifar100, -pets, -flowers or -vtab as in the paper; or another"""

    model: Annotated[Word, unless("the checkpoint's, or the recipe's")] = None
    """without --from: which variant"""

    epochs: Annotated[Number, unless("the recipe's own")] = None
    """how often each image is seen, in place of --steps"""

    preset: Annotated[Word, unless("the recipe's own")] = None
    """augmentation: none, light1, light2, medium1, medium2, strong1 or strong2"""

    val_share: Annotated[Share, unless("the recipe's own")] = None
    """of the images, to be held out as val where the data has none"""

    test_share: Annotated[Share, unless("the recipe's own")] = None
    """of the images, to be held out as test where the data declares no parts"""

    sweep: bool = False
    """try several learning rates on val, then train on train and val with the best (app. B.1.1)"""

    rates: Annotated[Union[None, tuple[float, ...]], one("X,X,...", rates), unless("Table 4's")] = None  # noqa: UP007, RUF036
    """with --sweep: which rates"""

    changes: Shared = field(default_factory=Changes)
    """otherwise than the recipe has it"""

    json: bool = False
    """print one JSON object at the end"""


def run(words: Sequence[str]) -> int:
    """Fine-tune, and print where the model is and how good."""
    arguments = parse(Arguments, words, verb="finetune")
    _refuse(arguments)
    from vitlab.training.distributed import is_main_process
    from vitlab.training.plan import start_facts, survey

    rule = rule_of(arguments.val_share, arguments.test_share)
    data = survey(arguments.data, rule=rule)
    start = None if arguments.start is None else start_facts(checkpoint_in(arguments.start))
    if arguments.recipe is not None:
        name, why = arguments.recipe, "as asked"
    elif start is not None:
        name, why = "finetune-folder", "since a checkpoint is given"
    else:
        name, why = "small-data", "from random values, since no checkpoint is given; --from CHECKPOINT would be worth far more"
    choice = Choice(
        name=name,
        why=why,
        data=data,
        start=start,
        model=arguments.model,
        epochs=arguments.epochs,
        preset=arguments.preset,
        rule=rule,
    )
    made = chosen_run(choice, arguments.changes)
    tried = _rates(arguments, made) if arguments.sweep else ()
    if tried and is_main_process():
        shown = ", ".join(f"{rate:.3g}" for rate in tried)
        note(f"sweep: rates {shown}, each judged by val; then the best of them on train and val together (app. B.1.1)")
    out = arguments.out or default_out(arguments.data, after="-sweep" if tried else "")
    return perform(Job(run=made, out=out, changes=arguments.changes, json=arguments.json, data=data, rates=tried))


def _refuse(arguments: Arguments) -> None:
    if arguments.rates is not None and not arguments.sweep:
        raise UsageError("--rates is for --sweep", hint="--lr gives one rate")
    if arguments.sweep and arguments.changes.lr is not None:
        raise UsageError("--lr is one rate and --sweep tries several", hint="--rates 0.001,0.003 says which")


def _rates(arguments: Arguments, made: RunConfig) -> tuple[float, ...]:
    if arguments.rates is not None:
        return arguments.rates
    name = made.name.removesuffix("-table2")
    if name in TABLE_4:
        return rates_of(name, made.model, batch=made.data.loader.batch_size)
    return tuple(made.train.optimizer.lr * factor for factor in _SPREAD)
