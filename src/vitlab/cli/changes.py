"""The options that change a run, shared by the verbs that train."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, Union

import tyro

from vitlab.cli.opening import among
from vitlab.cli.parse import Count, HeightWidth, one, unset
from vitlab.config.overrides import Overrides
from vitlab.config.train import Precision, Strategy
from vitlab.errors import did_you_mean
from vitlab.recipes.table import RECIPES


def number(word: str) -> float:
    """A number above 0."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{word!r} is not a number above 0")
    return value


def share(word: str) -> float:
    """A number of at least 0 and below 1."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ValueError(f"{word!r} is not a share of at least 0 and below 1")
    return value


def recipe_name(word: str) -> str:
    """The name of a recipe."""
    if word not in RECIPES:
        raise ValueError(f"no recipe called {word!r}: {did_you_mean(word, list(RECIPES)) or 'they are ' + ', '.join(RECIPES)}")
    return word


# None first, as in vitlab.cli.parse.
Number = Annotated[Union[None, float], one("X", number)]  # noqa: UP007, RUF036
Share = Annotated[Union[None, float], one("X", share)]  # noqa: UP007, RUF036
RecipeName = Annotated[Union[None, str], one("NAME", recipe_name)]  # noqa: UP007, RUF036
Word = Annotated[Union[None, str], one("NAME", str)]  # noqa: UP007, RUF036
Folder = Annotated[Union[None, str], one("FOLDER", str)]  # noqa: UP007, RUF036
PrecisionWord = Annotated[Union[None, Precision], among(Precision)]  # noqa: UP007, RUF036
StrategyWord = Annotated[Union[None, Strategy], among(Strategy)]  # noqa: UP007, RUF036

_OWN = "the run's own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What shall be otherwise than the recipe or the config has it, and how the run is made."""

    steps: Annotated[Count, unset(_OWN)] = None
    """updates in all"""

    batch_size: Annotated[Count, unset(_OWN)] = None
    """images of an update, over all devices"""

    lr: Annotated[Number, unset(_OWN)] = None
    """the learning rate at its peak"""

    image_size: Annotated[HeightWidth, unset(_OWN)] = None
    """pixels the model sees, 160 or 160x224"""

    seed: Annotated[Count, unset(_OWN)] = None
    """of initial values, order, augmentation and dropout"""

    micro_batch: Annotated[Count, unset("the whole batch")] = None
    """images that go through the model at once; updates stay the same"""

    precision: Annotated[PrecisionWord, unset(_OWN)] = None
    """of the products in the model"""

    strategy: Annotated[StrategyWord, unset("ddp under torchrun, else single")] = None
    """how processes share the work under torchrun"""

    workers: Annotated[Count, unset(_OWN)] = None
    """processes that read images; the run does not depend on it"""

    evaluate_every: Annotated[Count, unset(_OWN)] = None
    """steps between two looks at the held-out images, 0 for one at the end"""

    save_every: Annotated[Count, unset(_OWN)] = None
    """steps between two checkpoints, 0 for one at the end"""

    max_minutes: Annotated[Number, unset("until it is done")] = None
    """stop with a checkpoint before so many minutes are over; the same command goes on"""

    tensorboard: bool = False
    """write TensorBoard files into the run's folder (pip install 'vitlab[track]')"""

    override: bool = False
    """go on in a folder that was begun with another config"""

    dry_run: bool = False
    """train nothing; say what the run would take: steps, memory, measured time"""

    def overrides(self, **others: Any) -> Overrides:
        """As overrides, with others."""
        names = {field.name for field in fields(Overrides)} & {field.name for field in fields(self)}
        return Overrides(**others, **{name: getattr(self, name) for name in names})


Shared = Annotated[Changes, tyro.conf.OmitArgPrefixes]
