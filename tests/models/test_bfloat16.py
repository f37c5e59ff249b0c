"""A CPU that announces instructions it cannot run is found out in a child process, not by the death of the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import processes
from tests.training.small import run_to, small_run
from vitlab.errors import TrainingError
from vitlab.models import device
from vitlab.models.device import bfloat16_trouble, has_fast_bfloat16
from vitlab.training import setup


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What was found out in another test does not count."""
    bfloat16_trouble.cache_clear()
    yield
    bfloat16_trouble.cache_clear()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("trial", "said"),
    [
        ("import os; os.kill(os.getpid(), 4)", "died of SIGILL: the CPU announces instructions that it does not support"),
        ("import os; os.kill(os.getpid(), 11)", "died of SIGSEGV"),
        ("raise SystemError('no primitive')", "failed: SystemError: no primitive"),
    ],
)
def test_a_failed_trial_is_reported_by_its_cause(trial: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_TRIAL", trial)
    assert bfloat16_trouble() == f"a trial of it {said}"


def test_a_trial_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_TRIAL", "import time; time.sleep(60)")
    monkeypatch.setattr(device, "_TIMEOUT", 0.2)
    assert "did not end" in (bfloat16_trouble() or "")


def test_it_is_tried_once_in_the_life_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_TRIAL", "pass")
    assert bfloat16_trouble() is None
    monkeypatch.setattr(device, "_TRIAL", "raise SystemError")
    assert bfloat16_trouble() is None


def test_the_trial_finds_what_the_products_of_a_model_find() -> None:
    """The trial itself, in this environment, ends as a product of bfloat16 matrices does."""
    product = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    ended = processes.run([sys.executable, "-c", product], check=False)
    assert (bfloat16_trouble() is None) == (ended.returncode == 0)


def test_a_run_in_bfloat16_is_refused_before_it_dies_with_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "_TRIAL", "import os; os.kill(os.getpid(), 4)")
    monkeypatch.setattr(setup, "announces_amx", lambda: True)
    run = small_run(steps=5)
    half = replace(run, train=replace(run.train, precision="bfloat16"))
    with pytest.raises(TrainingError, match="SIGILL") as raised:
        run_to(half, tmp_path / "run")
    assert raised.value.hint is not None
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in raised.value.hint
    assert "float32" in raised.value.hint
    run_to(run, tmp_path / "full", stop=1)  # float32 is not asked about


def test_a_cpu_whose_trial_fails_is_not_called_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(device, "announces_amx", lambda: True)
    monkeypatch.setattr(device, "_TRIAL", "raise SystemError")
    assert not has_fast_bfloat16()
    monkeypatch.setattr(device, "announces_amx", lambda: False)  # then nothing is tried
    assert has_fast_bfloat16()
