"""A survey reports the facts of datasets and checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.checkpoints import Checkpoint, save
from vitlab.config import Overrides, Preprocess, variant
from vitlab.config.data import PixelScale, SplitRule
from vitlab.config.overrides import RunFacts
from vitlab.data.opening import open_dataset
from vitlab.errors import DataError
from vitlab.models import build
from vitlab.recipes import recipe
from vitlab.recipes.own import DIGITS, STROKES
from vitlab.recipes.reasons import reasons
from vitlab.training.plan import start_facts, survey, this_machine


def images(folder: Path, count: int, *, size: tuple[int, int] = (24, 30), grey: bool = False, kind: str = "png") -> None:
    """So many random images of (height, width) in a folder."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels = rng.integers(0, 256, (*size, 1 if grey else 3), np.uint8)
        Image.fromarray(np.repeat(pixels, 3, axis=2) if grey else pixels).save(folder / f"{number}.{kind}")


@pytest.mark.parametrize("facts", [STROKES, DIGITS], ids=["strokes", "digits"])
def test_the_built_in_datasets_match_the_recipes(facts: object) -> None:
    assert facts in (STROKES, DIGITS)
    stated = STROKES if facts is STROKES else DIGITS
    found = survey(stated.dataset)
    assert (found.images, found.classes, found.channels, found.side) == (
        stated.images,
        stated.classes,
        stated.channels,
        stated.side,
    )
    assert found.splits == ("train", "val", "test")


def test_a_folder_without_splits_is_divided_by_the_rule(tmp_path: Path) -> None:
    images(tmp_path / "cats", 30)
    images(tmp_path / "dogs", 10)
    facts = survey(str(tmp_path))
    assert (facts.images, facts.classes, facts.channels, facts.side) == (32, 2, 3, 24)
    assert facts.imbalance == 3
    assert facts.splits == ("train", "val", "test")
    whole = survey(str(tmp_path), rule=SplitRule(val=0, test=0))
    assert (whole.images, whole.splits) == (40, ("train",))


@pytest.mark.parametrize(("brightest", "dark"), [(4_095, True), (65_535, False)])
def test_the_scale_of_16_bits_is_stated_and_dark_images_are_noticed(brightest: int, dark: bool, tmp_path: Path) -> None:
    deep = np.linspace(0, brightest, 24 * 30).astype(np.uint16).reshape(24, 30)
    for name in ("cells", "dust"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.fromarray(np.roll(deep, number, axis=1)).save(tmp_path / name / f"{number}.tif")
    facts = survey(str(tmp_path))
    assert (facts.deep, facts.dark) == (True, dark)
    scales: tuple[PixelScale, ...] = ("full", "percentile")
    for scale in scales:
        overrides = Overrides(steps=2, pixel_scale=scale)
        told = reasons(recipe("small-data", overrides, data=facts), RunFacts(data=facts), overrides)
        (line,) = [line for line in told if line.startswith("pixels: ")]
        assert f"scaled by {scale}" in line
        assert ("almost black" in line) == (dark and scale == "full")


def test_images_of_8_bits_have_no_scale(tmp_path: Path) -> None:
    images(tmp_path / "cats", 4)
    images(tmp_path / "dogs", 4, kind="tif")
    facts = survey(str(tmp_path))
    assert (facts.deep, facts.dark) == (False, False)


def test_declared_splits_are_counted_exactly(tmp_path: Path) -> None:
    for part, count in (("train", 9), ("val", 3), ("test", 2)):
        for name in ("cats", "dogs"):
            images(tmp_path / part / name, count)
    facts = survey(str(tmp_path))
    assert facts.images == 18 == len(open_dataset(str(tmp_path), split="train"))
    assert facts.splits == ("train", "val", "test")


def test_the_estimate_is_near_the_size_of_the_split() -> None:
    assert survey("digits").images == pytest.approx(len(open_dataset("digits", split="train")), rel=0.05)


def test_grey_images_are_recognised_by_their_pixels(tmp_path: Path) -> None:
    images(tmp_path / "grey" / "a", 4, grey=True, kind="jpg")
    images(tmp_path / "grey" / "b", 4, grey=True, kind="jpg")
    assert survey(str(tmp_path / "grey")).channels == 1
    images(tmp_path / "grey" / "c", 4)
    assert survey(str(tmp_path / "grey")).channels == 3


def test_images_without_labels_have_no_classes(tmp_path: Path) -> None:
    images(tmp_path / "pile", 5)
    assert survey(f"images:{tmp_path / 'pile'}").classes == 0


def test_a_few_unreadable_images_are_accepted_but_not_only_unreadable_ones(tmp_path: Path) -> None:
    images(tmp_path / "a", 3)
    images(tmp_path / "b", 3)
    (tmp_path / "a" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    assert survey(str(tmp_path)).side == 24
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(DataError, match=r"none of the 6 images .* can be read.*\.png"):
        survey(str(tmp_path))


def test_a_dataset_without_a_train_split_is_refused(tmp_path: Path) -> None:
    for part in ("val", "test"):
        for name in ("cats", "dogs"):
            images(tmp_path / part / name, 2)
    with pytest.raises(DataError, match="no train split"):
        survey(str(tmp_path))


def test_the_facts_of_a_checkpoint_come_from_its_header(tmp_path: Path) -> None:
    config = variant("ViT-Mini/8", num_classes=3)
    fed = Preprocess(image_size=(32, 32), resize_to=36)
    save(Checkpoint(model=build(config), config=config, preprocess=fed), tmp_path / "m.safetensors")
    facts = start_facts(str(tmp_path / "m.safetensors"))
    assert (facts.path, facts.model, facts.preprocess) == (str(tmp_path / "m.safetensors"), config, fed)


def test_this_machine_has_cores() -> None:
    assert this_machine().cores >= 1
