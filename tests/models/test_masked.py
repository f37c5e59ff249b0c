"""Masked patch prediction as appendix B.1.2 has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitlab.config import ResNetStem, ViTConfig, variant
from vitlab.errors import ConfigError
from vitlab.models import build
from vitlab.models.masked import COLOURS, MaskedViT, colour_codes, corruption, masked_loss, targets
from vitlab.models.vit import ViT


def mini() -> ViTConfig:
    config = variant("ViT-Mini/8", num_classes=5)
    assert isinstance(config, ViTConfig)
    return config


def vit(config: ViTConfig) -> ViT:
    model = build(config)
    assert isinstance(model, ViT)
    return model


def draws(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return corruption(500, 64, fraction=0.5, masked=0.8, swapped=0.1, generator=generator)


def test_half_of_each_images_patches_are_corrupted_by_the_papers_fractions() -> None:
    corrupted_BN, masked_BN, source_BN = draws()
    assert (corrupted_BN.sum(1) == 32).all()
    assert not (masked_BN & ~corrupted_BN).any()
    swapped_BN = source_BN != torch.arange(64)
    assert not (swapped_BN & ~corrupted_BN).any()
    assert not (swapped_BN & masked_BN).any()
    touched = corrupted_BN.sum().item()
    assert masked_BN.sum().item() / touched == pytest.approx(0.8, abs=0.01)
    assert swapped_BN.sum().item() / touched == pytest.approx(0.1, abs=0.01)
    assert torch.equal(draws(1)[0], draws(1)[0])
    assert not torch.equal(draws(1)[0], draws(2)[0])


@pytest.mark.parametrize("target", ["mean-colour", "small-patch", "pixels"])
def test_only_corrupted_patches_count(target: str) -> None:
    model = MaskedViT(vit(mini()), target)
    torch.nn.init.normal_(model.predict.weight, std=0.1)
    images_BCHW = torch.rand(3, 3, 32, 32)
    corrupted_BN, masked_BN, source_BN = (part[:3, :16] % 16 if part.dtype == torch.int64 else part[:3, :16] for part in draws())
    predicted = model(images_BCHW, corrupted_BN, masked_BN, source_BN)
    wanted = targets(images_BCHW, (8, 8), target)
    loss_B = masked_loss(predicted, wanted, corrupted_BN, target)
    other = predicted + torch.where(corrupted_BN[:, :, None], 0.0, 100.0)
    torch.testing.assert_close(masked_loss(other, wanted, corrupted_BN, target), loss_B)
    assert (masked_loss(predicted * 3, wanted, corrupted_BN, target) != loss_B).all()


def test_a_masked_patch_does_not_reach_the_encoder() -> None:
    model = MaskedViT(vit(mini()), "mean-colour").eval()
    images_BCHW = torch.rand(1, 3, 32, 32)
    other_BCHW = images_BCHW.clone()
    other_BCHW[:, :, :8, :8] = 0.3  # the first patch
    place = torch.arange(16)[None]
    first = place == 0
    assert torch.equal(model(images_BCHW, first, first, place), model(other_BCHW, first, first, place))
    assert not torch.equal(model(images_BCHW, ~first, ~first, place), model(other_BCHW, ~first, ~first, place))


def test_a_swapped_patch_is_seen_as_the_other_one() -> None:
    model = MaskedViT(vit(mini()), "mean-colour").eval()
    images_BCHW = torch.rand(1, 3, 32, 32)
    copied_BCHW = images_BCHW.clone()
    copied_BCHW[:, :, :8, :8] = images_BCHW[:, :, 8:16, 24:32]  # patch 0 shows what patch 7 shows
    place = torch.arange(16)[None]
    nothing = torch.zeros(1, 16, dtype=torch.bool)
    swapped = torch.where(place == 0, 7, place)
    torch.testing.assert_close(model(images_BCHW, place == 0, nothing, swapped), model(copied_BCHW, nothing, nothing, place))


def test_colours_have_three_bits_a_channel() -> None:
    levels = torch.tensor([[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.124, 0.126, 0.9]]])
    assert colour_codes(levels[..., None]).tolist() == [[0, 511, (0 * 8 + 1) * 8 + 7]]
    assert colour_codes(torch.rand(4, 9, 3, 10)).max() < COLOURS


def test_the_targets_are_those_of_each_patch_in_reading_order() -> None:
    images_BCHW = torch.zeros(1, 3, 16, 24)
    images_BCHW[:, 0, 8:, 8:16] = 1.0  # red in the middle of the lower row
    assert targets(images_BCHW, (8, 8), "mean-colour")[0, :, 0].tolist() == [0, 0, 0, 0, 7 * 64, 0]
    images_BCHW[:, 1, 8:10, 8:10] = 1.0  # its first of 4 x 4 cells also green
    small = targets(images_BCHW, (8, 8), "small-patch")
    assert small.shape == (1, 6, 16)
    assert small[0, 4].tolist() == [7 * 64 + 7 * 8] + [7 * 64] * 15
    pixels = targets(images_BCHW, (8, 8), "pixels")
    assert pixels.shape == (1, 6, 192)
    assert pixels[0, 4, :64].min() == 1


def test_it_learns_to_predict_colours_from_their_neighbours() -> None:
    """Images of one flat colour each: the visible patches say what the masked ones showed."""
    torch.manual_seed(0)
    model = MaskedViT(vit(replace(mini(), width=32, heads=2)), "mean-colour")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    colours = torch.rand(4, 3, generator=generator)
    losses = []
    for _ in range(60):
        which = torch.randint(4, (16,), generator=generator)
        images_BCHW = colours[which][:, :, None, None].expand(-1, -1, 32, 32)
        corrupted_BN, masked_BN, source_BN = corruption(16, 16, fraction=0.5, masked=0.8, swapped=0.1, generator=generator)
        predicted = model(images_BCHW * 2 - 1, corrupted_BN, masked_BN, source_BN)
        loss = masked_loss(predicted, targets(images_BCHW, (8, 8), "mean-colour"), corrupted_BN, "mean-colour").mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 5
    assert losses[-1] < 0.7


def test_what_masked_prediction_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="three channels"):
        MaskedViT(vit(replace(mini(), channels=1)), "mean-colour")
    with pytest.raises(ConfigError, match="4 divides"):
        MaskedViT(vit(replace(mini(), patch_size=(2, 2))), "small-patch")
    with pytest.raises(ConfigError, match="every patch"):
        MaskedViT(vit(replace(mini(), pad=True)), "pixels")


def test_a_hybrid_predicts_its_patches_too() -> None:
    config = replace(mini(), stem=ResNetStem(blocks=(1,), width=32), patch_size=(2, 2))
    model = MaskedViT(vit(config), "pixels")
    place = torch.arange(16)[None]
    assert model(torch.rand(1, 3, 32, 32), place < 8, place < 8, place).shape == (1, 16, 3 * 8 * 8)
