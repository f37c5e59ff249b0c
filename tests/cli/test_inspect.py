"""`vitlab inspect`: figures on disk, their numbers on stdout, and refusals with reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.checkpoints import Checkpoint, save
from vitlab.cli.main import main
from vitlab.config import ModelConfig, Preprocess, ResNetConfig, variant
from vitlab.config.vit import ViTConfig
from vitlab.interpretation.attention import attention_distance
from vitlab.interpretation.figures import NAMES, model_images, spread
from vitlab.models import build


def saved(path: Path, config: ModelConfig, labels: tuple[str, ...] | None = ("cat", "dog", "$owl")) -> Path:
    fed = Preprocess(image_size=config.image_size, resize="squash", mean=(0.5,) * config.channels, std=(0.5,) * config.channels)
    save(Checkpoint(model=build(config, seed=1), config=config, preprocess=fed, labels=labels), path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "images").mkdir()
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"image number {number} of five, with a long name.png")
    config = variant("ViT-Mini/8", num_classes=3, image_size=32)
    assert isinstance(config, ViTConfig)
    saved(folder / "vit.safetensors", config)
    saved(
        folder / "mean.safetensors", replace(config, pool="mean", class_token=False, position=replace(config.position, kind="none"))
    )
    saved(folder / "headless.safetensors", replace(config, num_classes=0), None)
    resnet = ResNetConfig(blocks=(1, 1), stage_widths=(128, 256), root_width=32, image_size=(64, 64), num_classes=3)
    saved(folder / "resnet.safetensors", resnet)
    return folder


def output(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main(["inspect", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_all_figures_of_a_vit_are_written_and_described(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: list[str | Path] = [
        place / "vit.safetensors",
        place / "images",
        "--figure",
        "all",
        "--out",
        tmp_path / "new" / "folder",
        "--json",
    ]
    code, out, err = output(capsys, *words, "--arrays", "--count", "2")
    assert (code, err) == (0, "")
    rows = {row["figure"]: row for row in json.loads(out)}
    assert tuple(rows) == NAMES
    for name, row in rows.items():
        assert Path(row["file"]).read_bytes().startswith(b"\x89PNG")
        array = np.load(row["array"], allow_pickle=False)
        assert list(array.shape) == row["shape"]
        assert row["least"] <= row["mean"] <= row["most"], name
    assert rows["rollout"]["reads"] == "the class token"
    assert rows["rollout"]["shape"] == [2, 4, 4]
    assert set(rows["relevance"]["classes"]) <= {"cat", "dog", "$owl"}


def test_the_numbers_are_the_library_s(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vitlab.checkpoints import load

    _, out, _ = output(capsys, place / "vit.safetensors", place / "images", "--figure", "distance", "--out", tmp_path, "--json")
    checkpoint = load(place / "vit.safetensors")
    seen = model_images(checkpoint, [str(path) for path in sorted((place / "images").iterdir())])
    expected = attention_distance(checkpoint.model, seen.images_BCHW)
    (row,) = json.loads(out)
    np.testing.assert_allclose(row["of_layers_and_heads"], expected, rtol=1e-6)
    assert row["images"] == 5


def test_svg_on_dark_paper_and_a_table_for_people(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: list[str | Path] = ["--figure", "filters,positions", "--out", tmp_path, "--format", "svg", "--theme", "dark"]
    code, out, _ = output(capsys, place / "vit.safetensors", *words)
    assert code == 0
    assert out.splitlines()[0].split() == ["figure", "shape", "least", "most", "file"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["filters.svg", "positions.svg"]
    assert "<svg" in (tmp_path / "filters.svg").read_text(encoding="utf-8")


def test_layer_head_query_and_class_choose_what_is_shown(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: list[str | Path] = [
        place / "vit.safetensors",
        place / "images",
        "--count",
        "1",
        "--out",
        tmp_path,
        "--json",
        "--overwrite",
    ]
    _, out, _ = output(capsys, *words, "--figure", "attention", "--layer", "0", "--head", "1", "--query", "1,2")
    (row,) = json.loads(out)
    assert (row["layer"], row["query"]) == (0, [1, 2])
    _, out, _ = output(capsys, *words, "--figure", "attention", "--layer=-1", "--query", "class", "--overlay", "colour")
    (row,) = json.loads(out)
    assert row["query"] == "class"
    assert row["layer"] > 0
    for given in ("$owl", "2"):
        _, out, _ = output(capsys, *words, "--figure", "occlusion", "--class", given, "--occluder", "remove")
        assert json.loads(out)[0]["classes"] == ["$owl"]


def test_all_leaves_out_what_a_model_does_not_have_and_says_why(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words: list[str | Path] = [place / "images", "--count", "1", "--figure", "all", "--json", "--out"]
    code, out, err = output(capsys, place / "resnet.safetensors", *words, tmp_path / "resnet")
    assert code == 0
    assert [row["figure"] for row in json.loads(out)] == ["filters", "features", "receptive", "occlusion"]
    assert (
        "note: no rollout: attention rollout is not defined for a BiT ResNet: it has no attention between all patches"
        in err.splitlines()
    )
    code, out, err = output(capsys, place / "mean.safetensors", *words, tmp_path / "mean")
    rows = {row["figure"]: row for row in json.loads(out)}
    assert set(NAMES) - set(rows) == {"positions", "class"}
    assert rows["rollout"]["reads"] == "the mean of the patches"
    assert "no positions" in err
    assert "no class token" in err
    code, out, _ = output(capsys, place / "headless.safetensors", *words, tmp_path / "headless")
    assert {row["figure"] for row in json.loads(out)} == set(NAMES) - {"relevance", "occlusion"}


def test_all_without_images_is_what_the_weights_show(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = output(capsys, place / "vit.safetensors", "--figure", "all", "--out", tmp_path, "--json")
    assert [row["figure"] for row in json.loads(out)] == ["filters", "positions"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["vit.safetensors", "--figure", "rollout"], 2, "the figure rollout needs images"),
        (["vit.safetensors", "--figure", "rolout"], 2, "--figure: 'rolout' is not one of filters, positions"),
        (["vit.safetensors", "nowhere.png", "--figure", "rollout"], 2, "no file or folder called 'nowhere.png'"),
        (["vit.safetensors", "images", "--figure", "class", "--layer", "x"], 2, "--layer: 'x' is not a whole number"),
        (["vit.safetensors", "images", "--figure", "attention", "--query", "3"], 2, "--query: '3' is neither row,column"),
        (["vit.safetensors", "images", "--figure", "attention", "--query", "9,0"], 1, "there is no patch (9, 0)"),
        (["vit.safetensors", "images", "--figure", "attention", "--head", "99"], 1, "there is no head 99"),
        (["vit.safetensors", "images", "--figure", "class", "--layer", "99"], 1, "there is no layer 99"),
        (["vit.safetensors", "images", "--figure", "relevance", "--class", "cta"], 1, "no class called 'cta'"),
        (["vit.safetensors", "images", "--figure", "relevance", "--class", "3"], 1, "no class called '3'"),
        (["vit.safetensors", "images", "--figure", "rollout", "--count", "0"], 2, "--count 0 must be at least 1"),
        (["resnet.safetensors", "images", "--figure", "rollout"], 1, "attention rollout is not defined for a BiT ResNet"),
        (["mean.safetensors", "--figure", "positions"], 1, "the model has no position"),
        (["headless.safetensors", "images", "--figure", "relevance"], 1, "this figure explains the logit of a class"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(place)
    got, out, err = output(capsys, *words, "--out", tmp_path / "out")
    assert (got, out) == (code, "")
    assert err.startswith(f"error: {message}")
    assert not (tmp_path / "out").exists()


def test_an_existing_figure_is_kept_without_overwrite(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: list[str | Path] = [place / "vit.safetensors", "--figure", "filters", "--out", tmp_path]
    assert output(capsys, *words)[0] == 0
    before = (tmp_path / "filters.png").stat().st_mtime_ns
    code, _, err = output(capsys, *words)
    assert code == 1
    assert "exists already" in err
    assert (tmp_path / "filters.png").stat().st_mtime_ns == before
    assert output(capsys, *words, "--overwrite")[0] == 0
    file = tmp_path / "file"
    file.write_text("")
    assert output(capsys, place / "vit.safetensors", "--figure", "filters", "--out", file)[0] == 2


def test_few_of_many_images_are_taken_evenly_from_all() -> None:
    assert spread(list("abcdef"), 3) == ["a", "c", "e"]
    assert spread(list("abc"), 3) == spread(list("abc"), 9) == list("abc")
