"""`vitlab quickstart` builds what it describes and tells honestly what it gives."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vitlab.cli.main import main
from vitlab.cli.quickstart import picture
from vitlab.config import variant
from vitlab.model.cost import cost


@pytest.mark.parametrize("name", ["ViT-Mini/8", "ViT-Ti/16"])
def test_quickstart_describes_runs_and_says_it_is_untrained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", name, "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["model"]["parameters"] == cost(variant(name, num_classes=10)).parameters
    assert told["forward"]["features_std"] > 0
    assert told["forward"]["milliseconds"] > 0
    assert [row["probability"] for row in told["top"]] == pytest.approx([0.1] * 5)
    assert "untrained" in captured.err


def test_quickstart_prints_three_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "ViT-Mini/8"]) == 0
    tables = capsys.readouterr().out.split("\n\n")
    assert [table.split()[0] for table in tables] == ["name", "features", "class"]


def test_the_weights_depend_on_the_seed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    spread = []
    for seed in ("0", "0", "1"):
        main(["quickstart", "ViT-Mini/8", "--seed", seed, "--json"])
        spread.append(json.loads(capsys.readouterr().out)["forward"]["features_std"])
    assert spread[0] == spread[1] != spread[2]


def test_the_picture_has_the_size_asked_for_and_spans_the_range() -> None:
    image_CHW = picture(48, 32)
    assert image_CHW.shape == (3, 48, 32)
    assert image_CHW.dtype == np.float32
    assert (image_CHW.min(), image_CHW.max()) == (-1, 1)
