"""Files of version 0.1.0 stay readable; a key of today stays strict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from vitlab.config import renamed
from vitlab.config.model import MODEL_CONFIGS, ModelConfig, variant
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_json, from_text, to_json, to_text
from vitlab.config.train import Distill, Masked
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError
from vitlab.training.run_folder import RunDirectory

OLD_RUN = Path(__file__).parent.parent / "fixtures" / "run_0_1_0"  # written by vitlab 0.1.0, as it stands


def test_a_run_of_version_0_1_0_reads_back_and_is_written_with_the_keys_of_today() -> None:
    run: RunConfig = from_text(RunConfig, (OLD_RUN / "run.json").read_text())
    assert run.data.dataset == "synthetic:kind=strokes,classes=4,samples_per_class=64,image_size=32"
    assert run.train.steps == 2
    written = to_text(run)
    assert '"source"' not in written
    assert from_text(RunConfig, written) == run


def test_events_of_version_0_1_0_have_the_keys_of_today(tmp_path: Path) -> None:
    shutil.copy(OLD_RUN / "events.jsonl", tmp_path)
    events = RunDirectory(tmp_path).events()
    assert [event["event"] for event in events][:3] == ["started", "stepped", "evaluated"]
    assert events[0]["images"] == 256
    assert events[1]["images"] == 8
    assert events[1]["lr"] == 0.0008838834764831845
    assert all("pictures" not in event and "rate" not in event for event in events)


def test_a_renamed_event_has_the_name_of_today() -> None:
    assert renamed.current_event({"event": "shrunk", "step": 3})["event"] == "micro-batch-reduced"


def test_an_unknown_key_is_still_refused() -> None:
    data = json.loads((OLD_RUN / "run.json").read_text())
    data["data"]["sources"] = "digits"
    with pytest.raises(ConfigError, match=r"data\.sources"):
        from_text(RunConfig, json.dumps(data))


def test_a_key_given_by_its_old_and_its_new_name_is_refused() -> None:
    data = json.loads((OLD_RUN / "run.json").read_text())
    data["data"]["dataset"] = "digits"
    with pytest.raises(ConfigError, match=r"source is the old name of dataset"):
        from_text(RunConfig, json.dumps(data))


def test_the_recipe_in_a_checkpoint_has_the_keys_of_today() -> None:
    recipe = json.loads((OLD_RUN / "run.json").read_text())
    assert renamed.current_recipe(recipe)["data"]["dataset"].startswith("synthetic:")
    assert renamed.current_recipe({"name": "other"}) == {"name": "other"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pictures:photos/", "images:photos/"),
        ("generated", "synthetic"),
        ("generated:classes=3,examples=8", "synthetic:classes=3,samples_per_class=8"),
        ("photos/", "photos/"),
        ("pictures", "pictures"),  # a folder
        ("cifar10:/data", "cifar10:/data"),
        ("digits", "digits"),
    ],
)
def test_an_old_prefix_of_a_dataset_is_translated(old: str, new: str) -> None:
    assert renamed.current_dataset(old) == new


def test_a_run_of_version_0_1_0_has_todays_family_conv_stem_and_progressive_resizing() -> None:
    run = from_text(RunConfig, (OLD_RUN / "run.json").read_text())
    assert isinstance(run.model, ViTConfig)
    assert run.model.conv_stem is not None
    assert run.model.conv_stem.norm == "group"
    assert run.train.progressive_resizing
    written = json.loads(to_text(run))
    assert written["model"]["family"] == "vit"
    assert not {"kind", "early"} & written["model"].keys()
    assert "growth" not in written["train"]


@pytest.mark.parametrize("config", [config for config in MODEL_CONFIGS if config.names])  # a segmenter is newer
def test_a_model_of_version_0_1_0_says_kind_for_family(config: type[ModelConfig]) -> None:
    model = variant(config.names[0])
    old = to_json(model)
    assert isinstance(old, dict)
    old["kind"] = old.pop("family")
    assert from_json(ModelConfig, old) == model


def test_fractions_of_version_0_1_0_were_shares() -> None:
    assert from_json(Masked, {"share": 0.25}) == Masked(fraction=0.25)
    assert from_json(Distill, {"teacher": "a", "share": 0.25}) == Distill(teacher="a", weight=0.25)
