"""Imports of packages that only some features need. Each belongs to an extra of vitlab."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vitlab.errors import ConfigError, VitlabError

EXTRAS: dict[str, str] = {
    "h5py": "hdf5",
    "huggingface_hub": "hub",
    "matplotlib": "figures",
    "nncf": "int8",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "openvino": "openvino",
    "pyarrow": "parquet",
    "simplejpeg": "jpeg",
    "tensorboard": "track",
}
"""Package -> the extra that installs it."""


def optional_import(module: str, *, purpose: str, error: type[VitlabError] = ConfigError) -> Any:
    """The module, for example `pyarrow.parquet`; an `error` with `pip install 'vitlab[extra]'` if its package is missing.

    `purpose` begins the message: "Parquet files", "figures".
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != package:
            raise  # the package is there, but something that it needs is not
        raise error(
            f"{purpose} need {package}, which is not installed", hint=f"pip install 'vitlab[{EXTRAS[package]}]'"
        ) from missing
