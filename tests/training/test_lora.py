"""LoRA: updates of low rank beside frozen weights, merged in every model that is saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training.small import last, losses, run_to, same, small_run, without_noise
from vitlab.api import evaluate, finetune, plan, predict
from vitlab.checkpoints import load
from vitlab.config import ViTConfig, variant
from vitlab.config.overrides import Overrides, with_overrides
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_text, to_text
from vitlab.config.swin import SwinConfig
from vitlab.config.train import Average, Lora, LoraTarget, Masked
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, UsageError
from vitlab.models.cost import cost
from vitlab.models.families import build
from vitlab.models.model import Model
from vitlab.training.distributed import World
from vitlab.training.events import Started
from vitlab.training.lora import add_lora, is_factor, merged_state, spared_activations
from vitlab.training.optim import freeze
from vitlab.training.plan import Memory
from vitlab.training.setup import create_state

ALL: tuple[LoraTarget, ...] = ("qkv", "proj", "mlp")
TINY = without_noise(small_run()).model


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that the runs start from."""
    out = tmp_path_factory.mktemp("start")
    run_to(small_run(steps=5), out)
    return out / "model.safetensors"


def lora_run(start: Path, *, steps: int = 6, lora: Lora | None = None) -> RunConfig:
    run = small_run(steps=steps)
    train = replace(run.train, lora=lora or Lora(rank=3), schedule=replace(run.train.schedule, warmup=2))
    return replace(run, start=str(start), train=train)


def adapted(lora: Lora, config: ViTConfig | None = None) -> Model:
    """A model whose factors are all random."""
    model = build(config or TINY, seed=1)
    add_lora(model, lora, seed=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_factor(name) or name.startswith("head."):
                parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(len(name)))
    return model.eval()


def images_of(config: ViTConfig, count: int = 3) -> Tensor:
    return torch.randn(count, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("targets", [("q", "v"), ("k",), ALL, ("mlp",)])
def test_before_the_first_step_the_model_is_the_checkpoint(targets: tuple[LoraTarget, ...]) -> None:
    assert isinstance(TINY, ViTConfig)
    plain, updated = build(TINY, seed=1).eval(), build(TINY, seed=1).eval()
    add_lora(updated, Lora(rank=2, targets=targets), seed=0)
    images_BCHW = images_of(TINY)
    assert torch.equal(plain.features(images_BCHW), updated.features(images_BCHW))


@pytest.mark.parametrize("targets", [("q", "v"), ("k", "proj"), ALL])
def test_a_merged_model_gives_the_logits_of_the_one_with_factors(targets: tuple[LoraTarget, ...]) -> None:
    assert isinstance(TINY, ViTConfig)
    model, merged = adapted(Lora(rank=2, targets=targets)), build(TINY).eval()
    merged.load_state_dict(merged_state(model), strict=True)
    images_BCHW = images_of(TINY)
    with torch.inference_mode():
        expected, found = model(images_BCHW), merged(images_BCHW)
        unchanged = build(TINY, seed=1).eval().features(images_BCHW)
        assert not torch.allclose(model.features(images_BCHW), unchanged, atol=0.1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_merged_weight_is_w_plus_alpha_over_rank_times_b_a_in_the_rows_of_its_target() -> None:
    lora = Lora(rank=2, alpha=5.0, targets=("q", "v"))
    model, before = adapted(lora), build(TINY, seed=1).state_dict()
    name, width = "encoder.blocks.0.attention.qkv.weight", 32
    change_OI = merged_state(model)[name] - before[name]
    state = model.state_dict()
    for part, rows in enumerate((slice(0, width), slice(2 * width, 3 * width))):
        inside = f"encoder.blocks.0.attention.qkv.parametrizations.weight.{part}."
        torch.testing.assert_close(change_OI[rows], 2.5 * state[f"{inside}up_OR"] @ state[f"{inside}down_RI"], rtol=0, atol=1e-5)
    assert torch.count_nonzero(change_OI[width : 2 * width]) == 0  # keys
    assert all(
        torch.equal(tensor, before[key]) for key, tensor in merged_state(model).items() if "qkv" not in key and "head" not in key
    )


def test_grouped_keys_and_values_have_rows_of_their_own_height() -> None:
    assert isinstance(TINY, ViTConfig)
    config = replace(TINY, projections=replace(TINY.projections, kv_heads=(1,) * TINY.layers))
    model = adapted(Lora(rank=2, targets=("v",)), config)
    up_OR = model.state_dict()["encoder.blocks.0.attention.qkv.parametrizations.weight.0.up_OR"]
    assert len(up_OR) == 16
    merged = build(config).eval()
    merged.load_state_dict(merged_state(model), strict=True)
    torch.testing.assert_close(merged(images_of(config)), model(images_of(config)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("lora", [Lora(rank=3), Lora(rank=2, targets=ALL)], ids=["q,v", "all"])
@pytest.mark.parametrize("averaged", [True, False])
def test_a_run_that_is_stopped_and_resumed_ends_bit_for_bit_like_an_uninterrupted_one(
    lora: Lora, averaged: bool, start: Path, tmp_path: Path
) -> None:
    run = lora_run(start, lora=lora)
    run = run if averaged else replace(run, train=replace(run.train, average=Average()))
    whole = run_to(run, tmp_path / "whole")
    first = run_to(run, tmp_path / "parts", stop=3)
    second = run_to(run, tmp_path / "parts")
    assert losses(first) + losses(second) == losses(whole)
    assert len(losses(whole)) == 6
    one, other = last(tmp_path / "whole"), last(tmp_path / "parts")
    assert same(one, other)
    assert one.extra.keys() == other.extra.keys()
    assert all(torch.equal(tensor, other.extra[name]) for name, tensor in one.extra.items())
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == (tmp_path / "parts" / "model.safetensors").read_bytes()


def test_only_factors_and_the_head_train_and_have_an_optimizer_state(start: Path, tmp_path: Path) -> None:
    run = lora_run(start)
    events = run_to(run, tmp_path)
    snapshot, before = last(tmp_path), load(start).model.state_dict()
    moved = {name for name, tensor in snapshot.model.items() if not torch.equal(tensor, before[name])}
    layers = {f"encoder.blocks.{block}.attention.qkv.weight" for block in range(2)}
    assert moved == layers | {"head.weight", "head.bias"}
    trained = {key.rpartition("/")[0] for key in snapshot.optimizer}
    assert all(is_factor(name) or name.startswith("head.") for name in trained)
    assert len(trained) == 2 * 2 * 2 + 2  # two blocks, q and v, A and B; the head's weight and bias
    started = events[0]
    assert isinstance(started, Started)
    assert started.trainable == 2 * 2 * 3 * (32 + 32) + 4 * 32 + 4
    originals = {name: tensor for name, tensor in snapshot.extra.items() if name.endswith("original")}
    assert len(originals) == 2
    for name, tensor in originals.items():
        plain = name.removeprefix("lora.").replace("parametrizations.weight.original", "weight")
        assert torch.equal(tensor, before[plain])


def test_a_checkpoint_of_the_run_is_its_model_with_the_updates_merged(start: Path, tmp_path: Path) -> None:
    run = lora_run(start)
    run_to(run, tmp_path)
    snapshot = last(tmp_path)
    dataset = open_dataset(run.data.dataset, split="train", rule=run.data.rule)
    state = create_state(run, dataset, World(), last(tmp_path))
    assert isinstance(run.model, ViTConfig)
    images_BCHW = images_of(run.model)
    state.model.eval()
    plain = build(run.model).eval()
    with torch.inference_mode():
        plain.load_state_dict(dict(snapshot.model), strict=True)
        torch.testing.assert_close(plain(images_BCHW), state.core(images_BCHW), rtol=0, atol=1e-5)
        assert snapshot.average is not None
        plain.load_state_dict(dict(snapshot.average), strict=True)
        with state.averaged_weights():
            torch.testing.assert_close(plain(images_BCHW), state.core(images_BCHW), rtol=0, atol=1e-5)
        exported = load(tmp_path / "model.safetensors").model.eval()
        torch.testing.assert_close(exported(images_BCHW), plain(images_BCHW), rtol=0, atol=1e-5)


def test_finetune_takes_lora_and_every_verb_reads_the_model(start: Path, tmp_path: Path) -> None:
    run = finetune(
        "digits",
        start,
        lora=4,
        lora_targets="q,k",
        head="fitted",
        steps=3,
        image_size=16,
        out=tmp_path / "run",
        workers=0,
        quiet=True,
    )
    assert run.config.train.lora == Lora(rank=4, targets=("q", "k"))
    assert any(note.startswith("lora: updates of rank 4 of q, k") for note in run.notes)
    assert evaluate(run, "digits", split="test").top1 > 0
    digits = open_dataset("digits", split="test")
    image = digits.read(0).content
    assert not isinstance(image, bytes)
    assert len(predict(run, image).top(3)) == 3


def test_a_changed_rank_is_refused_on_resume(start: Path, tmp_path: Path) -> None:
    run_to(lora_run(start), tmp_path, stop=2)
    other = lora_run(start, lora=Lora(rank=5))
    with pytest.raises(ConfigError, match=r"lora\.rank"):
        run_to(other, tmp_path)
    with pytest.raises(ConfigError, match="rank and these targets"):
        run_to(other, tmp_path, override=True)


def test_the_config_survives_json_and_old_files_have_no_lora(start: Path) -> None:
    run = lora_run(start, lora=Lora(rank=2, targets=ALL))
    assert from_text(RunConfig, to_text(run)) == run
    old = to_text(small_run())
    assert from_text(RunConfig, old.replace('"lora": null,', "")) == small_run()


def test_what_contradicts_lora_is_refused(start: Path) -> None:
    run = lora_run(start)
    with pytest.raises(ConfigError, match="trainable='head'"):
        replace(run.train, trainable="head")
    with pytest.raises(ConfigError, match="fsdp"):
        replace(run.train, strategy="fsdp")
    with pytest.raises(ConfigError, match="masked"):
        replace(run.train, masked=Masked())
    with pytest.raises(ConfigError, match="at most the model's width"):
        replace(run, train=replace(run.train, lora=Lora(rank=33)))
    convolutional = variant("BiT-R50x1", num_classes=4, channels=1, image_size=run.model.image_size)
    with pytest.raises(ConfigError, match="attention layers"):
        replace(run, model=convolutional)
    with pytest.raises(ConfigError, match="from scratch"):
        with_overrides(replace(run, start=None), Overrides())
    with pytest.raises(ConfigError, match="at least 1"):
        Lora(rank=0)
    with pytest.raises(ConfigError, match="not one of"):
        Lora(rank=4, targets=("qq",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="empty"):
        Lora(rank=4, targets=())


def test_targets_without_a_rank_and_lora_from_scratch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lora_targets"):
        finetune("digits", lora_targets="q", out=tmp_path)
    with pytest.raises(ConfigError, match="from scratch"):
        finetune("digits", lora=8, out=tmp_path)


def test_a_swin_is_adapted_too() -> None:
    config = variant("Swin-T", num_classes=3, image_size=(64, 64))
    assert isinstance(config, SwinConfig)
    config = replace(config, width=12, depths=(1, 1), heads=(2, 4), window=(4, 4))
    model, merged = build(config, seed=1).eval(), build(config).eval()
    add_lora(model, Lora(rank=2, targets=ALL), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_factor(name) or name.startswith("head."):
                parameter.fill_(0.05)
    merged.load_state_dict(merged_state(model), strict=True)
    images_BCHW = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(merged(images_BCHW), model(images_BCHW), rtol=0, atol=1e-5)
    assert sum(is_factor(name) for name, _ in model.named_parameters()) == 2 * (3 + 1 + 2) * 2


def kept_by_autograd(config: ViTConfig, lora: Lora, batch: int) -> int:
    """Numbers that a forward pass saves for the backward pass, parameters aside."""
    model = build(config).train()
    add_lora(model, lora, seed=0)
    freeze(model, replace(small_run().train, lora=lora))
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(batch, config.channels, *config.image_size))
    return sum(storage.nbytes() for storage in kept.values()) // 4


@pytest.mark.parametrize("targets", [("q", "v"), ("proj",), ALL])
def test_what_lora_spares_is_what_autograd_does_not_save(targets: tuple[LoraTarget, ...]) -> None:
    config = variant("ViT-Ti/16", image_size=(64, 64), num_classes=5)
    assert isinstance(config, ViTConfig)
    lora = Lora(rank=4, targets=targets)
    measured = kept_by_autograd(config, lora, 3) - kept_by_autograd(config, lora, 2)
    assert cost(config).training_kept - spared_activations(config, lora) == pytest.approx(measured, rel=0.05)


def test_the_plan_says_what_lora_saves(start: Path) -> None:
    run = lora_run(start)
    with_lora = Memory(run, cost(run.model), 1)
    whole = Memory(replace(run, train=replace(run.train, lora=None)), cost(run.model), 1)
    parts, all_parts = with_lora.parts(4), whole.parts(4)
    assert with_lora.trained == 2 * 2 * 3 * 64 + 4 * 32 + 4
    assert parts.gradients == 4 * with_lora.trained
    assert parts.optimizer == 8 * with_lora.trained
    assert parts.total < all_parts.total
    assert with_lora.checkpoint_bytes < whole.checkpoint_bytes
    made = plan("ViT-B/16", recipe="finetune-cifar10", hardware="A100", devices=1, lora=8, lora_targets=["qkv"])
    assert any("lora trains" in note for note in made.notes)
    assert made.memory[0].optimizer < 0.02 * made.memory[0].weights


def test_a_checkpoint_takes_the_bytes_that_are_planned(start: Path, tmp_path: Path) -> None:
    run = lora_run(start)
    run_to(run, tmp_path, stop=2)
    assert last(tmp_path).bytes == pytest.approx(Memory(run, cost(run.model), 1).checkpoint_bytes, rel=0.02)
