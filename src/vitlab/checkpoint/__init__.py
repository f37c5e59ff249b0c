"""Everybody's checkpoints, in and out: `load` any, `save` ours, `convert` between them, `describe` without building.

Names are loaded when first asked for, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.checkpoint.contents import Checkpoint, Description
    from vitlab.checkpoint.conversion import convert
    from vitlab.checkpoint.native import save
    from vitlab.checkpoint.open import describe, load

__all__ = ["Checkpoint", "Description", "convert", "describe", "load", "save"]

_HOMES = {
    "Checkpoint": "vitlab.checkpoint.contents",
    "Description": "vitlab.checkpoint.contents",
    "convert": "vitlab.checkpoint.conversion",
    "describe": "vitlab.checkpoint.open",
    "load": "vitlab.checkpoint.open",
    "save": "vitlab.checkpoint.native",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitlab.checkpoint' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
