"""`vitlab convert` and `vitlab describe FILE` on a miniature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from vitlab.api import Format
from vitlab.checkpoints import Checkpoint, describe, load, save
from vitlab.checkpoints.formats import LAYOUTS
from vitlab.cli.main import main
from vitlab.config import Preprocess, variant
from vitlab.models import build

HEADS = ("--heads", "4")  # no format but ours and Hugging Face's says it


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A miniature ViT with 4 heads and three labels."""
    config = variant("ViT-Mini/8", num_classes=3)
    model = build(config)
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)), alpha=0.01)
    file = tmp_path_factory.mktemp("native") / "model.safetensors"
    preprocess = Preprocess(image_size=(32, 32), resize_to=36)
    save(Checkpoint(model=model, config=config, preprocess=preprocess, labels=("cat", "dog", "owl")), file)
    return file


@pytest.fixture
def official(native: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The same in the authors' layout."""
    file = tmp_path / "official.npz"
    printed(capsys, "convert", native, file, "--to", "jax-npz")
    return file


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[Any, list[str]]:
    """The JSON on stdout and the lines on stderr of a command that succeeds."""
    code = main([*map(str, words), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out), captured.err.splitlines()


def test_the_command_line_offers_every_format_there_is() -> None:
    assert set(get_args(Format)) == {"native", *LAYOUTS}


def test_once_round_all_formats_gives_the_same_tensors(native: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    round_trip = ["jax-npz", "timm", "huggingface", "torchvision", "big-vision", "native"]
    endings = {"huggingface": "", "jax-npz": ".npz", "big-vision": ".npz"}
    dataset = native
    found: tuple[str, ...] = ()
    for form in round_trip:
        target = tmp_path / f"{form}{endings.get(form, '.safetensors')}"
        printed(capsys, "convert", dataset, target, "--to", form, *found)
        dataset, found = target, () if form == "huggingface" else HEADS
    before, after = load(native).model.state_dict(), load(dataset).model.state_dict()
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key])


def test_a_file_that_exists_is_replaced_only_when_asked(native: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.npz"
    target.write_text("mine")
    words = ["convert", str(native), str(target), "--to", "jax-npz"]
    assert main(words) == 1
    assert capsys.readouterr().err.splitlines()[0].startswith("error: ")
    assert target.read_text() == "mine"
    assert main([*words, "--overwrite"]) == 0
    assert target.read_bytes()[:2] == b"PK"


def test_convert_tells_what_it_wrote_on_stdout_and_what_it_guessed_on_stderr(
    official: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, lines = printed(capsys, "convert", official, tmp_path / "out.safetensors", "--to", "native", *HEADS)
    assert (found["from"], found["to"], found["format"]) == (str(official), str(tmp_path / "out.safetensors"), "native")
    assert lines == [f"note: {note}" for note in found["notes"]]


def test_describing_a_file_says_what_the_library_says(official: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, lines = printed(capsys, "describe", official, "--heads", "4")
    said = describe(official, heads=4)
    assert found["format"] == said.format
    assert found["parameters"] == said.parameters
    assert found["heads"] == 4
    assert lines == [f"note: {note}" for note in said.notes]


def test_the_table_of_a_file_has_the_same_entries_as_its_json(official: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = printed(capsys, "describe", official, "--heads", "4")
    assert main(["describe", str(official), "--heads", "4"]) == 0
    heads = [line.split("  ")[0].replace(" ", "_") for line in capsys.readouterr().out.splitlines()]
    assert heads == [key for key in found if key not in ("config", "notes", "history")]


@pytest.mark.parametrize(
    "option", [("--image-size", "32"), ("--num-classes", "10"), ("--channels", "3")], ids=lambda option: option[0]
)
def test_a_file_says_its_own_sizes(option: tuple[str, str], official: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(official), *option]) == 2
    assert option[0] in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut short"])
def test_a_file_that_is_no_checkpoint_is_an_error_of_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.npz"
    file.write_bytes(content)
    for words in (["describe", str(file)], ["convert", str(file), str(tmp_path / "out"), "--to", "native"]):
        assert main(words) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines()[0].startswith("error: ")
        assert len(captured.err.splitlines()) <= 2
    assert not (tmp_path / "out").exists()
