"""Every setting of vitlab as frozen values, and the names of what can be built from them. Imports no torch."""

from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import Preprocess
from vitlab.config.efficientnet import EfficientNetConfig
from vitlab.config.grid_detector import GridDetectorConfig
from vitlab.config.model import ModelConfig, variant
from vitlab.config.overrides import DataFacts, Machine, Overrides, StartFacts
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.run import RunConfig
from vitlab.config.segmenter import SegmenterConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.vit import Numerics, Position, ViTConfig
from vitlab.config.vit_parts import ConvStem, ResNetStem

__all__ = [
    "ConvNeXtConfig",
    "ConvStem",
    "DataFacts",
    "EfficientNetConfig",
    "GridDetectorConfig",
    "Machine",
    "ModelConfig",
    "Numerics",
    "Overrides",
    "Position",
    "Preprocess",
    "RecurrentConfig",
    "ResNetConfig",
    "ResNetStem",
    "RunConfig",
    "SegmenterConfig",
    "StartFacts",
    "SwinConfig",
    "ViTConfig",
    "variant",
]
