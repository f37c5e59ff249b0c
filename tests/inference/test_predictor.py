"""Predictor: any image in, the model's own answer out, in order, in constant memory."""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.data.images import encode, jpeg, scene, with_orientation
from tests.inference import small
from vitlab.checkpoints import Checkpoint, save
from vitlab.config import Preprocess
from vitlab.data.decode import decode
from vitlab.data.transforms import normalise, preprocess
from vitlab.errors import ConfigError, DataError, VitlabError
from vitlab.inference import Prediction, Predictor, Unreadable
from vitlab.inference.backends import Outputs
from vitlab.inference.images import ImageLike, NamedImage
from vitlab.models import build


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(small.checkpoint(), batch_size=4)


def logits(results: Sequence[Prediction]) -> NDArray[np.float32]:
    return np.stack([result.logits for result in results])


def test_a_prediction_is_what_the_model_says_of_the_preprocessed_image(predictor: Predictor) -> None:
    content = jpeg(scene(50, 70))
    seen_HWC = preprocess(decode(content, name="a"), predictor.preprocess)
    images_BCHW = normalise(torch.from_numpy(seen_HWC)[None], predictor.preprocess)
    with torch.inference_mode():
        expected_BC = predictor.checkpoint.model(images_BCHW).numpy()
    (found,) = predictor([content])
    np.testing.assert_allclose(found.logits, expected_BC[0], atol=1e-5)
    expected = torch.from_numpy(found.logits).double().softmax(0).numpy()
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-6)


def test_every_form_of_an_image_gives_the_same_prediction(predictor: Predictor, tmp_path: Path) -> None:
    pixels_HWC = scene(45, 60)
    file = tmp_path / "scene.png"
    file.write_bytes(encode(pixels_HWC, "PNG"))
    archive = small.zipped(tmp_path / "photos.zip", [file])
    ways: list[ImageLike] = [
        str(file),
        file,
        file.read_bytes(),
        Image.open(file),
        Image.fromarray(pixels_HWC),
        pixels_HWC,
        torch.from_numpy(pixels_HWC).permute(2, 0, 1),
        torch.from_numpy(pixels_HWC).permute(2, 0, 1) / 255,
        NamedImage(name="mine", read=lambda: pixels_HWC),
        f"{archive}/in/scene.png",
    ]
    found = predictor(ways)
    for result in found:
        np.testing.assert_allclose(result.logits, found[0].logits, atol=1e-5)
    names = [str(file), str(file), *(f"image {place}" for place in range(2, 8)), "mine", f"{archive}/in/scene.png"]
    assert [result.name for result in found] == names


@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_neither_batches_nor_workers_change_answers_or_order(batch_size: int, workers: int, tmp_path: Path) -> None:
    paths = small.photos(tmp_path, 10)
    one_by_one = [Predictor(small.checkpoint(), batch_size=1, workers=0)([path])[0] for path in paths]
    found = Predictor(small.checkpoint(), batch_size=batch_size, workers=workers)(paths)
    assert [result.name for result in found] == [str(path) for path in paths]
    np.testing.assert_allclose(logits(found), logits(one_by_one), atol=1e-5)


@pytest.mark.parametrize("distilled", [False, True])
def test_features_are_the_models_and_asking_for_them_changes_no_logit(distilled: bool) -> None:
    made = small.checkpoint(distilled=distilled)
    predictor = Predictor(made)
    images = [scene(40, 40, seed=seed) for seed in range(3)]
    plain, rich = predictor(images), predictor(images, features=True)
    assert all(result.features is None for result in plain)
    np.testing.assert_allclose(logits(rich), logits(plain), atol=1e-6)
    seen_BHWC = np.stack([preprocess(image, made.preprocess) for image in images])
    with torch.inference_mode():
        features_BD = made.model.features(normalise(torch.from_numpy(seen_BHWC), made.preprocess))
    np.testing.assert_allclose(
        np.stack([result.features for result in rich if result.features is not None]), features_BD, atol=1e-5
    )


def test_a_model_without_a_head_gives_features_and_says_why_it_knows_no_classes() -> None:
    predictor = Predictor(small.checkpoint(None, classes=0))
    (found,) = predictor([scene(40, 40)], features=True)
    assert found.features is not None
    assert found.features.shape == (predictor.checkpoint.config.feature_width,)
    assert found.probabilities.shape == (0,)
    with pytest.raises(ConfigError, match="no head"):
        found.top()


def test_the_top_is_sorted_labelled_and_of_equals_the_first_comes_first() -> None:
    values = np.array([0.5, 2.0, 2.0, -1.0], np.float32)
    found = Prediction(name="a", logits=values, labels=("a", "b", "c", "d"))
    assert [label for label, _ in found.top(3)] == ["b", "c", "a"]
    assert [chance for _, chance in found.top(9)] == pytest.approx(sorted(found.probabilities.tolist(), reverse=True))
    assert found.probabilities.sum() == pytest.approx(1)
    assert replace(found, labels=None).top(1)[0][0] == "1"
    with pytest.raises(ConfigError, match="k=0"):
        found.top(0)


def test_probabilities_of_a_sigmoid_training_are_sigmoids() -> None:
    predictor = Predictor(small.checkpoint(recipe={"train": {"loss": "sigmoid"}}))
    (found,) = predictor([scene(40, 40)])
    np.testing.assert_allclose(found.probabilities, torch.from_numpy(found.logits).sigmoid().numpy(), rtol=1e-6)
    assert any("sigmoid" in note for note in predictor.notes)
    huge = Prediction(name="a", logits=np.array([-1000, 1000], np.float32), activation="sigmoid")
    assert huge.probabilities.tolist() == [0, 1]


def test_an_unreadable_image_has_its_place_in_the_stream_and_ends_a_call(predictor: Predictor, tmp_path: Path) -> None:
    good, other = small.photos(tmp_path, 2)
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(good.read_bytes()[:300])
    found = list(predictor.stream([good, cut, tmp_path / "nowhere.jpg", b"junk", other]))
    assert [isinstance(result, Unreadable) for result in found] == [False, True, True, True, False]
    assert [result.name for result in found] == [str(good), str(cut), str(tmp_path / "nowhere.jpg"), "image 3", str(other)]
    assert "does not exist" in str(found[2])
    kept = [result for result in found if isinstance(result, Prediction)]
    np.testing.assert_allclose(logits(kept), logits(predictor([good, other])), atol=1e-5)
    with pytest.raises(DataError, match=r"cut\.jpg"):
        predictor([good, cut])


def test_a_batch_of_unreadable_images_alone_does_not_run_the_model(predictor: Predictor) -> None:
    assert all(isinstance(result, Unreadable) for result in predictor.stream([b"junk"] * 9))
    assert list(predictor.stream([])) == []


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        (np.zeros((8, 8, 3), np.float32), "must be uint8"),
        (np.zeros((8, 8, 2), np.uint8), "of 2 channels; the model takes 3"),
        (np.zeros((0, 8, 3), np.uint8), "must be uint8"),
        (np.zeros((2, 8, 8, 3), np.uint8), "must be uint8"),
        (torch.full((3, 8, 8), -1.0), "from 0 to 1"),
        (torch.full((3, 8, 8), float("nan")), "from 0 to 1"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "torch.int64"),
        (torch.zeros(1, 3, 8, 8), r"shape \[1, 3, 8, 8\]"),
        (b"", "is empty"),
        (None, "is a NoneType, not an image"),
        (7, "is a int, not an image"),
        ("", "does not exist"),
        ("a\0b", "cannot be read"),
        (Image.fromarray(np.full((8, 8), np.nan, np.float32)), "not finite"),
    ],
)
def test_what_is_not_an_image_is_reported_by_its_place(predictor: Predictor, image: object, complaint: str) -> None:
    good = scene(40, 40)
    with pytest.raises(DataError, match=complaint) as caught:
        predictor([good, image])  # type: ignore[list-item]
    if not isinstance(image, str):
        assert "image 1" in caught.value.message


def test_one_image_is_accepted_where_a_list_is(predictor: Predictor, tmp_path: Path) -> None:
    pixels_HWC = scene(45, 60)
    file = tmp_path / "scene.png"
    file.write_bytes(encode(pixels_HWC, "PNG"))
    tensor_CHW = torch.from_numpy(pixels_HWC).permute(2, 0, 1)
    expected = predictor([pixels_HWC])
    for one in (str(file), file, file.read_bytes(), Image.open(file), pixels_HWC, tensor_CHW):
        found = predictor(one)
        assert len(found) == 1
        np.testing.assert_array_equal(found[0].logits, expected[0].logits)
        assert found.top(2) == expected[0].top(2)
    for several in (np.stack([pixels_HWC] * 3), torch.stack([tensor_CHW] * 3)):
        assert len(predictor(several)) == 3


def test_predictions_are_a_sequence_that_prints_as_a_table(predictor: Predictor, tmp_path: Path) -> None:
    paths = small.photos(tmp_path, 3)
    found = predictor(paths)
    assert found.labels == [each.label for each in found]
    assert found.top(2) == [each.top(2) for each in found]
    assert found.logits.shape == (3, 7)
    assert [row["name"] for row in found.to_json()] == [str(path) for path in paths]
    assert len(found[1:]) == 2
    for name, label in zip(paths, found.labels, strict=True):
        assert str(name) in str(found)
        assert label in found._repr_html_()
    assert repr(predictor([])) == "no predictions"


def test_every_kind_of_file_gives_finite_logits(predictor: Predictor) -> None:
    colour = Image.fromarray(scene(48, 40))
    files = [
        encode(colour.convert(mode), kind)
        for mode, kind in [
            ("1", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "GIF"), ("RGBA", "PNG"), ("CMYK", "JPEG"), ("I;16", "PNG"),
            ("RGB", "WEBP"), ("RGB", "BMP"),
        ]
    ]  # fmt: skip
    files += [jpeg(colour, progressive=True), encode(Image.new("RGB", (1, 1)), "PNG"), encode(Image.new("RGB", (1, 5000)), "PNG")]
    for result in predictor(files):
        assert np.isfinite(result.logits).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_opened_image_is_turned_upright_as_its_file_is(predictor: Predictor, orientation: int) -> None:
    content = jpeg(scene(60, 40), exif=with_orientation(orientation))
    as_file, as_image = predictor([content, Image.open(io.BytesIO(content))])
    np.testing.assert_array_equal(as_file.logits, as_image.logits)


def test_one_opened_image_many_times_is_read_once_and_safely(predictor: Predictor) -> None:
    image = Image.open(io.BytesIO(jpeg(scene(300, 300))))
    found = logits(predictor([image] * 16))
    np.testing.assert_allclose(found, np.repeat(found[:1], 16, 0), atol=1e-5)


def test_grey_and_transparent_arrays_are_seen_as_their_files_are(predictor: Predictor) -> None:
    grey_HW = scene(40, 40)[:, :, 0]
    clear_HWC = np.dstack([scene(40, 40), grey_HW])
    for pixels in (grey_HW, clear_HWC):
        array, file = predictor([pixels, encode(Image.fromarray(pixels), "PNG")])
        np.testing.assert_array_equal(array.logits, file.logits)


@pytest.mark.parametrize("channels", [1, 4])
def test_a_model_of_other_channels_takes_colour_grey_and_transparent_images(channels: int) -> None:
    fed = Preprocess(image_size=(32, 32), resize_to=36, mean=(0.5,) * channels, std=(0.5,) * channels)
    predictor = Predictor(small.checkpoint(preprocess=fed))
    colour_HWC = scene(40, 40)
    images = [colour_HWC, colour_HWC[:, :, :1], np.dstack([colour_HWC, np.full((40, 40), 255, np.uint8)])]
    found = predictor([*images, encode(colour_HWC, "PNG")])
    np.testing.assert_array_equal(found[0].logits, found[3].logits)
    np.testing.assert_array_equal(found[0].logits, found[2].logits)


def test_a_stream_reads_no_further_ahead_than_two_batches() -> None:
    predictor = Predictor(small.checkpoint(), batch_size=3)
    asked = 0

    def endless() -> Iterator[NDArray[np.uint8]]:
        nonlocal asked
        for seed in itertools.count():
            asked += 1
            yield scene(40, 40, seed=seed % 4)

    stream = predictor.stream(endless())
    for taken in range(1, 20):
        next(stream)
        assert asked <= taken + 3 * predictor.batch_size
    stream.close()  # type: ignore[attr-defined]


def test_ending_a_stream_early_ends_its_threads() -> None:
    predictor = Predictor(small.checkpoint(), batch_size=2)
    stream = predictor.stream(itertools.repeat(scene(40, 40)))
    next(stream)
    assert any(thread.name.startswith("prefetch") for thread in threading.enumerate())
    stream.close()  # type: ignore[attr-defined]
    assert not any(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_images_are_read_while_the_model_works() -> None:
    predictor = Predictor(small.checkpoint(), batch_size=2, workers=2)
    read = threading.Semaphore(0)

    class Waiting:
        """A backend that answers only once the batch after its own has been read."""

        name = "waiting"

        def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
            for _ in range(4):
                assert read.acquire(timeout=10), "nothing was read during the model's work"
            return Outputs(logits_BK=np.zeros((len(images_BHWC), 7), np.float32))

    def slow(seed: int) -> NDArray[np.uint8]:
        read.release()
        return scene(40, 40, seed=seed)

    predictor.engine.backend = Waiting()
    images = [NamedImage(name=str(seed), read=lambda seed=seed: slow(seed)) for seed in range(4)]  # type: ignore[misc]
    stream = predictor.stream(images)
    assert next(stream).name == "0"
    stream.close()  # type: ignore[attr-defined]


def test_an_error_of_the_callers_own_iterable_comes_through(predictor: Predictor) -> None:
    def failing() -> Iterator[NDArray[np.uint8]]:
        yield scene(40, 40)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(predictor.stream(failing()))


def test_auto_begins_with_torch_and_an_unknown_backend_is_refused() -> None:
    made = small.checkpoint()
    assert Predictor(made).backend.name == "torch"
    assert Predictor(made, backend="torch").notes == ()
    with pytest.raises(ConfigError, match="backend='trch' is not one of auto, torch"):
        Predictor(made, backend="trch")  # type: ignore[arg-type]
    for wrong in ({"batch_size": 0}, {"workers": -1}, {"merge": -1}):
        with pytest.raises(ConfigError):
            Predictor(made, **wrong)  # type: ignore[arg-type]


def test_a_checkpoint_without_labels_calls_classes_by_number_and_says_so() -> None:
    predictor = Predictor(small.checkpoint(None))
    assert any("no labels" in note for note in predictor.notes)
    assert predictor([scene(40, 40)])[0].top(1)[0][0].isdigit()


def test_a_path_a_string_and_a_checkpoint_make_the_same_predictor(tmp_path: Path) -> None:
    made = small.checkpoint()
    file = tmp_path / "model.safetensors"
    save(made, file)
    predictors = [Predictor(made), Predictor(file), Predictor(str(file))]
    assert len({predictor.digest for predictor in predictors}) == 1
    found = [predictor([scene(40, 40)])[0] for predictor in predictors]
    np.testing.assert_array_equal(found[0].logits, found[1].logits)
    assert found[1].top() == found[2].top()
    with pytest.raises(VitlabError):
        Predictor(tmp_path / "nowhere.safetensors")


def test_the_digest_changes_with_whatever_changes_answers(tmp_path: Path) -> None:
    made = small.checkpoint()
    other_fed = replace(made, preprocess=replace(made.preprocess, interpolation="bilinear"))
    other_labels = replace(made, labels=tuple(reversed(small.LABELS)))
    variants = [made, small.checkpoint(seed=1), other_fed, other_labels]
    assert len({Predictor(each).digest for each in variants}) == 4
    assert Predictor(made).features_digest == Predictor(other_labels).features_digest != Predictor(other_fed).features_digest


def test_a_model_in_training_is_put_into_evaluation() -> None:
    made = small.checkpoint()
    made.model.train()
    Predictor(made)
    assert not made.model.training


def test_a_module_that_is_not_vitlabs_is_refused() -> None:
    made = small.checkpoint()
    with pytest.raises(ConfigError, match="Linear"):
        Predictor(Checkpoint(model=torch.nn.Linear(2, 2), config=made.config, preprocess=made.preprocess))  # type: ignore[arg-type]


def test_a_resnet_predicts_too() -> None:
    from vitlab.config import variant

    config = variant("BiT-R50x1", num_classes=3, image_size=(32, 32))
    made = Checkpoint(model=build(config), config=config, preprocess=small.FED)
    (found,) = Predictor(made)([scene(40, 40)], features=True)
    assert found.features is not None
    assert found.features.shape == (config.feature_width,)
    assert found.logits.shape == (3,)
