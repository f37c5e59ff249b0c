"""The cost of a model before it is built: parameters, multiply-adds and memory, by formula; and the catalog of models. No torch.

How it is counted:

- **Multiply-adds** (MACs) are those of matrix products and convolutions in one forward pass of one image to logits. They include
  attention's two products and products with padding. They exclude norms, activations, softmax, additions and interpolation.
  torch's flop counter gives exactly twice this. Local attention counts all pairs, since it computes all and then masks.
- **Memory** is counted in numbers: parameters, and activations. The two memory figures are estimates; tests compare them with
  what torch really allocates, and operators may need a little working space of their own.

Each config counts itself: `ViTConfig.count`, `SwinConfig.count` and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, overload

from vitlab.config.cost_counter import CostCounter
from vitlab.config.model import NAMES, ModelConfig, variant
from vitlab.config.public_weights import PublicWeights, weights_for
from vitlab.config.serialize import Json, to_json
from vitlab.config.timm_names import architectures, timm_name
from vitlab.config.vit import ViTConfig
from vitlab.errors import pair
from vitlab.io.display import Block, Displayed


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a model; all but `parameters` and the copies are for one image.

    `parameters`: trainable numbers. `macs`: multiply-adds of a forward pass; `padding_macs` of them multiply the zeros around a
    convolution's map. `activations`: numbers that dense layers and
    convolutions output (Radosavovic et al. 2020), which predicts speed better than `macs` if memory is the limit.
    `inference_peak`: the largest number of numbers alive at once in a forward pass, the image's included.
    `training_kept`: numbers that a forward pass keeps for the backward pass, without the patches that `patch_dropout` removes.
    `inference_copies` and `training_copies`: numbers alive or kept whatever the batch size, because each pass computes a
    standardised kernel, or the bias of a Swin's windows, from the weights; 0 for a plain ViT.
    """

    parameters: int
    macs: int
    padding_macs: int
    activations: int
    inference_peak: int
    inference_copies: int
    training_kept: int
    training_copies: int

    def training_exaflops(self, images: float) -> float:
        """Compute of training on so many images, 10^18 operations, by the rule of the paper's Table 6.

        A step takes three times a forward pass, and a multiply-add is two operations: 6 for each. Products with padding do not
        count, as in XLA's cost analysis: with them the table's ResNets are 3 to 4 % off, without them all are within 1 %.
        """
        return 6 * (self.macs - self.padding_macs) * images / 1e18

    def weight_bytes(self, *, number_bytes: int = 4) -> int:
        """Bytes of the weights, 4 a number for float32, 2 for bfloat16."""
        return self.parameters * number_bytes

    def inference_bytes(self, *, batch: int = 1, number_bytes: int = 4) -> int:
        """Bytes to run a batch: weights, and activations at their peak."""
        return (self.parameters + self.inference_copies + batch * self.inference_peak) * number_bytes

    def training_bytes(self, *, batch: int = 1, number_bytes: int = 4, optimizer_slots: int = 2) -> int:
        """Bytes to train on a batch: weights, gradients, the optimizer's slots (2 for Adam, 1 for momentum), kept activations.

        `number_bytes` is that of activations and copies; weights, gradients and slots are float32.
        """
        fixed = self.parameters * (2 + optimizer_slots) * 4
        return fixed + (self.training_copies + batch * self.training_kept) * number_bytes


def cost(config: ModelConfig, *, image_size: int | Sequence[int] | None = None) -> Cost:
    """The cost of a model at its own image size, or at another, (height, width) or one number for both.

    At another size it is the cost of the model built for that size, with its own positions; a `dynamic_size` ViT keeps its own.
    """
    if image_size is None:
        return _count(config)
    size = pair("image_size", image_size)
    there = _count(replace(config, image_size=size))
    if isinstance(config, ViTConfig) and config.dynamic_size:
        return replace(there, parameters=_count(config).parameters)
    return there


def _count(config: ModelConfig) -> Cost:
    counter = CostCounter()
    config.count(counter)
    return Cost(
        parameters=counter.parameters,
        macs=counter.macs,
        padding_macs=counter.padding,
        activations=counter.activations,
        inference_peak=counter.peak,
        inference_copies=counter.largest_copy,
        training_kept=counter.kept,
        training_copies=counter.copies,
    )


# --- the catalog of models: every name with its cost and its public weights, and the facts about one model --------------------


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
