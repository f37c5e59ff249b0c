"""The cost of a model by formula, held to the model that is built: its parameters, torch's flop counter, torch's memory."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from tests import processes
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.cost_counter import CostCounter, strided
from vitlab.config.model import NAMES, ModelConfig, variant
from vitlab.config.resnet import ResNetConfig
from vitlab.config.swin import SwinConfig
from vitlab.config.timm_names import architectures
from vitlab.config.vit import Position, PositionKind, PositionPlace, ViTConfig
from vitlab.config.vit_parts import ConvStem, ResNetStem
from vitlab.errors import ConfigError
from vitlab.models import build
from vitlab.models.cost import cost, model_rows
from vitlab.models.families import build_on_meta, family_of


def tiny() -> ViTConfig:
    config = variant("ViT-Ti/16", image_size=128, num_classes=7)
    assert isinstance(config, ViTConfig)
    return replace(config, depth=3)


RECTANGLE: dict[str, Any] = {"patch_size": (16, 8), "image_size": (64, 104)}

OPTIONS: dict[str, ModelConfig] = {
    "plain": tiny(),
    "mean": replace(tiny(), pool="mean", class_token=False),
    "mean with a class token": replace(tiny(), pool="mean"),
    "norm after pool": replace(tiny(), pool="mean", norm_after_pool=True),
    "map": replace(tiny(), pool="map", class_token=False),
    "map with a class token": replace(tiny(), pool="map"),
    "representation": replace(tiny(), representation_width=50),
    "distilled": replace(tiny(), distill_token=True),
    "distilled, no head": replace(tiny(), distill_token=True, num_classes=0),
    "no head": replace(tiny(), num_classes=0),
    "registers": replace(tiny(), register_tokens=4),
    "no qkv bias": replace(tiny(), qkv_bias=False),
    "layer scale": replace(tiny(), layer_scale=0.1),
    "dropout": replace(tiny(), dropout=0.1),
    "patch dropout": replace(tiny(), patch_dropout=0.5),
    "thirteen channels": replace(tiny(), channels=13),
    "rectangle": replace(tiny(), **RECTANGLE),
    "padded": replace(tiny(), pad=True, image_size=(70, 90)),
    "local": replace(tiny(), attention="local", window=3),
    "local and relative": replace(tiny(), attention="local", window=3, position=Position(kind="relative", place="every")),
    "axial": replace(tiny(), attention="axial"),
    "axial without prefix": replace(tiny(), attention="axial", pool="mean", class_token=False),
    "axial rectangle": replace(tiny(), attention="axial", register_tokens=2, position=Position(place="every"), **RECTANGLE),
    "hybrid": replace(tiny(), stem=ResNetStem(blocks=(1, 2), width=32), patch_size=(2, 2), image_size=(96, 128)),
    "hybrid root": replace(tiny(), stem=ResNetStem(blocks=(), width=32), patch_size=(4, 4)),
    "hybrid padded": replace(
        tiny(), stem=ResNetStem(blocks=(1, 1, 1), width=32), patch_size=(2, 2), pad=True, image_size=(99, 130)
    ),
    "conv stem": replace(tiny(), conv_stem=ConvStem(widths=(16, 32), units=(1, 3)), patch_size=(4, 4)),
    "conv stem, relu": replace(tiny(), conv_stem=ConvStem(widths=(16, 32), units=(1, 3), activation="relu"), patch_size=(4, 4)),
    "conv stem, batch norm": replace(tiny(), conv_stem=ConvStem(widths=(18, 32), units=(1, 3), norm="batch"), patch_size=(4, 4)),
    "conv stem, batch norm and relu": replace(
        tiny(), conv_stem=ConvStem(widths=(16, 32), units=(1, 3), norm="batch", activation="relu"), patch_size=(4, 4)
    ),
    "conv stem padded": replace(
        tiny(), conv_stem=ConvStem(widths=(24,), units=(2,)), patch_size=(8, 4), pad=True, image_size=(99, 70)
    ),
    "resnet": ResNetConfig(blocks=(1, 2, 1, 1), image_size=(64, 64)),
    "resnet without a head": ResNetConfig(
        blocks=(2, 1), stage_widths=(128, 256), width_factor=2, image_size=(70, 33), channels=5, num_classes=0
    ),
    "swin": SwinConfig(width=48, depths=(2, 2, 2), heads=(3, 6, 12), image_size=(112, 112), num_classes=7),
    "swin padded": SwinConfig(width=48, depths=(2, 1), heads=(3, 6), image_size=(90, 70), qkv_bias=False, num_classes=0),
    "convnext": ConvNeXtConfig(depths=(1, 2, 1), widths=(48, 96, 192), image_size=(96, 96), num_classes=7),
    "convnext without scale": ConvNeXtConfig(depths=(1, 1), widths=(32, 64), image_size=(101, 66), layer_scale=0.0, channels=5),
    "efficientnet": variant("EfficientNet-B0", image_size=96, num_classes=7),
    "efficientnet rectangle": variant("EfficientNet-B0", image_size=(99, 71), num_classes=0),
    "lstm": variant("LSTM-Ti/16", image_size=96, num_classes=7),
    "rnn": variant("RNN-Ti/16", image_size=(96, 70), num_classes=7),
}
for kind, place, prefix in product(get_args(PositionKind), get_args(PositionPlace), (True, False)):
    position = Position(kind=kind, place=place, prefix=prefix)
    OPTIONS[f"{kind} at {place}, {prefix}"] = replace(tiny(), register_tokens=1, position=position)


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts by the formulas of torch's FlopCounterMode, which would also ask for every module: half of its time."""

    flops = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if (formula := flop_registry.get(function.overloadpacket)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out


def count_blocks_once(model: nn.Module, blocks: tuple[type[nn.Module], ...], counter: Flops) -> None:
    """A block of the same layers as an earlier one, with inputs of the same shape, takes its output and its count from that one."""
    seen: dict[object, tuple[Tensor, int]] = {}

    def once(block: nn.Module) -> Callable[..., Tensor]:
        forward, alike = block.forward, (str(block), *(parameter.shape for parameter in block.parameters()))

        def first_or_seen(x: Tensor, *rest: Any) -> Tensor:
            if (alike, x.shape) not in seen:
                before = counter.flops
                seen[alike, x.shape] = forward(x, *rest), counter.flops - before
            else:
                counter.flops += seen[alike, x.shape][1]
            return seen[alike, x.shape][0]

        return first_or_seen

    for module in model.modules():
        if isinstance(module, blocks):
            module.forward = once(module)


def built(config: ModelConfig, image_size: tuple[int, int] | None = None, *, blocks_once: bool = False) -> tuple[int, int]:
    """Parameters and multiply-adds of the model itself, on the meta device: all of it is there, and gives logits."""
    model = build(config, device="meta").eval()
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    images_BCHW = torch.empty(1, config.channels, *(image_size or config.image_size), device="meta")
    with Flops() as counter, torch.no_grad():  # type: ignore[no-untyped-call]
        if blocks_once:
            count_blocks_once(model, family_of(config).sharded, counter)
        logits_1K = model(images_BCHW)
    assert logits_1K.shape[1] == config.num_classes or config.num_classes == 0  # which gives features
    assert counter.flops % 2 == 0
    return sum(parameter.numel() for parameter in model.parameters()), counter.flops // 2


@pytest.mark.parametrize(
    ("name", "image_size", "parameters"),
    [
        ("ViT-Ti/16", 224, 5_717_416),
        ("ViT-S/16", 224, 22_050_664),
        ("ViT-S/32", 224, 22_878_952),
        ("ViT-B/32", 224, 88_224_232),
        ("ViT-B/16", 224, 86_567_656),
        ("ViT-B/16", 384, 86_859_496),
        ("ViT-L/32", 224, 306_535_400),
        ("ViT-L/16", 224, 304_326_632),
        ("ViT-L/16", 384, 304_715_752),
        ("ViT-H/14", 224, 632_045_800),
    ],
)
def test_the_published_models_have_their_published_number_of_parameters(name: str, image_size: int, parameters: int) -> None:
    assert cost(variant(name, image_size=image_size)).parameters == parameters
    assert cost(variant(name), image_size=image_size).parameters == parameters


@pytest.mark.parametrize(
    ("name", "image_size", "gmacs", "digits"),
    [
        ("ViT-Ti/16", 224, 1.25, 2),
        ("ViT-S/16", 224, 4.60, 2),
        ("ViT-B/32", 224, 4.41, 2),
        ("ViT-B/16", 224, 17.56, 2),
        ("ViT-B/16", 384, 55.5, 1),
        ("ViT-B/8", 224, 78.1, 1),
        ("ViT-L/32", 224, 15.4, 1),
        ("ViT-L/16", 224, 61.6, 1),
        ("ViT-L/16", 384, 191.1, 1),
        ("ViT-L/16", 512, 362, 0),
        ("ViT-H/14", 224, 167.3, 1),
        ("ViT-H/14", 518, 1017, 0),
        ("ViT-g/14", 224, 267, 0),
        ("ViT-G/14", 224, 484, 0),
    ],
)
def test_the_published_models_have_their_known_multiply_adds(name: str, image_size: int, gmacs: float, digits: int) -> None:
    assert round(cost(variant(name), image_size=image_size).macs / 1e9, digits) == gmacs


@pytest.mark.parametrize(
    ("name", "epochs", "exaflops"),
    [("ViT-B/16", 7, 224), ("ViT-L/32", 7, 196), ("ViT-L/16", 7, 783), ("ViT-L/16", 14, 1567), ("ViT-H/14", 14, 4262)],
)
def test_six_flops_a_multiply_add_give_the_compute_of_table_6(name: str, epochs: int, exaflops: float) -> None:
    assert 6 * cost(variant(name)).macs * 303e6 * epochs / 1e18 == pytest.approx(exaflops, rel=3e-3)


@pytest.mark.parametrize("name", NAMES)
def test_every_published_model_costs_what_it_does_when_built_at_full_size(name: str) -> None:
    config = variant(name)
    spent = cost(config)
    assert (spent.parameters, spent.macs) == built(config, blocks_once=True)


@pytest.mark.parametrize(
    "name", ["ViT-Ti/16", "R26+ViT-S/32", "BiT-R50x1", "Swin-T", "ConvNeXt-T", "EfficientNet-B0", "RNN-Mini/8"]
)
def test_counting_blocks_that_are_alike_once_gives_what_counting_all_gives(name: str) -> None:
    assert built(variant(name), blocks_once=True) == built(variant(name))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_costs_what_it_does_when_built(option: str) -> None:
    spent = cost(OPTIONS[option])
    assert (spent.parameters, spent.macs) == built(OPTIONS[option])


@pytest.mark.parametrize("size", [(128, 160), (64, 64)])
def test_a_model_of_dynamic_size_keeps_its_parameters_at_another_size(size: tuple[int, int]) -> None:
    config = replace(tiny(), dynamic_size=True)
    there = cost(config, image_size=size)
    assert (there.parameters, there.macs) == built(config, size)
    assert there.parameters == cost(config).parameters
    assert there.macs == cost(replace(tiny(), image_size=size)).macs


class Outputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the numbers that dense layers and convolutions put out."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.convolution, torch.ops.aten.addmm):
            self.numbers += out.numel()
        return out


@pytest.mark.parametrize(
    "option", ["plain", "representation", "distilled", "map", "hybrid", "resnet", "convnext", "efficientnet", "lstm"]
)
def test_activations_are_the_outputs_of_dense_layers_and_convolutions(option: str) -> None:
    config = OPTIONS[option]
    model = build(config, device="meta").eval()
    with torch.no_grad(), Outputs() as outputs:  # type: ignore[no-untyped-call]
        model(torch.empty(1, config.channels, *config.image_size, device="meta"))
    assert cost(config).activations == outputs.numbers


MEMORY = [option for option, config in OPTIONS.items() if not isinstance(config, ViTConfig) or config.register_tokens != 1]
MEMORY += [option for option in OPTIONS if option.startswith("relative") and option.endswith("True")]


def zeros(config: ModelConfig) -> nn.Module:
    """The model with zeros for parameters: memory does not depend on them, and drawing them takes longer than using them."""
    model = build_on_meta(config)
    state = {key: torch.zeros(tensor.shape, dtype=tensor.dtype) for key, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    return model


def growth(measured: Callable[[nn.Module, Tensor], int], config: ModelConfig, batch: int) -> tuple[int, int]:
    """Numbers for one image more, and numbers whatever the batch."""
    model = zeros(config)
    less, more = (measured(model, torch.zeros(count, config.channels, *config.image_size)) for count in (batch, batch + 1))
    return more - less, less - batch * (more - less)


def kept_by_autograd(model: nn.Module, images_BCHW: Tensor) -> int:
    """Numbers in the tensors that a forward pass saves for the backward pass, parameters aside; 8 bytes are two."""
    model.train()
    weights = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits_BC = model(images_BCHW)
    assert logits_BC.requires_grad
    return sum(storage.nbytes() for storage in kept.values()) // 4


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage from its birth to its death and notes the most bytes alive at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes, self.peak = 0, 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.see(leaf.untyped_storage())
        return out

    def see(self, storage: torch.UntypedStorage) -> None:
        name, size = storage._cdata, storage.nbytes()
        if name in self.known:
            return
        self.known.add(name)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

        def gone() -> None:
            self.known.discard(name)
            self.bytes -= size

        weakref.finalize(storage, gone)


def alive_at_once(model: nn.Module, images_BCHW: Tensor) -> int:
    """The most numbers alive at once in a forward pass without gradients, parameters aside."""
    model.eval()
    alive = Alive()
    alive.known = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    with torch.no_grad(), alive:
        model(images_BCHW.clone())  # the images count too
    return alive.peak // 4


@pytest.mark.parametrize("option", MEMORY)
def test_what_training_keeps_for_an_image_is_what_autograd_saves(option: str) -> None:
    config = OPTIONS[option]
    image, fixed = growth(kept_by_autograd, config, 2)
    spent = cost(config)
    # How often the queries and keys along a line are copied is the kernel's business.
    tolerance = 0.2 if isinstance(config, ViTConfig) and config.attention == "axial" else 0.05
    assert spent.training_kept == pytest.approx(image, rel=tolerance)
    if spent.training_copies:
        assert spent.training_copies == pytest.approx(fixed, rel=0.02)


@pytest.mark.parametrize("option", [option for option in MEMORY if not option.startswith("resnet")])
def test_the_peak_of_inference_is_what_torch_has_alive(option: str) -> None:
    config = OPTIONS[option]
    image, _ = growth(alive_at_once, config, 7)
    assert cost(config).inference_peak == pytest.approx(image, rel=0.06)


def test_a_resnet_s_memory_lies_between_the_larger_of_images_and_kernels_and_their_sum() -> None:
    """The two are never at their largest in the same moment."""
    config = ResNetConfig(blocks=(1, 1, 1, 1), image_size=(96, 96))
    spent, model = cost(config), zeros(config)
    for batch in (1, 4, 16):
        measured = alive_at_once(model, torch.zeros(batch, 3, 96, 96))
        assert measured <= 1.02 * (spent.inference_bytes(batch=batch) / 4 - spent.parameters)
        assert measured >= 0.95 * max(batch * spent.inference_peak, spent.inference_copies)


def test_bytes_follow_from_the_numbers() -> None:
    spent = cost(variant("ViT-B/16"))
    assert spent.weight_bytes() == 4 * 86_567_656
    assert spent.weight_bytes(number_bytes=2) == 2 * 86_567_656
    more = spent.inference_bytes(batch=9) - spent.inference_bytes(batch=8)
    assert more == 4 * spent.inference_peak
    assert spent.training_bytes(batch=9) - spent.training_bytes(batch=8) == 4 * spent.training_kept
    adam, sgd = spent.training_bytes(), spent.training_bytes(optimizer_slots=1)
    assert adam - sgd == spent.weight_bytes()


def test_patch_dropout_saves_training_memory_and_no_inference() -> None:
    whole, half = cost(tiny()), cost(replace(tiny(), patch_dropout=0.5))
    assert half.training_kept < 0.65 * whole.training_kept
    assert (half.macs, half.inference_peak) == (whole.macs, whole.inference_peak)


@pytest.mark.parametrize("size", [(100, 128), 0, (128, 128, 3)])
def test_an_image_size_the_model_cannot_have_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="image_size"):
        cost(tiny(), image_size=size)


def test_costs_are_computed_without_torch() -> None:
    code = (
        "import sys; from vitlab.config.model import variant; from vitlab.models.cost import cost;"
        "cost(variant('R50+ViT-B/16')); sys.exit('torch' in sys.modules)"
    )
    assert processes.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("size", [(7, 7), (8, 13), (14, 5), (56, 56), (1, 2)])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (7, 1), (3, 2), (7, 2), (1, 2)])
def test_products_with_padding_are_those_that_a_convolution_of_ones_misses(size: tuple[int, int], kernel: int, stride: int) -> None:
    ones, taps = torch.ones(1, 1, *size), torch.ones(1, 1, kernel, kernel)
    out = torch.nn.functional.conv2d(ones, taps, stride=stride, padding=kernel // 2)
    counter = CostCounter()
    counter.padded(size, strided(size, stride), 6, kernel)
    assert counter.padding == 6 * (out.numel() * kernel**2 - int(out.sum()))


def test_only_models_with_padded_convolutions_multiply_by_zeros() -> None:
    padded = {name for name in NAMES if cost(variant(name)).padding_macs}
    assert {"BiT-R50x1", "R50+ViT-B/16", "ConvNeXt-T", "EfficientNet-B0"} <= padded
    assert not padded & {"ViT-B/16", "ViT-H/14", "Swin-T"}
    for name in padded:
        spent = cost(variant(name))
        assert 0 < spent.padding_macs < 0.1 * spent.macs, name
        assert spent.training_exaflops(1e9) == pytest.approx(6e-9 * (spent.macs - spent.padding_macs))


# --- the catalog --------------------------------------------------------------------------------------------------------------


def test_every_name_of_either_spelling_is_listed_once() -> None:
    rows = model_rows()
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    assert set(NAMES) <= set(names)
    assert set(architectures()) <= {*names, *(row.timm_name for row in rows)}


@pytest.mark.parametrize("pattern", ["ViT-B/16", "vit-b/16", "vit_base_patch16_224", "VIT_BASE_PATCH16_22?"])
def test_a_model_is_found_by_either_spelling_in_any_case(pattern: str) -> None:
    (row,) = [row for row in model_rows(pattern) if row.name == "ViT-B/16"]
    assert row.timm_name == "vit_base_patch16_224"
    assert (row.parameters, row.image_size) == (86_567_656, (224, 224))
    assert row.macs == cost(variant("ViT-B/16")).macs
    assert row.weights[0].address == "hub:timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"


@pytest.mark.parametrize(
    ("pattern", "some"),
    [
        ("swin*", {"Swin-T", "swin_base_patch4_window12_384"}),
        ("*dinov2", {"vit_small_patch14_dinov2", "vit_large_patch14_reg4_dinov2"}),
        ("siglip", {"vit_base_patch16_siglip_224"}),
        ("ViT-[gG]/14", {"ViT-g/14", "ViT-G/14"}),
        ("R50+*", {"R50+ViT-B/16", "R50+ViT-L/32"}),
    ],
)
def test_a_pattern_gives_what_fits_it(pattern: str, some: set[str]) -> None:
    found = {row.name for row in model_rows(pattern)}
    assert some <= found
    assert "ConvNeXt-T" not in found


def test_a_pattern_that_fits_nothing_gives_nothing() -> None:
    assert model_rows("vit_enormous*") == []


def test_the_catalog_needs_no_torch() -> None:
    code = """
import sys
from vitlab.models.cost import model_rows
assert len(model_rows()) > 150
assert "torch" not in sys.modules
"""
    done = processes.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
