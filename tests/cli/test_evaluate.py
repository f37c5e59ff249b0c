"""`vitlab evaluate`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.inference import small
from vitlab.checkpoints import load
from vitlab.cli.main import main
from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.opening import open_dataset
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.label_mapping import match_by_name

KINDS = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.saved(tmp_path_factory.mktemp("model") / "model.safetensors", KINDS)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of seven classes, those three first."""
    return small.saved(tmp_path_factory.mktemp("large") / "model.safetensors")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for place, kind in enumerate(KINDS):
        small.photos(tmp_path / "pets" / kind, 6, start=10 * place)
    return tmp_path / "pets"


def evaluated(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> tuple[str, list[str]]:
    assert main(["evaluate", *map(str, words), "--workers", "0"]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err.splitlines()


def output(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    return json.loads(evaluated(capsys, *words, "--json")[0])


def test_the_json_is_what_the_library_finds(model: Path, pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = output(capsys, model, pets)
    dataset = open_dataset(pets, split="all")
    found = evaluate(load(model), dataset, match_by_name(dataset.labels, KINDS, classes=3), config=EvaluateConfig(workers=0)).result
    assert isinstance(found, Classification)
    assert report["top1"] == {
        "value": found.top1.value, "correct": found.top1.correct, "total": 18, "interval": list(found.top1.interval or ()),
    }  # fmt: skip
    assert report["loss"] == pytest.approx(found.loss)
    assert report["temperature"] == pytest.approx(found.temperature)
    assert report["calibration_error"] == pytest.approx(found.calibration.error)
    assert len(report["calibration"]) == 15
    assert [score["total"] for score in report["per_class"]] == [6, 6, 6]
    assert sum(pair["count"] for pair in report["confusion"]) == 18
    assert report["classes"] == list(KINDS)
    assert report["preprocess"]["image_size"] == [32, 32]
    assert report["failures"] == []


def test_the_page_for_eyes_has_the_numbers_of_the_json(model: Path, pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = output(capsys, model, pets)
    out, said = evaluated(capsys, model, pets)
    (line,) = [line for line in out.splitlines() if line.startswith("top-1")]
    assert f"{100 * report['top1']['value']:.2f} %" in line
    assert f"{report['top1']['correct']} of 18" in line
    assert "95 %" in line
    assert "top-5" not in out  # of three classes
    assert "worst class" in out
    assert said == ["note: the data declares no splits: all 18 images are evaluated"]


def test_classes_in_another_order_or_unknown_are_refused_with_what_differs(
    model: Path, large: Path, pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, said = evaluated(capsys, large, pets, code=1)
    assert "3 of the model's 7 classes; it does not have" in said[-2]
    assert "--subset" in said[-1]
    (pets / "owl").rename(pets / "ape")
    _, said = evaluated(capsys, model, pets, code=1)
    assert "does not know ape" in said[-2]
    assert "does not have owl" in said[-2]
    _, said = evaluated(capsys, large, pets, "--subset", code=1)
    assert "does not know ape" in said[-2]


def test_a_subset_is_matched_by_name_and_judged_both_ways(large: Path, pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pets / "owl").rename(pets / "bee")  # sorted: bee, cat, dog; the model has cat, dog, owl, emu, yak, ant, bee
    report = output(capsys, large, pets, "--subset")
    assert report["within_top1"]["correct"] >= report["top1"]["correct"]
    assert [score["label"] for score in report["per_class"]] == ["bee", "cat", "dog"]
    out, _ = evaluated(capsys, large, pets, "--subset")
    assert "top-1 among the data's classes" in out


def test_a_checkpoint_without_labels_takes_the_datas_and_says_so(
    pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vitlab.checkpoints import save

    save(small.checkpoint(None, classes=3), tmp_path / "nameless.safetensors")
    _, said = evaluated(capsys, tmp_path / "nameless.safetensors", pets)
    assert any("no labels" in line for line in said)
    save(small.checkpoint(None, classes=4), tmp_path / "four.safetensors")
    _, said = evaluated(capsys, tmp_path / "four.safetensors", pets, code=1)
    assert "3 classes and the model 4" in said[-2]


def test_a_corrupt_image_stops_by_name_or_is_counted_as_wrong(model: Path, pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = pets / "dog" / "photo-012.jpg"
    bad.write_bytes(b"junk")
    out, said = evaluated(capsys, model, pets, code=1)
    assert out == ""
    assert str(bad) in said[-2]
    report = output(capsys, model, pets, "--corrupt", "skip")
    assert (report["images"], report["unreadable"], report["top1"]["total"]) == (18, 1, 18)
    assert report["failures"][0]["name"] == str(bad)
    out, said = evaluated(capsys, model, pets, "--corrupt", "skip")
    assert "1, counted as wrong" in out
    assert any(line.startswith("unreadable: ") for line in said)


def test_a_mapping_and_real_labels_come_from_files(
    large: Path, pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "map.json").write_text(json.dumps({"cat": ["cat", "yak"], "dog": [1, 6], "owl": []}))
    report = output(capsys, large, pets, "--mapping", tmp_path / "map.json")
    assert report["images"] == 12
    assert report["temperature"] is None
    files = sorted(pets.rglob("*.jpg"))
    (tmp_path / "real.csv").write_text(
        "file,real_labels\n" + "".join(f"{file.name},{place % 3}\n" for place, file in enumerate(files))
    )
    report = output(capsys, large, pets, "--subset", "--real", tmp_path / "real.csv")
    assert report["real"]["total"] == 18
    assert main(["evaluate", str(large), str(pets), "--mapping", "a", "--subset"]) == 2


def test_corruptions_are_tabled_with_their_mean(model: Path, pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = output(capsys, model, pets, "--corruptions", "fog,contrast", "--severities", "1,5")["robustness"]
    assert [row["corruption"] for row in report["corruptions"]] == ["fog", "contrast"]
    assert report["severities"] == [1, 5]
    values = [value for row in report["corruptions"] for value in row["values"]]
    assert report["mean"] == pytest.approx(sum(values) / 4)
    out, _ = evaluated(capsys, model, pets, "--corruptions", "fog,contrast", "--severities", "1,5")
    assert "severity 1" in out
    assert "kept" in out
    _, said = evaluated(capsys, model, pets, "--corruptions", "smog", code=1)
    assert said[-2] == "error: no corruption called 'smog'"


def test_a_line_for_each_image_is_written(model: Path, pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(capsys, model, pets, "--per-image", tmp_path / "lines.csv")
    assert len((tmp_path / "lines.csv").read_text().splitlines()) == 19
    _, said = evaluated(capsys, model, pets, "--per-image", tmp_path / "no" / "lines.csv", code=1)
    assert "cannot write" in said[-2]


def test_several_labels_an_image_are_evaluated_by_average_precision(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = small.photos(tmp_path / "tagged", 6)
    tags = ("cat", "cat|dog", "dog", "owl", "owl|cat", "dog|owl")
    (tmp_path / "tagged" / "labels.csv").write_text(
        "file,labels\n" + "".join(f"{file.name},{tag}\n" for file, tag in zip(files, tags, strict=True))
    )
    report = output(capsys, model, tmp_path / "tagged" / "labels.csv")
    assert 0 < report["mean_average_precision"] <= 1
    out, _ = evaluated(capsys, model, tmp_path / "tagged" / "labels.csv")
    assert "mean average precision" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("nowhere",), 1, "nowhere does not exist"),
        ((".", "--split", "tests"), 2, "--split: 'tests' is not one of"),
        ((".", "--severities", "9"), 2, "--severities: '9' is neither a severity"),
        ((".", "--batch-size", "0"), 1, "--batch-size 0"),
        ((".", "--real", "nowhere.csv"), 1, "nowhere.csv cannot be read"),
        ((".", "--mapping", "nowhere.json"), 1, "nowhere.json cannot be read"),
        ((".", "--image-size", "33"), 1, "--image-size 33x33"),
    ],
)
def test_wrong_words_are_an_error_of_one_line(
    model: Path, pets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...], code: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(pets)
    out, said = evaluated(capsys, model, *words, code=code)
    assert out == ""
    (error,) = [line for line in said if line.startswith("error: ")]
    assert message in error


def test_merging_nothing_changes_nothing_and_merging_much_changes_the_loss(
    model: Path, pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = output(capsys, model, pets)
    assert output(capsys, model, pets, "--merge", "0")["loss"] == plain["loss"]
    merged = output(capsys, model, pets, "--merge", "3")
    assert merged["images"] == plain["images"]
    assert merged["loss"] != plain["loss"]
    assert merged["loss"] == pytest.approx(plain["loss"], rel=0.5)
    _, errors = evaluated(capsys, model, pets, "--knn", "--merge", "3", code=2)
    assert "--merge" in errors[0]


def test_tta_is_the_same_for_images_and_their_mirror_images(
    model: Path, pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in sorted(pets.rglob("*.jpg")):
        mirrored = tmp_path / "mirrored" / path.relative_to(pets).with_suffix(".png")
        mirrored.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(mirrored)
    squash = ("--resize", "squash")  # the crop of an odd number of pixels has no mirror image
    plain, twice = (output(capsys, model, pets, *squash, *tta)["loss"] for tta in ((), ("--tta", "mirror")))
    other = output(capsys, model, tmp_path / "mirrored", *squash, "--tta", "mirror")["loss"]
    assert other == pytest.approx(twice, rel=1e-3)
    assert plain != pytest.approx(twice, rel=1e-3)
    for code, *refused in (
        (2, "--knn", "--tta", "mirror"),
        (2, "--corruptions", "fog", "--tta", "crops"),
        (1, "--resize", "squash", "--tta", "crops"),
    ):
        _, errors = evaluated(capsys, model, pets, *refused, code=code)
        assert "crop" in " ".join(errors) or "--tta" in " ".join(errors)


def test_an_option_for_results_is_answered_by_the_one_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "model.npz", "pets", "--out", "lines.csv"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "hint: did you mean --per-image?"
