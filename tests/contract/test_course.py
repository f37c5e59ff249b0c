"""The course: its notebooks have the code of its pages, and its figures are those that its pages draw.

The blocks of the pages are run by test_documents.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from docs.make_course import FIGURES, figures_of, lessons, notebook, write_notebooks
from tests.contract.documents import blocks_of

LESSONS = pytest.mark.parametrize("page", lessons(), ids=lambda page: page.stem)


def _text(made: dict[str, Any]) -> str:
    return "\n".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")


def test_there_are_six_lessons() -> None:
    assert [page.stem[0] for page in lessons()] == list("123456")


@LESSONS
def test_a_notebook_has_the_blocks_of_its_page_in_order(page: Path, tmp_path: Path) -> None:
    run = [block for block in blocks_of(page) if block.language in ("python", "bash") and not block.says.startswith("not run")]
    expected = [block.text if block.language == "python" else f"%%bash\n{block.text}" for block in run]
    found = [cell["source"] for cell in notebook(page, tmp_path)["cells"] if cell["cell_type"] == "code"]
    assert len(found) > 5
    assert found == [text.rstrip("\n") for text in expected]


@LESSONS
def test_a_notebook_has_the_text_of_its_page_without_the_outputs(page: Path, tmp_path: Path) -> None:
    text = _text(notebook(page, tmp_path))
    headings = re.findall(r"^#+ .*$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL), re.MULTILINE)
    assert re.findall(r"^#+ .*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE) == headings
    assert "<!-- output -->" not in text
    assert {"## Exercises"} <= set(headings)
    assert "**Answers.**" in text


def test_written_notebooks_are_valid_and_their_links_lead_to_files(tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    files = write_notebooks(folder)
    assert [file.stem for file in files] == [page.stem for page in lessons()]
    for file in files:
        made = json.loads(file.read_text(encoding="utf-8"))
        nbformat.validate(made)
        links = [link for link in re.findall(r"\]\(([^)\s#]+)", _text(made)) if not re.match(r"[a-z]+:", link)]
        assert [link for link in links if not (folder / link).exists()] == []


def test_the_same_page_gives_the_same_file(tmp_path: Path) -> None:
    first, second = (write_notebooks(tmp_path / name) for name in ("first", "second"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_every_figure_of_the_course_is_shown_and_small() -> None:
    shown = [name for page in lessons() for name in figures_of(page)]
    assert sorted(shown) == sorted(file.name for file in FIGURES.iterdir())
    assert [name for name in shown if (FIGURES / name).stat().st_size > 100_000] == []


def test_every_equation_of_the_paper_is_in_a_lesson() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in lessons())
    assert [number for number in range(1, 9) if not re.search(rf"^.*equation {number}\b", text, re.MULTILINE)] == []
