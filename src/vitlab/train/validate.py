"""A look at the held-out pictures during training, with the averaged weights where the run averages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from vitlab.config.run import RunConfig
from vitlab.data.batch import Batch
from vitlab.data.loader import Loader, Stream
from vitlab.evaluate.answers import Answers, answer, headline
from vitlab.train.control import Control, Stopped
from vitlab.train.distributed import World
from vitlab.train.parallel import resharded
from vitlab.train.setup import Players
from vitlab.train.task import PredictMasked, Work

_VALIDATION_STREAM = 203


def validate(players: Players, judge: Loader, run: RunConfig, here: World, control: Control) -> dict[str, float]:
    """Names and values: loss, top1, ... over every held-out picture of all ranks. `Stopped` where a stop is asked for meanwhile."""
    with swapped(players):
        players.model.eval()
        try:
            with judge.batches() as stream:
                batches = _until_stopped(stream, here, control)
                if isinstance(players.task, PredictMasked):
                    return {"loss": _masked_loss(players, batches, run, here)}
                own = answer(players.whole, batches, run.preprocess, device=here.device)
            return {name: float(value) for name, value in headline(_merged(here.gather(own))).items()}
        finally:
            resharded(players.model)
            players.model.train()


def _until_stopped(stream: Stream, here: World, control: Control) -> Iterator[Batch]:
    """The batches, as long as nobody asks for a stop; ranks, which need each other for every layer, stop before the same batch."""
    while True:
        if here.ranks > 1:
            if here.any(control.stop is not None):
                raise Stopped
            batch = next(stream, None)
        else:
            with control.waiting():
                batch = next(stream, None)
        if batch is None:
            return
        yield batch


def _merged(parts: list[Answers]) -> Answers:
    return Answers(
        logits_NC=np.concatenate([part.logits_NC for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        indices_N=np.concatenate([part.indices_N for part in parts]),
        failures=tuple(failure for part in parts for failure in part.failures),
    )


def score(metrics: dict[str, float]) -> float:
    """The one number by which a checkpoint is better than another: accuracy where there is one, else minus the loss."""
    for name in ("top1", "mean_average_precision"):
        if name in metrics:
            return metrics[name]
    return -metrics["loss"]


@contextmanager
def swapped(players: Players) -> Iterator[None]:
    """The averaged weights in the model's place within the block."""
    if players.average is None:
        yield
        return
    own = {name: tensor.detach().clone() for name, tensor in players.bare.state_dict().items()}
    try:
        _put(players, players.average.state)
        yield
    finally:
        _put(players, own)


@torch.no_grad()
def _put(players: Players, state: dict[str, torch.Tensor]) -> None:
    for name, tensor in players.bare.state_dict().items():  # the model's own memory, running statistics in it too
        tensor.copy_(state[name])


@torch.inference_mode()
def _masked_loss(players: Players, batches: Iterable[Batch], run: RunConfig, here: World) -> float:
    totals = torch.zeros(2, dtype=torch.float64, device=here.device)
    for number, batch in enumerate(batches):
        rng = np.random.default_rng([run.train.seed, _VALIDATION_STREAM, number])
        work = players.task.prepare(torch.from_numpy(batch.images_BHWC), torch.from_numpy(batch.labels), rng)
        placed = Work(images_BHWC=work.images_BHWC.to(here.device), wanted=tuple(part.to(here.device) for part in work.wanted))
        loss_B, _ = players.task.loss(players.model, placed)
        totals += torch.tensor([float(loss_B.sum()), float(len(loss_B))], dtype=torch.float64, device=here.device)
    summed = here.sum(totals)
    return float(summed[0] / summed[1])
