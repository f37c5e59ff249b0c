"""Configs and help answer at once because they leave the heavy libraries alone; seen in a fresh interpreter."""

from __future__ import annotations

import json
import sys

import pytest

from tests import processes
from vitlab.cli.main import VERBS

HEAVY = ("torch", "numpy", "PIL", "safetensors", "matplotlib", "rich")


def loaded_by(statements: str) -> set[str]:
    """The top-level modules a fresh interpreter holds after these statements."""
    tell = "\nimport sys, json; sys.stderr.write(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = processes.run([sys.executable, "-c", statements + tell])
    return set(json.loads(done.stderr.splitlines()[-1]))


def command(*words: str) -> str:
    return f"from vitlab.cli.main import main\nassert main({list(words)!r}) == 0"


@pytest.mark.parametrize(
    "module", ["vitlab", "vitlab.api", "vitlab.errors", "vitlab.config", "vitlab.cli.main", "vitlab.models.cost"]
)
def test_importing_a_light_module_leaves_the_heavy_ones_out(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint(HEAVY)


@pytest.mark.parametrize("words", [(), ("--help",), ("--version",)])
def test_help_and_version_need_not_even_the_argument_parser(words: tuple[str, ...]) -> None:
    assert loaded_by(command(*words)).isdisjoint({*HEAVY, "tyro"})


def test_the_help_page_of_a_verb_leaves_the_heavy_modules_out() -> None:
    """One interpreter makes all pages: where none loads a module, each does not."""
    named = [f"{command(*verb.split(), '--help')}\nassert not {{*sys.modules}} & {{*{HEAVY!r}}}, {verb!r}" for verb in VERBS]
    assert loaded_by("\n".join(["import sys", *named])).isdisjoint(HEAVY)


def test_describing_a_variant_and_a_table_of_the_paper_leaves_the_heavy_modules_out() -> None:
    described = "\n".join(command("describe", name) for name in ("ViT-B/16", "R50+ViT-B/16", "BiT-R152x4"))
    described += "\n" + command("paper", "table6")
    assert loaded_by(described).isdisjoint({*HEAVY, "typeguard"})


def test_a_function_of_the_front_door_is_found_without_the_heavy_modules() -> None:
    statements = "import vitlab\nassert callable(vitlab.predict)\nassert 'ViT-B/16' in vitlab.list_models('vit*')\ndir(vitlab)"
    assert loaded_by(statements).isdisjoint({*HEAVY, "tyro"})


def test_a_module_that_does_import_torch_is_seen() -> None:
    assert "torch" in loaded_by("import torch")
