"""The paper's tables and figures: the data agree with each other and with the publications, and `vitlab paper` shows them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitlab
from vitlab.cli.main import GROUPS, VERBS, main
from vitlab.cli.options import parse
from vitlab.config.model import variant
from vitlab.config.published import (
    JFT,
    MASKED_B16,
    MEAN_9,
    MODELS_9,
    TABLE_1,
    TABLE_2,
    TABLE_2_V1,
    TABLE_5,
    TABLE_6,
    TABLE_7,
    TABLE_8,
    TABLE_9,
    Score,
)
from vitlab.errors import UsageError
from vitlab.models.cost import cost
from vitlab.studies.paper import ITEMS, Item, PaperItem, item_called
from vitlab.studies.paper_rows import Measured, vit_compute_at

NAMES = [item.name for item in ITEMS]
WITH_ROWS = [item for item in ITEMS if item.rows is not None]
STILL = [item for item in ITEMS if not item.live]  # tests/studies/test_explained.py has the others


def values(scores: dict[str, Score]) -> dict[str, float]:
    return {name: score.value for name, score in scores.items()}


# --- the data -----------------------------------------------------------------------------------------------------------------


def test_the_tables_have_the_numbers_of_the_paper_and_their_sums() -> None:
    two = [score for row in TABLE_2 for score in row.scores.values()]
    assert len(two) == 30
    assert sum(score.value for score in two) == pytest.approx(2660.52 + 88.4)
    assert [score.second for score in two if score.second is not None] == [88.5]
    spreads = [score.deviation for score in two if score.deviation is not None]
    assert len(spreads) == 27
    assert sum(spreads) == pytest.approx(3.83)
    assert [row.core_days for row in TABLE_2] == [2500, 680, 230, 9900, 12300]
    five = [score.value for row in TABLE_5 for score in row.scores.values()]
    assert len(five) == 84
    assert sum(five) == pytest.approx(7667.35)
    six = [score.value for row in TABLE_6 for score in row.scores.values()]
    assert len(six) == 18 * 6
    assert sum(six) == pytest.approx(10049.41)
    assert (sum(row.exaflops for row in TABLE_6), sum(row.epochs for row in TABLE_6)) == (15721, 161)
    assert len(TABLE_8) == 8
    assert sum(TABLE_8.values()) == pytest.approx(509.945)
    assert [sum(column) for column in zip(*(scores for _, scores in TABLE_9.values()), strict=True)] == [
        pytest.approx(1475.0),
        pytest.approx(1449.5),
        pytest.approx(1381.5),
    ]


def test_the_first_version_of_table_2_differs_in_imagenet_real_and_vtab_alone() -> None:
    later = {row.model: row for row in TABLE_2 if row.trained_on != "ImageNet-21k"}
    for row in TABLE_2_V1:
        changed = {name for name in row.scores if row.scores[name] != later[row.model].scores[name]}
        assert changed == ({"ImageNet", "ReaL", "VTAB"} if row.model.startswith("ViT") else set())
    assert values(dict(TABLE_2_V1[0].scores))["ImageNet"] == 88.36


def test_tables_5_and_6_have_the_same_numbers_of_the_same_models() -> None:
    five = {row.model: row.scores for row in TABLE_5 if row.trained_on == JFT}
    for model, epochs in (("ViT-B/16", 7), ("ViT-B/32", 7), ("ViT-L/32", 7), ("ViT-L/16", 14)):
        (row,) = (row for row in TABLE_6 if (row.model, row.epochs) == (model, epochs))
        assert row.scores == five[model]


def test_printed_averages_are_the_averages_of_what_is_printed() -> None:
    for row in TABLE_7:
        assert sum(score.value for score in row.scores.values()) / 5 == pytest.approx(row.average, abs=0.0051)
    columns = zip(*(scores for _, scores in TABLE_9.values()), strict=True)
    for column, mean, (model, data) in zip(columns, MEAN_9, MODELS_9, strict=True):
        assert sum(column) / 19 == pytest.approx(mean, abs=0.051)
        (of_two,) = (row for row in TABLE_2 if (row.model, row.trained_on) == (model, data))
        assert of_two.scores["VTAB"].value == pytest.approx(mean, abs=0.051)


def test_table_1_is_what_the_models_here_are() -> None:
    for row, name in zip(TABLE_1, ("ViT-B/16", "ViT-L/32", "ViT-H/14"), strict=True):
        config: Any = variant(name)
        assert (config.depth, config.width, config.mlp_width, config.heads) == (row.layers, row.width, row.mlp_width, row.heads)
        assert cost(config).parameters / 1e6 == pytest.approx(row.parameters, abs=1)


def test_twice_the_epochs_is_twice_the_compute() -> None:
    by = {(row.model, row.epochs): row.exaflops for row in TABLE_6}
    for model in ("ViT-L/16", "BiT-R152x2"):
        assert by[model, 14] == pytest.approx(2 * by[model, 7], abs=1)


def test_masked_prediction_lies_two_above_scratch_and_four_below_supervised() -> None:
    b16 = {row.trained_on: row.scores["ImageNet"].value for row in TABLE_5 if row.model == "ViT-B/16"}
    assert MASKED_B16 - b16["ImageNet-1k"] == pytest.approx(2, abs=0.1)
    assert b16["ImageNet-21k"] - MASKED_B16 == pytest.approx(4, abs=0.1)


# --- what is computed and measured --------------------------------------------------------------------------------------------


def rows_of(name: str) -> Any:
    return PaperItem(item_called(name)).rows


def test_the_computed_compute_is_within_a_percent_of_the_printed_one() -> None:
    """Two printed numbers follow from no rule that gives the others: docs/guides/reproduce-the-paper.md."""
    odd = {("R50+ViT-L/16", 7): (-0.032, -0.03), ("ViT-B/32", 7): (0.019, 0.021)}
    by = {(row.model, row.epochs): row.exaflops for row in TABLE_6}
    assert 2 * by["R50+ViT-L/16", 7] > 1.02 * by["R50+ViT-L/16", 14], "twice the epochs are not twice the compute there"
    for row in rows_of("table6"):
        key = (row.about["model"], int(row.about["epochs"]))
        low, high = odd.get(key, (-0.01, 0.01))
        off = cost(variant(key[0])).training_exaflops(key[1] * 303e6) / row.published["exaFLOPs"] - 1
        assert low <= off <= high, row.about
        assert row.computed["exaFLOPs"] == pytest.approx((1 + off) * row.published["exaFLOPs"], abs=0.06)


def test_the_talks_percentages_follow_from_its_speeds() -> None:
    gains = {
        (row.about["model"], row.about["pixels"]): row.computed["faster than Swin, A100, %"]
        for row in rows_of("transformers-or-cnns")
    }
    printed = {("T", "224"): 47, ("S", "224"): 49, ("B", "224"): 46, ("B", "384"): 39, ("L", "224"): 40, ("L", "384"): 34}
    assert {key: gains[f"ConvNeXt-{key[0]}", key[1]] for key in printed} == printed


def test_every_resnet_that_a_vit_equals_takes_at_least_twice_its_compute() -> None:
    ratios = [row.computed["times the ViT's"] for row in rows_of("figure5") if row.computed["times the ViT's"] is not None]
    assert ratios
    assert min(ratios) > 2
    assert vit_compute_at(50.0) is None
    assert vit_compute_at(TABLE_6[0].average) == pytest.approx(TABLE_6[0].exaflops)


def test_every_measured_number_stands_in_its_section_of_the_results(checkout: Path) -> None:
    parts = re.split(r"^## (.+)$", (checkout / "docs" / "results.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    found = 0
    for item in STILL:
        assert set(item.sections) <= set(sections), item.name
        for row in PaperItem(item).rows:
            for measured in row.measured.values():
                if isinstance(measured, Measured):
                    found += 1
                    assert str(measured) in sections[measured.section], (item.name, str(measured))
                    assert measured.section in item.sections
    assert found > 20


@pytest.mark.parametrize("item", STILL, ids=lambda item: item.name)
def test_the_state_of_an_item_says_what_its_rows_have(item: Item) -> None:
    made = PaperItem(item)
    if item.state == "measured in miniature":
        assert item.sections
    if item.state == "computed":
        assert all(any(value is not None for value in row.computed.values()) for row in made.rows)
    if item.state in ("drawn for any model", "as code"):
        assert not made.rows


def test_every_command_is_one_that_vitlab_understands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.safetensors", "h14.safetensors", "b16.npz", "deit_tiny.npz"):
        Path(name).touch()
    commands = {item.command for item in ITEMS} | {row.command for item in STILL for row in PaperItem(item).rows}
    for command in sorted(commands - {""}):
        program, verb, *words = shlex.split(command)
        if verb in GROUPS:
            verb, words = f"{verb} {words[0]}", words[1:]
        assert program == "vitlab"
        arguments, _ = parse(VERBS[verb], words, verb=verb, notice=pytest.fail)
        for name in [arguments.get("model"), *(arguments.get("models") or ())]:
            if isinstance(name, str) and not Path(name).exists():
                variant(name)


# --- the verb -----------------------------------------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> tuple[str, str]:
    assert main(["paper", *map(str, words)]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_list_has_every_item_with_its_state_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(capsys)
    for item in ITEMS:
        assert len([line for line in out.splitlines() if line.split(maxsplit=1)[:1] == [item.name]]) == 2
        assert item.state in out
        assert item.command in out
    listed = json.loads(shown(capsys, "--json")[0])
    assert [entry["item"] for entry in listed] == NAMES
    tables = [f"table{number}" for number in range(1, 10)]
    figures = [f"figure{number}" for number in range(1, 15)]
    assert {*tables, *figures, "table2-v1", "objectnet", "transformers-or-cnns", "imagenet-years"} <= set(NAMES)


@pytest.mark.parametrize("name", [item.name for item in STILL])
def test_an_item_prints_every_row_and_is_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(capsys, name)
    found = json.loads(shown(capsys, name, "--json")[0])
    assert found["item"] == name
    assert found["source"] in out
    assert len(out.splitlines()) >= len(found["rows"]) + 4
    assert vitlab.paper(name).to_json() == found


def test_published_and_computed_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = shown(capsys, "table6")
    (line,) = [line for line in out.splitlines() if line.startswith("ViT-H/14")]
    assert {"88.08", "4,262", "4258", "-0.1"} <= set(line.split())
    assert line.endswith("vitlab pretrain jft --recipe jft --model ViT-H/14 --epochs 14")
    first = json.loads(shown(capsys, "table2", "--json")[0])["rows"][0]
    assert first["published"]["ImageNet"] == {"value": 88.55, "deviation": 0.04}
    assert first["published"]["TPUv3-core-days"] == 2500
    out, _ = shown(capsys, "table2")
    assert "88.55 ± 0.04" in out
    assert "88.4 / 88.5" in out


def test_a_computed_number_follows_the_cost_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from vitlab.studies import paper_rows

    before = rows_of("table6")[0].computed["exaFLOPs"]
    monkeypatch.setattr(paper_rows, "cost", lambda config: replace(cost(config), macs=2 * cost(config).macs))
    assert rows_of("table6")[0].computed["exaFLOPs"] == pytest.approx(2 * before, rel=0.01)


@pytest.mark.parametrize(
    ("word", "near"),
    [("tabel2", "table2"), ("table10", "table1"), ("figre5", "figure5"), ("object", "objectnet"), ("xyz", "one of table1")],
)
def test_an_unknown_item_is_one_sentence_with_the_nearest_names(word: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = shown(capsys, word, code=2)
    error, hint = err.splitlines()
    assert f"no table or figure called '{word}'" in error
    assert near in hint


@pytest.mark.parametrize("word", ["Table 2", "TABLE2", "table-2"])
def test_an_item_is_found_in_any_spelling(word: str) -> None:
    assert item_called(word).name == "table2"


@pytest.mark.parametrize("name", ["table8", "figure3", "figure5", "transformers-or-cnns", "imagenet-years"])
def test_an_item_is_drawn(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "item.png"
    shown(capsys, name, "--figure", path)
    with Image.open(path) as image:
        assert image.width > 500
        colours = image.convert("RGB").getcolors(1 << 24)
    assert colours is not None
    assert len(colours) > 20


def test_a_figure_is_svg_by_its_ending_and_not_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "item.svg"
    shown(capsys, "table7", "--figure", path)
    drawn = path.read_text(encoding="utf-8")
    assert "BiT-R50x1, SGD" in drawn
    _, err = shown(capsys, "table7", "--figure", path, code=1)
    assert "exists already" in err
    path.write_text("old", encoding="utf-8")
    shown(capsys, "table7", "--figure", path, "--overwrite")
    assert path.read_text(encoding="utf-8").startswith("<?xml")


def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs an item" in shown(capsys, "--figure", tmp_path / "a.png", code=2)[1]
    assert "no numbers to draw" in shown(capsys, "figure6", "--figure", tmp_path / "a.png", code=2)[1]
    assert ".png" in shown(capsys, "table7", "--figure", tmp_path / "a.gif", code=1)[1]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError):
        vitlab.paper(figure=tmp_path / "a.png")


def test_the_slides_speeds_are_as_printed() -> None:
    printed = {  # images/s on an A100
        ("Swin-T", "224"): 1325.6, ("ConvNeXt-T", "224"): 1943.5, ("Swin-S", "224"): 857.3, ("ConvNeXt-S", "224"): 1275.3,
        ("Swin-B", "224"): 662.8, ("ConvNeXt-B", "224"): 969.0, ("Swin-B", "384"): 242.5, ("ConvNeXt-B", "384"): 336.6,
        ("Swin-L", "224"): 435.9, ("ConvNeXt-L", "224"): 611.5, ("Swin-L", "384"): 157.9, ("ConvNeXt-L", "384"): 211.4,
        ("ConvNeXt-XL", "224"): 424.4, ("ConvNeXt-XL", "384"): 147.4,
    }  # fmt: skip
    rows = rows_of("transformers-or-cnns")
    assert {(row.about["model"], row.about["pixels"]): row.published["images/s, A100"].value for row in rows} == printed
    for row in rows:
        assert row.computed["GMACs"] == pytest.approx(row.published["GMACs"].value, abs=0.11)


def test_table_2_has_core_days_by_the_stated_efficiency_with_their_error() -> None:
    errors = {
        (row.about["model"], row.about["trained on"]): row.computed["difference, %"]
        for row in rows_of("table2")
        if row.computed["difference, %"] is not None
    }
    assert errors == {("ViT-H/14", JFT): -15.6, ("ViT-L/16", JFT): 14.1, ("ViT-L/16", "ImageNet-21k"): 1.6}


def test_the_years_are_in_order_and_the_best_accuracy_only_rises() -> None:
    rows = rows_of("imagenet-years")
    years = [int(row.about["year"]) for row in rows]
    assert years == sorted(years)
    assert years[0] == 2012
    assert all(row.about["source"] for row in rows)
    best = [max(row.published["ImageNet"] for row in rows if int(row.about["year"]) <= year) for year in (2012, 2015, 2018, 2021)]
    assert best == [63.3, 80.62, 85.4, 90.88]
