"""Images in, labels out. Names are loaded when first asked for, so that importing this package costs nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.inference.prediction import Prediction, Unreadable
    from vitlab.inference.predictor import Predictor

__all__ = ["Prediction", "Predictor", "Unreadable"]

_HOMES = {
    "Prediction": "vitlab.inference.prediction",
    "Predictor": "vitlab.inference.predictor",
    "Unreadable": "vitlab.inference.prediction",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitlab.inference' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
