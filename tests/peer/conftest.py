"""The peers themselves: each a fixture, and where it is not installed its tests are skipped."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType

import pytest

from benchmarks.peers import peer

PEERS = ("flax", "jax", "timm", "torchvision", "transformers")


def installed(name: str) -> ModuleType:
    """The peer's module, or a skip that names it or the peer it stands on; one that is there and broken is an error."""
    try:
        return peer(name)
    except ModuleNotFoundError as error:
        if error.name not in PEERS:
            raise
        pytest.skip(f"{error.name} is not installed")


@pytest.fixture(scope="session")
def timm() -> ModuleType:
    """PyTorch Image Models."""
    return installed("timm")


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """Hugging Face transformers."""
    with suppress(ImportError):
        peer("torchvision")  # where it is there, transformers imports it, and it has to be made importable first
    module = installed("transformers")
    module.logging.set_verbosity_error()
    return module


@pytest.fixture(scope="session")
def vision_transformer() -> ModuleType:
    """torchvision's module of Vision Transformers."""
    return installed("torchvision.models.vision_transformer")
