"""Import the libraries that vitlab is compared with: in benchmarks, and in the tests that take them as reference.

`python -m benchmarks.peers` imports every one and prints its version; it fails if one is missing.

torchvision's wheel does not import beside a CPU-only torch: it asks for two operators that only its compiled half defines.
Declaring them without a body is enough for everything but detection.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

PEERS = ("timm", "torchvision", "transformers", "jax", "flax", "huggingface_hub", "pycocotools")

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def peer(name: str) -> ModuleType:
    """Import a module of a peer, such as `timm` or `torchvision.transforms.v2`; ModuleNotFoundError if it is not installed."""
    package = name.split(".")[0]
    if package in ("torchvision", "timm") or (package == "transformers" and find_spec("torchvision")):
        _torchvision()  # timm imports it, and so does transformers where it is installed
    return importlib.import_module(name)


@cache
def _torchvision() -> Any:
    """Make torchvision importable. The returned library must stay alive: its declarations go when it goes."""
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


if __name__ == "__main__":
    for package in PEERS:
        peer(package)
    print("peers: " + ", ".join(f"{package} {version(package)}" for package in ("torch", *PEERS)))
