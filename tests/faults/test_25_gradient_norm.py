"""The loss is finite and a gradient is not: the step is skipped and counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.faults.runs import whole_batches
from tests.training.small import last, run_to, small_run
from vitlab.training.events import Skipped


def test_a_gradient_that_is_not_finite_is_not_applied_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = whole_batches(small_run(steps=5))
    real = nn.utils.clip_grad_norm_
    count = iter(range(100))

    def norm(parameters: list[nn.Parameter], limit: float, *, foreach: bool) -> Tensor:
        if next(count) == 1:
            next(iter(parameters)).grad.fill_(torch.inf)  # type: ignore[union-attr]
        return real(parameters, limit, foreach=foreach)

    monkeypatch.setattr(nn.utils, "clip_grad_norm_", norm)
    events = run_to(run, tmp_path / "run")
    (skipped,) = [event for event in events if isinstance(event, Skipped)]
    assert skipped.step == 2
    assert "gradient" in skipped.reason
    assert all(tensor.isfinite().all() for tensor in last(tmp_path / "run").model.values())
