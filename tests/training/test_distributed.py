"""Two ranks under torchrun make the same run as one process, with DDP and FSDP, and resume it.

One pair of processes makes all the runs that end well: starting them takes longer than the runs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import processes
from tests.data.box_images import write_boxes
from tests.data.mask_images import write_folder
from tests.training.small import last, run_to, small_run, without_noise
from tests.warm import torchrun
from vitlab.checkpoints import describe, load, save
from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config import ConvStem, GridDetectorConfig, SegmenterConfig, ViTConfig, variant
from vitlab.config.data import Augment, Preprocess
from vitlab.config.run import RunConfig
from vitlab.config.serialize import to_json
from vitlab.config.train import Distill, Masked, Optimizer, Precision, Strategy
from vitlab.config.vit import Position
from vitlab.config.vit_parts import RelativeBias, Rotary
from vitlab.errors import CheckpointError, ConfigError
from vitlab.models import build
from vitlab.models.batch_norm import STATISTICS
from vitlab.models.flexible import FlexibleViT
from vitlab.training.checkpointing import read_snapshot
from vitlab.training.distributed import World, shard_size
from vitlab.training.run_folder import RunDirectory
from vitlab.training.step import Snapshot


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run for the ranks: its folder, and after which step it is stopped or rank 1 fails."""

    run: RunConfig
    out: Path
    stop: int | None = None
    fault: str | None = None
    at: int = 0

    def output(self) -> dict[str, object]:
        """As rank.py reads it."""
        return {"run": to_json(self.run), "out": str(self.out), "stop": self.stop, "fault": self.fault, "at": self.at}


@dataclass(kw_only=True)
class Session:
    """What a pair of ranks did: the folder of its runs, and the last line of each run, by rank."""

    folder: Path
    ended: dict[tuple[int, str], str] = field(default_factory=dict)


def even(*, steps: int = 8) -> RunConfig:
    """A run without dropout whose ranks have an even number of images, so that mixup pairs do not cross ranks."""
    run = without_noise(small_run(steps=steps))
    return replace(run, train=replace(run.train, micro_batch=3))


def by(run: RunConfig, strategy: Strategy, precision: Precision = "float32") -> RunConfig:
    return replace(run, train=replace(run.train, strategy=strategy, precision=precision))


def adam(run: RunConfig) -> RunConfig:
    return replace(run, train=replace(run.train, optimizer=Optimizer(lr=1e-3)))


def muon(run: RunConfig) -> RunConfig:
    return replace(run, train=replace(run.train, optimizer=Optimizer(kind="muon", lr=0.01, weight_decay=0.1)))


def masked(run: RunConfig) -> RunConfig:
    augment = replace(run.data.augment, mixup=0.0)
    return replace(run, data=replace(run.data, augment=augment), train=replace(run.train, masked=Masked(target="pixels")))


def distilled(run: RunConfig, teacher: Path) -> RunConfig:
    assert isinstance(run.model, ViTConfig)
    return replace(
        run, model=replace(run.model, distill_token=True), train=replace(run.train, distill=Distill(teacher=str(teacher)))
    )


def keeping(run: RunConfig, start: Path) -> RunConfig:
    return replace(run, start=str(start), train=replace(run.train, lwf=0.5))


def frugal(run: RunConfig) -> RunConfig:
    return replace(run, train=replace(run.train, strategy="fsdp", offload="cpu", recompute=True))


def uneven(run: RunConfig, strategy: Strategy) -> RunConfig:
    """A batch of 10 for two ranks: with mixup, whose pairs stay together, 4 and 6 rows; without, 5 and 5, or 3 and 4 of 7."""
    size = 10 if run.data.augment.mixup else 7
    return by(replace(run, data=replace(run.data, loader=replace(run.data.loader, batch_size=size))), strategy)


POSITIONS = {  # of later families: parameters outside of the layers that read them
    "mixed-rotary": Position(rotary=Rotary(kind="mixed", temperature=10.0, columns_first=True)),
    "axial-rotary": Position(kind="none", rotary=Rotary()),
    "relative-bias": Position(kind="none", bias=RelativeBias()),
    "shared-bias": Position(bias=RelativeBias(kind="mlp", shared=True, hidden=16)),
}


def batch_norm(run: RunConfig) -> RunConfig:
    """With a conv stem, and micro-batches that are the parts of two ranks: BatchNorm normalises each by itself."""
    assert isinstance(run.model, ViTConfig)
    model = replace(run.model, conv_stem=ConvStem(widths=(10,), units=(2,), norm="batch"), patch_size=(2, 2))
    return replace(run, model=model, train=replace(run.train, micro_batch=6))


def placed(run: RunConfig, position: Position) -> RunConfig:
    assert isinstance(run.model, ViTConfig)
    return replace(run, model=replace(run.model, position=position))


def flexible(run: RunConfig) -> RunConfig:
    """Each step at one of three patch sizes."""
    return replace(run, train=replace(run.train, patch_sizes=((2, 2), (4, 4), (8, 4))))


def segmented(data: Path) -> RunConfig:
    """A segmenter on shapes in batches of 12, with Dice and a mask transformer on two layers."""
    run, size = even(steps=5), (16, 24)
    assert isinstance(run.model, ViTConfig)
    return replace(
        run,
        model=SegmenterConfig(
            backbone=replace(run.model, num_classes=0),
            image_size=size,
            num_classes=3,
            decoder="mask-transformer",
            decoder_depth=1,
            decoder_heads=2,
            layers=(0, run.model.layers - 1),
        ),
        preprocess=Preprocess(image_size=size, resize="squash", mean=(0.5,) * 3, std=(0.5,) * 3),
        data=replace(run.data, dataset=str(data), augment=Augment(image_size=size)),
        train=replace(run.train, dice=0.5, evaluate_every=5),
    )


def detected(data: Path) -> RunConfig:
    """A grid detector on shapes in batches of 12."""
    run, size = even(steps=5), (16, 24)
    assert isinstance(run.model, ViTConfig)
    return replace(
        run,
        model=GridDetectorConfig(backbone=replace(run.model, num_classes=0), image_size=size, num_classes=2, head_width=16),
        preprocess=Preprocess(image_size=size, resize="squash", mean=(0.5,) * 3, std=(0.5,) * 3),
        data=replace(run.data, dataset=str(data), augment=Augment(image_size=size, area=(0.5, 1.0))),
        train=replace(run.train, evaluate_every=5),
    )


@contextmanager
def two_ranks(jobs: list[Job], folder: Path, warm: Path) -> Iterator[subprocess.Popen[str]]:
    (folder / "jobs.json").write_text(json.dumps([job.output() for job in jobs]))
    words = torchrun(warm, Path(__file__).with_name("rank.py"), folder / "jobs.json")
    with processes.started(words, env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}) as process:
        yield process


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, warm: Path) -> Session:
    """The complete runs of two ranks, all made by one pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    teacher = folder / "teacher.safetensors"
    run = small_run()
    save(Checkpoint(model=build(run.model, seed=3), config=run.model, preprocess=run.preprocess), teacher)
    run_to(even(steps=9), folder / "there-and-back", stop=3)
    run_to(adam(even(steps=6)), folder / "one-to-parts", stop=2)
    shapes = write_folder(folder / "shapes", counts={"train": 14, "val": 3})
    (folder / "boxes").mkdir()
    boxes = write_boxes(folder / "boxes", counts={"train": 14, "val": 3})
    jobs = [
        Job(run=by(even(), "ddp"), out=folder / "ddp"),
        Job(run=by(even(), "fsdp"), out=folder / "fsdp"),
        Job(run=by(even(steps=9), "ddp"), out=folder / "there-and-back", stop=6),
        Job(run=by(adam(even(steps=6)), "fsdp"), out=folder / "one-to-parts", stop=4),
        Job(run=by(even(steps=6), "fsdp"), out=folder / "stopped", stop=3),
        Job(run=by(even(steps=6), "fsdp"), out=folder / "stopped"),
        Job(run=by(even(), "fsdp", "bfloat16"), out=folder / "fsdp-bfloat16"),
        Job(run=by(masked(even(steps=5)), "fsdp"), out=folder / "masked"),
        Job(run=by(distilled(even(steps=5), teacher), "fsdp"), out=folder / "distilled"),
        *(Job(run=by(keeping(even(steps=5), teacher), way), out=folder / f"keeping-{way}") for way in ("ddp", "fsdp")),
        Job(run=by(muon(even(steps=5)), "fsdp"), out=folder / "muon"),
        *(Job(run=by(batch_norm(even(steps=5)), way), out=folder / f"batch-norm-{way}") for way in ("ddp", "fsdp")),
        Job(run=frugal(even()), out=folder / "frugal"),
        Job(run=uneven(even(steps=5), "ddp"), out=folder / "uneven-ddp"),
        Job(run=uneven(masked(even(steps=5)), "fsdp"), out=folder / "uneven-masked"),
        *(Job(run=by(placed(even(steps=5), way), "fsdp"), out=folder / name) for name, way in POSITIONS.items()),
        Job(run=by(placed(even(steps=5), POSITIONS["relative-bias"]), "ddp"), out=folder / "relative-bias-ddp"),
        *(Job(run=by(flexible(even(steps=6)), way), out=folder / f"flexible-{way}") for way in ("ddp", "fsdp")),
        *(Job(run=by(segmented(shapes), way), out=folder / f"segmented-{way}") for way in ("ddp", "fsdp")),
        *(Job(run=by(detected(boxes), way), out=folder / f"detected-{way}") for way in ("ddp", "fsdp")),
        Job(run=by(even(steps=9), "fsdp"), out=folder / "full-disk", fault="full-disk", at=4),
        Job(run=by(even(steps=9), "ddp"), out=folder / "ddp"),  # with another number of steps than before
    ]
    with two_ranks(jobs, folder, warm) as process:
        out, said = process.communicate(timeout=processes.LIMIT)
    assert process.returncode == 0, said
    done = Session(folder=folder)
    for line in out.splitlines():
        _, rank, kind, name, *rest = line.split(maxsplit=4)
        if kind in ("done", "failed"):
            done.ended[int(rank), name] = " ".join((kind, *rest))
    return done


def near(one: Snapshot, other: Snapshot, *, within: float = 1e-4) -> None:
    for name, tensor in one.model.items():
        torch.testing.assert_close(tensor, other.model[name], atol=within, rtol=0)


def losses_of(out: Path) -> list[float]:
    events = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "stepped"]


def metrics_of(out: Path) -> dict[str, float]:
    """Of the evaluation at the end."""
    events = map(json.loads, (out / "events.jsonl").read_text().splitlines())
    return next(event["metrics"] for event in events if event["event"] == "finished")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process, for comparison."""
    out = tmp_path_factory.mktemp("alone") / "run"
    run_to(even(), out)
    return out


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_make_the_same_run_as_one(strategy: str, session: Session, alone: Path) -> None:
    assert losses_of(session.folder / strategy) == pytest.approx(losses_of(alone), abs=1e-5)
    near(last(session.folder / strategy), last(alone))


def test_two_ranks_draw_the_patch_sizes_of_one_process(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that drew another size would have another loss: the three sizes give three losses for the same images."""
    drawn, forward = set[tuple[int, int] | None](), FlexibleViT.forward

    def noted(self: FlexibleViT, images_BCHW: Tensor, size: tuple[int, int] | None = None) -> object:
        drawn.add(size)
        return forward(self, images_BCHW, size)

    monkeypatch.setattr(FlexibleViT, "forward", noted)
    run_to(flexible(even(steps=6)), tmp_path / "alone")
    assert drawn - {None} == {(2, 2), (4, 4), (8, 4)}
    for strategy in ("ddp", "fsdp"):
        out = session.folder / f"flexible-{strategy}"
        assert losses_of(out) == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)
        near(last(out), last(tmp_path / "alone"))


def test_two_ranks_train_a_segmenter_as_one_process_does(session: Session, tmp_path: Path) -> None:
    run_to(segmented(session.folder / "shapes"), tmp_path / "alone")
    wanted, metrics = losses_of(tmp_path / "alone"), metrics_of(tmp_path / "alone")
    assert wanted[-1] < wanted[0]
    for strategy in ("ddp", "fsdp"):
        out = session.folder / f"segmented-{strategy}"
        assert losses_of(out) == pytest.approx(wanted, abs=1e-4)
        near(last(out), last(tmp_path / "alone"))
        assert metrics_of(out) == pytest.approx(metrics, abs=2e-3)  # a pixel on the edge of two classes may round otherwise


def test_two_ranks_train_a_detector_as_one_process_does(session: Session, tmp_path: Path) -> None:
    run_to(detected(session.folder / "boxes"), tmp_path / "alone")
    wanted, metrics = losses_of(tmp_path / "alone"), metrics_of(tmp_path / "alone")
    for strategy in ("ddp", "fsdp"):
        out = session.folder / f"detected-{strategy}"
        assert losses_of(out) == pytest.approx(wanted, abs=1e-4)
        near(last(out), last(tmp_path / "alone"))
        assert metrics_of(out)["loss"] == pytest.approx(metrics["loss"], abs=1e-3)


def test_one_rank_resumes_the_run_of_two_and_two_that_of_one(session: Session, tmp_path: Path) -> None:
    out = session.folder / "there-and-back"
    assert last(out).progress.step == 6
    run_to(even(steps=9), out)
    run_to(even(steps=9), tmp_path / "alone")
    assert losses_of(out) == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)
    near(last(out), last(tmp_path / "alone"))


def test_each_rank_writes_its_rows_and_nothing_is_written_twice(session: Session) -> None:
    folder = RunDirectory(session.folder / "fsdp").step_path(8)
    names = {entry.name for entry in folder.iterdir()}
    kinds = ("model", "average", "optimizer")
    assert names == {"progress.json"} | {f"{kind}-part-{rank}-of-2.safetensors" for kind in kinds for rank in range(2)}
    whole = read_snapshot(folder)
    sizes = [describe_bytes(folder / f"model-part-{rank}-of-2.safetensors") for rank in range(2)]
    assert sum(sizes) == sum(tensor.nbytes for tensor in whole.model.values())
    assert min(sizes) > 0.4 * sum(sizes)


def describe_bytes(path: Path) -> int:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118 (it is no mapping)


def test_the_trained_model_is_one_ordinary_file(session: Session) -> None:
    kept = load(session.folder / "fsdp" / "model.safetensors")
    average = read_snapshot(session.folder / "fsdp" / "last").average
    assert average is not None
    assert all(torch.equal(tensor, average[name]) for name, tensor in kept.model.state_dict().items())


def test_a_folder_of_parts_loads_as_a_checkpoint(session: Session, tmp_path: Path) -> None:
    folder = session.folder / "fsdp" / "last"
    loaded, whole = load(folder), read_snapshot(folder)
    assert all(torch.equal(tensor, whole.model[name]) for name, tensor in loaded.model.state_dict().items())
    assert loaded.labels == whole.facts.labels
    assert "joined from the parts of 2 processes" in loaded.notes
    assert describe(folder).parameters == sum(tensor.numel() for tensor in whole.model.values())
    save(loaded, tmp_path / "one.safetensors")
    assert load(tmp_path / "one.safetensors").config == loaded.config


def test_a_single_part_or_too_few_parts_are_refused_with_a_hint(session: Session, tmp_path: Path) -> None:
    folder = RunDirectory(session.folder / "fsdp").step_path(8)
    with pytest.raises(CheckpointError, match=r"is part 1 of 2 of a checkpoint .*give the folder"):
        load(folder / "model-part-1-of-2.safetensors")
    for name in ("model-part-0-of-2.safetensors", "progress.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(CheckpointError, match="of 2 parts of model, 1 missing"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match=r"missing or changed"):
        read_snapshot(tmp_path)
    (tmp_path / "model-part-1-of-2.safetensors").write_bytes((folder / "model-part-0-of-2.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"is part 0 of 2"):
        load(tmp_path)


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_part_is_refused_and_the_previous_checkpoint_is_used(damage: str, session: Session, tmp_path: Path) -> None:
    folder = RunDirectory(session.folder / "fsdp").step_path(8)
    for path in folder.iterdir():
        content = path.read_bytes()
        if path.name == "optimizer-part-1-of-2.safetensors":
            content = content[:-5] if damage == "cut" else content[:-5] + bytes([content[-5] ^ 4]) + content[-4:]
        (tmp_path / path.name).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"optimizer-part-1-of-2\.safetensors missing or changed"):
        read_snapshot(tmp_path)


def test_two_ranks_and_one_resume_from_parts(session: Session, tmp_path: Path) -> None:
    """One process, then two with FSDP, then one again: the same as an uninterrupted run, also AdamW's state and the average."""
    run_to(even(steps=6), tmp_path / "alone")
    near(last(session.folder / "stopped"), last(tmp_path / "alone"))  # two ranks, twice
    out = session.folder / "one-to-parts"
    parts = last(out)
    assert parts.progress.step == 4
    assert not (out / "last" / "model.safetensors").exists()
    run = adam(even(steps=6))
    run_to(run, out)
    assert (out / "last" / "model.safetensors").exists()
    run_to(run, tmp_path / "adam")
    mine, theirs = last(out), last(tmp_path / "adam")
    assert losses_of(out) == pytest.approx(losses_of(tmp_path / "adam"), abs=1e-4)
    assert mine.optimizer.keys() == theirs.optimizer.keys() == parts.optimizer.keys()
    assert all(mine.optimizer[name].shape == parts.optimizer[name].shape for name in mine.optimizer)
    assert float(mine.optimizer["head.weight/step"]) == 6


def test_bfloat16_follows_float32_and_the_weights_stay_float32(session: Session, alone: Path) -> None:
    out = session.folder / "fsdp-bfloat16"
    assert losses_of(out) == pytest.approx(losses_of(alone), abs=0.03)
    assert losses_of(out) != pytest.approx(losses_of(alone), abs=1e-6)
    kept = last(out)
    assert {tensor.dtype for tensor in kept.model.values()} == {torch.float32}
    near(kept, last(alone), within=0.03)


@pytest.mark.parametrize("task", ["masked", "distilled"])
def test_tasks_with_training_only_weights_are_sharded_too(task: str, session: Session, tmp_path: Path) -> None:
    run = masked(even(steps=5)) if task == "masked" else distilled(even(steps=5), session.folder / "teacher.safetensors")
    run_to(run, tmp_path / "alone")
    assert losses_of(session.folder / task) == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)
    mine, theirs = last(session.folder / task), last(tmp_path / "alone")
    near(mine, theirs)
    assert mine.extra.keys() == theirs.extra.keys()


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_learning_without_forgetting_is_the_same_on_two_ranks(way: str, session: Session, tmp_path: Path) -> None:
    run_to(keeping(even(steps=5), session.folder / "teacher.safetensors"), tmp_path / "alone")
    assert losses_of(session.folder / f"keeping-{way}") == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)
    near(last(session.folder / f"keeping-{way}"), last(tmp_path / "alone"))


def test_offloading_and_recomputing_change_no_loss(session: Session, alone: Path) -> None:
    assert losses_of(session.folder / "frugal") == pytest.approx(losses_of(alone), abs=1e-5)
    near(last(session.folder / "frugal"), last(alone))


@pytest.mark.parametrize("name", ["uneven-ddp", "uneven-masked"])
def test_a_batch_that_ranks_cannot_share_equally_gives_the_run_of_one_process(name: str, session: Session, tmp_path: Path) -> None:
    run = even(steps=5) if name == "uneven-ddp" else masked(even(steps=5))
    run_to(uneven(run, "auto"), tmp_path / "alone")
    assert losses_of(session.folder / name) == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)
    near(last(session.folder / name), last(tmp_path / "alone"))


def test_muon_orthogonalises_whole_matrices_though_ranks_hold_parts_of_them(session: Session, tmp_path: Path) -> None:
    run_to(muon(even(steps=5)), tmp_path / "alone")
    assert losses_of(session.folder / "muon") == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-4)


def test_ranks_normalise_their_own_part_of_a_batch_and_share_the_mean_of_their_statistics(session: Session, tmp_path: Path) -> None:
    run_to(batch_norm(even(steps=5)), tmp_path / "alone")
    one = last(tmp_path / "alone")
    for strategy in ("ddp", "fsdp"):
        out = session.folder / f"batch-norm-{strategy}"
        assert losses_of(out) == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)
        two = last(out)
        assert one.model.keys() == two.model.keys()
        for name, tensor in one.model.items():
            if name.endswith(STATISTICS):  # one process counts two micro-batches a step, one after the other
                assert not torch.equal(two.model[name], torch.full_like(tensor, float(name.endswith("var"))))
                torch.testing.assert_close(two.model[name], tensor, atol=0.3, rtol=0)
            else:
                torch.testing.assert_close(two.model[name], tensor, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [*POSITIONS, "relative-bias-ddp"])
def test_rotary_positions_and_biases_are_trained_by_two_ranks_as_by_one(name: str, session: Session, tmp_path: Path) -> None:
    run_to(placed(even(steps=5), POSITIONS[name.removesuffix("-ddp")]), tmp_path / "alone")
    assert losses_of(session.folder / name) == pytest.approx(losses_of(tmp_path / "alone"), abs=1e-5)
    near(last(session.folder / name), last(tmp_path / "alone"))


def test_a_run_that_rank_0_refuses_ends_on_all_ranks(session: Session) -> None:
    for rank in range(2):
        assert "was started with another config: train.steps 8 -> 9" in session.ended[rank, "ddp"]


def test_a_full_disk_on_one_rank_ends_the_run_on_all_and_leaves_the_previous_checkpoint(session: Session) -> None:
    for rank in range(2):
        ended = session.ended[rank, "full-disk"]
        assert ended.startswith("failed cannot write the checkpoint: rank 1: cannot write")
        assert "bytes are needed" in ended
    out = session.folder / "full-disk"
    reached = last(out).progress.step
    assert 3 <= reached < 9
    assert not [path for path in (out / "checkpoints").iterdir() if path.name.startswith(".")]
    run_to(even(steps=9), out)
    assert last(out).progress.step == 9


def test_the_largest_vit_is_sharded_on_the_meta_device() -> None:
    """`fully_shard` itself gives each of 8 ranks an eighth of every layer of a ViT-G/14; nothing is allocated."""
    config = variant("ViT-G/14")
    parts = shard_size(config, "bfloat16", ranks=8)
    whole = 1_844_440_680
    assert whole / 8 <= parts.parameters < 1.002 * whole / 8
    assert parts.gathered < whole / 20  # two layers of 48 and what belongs to none
    assert not torch.distributed.is_initialized()


def test_uneven_rows_are_counted_as_torch_shards_them() -> None:
    config = small_run().model
    assert shard_size(config, "float32", ranks=1).parameters == sum(parameter.numel() for parameter in build(config).parameters())
    eight = shard_size(config, "float32", ranks=8)
    rows = sum(-(-len(parameter) // 8) * parameter[0].numel() for parameter in build(config).parameters())
    assert eight.parameters == rows


def test_a_shard_size_is_computed_before_the_process_group_exists() -> None:
    torch.distributed.init_process_group("fake", rank=0, world_size=2)
    try:
        with pytest.raises(ConfigError, match="before the process group"):
            shard_size(small_run().model, "float32", ranks=2)
    finally:
        torch.distributed.destroy_process_group()


def test_a_world_of_one_sums_and_gathers_itself() -> None:
    alone = World()
    assert alone.is_main
    assert alone.sum(torch.tensor([2.0])).tolist() == [2.0]
    assert alone.gather("a") == ["a"]
    assert alone.any(True)
    assert not alone.any(False)
