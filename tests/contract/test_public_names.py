"""The names other people's code relies on: each importable from its one place, and from no other."""

from __future__ import annotations

from importlib import import_module

import pytest

# Grows with the package, and never shrinks.
PUBLIC: tuple[tuple[str, str], ...] = (
    ("vitlab", "__version__"),
    ("vitlab.config", "variant"),
    ("vitlab.config", "recipe"),
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
    ("vitlab.interpretation.images", "see"),
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


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, name in PUBLIC if module != "vitlab"])
def test_a_public_name_has_one_import_path(module: str, name: str) -> None:
    here = getattr(import_module(module), name)
    assert vars(import_module("vitlab")).get(name) is not here, f"vitlab.{name} beside {module}.{name}"


@pytest.mark.parametrize("package", ["vitlab.config", "vitlab.models", "vitlab.checkpoints", "vitlab.inference", "vitlab.training"])
def test_a_package_exports_what_it_lists_and_lists_what_is_public(package: str) -> None:
    module = import_module(package)
    assert {name for place, name in PUBLIC if place == package} <= set(module.__all__)
    for name in module.__all__:
        getattr(module, name)
