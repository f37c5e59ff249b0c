"""Imports point downhill, from folder to folder and inside data, checkpoints, training and inference.

errors <- io <- config <- recipes <- {data, models, objective} <- checkpoints <- inference <- evaluation <- training
<- {interpretation, exporters} <- reports <- studies <- serving <- {api, cli}
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

# Folders of one step do not import each other. The root's __init__ and api.py load names lazily, so they stand at the top.
STEPS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"io"}),
    frozenset({"config"}),
    frozenset({"recipes"}),
    frozenset({"data", "models", "objective"}),
    frozenset({"checkpoints"}),
    frozenset({"inference"}),
    frozenset({"evaluation"}),
    frozenset({"training"}),
    frozenset({"interpretation", "exporters"}),
    frozenset({"reports"}),
    frozenset({"studies"}),
    frozenset({"serving"}),
    frozenset({"api"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
STEP_OF = {place: step for step, places in enumerate(STEPS) for place in places}
NO_CYCLES = ("data", "checkpoints", "training", "inference")


def modules_named(tree: ast.Module) -> Iterator[str]:
    """What a file imports of vitlab, at any level, and every module that it names in a string; `vitlab.a.b` for a name b of a."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str() as module, names=names, level=0):
                yield from (f"{module}.{name.name}" for name in names)
            case ast.ImportFrom(level=level) if level > 0:
                raise AssertionError(f"line {node.lineno}: a relative import hides where it points")
            case ast.Constant(value=str() as text) if re.fullmatch(r"vitlab(\.[a-z_0-9]+)+", text):
                yield text


def imports_of(package: Path) -> dict[str, set[str]]:
    """Module -> what it imports of vitlab; a package's __init__ has the package's name."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).with_suffix("").parts
        name = ".".join(("vitlab", *(parts[:-1] if parts[-1] == "__init__" else parts)))
        found[name] = imports_in(file.read_text(encoding="utf-8"))
    return found


@cache
def imports_in(text: str) -> set[str]:
    """What the text of a file imports of vitlab; each text is parsed once."""
    return {module for module in modules_named(ast.parse(text)) if module.startswith("vitlab.")}


def uphill_imports(package: Path) -> list[str]:
    """`module: what it imports` for each import that points neither to an earlier step nor into its own folder."""
    wrong = []
    for name, modules in imports_of(package).items():
        if name == "vitlab":  # the front door, which may name everything, lazily
            continue
        place = name.split(".")[1]
        assert place in STEP_OF, f"{name}: where in the order does {place!r} stand?"
        for module in modules:
            target = module.split(".")[1]
            if target == place or target.startswith("__"):
                continue
            # What is no folder is a function of the front door, which stands above all folders.
            if STEP_OF.get(target, len(STEPS)) >= STEP_OF[place]:
                wrong.append(f"{name}: {module}")
    return sorted(wrong)


def cycle_in(package: Path, folder: str) -> list[str]:
    """Modules of a folder that import each other in a circle, function-level imports included; empty if there are none."""
    imports = imports_of(package)
    inside = {name for name in imports if f"{name}.".startswith(f"vitlab.{folder}.")}
    graph = {name: {module_of(imported, inside) for imported in imports[name]} - {None, name} for name in inside}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def module_of(imported: str, modules: set[str]) -> str | None:
    """The module that holds what is imported: itself, or the one before its last dot."""
    return next((name for name in (imported, imported.rpartition(".")[0]) if name in modules), None)


def test_every_import_of_the_package_points_downhill(checkout: Path) -> None:
    assert uphill_imports(checkout / "src" / "vitlab") == []


@pytest.mark.parametrize("folder", NO_CYCLES)
def test_the_files_of_a_folder_import_each_other_in_no_circle(checkout: Path, folder: str) -> None:
    assert cycle_in(checkout / "src" / "vitlab", folder) == []


@pytest.mark.parametrize(
    "line",
    [
        "from vitlab.training import train",
        "import vitlab.cli.main",
        "from vitlab import predict",  # a function of the front door
        "from vitlab import inference",
        "def f():\n    from vitlab.checkpoints import load",
        "from vitlab.data.dataset import Folder",  # beside models, not below
        "import importlib\nimportlib.import_module('vitlab.evaluation.frozen')",
    ],
)
def test_an_import_that_points_uphill_or_sideways_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "vit.py").write_text(f"from vitlab.config import variant\nfrom vitlab.models import position\n{line}\n")
    assert uphill_imports(tmp_path)


@pytest.mark.parametrize("line", ["from vitlab.data.a import x", "from vitlab.data import a", "def f():\n    import vitlab.data.a"])
def test_a_circle_inside_a_folder_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("from vitlab.data.a import x\n")
    (tmp_path / "data" / "a.py").write_text("from vitlab.data import b\n")
    (tmp_path / "data" / "b.py").write_text("")
    assert cycle_in(tmp_path, "data") == []
    (tmp_path / "data" / "b.py").write_text(f"{line}\n")
    assert cycle_in(tmp_path, "data")


def test_a_new_place_must_be_given_its_step(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("")
    with pytest.raises(AssertionError, match="utils"):
        uphill_imports(tmp_path)


def test_no_file_of_the_package_has_a_name_that_says_nothing(checkout: Path) -> None:
    silent = {"utils", "util", "common", "base", "helpers", "helper", "misc"}
    names = [file.stem for file in (checkout / "src" / "vitlab").rglob("*.py")]
    assert silent.isdisjoint(names)
