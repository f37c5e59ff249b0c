"""The wheel: whole, and all that a user needs; built and installed without a network."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import vitlab
from tests import processes

pytestmark = pytest.mark.slow
GENERATED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy of it."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(checkout / name, copy)
    shutil.copytree(checkout / "src", copy / "src", ignore=GENERATED)
    out = tmp_path_factory.mktemp("dist")
    processes.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-index",
            "--no-build-isolation",
            "--no-deps",
            "--quiet",
            "--wheel-dir",
            out,
            copy,
        ]
    )
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment that has the wheel, and what it depends on from the environment of the tests."""
    folder = tmp_path_factory.mktemp("environment")
    processes.run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    processes.run([sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "--quiet", wheel])
    (packages,) = folder.glob("lib/*/site-packages")
    # A path alone: editable installs there, this checkout among them, are not followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path, checkout: Path) -> None:
    source = checkout / "src"
    here = {
        file.relative_to(source).as_posix()
        for file in (source / "vitlab").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {"vitlab/py.typed", "vitlab/data/digits.npz", "vitlab/data/digits.txt"} < here
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert packed == here


def test_the_wheel_has_the_version_of_the_package(wheel: Path) -> None:
    assert wheel.name == f"vitlab-{vitlab.__version__}-py3-none-any.whl"


@pytest.fixture(autouse=True)
def no_other_vitlab(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PYTHONPATH of the tests does not reach the new environment."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_a_new_environment_describes_a_model(installed: Path, tmp_path: Path) -> None:
    where = processes.run([installed / "python", "-c", "import vitlab; print(vitlab.__file__)"], cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent)
    described = processes.run([installed / "vitlab", "describe", "ViT-B/16"], cwd=tmp_path)
    assert "86,567,656" in described.stdout


def test_a_new_environment_has_the_digits(installed: Path, tmp_path: Path) -> None:
    program = "import vitlab; print(len(vitlab.open_dataset('digits', split='all')))"
    assert processes.run([installed / "python", "-c", program], cwd=tmp_path).stdout.strip() == "1797"
