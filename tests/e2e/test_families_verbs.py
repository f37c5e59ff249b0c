"""Every architecture family takes the same commands: pretrain, finetune, evaluate, predict, export, convert."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.exporters.traces import traced_once
from vitlab.checkpoints import load
from vitlab.cli.main import main
from vitlab.config import variant
from vitlab.exporters.files import onnx_facts, onnx_runner, openvino_model, openvino_pair, openvino_runner
from vitlab.inference import Predictor

pytestmark = pytest.mark.e2e

LETTERS = "synthetic:kind=strokes,classes=4,samples_per_class=16,image_size=32"
QUICK = ("--batch-size", "16", "--workers", "0")
# The smallest of each family, and the formats of others that have a place for it.
FAMILIES = {
    "Swin-Mini": ("timm", "swin", "huggingface"),
    "ConvNeXt-Mini": ("timm", "convnext", "huggingface"),
    "EfficientNet-Mini": ("timm",),
    "LSTM-Mini/8": (),
    "RNN-Mini/8": (),
}
EXPORTED = [
    name for name in FAMILIES if name != "RNN-Mini/8"
]  # it is an LSTM with another cell; its graph runs in onnxruntime below
OTHERS = {
    "timm": "other.safetensors",
    "swin": "other.safetensors",
    "convnext": "other.safetensors",
    "jax-npz": "other.npz",
    "bit-npz": "other.npz",
    "huggingface": "other",
}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model that learned letters, then to tell dark images from light ones; those images, and one in between."""

    name: str
    folder: Path
    model: Path
    tones: Path
    image: Path
    pixels_1HWC: NDArray[np.uint8]


@pytest.fixture(scope="module", autouse=True)
def _traced_once(onnx_operators: None) -> Iterator[None]:
    with traced_once():
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs for other runtimes are made here and now, and not found where an earlier run has left them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, name = tmp_path_factory.mktemp("family"), str(request.param)
    rng = np.random.default_rng(0)
    for label, tone in (("dark", 50), ("light", 200)):
        (folder / "tones" / label).mkdir(parents=True)
        for number in range(48):
            pixels_HW = np.clip(tone + rng.normal(0, 30, (32, 32)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels_HW).save(folder / "tones" / label / f"{number}.png")
    between_HW = rng.integers(0, 256, (32, 32), np.uint8)
    Image.fromarray(between_HW).save(folder / "image.png")
    first = ("pretrain", LETTERS, "--recipe", "small-data", "--model", name, "--steps", "2", *QUICK)
    assert main([*first, "--out", f"{folder}/letters"]) == 0
    second = ("finetune", f"{folder}/tones", "--from", f"{folder}/letters", "--preset", "none", "--lr", "0.03", "--steps", "20")
    assert main([*second, *QUICK, "--evaluate-every", "20", "--out", f"{folder}/run"]) == 0
    return Trained(
        name=name,
        folder=folder,
        model=folder / "run" / "model.safetensors",
        tones=folder / "tones",
        image=folder / "image.png",
        pixels_1HWC=between_HW[None, :, :, None],
    )


def answer(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    """The JSON object of a command that ends well."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_it_is_trained_and_evaluated(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    made = load(trained.model)
    assert made.config == variant(trained.name, num_classes=2, channels=1)  # as the letters have
    assert made.labels == ("dark", "light")
    events = [json.loads(line) for line in (trained.folder / "run" / "events.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "stepped"]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)  # the new head is all zeros
    evaluated = answer(capsys, "evaluate", trained.model, trained.tones)
    assert evaluated["top1"]["correct"] >= 0.9 * evaluated["images"]
    assert evaluated["loss"] < math.log(2) / 2


def test_it_answers_alike_in_every_runtime(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    stated = {
        backend: answer(capsys, "predict", trained.model, trained.image, "--backend", backend)["top"]
        for backend in ("torch", "onnxruntime")  # OpenVINO has its turn in what is exported
    }
    chances = [chance["probability"] for chance in stated["torch"]]
    assert len(set(chances)) > 1
    for top in stated.values():
        assert [chance["label"] for chance in top] == [chance["label"] for chance in stated["torch"]]
        assert [chance["probability"] for chance in top] == pytest.approx(chances, abs=2e-5)


@pytest.mark.parametrize("trained", EXPORTED, indirect=True)
def test_its_files_for_other_runtimes_answer_as_it_does(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted_1K = Predictor(trained.model)([trained.image])[0].probabilities
    for out in (tmp_path / "model.onnx", tmp_path / "model.pt2"):
        assert answer(capsys, "export", trained.model, out, "--inside")["largest_difference"] < 1e-4
    content = (tmp_path / "model.onnx").read_bytes()
    assert json.loads(onnx_facts(content)["vitlab_labels"]) == ["dark", "light"]
    # An .xml is made of the same graph: see test_a_file_of_any_format_gives_the_scores_of_pytorch.
    for run in (onnx_runner(content, threads=1), openvino_runner(*openvino_pair(openvino_model(content, {})))):
        np.testing.assert_allclose(run(trained.pixels_1HWC)[0], wanted_1K, atol=2e-5)
    program = torch.export.load(tmp_path / "model.pt2").module()
    for gradients in (False, True):  # with gradients torch may choose other kernels than those that were traced
        with torch.set_grad_enabled(gradients):
            chances_1K = program(torch.from_numpy(trained.pixels_1HWC)).detach().numpy()
        np.testing.assert_allclose(chances_1K[0], wanted_1K, atol=2e-5)


@pytest.mark.parametrize("trained", EXPORTED, indirect=True)
def test_in_8_bits_it_keeps_its_answers(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--data", trained.tones, "--calibration", "32", "--max-drop", "10")
    facts = answer(capsys, "export", trained.model, tmp_path / "int8.onnx", "--int8", "--inside", *few)
    assert facts["top1_int8_percent"] >= facts["top1_float_percent"] - 10
    assert any("lstm" in layer for layer in facts["layers_in_float"]) == trained.name.startswith("LSTM")  # and it is said
    scores_1K = onnx_runner((tmp_path / "int8.onnx").read_bytes())(np.zeros((1, 32, 32, 1), np.uint8))
    assert scores_1K.shape == (1, 2)


def test_it_comes_back_from_every_format_bit_for_bit(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load(trained.model)
    for form in ("native", *FAMILIES[trained.name]):
        there = tmp_path / (form if form == "huggingface" else f"{form}.safetensors")
        back = tmp_path / f"{form}-back.safetensors"
        assert main(["convert", str(trained.model), str(there), "--to", form]) == 0
        assert main(["convert", str(there), str(back), "--to", "native"]) == 0
        after = load(back)
        assert after.labels == before.labels
        assert after.preprocess == before.preprocess
        wanted, found = before.model.state_dict(), after.model.state_dict()
        assert wanted.keys() == found.keys()
        assert all(torch.equal(tensor, found[key]) for key, tensor in wanted.items())
    capsys.readouterr()
    for form in OTHERS.keys() - set(FAMILIES[trained.name]):
        out = OTHERS[form]
        assert main(["convert", str(trained.model), str(tmp_path / out), "--to", form]) == 1
        said = capsys.readouterr().err
        if (trained.name, form) == ("EfficientNet-Mini", "huggingface"):
            assert "cannot express these widths" in said  # the format has the family, at its published widths
        else:
            assert before.config.title in said
            assert "can be written as" in said
        assert not (tmp_path / out).exists()
