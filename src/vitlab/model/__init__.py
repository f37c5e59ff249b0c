"""From a batch of pictures to logits. Names are loaded when first asked for, so that `vitlab.model.cost` needs no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.model.assemble import build
    from vitlab.model.record import Record

__all__ = ["Record", "build"]

_HOMES = {"build": "vitlab.model.assemble", "Record": "vitlab.model.record"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitlab.model' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
