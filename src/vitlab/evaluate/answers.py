"""What a model answers to every picture of a loader, and the numbers one looks at first.

Axes: B rows of a batch, N pictures, C classes; H height, W width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitlab.config.data import Preprocess
from vitlab.data.batch import Batch, Failure
from vitlab.data.normalise import normalise
from vitlab.errors import DataError
from vitlab.objective.metrics import losses, mean_average_precision, ranks, sigmoid_losses

Labels = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """The logits for each picture that could be read, beside its label, and the pictures that could not.

    `labels` is one class a picture (N,), -1 where unknown, or zeros and ones (N, classes) where a picture may have several.
    `indices_N` are the pictures' numbers in their source. A picture of `failures` has no row and still counts: see `asked`.
    """

    logits_NC: NDArray[np.float32]
    labels: Labels
    indices_N: NDArray[np.int64]
    failures: tuple[Failure, ...] = ()

    def __len__(self) -> int:
        return len(self.indices_N)

    @property
    def asked(self) -> int:
        """Pictures the model was asked about: what shares are shares of."""
        return len(self) + len(self.failures)

    @property
    def multi_label(self) -> bool:
        """Whether a picture may have several classes."""
        return self.labels.ndim == 2


def answer(
    model: nn.Module,
    batches: Iterable[Batch],
    preprocess: Preprocess,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Answers:
    """Run the model, in evaluation mode and without gradients, over all batches; its training mode is put back afterwards.

    The model must be on `device`. `dtype` is what it computes in; where that is less than its weights' type, by autocast.
    """
    place = torch.device(device)
    weights = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    logits, labels, indices, failures = list[NDArray[np.float32]](), list[Labels](), list[NDArray[np.int64]](), list[Failure]()
    lower = torch.autocast(place.type, dtype=dtype, enabled=dtype != weights and dtype in (torch.bfloat16, torch.float16))
    with torch.inference_mode(), evaluating(model), lower:
        for batch in batches:
            failures += (failure for failure in batch.failed if failure.replaced_by is None)
            if not len(batch):
                continue
            images_BHWC = torch.from_numpy(batch.images_BHWC).to(place)
            logits_BC: torch.Tensor = model(normalise(images_BHWC, preprocess, weights))
            logits.append(logits_BC.float().cpu().numpy())
            labels.append(batch.labels)
            indices.append(batch.index_B)
    if not logits:
        raise _nothing(failures)
    joined: Labels = np.concatenate(labels)  # type: ignore[assignment]  # all of one type, and numpy's stubs cannot say so
    return Answers(
        logits_NC=np.concatenate(logits),
        labels=joined,
        indices_N=np.concatenate(indices),
        failures=tuple(failures),
    )


def headline(answers: Answers) -> dict[str, float]:
    """`loss`, `top1` and `top5`; or `loss` and `mean_average_precision` where a picture may have several classes.

    The loss is cross-entropy in nats a picture (of several classes: the sigmoid's, summed over classes), over the pictures that
    could be read. The shares, 0 to 1, are of all pictures: one that could not be read counts as wrong.
    """
    check_labels(answers)
    if answers.multi_label:
        right_NC = answers.labels.astype(bool)
        return {
            "loss": float(sigmoid_losses(answers.logits_NC, right_NC).mean()),
            "mean_average_precision": mean_average_precision(answers.logits_NC, right_NC),
        }
    labels_N = answers.labels.astype(np.int64)
    rank_N = ranks(answers.logits_NC, labels_N)
    return {
        "loss": float(losses(answers.logits_NC, labels_N).mean()),
        "top1": np.count_nonzero(rank_N < 1) / answers.asked,
        "top5": np.count_nonzero(rank_N < 5) / answers.asked,
    }


def check_labels(answers: Answers) -> None:
    """Refuse labels that are unknown or that the model has no class for."""
    classes = answers.logits_NC.shape[1]
    if answers.multi_label:
        if answers.labels.shape[1] != classes:
            raise DataError(f"the data has {answers.labels.shape[1]:,} classes and the model {classes:,}")
        return
    if (unknown := np.count_nonzero(answers.labels < 0)) > 0:
        raise DataError(f"{unknown:,} of {len(answers):,} pictures have no label", hint="evaluate a part of the data that has them")
    if answers.labels.max() >= classes:
        raise DataError(f"the data has a label {int(answers.labels.max())}, and the model has classes 0 to {classes - 1} only")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module is as it was, also where only some of them were training."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _nothing(failures: list[Failure]) -> DataError:
    if failures:
        return DataError(f"none of {len(failures):,} pictures could be read; the first: {failures[0]}")
    return DataError("there are no pictures to evaluate")
