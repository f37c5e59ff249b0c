"""The names other people's code relies on: each importable from its one place, and from no other."""

from __future__ import annotations

from importlib import import_module

import pytest

# Grows with the package, and never shrinks.
PUBLIC: tuple[tuple[str, str], ...] = (
    ("vitlab", "__version__"),
    ("vitlab.config", "variant"),
    ("vitlab.config", "recipe"),
    ("vitlab.config", "Wish"),
    ("vitlab.config", "DataFacts"),
    ("vitlab.model", "build"),
    ("vitlab.model", "Record"),
    ("vitlab.checkpoint", "load"),
    ("vitlab.checkpoint", "save"),
    ("vitlab.checkpoint", "convert"),
    ("vitlab.checkpoint", "describe"),
    ("vitlab.predict", "Predictor"),
    ("vitlab.train", "train"),
    ("vitlab.inspect.distance", "attention_distance"),
    ("vitlab.inspect.rollout", "rollout"),
    ("vitlab.inspect.attention", "class_attention"),
    ("vitlab.inspect.attention", "query_attention"),
    ("vitlab.inspect.relevance", "relevance"),
    ("vitlab.inspect.filters", "principal_filters"),
    ("vitlab.inspect.positions", "position_similarity"),
    ("vitlab.inspect.features", "token_pca"),
    ("vitlab.inspect.occlusion", "occlusion"),
    ("vitlab.inspect.figure", "Style"),
    ("vitlab.inspect.paint", "overlay"),
    ("vitlab.inspect.pictures", "see"),
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


@pytest.mark.parametrize("package", ["vitlab.config", "vitlab.model", "vitlab.checkpoint", "vitlab.predict", "vitlab.train"])
def test_a_package_exports_what_it_lists_and_lists_what_is_public(package: str) -> None:
    module = import_module(package)
    assert {name for place, name in PUBLIC if place == package} <= set(module.__all__)
    for name in module.__all__:
        getattr(module, name)
