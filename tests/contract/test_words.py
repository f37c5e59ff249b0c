"""The words of the glossary: what CONTRIBUTING.md calls by another name is not in the package, its documents or its examples."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import CHECKOUT

# Words of the glossary's last column that have no other meaning here, and slips of the renaming.
NOT = (
    "picture",
    "pictures",
    "judge",
    "judged",
    "told right",
    "gaze",
    "wish",
    "wishes",
    "rival",
    "rivals",
    "from random values",
    "a image",
)
OLD_NAMES = CHECKOUT / "src" / "vitlab" / "config" / "renamed.py"  # the one table of names of earlier releases


def places_of(folder: Path, *endings: str) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.suffix in endings and file != OLD_NAMES]


def test_one_word_per_thing() -> None:
    files = [CHECKOUT / "README.md", *places_of(CHECKOUT / "docs", ".md"), *places_of(CHECKOUT / "examples", ".py")]
    files += places_of(CHECKOUT / "src" / "vitlab", ".py", ".html")
    assert len(files) > 200
    wrong = re.compile(rf"\b({'|'.join(NOT)})\b", re.IGNORECASE)
    found = [
        f"{file.relative_to(CHECKOUT)}:{number}: {match[0]}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        for match in wrong.finditer(line)
    ]
    assert found == []


def test_the_glossary_has_these_words() -> None:
    glossary = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Glossary")[2]
    for word in ("picture", "judge, told right", "gaze", "wish", "rival", "from random values"):
        assert word in glossary
