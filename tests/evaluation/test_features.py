"""Features are made once for each image and model, and are the model's own, however they come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.checkpoints.small import small_checkpoint, small_config
from tests.data.containers import as_folder, as_zip
from tests.data.images import jpeg, scene
from vitlab.config.data import DecodeLimits
from vitlab.config.evaluation import EvaluateConfig
from vitlab.data.dataset import Dataset, ImageDataset
from vitlab.data.opening import open_dataset
from vitlab.data.transforms import EvaluationTransform, normalise
from vitlab.errors import CheckpointError, DataError
from vitlab.evaluation import features as module
from vitlab.evaluation.features import FeatureStore, extract_features, joined, labels_of, model_key
from vitlab.inference.backends import FoldedBackend, Outputs
from vitlab.models.vit import ViT

CHECKPOINT = small_checkpoint()


def a_pile(count: int = 6) -> dict[str, bytes]:
    return {f"{name}/{n}.jpg": jpeg(scene(40, 44, seed=n + 50 * c)) for c, name in enumerate(("cat", "dog")) for n in range(count)}


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return open_dataset(as_folder(tmp_path / "pets", a_pile()), split="all")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each run through the model had."""
    seen: list[int] = []
    real = FoldedBackend.run

    def counting(self: FoldedBackend, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        seen.append(len(images_BHWC))
        return real(self, images_BHWC, features=features)

    monkeypatch.setattr(FoldedBackend, "run", counting)
    return seen


def one_by_one(dataset: Dataset) -> NDArray[np.float32]:
    view = EvaluationTransform(preprocess=CHECKPOINT.preprocess, limits=DecodeLimits())
    model = CHECKPOINT.model
    assert isinstance(model, ViT)
    rows = []
    for index in range(len(dataset)):
        image_1HWC = torch.from_numpy(view.apply(dataset.read(index).content, name="")[None])
        with torch.inference_mode():
            rows.append(model.features(normalise(image_1HWC, CHECKPOINT.preprocess))[0].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_features_are_those_of_the_images_one_by_one(dataset: Dataset, batch_size: int) -> None:
    found = extract_features(CHECKPOINT, dataset, config=EvaluateConfig(batch_size=batch_size, workers=0))
    assert np.abs(found.features_ND - one_by_one(dataset)).max() < 1e-5
    assert found.labels_N.tolist() == [0] * 6 + [1] * 6
    assert found.names == ("cat", "dog")
    assert found.cached == 0


def test_the_second_time_nothing_is_read(dataset: Dataset, read: list[int]) -> None:
    first = extract_features(CHECKPOINT, dataset, store=FeatureStore(model_key(CHECKPOINT)))
    assert sum(read) == 12
    again = extract_features(CHECKPOINT, dataset, store=FeatureStore(model_key(CHECKPOINT)))
    assert sum(read) == 12
    assert again.cached == 12
    assert np.array_equal(again.features_ND, first.features_ND)
    assert np.array_equal(again.labels_N, first.labels_N)


def test_without_a_store_nothing_is_kept(dataset: Dataset, own_cache: Path) -> None:
    extract_features(CHECKPOINT, dataset)
    assert not list(own_cache.rglob("features"))


def test_another_order_another_container_and_other_labels_find_the_same_images(
    dataset: Dataset, tmp_path: Path, read: list[int]
) -> None:
    store = FeatureStore(model_key(CHECKPOINT))
    first = extract_features(CHECKPOINT, dataset, store=store)
    assert isinstance(dataset, ImageDataset)
    backwards = extract_features(CHECKPOINT, dataset.take(np.arange(11, -1, -1)), store=store)
    renamed = {name.replace("cat", "zebra"): content for name, content in a_pile().items()}
    zipped = extract_features(CHECKPOINT, open_dataset(as_zip(tmp_path / "pets.zip", renamed), split="all"), store=store)
    assert sum(read) == 12
    assert np.array_equal(backwards.features_ND, first.features_ND[::-1])
    assert zipped.names == ("dog", "zebra")
    assert np.array_equal(zipped.features_ND, np.roll(first.features_ND, 6, axis=0))


def test_an_image_added_is_the_only_one_read(tmp_path: Path, read: list[int]) -> None:
    store = FeatureStore(model_key(CHECKPOINT))
    extract_features(CHECKPOINT, open_dataset(as_folder(tmp_path / "pets", a_pile()), split="all"), store=store)
    as_folder(tmp_path / "pets", {"dog/new.jpg": jpeg(scene(seed=99))})
    more = open_dataset(tmp_path / "pets", split="all")
    found = extract_features(CHECKPOINT, more, store=store)
    assert sum(read) == 13
    assert np.abs(found.features_ND - one_by_one(more)).max() < 1e-5


def test_the_same_image_twice_has_the_same_features_twice(tmp_path: Path) -> None:
    twice = {"a/1.jpg": jpeg(scene(seed=1)), "b/1.jpg": jpeg(scene(seed=1)), "b/2.jpg": jpeg(scene(seed=2))}
    dataset = open_dataset(as_folder(tmp_path / "twice", twice), split="all")
    for _ in range(2):
        found = extract_features(CHECKPOINT, dataset, store=FeatureStore(model_key(CHECKPOINT)))
        assert np.allclose(found.features_ND[0], found.features_ND[1], atol=1e-6)
        assert found.labels_N.tolist() == [0, 1, 1]


def test_the_key_changes_with_weights_config_preprocessing_and_type() -> None:
    weights = small_checkpoint(seed=1)
    squashed = replace(CHECKPOINT, preprocess=replace(CHECKPOINT.preprocess, resize="squash"))
    half = small_checkpoint()
    half.model.to(torch.bfloat16)
    other = replace(CHECKPOINT, config=replace(CHECKPOINT.config, num_classes=11))
    keys = {model_key(checkpoint) for checkpoint in (CHECKPOINT, weights, squashed, half, other)}
    assert len(keys) == 5
    assert model_key(small_checkpoint()) == model_key(CHECKPOINT)


def test_interrupted_work_resumes_where_it_stopped(dataset: Dataset, read: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_AT_ONCE", 4)
    store, config = FeatureStore(model_key(CHECKPOINT)), EvaluateConfig(batch_size=2, workers=0)

    def impatient(what: str, done: int, total: int | None) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_features(CHECKPOINT, dataset, config=config, store=store, progress=impatient)
    assert sum(read) == 6
    found = extract_features(CHECKPOINT, dataset, config=config, store=store)
    assert sum(read) == 12
    assert found.cached == 6
    assert np.abs(found.features_ND - one_by_one(dataset)).max() < 1e-5


def test_progress_counts_what_is_known_already(dataset: Dataset) -> None:
    store, config = FeatureStore(model_key(CHECKPOINT)), EvaluateConfig(batch_size=4)
    assert isinstance(dataset, ImageDataset)
    extract_features(CHECKPOINT, dataset.take(np.arange(4)), config=config, store=store)
    heard: list[tuple[str, int, int | None]] = []
    extract_features(
        CHECKPOINT, dataset, config=config, store=store, description="train", progress=lambda *reported: heard.append(reported)
    )
    assert heard == [("train", 4, 12), ("train", 8, 12), ("train", 12, 12)]


def damaged_in_every_way(folder: Path) -> None:
    (kept,) = folder.glob("*.npz")
    content = kept.read_bytes()
    kept.unlink()
    (folder / "short.npz").write_bytes(content[: len(content) // 2])
    (folder / "flipped.npz").write_bytes(content[:900] + bytes([content[900] ^ 1]) + content[901:])
    (folder / "empty.npz").write_bytes(b"")
    np.savez(folder / "other.npz", digests=np.zeros((2, 16), np.uint8), features=np.zeros((3, 4), np.float32))
    np.savez(folder / "objects.npz", digests=np.array([None]), features=np.array([None]))
    with (folder / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))


def test_damaged_files_are_as_good_as_absent(dataset: Dataset, read: list[int]) -> None:
    store = FeatureStore(model_key(CHECKPOINT))
    first = extract_features(CHECKPOINT, dataset, store=store)
    damaged_in_every_way(store.folder)
    again = extract_features(CHECKPOINT, dataset, store=store)
    assert sum(read) == 24
    assert again.cached == 0
    assert np.array_equal(again.features_ND, first.features_ND)


def test_a_cache_that_is_a_file_is_reported_and_the_work_is_done(dataset: Dataset, own_cache: Path) -> None:
    (own_cache / "vitlab").write_text("in the way")
    found = extract_features(CHECKPOINT, dataset, store=FeatureStore(model_key(CHECKPOINT)))
    assert len(found) == 12
    assert "features are not kept" in found.notes[0]
    assert len(joined([found, found]).notes) == 1


def test_an_unreadable_image_stops_or_is_counted(tmp_path: Path) -> None:
    pile = a_pile() | {"cat/3.jpg": b"no image"}
    dataset = open_dataset(as_folder(tmp_path / "pets", pile), split="all")
    with pytest.raises(DataError, match=r"3\.jpg"):
        extract_features(CHECKPOINT, dataset)
    for _ in range(2):  # the second time from the store, where the broken one is not
        found = extract_features(
            CHECKPOINT, dataset, config=EvaluateConfig(corrupt="skip", batch_size=3), store=FeatureStore(model_key(CHECKPOINT))
        )
        assert (len(found), found.total) == (11, 12)
        assert [failure.index for failure in found.failures] == [3]
        assert found.indices_N.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
        assert found.labels_N.tolist() == [0] * 5 + [1] * 6
    assert found.cached == 11


def test_nothing_readable_is_refused(tmp_path: Path) -> None:
    dataset = open_dataset(as_folder(tmp_path / "x", {"a/1.jpg": b"no", "b/1.jpg": b"nor this"}), split="all")
    with pytest.raises(DataError, match="2 of 2 images cannot be read"):
        extract_features(CHECKPOINT, dataset, config=EvaluateConfig(corrupt="skip"))


def test_a_generated_set_has_features_too(read: list[int]) -> None:
    dataset = open_dataset("synthetic:kind=strokes,classes=3,samples_per_class=3,image_size=32", split="train")
    store = FeatureStore(model_key(CHECKPOINT))
    first = extract_features(CHECKPOINT, dataset, store=store)
    assert np.array_equal(extract_features(CHECKPOINT, dataset, store=store).features_ND, first.features_ND)
    assert sum(read) == 9


def test_images_without_a_label_or_with_several_are_refused(tmp_path: Path) -> None:
    as_folder(tmp_path / "loose", {"1.jpg": jpeg(scene())})
    with pytest.raises(DataError, match="no label"):
        labels_of(open_dataset(f"images:{tmp_path / 'loose'}", split="all"))
    (tmp_path / "loose" / "labels.csv").write_text("path,labels\n1.jpg,a|b\n")
    with pytest.raises(DataError, match="several classes"):
        labels_of(open_dataset(tmp_path / "loose", split="all"))


def test_a_model_left_in_training_mode_is_run_in_evaluation_mode(dataset: Dataset) -> None:
    expected = extract_features(CHECKPOINT, dataset).features_ND
    dropping = small_checkpoint(small_config(dropout=0.5))
    dropping.model.load_state_dict(CHECKPOINT.model.state_dict())
    dropping.model.train()
    assert np.array_equal(extract_features(dropping, dataset).features_ND, expected)
    assert dropping.model.training


def test_features_that_are_not_finite_are_refused(dataset: Dataset) -> None:
    broken = small_checkpoint()
    with torch.no_grad():
        next(broken.model.parameters()).fill_(float("nan"))
    with pytest.raises(CheckpointError, match="NaN or Inf"):
        extract_features(broken, dataset)
    with pytest.raises(DataError, match="nan or infinity"):  # a cache of features never holds them
        extract_features(replace(broken, allow_nonfinite=True), dataset)
