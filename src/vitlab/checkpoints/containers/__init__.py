"""Bytes on disk <-> named tensors. Nothing here knows a model; nothing here runs what a file says."""

from vitlab.checkpoints.containers.npz import write_npz
from vitlab.checkpoints.containers.read import RawFile, read_file
from vitlab.checkpoints.containers.safetensors_file import write_safetensors

__all__ = ["RawFile", "read_file", "write_npz", "write_safetensors"]
