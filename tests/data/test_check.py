"""Quality checks: every planted fault is found and named, and nothing is found in sound data."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from tests.conftest import real_data
from tests.data.containers import as_csv, as_folder, as_zip
from tests.data.images import encode, jpeg, scene, with_orientation
from vitlab.config.data import SplitRule
from vitlab.data.check import DataCheck, Duplicates, Report
from vitlab.data.check import check_dataset as check
from vitlab.errors import DataError


def images(*, parts: tuple[str, ...] = ("train", "test"), classes: int = 2, each: int = 4, side: int = 64) -> dict[str, bytes]:
    """Class folders in parts, every image another."""
    return {
        f"{part}/class-{label}/{number}.jpg": jpeg(scene(side, side, seed=1000 * place + 100 * label + number))
        for place, part in enumerate(parts)
        for label in range(classes)
        for number in range(each)
    }


def kinds(report: Report) -> dict[str, int]:
    return {problem.kind: problem.count for problem in report.problems()}


def names_of(group: Duplicates, root: Path) -> set[str]:
    return {str(Path(image.name).relative_to(root)) for image in group.images}


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    report = check(str(as_folder(tmp_path, images())))
    assert report.problems() == []
    assert (report.broken, report.duplicates, report.odd, report.faults) == ((), (), (), ())
    assert (report.images, report.splits) == (16, {"train": 8, "test": 8})
    assert report.stored == {"jpeg, colour": 16}
    assert report.imbalance == 1


def test_a_broken_image_is_named_with_its_reason(tmp_path: Path) -> None:
    files = images()
    files["train/class-0/cut.jpg"] = files["train/class-0/0.jpg"][:500]
    files["train/class-0/page.jpg"] = b"<!doctype html><p>not found"
    files["test/class-1/empty.png"] = b""
    damaged = bytearray(encode(scene(), "PNG"))
    damaged[len(damaged) // 2] ^= 0xFF
    files["test/class-1/damaged.png"] = bytes(damaged)
    report = check(str(as_folder(tmp_path, files)))
    assert kinds(report) == {"broken": 4}
    found = {Path(broken.image.name).name: broken for broken in report.broken}
    assert set(found) == {"cut.jpg", "page.jpg", "empty.png", "damaged.png"}
    assert "HTML" in found["page.jpg"].reason
    assert found["cut.jpg"].image.split == "train"
    assert found["empty.png"].image.label == "class-1"


def test_identical_files_within_a_split_are_found(tmp_path: Path) -> None:
    files = images()
    files["train/class-0/copy.jpg"] = files["train/class-0/copy again.jpg"] = files["train/class-0/1.jpg"]
    report = check(str(as_folder(tmp_path, files)))
    assert kinds(report) == {"duplicate": 1}
    (group,) = report.duplicates
    assert (group.exact, group.leak, group.conflict) == (True, False, False)
    assert names_of(group, tmp_path) == {"train/class-0/1.jpg", "train/class-0/copy.jpg", "train/class-0/copy again.jpg"}


def test_an_image_in_two_splits_is_a_leak_with_both_names_and_labels(tmp_path: Path) -> None:
    files = images()
    files["test/class-1/leaked.jpg"] = files["train/class-1/2.jpg"]
    report = check(str(as_folder(tmp_path, files)))
    assert kinds(report) == {"leak": 1}
    (group,) = report.duplicates
    assert {(image.split, image.label) for image in group.images} == {("train", "class-1"), ("test", "class-1")}
    assert names_of(group, tmp_path) == {"train/class-1/2.jpg", "test/class-1/leaked.jpg"}


def test_the_same_image_with_two_labels_is_a_conflict(tmp_path: Path) -> None:
    files = images()
    files["train/class-1/other.jpg"] = files["train/class-0/2.jpg"]
    report = check(str(as_folder(tmp_path, files)))
    assert kinds(report) == {"duplicate": 1, "conflict": 1}


def altered(content: bytes, how: str) -> bytes:
    image = Image.open(io.BytesIO(content)).convert("RGB")
    match how:
        case "recompressed":
            return jpeg(image, quality=40)
        case "smaller":
            return jpeg(image.resize((40, 40), Image.Resampling.BICUBIC))
        case "larger":
            return encode(image.resize((150, 150), Image.Resampling.BICUBIC), "PNG")
        case "brighter":
            return jpeg(ImageEnhance.Brightness(image).enhance(1.3))
        case "flatter":
            return jpeg(ImageEnhance.Contrast(image).enhance(0.6))
        case "grey":
            return jpeg(image.convert("L"))
        case "mirrored":
            return jpeg(ImageOps.mirror(image))
        case "narrower":
            return jpeg(image.resize((48, 64)))
        case _:
            return jpeg(image.crop((1, 1, 63, 63)))


@pytest.mark.parametrize(
    "how", ["recompressed", "smaller", "larger", "brighter", "flatter", "grey", "mirrored", "narrower", "cropped"]
)
def test_an_altered_copy_in_another_split_is_found(tmp_path: Path, how: str) -> None:
    files = images(side=64)
    files["test/class-0/altered.jpg"] = altered(files["train/class-0/3.jpg"], how)
    report = check(str(as_folder(tmp_path, files)))
    assert kinds(report) == {"leak": 1}
    (group,) = report.duplicates
    assert not group.exact
    assert group.mirrored == (how == "mirrored")
    assert 0.9 <= group.likeness <= 1
    assert names_of(group, tmp_path) == {"train/class-0/3.jpg", "test/class-0/altered.jpg"}


def test_near_duplicates_that_hang_together_are_one_group(tmp_path: Path) -> None:
    files = images()
    first = files["train/class-0/0.jpg"]
    for quality in (30, 50, 70):
        files[f"train/class-0/{quality}.jpg"] = jpeg(Image.open(io.BytesIO(first)), quality=quality)
    report = check(str(as_folder(tmp_path, files)))
    assert report.problems() == []
    (group,) = report.duplicates
    assert len(group.images) == 4
    assert "1 group of near duplicates" in report.remarks()[0]


@pytest.mark.parametrize(("brightest", "dark"), [(4_095, True), (65_535, False)])
def test_tiff_files_of_16_bits_are_grey_and_said_to_be_dark_if_they_are(brightest: int, dark: bool, tmp_path: Path) -> None:
    deep = np.linspace(0, brightest, 64 * 64).astype(np.uint16).reshape(64, 64)
    files = {**images(parts=("train",)), "train/class-0/deep.tif": encode(Image.fromarray(deep), "TIFF")}
    report = check(str(as_folder(tmp_path, files)))
    assert report.stored["tiff, grey"] == 1
    said = [odd.what for odd in report.odd]
    assert said[0] == "16 bits"
    assert [("pixel scale" in what) for what in said[1:]] == [True] * dark


def test_a_tiff_file_of_several_pages_is_said_to_lose_them(tmp_path: Path) -> None:
    pages = [Image.fromarray(np.full((40, 40), 60 * number, np.uint8)) for number in range(3)]
    stack = io.BytesIO()
    pages[0].save(stack, "TIFF", save_all=True, append_images=pages[1:])
    files = {"train/class-0/stack.tif": stack.getvalue(), "train/class-0/one.tif": encode(pages[1], "TIFF")}
    report = check(str(as_folder(tmp_path, images(parts=("train",)) | files)))
    (found,) = (odd for odd in report.odd if "several pages" in odd.what)
    assert Path(found.image.name).name == "stack.tif"


def test_an_array_with_its_channels_first_is_said_to_look_so(tmp_path: Path) -> None:
    arrays = {}
    for label in "ab":
        for number in range(3):
            array = io.BytesIO()
            np.save(array, np.random.default_rng(number).integers(0, 255, (3, 40, 40), np.uint8))
            arrays[f"{label}/{number}.npy"] = array.getvalue()
    report = check(str(as_folder(tmp_path, arrays)))
    assert any("channels, height, width" in odd.what for odd in report.odd)


def test_arrays_of_16_bits_are_described_as_tiff_files_are(tmp_path: Path) -> None:
    deep = np.linspace(0, 4_095, 64 * 64).astype(np.uint16).reshape(64, 64)
    array = io.BytesIO()
    np.save(array, deep)
    alone = {"tif": encode(Image.fromarray(deep), "TIFF"), "npy": array.getvalue()}
    reports = {
        ending: check(str(as_folder(tmp_path / ending, {**images(parts=("train",)), f"train/class-0/deep.{ending}": content})))
        for ending, content in alone.items()
    }
    assert reports["npy"].stored["npy, grey"] == reports["tif"].stored["tiff, grey"] == 1
    said = {ending: [odd.what for odd in report.odd] for ending, report in reports.items()}
    assert said["npy"] == said["tif"]
    assert len(said["npy"]) == 2


def test_each_kind_of_odd_image_is_one_line(tmp_path: Path) -> None:
    deep = np.linspace(0, 65_535, 64 * 64).astype(np.uint16).reshape(64, 64)
    deeps = {f"train/class-0/deep{n}.tif": encode(Image.fromarray(np.roll(deep, 7 * n, axis=1)), "TIFF") for n in range(6)}
    report = check(str(as_folder(tmp_path, {**images(parts=("train",)), **deeps})))
    (line,) = [line for line in str(DataCheck(report=report)).splitlines() if line.startswith("  16 bits: ")]
    assert line.count("deep") == 4
    assert line.endswith("and 2 more")


def test_empty_images_are_not_taken_for_each_other(tmp_path: Path) -> None:
    files = images()
    for number in range(4):
        faint = np.tile(np.linspace(250, 255, 64 + number).astype(np.uint8)[None, :, None], (64, 1, 3))
        files[f"train/class-0/blank{number}.png"] = encode(faint, "PNG")
    report = check(str(as_folder(tmp_path, files)))
    assert report.duplicates == ()
    assert Counter(odd.what for odd in report.odd) == {"of one colour": 4}


def test_images_too_small_to_distinguish_are_not_compared(tmp_path: Path) -> None:
    files = {f"{label}/{number}.png": encode(scene(16, 16, seed=number % 3), "PNG", compress_level=number)
             for label in "ab" for number in range(6)}  # fmt: skip
    report = check(str(as_folder(tmp_path, files)))
    assert all(group.exact for group in report.duplicates)
    assert any("too small for the search" in note for note in report.notes)


def test_odd_modes_are_counted_and_named(tmp_path: Path) -> None:
    files = images()
    rgb = Image.fromarray(scene(64, 64, seed=7))
    animated = io.BytesIO()
    frames = [Image.fromarray(scene(64, 64, seed=seed)).convert("P") for seed in (20, 21)]
    frames[0].save(animated, "GIF", save_all=True, append_images=frames[1:])
    rgba = Image.fromarray(scene(64, 64, seed=8)).convert("RGBA")
    rgba.putalpha(100)
    deep = np.asarray(Image.fromarray(scene(64, 64, seed=9)).convert("L")).astype(np.uint16) * 257
    files |= {
        "train/class-0/cmyk.jpg": encode(rgb.convert("CMYK"), "JPEG"),
        "train/class-0/deep.png": encode(Image.fromarray(deep), "PNG"),
        "train/class-0/alpha.png": encode(rgba, "PNG"),
        "train/class-0/alpha.webp": encode(rgba.rotate(90), "WEBP", lossless=True),
        "train/class-0/turned.jpg": jpeg(scene(64, 64, seed=10), exif=with_orientation(6)),
        "train/class-0/moving.gif": animated.getvalue(),
        "train/class-0/liar.jpg": encode(scene(64, 64, seed=11), "PNG"),
        "train/class-0/grey.jpg": jpeg(Image.fromarray(scene(64, 64, seed=12)).convert("L")),
    }
    report = check(str(as_folder(tmp_path, files)))
    assert report.problems() == []
    found = {(Path(odd.image.name).name, odd.what) for odd in report.odd}
    assert found == {
        ("cmyk.jpg", "CMYK"), ("deep.png", "16 bits"), ("alpha.png", "transparent"), ("alpha.webp", "transparent"),
        ("turned.jpg", "turned by EXIF (6)"), ("moving.gif", "animated"), ("liar.jpg", "png called .jpg"),
    }  # fmt: skip
    assert report.stored["jpeg, grey"] == 1
    assert any(remark == "2 images in grey and 22 in colour" for remark in report.remarks())


def test_a_gif_whose_second_frame_is_damaged_is_animated_and_no_error(tmp_path: Path) -> None:
    frames = [Image.fromarray(scene(64, 64, seed=seed)).convert("P") for seed in (20, 21)]
    whole = encode(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50)
    control = (
        b"!\xf9\x04"  # a frame begins with a graphic control extension of 8 bytes; its descriptor of 10 bytes begins with a comma
    )
    second = whole.index(control, whole.index(control) + 1)
    assert whole[second + 8 : second + 9] == b","
    cuts = range(second + 1, second + 18)
    report = check(str(as_folder(tmp_path, images() | {f"train/class-0/cut-{cut}.gif": whole[:cut] for cut in cuts})))
    assert report.problems() == []
    named = {Path(odd.image.name).name for odd in report.odd if odd.what == "animated"}
    assert named >= {f"cut-{cut}.gif" for cut in (second + 1, *range(second + 9, second + 18))}


def test_sizes_are_those_of_the_upright_image(tmp_path: Path) -> None:
    files = {f"{label}/{number}.jpg": jpeg(scene(40, 90, seed=10 * number + ord(label)), exif=with_orientation(6))
             for label in "ab" for number in range(3)}  # fmt: skip
    sizes = check(str(as_folder(tmp_path, files))).sizes
    assert sizes is not None
    assert (sizes.height.median, sizes.width.median) == (90, 40)


def test_what_is_far_from_the_usual_size_or_shape_is_odd(tmp_path: Path) -> None:
    files = images(side=160)
    files["train/class-0/tiny.jpg"] = jpeg(scene(20, 20, seed=50))
    files["train/class-0/wide.jpg"] = jpeg(scene(100, 600, seed=51))
    files["train/class-0/smaller.jpg"] = jpeg(scene(60, 90, seed=52))
    report = check(str(as_folder(tmp_path, files)))
    assert {(Path(odd.image.name).name, odd.what) for odd in report.odd} == {
        ("tiny.jpg", "far smaller than the others"), ("wide.jpg", "far wider or narrower than the others"),
    }  # fmt: skip
    assert report.sizes is not None
    assert (report.sizes.width.least, report.sizes.width.most) == (20, 600)


def test_an_image_of_half_the_usual_size_is_not_odd(tmp_path: Path) -> None:
    files = images(side=48)
    files["train/class-0/half.jpg"] = jpeg(scene(24, 24, seed=50))
    assert check(str(as_folder(tmp_path, files))).odd == ()


def test_imbalance_is_the_largest_class_over_the_smallest(tmp_path: Path) -> None:
    files = {f"a/{number}.jpg": jpeg(scene(seed=number)) for number in range(33)}
    files |= {f"b/{number}.jpg": jpeg(scene(seed=100 + number)) for number in range(3)}
    report = check(str(as_folder(tmp_path, files)))
    assert report.imbalance == 11
    assert "the largest class has 11 times as many images as the smallest" in report.remarks()
    assert [(entry.label, entry.total) for entry in report.classes] == [("a", 33), ("b", 3)]


def test_a_folder_that_training_refuses_is_checked_all_the_same(tmp_path: Path) -> None:
    files = images()
    files["train/class-2/only in train.jpg"] = jpeg(scene(seed=90))
    files["train/stray.jpg"] = jpeg(scene(seed=91))
    files["test/class-1/leaked.jpg"] = files["train/class-1/2.jpg"]
    as_folder(tmp_path, files)
    (tmp_path / "train" / "class-3").mkdir()
    report = check(str(tmp_path))
    assert kinds(report) == {"layout": 2, "leak": 1, "missing class": 1}
    reasons = {fault.place: fault.reason for fault in report.faults}
    assert "no image in this split" in reasons["test/class-2"]
    assert any("without an image are left out: train/class-3" in remark for remark in report.remarks())
    assert "outside any class folder" in reasons["train/stray.jpg"]


def test_classes_without_an_image_are_found_in_a_list(tmp_path: Path) -> None:
    as_folder(tmp_path, {f"{number}.jpg": jpeg(scene(seed=number)) for number in range(8)})
    rows = [
        (f"{number}.jpg", "cat" if number % 2 else "dog", "test" if number > 5 and number % 2 else "train") for number in range(8)
    ]
    as_csv(tmp_path / "labels.csv", [("path", "label", "split"), *rows])
    (tmp_path / "classes.txt").write_text("cat\ndog\nfox\n")
    report = check(str(tmp_path))
    assert kinds(report) == {"empty class": 1, "missing class": 1}
    assert {entry.label: entry.splits for entry in report.classes}["dog"] == {"train": 4, "test": 0}


def test_data_without_splits_is_checked_in_the_splits_training_would_make(tmp_path: Path) -> None:
    files = {f"{label}/{number}.jpg": jpeg(scene(seed=100 * ord(label) + number)) for label in "ab" for number in range(20)}
    report = check(str(as_folder(tmp_path, files)), rule=SplitRule(val=0.25, test=0.25))
    assert set(report.splits) == {"train", "val", "test"}
    assert sum(report.splits.values()) == 40


def test_a_class_too_small_for_splits_is_no_obstacle(tmp_path: Path) -> None:
    files = {f"{label}/0.jpg": jpeg(scene(seed=ord(label))) for label in "abc"}
    report = check(str(as_folder(tmp_path, files)))
    assert report.splits == {}
    assert any(note.startswith("no splits can be made of it, so training would refuse it") for note in report.notes)


def test_a_zip_is_checked_like_the_folder_it_holds(tmp_path: Path) -> None:
    files = images()
    files["test/class-1/leaked.jpg"] = files["train/class-1/2.jpg"]
    files["test/class-1/broken.jpg"] = b"nonsense"
    folder, archive = check(str(as_folder(tmp_path / "folder", files))), check(str(as_zip(tmp_path / "images.zip", files)))
    assert kinds(folder) == kinds(archive) == {"broken": 1, "leak": 1}
    assert folder.classes == archive.classes
    assert folder.sizes == archive.sizes


@pytest.mark.parametrize("spec", ["digits", "synthetic:kind=contours,classes=6,samples_per_class=4,image_size=48"])
def test_the_built_in_sets_have_no_problems(spec: str) -> None:
    report = check(spec)
    assert report.problems() == []
    assert report.images in (1797, 36)


@pytest.mark.parametrize("spec", ["nowhere", "digitz"])
def test_data_that_is_not_there_is_an_error_and_no_report(spec: str) -> None:
    with pytest.raises(DataError, match="does not exist"):
        check(spec)


def test_data_without_a_name_is_an_error_and_not_the_folder_one_is_in() -> None:
    with pytest.raises(DataError, match="no name"):
        check("")


def test_progress_is_reported_up_to_the_last_image(tmp_path: Path) -> None:
    stated: list[tuple[str, int, int | None]] = []
    check(str(as_folder(tmp_path, images())), progress=lambda *step: stated.append(step))
    assert [done for what, done, _ in stated if what == "checking images"] == list(range(1, 17))
    assert stated[-1][1] == stated[-1][2]


@pytest.mark.data
def test_planted_faults_among_real_pets_are_found_and_nothing_else(tmp_path: Path) -> None:
    """40 real images of 4 breeds, of which the archive's own near duplicates are left out first."""
    breeds = ("Bengal", "Sphynx", "beagle", "pug")
    with zipfile.ZipFile(real_data() / "oxford_pets_128.zip") as archive:
        names = archive.namelist()
        for part in ("train", "test"):
            for breed in breeds:
                chosen = sorted(name for name in names if name.startswith(f"{part}/{breed}/"))[:5]
                for name in chosen:
                    archive.extract(name, tmp_path)
    assert check(str(tmp_path)).problems() == []
    train, test = tmp_path / "train", tmp_path / "test"
    bengal, sphynx, beagle, pug = (sorted((train / breed).iterdir()) for breed in breeds)
    shutil.copy(bengal[0], train / "Bengal" / "planted_duplicate.jpg")
    shutil.copy(sphynx[1], test / "Sphynx" / "planted_leak.jpg")
    shutil.copy(beagle[2], train / "pug" / "planted_conflict.jpg")
    (test / "pug" / "planted_cut.jpg").write_bytes(pug[3].read_bytes()[:2000])
    with Image.open(pug[4]) as image:
        ImageOps.mirror(image).resize((image.width // 2, image.height // 2)).save(test / "pug" / "planted_near.jpg", quality=50)
    report = check(str(tmp_path))
    assert kinds(report) == {"broken": 1, "leak": 2, "conflict": 1, "duplicate": 2}
    assert [Path(broken.image.name).name for broken in report.broken] == ["planted_cut.jpg"]
    planted = {name for group in report.duplicates for name in names_of(group, tmp_path) if "planted" in name}
    assert planted == {
        "train/Bengal/planted_duplicate.jpg", "test/Sphynx/planted_leak.jpg", "train/pug/planted_conflict.jpg",
        "test/pug/planted_near.jpg",
    }  # fmt: skip


@pytest.mark.data
def test_real_pets_have_few_near_duplicates_and_all_within_one_breed() -> None:
    """A person checked the 44 groups that are found: each is one photograph, 23 of them in both official splits."""
    report = check(str(real_data() / "oxford_pets_128.zip"))
    assert kinds(report) == {"leak": 23}
    assert len(report.duplicates) == 44
    assert not any(group.conflict or group.exact for group in report.duplicates)
