"""Bytes on disk <-> named tensors. Nothing here knows a model; nothing here runs what a file says."""

from vitlab.checkpoint.files.npz import write_npz
from vitlab.checkpoint.files.raw import RawFile
from vitlab.checkpoint.files.read import read_file
from vitlab.checkpoint.files.safetensors_file import write_safetensors

__all__ = ["RawFile", "read_file", "write_npz", "write_safetensors"]
