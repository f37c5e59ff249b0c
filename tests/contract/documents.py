"""The fenced blocks of a Markdown document, run in order as a reader would run them.

A block runs unless the line above its fence says otherwise. The blocks of one document share one empty folder, and its
Python blocks one namespace, so a block can use what an earlier one made.

    ```bash                               run by bash, stopping at the first command that fails
    ```python                             run as Python
    <!-- runs in: checkout -->            ... at the root of the repository instead
    <!-- not run: needs the network -->   ... not at all, for the reason given
    <!-- output -->                       on a ```text block: what the block before it printed; `...` is anything
    <!-- output: numbers vary -->         ... on this machine: another may print other numbers in their places

A line `make TARGET` is not run, since `make test` is what runs this: TARGET has to be in the Makefile.
A fence without a language is refused. Other languages (json, toml, ...) are only shown.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import processes

RUN_LANGUAGES = ("bash", "python")
_NUMBER = r" *[-+]?\d[\d.,]*(?:e[-+]?\d+)?"  # with the spaces that align it


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: where it stands, in which language, and what the comment above it says (empty for nothing)."""

    file: Path
    line: int
    language: str
    text: str
    says: str

    @property
    def place(self) -> str:
        """`README.md:12`, for messages."""
        return f"{self.file.name}:{self.line}"


class DocumentError(AssertionError):
    """A block that does not do what the document says."""


def blocks_of(file: Path) -> list[Block]:
    """Every fenced block of a document, in order."""
    blocks = []
    lines = file.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"^( *)(`{3,})\s*(\S*)", lines[number])
        if fence is None:
            number += 1
            continue
        indent, marks, language = len(fence[1]), fence[2], fence[3]
        above = lines[number - 1].strip() if number else ""
        comment = re.fullmatch(r"<!--\s*(.*?)\s*-->", above)
        start = number + 1
        end = start
        while end < len(lines) and lines[end].strip() != marks:
            end += 1
        if end == len(lines):
            raise DocumentError(f"{file.name}:{start} opens a block that nothing closes")
        if not language:
            raise DocumentError(f"{file.name}:{start} is a block without a language; say text if it is none")
        text = "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines[start:end])
        says = comment[1] if comment else ""
        blocks.append(Block(file=file, line=start, language=language, text=text + "\n", says=says))
        number = end + 1
    return blocks


class Reader:
    """Someone who follows one document in an empty folder; `run` raises DocumentError where it does not hold.

    Commands are looked for in the folders `path` first, then beside this Python.
    """

    def __init__(self, *, checkout: Path, folder: Path, path: Sequence[Path] = ()) -> None:
        self.checkout = checkout
        self.folder = folder
        self.path = os.pathsep.join(map(str, (*path, Path(sys.executable).parent)))
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed: str | None = None

    def run(self, block: Block) -> bool:
        """Do what the block says; False where there was nothing to do."""
        match re.match(r"(runs in|not run|output)\b:?\s*(.*)", block.says):
            case None:
                where = self.folder
            case said if said[1] == "not run":
                if not said[2]:
                    raise DocumentError(f"{block.place} is not run, and does not say why")
                self.printed = None
                return False
            case said if said[1] == "output":
                if said[2] not in ("", "numbers vary"):
                    raise DocumentError(f"{block.place} shows an output where {said[2]!r}, which is no rule; there is numbers vary")
                self._compare(block, numbers_vary=bool(said[2]))
                return True
            case said if said[2] == "checkout":
                where = self.checkout
            case said:
                raise DocumentError(f"{block.place} runs in {said[2]!r}, which is no place; there is checkout")
        if block.language == "bash":
            self.printed = self._bash(block, where)
        elif block.language == "python":
            self.printed = self._python(block, where)
        else:
            return False
        return True

    def _bash(self, block: Block, where: Path) -> str:
        commands = []
        for line in block.text.splitlines():
            if line.startswith("$ "):
                raise DocumentError(f"{block.place}: a prompt before a command cannot be pasted: {line}")
            if make := re.fullmatch(r"make(?: +([a-z-]+))?(?: *#.*)?", line.strip()):
                self._check_target(block, make[1])
            else:
                commands.append(line)
        done = processes.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
            cwd=where,
            env={"PATH": f"{self.path}{os.pathsep}{os.environ['PATH']}"},
            check=False,
        )
        if done.returncode != 0:
            raise DocumentError(f"{block.place} exits with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _check_target(self, block: Block, target: str | None) -> None:
        makefile = (self.checkout / "Makefile").read_text(encoding="utf-8")
        if target is not None and not re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE):
            raise DocumentError(f"{block.place}: the Makefile has no target {target}")

    def _python(self, block: Block, where: Path) -> str:
        printed = io.StringIO()
        # The empty lines before it make a traceback name the document's own line.
        code = compile("\n" * block.line + block.text, str(block.file), "exec")
        with contextlib.chdir(where), contextlib.redirect_stdout(printed):
            exec(code, self.names)
        return printed.getvalue()

    def _compare(self, block: Block, *, numbers_vary: bool) -> None:
        if self.printed is None:
            raise DocumentError(f"{block.place} shows the output of a block that was not run")
        parts = re.split(_NUMBER, block.text.strip()) if numbers_vary else [block.text.strip()]
        pattern = _NUMBER.join(re.escape(part).replace(re.escape("..."), ".*") for part in parts)
        printed = "\n".join(line.rstrip() for line in self.printed.splitlines()).strip()
        if not re.fullmatch(pattern, printed, re.DOTALL):
            raise DocumentError(f"{block.place} shows\n{block.text}\nbut what was printed is\n{self.printed}")
