"""What every test may ask for: the checkout, and the real pictures and weights that can stand beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before torch is imported anywhere: tests run in several processes, and threads beside them would only contend.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
# Some virtual machines announce AMX and then fault on it (illegal instruction in bfloat16 products): stop one step below.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

CHECKOUT = Path(__file__).resolve().parent.parent


def real_data() -> Path:
    """The folder of real pictures and weights: $VITLAB_DATA, else ../shared/data beside the checkout; without it, skip.

    A test that calls this is marked `data`.
    """
    folder = Path(os.environ.get("VITLAB_DATA") or CHECKOUT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("no real data: set VITLAB_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the repository."""
    return CHECKOUT


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real pictures and weights; the test is skipped where there is none."""
    return real_data()
