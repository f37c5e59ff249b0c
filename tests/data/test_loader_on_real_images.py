"""The loader on real JPEG images, with the transform of training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.test_loader import assert_same, taken, union
from vitlab.config.data import Augment, DecodeLimits, LoaderConfig
from vitlab.data.loader import Loader
from vitlab.data.opening import open_dataset
from vitlab.data.sampler import Share
from vitlab.data.transforms import training_pipeline

CONFIG = LoaderConfig(batch_size=16, workers=0, seed=3, cache="auto")


@pytest.mark.data
def test_real_images_are_the_same_bits_with_workers_after_a_resume_and_over_ranks(data_folder: Path) -> None:
    dataset = open_dataset(data_folder / "imagenet_val_1000.zip", split="all")
    pipeline = training_pipeline(Augment(image_size=(96, 96), randaugment=(2, 10)), channels=3, limits=DecodeLimits())

    def made(config: LoaderConfig = CONFIG, share: Share = Share()) -> Loader:  # noqa: B008 (a frozen value)
        return Loader(dataset, pipeline, config=config, train=True, share=share)

    whole = taken(made(), 4)
    assert any("would change its pixels" in note for note in made().notes)
    with made(replace(CONFIG, workers=2)) as processes:
        assert_same(taken(processes, 4), whole)
        assert_same(taken(processes, 3, 16), whole[1:])
    assert_same(taken(made(replace(CONFIG, workers=3, worker_kind="thread")), 4), whole)
    parts = [taken(made(share=Share(rank=rank, ranks=2)), 4) for rank in range(2)]
    assert_same([union(list(step)) for step in zip(*parts, strict=True)], whole)


@pytest.mark.data
def test_small_real_images_are_kept_and_come_out_the_same(data_folder: Path) -> None:
    dataset = open_dataset(data_folder / "cifar10_jpeg.npz", split="test")
    pipeline = training_pipeline(Augment(image_size=(32, 32), crop="pad"), channels=3, limits=DecodeLimits())
    kept = Loader(dataset, pipeline, config=CONFIG, train=True)
    assert "10,000 images, about 31 MB decoded, cached in memory" in kept.notes
    plain = Loader(dataset, pipeline, config=replace(CONFIG, cache="none"), train=True)
    assert_same(taken(kept, 20), taken(plain, 20))
