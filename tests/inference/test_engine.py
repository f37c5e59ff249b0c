"""The inference engine: every image once, in order, by the same backend for images and datasets; unreadable ones are reported."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.data.images import scene
from tests.inference import small
from vitlab.config import Preprocess
from vitlab.config.data import Resize
from vitlab.config.evaluation import EvaluateConfig, Tta
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.inference import Engine, Predictor
from vitlab.inference.backends import FoldedBackend, Outputs, TorchBackend
from vitlab.inference.engine import ImageBatch, run_batches
from vitlab.inference.results import Predictions


class Counting:
    """A backend whose logits are the number of the image, and that remembers the sizes of its batches."""

    name = "counting"

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        first = sum(self.sizes)
        self.sizes.append(len(images_BHWC))
        return Outputs(logits_BK=np.arange(first, first + len(images_BHWC), dtype=np.float32)[:, None])


def batch(count: int, readable: int | None = None) -> ImageBatch:
    images_BHWC = np.zeros((count if readable is None else readable, 2, 2, 3), np.uint8)
    return ImageBatch(names=tuple(map(str, range(count))), images_BHWC=images_BHWC, failed=())


def test_the_loop_gives_each_batch_with_its_outputs_and_reports_progress_after_it_is_consumed() -> None:
    backend, heard, consumed = Counting(), list[tuple[str, int, int | None]](), 0

    def progress(description: str, done: int, total: int | None) -> None:
        assert done == consumed
        heard.append((description, done, total))

    for given, outputs in run_batches(backend, [batch(3), batch(2, 0), batch(4)], total=9, progress=progress):
        consumed += given.n_asked
        assert (outputs is None) == (not len(given.images_BHWC))
    assert backend.sizes == [3, 4]  # a batch without a readable image is not run
    assert heard == [("predicting", done, 9) for done in (0, 3, 5, 9)]


def test_a_batch_is_freed_when_the_next_one_is_taken() -> None:
    made: list[weakref.ref[NDArray[np.uint8]]] = []

    def batches() -> Iterator[ImageBatch]:
        for _ in range(6):
            one = batch(2)
            made.append(weakref.ref(one.images_BHWC))
            yield one
            del one
            assert sum(ref() is not None for ref in made) <= 1

    for _ in run_batches(Counting(), batches()):
        pass
    assert len(made) == 6


def test_images_and_a_dataset_of_them_have_the_same_logits(tmp_path: Path) -> None:
    paths = small.photos(tmp_path / "data", 5)
    paths[2].write_bytes(b"not an image")
    engine = Engine(small.checkpoint())
    (given, of_images), (rest, of_rest) = engine.run_images(paths, batch_size=3, features=True)
    dataset = open_dataset(f"images:{tmp_path / 'data'}", split="all")
    loader = EvaluateConfig(batch_size=3, corrupt="skip").loader()
    (read, of_dataset), (_, of_end) = engine.run_dataset(dataset, loader=loader, features=True)
    assert [failure.name for failure in given.failed] == [failure.name for failure in read.failed] == [str(paths[2])]
    assert given.names == tuple(map(str, paths[:3]))
    assert rest.names == tuple(map(str, paths[3:]))
    assert read.index_B.tolist() == [0, 1]
    for one, other in ((of_images, of_dataset), (of_rest, of_end)):
        assert one is not None
        assert other is not None
        assert one.features_BD is not None
        np.testing.assert_array_equal(one.logits_BK, other.logits_BK)
        np.testing.assert_array_equal(one.features_BD, other.features_BD)


def test_an_unreadable_image_of_a_dataset_is_an_error_unless_it_is_skipped(tmp_path: Path) -> None:
    paths = small.photos(tmp_path / "data", 3)
    paths[1].write_bytes(b"not an image")
    dataset = open_dataset(f"images:{tmp_path / 'data'}", split="all")
    with pytest.raises(DataError, match=r"photo-001\.jpg"):
        list(Engine(small.checkpoint()).run_dataset(dataset, loader=EvaluateConfig().loader()))


def test_evaluate_runs_the_backend_that_predict_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, label in enumerate(("cat", "dog", "owl")):
        small.photos(tmp_path / "data" / label, 2, start=10 * place)
    checkpoint = small.checkpoint(("cat", "dog", "owl"), classes=3)
    seen: list[int] = []
    run = FoldedBackend.run

    def counting(self: FoldedBackend, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        seen.append(len(images_BHWC))
        return run(self, images_BHWC, features=features)

    monkeypatch.setattr(FoldedBackend, "run", counting)
    dataset = open_dataset(tmp_path / "data", split="all")
    targets = match_by_name(dataset.labels, checkpoint.labels, classes=3)
    evaluated = evaluate(checkpoint, dataset, targets, config=EvaluateConfig(batch_size=4))
    predicted = Predictor(checkpoint, batch_size=4)(sorted((tmp_path / "data").rglob("*.jpg")))
    assert seen == [4, 2, 4, 2]
    np.testing.assert_array_equal(evaluated.logits.logits_NC, predicted.logits)


def test_evaluating_leaves_a_model_in_training_mode_as_it_was(tmp_path: Path) -> None:
    small.photos(tmp_path / "data" / "cat", 2)
    small.photos(tmp_path / "data" / "dog", 2, start=5)
    checkpoint = small.checkpoint(("cat", "dog"), classes=2)
    checkpoint.model.train()
    dataset = open_dataset(tmp_path / "data", split="all")
    evaluate(checkpoint, dataset, match_by_name(dataset.labels, checkpoint.labels, classes=2))
    assert all(module.training for module in checkpoint.model.modules())


def test_auto_takes_the_cpu_without_a_gpu_and_an_unknown_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert Engine(small.checkpoint()).device.type == "cpu"
    with pytest.raises(ConfigError, match="tpu9000"):
        Engine(small.checkpoint(), device="tpu9000")


def test_a_module_that_is_not_vitlabs_gives_logits() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32 * 3, 4))
    backend = TorchBackend(model, small.FED)
    image_HWC = np.asarray(scene(32, 32))
    assert backend.run(image_HWC[None]).logits_BK.shape == (1, 4)


def test_mirror_gives_the_mean_of_an_image_and_its_mirror_image() -> None:
    checkpoint = small.checkpoint(preprocess=Preprocess(image_size=(32, 32), resize="squash"))
    images = [scene(40, 40, seed=seed) for seed in range(3)]
    mirrored = [np.ascontiguousarray(image[:, ::-1]) for image in images]
    plain, twice = Predictor(checkpoint), Predictor(checkpoint, tta="mirror")
    both = [plain(given, features=True) for given in (images, mirrored)]
    assert_mean(twice(images, features=True), both)
    assert np.abs(both[0].logits - both[1].logits).max() > 1e-3
    assert plain.digest != twice.digest
    assert "mirror image" in twice.notes[-1]


@pytest.mark.parametrize("upright", [False, True])
def test_crops_give_the_mean_of_both_ends_and_the_middle_of_the_longer_side(upright: bool) -> None:
    checkpoint = small.checkpoint(preprocess=Preprocess(image_size=(32, 32), resize_to=32))  # the scale of the files: no rounding
    wide = [scene(32, 80, seed=seed) for seed in range(3)]
    images = [np.ascontiguousarray(image.transpose(1, 0, 2)) if upright else image for image in wide]
    plain, thrice = Predictor(checkpoint), Predictor(checkpoint, tta="crops")
    seen = [
        plain([image[at : at + 32] if upright else image[:, at : at + 32] for image in images], features=True) for at in (24, 0, 48)
    ]
    assert_mean(thrice(images, features=True), seen)
    assert len({plain.digest, thrice.digest, Predictor(checkpoint, tta="mirror").digest}) == 3
    assert "three crops" in thrice.notes[-1]


def assert_mean(found: Predictions, parts: list[Predictions]) -> None:
    """Logits and features are the means of the parts'."""
    np.testing.assert_allclose(found.logits, np.mean([part.logits for part in parts], axis=0), rtol=0, atol=1e-5)
    for one, *others in zip(found, *parts, strict=True):
        features = [np.zeros(0) if other.features is None else other.features for other in others]
        np.testing.assert_allclose(np.asarray(one.features), np.mean(features, axis=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("resize", "tta"), [("native", "mirror"), ("native", "crops"), ("squash", "crops"), ("pad", "crops")])
def test_views_that_a_way_to_resize_does_not_have_are_refused(resize: Resize, tta: Tta) -> None:
    with pytest.raises(ConfigError, match=f"tta='{tta}' is"):
        Engine(small.checkpoint(preprocess=Preprocess(image_size=(32, 32), resize=resize)), tta=tta)
