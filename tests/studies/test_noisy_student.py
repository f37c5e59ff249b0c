"""A small Noisy Student study: what its models are trained on, their scores, and that a stopped study resumes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.containers import as_folder
from vitlab.checkpoints import load
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_text
from vitlab.config.vit import ViTConfig
from vitlab.data.readers.joined import open_joined
from vitlab.errors import ConfigError, DataError
from vitlab.inference import Predictor
from vitlab.studies.config import NoisyStudent, NoisyStudentConfig
from vitlab.studies.noisy_student import Chosen, Score, Scored, Stopped, gathered, noisy_student, scores
from vitlab.training.events import Control, Event, Stepped

KINDS = ("blue", "green", "red")


def patch(kind: int, seed: int) -> bytes:
    """A colour that says the class, under noise."""
    rng = np.random.default_rng([kind, seed])
    pixels = rng.normal(110, 45, (12, 12, 3))
    pixels[:, :, 2 - kind] += 60
    out = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for part, count, at in (("train", 20, 0), ("test", 10, 100)):
        files = {f"{kind}/{number}.png": patch(code, at + number) for code, kind in enumerate(KINDS) for number in range(count)}
        as_folder(tmp_path / "data" / part, files)
    return tmp_path / "data"


def study(data: Path, **other: object) -> NoisyStudent:
    plain = NoisyStudent(
        data=str(data),
        shots=3,
        student="ViT-Mini/8",
        steps=12,
        batch_size=12,
        image_size=(16, 16),
        lr=3e-3,
        noisy=NoisyStudentConfig(threshold=0.0, rounds=1),
    )
    return replace(plain, **other)  # type: ignore[arg-type]


def done(asked: NoisyStudent, out: Path, *, control: Control | None = None) -> list[object]:
    return list(noisy_student(asked, out=out, workers=0, control=control))


def test_every_student_is_evaluated_and_reports_what_it_was_trained_on(data: Path, tmp_path: Path) -> None:
    events = done(study(data, noisy=NoisyStudentConfig(threshold=0.0, rounds=2, labelled_fraction=0.5)), tmp_path / "out")
    evaluated = [event.score for event in events if isinstance(event, Scored)]
    assert tuple(evaluated) == scores(tmp_path / "out")
    assert [score.round for score in evaluated] == [0, 1, 2]
    assert [(score.labelled, score.pseudo, score.pool) for score in evaluated] == [(9, 0, 0), (9, 51, 51), (9, 51, 51)]
    for score in evaluated:
        assert (score.split, score.images, score.model) == ("test", 30, "ViT-Mini/8")
        assert score.top1 == score.correct / 30
        assert Path(score.checkpoint).is_file()
    chosen = [event for event in events if isinstance(event, Chosen)]
    assert [event.times for event in chosen] == [6, 6]
    assert all(event.accuracy is not None and 0 <= event.accuracy <= 1 for event in chosen)


def test_a_student_is_trained_on_true_labels_of_the_shots_and_pseudo_labels_of_all_others(data: Path, tmp_path: Path) -> None:
    done(study(data), tmp_path / "out")
    dataset = open_joined(tmp_path / "out" / "round-1" / "images.json")
    teacher = load(tmp_path / "out" / "round-0" / "run" / "model.safetensors")
    first = open_joined(tmp_path / "out" / "images.json")
    shots = {first.name(index) for index in range(len(first))}
    assert len(shots) == 9
    assert dataset.soft is not None
    names = [dataset.name(index) for index in range(len(dataset))]
    assert set(names) == {str(file) for file in (data / "train").rglob("*.png")}
    for index, prediction in enumerate(Predictor(teacher)(names)):
        target_C = dataset.soft.targets(np.array([index]), 3)[0]
        if names[index] in shots:
            assert target_C[KINDS.index(Path(names[index]).parent.name)] == 1
        else:
            assert target_C == pytest.approx(prediction.probabilities, abs=1e-5)


def test_a_student_has_noise_and_its_teacher_has_none(data: Path, tmp_path: Path) -> None:
    noisy = NoisyStudentConfig(threshold=0.0, rounds=1, randaugment=(1, 7.0), dropout=0.3, drop_path=0.2)
    done(study(data, noisy=noisy), tmp_path / "out")
    plain, noised = (
        from_text(RunConfig, (tmp_path / "out" / f"round-{number}" / "run" / "run.json").read_text()) for number in (0, 1)
    )
    assert isinstance(noised.model, ViTConfig)
    assert isinstance(plain.model, ViTConfig)
    assert (noised.model.dropout, noised.model.drop_path) == (0.3, 0.2)
    assert plain.model.dropout == 0
    assert noised.data.augment.randaugment == (1, 7.0)
    assert noised.data.loader.balance == 1
    assert noised.train.smoothing == 0, "soft labels are smooth already"
    assert plain.train.steps == noised.train.steps == 12


class Stopping(Control):
    """Requests a stop after step `at` of round 1."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def watch(self, events: Iterator[object]) -> list[object]:
        seen = []
        rounds = 0
        for event in events:
            seen.append(event)
            rounds += isinstance(event, Chosen)
            if rounds and isinstance(event, Stepped) and event.step == self.at:
                self.request_stop("terminated")
        return seen


def test_a_stopped_study_resumes_and_ends_as_if_it_had_not_been_stopped(data: Path, tmp_path: Path) -> None:
    asked = study(data)
    control = Stopping(5)
    events = control.watch(noisy_student(asked, out=tmp_path / "stopped", workers=0, control=control))
    assert isinstance(events[-1], Stopped)
    assert len(scores(tmp_path / "stopped")) == 1
    rest = done(asked, tmp_path / "stopped")
    assert [event.step for event in rest if isinstance(event, Stepped)] == [6, 7, 8, 9, 10, 11, 12]
    done(asked, tmp_path / "whole")
    models = [load(tmp_path / name / "round-1" / "run" / "model.safetensors").model.state_dict() for name in ("stopped", "whole")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[1])
    assert [score.correct for score in scores(tmp_path / "stopped")] == [score.correct for score in scores(tmp_path / "whole")]


def test_a_finished_study_is_not_repeated_and_accepts_more_rounds(data: Path, tmp_path: Path) -> None:
    asked = study(data)
    done(asked, tmp_path / "out")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*") if file.is_file()}
    again = done(asked, tmp_path / "out")
    assert not any(isinstance(event, Stepped) for event in again)
    assert [event.score.round for event in again if isinstance(event, Scored)] == [0, 1]
    assert before == {file: file.stat().st_mtime_ns for file in before}
    more = done(replace(asked, noisy=replace(asked.noisy, rounds=2)), tmp_path / "out")
    assert sum(isinstance(event, Stepped) for event in more) == 12
    assert len(scores(tmp_path / "out")) == 3


def test_other_settings_in_the_same_folder_are_refused_with_what_differs(data: Path, tmp_path: Path) -> None:
    done(study(data), tmp_path / "out")
    with pytest.raises(ConfigError, match="shots 3 -> 4"):
        done(study(data, shots=4), tmp_path / "out")


def test_any_folder_serves_as_unlabelled_and_copies_of_others_are_left_out(data: Path, tmp_path: Path) -> None:
    web = {f"anything/{number}.png": patch(number % 3, 500 + number) for number in range(12)}
    copied = {"copy of a test image.png": patch(0, 100), "copy of a labelled one.png": patch(2, 3), "broken.png": b"junk"}
    as_folder(tmp_path / "web", web | copied)
    events = done(study(data, shots=None, unlabelled=str(tmp_path / "web")), tmp_path / "out")
    (chosen,) = [event for event in events if isinstance(event, Chosen)]
    assert (chosen.asked, chosen.unreadable, chosen.taken, chosen.accuracy) == (13, 1, 12, None)
    dataset = open_joined(tmp_path / "out" / "round-1" / "images.json")
    assert not any("copy" in dataset.name(index) for index in range(len(dataset)))


def test_a_given_teacher_is_not_trained_and_its_student_starts_from_it(data: Path, tmp_path: Path) -> None:
    done(study(data), tmp_path / "first")
    teacher = tmp_path / "first" / "round-0" / "run" / "model.safetensors"
    asked = study(data, student=None, teacher=str(teacher), noisy=NoisyStudentConfig(threshold=0.0, rounds=1, labels="hard"))
    events = done(asked, tmp_path / "second")
    assert not (tmp_path / "second" / "round-0" / "run").exists()
    run = from_text(RunConfig, (tmp_path / "second" / "round-1" / "run" / "run.json").read_text())
    assert run.start == str(teacher)
    assert open_joined(tmp_path / "second" / "round-1" / "images.json").soft is None
    assert sum(isinstance(event, Stepped) for event in events) == 12


def test_a_teacher_may_have_its_own_number_of_steps(data: Path, tmp_path: Path) -> None:
    events = done(study(data, teacher_steps=5), tmp_path / "out")
    assert [event.step for event in events if isinstance(event, Stepped)] == [*range(1, 6), *range(1, 13)]


def test_a_smaller_student_is_refused(data: Path, tmp_path: Path) -> None:
    done(study(data, student="ViT-Ti/16", steps=1), tmp_path / "first")
    teacher = tmp_path / "first" / "round-0" / "run" / "model.safetensors"
    with pytest.raises(ConfigError, match=r"ViT-Mini/8 has .* and its teacher ViT-Ti/16"):
        done(study(data, teacher=str(teacher)), tmp_path / "second")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"shots": None}, "no images without labels"),
        ({"shots": 0}, "shots=0"),
        ({"unlabelled": "web"}, "leave one out"),
        ({"student": None}, "no model to start from"),
        ({"start": "a.npz"}, "from scratch"),
        ({"teacher": "a.npz", "teacher_steps": 5}, "leave one out"),
    ],
    ids=str,
)
def test_contradictions_are_refused(data: Path, other: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(data, **other)
    assert why in f"{caught.value.message} {caught.value.hint}"


def test_a_teacher_that_is_never_confident_is_an_error(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="confident enough about none of 51"):
        done(study(data, steps=1, lr=1e-6, noisy=NoisyStudentConfig(threshold=0.99)), tmp_path / "out")


def test_without_a_test_split_val_is_evaluated_on_and_not_trained_on(tmp_path: Path) -> None:
    as_folder(tmp_path, {f"{kind}/{number}.png": patch(code, number) for code, kind in enumerate(KINDS) for number in range(6)})
    rows = [{"path": f"{kind}/{number}.png", "label": kind, "split": "train"} for kind in KINDS for number in range(6)]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = gathered(str(tmp_path / "labels.jsonl"), None, 1)
    assert found.split == "val"
    evaluated = {found.evaluated.name(index) for index in range(len(found.evaluated))}
    pool = {found.pool.name(index) for index in range(len(found.pool))}
    assert not evaluated & pool
    assert len(evaluated) + len(pool) + found.count == 18


def test_events_of_its_runs_are_yielded_too(data: Path, tmp_path: Path) -> None:
    events = done(study(data), tmp_path / "out")
    assert sum(isinstance(event, Stepped) for event in events) == 24
    assert any(isinstance(event, Event) for event in events)


def test_files_of_version_0_1_still_read(tmp_path: Path) -> None:
    old = {"round": 0, "labelled": 9, "pseudo_right": 0.5, "judged_by": "test", "top1": 0.1, "right": 3, "pictures": 30}
    (tmp_path / "round-0").mkdir()
    (tmp_path / "round-0" / "result.json").write_text(json.dumps(old))
    assert scores(tmp_path) == (Score(round=0, labelled=9, pseudo_accuracy=0.5, split="test", top1=0.1, correct=3, images=30),)
    chosen = {"round": 1, "asked": 9, "unreadable": 0, "taken": 8, "classes": 3, "of_classes": 3, "times": 1, "right": 0.75}
    assert from_text(Chosen, json.dumps(chosen)).accuracy == 0.75
    asked = {"data": "letters", "shots": 3, "student": "ViT-Mini/8", "noisy": {"labelled_share": 0.4}}
    assert from_text(NoisyStudent, json.dumps(asked)).noisy.labelled_fraction == 0.4
