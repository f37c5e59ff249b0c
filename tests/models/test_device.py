"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from vitlab.errors import ConfigError
from vitlab.models.device import resolve_device


def test_auto_prefers_cuda_then_mps_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"cuda": True, "mps": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found["cuda"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: found["mps"])
    assert resolve_device("auto").type == "cuda"
    found["cuda"] = False
    assert resolve_device("auto").type == "mps"
    found["mps"] = False
    assert resolve_device("auto").type == "cpu"


def test_gpu_means_cuda_and_a_missing_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("gpu") == torch.device("cuda")
    with pytest.raises(ConfigError, match="1 CUDA"):
        resolve_device("cuda:3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA GPU"):
        resolve_device("gpu")


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="npu-of-mine") as refusal:
        resolve_device("npu-of-mine")
    assert "cpu" in str(refusal.value.hint)
