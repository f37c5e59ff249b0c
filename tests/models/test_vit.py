"""The Vision Transformer's parts, each against what the paper says of it."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config import Position, ViTConfig, variant
from vitlab.config.vit import AttentionKind, Pool, PositionKind, PositionPlace
from vitlab.errors import ConfigError
from vitlab.models import Record, build, vit
from vitlab.models.attention_variants import Axis, attend, attention_weights, axial_mask, local_mask
from vitlab.models.vit import Block, PatchEmbedding, ViT, patchify


def mini(config: ViTConfig | None = None, seed: int = 0) -> ViT:
    """A miniature model in evaluation mode, with values also where the authors begin at zero."""
    if config is None:
        config = mini_config()
    model = build(config, seed=seed)
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.eval()


def mini_config() -> ViTConfig:
    config = variant("ViT-Mini/8", num_classes=5)
    assert isinstance(config, ViTConfig)
    return config


def images(config: ViTConfig, count: int = 2) -> Tensor:
    return torch.randn(count, config.channels, *config.image_size, generator=torch.Generator().manual_seed(1))


def test_the_model_equals_the_four_equations_written_out_by_hand() -> None:
    model, images_BCHW = mini(), images(mini_config())
    state = model.state_dict()
    patches = F.conv2d(images_BCHW, state["patches.weight"], state["patches.bias"], stride=8).flatten(2).transpose(1, 2)
    z = torch.cat([state["class_token"].expand(2, -1, -1), patches], 1) + state["position.table"]  # eq. 1
    for layer in range(2):
        own = {key.removeprefix(f"encoder.blocks.{layer}."): value for key, value in state.items()}
        x = F.layer_norm(z, (64,), own["norm1.weight"], own["norm1.bias"], 1e-6)
        q, k, v = (x @ own["attention.qkv.weight"].T + own["attention.qkv.bias"]).chunk(3, -1)
        heads = []
        for head in range(4):
            part = slice(16 * head, 16 * head + 16)
            attention = (q[..., part] @ k[..., part].transpose(1, 2) / 4).softmax(-1)
            heads.append(attention @ v[..., part])
        z = z + torch.cat(heads, -1) @ own["attention.out.weight"].T + own["attention.out.bias"]  # eq. 2
        x = F.layer_norm(z, (64,), own["norm2.weight"], own["norm2.bias"], 1e-6)
        x = F.gelu(x @ own["mlp.up.weight"].T + own["mlp.up.bias"], approximate="tanh")
        z = z + x @ own["mlp.down.weight"].T + own["mlp.down.bias"]  # eq. 3
    y = F.layer_norm(z[:, 0], (64,), state["encoder.norm.weight"], state["encoder.norm.bias"], 1e-6)  # eq. 4
    torch.testing.assert_close(model(images_BCHW), y @ state["head.weight"].T + state["head.bias"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("equation", range(1, 9))
def test_the_file_cites_each_equation_of_the_paper_at_its_line(equation: int) -> None:
    comments = [line.partition("#")[2] for line in inspect.getsource(vit).splitlines()]
    assert any(re.search(rf"\beq\. (\d and )?{equation}\b", comment) for comment in comments)


def test_cutting_patches_and_a_matrix_product_equal_a_strided_convolution() -> None:
    patches = PatchEmbedding(3, 10, (4, 8), pad=False)
    nn.init.normal_(patches.weight)
    assert patches.bias is not None
    nn.init.normal_(patches.bias)
    images_BCHW = torch.randn(2, 3, 12, 16)
    expected = F.conv2d(images_BCHW, patches.weight, patches.bias, stride=(4, 8)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(patches(images_BCHW), expected, atol=1e-4, rtol=1e-4)


def test_cut_patches_hold_every_pixel_once() -> None:
    images_BCHW = torch.arange(2 * 3 * 8 * 12).view(2, 3, 8, 12)
    assert torch.equal(patchify(images_BCHW, (4, 6)).flatten().sort().values, images_BCHW.flatten())


def test_padding_equals_an_image_with_a_margin_of_zeros() -> None:
    config = replace(mini_config(), image_size=(30, 26), pad=True)
    model, images_BCHW = mini(config), images(config)
    whole = build(replace(config, image_size=(32, 32), pad=False)).eval()
    whole.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(images_BCHW), whole(F.pad(images_BCHW, (0, 6, 0, 2))))


@pytest.mark.parametrize("pool", ["mean", "map"])
def test_patches_without_positions_can_be_shuffled(pool: Pool) -> None:
    config = replace(mini_config(), pool=pool, class_token=False, position=Position(kind="none"))
    model, images_BCHW = mini(config), images(config)
    tiles = images_BCHW.unfold(2, 8, 8).unfold(3, 8, 8).flatten(2, 3)[:, :, torch.randperm(16)]
    shuffled_BCHW = tiles.reshape(2, 3, 4, 4, 8, 8).permute(0, 1, 2, 4, 3, 5).flatten(4, 5).flatten(2, 3)
    torch.testing.assert_close(model(images_BCHW), model(shuffled_BCHW), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d"])
@pytest.mark.parametrize("place", ["stem", "every", "shared"])
def test_every_kind_of_position_at_every_place_distinguishes_patches(kind: PositionKind, place: PositionPlace) -> None:
    config = replace(mini_config(), pool="mean", class_token=False, position=Position(kind=kind, place=place))
    model, images_BCHW = mini(config), images(config)
    turned_BCHW = images_BCHW.roll(8, 3)
    assert (model(images_BCHW) - model(turned_BCHW)).abs().max() > 1e-3


@pytest.mark.parametrize(("kind", "key"), [("learned-1d", "position.table"), ("relative", "position.offsets")])
def test_tables_at_every_layer_that_are_alike_equal_one_shared_table(kind: PositionKind, key: str) -> None:
    shared = mini(replace(mini_config(), position=Position(kind=kind, place="shared")))
    every = build(replace(mini_config(), position=Position(kind=kind, place="every"))).eval()
    state = shared.state_dict()
    every.load_state_dict(state | {key: state[key].expand(2, -1, -1)})
    images_BCHW = images(mini_config())
    torch.testing.assert_close(every(images_BCHW), shared(images_BCHW))


def test_relative_logits_are_the_query_against_the_embedding_of_the_offset() -> None:
    config = replace(mini_config(), position=Position(kind="relative", place="stem"))
    model, images_BCHW = mini(config), images(config, 1)
    record = Record(layers=[0], queries_keys=True)
    model(images_BCHW, record)
    q, k, seen = record.queries_BHNK[0][0], record.keys_BHNK[0][0], record.attention_BHNN[0][0]
    offsets = model.state_dict()["position.offsets"][0].view(31, 4, 16)
    logits = q @ k.transpose(1, 2)
    for head in range(4):
        for query in range(16):
            for key in range(16):
                logits[head, 1 + query, 1 + key] += q[head, 1 + query] @ offsets[query - key + 15, head]
    torch.testing.assert_close(seen, (logits / 4).softmax(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_in_bfloat16_is_the_same_with_gradients_and_without(masked: bool) -> None:
    """Training takes plain products where prediction takes the fused kernel."""
    drawn = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, 2, 9, 8, generator=drawn).bfloat16().requires_grad_() for _ in range(3))
    bias = local_mask(3, (3, 3), 0, q.device) if masked else None
    trained = attend(q, k, v, bias)
    with torch.no_grad():
        predicted = attend(q, k, v, bias)
    torch.testing.assert_close(trained, predicted, atol=0.03, rtol=0.03)
    gradients = torch.autograd.grad(trained.sum(), [q, k, v])
    wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
    wanted = torch.autograd.grad(attend(wide[0], wide[1], wide[2], bias).sum(), wide)
    for got, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got.float(), want, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_axial_attention_equals_attention_under_a_mask(axis: Axis) -> None:
    config = replace(mini_config(), attention="axial", image_size=(24, 40), register_tokens=1)
    model = mini(config)
    record = Record(queries_keys=True, tokens=True)
    model(images(config), record)
    layer = 0 if axis == "rows" else 1
    block = model.encoder.blocks[layer]
    assert isinstance(block, Block)
    q, k = record.queries_BHNK[layer], record.keys_BHNK[layer]
    mask = axial_mask(axis, (3, 5), 2, q.device)
    assert torch.equal(record.attention_BHNN[layer], attention_weights(q, k, mask))
    before = record.tokens_BND[0] if layer else None
    if before is not None:
        assert block.norm2 is not None
        v = block.attention.qkv(block.norm1(before)).unflatten(-1, (3, 4, 16))[:, :, 2].transpose(1, 2)
        seen = (record.attention_BHNN[layer] @ v).transpose(1, 2).flatten(2)
        z = before + block.attention.out(seen)
        torch.testing.assert_close(z + block.mlp(block.norm2(z)), record.tokens_BND[1], atol=1e-5, rtol=1e-4)


def test_axial_attention_has_two_layers_for_each_one() -> None:
    config = replace(mini_config(), attention="axial")
    record = Record()
    mini(config)(images(config), record)
    assert record.recorded == [0, 1, 2, 3]


@pytest.mark.parametrize("attention", ["global", "local", "axial"])
def test_attention_rows_sum_to_one(attention: AttentionKind) -> None:
    config = replace(mini_config(), attention=attention, window=3)
    record = Record()
    mini(config)(images(config), record)
    for seen_BHNN in record.attention_BHNN:
        torch.testing.assert_close(seen_BHNN.sum(-1), torch.ones_like(seen_BHNN[..., 0]))


def test_local_attention_sees_its_neighbours_and_the_class_token_alone() -> None:
    mask_NN = local_mask(3, (4, 4), 1, torch.device("cpu"))
    assert mask_NN[0].all()
    assert mask_NN[:, 0].all()
    seen_by_corner = mask_NN[1, 1:].nonzero().flatten().tolist()
    assert seen_by_corner == [0, 1, 4, 5]
    assert mask_NN[1:, 1:].sum(1).max() == 9


def test_a_window_over_the_whole_grid_equals_global_attention() -> None:
    config = replace(mini_config(), attention="local", window=9)
    model, images_BCHW = mini(config), images(config)
    everywhere = build(replace(config, attention="global")).eval()
    everywhere.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(images_BCHW), everywhere(images_BCHW), atol=1e-5, rtol=1e-5)


def test_a_record_of_chosen_layers_holds_these_alone() -> None:
    config = replace(mini_config(), depth=4)
    model, images_BCHW = mini(config), images(config)
    everything, some = Record(tokens=True), Record(layers=[-1, 0], tokens=True)
    model(images_BCHW, everything)
    model(images_BCHW, some)
    model(images_BCHW, some)  # a second pass starts afresh
    assert some.recorded == [0, 3]
    for mine, theirs in ((0, 0), (1, 3)):
        assert torch.equal(some.attention_BHNN[mine], everything.attention_BHNN[theirs])
        assert torch.equal(some.tokens_BND[mine], everything.tokens_BND[theirs])


def test_a_record_refuses_what_the_model_does_not_have() -> None:
    model, images_BCHW = mini(), images(mini_config())
    with pytest.raises(ConfigError, match="no layer 2"):
        model(images_BCHW, Record(layers=[2]))
    with pytest.raises(ConfigError, match="feature maps"):
        model(images_BCHW, Record(maps=True))


def test_dropout_acts_at_the_papers_places_only() -> None:
    model = build(replace(mini_config(), dropout=0.5)).train()
    places = sorted(name for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p > 0)
    per_layer = [f"encoder.blocks.{layer}.{part}.dropout" for layer in (0, 1) for part in ("attention", "mlp")]
    assert places == sorted(["dropout", *per_layer])


def test_stochastic_depth_leaves_out_whole_branches_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    model = mini(replace(mini_config(), drop_path=0.5)).train()
    block = model.encoder.blocks[1]
    assert isinstance(block, Block)
    assert block.drop == 0.5
    assert isinstance(model.encoder.blocks[0], Block)
    assert model.encoder.blocks[0].drop == 0
    images_BCHW = images(mini_config(), 1).expand(4000, -1, -1, -1)
    seen = model(images_BCHW).detach()
    assert len(seen.round(decimals=3).unique(dim=0)) == 4  # each of two branches kept or not


def test_patch_dropout_keeps_the_asked_share_in_training_and_all_in_evaluation() -> None:
    model = mini(replace(mini_config(), patch_dropout=0.5))
    images_BCHW = images(mini_config())
    assert model.encode_images(images_BCHW).shape[1] == 17
    assert model.train().encode_images(images_BCHW).shape[1] == 9


def test_a_distilled_model_gives_the_mean_of_its_two_heads() -> None:
    model = mini(replace(mini_config(), distill_token=True))
    images_BCHW = images(mini_config())
    class_BC, distill_BC = model.class_and_distill_logits(images_BCHW)
    assert not torch.allclose(class_BC, distill_BC)
    torch.testing.assert_close(model(images_BCHW), (class_BC + distill_BC) / 2)
    with pytest.raises(ConfigError, match="no distillation head"):
        mini().class_and_distill_logits(images_BCHW)


def test_an_image_of_another_size_is_refused_or_fitted_as_asked() -> None:
    model, larger_BCHW = mini(), torch.randn(1, 3, 48, 56)
    with pytest.raises(ConfigError, match="48x56"):
        model(larger_BCHW)
    dynamic = build(replace(mini_config(), dynamic_size=True)).eval()
    dynamic.load_state_dict(model.state_dict())
    assert torch.equal(dynamic(images(mini_config())), model(images(mini_config())))
    assert dynamic(larger_BCHW).shape == (1, 5)
    with pytest.raises(ConfigError, match="not a multiple"):
        dynamic(torch.randn(1, 3, 33, 32))
    with pytest.raises(ConfigError, match=r"are not \(batch"):
        model(torch.randn(3, 32, 32))
    with pytest.raises(ConfigError, match="1 channels"):
        model(torch.randn(1, 1, 32, 32))
