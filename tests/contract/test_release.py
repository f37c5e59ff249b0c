"""What a release says in several places is the same in all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import vitlab

IMPORTED = dict.fromkeys(("mlflow_skinny", "sqlalchemy", "alembic"), "mlflow")  # MLflow's store needs all three


def test_package_citation_and_changelog_have_one_version(checkout: Path) -> None:
    citation = re.search(r"^version: (.+)$", (checkout / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    changelog = re.search(r"^## \[(.+?)\]", (checkout / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert citation is not None
    assert changelog is not None
    assert vitlab.__version__ == citation[1] == changelog[1]


def test_every_extra_that_users_install_is_part_of_all(checkout: Path) -> None:
    extras = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(re.findall(r"[\w-]+", everything)) - {"vitlab"} == set(extras) - {"all", "dev", "docs"}


def test_every_extra_that_users_install_is_used_by_the_package(checkout: Path) -> None:
    extras = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    package = "".join(path.read_text(encoding="utf-8") for path in (checkout / "src" / "vitlab").rglob("*.py"))
    for extra in set(extras) - {"all", "dev", "docs"}:
        names = {re.split(r"[\[><=]", word)[0].replace("-", "_") for word in extras[extra]} - {"vitlab"}
        assert [name for name in names if not re.search(rf"\b{IMPORTED.get(name, name)}\b", package)] == [], extra


def test_every_version_that_is_installed_for_the_tests_is_pinned(checkout: Path) -> None:
    """A requirement without a pin would bring another version to every machine."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = {line.split("==")[0] for line in (checkout / "constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line}
    wanted = [*project["dependencies"], *(word for words in project["optional-dependencies"].values() for word in words)]
    names = {re.split(r"[\[><=;, ]", word)[0] for word in wanted} - {"vitlab", "huggingface_hub"}  # the tests do without the hub
    assert {name.lower().replace("-", "_") for name in names} <= {pin.lower().replace("-", "_") for pin in pins}
