"""Studies are lists of runs and a verdict: the runs differ as they should, and the verdict says what the results bear."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import processes
from tests.studies.test_protocol import write_data
from tests.studies.test_study import jobs as small_jobs
from vitlab.cli.main import main
from vitlab.config.published import TABLE_8
from vitlab.config.serialize import Json
from vitlab.config.vit import ViTConfig
from vitlab.errors import ConfigError, TrainingError
from vitlab.io.display import silent
from vitlab.models.cost import cost
from vitlab.studies import ablations
from vitlab.studies.ablations import BASE, CELLS, VARIANTS, optimizer, positions, self_supervision, shape
from vitlab.studies.protocol import MODELS, PackPlan, StudyPlan
from vitlab.studies.scaling import ScalingPlan, scaling
from vitlab.studies.study import Job, Study, Verdict, run_study
from vitlab.studies.transfer import transfer

Accuracy = Callable[[Job], float]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> PackPlan:
    return PackPlan(data=str(write_data(tmp_path_factory.mktemp("data") / "five.npz")), side=32, each=4)


def finished(study: Study, accuracy: Accuracy, *, tested: int = 100_000) -> tuple[Verdict, list[Sequence[Job]]]:
    """The verdict of a study whose runs reach the given accuracies, without training; and all its lists of runs."""
    lists = [next(study)]
    results: dict[str, dict[str, Json]] = {}
    while True:
        for job in lists[-1]:
            counts: Json = {"correct": round(tested * accuracy(job)), "total": tested}
            seen = job.run.train.steps * job.run.data.loader.batch_size
            results[job.name] = {"val": counts, "test": counts, "few_shot": [accuracy(job)] * 20, "seen": seen}
        try:
            lists.append(study.send(results))
        except StopIteration as ended:
            return ended.value, lists


def images_of(job: Job) -> int:
    return int(job.run.data.dataset.rpartition("pretrain-")[2].split("-")[0])


PLAN = ScalingPlan(sizes=(4, 12, 36), models=("ViT 96/8", "ViT 128/8", "BiT 128"), seen=400, seeds=2, steps=2, regularised=4)


def test_all_subsets_are_trained_for_the_same_number_of_images_and_small_ones_also_with_more_regularisation(
    tmp_path: Path, images: PackPlan
) -> None:
    study = scaling(tmp_path, ScalingPlan(images=images, sizes=(8, 20, 36), models=PLAN.models, seen=400, seeds=2, regularised=8))
    jobs = next(study)
    assert len({job.name for job in jobs}) == len(jobs) == 2 * 3 * (3 + 1 + 1)  # seeds, models, subsets, strong, short
    usual = [job for job in jobs if "short" not in job.name]
    assert {abs(job.run.train.steps * job.run.data.loader.batch_size - 400) <= 20 for job in usual} == {True}
    strong = [job for job in jobs if "strong" in job.name]
    assert {images_of(job) for job in strong} == {8}
    assert all(job.run.train.smoothing > 0 and job.run.train.optimizer.weight_decay > 0.1 for job in strong)
    assert all(job.run.train.patience for job in jobs)  # the best weights are kept
    study.close()


def test_the_verdict_finds_the_crossing_that_is_in_the_results_and_the_fine_tuning_starts_from_the_better_run(
    tmp_path: Path, images: PackPlan
) -> None:
    def accuracy(job: Job) -> float:
        if "finetuned" in job.name:
            return 0.8 if "ViT" in job.name else 0.7
        size = {8: 0, 17: 1, 36: 2}[images_of(job)]
        bit = 0.45 + 0.02 * size
        best = 0.02 if "strong" in job.name else 0.0
        return (0.40 + 0.06 * size if "ViT" in job.name else bit) + best + 0.001 * job.run.train.seed

    plan = ScalingPlan(images=images, sizes=(8, 17, 36), models=PLAN.models, seen=400, seeds=2, steps=2, regularised=8)
    verdict, lists = finished(scaling(tmp_path, plan), accuracy)
    assert len(lists) == 2
    starts = {job.run.start for job in lists[1] if images_of_start(job) == 8}
    assert all(start is not None and "strong" in start for start in starts)
    figure3, figure4, figure5 = verdict.sentences[-3:]
    assert "ViT is above BiT at every size" in figure3
    assert "ViT crosses BiT at about 2" in figure4  # at 22 images
    assert "do not overlap" in figure5
    fits = verdict.to_json()["results"]["fits"]
    assert fits["figure4"]["ViT"]["points_per_tenfold"]["value"] > fits["figure4"]["BiT"]["points_per_tenfold"]["value"]
    assert [name for name, image in verdict.plots.items() if image.startswith(b"\x89PNG")] == [
        "figure3.png",
        "figure4.png",
        "figure5.png",
    ]


def images_of_start(job: Job) -> int:
    assert job.run.start is not None
    return int(Path(job.run.start).parent.name.split("-light")[0].split("-strong")[0].split("-short")[0].rpartition("-")[2])


def test_what_the_results_do_not_show_is_said(tmp_path: Path, images: PackPlan) -> None:
    plan = ScalingPlan(images=images, sizes=(8, 36), models=PLAN.models, seen=400, seeds=2, steps=2, regularised=0)
    verdict, _ = finished(scaling(tmp_path, plan), lambda job: 0.5 + 0.05 * (-1) ** job.run.train.seed)
    figure3, figure4, figure5 = verdict.sentences[-3:]
    for sentence in (figure3, figure4):
        assert "they do not show whether ViT or BiT is better" in sentence
    assert "no ratio of compute" in figure5


def test_a_difference_within_the_noise_of_the_test_images_is_not_shown(tmp_path: Path, images: PackPlan) -> None:
    plan = ScalingPlan(images=images, sizes=(8, 36), models=PLAN.models, seen=400, seeds=1, steps=2, regularised=0)

    def accuracy(job: Job) -> float:
        return 0.53 if "ViT" in job.name else 0.50

    few, _ = finished(scaling(tmp_path, plan), accuracy, tested=200)
    many, _ = finished(scaling(tmp_path, plan), accuracy, tested=100_000)
    for sentence, certain in zip(few.sentences[-3:-1], many.sentences[-3:-1], strict=True):
        assert "they do not show whether ViT or BiT is better" in sentence
        assert "ViT is above BiT at every size, by 3.0 points" in certain
    assert any("one seed" in sentence for sentence in few.sentences)


def test_a_plan_larger_than_the_data_uses_all_of_the_data(tmp_path: Path, images: PackPlan) -> None:
    study = scaling(tmp_path, ScalingPlan(images=images, sizes=(10, 1_000), models=("ViT 96/8",), seen=400, seeds=1, regularised=0))
    assert {images_of(job) for job in next(study)} == {10, 36}
    study.close()


def test_an_impossible_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="no family called 'Mamba'"):
        ScalingPlan().of_families(["Mamba"])
    with pytest.raises(ConfigError, match="smallest first"):
        ScalingPlan(sizes=(100, 10))
    with pytest.raises(ConfigError, match="seeds"):
        StudyPlan(seeds=0)
    assert ScalingPlan().of_families(["BiT"]).families == ("BiT",)


def test_every_variant_of_the_shape_has_the_compute_of_the_base(tmp_path: Path, images: PackPlan) -> None:
    plan = StudyPlan(images=images, seen=40_000, seeds=1)
    verdict, (jobs,) = finished(shape(tmp_path, plan), lambda job: 0.6 if "patch-4" in job.name else 0.5)
    assert len(jobs) == len(VARIANTS)
    for job, variant in zip(jobs, VARIANTS, strict=True):
        steps, batch = job.run.train.steps, job.run.data.loader.batch_size
        assert steps * batch * cost(variant.model).macs == pytest.approx(40_000 * cost(BASE).macs, rel=0.02)
    sentence = verdict.sentences[-1]
    assert "higher with patch 4, patch 4x16, lower with none" in sentence
    assert "±" not in str(verdict)  # one seed has no deviation


def test_the_grid_of_table_8_is_whole_and_its_runs_differ_in_positions_alone(tmp_path: Path, images: PackPlan) -> None:
    verdict, (jobs,) = finished(positions(tmp_path, StudyPlan(images=images, seeds=2)), lambda job: 0.5)
    models = [job.run.model for job in jobs[: len(CELLS)]]
    assert {(model.position.kind, model.position.place) for model in models if isinstance(model, ViTConfig)} == set(CELLS)
    assert set(TABLE_8) <= set(CELLS)
    assert len({(job.run.data, job.run.train) for job in jobs}) == 2  # one for each seed
    assert "50.0 ± 0.0 % [64.2]" in str(verdict)


def test_each_optimizer_uses_its_best_learning_rate_on_validation_images(tmp_path: Path, images: PackPlan) -> None:
    def accuracy(job: Job) -> float:
        return 0.9 if "adamw-0.002" in job.name or "sgd-0.1-" in job.name else 0.4

    verdict, lists = finished(optimizer(tmp_path, StudyPlan(images=images, seeds=3)), accuracy)
    assert [len(jobs) for jobs in lists] == [12, 12, 12]
    assert {(row["optimizer"], row["lr"]) for row in verdict.to_json()["results"]} == {("adamw", 0.002), ("sgd", 0.1)}
    assert {job.run.train.optimizer.kind for job in lists[1]} == {"adamw", "sgd"}


def test_masked_and_supervised_pretraining_and_scratch_have_the_same_compute(tmp_path: Path, images: PackPlan) -> None:
    plan = StudyPlan(images=images, seen=800, seeds=1, steps=10)
    verdict, (jobs,) = finished(self_supervision(tmp_path, plan), lambda job: 0.7 if "supervised" in job.name else 0.5)
    seen = {job.name: job.run.train.steps * job.run.data.loader.batch_size for job in jobs}
    assert seen["masked-0"] == seen["supervised-0"]
    assert seen["scratch-0"] == pytest.approx(seen["masked-0"] + seen["masked-0-finetuned"], abs=36)
    assert {job.name: job.after for job in jobs}["masked-0-finetuned"] == ("masked-0",)
    assert {job.run.train.masked is not None for job in jobs if job.name.startswith("masked-0") and not job.after} == {True}
    assert "20.0 (19.6 to 20.4) points below supervised" in verdict.sentences[-2]


def test_pretrained_and_from_scratch_are_trained_on_the_same_labels_with_the_same_budget(tmp_path: Path, images: PackPlan) -> None:
    plan = StudyPlan(images=images, seeds=2, steps=7)
    verdict, (jobs,) = finished(transfer(tmp_path, plan, shots=(1, 2)), lambda job: 0.9 if "pretrained" in job.name else 0.5)
    assert len(jobs) == 2 * len(MODELS) * (1 + 2 * 2)
    by_name = {job.name: job.run for job in jobs}
    for family in MODELS:
        one, other = by_name[f"{family}-pretrained-2-1"], by_name[f"{family}-scratch-2-1"]
        assert (one.data, one.train, one.model) == (other.data, other.train, other.model)
        assert one.start is not None
        assert other.start is None
    assert "ViT 40.0" in verdict.sentences[-1]
    with pytest.raises(ConfigError, match="at least one number of labels"):
        next(transfer(tmp_path, plan, shots=()))


def test_a_study_is_run_drawn_and_not_repeated(
    tmp_path: Path, images: PackPlan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablations, "CELLS", (("none", "stem"), ("relative", "every")))
    words = ["study", "positions", "--data", str(images.data), "--out", str(tmp_path / "out"), "--images", "72", "--seeds", "1"]
    assert main(words) == 0
    first = capsys.readouterr()
    assert f"plot: {tmp_path / 'out' / 'positions.png'}" in first.err
    assert "done, accuracy" in first.err
    assert "2 of 2 runs" in first.err
    written = (tmp_path / "out" / "verdict.json").read_bytes()
    assert main([*words, "--json"]) == 0
    again = capsys.readouterr()
    assert "done" not in again.err
    assert json.loads(again.out) == json.loads(written)
    assert [(cell["kind"], cell["published"]) for cell in json.loads(again.out)["results"]] == [
        ("none", 61.382),
        ("relative", None),
    ]
    assert (tmp_path / "out" / "verdict.json").read_bytes() == written


def test_two_studies_in_one_folder_are_refused(tmp_path: Path) -> None:
    def inner() -> Study:
        yield ()
        return Verdict(rows=[], data=[])

    def outer() -> Study:
        with pytest.raises(TrainingError, match="is in use by process"):
            run_study(inner(), tmp_path, notify=lambda _: None, progress=silent)
        yield ()
        return Verdict(rows=[], data=[])

    run_study(outer(), tmp_path, notify=lambda _: None, progress=silent)


def digests(root: Path, *, steps: int) -> Study:
    """A study of two runs, whose verdict is the digests of their models."""
    results = yield small_jobs(root, steps=steps)
    return Verdict(rows=[[{"run": name, **result} for name, result in sorted(results.items())]], data=dict(results))


STUDY = """
import sys
from pathlib import Path
from tests.studies.test_studies import digests
from vitlab.studies.study import run_study

def tell(title, step, steps):
    print(title, step, flush=True)

if __name__ == "__main__":
    root = Path(sys.argv[1])
    run_study(digests(root, steps=40), root, notify=lambda _: None, progress=tell)
"""


def test_a_study_that_is_killed_again_and_again_ends_with_the_same_verdict(tmp_path: Path, checkout: Path) -> None:
    script, root = tmp_path / "study.py", tmp_path / "runs"
    script.write_text(STUDY)

    def uninterrupted() -> bytes:
        run_study(digests(root, steps=40), root, notify=lambda _: None, progress=silent)
        return (root / "verdict.json").read_bytes()

    whole = uninterrupted()
    root.rename(tmp_path / "whole")
    for title, least in (("run b", 3), ("run a", 1)):
        with processes.started([sys.executable, script, root], env={"PYTHONPATH": str(checkout)}) as study:
            assert study.stdout is not None
            for line in study.stdout:
                words = line.rsplit(maxsplit=1)
                if words[0] == title and int(words[1]) >= least:
                    break
            study.send_signal(signal.SIGKILL)
            study.wait(processes.LIMIT)
        assert not (root / "verdict.json").exists()
    assert uninterrupted() == whole  # also if a child of the killed study still saves its checkpoint
