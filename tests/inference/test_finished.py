"""Kernels that are standardised once for inference give the very bits of those that are standardised at every call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.inference.test_folded import close, noise, vit
from vitlab.checkpoints import Checkpoint
from vitlab.config import Preprocess, variant
from vitlab.config.resnet import ResNetConfig
from vitlab.config.vit_parts import ResNetStem
from vitlab.exporters import ExportConfig
from vitlab.exporters.files import Graph, traced
from vitlab.inference import Predictor
from vitlab.inference import backends as converted
from vitlab.inference.backends import TorchBackend
from vitlab.inference.folded import FinishedConv, FoldedGraph, finished
from vitlab.models import build
from vitlab.models.resnet import StandardisedConv, max_pool


def bit() -> Checkpoint:
    """A small BiT ResNet with large random weights."""
    base = variant("BiT-R50x1", num_classes=7, image_size=(33, 40))
    assert isinstance(base, ResNetConfig)
    config = replace(base, blocks=(1, 2), root_width=32, stage_widths=(32, 64), groups=8)
    return _shaken(Checkpoint(model=build(config), config=config, preprocess=Preprocess(image_size=(33, 40), resize_to=40)))


def hybrid() -> Checkpoint:
    """A small hybrid, which the folded way serves."""
    return vit({"stem": ResNetStem(blocks=(1, 1), width=32), "patch_size": (1, 1)})


def unfolded() -> Checkpoint:
    """A small hybrid that is run as it is."""
    return vit({"stem": ResNetStem(blocks=(1, 1), width=32), "patch_size": (1, 1), "attention": "axial"})


def _shaken(checkpoint: Checkpoint) -> Checkpoint:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in checkpoint.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    checkpoint.model.eval()
    return checkpoint


MADE = {"a BiT ResNet": bit, "a hybrid": hybrid, "a hybrid with axial attention": unfolded}


@pytest.mark.parametrize("made", MADE)
def test_finished_kernels_give_the_same_bits_and_leave_the_model_as_it_was(made: str) -> None:
    checkpoint = MADE[made]()
    images_BHWC = noise(checkpoint)
    before = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    modules = {name: type(module) for name, module in checkpoint.model.named_modules()}
    expected = TorchBackend(checkpoint.model, checkpoint.preprocess).run(images_BHWC, features=True)
    found = TorchBackend(finished(checkpoint.model), checkpoint.preprocess).run(images_BHWC, features=True)
    assert np.ptp(expected.logits_BK) > 0
    np.testing.assert_array_equal(found.logits_BK, expected.logits_BK)
    assert expected.features_BD is not None
    np.testing.assert_array_equal(found.features_BD, expected.features_BD)
    assert {name: type(module) for name, module in checkpoint.model.named_modules()} == modules
    for name, tensor in checkpoint.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert all(parameter.requires_grad for parameter in checkpoint.model.parameters())


@pytest.mark.parametrize("made", MADE)
def test_a_finished_model_standardises_nothing_and_shares_all_else(made: str) -> None:
    model = MADE[made]().model
    twin = finished(model)
    kinds = [type(module) for module in twin.modules()]
    assert StandardisedConv not in kinds
    assert kinds.count(FinishedConv) == sum(isinstance(module, StandardisedConv) for module in model.modules()) > 0
    own = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in twin.parameters()} <= own


def test_a_model_with_nothing_to_standardise_is_given_back_itself() -> None:
    model = vit().model
    assert finished(model) is model


def test_a_predictor_computes_with_finished_kernels() -> None:
    checkpoint = bit()
    with torch.inference_mode():
        before = Predictor(checkpoint, backend="torch")
        images_BHWC = noise(checkpoint)
        expected = TorchBackend(checkpoint.model, checkpoint.preprocess).run(images_BHWC).logits_BK
        np.testing.assert_array_equal(before.backend.run(images_BHWC).logits_BK, expected)
    with torch.no_grad():  # what is changed later is another model
        for module in checkpoint.model.modules():
            if isinstance(module, StandardisedConv):
                module.weight.square_()
    np.testing.assert_array_equal(before.backend.run(images_BHWC).logits_BK, expected)
    folded = FoldedGraph(hybrid().model, hybrid().preprocess, pixels=True)  # type: ignore[arg-type]
    assert not any(isinstance(module, StandardisedConv) for module in folded.model.modules())


@pytest.mark.parametrize(("made", "free_size"), [("a BiT ResNet", False), ("a BiT ResNet", True), ("a hybrid", False)])
def test_an_exported_graph_holds_the_finished_kernels_and_nothing_that_makes_them(made: str, free_size: bool) -> None:
    checkpoint = MADE[made]()
    config = ExportConfig(dynamic_size=free_size)
    program = traced(Graph(checkpoint, config), config)
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not {name for name in called if "vector_norm" in name or "sqrt" in name or "square" in name or "pow" in name}
    kernels = [convolution.weight for convolution in checkpoint.model.modules() if isinstance(convolution, StandardisedConv)]
    held = [*program.parameters(), *program.buffers(), *program.constants.values()]
    raw = {tuple(tensor.shape) for tensor in held if any(tensor is kernel for kernel in kernels)}
    assert not raw
    images = torch.from_numpy(noise(checkpoint))
    taken = Graph(checkpoint, config).prepare(images)
    with torch.inference_mode():
        close(program.module()(taken).numpy(), TorchBackend(checkpoint.model, checkpoint.preprocess).run(images.numpy()).logits_BK)


def test_graphs_of_other_runtimes_hold_no_standardisation() -> None:
    called = {str(node.target) for node in converted.traced(bit()).graph.nodes if node.op == "call_function"}
    assert any("conv2d" in name for name in called)
    assert not {name for name in called if "sqrt" in name or "square" in name or "pow" in name}


@pytest.mark.parametrize("size", [(3, 3), (9, 12), (114, 115)])
def test_pooling_over_channels_gives_the_same_bits(size: tuple[int, int]) -> None:
    x_BCHW = torch.randn(2, 5, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = max_pool(x_BCHW)
    assert torch.equal(found, F.max_pool2d(x_BCHW, 3, stride=2))
    assert torch.equal(max_pool(x_BCHW.requires_grad_()), found)
    assert found.is_contiguous()
