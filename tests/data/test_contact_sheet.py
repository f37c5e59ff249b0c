"""Contact sheets: equally many images of each class, in the order of classes, with labels inside their cells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFont

from tests.data.containers import as_csv, as_folder
from tests.data.images import jpeg, scene
from vitlab.data.contact_sheet import choose, wrapped, write_sheet
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, DataError

FONT = ImageFont.load_default(12)


def folder_of(tmp_path: Path, counts: dict[str, int]) -> Path:
    files = {
        f"{label}/{number}.jpg": jpeg(scene(40, 60, seed=100 * place + number))
        for place, (label, count) in enumerate(counts.items())
        for number in range(count)
    }
    return as_folder(tmp_path / "images", files)


def test_classes_are_shown_equally_and_in_order(tmp_path: Path) -> None:
    dataset = open_dataset(folder_of(tmp_path, {"ant": 9, "bee": 3, "cat": 30}), split="all")
    groups = choose(dataset, 15, 0)
    labels = [dataset.label(index) for group in groups for index in group]
    assert labels == sorted(labels, key=str)
    assert Counter(labels) == {0: 5, 1: 3, 2: 5}


def test_with_more_classes_than_images_each_is_of_another_class(tmp_path: Path) -> None:
    dataset = open_dataset(folder_of(tmp_path, {f"class {number:02d}": 2 for number in range(20)}), split="all")
    groups = choose(dataset, 8, 0)
    assert [len(group) for group in groups] == [1] * 8
    assert len({dataset.label(group[0]) for group in groups}) == 8


def test_a_seed_chooses_the_same_images_each_time(tmp_path: Path) -> None:
    dataset = open_dataset(folder_of(tmp_path, {"ant": 30, "bee": 30}), split="all")
    assert choose(dataset, 10, 3) == choose(dataset, 10, 3) != choose(dataset, 10, 4)


def test_a_sheet_is_an_image_with_every_chosen_image_in_it(tmp_path: Path) -> None:
    files = {"red": (255, 0, 0), "green": (0, 160, 0), "blue": (0, 0, 255)}
    for label, colour in files.items():
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (50, 50), colour).save(tmp_path / "images" / label / f"{number}.png")
    dataset = open_dataset(tmp_path / "images", split="all")
    shown = write_sheet(dataset, tmp_path / "new" / "sheet.png", title="colours", count=6, side=40)
    assert (shown.images, shown.classes, shown.broken) == (6, 3, 0)
    with Image.open(tmp_path / "new" / "sheet.png") as sheet:
        assert (sheet.height, sheet.width) == (shown.height, shown.width)
        pixels = np.asarray(sheet.convert("RGB")).reshape(-1, 3)
    for colour in files.values():
        assert np.count_nonzero((pixels == colour).all(axis=1)) == 2 * 40 * 40
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"sheet.png"}


def test_small_images_are_enlarged_by_whole_pixels(tmp_path: Path) -> None:
    dataset = open_dataset("digits", split="test")
    write_sheet(dataset, tmp_path / "sheet.png", title="digits", count=10, side=64)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.mode == "L", "what has no colour is written without"
        cell = np.asarray(sheet)[-64 - 15 - 3 - 12 : -15 - 3 - 12]
    first = dataset.read(choose(dataset, 10, 0)[-1][0]).content
    assert isinstance(first, np.ndarray)
    blocks = np.repeat(np.repeat(first[:, :, 0], 8, axis=0), 8, axis=1)
    assert any(np.array_equal(cell[:, x : x + 64], blocks) for x in range(cell.shape[1] - 63))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80), st.integers(30, 120))
def test_no_label_is_wider_than_its_cell_or_longer_than_two_lines(text: str, width: int) -> None:
    lines = wrapped(text, FONT, width)
    assert len(lines) <= 2
    assert all(FONT.getlength(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)


def test_a_label_that_fits_is_not_changed_and_a_long_one_is_broken_where_it_has_a_joint() -> None:
    assert wrapped("beagle", FONT, 96) == ["beagle"]
    assert wrapped("american_pit_bull_terrier", FONT, 96) == ["american_pit_", "bull_terrier"]
    assert wrapped("a" * 200, FONT, 96)[1].endswith("...")


def test_letters_the_font_does_not_have_are_marked() -> None:
    assert wrapped("犬 dog", FONT, 96) == ["U+72AC  dog"]
    assert wrapped("Köln", FONT, 96) in (["Köln"], ["Koln"])


def test_a_broken_image_is_shown_as_broken(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"ant": 2, "bee": 2})
    (folder / "ant" / "0.jpg").write_bytes(b"nonsense")
    assert write_sheet(open_dataset(folder, split="all"), tmp_path / "sheet.png", title="x", count=8).broken == 1


def test_images_without_labels_and_with_several_are_shown_too(tmp_path: Path) -> None:
    as_folder(tmp_path / "images", {f"{number}.jpg": jpeg(scene(seed=number)) for number in range(5)})
    plain = open_dataset(f"images:{tmp_path / 'images'}", split="all")
    assert write_sheet(plain, tmp_path / "plain.png", title="plain", count=4).images == 4
    rows = [("path", "labels"), *((f"{number}.jpg", "cat|dog" if number % 2 else "") for number in range(5))]
    as_csv(tmp_path / "images" / "labels.csv", rows)
    several = open_dataset(tmp_path / "images", split="all")
    assert write_sheet(several, tmp_path / "several.png", title="several", count=4).images == 4


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 10_000}, {"side": 8}, {"seed": -1}])
def test_a_sheet_that_makes_no_sense_is_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    dataset = open_dataset(folder_of(tmp_path, {"ant": 2, "bee": 2}), split="all")
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        write_sheet(dataset, tmp_path / "sheet.png", title="x", **wrong)  # type: ignore[arg-type]


def test_a_sheet_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    dataset = open_dataset(folder_of(tmp_path, {"ant": 2, "bee": 2}), split="all")
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataError, match="cannot write"):
        write_sheet(dataset, tmp_path / "taken", title="x", count=4)
    assert {path.name for path in tmp_path.iterdir()} == {"images", "taken"}
