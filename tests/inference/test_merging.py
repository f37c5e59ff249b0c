"""Token merging: exact with nothing to merge or with twins alone, conserving what tokens stand for, refused where it cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.inference.test_folded import close, noise, vit
from vitlab.config.vit import Position
from vitlab.errors import ConfigError
from vitlab.inference import Predictor
from vitlab.inference.backends import FoldedBackend, TorchBackend
from vitlab.inference.folded import exportable, merge, merged_count, schedule


def random_tokens(prefix: int, patches: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z_BND = torch.randn(2, prefix + patches, 8, generator=generator)
    k_HBNK = torch.randn(2, 2, prefix + patches, 4, generator=generator)
    return z_BND, k_HBNK, torch.ones(2, prefix + patches)


@pytest.mark.parametrize("patches", [2, 9, 10])
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_merging_keeps_the_prefix_the_number_of_patches_and_their_sum(prefix: int, patches: int) -> None:
    z_BND, k_HBNK, size_BN = random_tokens(prefix, patches)
    sum_BD, left = (z_BND * size_BN[:, :, None]).sum(1), prefix + patches
    for _ in range(3):
        count = merged_count(left, prefix, 3)
        if not count:
            break
        k_HBNK = k_HBNK[:, :, :left]
        merged_BND, size_BN = merge(z_BND, k_HBNK, size_BN, count=count, prefix=prefix)
        assert torch.equal(merged_BND[:, :prefix], z_BND[:, :prefix])
        left -= count
        z_BND = merged_BND
        assert z_BND.shape[1] == size_BN.shape[1] == left
    torch.testing.assert_close((z_BND * size_BN[:, :, None]).sum(1), sum_BD)
    torch.testing.assert_close(size_BN.sum(1), torch.full((2,), float(prefix + patches)))


def test_the_most_alike_are_merged() -> None:
    z_BND, k_HBNK, size_BN = random_tokens(1, 8)
    k_HBNK[:, :, 5] = k_HBNK[:, :, 2]  # patch 4 of the first half and patch 1 of the second
    merged_BND, sizes_BN = merge(z_BND, k_HBNK, size_BN, count=1, prefix=1)
    twice = sizes_BN == 2
    assert twice.sum(1).tolist() == [1, 1]
    torch.testing.assert_close(merged_BND[twice], (z_BND[:, 5] + z_BND[:, 2]) / 2)


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_merging_nothing_changes_nothing_and_merging_twins_neither(pool: str) -> None:
    checkpoint = vit({"pool": pool, "position": Position(kind="none")})
    images_BHWC = noise(checkpoint)
    exact = FoldedBackend(checkpoint).run(images_BHWC)
    np.testing.assert_array_equal(FoldedBackend(checkpoint, merge=0).run(images_BHWC).logits_BK, exact.logits_BK)
    # Without positions, patches that look the same are the same token: to merge them is exact.
    side = checkpoint.preprocess.image_size
    flat = np.broadcast_to(images_BHWC[:, :8, :8], (3, 8, 8, 3))
    same_BHWC = np.tile(flat, (1, side[0] // 8, side[1] // 8, 1)).copy()
    close(
        FoldedBackend(checkpoint, merge=2).run(same_BHWC).logits_BK,
        TorchBackend(checkpoint.model, checkpoint.preprocess).run(same_BHWC).logits_BK,
    )


@pytest.mark.parametrize("most", [1, 4, 1000])
def test_merging_gives_an_answer_near_the_models_own_however_many_are_merged(most: int) -> None:
    checkpoint = vit()
    images_BHWC = noise(checkpoint, 5)
    exact = FoldedBackend(checkpoint).run(images_BHWC).logits_BK
    merged = FoldedBackend(checkpoint, merge=most).run(images_BHWC).logits_BK
    assert np.isfinite(merged).all()
    assert not np.array_equal(merged, exact)
    assert np.abs(merged - exact).max() < 2 * np.abs(exact).max()
    one_by_one = np.concatenate([FoldedBackend(checkpoint, merge=most).run(image[None]).logits_BK for image in images_BHWC])
    close(merged, one_by_one)


def test_a_predictor_that_merges_says_so_and_has_a_digest_of_its_own() -> None:
    checkpoint = vit()
    plain, merging = Predictor(checkpoint), Predictor(checkpoint, merge=2)
    assert plain.digest != merging.digest
    assert any("merged" in note for note in merging.notes)
    assert merging([noise(checkpoint)[0]])[0].logits.shape == (7,)


@pytest.mark.parametrize(
    "changes", [{"pool": "map"}, {"position": Position(place="every")}, {"attention": "local", "window": 3}], ids=str
)
def test_where_tokens_cannot_be_merged_it_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="cannot be merged"):
        Predictor(vit(changes), merge=2)
    with pytest.raises(ConfigError, match="cannot be merged"):
        exportable(vit(changes), merge=2)


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_the_graph_for_other_runtimes_merges_alike(pool: str) -> None:
    checkpoint = vit({"pool": pool, "register_tokens": 2})
    images_BHWC = noise(checkpoint)
    with torch.inference_mode():
        found = exportable(checkpoint, merge=2)(torch.from_numpy(images_BHWC))
    close(found.numpy(), FoldedBackend(checkpoint, merge=2).run(images_BHWC).logits_BK)


def test_the_schedule_merges_so_many_a_layer_on_average_and_none_in_the_last() -> None:
    for layers in range(1, 26):
        counts = schedule(layers, 8)
        assert len(counts) == layers - 1
        assert sum(counts) == 8 * (layers - 1)
