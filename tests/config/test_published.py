"""Published numbers stand beside measured ones where model and dataset are known for certain, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.inference import small
from vitlab.cli.main import main
from vitlab.config import Overrides, published
from vitlab.config.data import Preprocess
from vitlab.config.model import variant
from vitlab.config.overrides import StartFacts
from vitlab.config.published import Score, TransferRow, dataset_of_the_paper, published_accuracies, published_vtab
from vitlab.config.vit import Position, ViTConfig
from vitlab.recipes import recipe
from vitlab.training.run import Run

B16 = variant("ViT-B/16", image_size=384, num_classes=10)


@pytest.mark.parametrize(
    ("data", "classes", "name"),
    [
        ("imagenet", 1000, "ImageNet"),
        ("data/imagenet/val", 1000, "ImageNet"),
        ("ILSVRC2012/", 1000, "ImageNet"),
        ("cifar10:data/somewhere", 10, "CIFAR-10"),
        ("cifar100:cifar-100-binary", 100, "CIFAR-100"),
        ("data/pets/labels.csv", 37, "Pets"),
        ("Oxford_IIIT_Pet.zip", 37, "Pets"),
        ("flowers102", 102, "Flowers"),
        ("imagenet", 100, None),  # other classes
        ("pets", 36, None),
        ("oxford_pets_128.zip", 37, None),  # other images
        ("imagenet_val_1000.zip", 1000, None),
        ("mypets", 37, None),
        ("cifar100-coarse:data", 20, None),
        ("synthetic:classes=10", 10, None),
        ("digits", 10, None),
    ],
)
def test_a_dataset_is_recognised_by_its_name_and_number_of_classes(data: str, classes: int, name: str | None) -> None:
    assert dataset_of_the_paper(data, classes) == name


def test_a_models_numbers_are_those_of_the_tables_with_their_sources() -> None:
    found = published_accuracies(B16, "cifar10:data")
    assert [(entry.trained_on, entry.percent) for entry in found] == [
        ("ImageNet-1k", 98.13),
        ("ImageNet-21k", 98.95),
        ("JFT-300M", 99.0),
    ]
    assert all("Table 5" in entry.source for entry in found)
    large = published_accuracies(variant("ViT-L/16", image_size=384), "imagenet", real=True)
    assert {(entry.dataset, entry.percent) for entry in large} >= {("ImageNet", 87.76), ("ImageNet", 85.15), ("ReaL", 90.54)}
    assert len({(entry.dataset, entry.trained_on, entry.source) for entry in large}) == len(large)


def test_other_papers_count_for_imagenet_at_their_image_size() -> None:
    assert [entry.percent for entry in published_accuracies(variant("ViT-Ti/16"), "imagenet")] == [72.2]
    assert published_accuracies(variant("ViT-Ti/16", image_size=160), "imagenet") == ()
    assert {entry.percent for entry in published_accuracies(variant("Swin-B"), "imagenet")} == {83.5, 85.2}


def test_a_model_that_only_has_the_size_has_no_published_numbers() -> None:
    assert isinstance(B16, ViTConfig)
    for other in (
        replace(B16, attention="axial"),
        replace(B16, position=Position(kind="none")),
        replace(B16, pool="mean"),
        replace(B16, distill_token=True),
        replace(B16, depth=11),
        replace(B16, num_classes=11),
    ):
        assert published_accuracies(other, "cifar10:data") == ()


def test_vtab_has_the_mean_of_table_2_whatever_the_head() -> None:
    large = variant("ViT-L/16", num_classes=37)
    assert isinstance(large, ViTConfig)
    assert [(entry.trained_on, entry.percent) for entry in published_vtab(large)] == [("JFT-300M", 76.28), ("ImageNet-21k", 72.72)]
    assert published_vtab(replace(large, attention="axial")) == published_vtab(variant("ViT-B/16")) == ()


def test_a_run_has_the_number_of_what_it_repeats(tmp_path: Path) -> None:
    start = StartFacts(path="b16.npz", model=variant("ViT-B/16"), preprocess=Preprocess(image_size=(224, 224), resize_to=224))
    tuned = Run(path=tmp_path, config=recipe("finetune-cifar10", start=start))
    assert [entry.percent for entry in tuned.published] == [98.13, 98.95, 99.0]
    scratch = Run(path=tmp_path, config=recipe("imagenet-scratch", Overrides(model="ViT-B/16")), reason="finished")
    assert [entry.percent for entry in scratch.published] == [74.79]
    assert "74.79 %" in str(scratch)
    assert scratch.to_json()["published"][0]["percent"] == 74.79
    other = Run(path=tmp_path, config=recipe("quickstart"), reason="finished")
    assert other.to_json()["published"] == []
    assert "published" not in str(other)


def test_evaluate_prints_the_published_number_beside_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    breeds = tuple(f"breed-{number:02}" for number in range(37))
    for place, breed in enumerate(breeds):
        small.photos(tmp_path / "pets" / breed, 1, start=place)
    model = small.saved(tmp_path / "model.safetensors", breeds)
    row = TransferRow(model="ViT-Mini/8", trained_on="letters", scores={"Pets": Score(value=12.34, deviation=0.05)})
    monkeypatch.setattr(published, "TABLE_5", (row,))
    words = ["evaluate", str(model), str(tmp_path / "pets"), "--workers", "0"]
    assert main(words) == 0
    assert "12.34 ± 0.05 %" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["published"]
    assert (entry["dataset"], entry["trained_on"], entry["percent"], entry["deviation"]) == ("Pets", "letters", 12.34, 0.05)
    assert "Table 5" in entry["source"]
    (tmp_path / "pets").rename(tmp_path / "mine")
    assert main([*words[:2], str(tmp_path / "mine"), *words[3:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["published"] == []
