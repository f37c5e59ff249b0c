"""VTAB-1k by a linear probe: 19 tasks, 800 pictures to learn from, 200 to choose by, all of the test part to judge by.

The paper's Table 9 fine-tunes the whole model on those 1,000 pictures; a probe leaves it as it is and learns a linear rule on
its features. It takes seconds after the features, and says less about tasks far from what the model was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vitlab.checkpoint.contents import Checkpoint
from vitlab.config.evaluate import EvaluateConfig
from vitlab.config.transfer import VtabConfig
from vitlab.data.batch import Failure
from vitlab.data.care.progress import Tell, silent
from vitlab.data.kinds.vtab_lists import has_lists
from vitlab.errors import DataError, VitlabError
from vitlab.evaluate.feature_store import FeatureStore
from vitlab.evaluate.features import Features, features_of, model_key
from vitlab.evaluate.probe import Probe, probe
from vitlab.evaluate.vtab_division import Divided, Entries, divide, divide_by_file, divide_by_lists, read_splits
from vitlab.evaluate.vtab_tasks import GROUPS, TASKS, Task

SPLITS_NAME = "vtab-splits.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What was reached on one task. `counts` are pictures of train, val and test; `how` says who chose them."""

    task: Task
    place: Path
    counts: tuple[int, int, int]
    how: str
    probe: Probe
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """0 to 1."""
        return self.probe.accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The mean accuracy (0 to 1) over `found` of `of` tasks, and the paper's, in percent, over the same ones.

    It is the benchmark's number only where `complete`.
    """

    name: str
    found: int
    of: int
    accuracy: float | None
    paper: tuple[float, float, float] | None

    @property
    def complete(self) -> bool:
        """Whether every task of the group was done."""
        return self.found == self.of


@dataclass(frozen=True, slots=True, kw_only=True)
class Vtab:
    """The tasks that were done, those whose data is not there with where it was looked for, and those that failed with why."""

    results: tuple[TaskResult, ...]
    missing: tuple[tuple[Task, str], ...]
    failed: tuple[tuple[Task, str], ...]

    def means(self) -> tuple[Mean, ...]:
        """Of each group, and of all 19."""
        groups = [(name, [task for task in TASKS if task.group == name]) for name in GROUPS]
        return tuple(self._mean(name, tasks) for name, tasks in [*groups, ("all", list(TASKS))])

    def _mean(self, name: str, tasks: list[Task]) -> Mean:
        found = [result for result in self.results if result.task in tasks]
        if not found:
            return Mean(name=name, found=0, of=len(tasks), accuracy=None, paper=None)
        columns = list(zip(*(result.task.paper for result in found), strict=True))
        return Mean(
            name=name,
            found=len(found),
            of=len(tasks),
            accuracy=sum(result.accuracy for result in found) / len(found),
            paper=(_mean(columns[0]), _mean(columns[1]), _mean(columns[2])),
        )


def vtab(
    checkpoint: Checkpoint,
    root: Path,
    config: VtabConfig = VtabConfig(),  # noqa: B008 (a frozen value)
    *,
    splits: Path | None = None,
    reading: EvaluateConfig = EvaluateConfig(),  # noqa: B008
    cache: bool = True,
    tell: Tell = silent,
) -> Vtab:
    """Do every task whose data lies under `root`: a folder (or file) for each set, by the catalogue's name or VTAB-1k's.

    `splits` is a JSON file of the pictures of each part, `root/vtab-splits.json` unless given. A task that cannot be done does
    not stop the others.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root}", hint="it holds a folder for each data set: vitlab data list names them")
    chosen = _splits(root, splits)
    store = FeatureStore(model_key(checkpoint)) if cache else None
    results, missing, failed = [], [], []
    for task in TASKS:
        place = task.find(root)
        if place is None:
            missing.append((task, f"{' and '.join(f'no {name}' for name in dict.fromkeys((task.set, task.listed)))} in {root}"))
            continue
        try:
            job = _Job(checkpoint=checkpoint, config=config, reading=reading, store=store, tell=tell)
            results.append(_done(task, place, chosen.get(task.name), job))
        except VitlabError as error:
            failed.append((task, str(error)))
    if not results:
        first = f"; {failed[0][0].name}: {failed[0][1]}" if failed else ""
        raise DataError(
            f"none of the 19 tasks of VTAB can be done from {root}{first}",
            hint="give the data set in its published form, or as class folders"
            if failed
            else "name a data set's folder as `vitlab data list` does, or as in VTAB-1k (pets or oxford_iiit_pet)",
        )
    return Vtab(results=tuple(results), missing=tuple(missing), failed=tuple(failed))


def as_vtab_sees(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint fed with whole pictures squashed to its size, as in VTAB's own code: what counts may be at the border."""
    return replace(checkpoint, preprocess=replace(checkpoint.preprocess, resize="squash"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    checkpoint: Checkpoint
    config: VtabConfig
    reading: EvaluateConfig
    store: FeatureStore | None
    tell: Tell


def _done(task: Task, place: Path, chosen: Mapping[str, Entries] | None, job: _Job) -> TaskResult:
    job.tell(f"{task.name}, opening", 0, None)
    source = task.open(place)
    divided: Divided
    if chosen is not None:
        divided = divide_by_file(source, task.division, chosen, job.config)
    elif has_lists(place):
        divided = divide_by_lists(source, job.config)
    else:
        divided = divide(source, task.division, job.config)
    parts: list[Features] = []
    for name, indices in (("train", divided.train), ("val", divided.val), ("test", divided.test)):
        parts.append(
            features_of(
                job.checkpoint,
                source.take(indices),
                config=job.reading,
                store=job.store,
                what=f"{task.name}, {name}",
                tell=job.tell,
            )
        )
    train, val, test = parts
    fitted = probe(train, val, test, job.config.probe, told=lambda fits, _: job.tell(f"{task.name}, fits", fits, None))
    return TaskResult(
        task=task,
        place=place,
        counts=(train.asked, val.asked, test.asked),
        how=divided.how,
        probe=fitted,
        failures=tuple(failure for part in parts for failure in part.failures),
        notes=tuple(dict.fromkeys((*source.notes, *(note for part in parts for note in part.notes)))),
    )


def _splits(root: Path, given: Path | None) -> dict[str, dict[str, Entries]]:
    path = root / SPLITS_NAME if given is None else given
    if given is None and not path.exists():
        return {}
    names: dict[str, str] = {}
    for task in TASKS:
        for called in (task.name, task.listed, task.set):
            names.setdefault(called.lower(), task.name)
    for shared in [task.set for task in TASKS if sum(other.set == task.set for other in TASKS) > 1]:
        names.pop(shared, None)  # clevr means two tasks
    return read_splits(path, names)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
