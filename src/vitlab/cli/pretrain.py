"""`vitlab pretrain --data DATA --recipe NAME`: a model from random values, by a published recipe or one of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from vitlab.cli.changes import Changes, Folder, Number, RecipeName, Share, Shared, Word
from vitlab.cli.choosing import Choice, chosen_run, rule_of
from vitlab.cli.parse import parse, unset
from vitlab.cli.training import Job, default_out, perform
from vitlab.config.overrides import DataFacts
from vitlab.recipes.table import recipe

_SMALL = 100_000  # images below which `small-data` is chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Train a model from random values. What is chosen for you, and why, is said on stderr."""

    data: Annotated[Word, unset("generated letters")] = None
    """a folder of class folders, shards, generated, images:PATH for images without labels, ..."""

    recipe: Annotated[RecipeName, unset("by the data's size")] = None
    """imagenet-scratch, imagenet21k, jft or masked as in the paper; augreg-i1k, augreg-i21k, s16-i1k; small-data, quickstart"""

    model: Annotated[Word, unset("the recipe's own")] = None
    """which variant: ViT-B/16, R50+ViT-B/16, BiT-R50x1, ..."""

    out: Annotated[Folder, unset("runs/ and the data's and recipe's name")] = None
    """where the run is kept; an unfinished run there goes on"""

    epochs: Annotated[Number, unset("the recipe's own")] = None
    """how often each image is seen, in place of --steps"""

    preset: Annotated[Word, unset("what suits the model")] = None
    """with AugReg: none, light1, light2, medium1, medium2, strong1 or strong2"""

    val_share: Annotated[Share, unset("the recipe's own")] = None
    """of the images, to be held out as val where the data has none"""

    test_share: Annotated[Share, unset("the recipe's own")] = None
    """of the images, to be held out as test where the data declares no parts"""

    changes: Shared = field(default_factory=Changes)
    """otherwise than the recipe has it"""

    json: bool = False
    """print one JSON object at the end"""


def run(words: Sequence[str]) -> int:
    """Pre-train, and print where the model is."""
    arguments = parse(Arguments, words, verb="pretrain")
    from vitlab.training.plan import survey

    rule = rule_of(arguments.val_share, arguments.test_share)
    dataset = arguments.data
    if dataset is None and arguments.recipe in (None, "quickstart"):
        dataset = recipe("quickstart").data.dataset
    data = None if dataset is None else survey(dataset, rule=rule)
    name, why = (arguments.recipe, "as asked") if arguments.recipe is not None else _by_size(data, given=arguments.data is not None)
    choice = Choice(
        name=name,
        why=why,
        data=data,
        model=arguments.model,
        epochs=arguments.epochs,
        preset=arguments.preset,
        rule=rule,
    )
    made = chosen_run(choice, arguments.changes)
    out = arguments.out or default_out(made.data.dataset, after=f"-{name}")
    return perform(Job(run=made, out=out, changes=arguments.changes, json=arguments.json, data=data))


def _by_size(data: DataFacts | None, *, given: bool) -> tuple[str, str]:
    if data is None or not given:
        return "quickstart", "since no data is given"
    if not data.classes:
        return "masked", "since the images have no labels"
    if data.images < _SMALL:
        return "small-data", f"since there are fewer than {_SMALL:,} images"
    return "imagenet-scratch", f"since there are {data.images:,} images with labels"
