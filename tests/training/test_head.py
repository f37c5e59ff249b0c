"""A head fitted to frozen features before the first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vitlab
from tests.data.images import encode, scene
from tests.training.small import last, losses, run_to, same, small_run
from vitlab.checkpoints import load
from vitlab.config import ViTConfig
from vitlab.config.data import SplitRule
from vitlab.config.run import RunConfig
from vitlab.config.train import Distill
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError
from vitlab.evaluation.features import extract_features
from vitlab.models.vit import ViT
from vitlab.training.events import Evaluated, Finished, FittingHead, HeadFitted, Started, Warned
from vitlab.training.setup import fit_head


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of other classes: the checkpoint that the runs start from."""
    run = small_run(steps=5)
    other = run.data.dataset.replace("classes=4", "classes=3")
    out = tmp_path_factory.mktemp("start")
    run_to(replace(run, model=replace(run.model, num_classes=3), data=replace(run.data, dataset=other)), out)
    return out / "model.safetensors"


def fitted_run(start: Path, *, steps: int) -> RunConfig:
    """A run that fits its head first."""
    run = small_run(steps=max(steps, 5))
    schedule = replace(run.train.schedule, warmup=min(steps, 2))
    return replace(run, start=str(start), train=replace(run.train, steps=steps, head="fitted", schedule=schedule))


def test_a_run_of_no_steps_is_the_fitted_head_on_unchanged_features(start: Path, tmp_path: Path) -> None:
    run = fitted_run(start, steps=0)
    events = run_to(run, tmp_path)
    ended = events[-1]
    assert isinstance(ended, Finished)
    assert ended.complete
    fitted = next(event for event in events if isinstance(event, HeadFitted))
    assert sum(isinstance(event, Evaluated) for event in events) == 1
    trained, before = load(tmp_path / "model.safetensors"), load(start)
    dataset = open_dataset(run.data.dataset, split="train", rule=run.data.rule)
    assert fitted.images == len(dataset)
    features = extract_features(trained, dataset)
    again = fit_head(features.features_ND, features.labels_N, names=dataset.labels, seed=run.train.seed)
    state, old = trained.model.state_dict(), before.model.state_dict()
    assert all(torch.equal(tensor, old[name]) for name, tensor in state.items() if not name.startswith("head."))
    torch.testing.assert_close(state["head.weight"], again.weight_CD, rtol=1e-3, atol=1e-4)
    assert torch.count_nonzero(state["head.weight"]) == state["head.weight"].numel()


def test_the_notes_of_a_fitted_head_are_true_of_the_model(start: Path, tmp_path: Path) -> None:
    run = fitted_run(start, steps=0)
    run = replace(run, preprocess=replace(run.preprocess, mean=(0.25,)))
    started = next(event for event in run_to(run, tmp_path) if isinstance(event, Started))
    assert "new head of 4 classes" in started.notes  # and not of zeros
    assert not any("all zeros" in note for note in started.notes)
    assert "preprocessing as given, not as in the file: mean" in started.notes


def test_a_fitted_head_gives_the_logits_of_its_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    labels_N = np.arange(60, dtype=np.int64) % 3
    features_ND = rng.normal(size=(60, 5)).astype(np.float32) + 4 * np.eye(3, 5, dtype=np.float32)[labels_N]
    head = fit_head(features_ND, labels_N, names=("a", "b", "c"), seed=0)
    logits_NC = torch.from_numpy(features_ND) @ head.weight_CD.T + head.bias_C
    assert head.accuracy is not None
    assert (logits_NC.argmax(1) == torch.from_numpy(labels_N)).float().mean() > 0.9


def test_fewer_images_than_can_be_held_out_are_fitted_all_the_same() -> None:
    features_ND = np.eye(4, dtype=np.float32)
    head = fit_head(features_ND, np.arange(4, dtype=np.int64), names=("a", "b", "c", "d"), seed=0)
    logits_NC = torch.from_numpy(features_ND) @ head.weight_CD.T + head.bias_C
    assert head.accuracy is None
    assert logits_NC.argmax(1).tolist() == [0, 1, 2, 3]


def test_a_run_with_a_fitted_head_resumes_bit_exactly_and_evaluates_the_head_first(start: Path, tmp_path: Path) -> None:
    run = fitted_run(start, steps=6)
    whole = run_to(run, tmp_path / "whole")
    assert [event.step for event in whole if isinstance(event, Evaluated)] == [0, 6]
    first = run_to(run, tmp_path / "parts", stop=3)
    second = run_to(run, tmp_path / "parts")
    assert not any(isinstance(event, FittingHead) for event in second)
    assert losses(first) + losses(second) == losses(whole)
    assert same(last(tmp_path / "whole"), last(tmp_path / "parts"))


def test_a_run_without_forgetting_stays_nearer_to_what_the_checkpoint_said(start: Path, tmp_path: Path) -> None:
    run = fitted_run(start, steps=6)
    run = replace(run, train=replace(run.train, progressive_resizing=((0.0, 0.5), (0.5, 1.0))))
    keeping = replace(run, train=replace(run.train, lwf=2.0))
    free, whole = run_to(run, tmp_path / "free"), run_to(keeping, tmp_path / "whole")
    (_, free_loss), (_, keeping_loss) = losses(free)[0], losses(whole)[0]
    assert free_loss == pytest.approx(keeping_loss, rel=1e-3)  # nothing is forgotten before the first update, but for dropout
    assert losses(free)[-1] < losses(whole)[-1]
    before = load(start).model
    assert isinstance(before, ViT)
    assert before.head is not None
    images = torch.rand(8, run.model.channels, *run.model.image_size, generator=torch.Generator().manual_seed(1))

    def forgotten(name: str, head: nn.Module = before.head) -> float:
        """Divergence of the old head's probabilities on the trained features from those on the old ones."""
        with torch.no_grad():
            now = head(load(tmp_path / name / "model.safetensors").model.features(images))
            return float(F.kl_div(now.log_softmax(-1), before(images).log_softmax(-1), log_target=True, reduction="batchmean"))

    assert forgotten("whole") < forgotten("free")


def test_learning_without_forgetting_needs_a_checkpoint_with_classes_and_a_vit_with_one_head(start: Path, tmp_path: Path) -> None:
    run = fitted_run(start, steps=6)
    keeping = replace(run, train=replace(run.train, lwf=1.0))
    with pytest.raises(ConfigError, match="needs one"):
        replace(keeping, start=None, train=replace(keeping.train, head="zero"))
    with pytest.raises(ConfigError, match="one head"):
        replace(keeping, model=replace(keeping.model, pool="token", distill_token=True))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="excludes a teacher"):
        replace(keeping.train, distill=Distill(teacher=str(start)))
    headless = tmp_path / "headless.safetensors"
    vitlab.save(load(start, num_classes=0), headless)
    with pytest.raises(ConfigError, match="has none"):
        run_to(replace(keeping, start=str(headless)), tmp_path / "run")


def test_with_a_time_budget_steps_that_make_the_head_worse_are_not_kept(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_to(fitted_run(start, steps=0), tmp_path / "head")
    falling = iter([0.9, 0.5])
    monkeypatch.setattr("vitlab.training.trainer.evaluate", lambda state, loader, control: {"loss": 1.0, "top1": next(falling)})
    run = fitted_run(start, steps=6)
    events = run_to(replace(run, train=replace(run.train, minutes=1.0)), tmp_path / "run")
    ended = events[-1]
    assert isinstance(ended, Finished)
    assert ended.metrics["top1"] == 0.9
    assert any("step 0" in event.message for event in events if isinstance(event, Warned))
    kept, head = (load(tmp_path / name / "model.safetensors").model.state_dict() for name in ("run", "head"))
    assert all(torch.equal(kept[name], tensor) for name, tensor in head.items())


def test_both_heads_of_a_distilled_model_are_fitted(tmp_path: Path) -> None:
    run = small_run(steps=5)
    assert isinstance(run.model, ViTConfig)
    distilled = replace(run.model, distill_token=True)
    other = replace(run, model=replace(distilled, num_classes=3))
    other = replace(other, data=replace(run.data, dataset=run.data.dataset.replace("classes=4", "classes=3")))
    run_to(other, tmp_path / "start")
    fitted = replace(fitted_run(tmp_path / "start" / "model.safetensors", steps=0), model=distilled)
    run_to(fitted, tmp_path / "fitted")
    state = load(tmp_path / "fitted" / "model.safetensors").model.state_dict()
    assert torch.equal(state["head.weight"], state["distill_head.weight"])
    assert state["head.weight"].abs().sum() > 0


def test_a_fitted_head_needs_a_checkpoint_and_one_label_an_image(start: Path) -> None:
    run = fitted_run(start, steps=3)
    with pytest.raises(ConfigError, match="from scratch"):
        replace(run, start=None)
    with pytest.raises(ConfigError, match="one label"):
        replace(run.train, loss="sigmoid")
    with pytest.raises(ConfigError, match="fsdp"):
        replace(run.train, strategy="fsdp")
    with pytest.raises(ConfigError, match="steps"):
        replace(run.train, head="zero", steps=0)


@pytest.mark.parametrize("steps", [0, 6])
def test_an_image_that_the_fitted_head_could_not_read_is_named_once(steps: int, start: Path, tmp_path: Path) -> None:
    for index in range(12):
        file = tmp_path / "data" / f"class {index % 4}" / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode(scene(16, 16, seed=index), "PNG"))
    (tmp_path / "data" / "class 0" / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    run = fitted_run(start, steps=steps)
    loader = replace(run.data.loader, cache="none", corrupt="skip", corrupt_budget=0.5)
    data = replace(run.data, dataset=str(tmp_path / "data"), rule=SplitRule(val=0, test=0), evaluate_split=None, loader=loader)
    events = run_to(replace(run, data=data, train=replace(run.train, evaluate_every=0)), tmp_path / "run")
    assert [event.step for event in events if isinstance(event, Warned) and "cut.png" in event.message] == [0]
