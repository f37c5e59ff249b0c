"""What every test may ask for: the checkout, and the real images and weights that can stand beside it. And what holds for every
session: default signal handlers, and no process left behind."""

from __future__ import annotations

import copy
import functools
import gc
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import processes
from tests.warm import warm_commands
from vitlab.io.optional import disable_telemetry

# Before torch is imported anywhere: tests run in several processes, and threads beside them would only contend.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
# Some virtual machines announce AMX and then fault on it (illegal instruction in bfloat16 products): stop one step below.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

disable_telemetry()  # of the libraries that tests import themselves

# A test bounds no time by the clock.
settings.register_profile("vitlab", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vitlab")

CHECKOUT = Path(__file__).resolve().parent.parent
_SESSION = "VITLAB_TEST_SESSION"  # in the environment of every process of one session
# The files that take the processor longest, from more than a minute to ten seconds. The others take less.
LONGEST = (
    "contract/test_documents.py",
    "exporters/test_export.py",
    "models/test_contract.py",
    "e2e/test_families_verbs.py",
    "inference/test_backends.py",
    "models/test_cost.py",
    "training/test_distributed.py",
    "faults/test_02_sigkill.py",
    "training/test_variants.py",
    "data/test_worker_faults.py",
    "studies/test_studies.py",
    "e2e/test_detection.py",
    "e2e/test_segmentation.py",
    "studies/test_noisy_student.py",
    "e2e/test_train_kill_resume.py",
    "api/test_front_door.py",
)
_PATIENCE = 30.0  # seconds that a process has to end after the last test


def real_data() -> Path:
    """The folder of real images and weights: $VITLAB_DATA, else ../shared/data beside the checkout; without it, skip.

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
    """The folder of real images and weights; the test is skipped where there is none."""
    return real_data()


def pytest_configure(config: pytest.Config) -> None:
    """Mark the processes of this session, which workers of pytest-xdist and all children inherit."""
    if not hasattr(config, "workerinput"):
        os.environ[_SESSION] = uuid.uuid4().hex


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that at the end no process of several is left alone with one."""
    place = {CHECKOUT / "tests" / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish() -> None:
    """The garbage collector skips what exists before the first test, and runs less often. It saves a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


@pytest.hookimpl(trylast=True)  # after pytest-xdist has ended its workers
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A session that leaves a process behind fails, and the process is ended."""
    if hasattr(session.config, "workerinput") or not Path("/proc/self/environ").exists():
        return
    left: dict[int, str] = {}

    def none_left() -> bool:
        left.clear()
        left.update(processes.with_environment(_SESSION, os.environ[_SESSION]))
        return not left

    try:
        processes.eventually(none_left, limit=_PATIENCE)
    except AssertionError:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for pid, command in left.items():
            print(f"\nerror: the tests left a process behind: {pid} {command}")
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def onnx_operators() -> Iterator[None]:
    """One table of torch's ONNX operators for all conversions: torch makes it anew for each, half of a small model's time."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:  # it is not a public name
        yield
        return
    made = functools.cache(ONNXRegistry.from_torchlib)

    def copied(*words: Any, **names: Any) -> ONNXRegistry:
        table = copy.copy(made(*words, **names))
        table.functions = {target: list(found) for target, found in table.functions.items()}
        return table

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(copied))
        yield


@pytest.fixture(scope="session")
def warm() -> Iterator[Path]:
    """The folder of a `python` and a `vitlab` that need not import torch at every start; see warm.py."""
    with warm_commands() as path:
        yield path


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> None:
    """Signals as in the foreground of a terminal: `nohup` and background jobs start with SIGINT ignored, which children inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
