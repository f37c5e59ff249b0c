"""`import vitlab`: the program of the README runs as it stands, and every function gives a value that prints and becomes JSON."""

from __future__ import annotations

import json
import logging
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import vitlab
from tests.inference import small
from vitlab.checkpoints import convert
from vitlab.errors import ConfigError, DataError, UsageError
from vitlab.training.events import Finished, Stepped

KINDS = ("cat", "dog", "owl")

PROGRAM = """
import vitlab

vitlab.list_models("vit*")
model = vitlab.create_model("ViT-B/16", num_classes=37)
logits_BC = model(images_BCHW)
features_BD = model.features(images_BCHW)

checkpoint = vitlab.load("deit_tiny.npz")
checkpoint.model, checkpoint.config, checkpoint.preprocess, checkpoint.labels, checkpoint.notes
vitlab.save(checkpoint, "model.safetensors"); vitlab.convert("model.safetensors", "out.npz", to="jax-npz")

vitlab.predict("model.safetensors", "cat.jpg").top(5)
predictor = vitlab.Predictor("model.safetensors")
run = vitlab.finetune("pets/", "deit_tiny.npz", epochs=5)
vitlab.evaluate(run, "pets/", split="test").top1
vitlab.inspect(run, "cat.jpg", figure="rollout").save("rollout.png")
vitlab.report(run); vitlab.export(run, "model.onnx"); vitlab.bench(run)

dataset = vitlab.open_dataset("pets/", split="train")

for event in vitlab.train(config, out="runs/a"):
    ...
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pets/`, `deit_tiny.npz` and `cat.jpg`, as a user has them, but small."""
    folder = tmp_path_factory.mktemp("home")
    for place, kind in enumerate(KINDS):
        for split, count, start in (("train", 6, 0), ("val", 2, 20), ("test", 3, 30)):
            small.photos(folder / "pets" / split / kind, count, start=100 * place + start)
    small.saved(folder / "tiny.safetensors", KINDS)
    convert(folder / "tiny.safetensors", folder / "deit_tiny.npz", to="jax-npz")
    Image.open(next((folder / "pets" / "train" / "cat").iterdir())).save(folder / "cat.jpg")
    return folder


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    return home


@pytest.fixture(scope="module")
def run(home: Path) -> vitlab.Run:
    return vitlab.finetune(
        home / "pets", home / "tiny.safetensors", out=home / "runs" / "first", steps=2, batch_size=4, workers=0, quiet=True
    )


@pytest.mark.usefixtures("onnx_operators")
def test_the_program_of_the_readme_runs_as_it_stands(here: Path, run: vitlab.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.perf_counter
    monkeypatch.setattr("vitlab.inference.bench.time", SimpleNamespace(perf_counter=lambda: 50 * clock()))  # ten seconds pass soon
    names: dict[str, Any] = {"images_BCHW": torch.zeros(1, 3, 224, 224), "config": run.config}
    exec(PROGRAM, names)
    assert names["logits_BC"].shape == (1, 37)
    assert names["features_BD"].shape == (1, 768)
    assert (here / "out.npz").is_file()
    assert (here / "rollout.png").read_bytes().startswith(b"\x89PNG")
    assert (here / "model.onnx").is_file()
    assert (here / "runs" / "pets" / "report.html").is_file()
    assert len(names["dataset"]) == 18
    assert isinstance(names["event"], Finished)
    assert names["event"].model == Path("runs/a/model.safetensors")


def test_a_run_is_a_model_metrics_labels_and_a_folder(run: vitlab.Run, home: Path) -> None:
    assert run.path == home / "runs" / "first"
    assert run.reason == "finished"
    assert run.labels == KINDS
    assert 0 <= run.metrics["top1"] <= 1
    assert run.model is run.checkpoint.model
    assert run.notes[0].startswith("recipe: finetune-folder")
    again = vitlab.Run.load(run.path)
    assert (again.metrics, again.step, again.config) == (run.metrics, run.step, run.config)


def test_wherever_a_model_is_taken_a_run_its_folder_its_file_and_a_checkpoint_are(run: vitlab.Run, here: Path) -> None:
    found = [vitlab.predict(model, "cat.jpg", backend="torch").top(1) for model in (run, run.path, run.file, run.checkpoint)]
    assert found.count(found[0]) == 4
    assert vitlab.describe(run)["parameters"] == vitlab.describe(run.path)["parameters"]
    assert vitlab.load(run.path).labels == KINDS
    assert vitlab.Predictor(run).labels == KINDS


def test_one_image_is_taken_in_every_form_and_a_list_of_them(run: vitlab.Run, here: Path) -> None:
    with Image.open("cat.jpg") as opened:
        image = opened.convert("RGB")
    array = np.asarray(image)
    forms: list[Any] = ["cat.jpg", Path("cat.jpg"), image, array, torch.from_numpy(array.copy()).permute(2, 0, 1)]
    wanted = vitlab.predict(run, "cat.jpg", backend="torch").top(3)
    for form in forms:
        (found,) = vitlab.predict(run, form, backend="torch")
        assert [label for label, _ in found.top(3)] == [label for label, _ in wanted]
    assert len(vitlab.predict(run, forms)) == len(forms)
    assert len(vitlab.predict(run, (path for path in ["cat.jpg", "cat.jpg"]))) == 2  # a stream
    assert len(vitlab.predict(run, "pets/test")) == 9  # a folder
    assert len(vitlab.predict(run, "pets/test/cat/*.jpg")) == 3  # a pattern


def test_predictions_are_written_and_resumed_as_they_come(run: vitlab.Run, here: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    assert len(vitlab.predict(run, "pets/test", out=out)) == 0
    whole = out.read_text()
    out.write_text("".join(whole.splitlines(keepends=True)[:4]))
    vitlab.predict(run, "pets/test", out=out, resume=True)
    assert out.read_text() == whole
    with pytest.raises(DataError, match="exists already"):
        vitlab.predict(run, "pets/test", out=out)


def test_every_result_prints_becomes_json_and_shows_itself_in_a_notebook(run: vitlab.Run, here: Path, tmp_path: Path) -> None:
    results: list[Any] = [
        run,
        vitlab.list_models("ViT-B*"),
        vitlab.describe("ViT-B/16"),
        vitlab.describe(run),
        vitlab.predict(run, ["cat.jpg", "cat.jpg"]),
        vitlab.evaluate(run, "pets", workers=0),
        vitlab.inspect(run, "cat.jpg", figure=["filters", "rollout"]),
        vitlab.report(run, out=tmp_path / "report.html"),
        vitlab.embed(run, "pets", tmp_path / "index.npz", workers=0),
        vitlab.similar("cat.jpg", tmp_path / "index.npz", checkpoint=run, top=2),
        vitlab.check_data("pets"),
        vitlab.list_data(),
        vitlab.list_data("pets"),
        vitlab.show_data("pets", out=tmp_path / "sheet.png"),
        vitlab.pack_data("pets", tmp_path / "shards", split="train"),
        vitlab.study_compare(["ViT-B/16"]),
        vitlab.bench("ViT-Mini/8", backend="plain", batch=(1,), seconds=0.01),
    ]
    for result in results:
        assert len(str(result).splitlines()) > 0
        json.dumps(result.to_json(), allow_nan=False)
        assert result._repr_html_().startswith("<")


def test_an_evaluation_has_its_numbers_as_attributes(run: vitlab.Run, here: Path) -> None:
    found = vitlab.evaluate(run, "pets", split="test", workers=0)
    assert found.top1 == found.metrics["top1"] == found.to_json()["top1"]["value"]
    features = vitlab.evaluate(run, "pets", knn=True, neighbours=(1,), workers=0)
    assert {*features.metrics} == {"knn_1"}
    with pytest.raises(UsageError, match="features"):
        _ = features.top1


def test_figures_are_saved_to_a_file_or_a_folder(run: vitlab.Run, here: Path, tmp_path: Path) -> None:
    one = vitlab.inspect(run, "cat.jpg", figure="rollout")
    assert one.save(tmp_path / "rollout.png").files == (tmp_path / "rollout.png",)
    several = vitlab.inspect(run, "cat.jpg", figure="rollout,filters")
    assert [file.name for file in several.save(tmp_path / "figures").files] == ["rollout.png", "filters.png"]
    with pytest.raises(ConfigError, match=r"\.png"):
        one.save(tmp_path / "rollout.pdf")
    with pytest.raises(UsageError, match="did you mean rollout"):
        vitlab.inspect(run, "cat.jpg", figure="rolout")


def test_a_dataset_is_taken_by_torchs_own_loader(here: Path) -> None:
    dataset = vitlab.open_dataset("pets/", split="train", image_size=32)
    sample = dataset[0]
    assert sample.label in (0, 1, 2)
    assert sample.image.shape == (32, 32, 3)
    batches = list(DataLoader(dataset, batch_size=4))
    assert sum(len(batch.label) for batch in batches) == 18
    assert batches[0].image.shape == (4, 32, 32, 3)


def test_a_stream_of_events_trains_as_it_is_iterated(run: vitlab.Run, tmp_path: Path) -> None:
    events = list(vitlab.train(run.config, out=tmp_path / "a", steps=1))
    assert [type(event) for event in events if isinstance(event, Stepped | Finished)] == [Stepped, Finished]
    same = vitlab.train(tmp_path / "a" / "run.json", out=tmp_path / "b").run_to_end(quiet=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(
        same.model.state_dict().values(), vitlab.load(tmp_path / "a").model.state_dict().values(), strict=True
    ))  # fmt: skip


def test_a_stream_that_nobody_iterates_warns(run: vitlab.Run, tmp_path: Path) -> None:
    stream: Any = vitlab.train(run.config, out=tmp_path / "a")
    with pytest.warns(RuntimeWarning, match="never iterated"):
        del stream
    assert not (tmp_path / "a").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(vitlab.train(run.config, out=tmp_path / "b", steps=1))


def test_a_dry_run_trains_nothing_and_plans(here: Path, tmp_path: Path) -> None:
    planned = vitlab.finetune("pets", "tiny.safetensors", out=tmp_path / "run", steps=3, batch_size=4, workers=0, dry_run=True)
    assert planned.plan is not None
    assert planned.plan.steps == 3
    assert planned.reason is None
    assert not (tmp_path / "run").exists()
    assert planned.to_json()["run"]["train"]["steps"] == 3


def test_fine_tuning_opens_the_dataset_once(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vitlab.data.opening as opening
    from vitlab.data.readers.recognise import open_data

    opened = list[str]()

    def counted(data: str | Path, **options: Any) -> Any:
        opened.append(str(data))
        return open_data(data, **options)

    monkeypatch.setattr(opening, "open_data", counted)
    vitlab.finetune("pets", "tiny.safetensors", out=tmp_path / "run", steps=1, batch_size=4, workers=0, quiet=True)
    assert opened == ["pets"]


@pytest.mark.parametrize("name", ["ViT-B/16", "vit_base_patch16_224"])
def test_a_model_has_vitlabs_and_timms_name(name: str) -> None:
    with torch.device("meta"):
        model = vitlab.create_model(name, num_classes=5)
    assert sum(weight.numel() for weight in model.parameters()) == 85_802_501
    assert all(weight.is_meta for weight in model.parameters())


def test_a_huge_model_is_built_without_values() -> None:
    with torch.device("meta"):
        model = vitlab.create_model("ViT-G/14")
    assert sum(weight.numel() for weight in model.parameters()) > 1.8e9


def test_initial_weights_depend_on_the_seed_alone() -> None:
    first, second, other = (vitlab.create_model("ViT-Mini/8", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_pretrained_weights_come_from_the_hub(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    import vitlab.checkpoints.reading as reading

    asked = list[str]()

    def fetched(address: str) -> tuple[Path, tuple[str, ...]]:
        asked.append(address)
        return Path("tiny.safetensors"), ()

    monkeypatch.setattr(reading, "fetch", fetched)
    model = vitlab.create_model("ViT-B/16", num_classes=3, pretrained=True)
    assert isinstance(model, torch.nn.Module)
    assert asked[0].startswith("hub:timm/vit_base_patch16_224")
    with pytest.raises(ConfigError, match="no public weights"):
        vitlab.create_model("ViT-Mini/8", pretrained=True)


def test_names_of_models_are_listed_by_pattern() -> None:
    names = vitlab.list_models("vit*")
    assert "ViT-B/16" in names
    assert all("vit" in name.lower() or "deit" in name.lower() for name in names)
    assert "hub:timm/" in str(vitlab.list_models("ViT-B/16"))
    assert len(vitlab.list_models()) > len(names) > len(vitlab.list_models("nothing like it")) == 0


def test_what_was_chosen_and_guessed_is_logged(run: vitlab.Run, here: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="vitlab"):
        vitlab.evaluate(run, "pets", workers=0)
    assert any("test split" in record.getMessage() for record in caplog.records)


def test_options_that_contradict_each_other_are_refused_at_once(here: Path, run: vitlab.Run) -> None:
    for call in (
        lambda: vitlab.finetune("pets", lrs=(0.1,)),
        lambda: vitlab.finetune("pets", sweep=True, lr=0.1),
        lambda: vitlab.evaluate(run, "pets", subset=True, mapping="a.json"),
        lambda: vitlab.evaluate(run),
        lambda: vitlab.predict(run, []),
        lambda: vitlab.predict(run, "nowhere.jpg"),
        lambda: vitlab.predict(run.checkpoint, "cat.jpg", image_size=64),
        lambda: vitlab.study_compare(checkpoints="a.npz"),
        lambda: vitlab.describe("nowhere.npz"),
        lambda: vitlab.train("nowhere.json", out="x"),
    ):
        with pytest.raises(UsageError):
            call()
