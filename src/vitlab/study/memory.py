"""Memory as the system counts it: what a process that builds a model and runs one picture has in its worst moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.config.model import ModelConfig
from vitlab.config.text import from_text, to_text
from vitlab.data.care.progress import Tell, silent

_STATUS = Path("/proc/self/status")
_MOST = "VmHWM:"  # the most memory resident at once since the program began, in kB
_PATIENCE = 600.0  # seconds for one model
_CHILD = "from vitlab.study.memory import tell_peak; tell_peak()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Bytes that one model took, or None and why they are not known."""

    bytes: int | None
    why: str = ""


def peaks(configs: Sequence[ModelConfig], *, tell: Tell = silent) -> list[Peak]:
    """For each model the peak of a process that builds it and runs one picture, less that of one that only imports what is needed.

    In float32, with random values; what PyTorch keeps for itself besides weights and activations is part of it.
    """
    if not _STATUS.is_file():
        return [Peak(bytes=None, why=f"this system has no {_STATUS}") for _ in configs]
    tell("memory", 0, len(configs))
    empty, found = _asked(""), list[Peak]()
    for place, config in enumerate(configs):
        whole = empty if empty.bytes is None else _asked(to_text(config))
        known = whole.bytes is not None and empty.bytes is not None
        found.append(Peak(bytes=max(0, whole.bytes - empty.bytes)) if known else whole)  # type: ignore[operator]
        tell("memory", place + 1, len(configs))
    return found


def tell_peak() -> None:
    """The child: build the model of stdin, if there is one, run a picture, and print how many kB the process had at most."""
    text = sys.stdin.read()
    import torch

    from vitlab.model.assemble import build
    from vitlab.model.vit import ViT

    if text:
        config: ModelConfig = from_text(ModelConfig, text)  # type: ignore[arg-type]
        model = build(config).eval()
        if isinstance(model, ViT):
            model.lean = True  # as when it predicts
        with torch.inference_mode():
            model(torch.zeros(1, config.channels, *config.image_size))
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(_MOST))
    print(line.split()[1])


def _asked(text: str) -> Peak:
    """What a child process says for this config."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _CHILD], input=text, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return Peak(bytes=None, why=f"the process took more than {_PATIENCE:.0f} seconds")
    if ended.returncode:
        last = ended.stderr.strip().rpartition("\n")[2][:200]
        died = f"died of signal {-ended.returncode}: too little memory?" if ended.returncode < 0 else f"failed: {last}"
        return Peak(bytes=None, why=f"the process {died}")
    return Peak(bytes=1024 * int(ended.stdout))
