"""One bit of a tensor in a .pt file changes: vitlab refuses the file by the checksum (CRC-32) of its zip archive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vitlab.checkpoints.containers import read_file
from vitlab.errors import CheckpointError


def test_a_flipped_bit_of_a_tensor_or_of_the_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"weight": torch.arange(1000.0), "bias": torch.ones(3)}, path)
    whole = path.read_bytes()
    for place in (whole.index(np.float32(500).tobytes()) + 1, whole.index(b"weight") + 2, whole.index(b"FloatStorage") + 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="CRC-32"):
            read_file(path)
    path.write_bytes(whole)
    assert read_file(path).tensors["weight"][500] == 500


def test_what_is_left_aside_is_not_read(tmp_path: Path) -> None:
    """The optimiser's state is no part of the model; it is neither loaded nor checked."""
    path = tmp_path / "model.pt"
    torch.save({"model": {"weight": torch.ones(4)}, "optimizer": {"state": [torch.full((1000,), 7.5)]}}, path)
    whole = bytearray(path.read_bytes())
    whole[whole.index(np.float32(7.5).tobytes() * 9) + 100] ^= 1
    path.write_bytes(whole)
    assert torch.equal(read_file(path).tensors["weight"], torch.ones(4))
