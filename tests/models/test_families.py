"""What is particular to Swin, ConvNeXt, EfficientNet and recurrent networks; what holds for every model is in test_contract."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.config import ConvNeXtConfig, EfficientNetConfig, ModelConfig, RecurrentConfig, SwinConfig, variant
from vitlab.config.model import NAMES
from vitlab.errors import ConfigError
from vitlab.models import Record, build
from vitlab.models.batch_norm import BatchNorm
from vitlab.models.cost import cost
from vitlab.models.swin import FAR, WindowAttention, far_apart, offset_index, shift_of, unwindowed, windowed
from vitlab.models.vit import drop_path_rates

MINIS = ("Swin-Mini", "ConvNeXt-Mini", "EfficientNet-Mini", "LSTM-Mini/8", "RNN-Mini/8")


def mini(name: str, *, seed: int = 0) -> Any:
    """A miniature whose every parameter has a value of its own."""
    model: Any = build(variant(name, num_classes=5), seed=seed).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


def swin(**choices: Any) -> Any:
    config = varied("Swin-Mini", **choices)
    return build(config, seed=3).eval()


def varied(name: str, **choices: Any) -> ModelConfig:
    config: Any = variant(name, num_classes=5)
    return cast(ModelConfig, replace(config, **choices))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Published by Liu et al. 2021 and 2022, Tan and Le 2019, Xie et al. 2020; the multiply-adds of Swin-T and -S at 384 pixels and of
# the EfficientNets, which their authors give with one digit or not at all, were worked out here.
PUBLISHED = [
    ("Swin-T", 224, 28.29, 4.5),
    ("Swin-S", 224, 49.61, 8.7),
    ("Swin-B", 224, 87.77, 15.4),
    ("Swin-B", 384, 87.90, 47.1),
    ("Swin-L", 224, 196.53, 34.5),
    ("Swin-L", 384, 196.74, 103.9),
    ("Swin-T", 384, 28.34, 14.0),
    ("Swin-S", 384, 49.71, 27.0),
    ("ConvNeXt-T", 224, 28.59, 4.5),
    ("ConvNeXt-T", 384, 28.59, 13.1),
    ("ConvNeXt-S", 224, 50.22, 8.7),
    ("ConvNeXt-S", 384, 50.22, 25.5),
    ("ConvNeXt-B", 224, 88.59, 15.4),
    ("ConvNeXt-B", 384, 88.59, 45.1),
    ("ConvNeXt-L", 224, 197.77, 34.4),
    ("ConvNeXt-L", 384, 197.77, 101.0),
    ("ConvNeXt-XL", 224, 350.20, 60.9),
    ("ConvNeXt-XL", 384, 350.20, 179.0),
    ("EfficientNet-B0", 224, 5.29, 0.4),
    ("EfficientNet-B1", 240, 7.79, 0.7),
    ("EfficientNet-B2", 260, 9.11, 1.0),
    ("EfficientNet-B3", 300, 12.23, 1.8),
    ("EfficientNet-B4", 380, 19.34, 4.4),
    ("EfficientNet-B5", 456, 30.39, 10.3),
    ("EfficientNet-B6", 528, 43.04, 19.1),
    ("EfficientNet-B7", 600, 66.35, 37.7),
    ("EfficientNet-L2", 800, 480.31, 475.7),
]


@pytest.mark.parametrize(("name", "image_size", "millions", "gmacs"), PUBLISHED)
def test_a_model_has_its_published_parameters_and_multiply_adds(name: str, image_size: int, millions: float, gmacs: float) -> None:
    spent = cost(variant(name, image_size=image_size))
    assert round(spent.parameters / 1e6, 2) == millions
    assert round(spent.macs / 1e9, 1) == gmacs


@pytest.mark.parametrize("name", MINIS)
@pytest.mark.parametrize("size", [(32, 32), (17, 70), (45, 33), (96, 64)])
def test_images_of_any_size_are_taken_and_the_size_matters(name: str, size: tuple[int, int]) -> None:
    model = mini(name)
    with torch.no_grad():
        logits_BC = model(noise(2, 3, *size))
    assert logits_BC.shape == (2, 5)
    assert logits_BC.isfinite().all()
    assert (logits_BC[0] - logits_BC[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", MINIS)
def test_a_new_model_outputs_the_heads_bias_for_every_image(name: str) -> None:
    model: Any = build(replace(variant(name, num_classes=5), head_bias=-3.0)).eval()
    assert torch.equal(model(noise(2, 3, 32, 32)), torch.full((2, 5), -3.0))


@pytest.mark.parametrize("name", MINIS)
def test_images_of_another_number_of_channels_or_axes_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="have 4 channels and the model takes 3"):
        mini(name)(noise(1, 4, 32, 32))
    with pytest.raises(ConfigError, match="not of shape"):
        mini(name)(noise(3, 32, 32))


@pytest.mark.parametrize("name", MINIS)
def test_asking_for_attention_is_refused_with_what_can_be_recorded(name: str) -> None:
    with pytest.raises(ConfigError, match="record") as refused:
        mini(name)(noise(1, 3, 32, 32), Record())
    assert refused.value.hint is not None
    assert "attention=False" in refused.value.hint


@pytest.mark.parametrize("name", ["Swin-Mini", "ConvNeXt-Mini", "EfficientNet-Mini"])
def test_a_record_holds_the_maps_of_each_stage(name: str) -> None:
    model, record = mini(name), Record(attention=False, maps=True)
    with torch.no_grad():
        model(noise(2, 3, 32, 32), record)
    sides = [maps_BCHW.shape[2] for maps_BCHW in record.maps_BCHW]
    assert len(sides) == len(model.stages)
    assert all(one in (other, 2 * other) for one, other in pairwise(sides))


@pytest.mark.parametrize("name", NAMES)
def test_stochastic_depth_rises_evenly_to_its_rate(name: str) -> None:
    config = variant(name)
    if not hasattr(config, "drop_path"):
        return
    model: Any = build(varied(name, drop_path=0.3), device="meta")
    drops = [module.drop for module in model.modules() if isinstance(getattr(module, "drop", None), float)]
    total = len(drops)
    last = total if isinstance(config, EfficientNetConfig) else total - 1  # drop-connect counts to n, the others to n - 1
    assert drops == pytest.approx([0.3 * number / last for number in range(total)])


def test_rates_of_stochastic_depth_are_given_stage_by_stage() -> None:
    assert drop_path_rates(0.4, (2, 3)) == [pytest.approx([0.0, 0.1]), pytest.approx([0.2, 0.3, 0.4])]
    assert drop_path_rates(0.4, (1,)) == [[0.0]]


@pytest.mark.parametrize("name", ["Swin-Mini", "ConvNeXt-Mini", "EfficientNet-Mini"])
def test_stochastic_depth_changes_training_and_not_evaluation(name: str) -> None:
    config = varied(name, drop_path=0.8, dropout=0.0)
    model: Any = build(config, seed=1)
    torch.manual_seed(0)
    with torch.no_grad():
        for scale in [parameter for key, parameter in model.named_parameters() if key.endswith("scale")]:
            scale.fill_(1)
        images_BCHW = noise(4, 3, 32, 32)
        model.train()
        assert not torch.equal(model.features(images_BCHW), model.features(images_BCHW))
        model.eval()
        assert torch.equal(model.features(images_BCHW), model.features(images_BCHW))


# Swin


def test_windows_are_cut_and_put_together_again() -> None:
    x_BGJD = noise(2, 6, 8, 5)
    assert torch.equal(unwindowed(windowed(x_BGJD, (3, 4)), (3, 4), (6, 8)), x_BGJD)
    assert torch.equal(windowed(x_BGJD, (3, 4))[:, 1], x_BGJD[:, :3, 4:].reshape(2, 12, 5))


def test_two_cells_have_the_bias_of_their_offset() -> None:
    index_NN = offset_index((2, 3))
    places = [(row, column) for row in range(2) for column in range(3)]
    by_offset: dict[tuple[int, int], set[int]] = {}
    for i, one in enumerate(places):
        for j, other in enumerate(places):
            by_offset.setdefault((one[0] - other[0], one[1] - other[1]), set()).add(int(index_NN[i, j]))
    assert all(len(rows) == 1 for rows in by_offset.values())
    assert {row for rows in by_offset.values() for row in rows} == set(range(3 * 5))


def test_cells_that_only_rolling_made_neighbours_do_not_see_each_other() -> None:
    grid, window = (8, 8), (4, 4)
    shift = shift_of(grid, window)
    far_WNN = far_apart(grid, window, shift, torch.device("cpu"))
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    places_1GJ2 = torch.stack([rows, columns], -1)[None]
    seen_WN2 = windowed(torch.roll(places_1GJ2, (-shift[0], -shift[1]), (1, 2)), window)[0]
    apart_WNN = (seen_WN2[:, :, None] - seen_WN2[:, None]).abs().amax(-1)
    assert torch.equal(far_WNN == FAR, apart_WNN >= 4)  # within a window of the unrolled map, cells are at most 3 apart


def test_shifted_attention_is_attention_in_the_windows_of_the_shifted_map_by_hand() -> None:
    model = swin(depths=(2,), heads=(2,))
    block = model.stages[0].blocks[1]
    attention = block.attention
    x_BGJD = noise(1, 8, 8, 32)
    with torch.no_grad():
        theirs = block._attended(x_BGJD)[0]
        mine = torch.zeros(8, 8, 32)
        for top in (-2, 2, 6):
            for left in (-2, 2, 6):
                cells = [(r, c) for r in range(top, top + 4) for c in range(left, left + 4) if 0 <= r < 8 and 0 <= c < 8]
                mine = _by_hand(attention, x_BGJD[0], cells, mine)
    torch.testing.assert_close(theirs, mine, atol=1e-5, rtol=0)


def _by_hand(attention: WindowAttention, x_GJD: Tensor, cells: list[tuple[int, int]], into_GJD: Tensor) -> Tensor:
    """Attention among these cells alone, each with the bias of its offset to the others."""
    x_ND = torch.stack([x_GJD[cell] for cell in cells])
    q_ND, k_ND, v_ND = attention.qkv(x_ND).chunk(3, dim=-1)
    heads, width = attention.heads, x_ND.shape[1] // attention.heads
    parts = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        logits_NN = q_ND[:, part] @ k_ND[:, part].T / width**0.5
        for i, one in enumerate(cells):
            for j, other in enumerate(cells):
                row = (one[0] - other[0] + 3) * 7 + one[1] - other[1] + 3
                logits_NN[i, j] += attention.offset_bias[row, head]
        parts.append(logits_NN.softmax(-1) @ v_ND[:, part])
    for cell, y_D in zip(cells, attention.out(torch.cat(parts, -1)), strict=True):
        into_GJD[cell] = y_D
    return into_GJD


def test_where_windows_fit_the_map_it_does_not_matter_what_is_padded_first() -> None:
    images_BCHW = noise(2, 3, 32, 32)
    before, after = swin(pad_first=True), swin(pad_first=False)
    with torch.no_grad():
        assert torch.equal(before.features(images_BCHW), after.features(images_BCHW))
        wide_BCHW = noise(2, 3, 36, 36)
        assert not torch.allclose(before.features(wide_BCHW), after.features(wide_BCHW), atol=1e-4)


def test_a_map_smaller_than_the_window_is_one_window_without_a_shift() -> None:
    config = replace(variant("Swin-T"), image_size=(96, 160))
    assert isinstance(config, SwinConfig)
    assert config.windows == ((7, 7), (7, 7), (6, 7), (3, 5))
    assert shift_of((3, 5), (3, 5)) == (0, 0)
    assert shift_of((14, 7), (7, 7)) == (3, 0)


# ConvNeXt


def test_a_convnext_block_begins_as_almost_nothing_but_its_shortcut() -> None:
    model: Any = build(variant("ConvNeXt-Mini"))
    x_BCHW = noise(2, 16, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(model.stages[0].blocks[0](x_BCHW), x_BCHW, atol=1e-5, rtol=0)


def test_an_image_too_small_for_the_last_stage_is_refused() -> None:
    with pytest.raises(ConfigError, match="smaller than one cell"):
        mini("ConvNeXt-Mini")(noise(1, 3, 15, 32))
    with pytest.raises(ConfigError, match="smaller than one cell"):
        variant("ConvNeXt-T", image_size=16)


# EfficientNet


def test_batchnorm_is_torchs_in_training_and_evaluation() -> None:
    ours = BatchNorm(6, eps=1e-3, momentum=0.01)
    theirs: Any = nn.BatchNorm2d(6, eps=1e-3, momentum=0.01)
    with torch.no_grad():
        for mine, other in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
            other.copy_(mine.copy_(noise(6)))
        ours.running_mean.zero_()
        ours.running_var.fill_(1)
    for seed in range(3):
        x_BCHW = noise(4, 6, 5, 5, seed=seed)
        assert torch.equal(ours(x_BCHW), theirs(x_BCHW))
    assert torch.equal(ours.running_mean, theirs.running_mean)
    assert torch.equal(ours.running_var, theirs.running_var)
    assert torch.equal(ours.eval()(x_BCHW), theirs.eval()(x_BCHW))
    assert set(ours.state_dict()) == {"weight", "bias", "running_mean", "running_var"}


def test_a_frozen_batchnorm_uses_and_keeps_its_running_statistics() -> None:
    config = varied("EfficientNet-Mini", drop_path=0.0)
    model: Any = build(config).train().requires_grad_(False)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    images_BCHW = noise(4, 3, 32, 32)
    training = model.features(images_BCHW)
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert torch.equal(training, model.eval().features(images_BCHW))


def test_a_pass_computed_again_counts_as_one_batch() -> None:
    config = varied("EfficientNet-Mini", drop_path=0.5)
    states = []
    for again in (False, True):
        model: Any = build(config).train()
        model.recompute = again
        torch.manual_seed(5)
        model.features(noise(4, 3, 32, 32)).square().sum().backward()
        states.append({key: tensor.clone() for key, tensor in model.state_dict().items()})
    one, other = states
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert any(key.endswith("running_mean") and tensor.abs().sum() > 0 for key, tensor in one.items())


def test_squeeze_and_excitation_squeezes_a_quarter_of_the_blocks_input() -> None:
    model: Any = build(variant("EfficientNet-B0"), device="meta")
    assert model.stages[2][0].squeeze.reduce.weight.shape == (24 // 4, 24 * 6)


# Recurrent


def test_a_layer_is_torchs_own_lstm_or_rnn() -> None:
    for cell, theirs in (("lstm", nn.LSTM(64, 64, batch_first=True)), ("rnn", nn.RNN(64, 64, batch_first=True))):
        model = mini(f"{cell.upper()}-Mini/8")
        layer = model.layers[0]
        names = {"weight_ih_l0": layer.input.weight, "weight_hh_l0": layer.state.weight}
        names |= {"bias_ih_l0": layer.input.bias, "bias_hh_l0": layer.state.bias}
        theirs.load_state_dict(names)
        x_BND = noise(2, 16, 64)
        with torch.no_grad():
            torch.testing.assert_close(layer(x_BND), theirs(x_BND)[0], atol=1e-6, rtol=0)


def test_the_last_output_has_seen_every_patch_and_the_first_only_its_own() -> None:
    model = mini("LSTM-Mini/8")
    record = Record(attention=False, tokens=True)
    one_BCHW = noise(1, 3, 32, 32)
    other_BCHW = one_BCHW.clone()
    other_BCHW[:, :, :8, 8:16] += 1  # the second patch
    with torch.no_grad():
        model(one_BCHW, record)
        before_BND = record.tokens_BND[-1]
        model(other_BCHW, record)
        moved_N = (record.tokens_BND[-1] - before_BND)[0].abs().amax(-1)
    assert moved_N[0] == 0
    assert (moved_N[1:] > 0).all()


def test_an_lstm_begins_remembering() -> None:
    model: Any = build(variant("LSTM-Mini/8"))
    bias = model.layers[0].input.bias.view(4, 64)
    assert bias[1].eq(1).all()
    assert bias[[0, 2, 3]].eq(0).all()


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (lambda: SwinConfig(width=30, depths=(2,), heads=(4,)), "heads=4"),
        (lambda: SwinConfig(width=32, depths=(2, 2), heads=(4,)), "one number a stage"),
        (lambda: SwinConfig(width=32, depths=(2,), heads=(4,), window=(0, 7)), "window"),
        (lambda: SwinConfig(width=32, depths=(2,), heads=(4,), drop_path=1.0), "drop_path"),
        (lambda: ConvNeXtConfig(depths=(1, 1), widths=(8,)), "one number a stage"),
        (lambda: ConvNeXtConfig(depths=(1,), widths=(8,), kernel=4), "kernel=4"),
        (lambda: ConvNeXtConfig(depths=(1,), widths=(8,), layer_scale=-1.0), "layer_scale"),
        (lambda: EfficientNetConfig(stages=()), "stages is empty"),
        (lambda: EfficientNetConfig(stages=((1, 4, 1, 1, 8),)), "kernel 4 must be odd"),
        (lambda: EfficientNetConfig(stages=((0, 3, 1, 1, 8),)), "stages"),
        (lambda: EfficientNetConfig(stages=((1, 3, 1, 1, 8),), squeeze=0.0), "squeeze"),
        (lambda: EfficientNetConfig(stages=((1, 3, 1, 1, 8),), padding="valid"), "padding"),  # type: ignore[arg-type]
        (lambda: RecurrentConfig(cell="gru", width=8, depth=1), "cell='gru'"),  # type: ignore[arg-type]
        (lambda: RecurrentConfig(cell="lstm", width=8, depth=0), "depth"),
    ],
)
def test_a_model_that_cannot_be_is_refused_by_the_name_of_the_field(config: Any, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        config()


def test_what_a_stage_of_convnext_does_is_what_its_parts_do() -> None:
    model = mini("ConvNeXt-Mini")
    block = model.stages[0].blocks[0]
    x_BCHW = noise(1, 16, 8, 8)
    with torch.no_grad():
        y_BCHW = F.conv2d(x_BCHW, block.depthwise.weight, block.depthwise.bias, padding=3, groups=16)
        y_BHWC = F.layer_norm(y_BCHW.permute(0, 2, 3, 1), (16,), block.norm.weight, block.norm.bias, 1e-6)
        y_BHWC = F.linear(
            F.gelu(F.linear(y_BHWC, block.mlp.up.weight, block.mlp.up.bias)), block.mlp.down.weight, block.mlp.down.bias
        )
        expected = x_BCHW + (y_BHWC * block.scale).permute(0, 3, 1, 2)
        torch.testing.assert_close(block(x_BCHW), expected, atol=1e-6, rtol=0)


def configs_of(names: tuple[str, ...]) -> list[ModelConfig]:
    return [variant(name) for name in names]


def test_every_family_has_a_miniature_that_is_small() -> None:
    assert all(cost(config).parameters < 500_000 and cost(config).macs < 20e6 for config in configs_of(MINIS))
