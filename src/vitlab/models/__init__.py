"""From a batch of images to logits. Names are loaded when first asked for, so that `vitlab.models.cost` needs no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.models.families import build
    from vitlab.models.record import Record

__all__ = ["Record", "build"]

_HOMES = {"build": "vitlab.models.families", "Record": "vitlab.models.record"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitlab.models' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
