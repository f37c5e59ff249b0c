"""The catalog of models: every name with its cost and its public weights. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from vitlab.config.public_weights import PublicWeights, weights_for
from vitlab.config.timm_names import architectures, timm_name
from vitlab.config.variants import NAMES, variant
from vitlab.models.cost import cost


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model by name.

    `name` is what builds it, `timm_name` timm's name of the same architecture, None where timm has none. `macs` are multiply-adds
    of a forward pass for one image of `image_size` (height, width) in pixels. `weights` are the public ones, the default first.
    """

    name: str
    timm_name: str | None
    parameters: int
    macs: int
    image_size: tuple[int, int]
    weights: tuple[PublicWeights, ...]


def model_rows(pattern: str = "*") -> list[ModelRow]:
    """The models whose name, vitlab's or timm's, fits the pattern: a glob, or a part of a name; capitals do not matter.

    First the models that have a name of vitlab's, then the others of timm that vitlab builds.
    """
    wanted = pattern.casefold()
    if not any(sign in wanted for sign in "*?["):
        wanted = f"*{wanted}*"
    known = {name: timm_name(variant(name)) for name in NAMES}
    spelled = set(known.values())
    known |= {name: name for name in architectures() if name not in spelled}
    return [
        _row(name, theirs)
        for name, theirs in known.items()
        if fnmatchcase(name.casefold(), wanted) or (theirs is not None and fnmatchcase(theirs, wanted))
    ]


def _row(name: str, theirs: str | None) -> ModelRow:
    config = variant(name)
    price = cost(config)
    return ModelRow(
        name=name,
        timm_name=theirs,
        parameters=price.parameters,
        macs=price.macs,
        image_size=config.image_size,
        weights=weights_for(name),
    )
