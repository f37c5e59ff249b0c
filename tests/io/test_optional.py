"""A missing package is named together with the extra that installs it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from vitlab.errors import ConfigError, DataError
from vitlab.io.optional import EXTRAS, optional_import


def test_a_package_that_is_installed_is_returned() -> None:
    assert optional_import("pyarrow.parquet", purpose="Parquet files").ParquetFile


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "vitlab_missing", "rare")
    with pytest.raises(DataError, match="rare files need vitlab_missing") as caught:
        optional_import("vitlab_missing.inner", purpose="rare files", error=DataError)
    assert caught.value.hint == "pip install 'vitlab[rare]'"


def test_a_package_whose_own_dependency_is_missing_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vitlab_broken.py").write_text("import vitlab_absent_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="vitlab_absent_dependency"):
        optional_import("vitlab_broken", purpose="broken files", error=ConfigError)


def test_every_extra_exists_and_installs_its_package(checkout: Path) -> None:
    extras = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(entry.replace("-", "_").startswith(package) for entry in extras[extra]), (package, extra)
