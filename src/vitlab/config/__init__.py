"""Every setting of vitlab as frozen values, and the names of what can be built from them. Imports no torch."""

from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig, Numerics, Position, ResNetConfig, ResNetStem, ViTConfig
from vitlab.config.recipes import recipe
from vitlab.config.run import RunConfig
from vitlab.config.variants import variant
from vitlab.config.wish import DataFacts, Machine, StartFacts, Wish

__all__ = [
    "DataFacts",
    "Machine",
    "ModelConfig",
    "Numerics",
    "Position",
    "Preprocess",
    "ResNetConfig",
    "ResNetStem",
    "RunConfig",
    "StartFacts",
    "ViTConfig",
    "Wish",
    "recipe",
    "variant",
]
