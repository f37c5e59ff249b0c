"""Mixing keeps the sums of targets and the pixels outside the box, and its weights match the pixels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitlab.config.data import Augment, Preprocess
from vitlab.config.train import TrainConfig
from vitlab.data.sampler import rng_of
from vitlab.errors import DataError
from vitlab.objective.losses import soft_targets
from vitlab.training.tasks import Classify, Layout, cutmix, mix, mixup, partners


def batch(count: int = 5, height: int = 12, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 images [B, H, W, 3], each of one flat level of its own, and one-hot targets that name them."""
    levels = torch.arange(count, dtype=torch.uint8) * (250 // count)
    return levels.view(-1, 1, 1, 1).expand(count, height, width, 3).contiguous(), soft_targets(torch.arange(count), count)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.05, 3), st.integers(1, 6), st.booleans())
def test_targets_keep_their_sums_and_images_their_kind(seed: int, alpha: float, count: int, cut: bool) -> None:
    images, targets_BK = batch(count)
    mixed, mixed_BK = (cutmix if cut else mixup)(images, targets_BK, rng_of(seed, 0, 0, stream="batch"), alpha)
    assert mixed.dtype == torch.uint8
    assert mixed.shape == images.shape
    torch.testing.assert_close(mixed_BK.sum(1), torch.ones(count))
    assert (mixed_BK >= 0).all()


def test_mixup_weighs_pixels_and_targets_alike_and_keeps_the_larger_share() -> None:
    images, targets_BK = batch()
    for seed in range(30):
        mixed, mixed_BK = mixup(images, targets_BK, rng_of(seed, 0, 0), 0.8)
        share = mixed_BK.diagonal()
        assert (share >= 0.5).all()
        assert torch.equal(share, share[:1].expand(5))
        expected = mixed_BK @ images[:, 0, 0, 0].float()
        assert (mixed[:, 0, 0, 0].float() - expected).abs().max() <= 0.51


def test_mixup_of_bytes_is_mixup_of_floats_rounded() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), dtype=np.uint8))
    targets_BK = torch.eye(4)
    as_bytes, _ = mixup(images, targets_BK, rng_of(1, 0, 0), 0.4)
    as_floats, _ = mixup(images.float(), targets_BK, rng_of(1, 0, 0), 0.4)
    assert torch.equal(as_bytes, as_floats.round().to(torch.uint8))


@pytest.mark.parametrize("layout", ["BHWC", "BCHW"])
def test_cutmix_weighs_targets_by_the_pixels_that_are_left(layout: Layout) -> None:
    images, targets_BK = batch()
    images = images if layout == "BHWC" else images.permute(0, 3, 1, 2).contiguous().float()
    shares = []
    for seed in range(60):
        mixed, mixed_BK = cutmix(images, targets_BK, rng_of(seed, 0, 0), 1.0, layout=layout)
        kept = (mixed == images).float().flatten(1).mean(1)
        torch.testing.assert_close(mixed_BK.diagonal(), kept)
        other = (mixed == partners(images)).float().flatten(1).mean(1)
        torch.testing.assert_close(kept + other, torch.ones(5))
        changed = (mixed != images)[1]
        plane = changed.any(2) if layout == "BHWC" else changed.any(0)
        torch.testing.assert_close(plane, plane.any(1)[:, None] & plane.any(0)[None])  # one box
        shares.append(kept[0].item())
    assert min(shares) < 0.3
    assert max(shares) > 0.9


@pytest.mark.parametrize("function", [mixup, cutmix])
def test_an_even_split_of_a_batch_is_mixed_as_within_the_whole(function: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    images, targets_BK = batch(8)
    whole, whole_BK = function(images, targets_BK, rng_of(5, 0, 0), 0.7)
    part, part_BK = function(images[2:6], targets_BK[2:6], rng_of(5, 0, 0), 0.7)
    assert torch.equal(part, whole[2:6])
    assert torch.equal(part_BK, whole_BK[2:6])


def test_the_inputs_are_left_alone() -> None:
    images, targets_BK = batch()
    for function in (mixup, cutmix):
        function(images, targets_BK, rng_of(0, 0, 0), 1.0)
        assert torch.equal(images, batch()[0])
        assert torch.equal(targets_BK, batch()[1])


def test_the_config_chooses_and_both_share_the_batches() -> None:
    images, targets_BK = batch()
    rng = rng_of(0, 0, 0)
    same, same_BK = mix(images, targets_BK, rng, Augment())
    assert same is images
    assert same_BK is targets_BK
    for config, function in ((Augment(mixup=0.5), mixup), (Augment(cutmix=0.5), cutmix)):
        for ours, theirs in zip(
            mix(images, targets_BK, rng_of(3, 0, 0), config),
            function(images, targets_BK, rng_of(3, 0, 0), 0.5),
            strict=True,
        ):
            assert torch.equal(ours, theirs)
    both = Augment(mixup=1, cutmix=1)
    second = [mix(images, targets_BK, rng_of(0, 0, step), both)[0][1] for step in range(200)]
    # A blend of flat images is flat; a cut one has two levels, or one where the box was all or nothing.
    blended = sum(int(image.min()) == int(image.max()) for image in second)
    assert 80 < blended < 130


def test_the_same_step_mixes_the_same_way() -> None:
    images, targets_BK = batch()
    config = Augment(mixup=0.3, cutmix=0.7)
    for step in range(10):
        one, other = (mix(images, targets_BK, rng_of(5, 1, step, stream="batch"), config) for _ in "ab")
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_the_mixing_weight_follows_its_distribution() -> None:
    images, targets_BK = batch()
    share = np.array([mixup(images, targets_BK, rng_of(0, 0, s), 0.2)[1][0, 0].item() for s in range(1500)])
    reference = np.random.default_rng(0).beta(0.2, 0.2, 20_000)
    reference = np.maximum(reference, 1 - reference)
    np.testing.assert_allclose(np.quantile(share, [0.1, 0.3, 0.5]), np.quantile(reference, [0.1, 0.3, 0.5]), atol=0.03)


def test_labels_become_targets_or_are_refused() -> None:
    augment = Augment(image_size=(4, 4))
    task = Classify(
        config=TrainConfig(steps=1), augment=augment, preprocess=Preprocess(image_size=(4, 4)), classes=3, dtype=torch.float32
    )

    def targets(labels: list[int]) -> torch.Tensor:
        images = torch.zeros(len(labels), 4, 4, 3, dtype=torch.uint8)
        return task.prepare(images, torch.tensor(labels, dtype=torch.long), rng_of(0, 0, 0, stream="batch")).targets[0]

    assert targets([2, 0]).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert targets([]).shape == (0, 3)
    for label in (3, -1):
        with pytest.raises(DataError, match="classes"):
            targets([label])


def test_hard_labels_and_batches_that_do_not_match_are_refused() -> None:
    images, targets_BK = batch()
    for bad_images, bad_targets in (
        (images, torch.arange(5)),
        (images, targets_BK.long()),
        (images[0], targets_BK),
        (images, targets_BK[:3]),
    ):
        for function in (mixup, cutmix):
            with pytest.raises(DataError):
                function(bad_images, bad_targets, rng_of(0, 0, 0), 1.0)
