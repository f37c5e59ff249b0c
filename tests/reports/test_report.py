"""A report is one page that holds all that is known of a run, in which text never becomes markup."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reports.small import HOSTILE, made_run, run_of, write_pack
from vitlab.checkpoints import load
from vitlab.checkpoints.reading import model_in
from vitlab.cli.main import main
from vitlab.config.train import Average
from vitlab.errors import TrainingError
from vitlab.io.display import printable
from vitlab.reports.charts import smoothed, thinned, ticks
from vitlab.reports.content import Comparison, curves, embedded_image, start_name
from vitlab.reports.report import WrittenReport, render, write_report
from vitlab.reports.run import evaluate_run, read_run

SECTIONS = ["summary", "curves", "classes", "mistakes", "inside", "calibration", "data", "cost", "again"]


class Seen(HTMLParser):
    """What a page holds: its text, its elements with their attributes, and whether each was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    return made_run(root / "small", run_of(write_pack(root / "squares.npz")))


@pytest.fixture(scope="module")
def written(folder: Path) -> WrittenReport:
    return write_report(folder, cores=1)


@pytest.fixture(scope="module")
def seen(written: WrittenReport) -> Seen:
    return Seen(written.path.read_text())


def test_every_element_is_closed_and_every_section_is_there(seen: Seen) -> None:
    assert seen.open == []
    assert [attributes["id"] for name, attributes in seen.elements if name == "section"] == SECTIONS
    links = [attributes["href"] for name, attributes in seen.elements if name == "a"]
    assert links == [f"#{section}" for section in SECTIONS]


def test_nothing_in_it_points_outside(seen: Seen, written: WrittenReport) -> None:
    for _, attributes in seen.elements:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?://", written.path.read_text())
    assert written.bytes == written.path.stat().st_size < 5_000_000


def test_class_names_are_shown_as_they_are(seen: Seen) -> None:
    for name in HOSTILE:
        assert name in seen.words
    assert sum(name == "script" for name, _ in seen.elements) == 1


def test_the_headline_is_what_evaluate_says_of_the_same_images(
    folder: Path, written: WrittenReport, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = json.loads((folder / "run.json").read_text())["data"]["dataset"]
    assert main(["evaluate", str(folder / "model.safetensors"), dataset, "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert written.accuracy == pytest.approx(stated["top1"]["value"] if isinstance(stated["top1"], dict) else stated["top1"])
    assert written.images == 18
    assert f"{100 * (written.accuracy or 0):.1f}" in written.path.read_text()


def test_the_verb_writes_the_same_report_and_says_where(
    folder: Path, written: WrittenReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "other.html"
    assert main(["report", str(folder), "--out", str(out), "--cores", "1", "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert (stated["report"], stated["bytes"]) == (str(out), written.bytes)
    assert out.read_text() == written.path.read_text()


def test_the_config_in_it_makes_the_same_run(seen: Seen, folder: Path) -> None:
    text = "".join(seen.words)
    start = text.index('{\n  "data"') if '{\n  "data"' in text else text.index("{\n  ")
    assert json.JSONDecoder().raw_decode(text[start:])[0] == json.loads((folder / "run.json").read_text())
    assert f"vitlab train {folder}/run.json --out {folder}-again" in text


def test_a_comparison_stands_in_it_as_it_was_given(folder: Path, tmp_path: Path) -> None:
    table = Comparison(
        title="Two <runs>",
        sentences=("A & B.",),
        heads=("", "few"),
        rows=(("one", "90.0 %"), ("two", "80.0 %")),
        curves=(("one", folder), ("two", folder)),
    )
    seen = Seen(write_report(folder, tmp_path / "both.html", comparison=table).path.read_text())
    assert {"Two <runs>", "A & B.", "90.0 %", "80.0 %"} <= set(seen.words)


def test_an_unfinished_run_is_reported_as_unfinished(folder: Path, tmp_path: Path) -> None:
    run = run_of(write_pack(tmp_path / "squares.npz"))
    unfinished = made_run(tmp_path / "run", run)
    (unfinished / "model.safetensors").unlink()
    assert "The run is not finished" in write_report(unfinished).path.read_text()


def test_a_report_of_a_stopped_run_evaluates_the_weights_that_every_other_verb_takes(tmp_path: Path) -> None:
    run = run_of(write_pack(tmp_path / "squares.npz"))
    averaged = replace(run, train=replace(run.train, average=Average(decay=0.9)))
    stopped = made_run(tmp_path / "run", averaged)
    (stopped / "model.safetensors").unlink()
    record = read_run(stopped)
    assert record.model == model_in(stopped)
    assert record.model.name == "average.safetensors"
    written = write_report(stopped)
    assert "averaged weights" in written.notes[0]
    assert written.accuracy == evaluate_run(record, load(stopped)).result.top1


def test_damaged_events_are_left_out_of_a_report(folder: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(folder, tmp_path / "run", symlinks=True)
    odd: list[object] = [None, "x", [], {}, True, 10**400, float("nan"), float("inf")]
    lines = [
        {"event": kind, **dict.fromkeys(("step", "loss", "images", "seconds", "metrics"), value)}
        for kind in ("stepped", "evaluated")
        for value in odd
    ]
    lines += [{"event": "evaluated", "step": 1, "metrics": {"top1": value}} for value in odd]
    with (damaged / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    Seen(write_report(damaged).path.read_text())


def test_a_run_without_labels_is_reported_without_accuracy(tmp_path: Path) -> None:
    from vitlab.config.train import Masked

    run = run_of(write_pack(tmp_path / "squares.npz"))
    run = replace(run, train=replace(run.train, masked=Masked(target="pixels")), model=replace(run.model, num_classes=0))
    written = write_report(made_run(tmp_path / "run", run))
    assert written.accuracy is None
    assert "has no classes" in written.path.read_text()


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingError, match="not a run folder"):
        write_report(tmp_path)
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "no file or folder" in capsys.readouterr().err


def test_a_report_into_no_folder_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--out", str(tmp_path / "no" / "x.html")]) == 1
    assert "there is no folder" in capsys.readouterr().err


@settings(max_examples=40)
@given(st.text(max_size=200))
def test_any_text_is_shown_and_never_becomes_markup(text: str) -> None:
    """The title stands in the page as text in three places, whatever it says."""
    plain, odd = Seen(_page("title")), Seen(_page(text))
    assert [name for name, _ in odd.elements] == [name for name, _ in plain.elements]
    assert printable(text) in odd.words or not text


def _page(title: str) -> str:
    """A page with as little in it as the template allows."""
    empty: dict[str, object] = {"facts": {}, "notes": (), "value": None, "interval": None, "sentence": ""}
    inside = {"figures": (), "distance": None, "cards": (), "left_out": ()}
    nothing = dict.fromkeys(("comparison", "classes", "masks", "boxes", "mistakes", "calibration", "data", "explorer"))
    return render(
        title=title, subtitle="", sections=[], summary=empty, inside=inside, curves=[], comparison_charts=[], skipped=0, cost={},
        dataset="", command="", versions={}, config_lines=[], **nothing,
    )  # fmt: skip


def test_a_run_without_steps_has_no_curves_and_says_why(folder: Path) -> None:
    record = read_run(folder)
    none = np.zeros(0)
    assert len(curves(record)) == 3
    assert curves(replace(record, history=replace(record.history, step=none, loss=none, accuracy=none, lr=none))) == []
    assert any("no training steps" in word for word in Seen(_page("title")).words)


def test_a_photograph_is_kept_small_and_a_drawing_exact() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3)).astype(np.uint8)
    assert "image/jpeg" in embedded_image(noise, alt="").src
    assert "image/png" in embedded_image(noise[:32, :32], alt="").src


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_lie_within_and_are_evenly_spaced(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 12
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in found)
    assert np.allclose(np.diff(found), np.diff(found)[0], rtol=1e-6, atol=1e-9 * span)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=900), st.integers(1, 60))
def test_smoothing_and_thinning_keep_the_range(values: list[float], over: int) -> None:
    smooth = smoothed(values, over=over)
    x, y = thinned([float(place) for place in range(len(values))], values, most=50)
    assert len(smooth) == len(values)
    assert len(x) == len(y) <= max(50, min(len(values), 50))
    for made in (smooth, y):
        assert min(values) - 1e-9 <= min(made) <= max(made) <= max(values) + 1e-9


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (None, "scratch"),
        ("/data/deit_tiny.npz", "deit_tiny.npz"),
        ("runs/letters/model.safetensors", "letters"),
        ("hub:timm/vit", "hub:timm/vit"),
    ],
)
def test_a_starting_checkpoint_is_given_by_name(start: str | None, name: str) -> None:
    assert start_name(start) == name
