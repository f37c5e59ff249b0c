"""What a weights file holds, whatever its container: named tensors and the texts beside them. Nothing here knows a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vitlab.config.text import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """The content of a file or folder as found, names and dtypes unchanged.

    `tensors` are on the CPU, contiguous, each with memory of its own (or all on the meta device when only the headers were read).
    `metadata` is the text of a safetensors header, else empty. `sidecar` is the parsed config.json and `preprocessor` the
    preprocessor_config.json of the same folder, where there is one. `notes` says what was chosen or left aside in reading.
    """

    path: Path
    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str]
    sidecar: dict[str, Json] | None = None
    preprocessor: dict[str, Json] | None = None
    notes: tuple[str, ...] = ()
