"""Every optimizer, task and setting, a few steps each: it has its effect, and a resumed run equals an uninterrupted one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.small import last, losses, run_to, same, small_run, without_noise
from vitlab.checkpoints import load, save
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config import ViTConfig
from vitlab.config.data import SplitRule
from vitlab.config.overrides import Overrides, with_overrides
from vitlab.config.run import RunConfig
from vitlab.config.train import Average, Distill, DistillKind, Optimizer
from vitlab.data.opening import open_dataset
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.models import build
from vitlab.training.events import Finished, Started, Warned
from vitlab.training.run_folder import RunDirectory


def six() -> RunConfig:
    """Six steps, the third of which ends in mid-epoch, three micro-batches each, with dropout, mixup and averaging."""
    run = small_run(steps=6)
    return replace(run, train=replace(run.train, evaluate_every=3))


def training(run: RunConfig, **changes: object) -> RunConfig:
    return replace(run, train=replace(run.train, **changes))  # type: ignore[arg-type]


def loading(run: RunConfig, **changes: object) -> RunConfig:
    return replace(run, data=replace(run.data, loader=replace(run.data.loader, **changes)))  # type: ignore[arg-type]


def augmenting(run: RunConfig, **changes: object) -> RunConfig:
    return replace(run, data=replace(run.data, augment=replace(run.data.augment, **changes)))  # type: ignore[arg-type]


def with_token(run: RunConfig) -> RunConfig:
    assert isinstance(run.model, ViTConfig)
    return replace(run, model=replace(run.model, distill_token=True))


def uneven(run: RunConfig) -> RunConfig:
    """Some classes are sampled more often than others, and the loss weights them down."""
    return training(loading(run, class_weights=(1.0, 2.0, 3.0, 0.5), balance=0.5), balanced_loss=True)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialised checkpoint with the same classes."""
    path = tmp_path_factory.mktemp("teacher") / "teacher.safetensors"
    run = small_run()
    labels = open_dataset(run.data.dataset, split="all", rule=run.data.rule).labels
    made = Checkpoint(model=build(run.model, seed=9), config=run.model, preprocess=run.preprocess, labels=labels)
    with torch.no_grad():
        made.model.get_parameter("head.weight").normal_(generator=torch.Generator().manual_seed(1))  # else its logits are all zero
    save(made, path)
    return path


VARIANTS: dict[str, Callable[[RunConfig, str], RunConfig]] = {
    "sgd": lambda run, _: training(run, optimizer=Optimizer(kind="sgd", lr=0.05)),
    "muon": lambda run, _: training(run, optimizer=Optimizer(kind="muon", lr=0.01, weight_decay=0.1)),
    "layer decay": lambda run, _: training(run, optimizer=Optimizer(lr=1e-3, layer_decay=0.7)),
    "head alone": lambda run, _: training(run, trainable="head"),
    "last block": lambda run, _: training(run, trainable="last-blocks", blocks=1),
    "cutmix": lambda run, _: augmenting(run, mixup=0.2, cutmix=0.5),
    "uneven classes": lambda run, _: uneven(run),
    "sigmoid": lambda run, _: training(run, loss="sigmoid", smoothing=0.1),
    "recompute": lambda run, _: training(run, recompute=True),
    "bfloat16": lambda run, _: training(run, precision="bfloat16"),
    "no average": lambda run, _: training(run, average=Average()),
    "two workers": lambda run, _: loading(run, workers=2, worker_kind="thread"),
    "repeats": lambda run, _: loading(run, repeats=2),
    "hard teacher": lambda run, path: training(run, distill=Distill(teacher=path, distill="hard")),
    "soft teacher": lambda run, path: training(run, distill=Distill(teacher=path, distill="soft")),
    "without forgetting": lambda run, path: replace(run, start=path, train=replace(run.train, lwf=0.5)),
    "teacher's token": lambda run, path: training(with_token(run), distill=Distill(teacher=path)),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_steps_and_three_more_after_a_stop_are_six(variant: str, teacher: Path, tmp_path: Path) -> None:
    """Weights, optimizer, average and every loss, to the bit."""
    run = VARIANTS[variant](six(), str(teacher))
    whole = run_to(run, tmp_path / "whole")
    first = run_to(run, tmp_path / "parts", stop=3)
    second = run_to(run, tmp_path / "parts")
    assert same(last(tmp_path / "whole"), last(tmp_path / "parts"))
    assert losses(first) + losses(second) == losses(whole)
    assert len(losses(whole)) == 6


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    run_to(small_run(), out)
    return out


@pytest.mark.parametrize("stop", [7, 14, 19])  # in mid-epoch, and of 64 images in batches of 12, where epochs end inside a batch
def test_a_run_may_resume_with_another_number_of_workers(stop: int, uninterrupted: Path, tmp_path: Path) -> None:
    """Stopped with one worker, resumed with two."""
    run = small_run()
    run_to(loading(run, workers=1, worker_kind="thread"), tmp_path / "parts", stop=stop)
    run_to(loading(run, workers=2, worker_kind="thread"), tmp_path / "parts")
    assert same(last(uninterrupted), last(tmp_path / "parts"))


def changed(run: RunConfig, out: Path) -> set[str]:
    """The names of the parameters that a run changed."""
    run_to(run, out)
    before, after = build(run.model, seed=run.train.seed).state_dict(), last(out).model
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_frozen_parameters_do_not_change(tmp_path: Path) -> None:
    assert changed(VARIANTS["head alone"](six(), ""), tmp_path / "head") == {"head.weight", "head.bias"}
    moved = changed(VARIANTS["last block"](six(), ""), tmp_path / "last")
    assert any(name.startswith("encoder.blocks.1.") for name in moved)
    assert not any(name.startswith(("encoder.blocks.0.", "patches.", "class_token", "position.")) for name in moved)
    started = run_to(VARIANTS["head alone"](six(), ""), tmp_path / "again", stop=1)[0]
    assert isinstance(started, Started)
    assert started.trainable == 4 * 32 + 4 < started.parameters


def test_recomputed_activations_give_the_same_losses(tmp_path: Path) -> None:
    still = without_noise(six())
    once, twice = run_to(still, tmp_path / "once"), run_to(training(still, recompute=True), tmp_path / "twice")
    assert [loss for _, loss in losses(once)] == pytest.approx([loss for _, loss in losses(twice)], abs=1e-6)


def test_bfloat16_stays_near_float32_and_the_weights_stay_float32(tmp_path: Path) -> None:
    still = without_noise(six())
    full, half = run_to(still, tmp_path / "full"), run_to(training(still, precision="bfloat16"), tmp_path / "half")
    assert [loss for _, loss in losses(full)] == pytest.approx([loss for _, loss in losses(half)], abs=0.03)
    assert losses(full) != losses(half)
    assert {tensor.dtype for tensor in last(tmp_path / "half").model.values()} == {torch.float32}


@pytest.mark.parametrize("distill", ["hard", "soft"])
def test_a_student_that_learns_from_its_teacher_alone_approaches_it(distill: DistillKind, teacher: Path, tmp_path: Path) -> None:
    run = augmenting(without_noise(small_run(steps=60)), mixup=0.0)
    taught = training(
        run,
        distill=Distill(teacher=str(teacher), distill=distill, weight=1.0),
        optimizer=Optimizer(lr=3e-3),
        average=Average(),
        save_every=0,
        evaluate_every=0,
        micro_batch=0,
    )
    found = [loss for _, loss in losses(run_to(taught, tmp_path / "run"))]
    assert sum(found[-10:]) < 0.7 * sum(found[:10])


def test_the_distillation_token_learns_from_the_teacher_alone(teacher: Path, tmp_path: Path) -> None:
    """With all weight on the teacher, the head that learns from labels does not change."""
    run = training(VARIANTS["teacher's token"](six(), str(teacher)), distill=Distill(teacher=str(teacher), weight=1.0))
    run = training(run, optimizer=Optimizer(lr=1e-3), average=Average())
    moved = changed(run, tmp_path / "run")
    assert {"distill_head.weight", "distill_token"} <= moved
    assert not {"head.weight", "head.bias"} & moved


@pytest.mark.parametrize("pixels", [16, 24, 32])
def test_a_model_fine_tuned_at_a_larger_size_is_evaluated_at_any_size(pixels: int, tmp_path: Path, tuned: Path) -> None:
    """Pre-trained at 16 pixels, fine-tuned at 24: its position embeddings are interpolated once more for another size."""
    checkpoint = load(tuned, image_size=(pixels, pixels))
    assert isinstance(checkpoint.config, ViTConfig)
    assert checkpoint.config.grid == (pixels // 4, pixels // 4)
    assert any("position" in note for note in checkpoint.history) or pixels == 24
    dataset = open_dataset(small_run().data.dataset, split="val", rule=SplitRule(val=0.25, test=0.25))
    targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
    result = evaluate(checkpoint, dataset, targets).result
    assert isinstance(result, Classification)
    assert result.images == len(dataset) == 16
    if pixels == 24:  # what the run itself measured, with the same weights and images
        (found,) = [event["metrics"] for event in RunDirectory(tuned.parent).events() if event["event"] == "evaluated"]
        assert isinstance(found, dict)
        assert result.loss == pytest.approx(found["loss"], abs=1e-5)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model pre-trained at one size and fine-tuned at a larger one, as in app. B.1.1."""
    folder = tmp_path_factory.mktemp("sizes")
    before = training(six(), evaluate_every=0)
    run_to(before, folder / "small")
    larger = with_overrides(before, Overrides(image_size=(24, 24)))
    tuning = training(larger, optimizer=Optimizer(kind="sgd", lr=0.01))
    run = replace(tuning, start=str(folder / "small" / "model.safetensors"))
    (started, *_) = run_to(run, folder / "large")
    assert isinstance(started, Started)
    assert any("position" in note for note in started.notes)
    return folder / "large" / "model.safetensors"


def test_a_compiled_model_takes_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both passes are traced by the compiler and run as traced; what makes kernels of them is torch's, and takes half a minute."""
    compiled_with, compile_module = list[str](), nn.Module.compile

    def traced(self: nn.Module) -> None:
        compiled_with.append(type(self).__name__)
        compile_module(self, backend="aot_eager")

    monkeypatch.setattr(nn.Module, "compile", traced)
    still = without_noise(small_run(steps=5))
    still = training(still, save_every=0, evaluate_every=0, micro_batch=0)
    assert isinstance(still.model, ViTConfig)
    still = replace(still, model=replace(still.model, depth=1), data=replace(still.data, evaluate_split=None))
    eager, compiled = run_to(still, tmp_path / "eager"), run_to(training(still, compile=True), tmp_path / "compiled")
    assert [loss for _, loss in losses(eager)] == pytest.approx([loss for _, loss in losses(compiled)], abs=1e-5)
    assert last(tmp_path / "compiled").model.keys() == last(tmp_path / "eager").model.keys()
    assert compiled_with == ["ViT"]


def test_patience_ends_a_run_that_no_longer_improves(tmp_path: Path) -> None:
    run = small_run(steps=200)
    frozen = replace(
        run.train,
        optimizer=replace(run.train.optimizer, lr=1e-12),
        evaluate_every=2,
        patience=3,
        average=replace(run.train.average, decay=0.0),
    )
    events = run_to(replace(run, train=frozen), tmp_path / "run")
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "patience"
    assert events[-1].step < 20
    assert not any(isinstance(event, Warned) for event in events)
