"""The names other people's code relies on: the front door, and what each package exports."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from importlib import import_module
from types import ModuleType

import pytest

import vitlab
from tests import processes
from vitlab.cli.main import VERBS

# Grows with the package, and never shrinks.
PUBLIC: tuple[tuple[str, str], ...] = (
    ("vitlab", "__version__"),
    ("vitlab.config", "variant"),
    ("vitlab.recipes", "recipe"),
    ("vitlab.config", "Overrides"),
    ("vitlab.config", "DataFacts"),
    ("vitlab.models", "build"),
    ("vitlab.models", "Record"),
    ("vitlab.checkpoints", "load"),
    ("vitlab.checkpoints", "save"),
    ("vitlab.checkpoints", "convert"),
    ("vitlab.checkpoints", "describe"),
    ("vitlab.inference", "Predictor"),
    ("vitlab.training", "train"),
    ("vitlab.interpretation.attention", "attention_distance"),
    ("vitlab.interpretation.attention", "rollout"),
    ("vitlab.interpretation.attention", "class_attention"),
    ("vitlab.interpretation.attention", "query_attention"),
    ("vitlab.interpretation.attention", "relevance"),
    ("vitlab.interpretation.weights", "principal_filters"),
    ("vitlab.interpretation.weights", "position_similarity"),
    ("vitlab.interpretation.features", "token_pca"),
    ("vitlab.interpretation.occlusion", "occlusion"),
    ("vitlab.interpretation.drawing", "Style"),
    ("vitlab.interpretation.paint", "overlay"),
    ("vitlab.interpretation.figures", "model_images"),
    ("vitlab.cli.main", "main"),
    ("vitlab.errors", "VitlabError"),
    ("vitlab.errors", "ConfigError"),
    ("vitlab.errors", "DataError"),
    ("vitlab.errors", "CheckpointError"),
    ("vitlab.errors", "TrainingError"),
)


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_a_public_name_is_where_it_was_promised(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


SUBMODULES = sorted(module.name for module in pkgutil.iter_modules(vitlab.__path__, "vitlab.") if module.name != "vitlab.__main__")


def test_the_front_door_lists_its_names_and_has_them_all() -> None:
    assert {*vitlab.__all__} <= {*dir(vitlab)}
    for name in vitlab.__all__:
        assert getattr(vitlab, name) is getattr(vitlab, name)
    with pytest.raises(AttributeError, match="no attribute 'predictt'"):
        getattr(vitlab, "predictt")  # noqa: B009 (mypy knows that there is none)


def test_a_verb_is_the_same_function_in_both_doors() -> None:
    for verb, function in VERBS.items():
        assert inspect.unwrap(getattr(vitlab, function.__name__)) is inspect.unwrap(function), verb


@pytest.mark.parametrize("module", SUBMODULES)
def test_importing_a_package_hides_no_name_of_the_front_door(module: str) -> None:
    import_module(module)
    assert module.removeprefix("vitlab.") not in {*vitlab.__all__} - {"errors"}
    for name in vitlab.__all__:
        assert isinstance(getattr(vitlab, name), ModuleType) == (name == "errors")


def test_importing_training_first_leaves_train_a_function() -> None:
    lines = [
        "import vitlab.training",
        "import vitlab.evaluation.evaluation",
        "import vitlab",
        "print(vitlab.train, vitlab.evaluate)",
    ]
    printed = processes.run([sys.executable, "-c", "\n".join(lines)]).stdout
    assert printed.count("<function") == 2


def test_type_checkers_see_every_name() -> None:
    source = inspect.getsource(vitlab)
    assert [name for name in vitlab.__all__ if f" as {name}\n" not in source] == []


@pytest.mark.parametrize("package", ["vitlab.config", "vitlab.models", "vitlab.checkpoints", "vitlab.inference", "vitlab.training"])
def test_a_package_exports_what_it_lists_and_lists_what_is_public(package: str) -> None:
    module = import_module(package)
    assert {name for place, name in PUBLIC if place == package} <= set(module.__all__)
    for name in module.__all__:
        getattr(module, name)
