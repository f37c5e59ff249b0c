"""Every command and every fenced block of the README and the docs does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.make_course import figures_of, lessons
from tests.conftest import CHECKOUT
from tests.contract.documents import DocumentError, Reader, blocks_of

DOCUMENTS = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("onnx_operators")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(CHECKOUT)))
def test_every_block_of_a_document_runs(document: Path, tmp_path: Path, warm: Path) -> None:
    reader = Reader(checkout=CHECKOUT, folder=tmp_path, path=[warm])
    for block in blocks_of(document):
        reader.run(block)
    if document in lessons():
        assert [name for name in figures_of(document) if not (tmp_path / name).is_file()] == []  # its own blocks draw them
    if document.name == "README.md":
        assert (tmp_path / "rollout.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "model.onnx").is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: str(file.relative_to(CHECKOUT)))
def test_every_link_of_a_document_leads_to_a_file(document: Path) -> None:
    text = re.sub(r"^( *)(`{3,}).*?^ *\2", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:|#", target)]
    missing = [target for target in links if not (document.parent / target.split("#")[0]).exists()]
    assert not missing


def test_the_readme_has_blocks_to_run() -> None:
    languages = {block.language for block in blocks_of(CHECKOUT / "README.md") if not block.says.startswith("not run")}
    assert {"bash", "python"} <= languages


def read(tmp_path: Path, text: str) -> list[bool]:
    """Follow a document of this text; for each block, whether there was something to do."""
    document = tmp_path / "page.md"
    document.write_text(text, encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    reader = Reader(checkout=CHECKOUT, folder=folder)
    return [reader.run(block) for block in blocks_of(document)]


def test_blocks_share_a_folder_and_a_namespace(tmp_path: Path) -> None:
    text = "```bash\necho 3 > number\n```\n```python\nfrom pathlib import Path\n```\n"
    text += "```python\nassert Path('number').read_text() == '3\\n'\n```\n"
    assert read(tmp_path, text) == [True, True, True]


def test_a_block_can_be_left_out_for_a_reason(tmp_path: Path) -> None:
    assert read(tmp_path, "<!-- not run: needs the network -->\n```bash\nfalse\n```\n") == [False]


def test_a_block_can_run_in_the_checkout(tmp_path: Path) -> None:
    assert read(tmp_path, "<!-- runs in: checkout -->\n```bash\ntest -f pyproject.toml\n```\n") == [True]


def test_output_is_compared_with_what_was_printed(tmp_path: Path) -> None:
    text = "```bash\necho one; echo took 0.3 s; echo two\n```\n<!-- output -->\n```text\none\ntook ... s\ntwo\n```\n"
    assert read(tmp_path, text) == [True, True]


def test_numbers_of_an_output_may_vary(tmp_path: Path) -> None:
    text = "```bash\necho ' 7 of 1,024: 3.5e-07 s'\n```\n<!-- output: numbers vary -->\n```text\n12 of 9: -0.1 s\n```\n"
    assert read(tmp_path, text) == [True, True]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```bash\ntrue\nfalse\ntrue\n```\n", "exits with 1"),
        ("```bash\nfalse | true\n```\n", "exits with 1"),
        ("```bash\nmake nonsense\n```\n", "no target nonsense"),
        ("```bash\n$ ls\n```\n", "cannot be pasted"),
        ("```\nls\n```\n", "without a language"),
        ("```bash\nls\n", "nothing closes"),
        ("<!-- not run: -->\n```bash\nls\n```\n", "does not say why"),
        ("<!-- runs in: chekout -->\n```bash\nls\n```\n", "no place"),
        ("<!-- output -->\n```text\nls\n```\n", "not run"),
        ("```bash\ntrue\n```\n<!-- output: more or less -->\n```text\nls\n```\n", "no rule"),
        ("```bash\necho 3 apples\n```\n<!-- output: numbers vary -->\n```text\n4 pears\n```\n", "what was printed is"),
        ("```bash\necho one\n```\n<!-- output -->\n```text\ntwo\n```\n", "what was printed is"),
    ],
)
def test_a_document_that_does_not_hold_is_found(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DocumentError, match=complaint):
        read(tmp_path, text)


def test_a_failing_python_block_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        read(tmp_path, "text\n\n```python\nx = 1\nx / 0\n```\n")
    assert caught.traceback[-1].lineno + 1 == 5


def test_make_lines_name_targets_and_are_not_run(tmp_path: Path) -> None:
    assert read(tmp_path, "```bash\nmake test\nmake quickstart  # two minutes\n```\n") == [True]
