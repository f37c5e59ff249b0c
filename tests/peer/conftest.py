"""The peers as fixtures. A test is skipped where its peer is not installed: `make test-peer` installs all of them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.peers import PEERS, peer

HERE = Path(__file__).resolve().parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder `peer`, before `-m peer` selects."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.peer)


def installed(name: str) -> ModuleType:
    """Import a module of a peer, or skip the test where that peer is not installed; an installed one that is broken is an error."""
    try:
        return peer(name)
    except ModuleNotFoundError as error:
        if error.name not in PEERS:
            raise
        pytest.skip(f"{error.name} is not installed: run make test-peer")


@pytest.fixture(scope="session")
def timm() -> ModuleType:
    """PyTorch Image Models."""
    return installed("timm")


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """Hugging Face transformers."""
    module = installed("transformers")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


@pytest.fixture(scope="session")
def torchvision_models() -> ModuleType:
    """torchvision's models."""
    return installed("torchvision.models")


@pytest.fixture(scope="session")
def vision_transformer() -> ModuleType:
    """torchvision's Vision Transformers."""
    return installed("torchvision.models.vision_transformer")


@pytest.fixture(scope="session")
def v2() -> ModuleType:
    """torchvision's transforms."""
    return installed("torchvision.transforms.v2")


@pytest.fixture(scope="session")
def flax() -> ModuleType:
    """Flax's layers."""
    return installed("flax.linen")


@pytest.fixture(scope="session")
def coco_mask() -> ModuleType:
    """pycocotools' masks."""
    return installed("pycocotools.mask")
