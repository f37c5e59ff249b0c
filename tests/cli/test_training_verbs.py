"""`vitlab pretrain`, `finetune` and `train`: one line makes a run, says why it is so, and leaves a model that other verbs take."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import processes
from vitlab.api import _default_out
from vitlab.checkpoints import describe, load
from vitlab.cli.main import main
from vitlab.config import RunConfig, ViTConfig
from vitlab.config.serialize import from_text
from vitlab.training.checkpointing import read_snapshot
from vitlab.training.run_folder import RunDirectory

LETTERS = "synthetic:kind=strokes,classes=4,samples_per_class=32,image_size=32"
QUICK = ("--batch-size", "16", "--workers", "0")


def output(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> tuple[str, list[str]]:
    """Standard output and the lines of stderr of a command that ends with that code."""
    assert main([str(word) for word in words]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err.splitlines()


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short pre-training run on generated letters."""
    out = tmp_path_factory.mktemp("runs") / "letters"
    assert main(["pretrain", LETTERS, "--recipe", "quickstart", "--out", str(out), "--steps", "6", *QUICK]) == 0
    return out


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two classes of small colour images, one much larger than the other."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    rng = np.random.default_rng(0)
    for name, count, tone in (("cats", 24, 60), ("dogs", 6, 180)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(tone + rng.normal(0, 30, (40, 52, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_pre_training_leaves_a_model_its_config_and_its_events(pretrained: Path) -> None:
    made = load(pretrained / "model.safetensors")
    assert isinstance(made.config, ViTConfig)
    assert made.config.num_classes == 4
    assert made.labels == tuple(f"strokes-{number:05d}" for number in range(4))
    run = from_text(RunConfig, (pretrained / "run.json").read_text())
    assert (run.name, run.train.steps, run.data.dataset) == ("quickstart", 6, LETTERS)
    events = [json.loads(line)["event"] for line in (pretrained / "events.jsonl").read_text().splitlines()]
    assert events[0] == "started"
    assert events.count("stepped") == 6
    assert events[-1] == "finished"


def test_fine_tuning_replaces_the_head_fits_the_positions_and_says_so(
    pretrained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("finetune", photos, "--from", pretrained, "--image-size", "48", "--steps", "3", "--out", tmp_path / "run", *QUICK)
    out, err = output(capsys, *words, "--json")
    said = json.loads(out)
    assert said["ended"] == "finished"
    assert set(said["metrics"]) == {"loss", "top1", "top5"}
    made = load(said["model"])
    assert isinstance(made.config, ViTConfig)
    assert (made.config.num_classes, made.config.image_size, made.labels) == (2, (48, 48), ("cats", "dogs"))
    talk = "\n".join(err)
    for words_said in (
        "recipe: finetune-folder, since a checkpoint is given",
        "new head of 2 classes, all zeros",
        "48 x 48 pixels, 36 patches",
        "positions interpolated from 4x4 to 6x6",
        "4 times the smallest",
    ):
        assert words_said in talk
    recorded = made.recipe
    assert recorded is not None
    assert recorded["start"] == str(pretrained / "model.safetensors")


def test_a_new_head_begins_at_zero(pretrained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "finetune", photos, "--from", pretrained, "--steps", "1", "--lr", "1e-9", "--out", tmp_path / "run", *QUICK)
    first = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()][1]
    assert first["loss"] == pytest.approx(np.log(2), abs=1e-5)  # both classes equally likely


def test_on_the_same_classes_at_a_larger_size_the_head_stays_and_its_hidden_layer_does_not(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    larger = ("--image-size", "40", "--steps", "1", *QUICK)
    _, err = output(capsys, "finetune", LETTERS, "--from", pretrained, "--out", tmp_path / "kept", *larger)
    assert not any("new head" in line for line in err)
    published = (LETTERS, "--recipe", "imagenet21k", "--model", "ViT-Mini/8", "--steps", "1", *QUICK)
    output(capsys, "pretrain", *published, "--out", tmp_path / "deep")
    deep, after = describe(tmp_path / "deep" / "model.safetensors").config, tmp_path / "flat"
    assert isinstance(deep, ViTConfig)
    assert deep.representation_width > 0
    _, err = output(capsys, "finetune", LETTERS, "--from", tmp_path / "deep", "--out", after, *larger)
    assert any("new head of 4 classes, all zeros" in line for line in err)
    flat = describe(after / "model.safetensors").config
    assert isinstance(flat, ViTConfig)
    assert flat.representation_width == 0


def test_a_folder_alone_is_trained_from_scratch_with_a_reason(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = output(capsys, "finetune", photos, "--dry-run", "--json")
    assert err[0].startswith("recipe: small-data, from scratch, since no checkpoint is given")
    plan = json.loads(out)
    assert plan["out"] == "runs/photos"
    assert plan["steps"] > 0
    assert plan["seconds"] > 0
    run = plan["run"]
    assert (run["start"], run["model"]["num_classes"], run["data"]["dataset"]) == (None, 2, str(photos))
    assert not (tmp_path / "runs").exists()  # nothing was begun
    table, _ = output(capsys, "finetune", photos, "--dry-run")
    assert {"steps", "epochs", "parameters", "macs", "memory", "step", "total"} <= {
        line.split()[0]
        for line in table.splitlines()
        if line  # notes of a busy machine stand after an empty line
    }


def test_the_run_of_a_dry_run_is_a_config_that_train_takes(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pretrained: Path
) -> None:
    words = ("finetune", photos, "--from", pretrained, "--steps", "4", *QUICK)
    run = json.loads(output(capsys, *words, "--dry-run", "--json")[0])["run"]
    (tmp_path / "run.json").write_text(json.dumps(run))
    output(capsys, *words, "--out", tmp_path / "one")
    output(capsys, "train", tmp_path / "run.json", "--out", tmp_path / "other")
    one, other = read_snapshot(tmp_path / "one" / "last"), read_snapshot(tmp_path / "other" / "last")
    assert all(bool((one.model[name] == other.model[name]).all()) for name in one.model)


def test_a_config_can_be_changed_on_the_command_line(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = pretrained / "run.json"
    output(capsys, "train", config, "--out", tmp_path / "a", "--steps", "2", "--seed", "5", "--save-every", "1")
    run = RunDirectory(tmp_path / "a").config()
    assert run is not None
    assert (run.train.steps, run.train.seed, run.data.loader.seed, run.train.save_every) == (2, 5, 5, 1)


def test_a_sweep_prints_its_trials_and_the_final_run(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "finetune",
        LETTERS,
        "--from",
        pretrained,
        "--sweep",
        "--lrs",
        "0.001,0.01",
        "--steps",
        "2",
        "--out",
        tmp_path,
        *QUICK,
    )
    table, err = output(capsys, *words)
    assert table.splitlines()[0].split() == ["lr", "loss", "top1", "top5", "chosen"]
    assert any(line.startswith("sweep: learning rates 0.001, 0.01, each evaluated on val") for line in err)
    said = json.loads(output(capsys, *words, "--json")[0])
    assert [trial["lr"] for trial in said["trials"]] == [0.001, 0.01]
    assert said["lr"] in (0.001, 0.01)
    assert said["evaluated_on"] == "test"
    assert Path(said["model"]) == tmp_path / "final" / "model.safetensors"


def test_table_4s_rates_are_swept_where_none_are_given(pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "finetune",
        LETTERS,
        "--from",
        pretrained,
        "--recipe",
        "finetune-pets",
        "--sweep",
        "--dry-run",
        "--json",
        "--image-size",
        "32",
    )
    said = json.loads(output(capsys, *words)[0])
    assert said["runs"] == 5
    assert said["total_seconds"] == pytest.approx(5 * said["seconds"])


def test_a_second_call_resumes_and_a_changed_one_is_refused_without_override(
    photos: Path, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("finetune", photos, "--from", pretrained, "--steps", "3", "--out", tmp_path / "run", *QUICK)
    output(capsys, *words)
    _, err = output(capsys, *words)
    assert any(line.startswith("resumes") for line in err)
    _, err = output(capsys, *words, "--lr", "0.5", code=1)
    assert err[-2].startswith(f"error: {tmp_path / 'run'} was started with another config: train.optimizer.lr")
    assert "--override" in err[-1]
    output(capsys, *words, "--lr", "0.5", "--override")


def test_a_fitted_head_without_a_checkpoint_is_refused_in_the_words_of_the_command(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = output(capsys, "finetune", photos, "--head", "fitted", "--steps", "1", "--out", tmp_path / "run", *QUICK, code=1)
    assert "--from" in err[-1]


def test_a_run_that_could_not_begin_does_not_stand_in_the_way_of_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / "few" / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.random.default_rng(number).integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "few" / name / f"{name}{number}.png")
    words = ("finetune", tmp_path / "few", "--steps", "1", "--out", tmp_path / "run", *QUICK)
    _, err = output(capsys, *words, code=1)
    assert "leaves none for" in err[-2]
    assert "--test-fraction 0" in err[-1]  # options of the command, which the next line uses
    output(capsys, *words, "--val-fraction", "0", "--test-fraction", "0")


def test_masked_pre_training_is_chosen_for_images_without_labels(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = f"images:{photos}"
    words = ("pretrain", data, "--model", "ViT-Mini/8", "--steps", "2", "--out", tmp_path / "masked", *QUICK)
    _, err = output(capsys, *words)
    assert err[0] == "recipe: masked, since the images have no labels"
    assert describe(tmp_path / "masked" / "model.safetensors").config.num_classes == 0
    _, err = output(capsys, "finetune", photos, "--from", tmp_path / "masked", "--steps", "2", "--out", tmp_path / "tuned", *QUICK)
    assert "new head of 2 classes, all zeros" in "\n".join(err)


def test_an_image_that_cannot_be_read_is_named_and_passed_over(
    photos: Path, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    for name in ("a", "b"):
        for part, count in (("train", 110), ("val", 2)):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (9, 9, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / part / name / f"{number}.png")
    broken = tmp_path / "data" / "train" / "a" / "7.png"
    broken.write_bytes(broken.read_bytes()[:60])
    words = ("finetune", tmp_path / "data", "--from", pretrained, "--epochs", "2", "--out", tmp_path / "run", *QUICK)
    _, err = output(capsys, *words)
    assert len([line for line in err if line.startswith("warning:") and "7.png" in line]) == 1  # once, though two epochs met it


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("finetune",), "missing DATA"),
        (("finetune", "digits", "--from", "nowhere.npz"), "--from: no file, folder or public weights called 'nowhere.npz'"),
        (("finetune", "digits", "--recipe", "finetune-petz"), "--recipe: no recipe called 'finetune-petz'"),
        (("finetune", "digits", "--blocks", "2"), "--blocks needs --trainable last-blocks"),
        (("finetune", "digits", "--lrs", "0.1"), "--lrs needs --sweep"),
        (("finetune", "digits", "--sweep", "--lr", "0.1"), "--lr is one learning rate and --sweep tries several"),
        (("finetune", "digits", "--sweep", "--lrs", "0.1,x"), "--lrs: 'x' is not a number above 0"),
        (("finetune", "digits", "--lr", "-1"), "--lr: '-1' is not a number above 0"),
        (("finetune", "digits", "--val-fraction", "1"), "--val-fraction: '1' is not a"),
        (("finetune", "digits", "--precision", "float8"), "--precision: 'float8' is not one of float32, bfloat16"),
        (("finetune", "digits", "--stepz", "3"), "no option called --stepz"),
        (("pretrain", "--max-minutes", "0"), "--max-minutes: '0' is not a number above 0"),
        (("finetune", "digits", "--model", __file__), "--model is the name of a model to train from scratch"),
        (("train", "--out", "x"), "missing CONFIG"),
        (("train", "nowhere.json", "--out", "x"), "no file called 'nowhere.json'"),
    ],
)
def test_a_command_line_not_understood_exits_2(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = output(capsys, *words, code=2)
    assert out == ""
    assert err[0].startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("finetune", "nowhere/"), "nowhere/ does not exist"),
        (("finetune", "digits", "--recipe", "finetune-pets"), "finetune-pets fine-tunes a checkpoint, but none is given"),
        (("finetune", "digits", "--steps", "4", "--epochs", "2"), "--steps 4 and --epochs 2 both set the length"),
        (("finetune", "digits", "--model", "ViT-X/16"), "no model called 'ViT-X/16'"),
        (("pretrain", "digits", "--recipe", "imagenet-scratch", "--preset", "light1"), "imagenet-scratch has its own"),
        (("pretrain", "digits", "--batch-size", "0"), "--batch-size 0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_with_a_hint(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = output(capsys, *words, code=1)
    assert out == ""
    assert err[-2].startswith(f"error: {message}")
    assert err[-1].startswith("hint: ")


def test_a_config_that_is_none_names_the_file_and_the_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"name": "x", "modell": {}}')
    _, err = output(capsys, "train", file, "--out", tmp_path / "out", code=1)
    assert err == [f"error: {file}: no setting called modell", "hint: did you mean model?"]
    file.write_bytes(b"\xff\xfe")
    _, err = output(capsys, "train", file, "--out", tmp_path / "out", code=1)
    assert err[0].startswith(f"error: {file} is not UTF-8 text")


@pytest.mark.parametrize(
    ("dataset", "out"),
    [
        ("pets/", "runs/pets"),
        ("/data/my pets", "runs/my-pets"),
        ("a/pets.zip", "runs/pets"),
        ("folder:a/pets", "runs/pets"),
        ("digits", "runs/digits"),
        (LETTERS, "runs/synthetic"),
        ("/", "runs/run"),
        ("shards/train-{000..009}.tar", "runs/train--000"),
    ],
)
def test_a_run_is_kept_under_the_datas_name(dataset: str, out: str) -> None:
    assert _default_out(dataset) == out


@contextmanager
def started(out: Path, warm: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A long run in a process of its own, after its tenth update."""
    options = (LETTERS, "--recipe", "quickstart", "--out", str(out), "--steps", "100000", *QUICK)
    with processes.started([warm / "vitlab", "pretrain", *options, *words]) as process:
        processes.eventually(lambda: steps(out) >= 10, process)
        yield process


def steps(out: Path) -> int:
    events = out / "events.jsonl"
    return events.read_text().count('"stepped"') if events.exists() else 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_with_a_checkpoint_one_line_and_its_code(
    number: signal.Signals, code: int, warm: Path, tmp_path: Path
) -> None:
    with started(tmp_path / "run", warm) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=processes.LIMIT)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("stopped at step")
    assert "run the same command to resume" in last
    kept = read_snapshot(tmp_path / "run" / "last").progress.step
    assert kept == steps(tmp_path / "run")


def test_sigusr1_saves_a_checkpoint_and_the_run_continues(warm: Path, tmp_path: Path) -> None:
    with started(tmp_path / "run", warm, "--save-every", "0", "--evaluate-every", "0") as process:
        assert not (tmp_path / "run" / "last").exists()
        process.send_signal(signal.SIGUSR1)
        processes.eventually((tmp_path / "run" / "last").exists, process)
        kept, before = read_snapshot(tmp_path / "run" / "last").progress.step, steps(tmp_path / "run")
        processes.eventually(lambda: steps(tmp_path / "run") > before, process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=processes.LIMIT)
    assert 0 < kept < steps(tmp_path / "run")


def test_max_minutes_stops_with_a_checkpoint_and_the_same_command_resumes(
    photos: Path, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words: tuple[Any, ...] = ("finetune", photos, "--from", pretrained, "--steps", "4", "--out", tmp_path / "run", *QUICK)
    said = json.loads(output(capsys, *words, "--max-minutes", "1e-6", "--json")[0])
    assert said["ended"] == "max-time"
    assert said["steps"] < 4
    assert Path(said["model"]).is_file()  # its last checkpoint's
    said = json.loads(output(capsys, *words, "--json")[0])
    assert (said["ended"], said["steps"]) == ("finished", 4)
    assert said["report"] == f"vitlab report {tmp_path / 'run'}"


def test_a_sweep_out_of_time_says_where_it_is_and_resumes(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("finetune", LETTERS, "--from", pretrained, "--sweep", "--lrs", "0.001", "--steps", "3", "--out", tmp_path, *QUICK)
    out, _ = output(capsys, *words, "--max-minutes", "1e-6", "--json")
    assert json.loads(out) == {"recipe": "finetune-folder", "ended": "max-time", "sweep": str(tmp_path)}
    assert json.loads(output(capsys, *words, "--json")[0])["lr"] == 0.001
