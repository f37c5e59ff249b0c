"""What a checkpoint is: a model that knows how to be fed and what its answers are called."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig
from vitlab.config.text import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model with everything needed to use it.

    `config` is what `model` was built from, `preprocess` how pictures become its input, `labels` the classes' names in the
    order of the logits. `notes` says everything that was guessed, converted or changed on the way here; `format` where the
    weights came from. `recipe` is the training run's config as JSON and `metrics` what it reached, where known.
    """

    model: nn.Module
    config: ModelConfig
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    format: str = "native"
    recipe: dict[str, Json] | None = None
    metrics: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a file says about itself, read without building the model.

    `parameters` counts numbers in the file's tensors; `dtypes` are the types they are stored in. `metadata` is what else its
    header holds: for a native file its version, the tensors' SHA-256, recipe and metrics.
    """

    format: str
    config: ModelConfig
    parameters: int
    dtypes: tuple[str, ...]
    preprocess: Preprocess
    labels: tuple[str, ...] | None
    notes: tuple[str, ...]
    metadata: dict[str, Json]
