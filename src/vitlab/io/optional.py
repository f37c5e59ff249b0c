"""Imports of packages that only some features need. Each belongs to an extra of vitlab.

They are imported without their telemetry: nothing that vitlab starts uses the network unless the user asks for it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from vitlab.errors import ConfigError, VitlabError

EXTRAS: dict[str, str] = {
    "fsspec": "cloud",
    "h5py": "hdf5",
    "httptools": "serve",
    "huggingface_hub": "hub",
    "matplotlib": "figures",
    "mlflow": "mlflow",
    "nncf": "int8",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "openvino": "openvino",
    "prometheus_client": "serve",
    "pyarrow": "parquet",
    "pydicom": "dicom",
    "python_multipart": "serve",
    "ray": "ray",
    "s3fs": "cloud",
    "scipy": "detect",
    "simplejpeg": "jpeg",
    "starlette": "serve",
    "tensorboard": "track",
    "tifffile": "tiff",
    "wandb": "wandb",
    "uvicorn": "serve",
}
"""Package -> the extra that installs it."""


def optional_import(module: str, *, purpose: str, error: type[VitlabError] = ConfigError) -> Any:
    """The module, for example `pyarrow.parquet`; an `error` with `pip install 'vitlab[extra]'` if its package is missing.

    `purpose` begins the message: "Parquet files", "figures".
    """
    package = module.partition(".")[0]
    disable_telemetry()
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != package:
            raise  # the package is there, but something that it needs is not
        raise error(
            f"{purpose} need {package}, which is not installed", hint=f"pip install 'vitlab[{EXTRAS[package]}]'"
        ) from missing


def disable_telemetry() -> None:
    """Keep libraries that are imported from now on from reporting their use and from writing an identifier of this machine.

    ONNX Runtime reads the variable when it is imported, also in child processes; a user may set it. OpenVINO and NNCF report
    through a package of their own, and work without it.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    sys.modules.setdefault("openvino_telemetry", cast(ModuleType, None))  # None: an import of it fails
