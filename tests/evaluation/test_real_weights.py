"""The real DeiT-Ti on a thousand real images: the numbers timm gets, to the image."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import real_data
from vitlab.cli.main import main
from vitlab.inference import Predictor

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The JSON and the per-image CSV of `vitlab evaluate`."""
    folder = real_data()
    lines = tmp_path_factory.mktemp("real") / "lines.csv"
    words = [
        "evaluate", str(folder / "deit_tiny_patch16_224.npz"), str(folder / "imagenet_val_1000.zip"),
        "--real", str(folder / "imagenet_val_1000.zip" / "labels.csv"), "--per-image", str(lines), "--json",
    ]  # fmt: skip
    capture = pytest.MonkeyPatch()
    with capture.context() as patch:
        import io

        out = io.StringIO()
        patch.setattr("sys.stdout", out)
        assert main(words) == 0
    with lines.open(newline="") as file:
        return json.loads(out.getvalue()), list(csv.DictReader(file))


def test_deit_tiny_gets_exactly_what_timm_gets(evaluated: tuple[dict[str, Any], list[dict[str, str]]]) -> None:
    report, _ = evaluated
    assert {name: (report[name]["correct"], report[name]["total"]) for name in ("top1", "top5", "real")} == {
        "top1": (702, 1000),
        "top5": (902, 1000),
        "real": (761, 946),
    }


def test_the_lines_of_the_images_add_up_to_the_report(evaluated: tuple[dict[str, Any], list[dict[str, str]]]) -> None:
    report, lines = evaluated
    assert len(lines) == report["images"] == 1000
    assert sum(line["correct"] == "1" for line in lines) == 702
    assert sum(int(line["rank"]) < 5 for line in lines) == 902
    assert sum(line["real"] == "1" for line in lines) == 761
    assert sum(pair["count"] for pair in report["confusion"]) == 1000
    assert sum(pair["count"] for pair in report["confusion"] if pair["label"] == pair["predicted"]) == 702


def test_one_image_straight_out_of_the_zip_is_predicted_as_it_was_evaluated(
    evaluated: tuple[dict[str, Any], list[dict[str, str]]],
) -> None:
    _, lines = evaluated
    predictor = Predictor(real_data() / "deit_tiny_patch16_224.npz")
    (found,) = predictor([Path(lines[293]["name"])])
    label, chance = found.top(1)[0]
    assert label == lines[293]["predicted"]
    assert chance == pytest.approx(float(lines[293]["confidence"]), abs=1e-5)
