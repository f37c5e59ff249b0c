"""Which device a model runs on: `auto` takes the GPU if there is one."""

from __future__ import annotations

import torch

from vitlab.errors import ConfigError

_HINT = "use auto, cpu, cuda, cuda:1 or mps"


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """The device called `name`; `auto` is CUDA if there is one, else Apple's MPS, else the CPU; `gpu` means `cuda`."""
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device("cuda" if name == "gpu" else name)
    except RuntimeError:
        raise ConfigError(f"no device called {name!r}", hint=_HINT) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r}, but PyTorch finds no CUDA GPU on this machine", hint=_HINT)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={name!r}, but this machine has {torch.cuda.device_count()} CUDA GPUs", hint=_HINT)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device='mps', but PyTorch finds no Apple GPU on this machine", hint=_HINT)
    return device
