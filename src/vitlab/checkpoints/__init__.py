"""Checkpoints of every format: `load` any, `save` the native one, `convert` between them, `describe` one without building it.

Names are imported when they are first used, so that importing this package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.checkpoints.checkpoint import Checkpoint, Description
    from vitlab.checkpoints.conversion import convert
    from vitlab.checkpoints.native import save
    from vitlab.checkpoints.reading import describe, load

__all__ = ["Checkpoint", "Description", "convert", "describe", "load", "save"]

_HOMES = {
    "Checkpoint": "vitlab.checkpoints.checkpoint",
    "Description": "vitlab.checkpoints.checkpoint",
    "convert": "vitlab.checkpoints.conversion",
    "describe": "vitlab.checkpoints.reading",
    "load": "vitlab.checkpoints.reading",
    "save": "vitlab.checkpoints.native",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitlab.checkpoints' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
