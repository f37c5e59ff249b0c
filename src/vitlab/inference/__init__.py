"""Inference: images in, predictions out. Names are imported when they are first used, so that importing this package is cheap."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.inference.engine import Engine, Predictor
    from vitlab.inference.results import Prediction, Predictions, Unreadable

__all__ = ["Engine", "Prediction", "Predictions", "Predictor", "Unreadable"]

_HOMES = {
    "Engine": "vitlab.inference.engine",
    "Prediction": "vitlab.inference.results",
    "Predictions": "vitlab.inference.results",
    "Predictor": "vitlab.inference.engine",
    "Unreadable": "vitlab.inference.results",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitlab.inference' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
