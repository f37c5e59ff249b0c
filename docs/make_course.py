"""The course as notebooks, and its figures: `python -m docs.make_course notebooks` and `python -m docs.make_course figures`.

A lesson is a Markdown page of `docs/course`. Its blocks are run by the tests of all documents; the notebook has the same blocks as
cells. `![...](../images/course/NAME.png)` shows the file NAME.png that a block of the page writes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.contract.documents import RUN_LANGUAGES, Block, Reader, blocks_of

CHECKOUT = Path(__file__).resolve().parent.parent
COURSE = CHECKOUT / "docs" / "course"
FIGURES = CHECKOUT / "docs" / "images" / "course"
NOTEBOOKS = CHECKOUT / "build" / "notebooks"
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FIGURE = re.compile(r"\]\(\.\./images/course/([^)\s]+)\)")


def lessons() -> list[Path]:
    """The pages of the course that have blocks to run, in order."""
    return sorted(COURSE.glob("[0-9]-*.md"))


def figures_of(page: Path) -> list[str]:
    """The names of the figures that a lesson shows and its own blocks draw."""
    return _FIGURE.findall(page.read_text(encoding="utf-8"))


def notebook(page: Path, folder: Path) -> dict[str, Any]:
    """The lesson as a notebook (nbformat 4.5) that is to stand in `folder`."""
    lines = page.read_text(encoding="utf-8").splitlines()
    cells: list[dict[str, Any]] = []
    begun = 0

    def say(end: int) -> None:
        text = "\n".join(lines[begun:end]).strip()
        if text:
            cells.append(_cell("markdown", _LINK.sub(lambda link: _moved(link, page, folder), text)))

    for block in blocks_of(page):
        runs, output = _runs(block), block.says.startswith("output")
        if runs or output:
            say(block.line - 1 - (1 if block.says else 0))
            begun = block.line + block.text.count("\n") + 1
        if runs:
            text = block.text if block.language == "python" else f"%%bash\n{block.text}"
            cells.append(_cell("code", text.rstrip("\n")))
    say(len(lines))
    for number, cell in enumerate(cells):
        cell["id"] = f"{page.stem[:40]}-{number}"  # not random: the same page gives the same file
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def write_notebooks(folder: Path) -> list[Path]:
    """Write every lesson into `folder`, with the figures it shows."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for page in lessons():
        written.append(folder / f"{page.stem}.ipynb")
        written[-1].write_text(json.dumps(notebook(page, folder), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        for name in figures_of(page):
            shutil.copy(FIGURES / name, folder / name)
    return written


def draw_figures(folder: Path) -> list[Path]:
    """Run every lesson, and write the figures that its blocks draw into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for page in lessons():
        with tempfile.TemporaryDirectory() as place:
            reader = Reader(checkout=CHECKOUT, folder=Path(place))
            for block in blocks_of(page):
                reader.run(block)
            drawn += [Path(shutil.copy(Path(place, name), folder / name)) for name in figures_of(page)]
    return drawn


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": text}
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell


def _runs(block: Block) -> bool:
    return block.language in RUN_LANGUAGES and not block.says.startswith("not run")


def _moved(link: re.Match[str], page: Path, folder: Path) -> str:
    """A link of the page, as it reads in a notebook in `folder`: figures and other lessons stand beside it."""
    target = (page.parent / link[2]).resolve()
    if re.match(r"[a-z]+:", link[2]):
        place = link[2]
    elif target.parent == FIGURES:
        place = target.name
    elif target in lessons():
        place = f"{target.stem}.ipynb"
    else:
        place = Path(os.path.relpath(target, folder.resolve())).as_posix()
    return f"{link[1]}{place}{link[3] or ''}{link[4]}"


def main() -> None:
    """Write what the command line asks for, and print the files."""
    parser = argparse.ArgumentParser(description="Write the course's notebooks, or draw its figures by running its lessons.")
    parser.add_argument("what", choices=("notebooks", "figures"))
    parser.add_argument("--out", type=Path, help="folder (default: build/notebooks, or docs/images/course)")
    asked = parser.parse_args()
    made = write_notebooks(asked.out or NOTEBOOKS) if asked.what == "notebooks" else draw_figures(asked.out or FIGURES)
    print("\n".join(map(str, made)))


if __name__ == "__main__":
    main()
