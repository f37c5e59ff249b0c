"""The documentation site is built strictly: what does not work on it is an error. `make check` builds the real one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import vitlab
from tests import processes

SOURCES = ("mkdocs.yml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "src", "examples")


def test_a_broken_link_or_anchor_and_a_list_that_is_not_rendered_fail_the_build(checkout: Path, tmp_path: Path) -> None:
    for name in SOURCES:
        path = checkout / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / name)
    faults = "\n[away](docs/nowhere.md) [here](docs/results.md#no-such-heading)\n- an item without an empty line before it\n"
    with (tmp_path / "README.md").open("a", encoding="utf-8") as readme:
        readme.write(faults)
    built = processes.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=tmp_path, check=False, env={"NO_MKDOCS_2_WARNING": "1"}
    )
    warnings = [line for line in built.stderr.splitlines() if line.startswith("WARNING") and "index.md" in line]
    assert built.returncode == 1
    for word in ("nowhere.md", "#no-such-heading", "not rendered as a list"):
        assert any(word in line for line in warnings), (word, built.stderr)


@pytest.mark.parametrize(
    "word", ["resume", "split", "learning rate", "GPU", "batch size", "pretrained", "label", "export", "notebook"]
)
def test_what_newcomers_type_into_the_search_is_in_the_headings_of_the_guides(word: str, checkout: Path) -> None:
    pages = [*(checkout / "docs" / "guides").glob("*.md"), *(checkout / "docs" / "course").glob("*.md")]
    headings = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert [line for line in headings if word.lower() in line.lower()]


def test_every_public_name_is_in_the_reference(checkout: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (checkout / "docs" / "reference").glob("*.md")]
    shown = {line.removeprefix("::: ") for page in pages for line in page.splitlines() if line.startswith("::: ")}
    assert {f"vitlab.{name}" for name in vitlab.__all__} - {"vitlab.VitlabError"} <= shown  # which stands at vitlab.errors
