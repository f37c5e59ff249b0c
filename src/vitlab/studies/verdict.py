"""What a finished run is worth: shares of the test images, and of those it learned from, that it tells right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitlab.checkpoints import load
from vitlab.config.data import Split
from vitlab.config.evaluation import EvaluateConfig
from vitlab.config.serialize import Json
from vitlab.data.opening import open_dataset
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.label_mapping import match_by_name

if TYPE_CHECKING:
    from vitlab.studies.runner import Job


_SYNTHETIC = "synthetic"
_CONFIG = EvaluateConfig(workers=0, resamples=0)


def judge_run(job: Job) -> dict[str, Json]:
    """`test` and, where the images are a fixed set, `train`: each as {right, of}."""
    data = job.run.data
    checkpoint = load(job.out / "model.safetensors")
    parts: dict[str, Split] = {"test": "test"}
    if not data.dataset.startswith(_SYNTHETIC):  # of an endless set nothing is learned by heart
        parts["train"] = data.train_split
    told: dict[str, Json] = {}
    for name, split in parts.items():
        dataset = open_dataset(data.dataset, split=split, rule=data.rule)
        targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
        result = evaluate(checkpoint, dataset, targets, config=_CONFIG).result
        assert isinstance(result, Classification)
        told[name] = {"right": result.top1.correct, "of": result.top1.total}
    return told


def accuracy_of(result: dict[str, Json], part: str) -> float:
    """The share, 0 to 1, of what `judge_run` said of a part."""
    counts = result[part]
    assert isinstance(counts, dict)
    right, of = counts["right"], counts["of"]
    assert isinstance(right, int)
    assert isinstance(of, int)
    return right / of
