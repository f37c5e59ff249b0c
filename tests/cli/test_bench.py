"""`vitlab bench`: a line for each runtime asked for, numbers that fit each other, JSON, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vitlab
from tests.inference import small
from vitlab.cli.main import main
from vitlab.inference.backends import TorchBackend
from vitlab.inference.bench import bench


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("model", ["ViT-Mini/8", "BiT-R50x1"])
def test_a_variant_is_measured_in_the_runtimes_asked_for(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [model, "--backend", "torch,plain", "--image-size", "32", "--batch", "2,3", "--seconds", "0.01", "--json"]
    assert main(["bench", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["backend"] for row in found["speeds"]] == ["torch", "plain"]
    for row in found["speeds"]:
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["batch"] in (2, 3)
        assert row["images_per_sec"] > 0
    assert found["macs"] > 0
    assert found["image_size"] == [32, 32]


def test_a_checkpoint_is_measured_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small.saved(tmp_path / "model.safetensors")
    assert main(["bench", str(file), "--backend", "torch", "--merge", "1", "--batch", "2", "--seconds", "0.01"]) == 0
    captured = capsys.readouterr()
    facts, _, rows = captured.out.partition("\n\n")
    assert [line.split("  ")[0] for line in rows.splitlines()] == ["backend", "torch", "torch, merge 1"]
    assert "sgemm gflops" in facts


def test_the_reported_speed_is_that_of_the_best_batch() -> None:
    checkpoint = small.checkpoint()
    (speed,) = bench(
        {"plain": lambda: TorchBackend(checkpoint.model, checkpoint.preprocess).run}, checkpoint, seconds=0.01, batches=(1, 4)
    )
    assert speed.rate == max(speed.rates.values()) == speed.rates[speed.batch]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--backend", "tensorflow"], "'tensorflow' is not one of torch"),
        (["--seconds", "0"], "not a number above 0"),
        (["--seconds", "soon"], "not a number above 0"),
        (["--batch", "0"], "at least 1"),
        (["--batch", "4,x"], "not a whole number"),
        (["--threads", "0"], "at least 1"),
    ],
)
def test_nonsense_is_refused(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ViT-Mini/8", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_one_model_is_measured_at_several_budgets_with_its_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = small.saved(tmp_path / "model.safetensors", small.LABELS[:2])
    for label in small.LABELS[:2]:
        small.photos(tmp_path / "photos" / label, 3)
    words = ["--patch-sizes", "8,16,4x8", "--merges", "1", "--data", str(tmp_path / "photos"), "--plot", str(tmp_path / "plot.png")]
    assert main(["bench", str(file), *words, "--batch", "2", "--seconds", "0.01", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["budget"]: row for row in found["budgets"]}
    assert list(rows) == ["patch 8x8", "patch 16x16", "patch 4x8", "patch 8x8, merge 1"]
    assert [row["tokens"] for row in rows.values()] == [17, 5, 33, 17]
    for budget, patch, merge in (("patch 4x8", (4, 8), 0), ("patch 8x8, merge 1", None, 1)):
        alone = vitlab.evaluate(str(file), str(tmp_path / "photos"), patch_size=patch, merge=merge, backend="torch")
        assert rows[budget]["top1"] == pytest.approx(alone.top1, abs=1e-4)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_options_of_budgets_need_budgets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ViT-Mini/8", "--data", str(tmp_path)]) == 2
    assert "`data` needs `patch_sizes` or `merges`" in capsys.readouterr().err.replace("--data", "`data`").replace(
        "--patch-sizes", "`patch_sizes`"
    ).replace("--merges", "`merges`")
    assert main(["bench", "ConvNeXt-B", "--image-size", "32", "--patch-sizes", "8"]) != 0
    assert "patches of one size" in capsys.readouterr().err
