"""errors <- config <- {data, model, objective} <- checkpoint <- ... <- cli: an import only ever points to the left."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# The places that share a step do not import each other.
STEPS: tuple[frozenset[str], ...] = (
    frozenset({"vitlab"}),  # the package's own __init__: a docstring and the version
    frozenset({"errors"}),
    frozenset({"config"}),
    frozenset({"data", "model", "objective"}),
    frozenset({"checkpoint"}),
    frozenset({"predict"}),
    frozenset({"evaluate"}),
    frozenset({"train"}),
    frozenset({"inspect", "export"}),
    frozenset({"study"}),
    frozenset({"serve"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
STEP_OF = {place: step for step, places in enumerate(STEPS) for place in places}


def modules_named(tree: ast.Module) -> Iterator[str]:
    """Every module of vitlab a file imports, wherever in it, and every one it names in a string to import it later."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=module, names=names, level=0) if module == "vitlab":
                yield from (f"vitlab.{name.name}" for name in names if not name.name.startswith("__"))
            case ast.ImportFrom(module=str() as module, level=0):
                yield module
            case ast.ImportFrom(level=level) if level > 0:
                raise AssertionError(f"line {node.lineno}: a relative import hides where it points")
            case ast.Constant(value=str() as text) if re.fullmatch(r"vitlab(\.[a-z_0-9]+)+", text):
                yield text


def uphill_imports(package: Path) -> list[str]:
    """`file: what it imports`, for each import that does not point to an earlier step or to its own place."""
    wrong = []
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        place = "vitlab" if parts == ("__init__",) else parts[0]
        assert place in STEP_OF, f"{file.relative_to(package)}: where in the order does {place!r} stand?"
        for module in modules_named(ast.parse(file.read_text(encoding="utf-8"))):
            root, *rest = module.split(".")
            target = rest[0] if rest else root
            if root != "vitlab" or target == place:
                continue
            assert target in STEP_OF, f"{file.relative_to(package)} imports {module}, which is nowhere in the order"
            if STEP_OF[target] >= STEP_OF[place]:
                wrong.append(f"{file.relative_to(package)}: {module}")
    return wrong


def test_every_import_of_the_package_points_downhill(checkout: Path) -> None:
    assert uphill_imports(checkout / "src" / "vitlab") == []


@pytest.mark.parametrize(
    "line",
    [
        "from vitlab.training import train",
        "import vitlab.cli.main",
        "from vitlab import predict",
        "def f():\n    from vitlab.checkpoints import load",
        "from vitlab.data.dataset import Folder",  # beside model, not below it
        "import importlib\nimportlib.import_module('vitlab.evaluation.knn')",
    ],
)
def test_an_import_that_points_uphill_or_sideways_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "vit.py").write_text(f"from vitlab.config import variant\nfrom vitlab.models import mlp\n{line}\n")
    assert len(uphill_imports(tmp_path)) == 1


def test_a_new_place_must_be_given_its_step(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("")
    with pytest.raises(AssertionError, match="utils"):
        uphill_imports(tmp_path)


def test_no_file_of_the_package_has_a_name_that_says_nothing(checkout: Path) -> None:
    silent = {"utils", "util", "common", "base", "helpers", "helper", "misc"}
    names = [file.stem for file in (checkout / "src" / "vitlab").rglob("*.py")]
    assert silent.isdisjoint(names)
