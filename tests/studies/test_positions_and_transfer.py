"""Studies that train many small models: their runs differ as they should, all are run, and a finished study is not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from vitlab.cli.main import main
from vitlab.config.paper_tables import TABLE_8
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.studies import positions as positions_study
from vitlab.studies import summary
from vitlab.studies.positions import CELLS, Cell, draw_positions, jobs_of, positions
from vitlab.studies.runner import Done
from vitlab.studies.transfer import FAMILIES, TransferPlan, draw_curves, transfer
from vitlab.studies.transfer import jobs_of as transfer_jobs
from vitlab.training.control import Control


def test_the_grid_of_table_8_is_whole_and_its_runs_differ_in_positions_alone(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, images=640, seeds=1)
    models = [job.run.model for job in jobs]
    assert len(jobs) == len(CELLS) == 10
    assert set(TABLE_8) <= set(CELLS)
    placed = {(model.position.kind, model.position.place) for model in models if isinstance(model, ViTConfig)}
    assert placed == set(CELLS)
    assert len({(job.run.data, job.run.train) for job in jobs}) == 1


def test_the_positions_study_fills_every_cell_and_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions_study, "CELLS", (("none", "stem"), ("relative", "every")))
    *_, cells = positions(tmp_path, images=64, seeds=1, control=Control())
    assert isinstance(cells, tuple)
    assert [(cell.kind, cell.place, cell.published) for cell in cells] == [
        ("none", "stem", 61.382),
        ("relative", "every", None),
    ]
    again = list(positions(tmp_path, images=64, seeds=1, control=Control()))
    assert [event.before for event in again if isinstance(event, Done)] == [True, True]
    assert again[-1] == cells


def test_the_positions_study_is_printed_and_drawn_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = tuple(Cell(kind=kind, place=place, accuracy=(0.5,), published=TABLE_8.get((kind, place))) for kind, place in CELLS)
    monkeypatch.setattr(summary, "positions", lambda out, **_: iter([cells]))  # as if all runs were finished
    assert main(["study", "positions", "--out", str(tmp_path), "--seeds", "1"]) == 0
    found = capsys.readouterr()
    assert [line.split()[0] for line in found.out.splitlines()] == ["positions", "none", "1-D", "2-D", "relative"]
    assert "[61.4]" in found.out
    assert f"plot: {tmp_path / 'positions.png'}" in found.err
    with Image.open(tmp_path / "positions.png") as drawn:
        assert drawn.format == "PNG"
        assert min(drawn.size) > 100


def test_the_plot_of_positions_names_every_embedding_and_says_where_the_paper_has_no_number() -> None:
    cells = [Cell(kind=kind, place=place, accuracy=(0.5, 0.6), published=TABLE_8.get((kind, place))) for kind, place in CELLS]
    drawn = draw_positions(cells, Path("a.svg")).decode()
    for words in ("1-D, at the stem", "2-D, at every layer", "relative, every layer, shared", "Here, mean of 2 seeds"):
        assert f"<!-- {words}" in drawn  # matplotlib's comment before the outlines of a text
    assert drawn.count("<!-- not in the table -->") == len(CELLS) - len(TABLE_8)
    assert draw_positions(cells[:1], Path("a.png")).startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="nothing to draw"):
        draw_positions([], Path("a.png"))


def test_every_family_is_trained_with_and_without_pretraining_on_the_same_labels(tmp_path: Path) -> None:
    plan = TransferPlan(shots=(2,), letters=64, steps=2, families=("ViT", "LSTM"))
    *_, curves = transfer(tmp_path, plan, control=Control())
    assert isinstance(curves, tuple)
    assert all(0 <= curve.accuracy[0] <= 1 for curve in curves)
    assert [(curve.family, curve.pretrained) for curve in curves] == [
        ("ViT", True),
        ("ViT", False),
        ("LSTM", True),
        ("LSTM", False),
    ]
    assert draw_curves(curves, Path("a.svg")).startswith(b"<?xml")


def test_runs_of_all_families_have_the_same_budget(tmp_path: Path) -> None:
    jobs = transfer_jobs(tmp_path, TransferPlan(shots=(3, 5)))
    assert len(jobs) == len(FAMILIES) * (1 + 2 * 2)
    for ending in ("-scratch-3", "-pretrained-5", "-letters"):
        same = [job.run for job in jobs if job.name.endswith(ending)]
        assert len(same) == len(FAMILIES)
        assert len({run.train for run in same}) == 1


def test_an_impossible_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="no family called 'Mamba'"):
        TransferPlan(families=("Mamba",))
    with pytest.raises(ConfigError, match="shots"):
        TransferPlan(shots=())
