"""The catalog of models: every name with its cost and its public weights, and the facts about one model. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, overload

from vitlab.config.model import NAMES, ModelConfig, variant
from vitlab.config.public_weights import PublicWeights, weights_for
from vitlab.config.serialize import Json, to_json
from vitlab.config.timm_names import architectures, timm_name
from vitlab.config.vit import ViTConfig
from vitlab.io.display import Block, Displayed
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


class ModelList(Displayed, Sequence[str]):
    """The names of models, as a sequence that prints as a table; `rows` has everything about each."""

    def __init__(self, rows: Sequence[ModelRow]) -> None:
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return [row.name for row in self.rows[place]] if isinstance(place, slice) else self.rows[place].name

    def __repr__(self) -> str:
        return repr(list(self))

    def tables(self) -> Iterable[Block]:
        """A row for each model, with its default public weights."""
        if not self.rows:
            return ["no model has such a name"]
        sources = dict.fromkeys(str(row.weights[0].source) for row in self.rows if row.weights and row.weights[0].score is not None)
        return [[_shown(row) for row in self.rows], "\n".join(f"score: {source}" for source in sources)]

    def to_json(self) -> list[Any]:
        """Every model with all its public weights."""
        return [to_json(row) for row in self.rows]


def _shown(row: ModelRow) -> dict[str, Any]:
    first = row.weights[0] if row.weights else None
    more = f" and {len(row.weights) - 1} more" if len(row.weights) > 1 else ""
    return {
        "name": row.name,
        "timm": row.timm_name,
        "parameters": f"{row.parameters / 1e6:.1f} M",
        "GMACs": f"{row.macs / 1e9:.1f}",
        "pixels": row.image_size[0],
        "weights": None if first is None else f"{first.address}{more}",
        "score": None if first is None or first.score is None else f"{first.score:g} % {first.metric}",
    }


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


def model_facts(config: ModelConfig) -> dict[str, Json]:
    """Parameters, multiply-adds and float32 memory for one image, sizes, choices; then each setting that is not the default."""
    spent = cost(config)
    facts: dict[str, Json] = {
        "family": "hybrid" if isinstance(config, ViTConfig) and config.stem is not None else config.family,
        "parameters": spent.parameters,
        "macs": spent.macs,
        "activations": spent.activations,
        "weight_bytes": spent.weight_bytes(),
        "inference_bytes": spent.inference_bytes(),
        **config.facts(),
    }
    return facts | _not_default(config, facts)


def _not_default(config: ModelConfig, facts: dict[str, Json]) -> dict[str, Json]:
    """The other settings whose value is not their default."""
    rest = [field for field in fields(config) if field.name not in facts]
    return {
        field.name: to_json(value)
        for field in rest
        if (value := getattr(config, field.name)) != _default(field.default, field.default_factory)
    }


def _default(default: Any, factory: Any) -> Any:
    return factory() if factory is not MISSING else default
