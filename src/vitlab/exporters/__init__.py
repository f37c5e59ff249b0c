"""Exports models to files for other runtimes; each file is run and compared before it is kept. Names are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab.exporters.exporter import Exported, export
    from vitlab.exporters.files import ExportConfig

__all__ = ["ExportConfig", "Exported", "export"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vitlab.exporters' has no attribute {name!r}")
    return getattr(import_module("vitlab.exporters.exporter"), name)
