"""How the libraries we are measured against are imported, here and in the tests that take them for an oracle.

No torchvision build imports beside CPU-only torch: it asks for two operators that only its compiled half would define.
Declaring them, with no body, is enough for everything but detection.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any

import torch

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def peer(name: str) -> ModuleType:
    """A module of torchvision or timm, or of anything else; ImportError where it is not installed."""
    if name.split(".")[0] in ("torchvision", "timm"):
        _torchvision()
    return importlib.import_module(name)


@cache
def _torchvision() -> Any:
    """Make torchvision importable; what is returned must stay alive, since the declarations go with it."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    else:
        return None
    for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
        del sys.modules[module]  # half imported
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in _OPERATORS:
        library.define(operator + _SIGNATURE)
    importlib.import_module("torchvision")
    return library
