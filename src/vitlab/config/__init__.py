"""Every setting of vitlab as frozen values, and the names of what can be built from them. Imports no torch."""

from vitlab.config.data import Preprocess
from vitlab.config.model import ModelConfig, Numerics, Position, ResNetConfig, ResNetStem, ViTConfig
from vitlab.config.variants import variant

__all__ = ["ModelConfig", "Numerics", "Position", "Preprocess", "ResNetConfig", "ResNetStem", "ViTConfig", "variant"]
