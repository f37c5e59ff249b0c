"""Weights, preprocessing or outputs hold NaN or Inf: vitlab refuses them by name, and every JSON that it writes is valid.

`--allow-nonfinite` opens a broken model to look at it; its numbers that are not finite are null in JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints.small import resealed
from tests.inference import small
from vitlab.checkpoints import Checkpoint, convert, load, save
from vitlab.checkpoints.checkpoint import nonfinite_tensors
from vitlab.checkpoints.native import HeaderFacts, write_native
from vitlab.cli.main import main
from vitlab.config import Preprocess
from vitlab.errors import CheckpointError, ConfigError
from vitlab.io.display import json_text
from vitlab.training.run_folder import RunDirectory

KINDS = ("cat", "dog", "owl")


def _written(path: Path, break_it: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """A native file with sound digests whose weights were broken before it was written."""
    whole = small.checkpoint(KINDS, classes=len(KINDS))
    state = whole.model.state_dict()
    break_it(state)
    write_native(path, state, HeaderFacts(config=whole.config, preprocess=whole.preprocess, labels=KINDS))
    return path


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose bias for the first class is NaN, and one of whose kernels holds Inf."""

    def break_it(state: dict[str, torch.Tensor]) -> None:
        state["head.bias"][0] = torch.nan
        state["patches.weight"][1, 1, 1, 1] = -torch.inf

    return _written(tmp_path_factory.mktemp("broken") / "model.safetensors", break_it)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are finite and whose logits are not."""
    return _written(tmp_path_factory.mktemp("overflowing") / "model.safetensors", lambda state: state["head.weight"].fill_(3e38))


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pets")
    for place, kind in enumerate(KINDS):
        small.photos(folder / kind, 2, start=10 * place)
    return folder


def _json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def _ran(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int) -> tuple[str, str]:
    assert main([*map(str, words), "--workers", "0"]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_loading_names_the_tensors(broken: Path) -> None:
    with pytest.raises(CheckpointError, match="NaN or Inf") as refused:
        load(broken)
    assert "head.bias" in refused.value.message
    assert "patches.weight" in refused.value.message
    loaded = load(broken, allow_nonfinite=True)
    assert any("head.bias" in note for note in loaded.notes)
    assert load(small.saved(broken.with_name("whole.safetensors")), allow_nonfinite=True).notes == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_number_is_found_wherever_it_is_and_in_every_type(dtype: torch.dtype, value: float) -> None:
    for place in (0, 500, 999):
        tensor = torch.linspace(-1, 1, 1000)
        tensor[place] = value
        state = {"whole": torch.ones(3, dtype=dtype), "broken": tensor.to(dtype), "none": torch.ones(0, dtype=dtype)}
        assert nonfinite_tensors(state) == ["broken"]


def test_a_number_that_the_type_asked_for_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "model.safetensors", lambda state: state["head.bias"].fill_(1e6))
    assert load(path).notes == ()
    with pytest.raises(CheckpointError, match=r"NaN or Inf: head\.bias"):
        load(path, dtype=torch.float16)


def test_a_broken_model_is_neither_converted_nor_saved(broken: Path, tmp_path: Path) -> None:
    for to, name in (("native", "out.safetensors"), ("timm", "out.safetensors"), ("jax-npz", "out.npz")):
        with pytest.raises(CheckpointError, match=r"cannot convert.*head\.bias"):
            convert(broken, tmp_path / name, to=to)
    with pytest.raises(CheckpointError, match=r"cannot save.*head\.bias"):
        save(load(broken, allow_nonfinite=True), tmp_path / "out.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_predict_and_evaluate_refuse_a_broken_model(broken: Path, pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("predict", "evaluate"):
        out, err = _ran(capsys, verb, broken, pets, code=1)
        assert out == ""
        assert "NaN or Inf" in err
        assert "--allow-nonfinite" in err


def test_an_output_that_is_not_finite_is_an_error(overflowing: Path, pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = _ran(capsys, "predict", overflowing, pets, code=1)
    assert out == ""
    assert "photo-000.jpg holds NaN or Inf" in err
    out, err = _ran(capsys, "evaluate", overflowing, pets, code=1)
    assert out == ""
    assert "output for sample 0 holds NaN or Inf" in err


def test_a_broken_model_can_be_inspected_in_valid_json(
    broken: Path, overflowing: Path, pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    infinite = _written(tmp_path / "model.safetensors", lambda state: state["head.bias"].fill_(torch.inf))
    for model in (broken, overflowing, infinite):
        out, _ = _ran(capsys, "predict", model, pets, "--allow-nonfinite", "--format", "jsonl", code=0)
        for line in out.splitlines():
            assert None in [best["probability"] for best in _json(line)["top"]]
        out, _ = _ran(capsys, "predict", model, pets, "--allow-nonfinite", code=0)
        assert "nan %" in out
        out, _ = _ran(capsys, "evaluate", model, pets, "--allow-nonfinite", "--json", code=0)
        found = _json(out)
        assert found["loss"] is None
        assert found["calibration_error"] is None
        out, _ = _ran(capsys, "evaluate", model, pets, "--allow-nonfinite", code=0)
        assert "0.00 %" not in next(line for line in out.splitlines() if "calibration" in line)


def test_metrics_of_a_diverged_run_are_described_in_valid_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole: Checkpoint = replace(small.checkpoint(), metrics={"loss": float("nan"), "top1": 0.5})
    save(whole, tmp_path / "model.safetensors")
    assert main(["describe", str(tmp_path / "model.safetensors"), "--json"]) == 0
    assert _json(capsys.readouterr().out)["metadata"]["metrics"] == {"loss": None, "top1": 0.5}
    assert _json(json_text({"a": [float("inf"), (1.5, float("nan"))]})) == {"a": [None, [1.5, None]]}


def test_events_of_a_run_are_valid_json(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.append_event({"event": "evaluated", "step": 1, "metrics": {"loss": float("inf"), "top1": 0.5}})
    assert _json(run.events_path.read_text())["metrics"] == {"loss": None, "top1": 0.5}
    (event,) = run.events()
    assert math.isnan(event["metrics"]["loss"])
    run.drop_events_after(1)
    assert _json(run.events_path.read_text())["metrics"] == {"loss": None, "top1": 0.5}


def test_preprocessing_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="finite"):
            Preprocess(mean=(0.5, wrong, 0.5))
        with pytest.raises(ConfigError, match="finite"):
            Preprocess(std=(0.5, 0.5, wrong))
    path = small.saved(tmp_path / "model.safetensors")
    for number in ("NaN", "1e999", "Infinity"):
        resealed(path, tmp_path / "changed", {"preprocess": f'{{"image_size":[32,32],"resize_to":36,"mean":[0.5,{number},0.5]}}'})
        with pytest.raises(CheckpointError, match="cannot be understood"):
            load(tmp_path / "changed")
