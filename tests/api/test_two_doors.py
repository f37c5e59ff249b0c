"""A message speaks the language of the door one came in by: keywords in Python, options on the command line."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitlab
from tests.inference import small
from tests.training.small import run_to, small_run
from vitlab.cli.console import as_options, with_options
from vitlab.cli.main import main
from vitlab.config import Preprocess
from vitlab.errors import CheckpointError, DataError
from vitlab.training.run import Run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that averages its weights and was stopped after 12 of 20 steps."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    run_to(small_run(), out, stop=12)
    return out


def test_parameters_in_backticks_are_options_on_the_command_line() -> None:
    assert as_options("`overwrite=True` replaces it") == "--overwrite replaces it"
    assert as_options("every model: `to=native`; or `start`") == "every model: --to native; or --from"
    assert as_options("`vitlab models` lists, `image_size` sets") == "`vitlab models` lists, --image-size sets"


def test_a_setting_in_a_message_is_an_option_on_the_command_line() -> None:
    assert with_options("batch_size=0 must be at least 1", ["batch_size"]) == "--batch-size 0 must be at least 1"
    assert (
        with_options("use image_size=32x32, or task='segment'", ["image_size", "task"])
        == "use --image-size 32x32, or --task segment"
    )
    assert with_options("train.steps=0 and start=a.npz", ["steps", "start"]) == "train.steps=0 and --from a.npz"
    assert with_options("pad=True", ["steps"]) == "pad=True"


def test_a_value_out_of_range_is_named_by_the_keyword_in_python_and_the_option_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(vitlab.VitlabError, match="steps=0 must be at least 1"):
        vitlab.pretrain("digits", steps=0)
    assert main(["pretrain", "digits", "--steps", "0"]) != 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["error: --steps 0 must be at least 1", "hint: vitlab pretrain --help lists what it takes"]


@pytest.mark.parametrize(
    ("call", "needed"),
    [
        (lambda: vitlab.predict(5, "cat.jpg"), "a path or a name for 'model'"),  # type: ignore[arg-type]
        (lambda: vitlab.predict("model.npz", None), "images or their paths for 'images'"),  # type: ignore[arg-type]
        (lambda: vitlab.predict("model.npz", "cat.jpg", top="five"), "a number for 'top'"),  # type: ignore[arg-type]
        (lambda: vitlab.finetune("digits", epochs="3"), "a number for 'epochs'"),  # type: ignore[arg-type]
        (lambda: vitlab.evaluate("model.npz", "digits", severities=9), "several numbers, such as"),  # type: ignore[arg-type]
        (lambda: vitlab.create_model(16), "a path or a name for 'name'"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_another_type_is_refused_with_the_name_of_its_parameter(call: Callable[[], object], needed: str) -> None:
    with pytest.raises(TypeError, match=needed):
        call()


def test_nothing_is_written_into_the_folder_of_the_data(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        small.photos(tmp_path / "pets" / kind, 4)
    before = sorted(tmp_path.rglob("*"))
    for write in (
        lambda: vitlab.finetune(tmp_path / "pets", out=tmp_path / "pets", steps=1),
        lambda: vitlab.pretrain(tmp_path / "pets", out=tmp_path / "pets" / ".." / "pets", steps=1),
        lambda: vitlab.pack_data(tmp_path / "pets", tmp_path / "pets"),
    ):
        with pytest.raises(vitlab.VitlabError, match="is the folder of the data"):
            write()
    assert sorted(tmp_path.rglob("*")) == before


def test_the_only_image_is_refused_with_its_reason(stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.jpg").write_text("no image")
    with pytest.raises(vitlab.VitlabError, match=r"notes\.jpg is not an image") as refused:
        vitlab.predict(stopped, tmp_path / "notes.jpg")
    assert refused.value.hint is not None
    assert main(["predict", str(stopped), str(tmp_path / "notes.jpg")]) == 1
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()][-2:] == ["error", "hint"]


def test_no_error_of_the_library_speaks_of_options(checkout: Path) -> None:
    spoken = []
    for path in (checkout / "src" / "vitlab").rglob("*.py"):
        if path.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                words = [
                    part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
                spoken += [
                    f"{path.name}: {word}"
                    for word in words
                    if " --" in f" {word}" and "vitlab" not in word and "gunzip" not in word
                ]
    assert [line for line in spoken if "torchrun" not in line] == []


def test_a_refusal_to_overwrite_names_the_keyword_in_python_and_the_option_on_the_command_line(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "features.npz"
    out.write_bytes(b"mine")
    with pytest.raises(vitlab.VitlabError) as refused:
        vitlab.embed(stopped, "digits", out)
    assert refused.value.hint == "`overwrite=True` replaces it"
    assert main(["embed", str(stopped), "digits", str(out)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "hint: --overwrite replaces it"


def test_a_word_has_quotes_in_python_and_none_on_the_command_line(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in (f"contours-{place:05}" for place in range(4)):
        (tmp_path / "data" / label).mkdir(parents=True)
        (tmp_path / "data" / label / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n cut")
    with pytest.raises(vitlab.VitlabError, match="set `corrupt='skip'`"):
        vitlab.evaluate(stopped, tmp_path / "data")
    assert main(["evaluate", str(stopped), str(tmp_path / "data")]) == 1
    assert "set --corrupt skip to" in capsys.readouterr().err


def test_an_image_that_predict_leaves_out_is_reported_to_python_too(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    good, cut = tmp_path / "good.png", tmp_path / "cut.png"
    Image.new("RGB", (32, 32)).save(good)
    cut.write_bytes(good.read_bytes()[:40])
    assert len(vitlab.predict(stopped, [good, cut])) == 1
    assert [record.levelname for record in caplog.records if "cut.png" in record.getMessage()] == ["WARNING"]


def test_another_word_for_a_split_is_answered_by_the_one_here() -> None:
    with pytest.raises(vitlab.VitlabError, match="did you mean val"):
        vitlab.open_dataset("digits", split="validation")  # type: ignore[arg-type]


def test_a_class_that_is_not_there_is_answered_by_those_that_are(stopped: Path, tmp_path: Path) -> None:
    Image.new("L", (16, 16)).save(tmp_path / "grey.png")
    with pytest.raises(vitlab.VitlabError, match=r"no class called 'ox'.*classes are contours-00000, "):
        vitlab.inspect(stopped, tmp_path / "grey.png", figure="relevance", target="ox")


def test_a_percentage_in_place_of_a_fraction_is_explained(stopped: Path) -> None:
    with pytest.raises(vitlab.VitlabError, match=r"precision=95.* must be above 0 .*0\.95 is 95 %"):
        vitlab.evaluate(stopped, "digits", precision=95)


def test_the_history_of_a_checkpoint_has_a_line_for_each_note(tmp_path: Path) -> None:
    model = vitlab.create_model("ViT-Mini/8", num_classes=2, image_size=32)
    fed = Preprocess(image_size=(32, 32), resize_to=32)
    made = vitlab.Checkpoint(model=model, config=model.config, preprocess=fed, history=("a guess, or two", "a new head"))
    vitlab.save(made, tmp_path / "model.safetensors")
    assert str(vitlab.describe(tmp_path / "model.safetensors", notes=True)).splitlines()[-3:] == ["history", *made.history]
    assert repr(made) == "<Checkpoint: ViT-Mini/8, 2 classes, 32x32 pixels>"


def test_a_stopped_run_is_a_model_with_the_weights_that_its_metrics_are_of(stopped: Path, tmp_path: Path) -> None:
    run = Run.load(stopped)
    assert run.file == stopped / "last" / "average.safetensors"
    checkpoint = vitlab.load(stopped)
    assert checkpoint.notes == (f"the run in {stopped} is not finished: the averaged weights of its last checkpoint are taken",)
    data = run.config.data.dataset
    assert vitlab.describe(stopped).to_json()["file"] == str(stopped)
    assert vitlab.evaluate(stopped, data).to_json()["images"] > 0
    assert vitlab.convert(stopped, tmp_path / "out.safetensors", to="native").to_json()["format"] == "native"
    assert vitlab.embed(stopped, data, tmp_path / "out.npz").to_json()["images"] > 0
    assert (tmp_path / "figures").exists() is False
    assert (figures := vitlab.inspect(stopped, figure="filters", out=tmp_path / "figures"))
    assert "PNG" not in repr(figures)
    shown = repr(Run.load(stopped))
    assert shown == str(Run.load(stopped))
    assert "ViTConfig" not in shown
    assert repr(measured := vitlab.evaluate(stopped, data)) == str(measured)
    vitlab.report(stopped, out=tmp_path / "report.html")
    assert (tmp_path / "report.html").exists()
    assert vitlab.push(stopped, "me/small", licence="mit", folder=tmp_path / "hub").to_json()["format"] == "timm"


def test_a_model_in_the_place_of_images_is_told(stopped: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no image in it") as caught:
        vitlab.predict(tmp_path, stopped)
    assert caught.value.hint == "the model comes first, then the images"


def test_a_model_of_a_run_does_not_repeat_what_was_noted_of_its_ancestor(stopped: Path, tmp_path: Path) -> None:
    run_to(replace(small_run(steps=5), start=str(stopped)), tmp_path / "b")
    loaded = vitlab.load(tmp_path / "b")
    assert loaded.notes == ()
    assert any("starts from" in note for note in loaded.history)
    told = vitlab.describe(tmp_path / "b", notes=True)
    assert "\nstarts from" in str(told)  # a line for each note
    assert "starts from" not in str(vitlab.describe(tmp_path / "b"))


@pytest.mark.parametrize(
    ("given", "meant"), [("learning_rate", "lr"), ("img_size", "image_size"), ("pretrained", "start"), ("epoch", "epochs")]
)
def test_a_keyword_of_other_libraries_is_answered_by_the_name_here(given: str, meant: str) -> None:
    finetune: Callable[..., Any] = vitlab.finetune
    with pytest.raises(TypeError, match=rf"finetune\(\).*{given!r}; did you mean {meant!r}"):
        finetune("pets/", **{given: 1})


def test_a_name_that_is_almost_one_of_public_weights_is_corrected() -> None:
    with pytest.raises(CheckpointError, match="public weights") as refused:
        vitlab.load("vit_bse_patch16_224")
    assert "vit_base_patch16_224" in str(refused.value.hint)
    with pytest.raises(CheckpointError, match="no file called"):
        vitlab.load("vit_bse_patch16_224.npz")


def test_a_bare_model_is_no_checkpoint(tmp_path: Path) -> None:
    bare: Any = vitlab.create_model("ViT-Ti/16", num_classes=2, image_size=32)
    with pytest.raises(CheckpointError, match="a ViT is not a Checkpoint") as refused:
        vitlab.save(bare, tmp_path / "model.safetensors")
    assert "vitlab.Checkpoint" in str(refused.value.hint)


def test_a_batch_larger_than_the_data_is_questioned(tmp_path: Path) -> None:
    planned = vitlab.finetune("digits", batch_size=100_000, steps=1, dry_run=True, quiet=True, out=tmp_path / "run")
    assert any("100,000 is larger than the data" in note for note in planned.notes)
    usual = vitlab.finetune("digits", batch_size=16, steps=1, dry_run=True, quiet=True, out=tmp_path / "run")
    assert not any("larger than the data" in note for note in usual.notes)
