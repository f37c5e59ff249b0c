"""Files of named tensors: .safetensors, .npz and torch's. Nothing here knows a model, and nothing in a file is executed."""

from vitlab.checkpoints.containers.read import RawFile, read_file, write_npz
from vitlab.checkpoints.containers.safetensors_file import write_safetensors
from vitlab.checkpoints.containers.torch_file import write_torch

__all__ = ["RawFile", "read_file", "write_npz", "write_safetensors", "write_torch"]
