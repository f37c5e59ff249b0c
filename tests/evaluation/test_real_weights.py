"""The real DeiT-Ti on real images: each has the answer that it had when all thousand had the numbers of timm."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import real_data
from vitlab.cli.main import main
from vitlab.inference import Predictor

pytestmark = pytest.mark.data

# What vitlab answers for each image, in the order of labels.csv.
RECORDED = Path(__file__).with_name("deit_tiny_on_imagenet.csv")
EVERY = 8  # of the thousand images, every so many are evaluated


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The JSON and the lines of the images of `vitlab evaluate`, and the recorded lines of the same images."""

    report: dict[str, Any]
    lines: list[dict[str, str]]
    recorded: list[dict[str, str]]


def recorded() -> list[dict[str, str]]:
    with RECORDED.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def some_images(path: Path, files: Iterable[str]) -> Path:
    """A zip file of these images and the lists that belong to them."""
    with zipfile.ZipFile(real_data() / "imagenet_val_1000.zip") as whole, zipfile.ZipFile(path, "w") as part:
        head, *lines = whole.read("labels.csv").decode().splitlines()
        line_of = {line.split(",")[0]: line for line in lines}
        for file in files:
            part.writestr(f"images/{file}", whole.read(f"images/{file}"))
        part.writestr("labels.csv", "\n".join([head, *(line_of[file] for file in files)]) + "\n")
        part.writestr("classes.txt", whole.read("classes.txt"))
    return path


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    weights, folder = real_data() / "deit_tiny_patch16_224.npz", tmp_path_factory.mktemp("real")
    wanted = recorded()[::EVERY]
    images = some_images(folder / "images.zip", [line["file"] for line in wanted])
    lines = folder / "lines.csv"
    words = [str(weights), str(images), "--real", str(images / "labels.csv"), "--per-image", str(lines), "--json"]
    with pytest.MonkeyPatch().context() as patch:
        out = io.StringIO()
        patch.setattr("sys.stdout", out)
        assert main(["evaluate", *words]) == 0
    with lines.open(newline="") as file:
        return Evaluated(report=json.loads(out.getvalue()), lines=list(csv.DictReader(file)), recorded=wanted)


def counts(lines: Iterable[Mapping[str, str]]) -> dict[str, tuple[int, int]]:
    """Correct images, and those that have a label, by the recorded columns."""
    found = list(lines)
    having = {"top1": [line["correct"] for line in found], "top5": [line["top5"] for line in found]}
    having["real"] = [line["real"] for line in found if line["real"]]
    return {name: (values.count("1"), len(values)) for name, values in having.items()}


def test_deit_tiny_answers_for_each_image_as_when_it_had_the_numbers_of_timm(evaluated: Evaluated) -> None:
    assert counts(recorded()) == {"top1": (702, 1000), "top5": (902, 1000), "real": (761, 946)}  # timm's
    found = [
        {
            "file": Path(line["name"]).name,
            "predicted": line["predicted"],
            "correct": line["correct"],
            "top5": str(int(int(line["rank"]) < 5)),
            "real": line["real"],
        }
        for line in evaluated.lines
    ]
    assert found == evaluated.recorded


def test_the_lines_of_the_images_add_up_to_the_report(evaluated: Evaluated) -> None:
    report, wanted = evaluated.report, counts(evaluated.recorded)
    assert {name: (report[name]["correct"], report[name]["total"]) for name in wanted} == wanted
    assert len(evaluated.lines) == report["images"] == sum(pair["count"] for pair in report["confusion"])
    assert sum(pair["count"] for pair in report["confusion"] if pair["label"] == pair["predicted"]) == wanted["top1"][0]


def test_one_image_straight_out_of_the_zip_is_predicted_as_it_was_evaluated(evaluated: Evaluated) -> None:
    predictor, line = Predictor(real_data() / "deit_tiny_patch16_224.npz"), evaluated.lines[29]
    (found,) = predictor([Path(line["name"])])
    label, chance = found.top(1)[0]
    assert label == line["predicted"]
    assert chance == pytest.approx(float(line["confidence"]), abs=1e-5)
