"""vitlab: the Vision Transformer as one Python library and one command line.

    import vitlab

    vitlab.predict("model.safetensors", "cat.jpg").top(5)
    run = vitlab.finetune("pets/", "deit_tiny.npz", epochs=5)

Every verb of the command line is a function here, with the same options. Names are imported when they are first used:
`import vitlab` takes milliseconds and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitlab import errors as errors
    from vitlab.api import bench as bench
    from vitlab.api import check_data as check_data
    from vitlab.api import convert as convert
    from vitlab.api import create_model as create_model
    from vitlab.api import describe as describe
    from vitlab.api import embed as embed
    from vitlab.api import evaluate as evaluate
    from vitlab.api import explore as explore
    from vitlab.api import export as export
    from vitlab.api import fetch_data as fetch_data
    from vitlab.api import finetune as finetune
    from vitlab.api import inspect as inspect
    from vitlab.api import list_data as list_data
    from vitlab.api import list_models as list_models
    from vitlab.api import pack_data as pack_data
    from vitlab.api import paper as paper
    from vitlab.api import plan as plan
    from vitlab.api import predict as predict
    from vitlab.api import pretrain as pretrain
    from vitlab.api import push as push
    from vitlab.api import quickstart as quickstart
    from vitlab.api import report as report
    from vitlab.api import serve as serve
    from vitlab.api import show_data as show_data
    from vitlab.api import similar as similar
    from vitlab.api import study_compare as study_compare
    from vitlab.api import study_noisy_student as study_noisy_student
    from vitlab.api import study_optimizer as study_optimizer
    from vitlab.api import study_positions as study_positions
    from vitlab.api import study_scaling as study_scaling
    from vitlab.api import study_self_supervision as study_self_supervision
    from vitlab.api import study_shape as study_shape
    from vitlab.api import study_transfer as study_transfer
    from vitlab.api import train as train
    from vitlab.api import watch as watch
    from vitlab.checkpoints import Checkpoint as Checkpoint
    from vitlab.checkpoints import load as load
    from vitlab.checkpoints import save as save
    from vitlab.config import Overrides as Overrides
    from vitlab.config import RunConfig as RunConfig
    from vitlab.data.opening import open_dataset as open_dataset
    from vitlab.errors import VitlabError as VitlabError
    from vitlab.inference import Predictor as Predictor
    from vitlab.models import Record as Record
    from vitlab.recipes import recipe as recipe
    from vitlab.training.run import Run as Run

__version__ = "0.2.0"

_API = (
    "bench", "check_data", "convert", "create_model", "describe", "embed", "evaluate", "explore", "export", "fetch_data",
    "finetune", "inspect", "list_data", "list_models", "pack_data", "paper", "predict", "pretrain", "quickstart", "report",
    "serve", "show_data", "similar", "study_compare", "study_noisy_student", "study_optimizer", "study_positions",
    "study_scaling", "study_self_supervision", "study_shape", "study_transfer", "train", "plan", "push", "watch",
)  # fmt: skip
_HOMES = dict.fromkeys(_API, "vitlab.api") | {
    "Checkpoint": "vitlab.checkpoints",
    "Overrides": "vitlab.config",
    "Predictor": "vitlab.inference",
    "Record": "vitlab.models",
    "Run": "vitlab.training.run",
    "RunConfig": "vitlab.config",
    "VitlabError": "vitlab.errors",
    "load": "vitlab.checkpoints",
    "open_dataset": "vitlab.data.opening",
    "recipe": "vitlab.recipes",
    "save": "vitlab.checkpoints",
}

__all__ = ["errors", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("vitlab.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'vitlab' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    if name in _API:
        value = import_module("vitlab.api").with_suggestions(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
