"""`vitlab evaluate --fewshot --knn --probe` and `--vtab`: tables, JSON and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.vtab_miniatures import sprites
from tests.inference import small
from vitlab.cli.main import main
from vitlab.config.evaluation import VtabConfig
from vitlab.evaluation import summary

KINDS = ("cat", "dog", "owl")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.saved(tmp_path_factory.mktemp("model") / "model.safetensors", KINDS)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Other classes than the model's, in train and test."""
    for part, count, start in (("train", 8, 0), ("test", 4, 500)):
        for place, kind in enumerate(("ant", "bee")):
            small.photos(tmp_path / "pets" / part / kind, count, start=start + 100 * place)
    return tmp_path / "pets"


def evaluated(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> tuple[str, str]:
    assert main(["evaluate", *map(str, words), "--workers", "0"]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def output(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    return json.loads(evaluated(capsys, *words, "--json")[0])


def test_all_three_are_tabled(model: Path, pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = evaluated(
        capsys, model, pets, "--fewshot", "--shots", "1,5", "--seeds", "2", "--knn", "--neighbours", "1,3", "--probe"
    )
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["method", "accuracy", "deviation", "details"]
    assert [line[0] for line in lines[1:]] == ["1-shot", "5-shot", "1-NN", "3-NN", "linear"]
    assert "converged" in out
    assert "16 training images, 8 test images; 24 features extracted, 0 cached" in err
    assert "evaluated on test" in err


def test_the_json_has_every_number(model: Path, pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = output(capsys, model, pets, "--fewshot", "--knn", "--neighbours", "1,5", "--probe")
    assert [shot["shots"] for shot in report["few_shot"]] == [1, 5, 10, 25]
    assert all(len(shot["accuracies"]) == 3 for shot in report["few_shot"])
    assert report["few_shot"][-1]["classes_with_fewer"] == ["ant", "bee"]
    assert [near["total"] for near in report["knn"]] == [8, 8]
    assert report["probe"]["converged"] is True
    assert report["probe"]["gradient"] <= 1e-5
    assert report["probe"]["l2"] in [tried["l2"] for tried in report["probe"]["tried"]]
    assert (report["classes"], report["train_images"], report["test_images"], report["features_extracted"]) == (2, 16, 8, 24)
    again = output(capsys, model, pets, "--knn")
    assert [near["k"] for near in again["knn"]] == [1, 5, 10]  # of 16 images
    assert (again["features_extracted"], again["features_cached"], again["few_shot"], again["probe"]) == (0, 24, [], None)
    assert output(capsys, model, pets, "--knn", "--neighbours", "1", "--no-cache")["features_extracted"] == 24


def test_vtab_is_tabled_with_what_is_missing_and_the_paper(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dsprites").mkdir()
    sprites(tmp_path / "dsprites" / "dsprites_x.npz", count=200)
    (tmp_path / "pcam").mkdir()
    (tmp_path / "pcam" / "test_x.h5").write_bytes(b"")
    monkeypatch.setattr(summary, "VtabConfig", lambda test: VtabConfig(train=60, val=20, test=test))
    out, err = evaluated(capsys, model, "--vtab", tmp_path, "--vtab-test", "5")
    lines = {line.split()[0]: line for line in out.splitlines() if not line.startswith("mean")}
    assert len(lines) == 20
    assert lines["Pets"].split() == ["Pets", "natural", "-", "97.2", "96.7", "92.7", "-", "missing"]
    assert lines["Camelyon"].split()[-1] == "failed"
    assert lines["dSpr-Loc"].split()[3:7] == ["%", "79.4", "74.5", "74.7"]
    means = [line for line in out.splitlines() if line.startswith("mean")]
    assert "PARTIAL: 0 of 7 tasks" in means[0]
    assert "PARTIAL: 2 of 8 tasks" in means[2]
    assert "PARTIAL: 2 of 19 tasks" in means[3]
    assert "fine-tunes" in err
    assert "not the published one" in err
    assert "at most 5 test images" in err
    assert "failed: Camelyon: " in err
    assert "missing: Caltech101, CIFAR-100" in err
    assert "(16 of 19 tasks)" in err
    report = output(capsys, model, "--vtab", tmp_path, "--vtab-test", "5")
    assert [task["task"] for task in report["tasks"]] == ["dSpr-Loc", "dSpr-Ori"]
    assert [task["task"] for task in report["failed"]] == ["Camelyon"]
    assert len(report["missing"]) == 16
    assert report["means"][3]["complete"] is False
    assert report["preprocess"]["resize"] == "squash"
    assert "fine-tunes" in report["protocol"]
    assert output(capsys, model, "--vtab", tmp_path, "--vtab-test", "5", "--resize", "pad")["preprocess"]["resize"] == "pad"


def test_vtab_is_fine_tuned_beside_the_probe_drawn_and_not_repeated(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dsprites").mkdir()
    sprites(tmp_path / "dsprites" / "dsprites_x.npz", count=200)
    monkeypatch.setattr(summary, "VtabConfig", lambda test: VtabConfig(train=60, val=20, test=test))
    words: list[str | Path] = [model, "--vtab", tmp_path, "--vtab-test", "5", "--vtab-finetune", tmp_path / "runs"]
    words += ["--vtab-steps", "2"]
    words += ["--image-size", "32", "--vtab-plot", tmp_path / "figure2.png"]
    out, _ = evaluated(capsys, *words)
    assert out.splitlines()[0].split()[:5] == ["task", "group", "accuracy", "fine-tuned", "H/14"]
    run = json.loads((tmp_path / "runs" / "dspr-loc" / "run.json").read_text())
    assert (run["train"]["steps"], run["train"]["optimizer"]["kind"]) == (2, "sgd")
    assert run["data"]["train_split"] == "train"
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")
    before = (tmp_path / "runs" / "dspr-loc" / "events.jsonl").stat().st_mtime_ns
    report = output(capsys, *words)
    assert (tmp_path / "runs" / "dspr-loc" / "events.jsonl").stat().st_mtime_ns == before  # not trained again
    assert all(0 <= task["finetuned"] <= 1 for task in report["tasks"])
    assert report["means"][3]["finetuned"] == sum(task["finetuned"] for task in report["tasks"]) / 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--fewshot"], "no data to evaluate on"),
        (["pets", "--vtab-finetune", "runs"], "needs --vtab"),
        (["--vtab", ".", "--vtab-steps", "3"], "needs --vtab-finetune"),
        ([], "no data to evaluate on"),
        (["pets", "--vtab", "."], "in place of data"),
        (["--vtab", ".", "--fewshot"], "--fewshot is for data"),
        (["--vtab", ".", "--split", "val"], "--split is for data"),
        (["pets", "--fewshot", "--shots", "1,x"], "not a whole number"),
        (["pets", "--knn", "--neighbours", "0"], "at least 1"),
        (["pets", "--fewshot", "--seeds", "0"], "--seeds 0 must be at least 1"),
        (["pets", "--probe", "--subset"], "--subset is for the checkpoint's own head"),
        (["pets", "--knn", "--corruptions", "all"], "--corruptions is for the checkpoint's own head"),
    ],
)
def test_what_makes_no_sense_is_refused(model: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = evaluated(capsys, model, *words, code=2)
    assert complaint in err
    assert err.startswith("error: ")


def test_what_cannot_be_done_says_why(model: Path, pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[list[str | Path], str]] = [
        ([pets, "--fewshot", "--shots", "5,1"], "shots="),
        ([pets, "--knn", "--neighbours", "1,100"], "k=100 neighbours of 16"),
        ([pets, "--fewshot", "--split", "all"], "no images to train on"),
        (["--vtab", tmp_path / "nowhere"], "no folder"),
        (["--vtab", tmp_path], "none of the 19"),
        (["--vtab", pets, "--vtab-splits", tmp_path / "no.json"], "no.json"),
    ]
    for words, complaint in cases:
        _, err = evaluated(capsys, model, *words, code=1)
        assert complaint in err
