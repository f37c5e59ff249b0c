"""`finetune --find-lr`: the loss against the learning rate, and a rate to use (Smith 2017, the learning-rate range test).

The learning rate grows by the same factor at every step, from far too low to too high; training stops when the loss explodes. The
suggestion is the rate at which the smoothed loss falls fastest. Nothing is saved of the weights.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.config.run import RunConfig
from vitlab.data.dataset import Dataset
from vitlab.errors import ConfigError
from vitlab.io.atomic import replacing
from vitlab.io.display import Block, Displayed, json_text
from vitlab.io.optional import optional_import
from vitlab.training.distributed import world
from vitlab.training.optim import set_learning_rates
from vitlab.training.run_data import open_splits
from vitlab.training.setup import create_state, training_loader
from vitlab.training.step import accumulate_gradients, clip_gradients, prepare_inputs

_STEPS = 100
_SPAN = 1e5  # highest over lowest learning rate
_EXPLODED = 3.0  # times the lowest smoothed loss
_SMOOTHING = 0.9


@dataclass(frozen=True, kw_only=True)
class FoundLr(Displayed):
    """The losses at growing learning rates, and the suggested one; `recipe` is the rate that the recipe has."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    suggested: float
    recipe: float
    files: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        points = [{"lr": lr, "loss": loss} for lr, loss in zip(self.lrs, self.losses, strict=True)]
        return {"suggested": self.suggested, "recipe": self.recipe, "points": points, "files": [str(path) for path in self.files]}

    def tables(self) -> list[Block]:
        """The suggestion, and the loss at some of the rates."""
        smooth = smoothed(self.losses)
        some = sorted({round(place) for place in np.linspace(0, len(self.lrs) - 1, 12)})
        facts = {"suggested lr": f"{self.suggested:.2e}", "lr of the recipe": f"{self.recipe:.2e}"}
        facts |= {"curve": ", ".join(map(str, self.files))} if self.files else {}
        return [facts, [{"lr": f"{self.lrs[place]:.2e}", "loss": round(smooth[place], 4)} for place in some]]


def smoothed(losses: Sequence[float]) -> list[float]:
    """A moving average without its bias towards the start."""
    mean, found = 0.0, []
    for step, loss in enumerate(losses, 1):
        mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
        found.append(mean / (1 - _SMOOTHING**step))
    return found


def suggestion(lrs: Sequence[float], losses: Sequence[float]) -> float:
    """The rate where the smoothed loss falls fastest per decade, before its lowest point."""
    smooth = np.array(smoothed(losses))
    lowest = int(smooth.argmin())
    if lowest < 2:
        return lrs[0]
    slope = np.gradient(smooth[: lowest + 1], np.log10(np.array(lrs[: lowest + 1])))
    return float(lrs[int(slope.argmin())])


def find_lr(
    run: RunConfig,
    *,
    out: Path,
    dataset: Dataset | None = None,
    device: str = "auto",
    steps: int = _STEPS,
    notify: Callable[[str], None] = lambda text: None,
) -> FoundLr:
    """Train for at most `steps` steps at growing learning rates and write the curve into `out`."""
    if run.train.masked is not None or run.train.strategy == "fsdp":
        raise ConfigError("the learning rate is searched for classifiers on one device")
    peak = run.train.optimizer.lr
    low = peak / math.sqrt(_SPAN)
    factor = _SPAN ** (1 / (steps - 1))
    lrs, losses = list[float](), list[float]()
    best = math.inf
    figure = optional_import("matplotlib.figure", purpose="the curve of the loss")  # now rather than after the search
    with world(device) as here:
        train_set, _ = open_splits(run, dataset)
        state = create_state(run, train_set, here)
        with training_loader(run, train_set, here) as loader, loader.batches() as batches:
            for step, batch in enumerate(batches):
                lr = low * factor**step
                set_learning_rates(state.optimizers, lr, run.train.optimizer)
                loss, _, _ = accumulate_gradients(state, prepare_inputs(state, batch))
                if not math.isfinite(loss):
                    break
                lrs.append(lr)
                losses.append(loss)
                now = smoothed(losses)[-1]
                best = min(best, now)
                if step > 10 and now > _EXPLODED * best:
                    break
                clip_gradients(state.model, run.train.optimizer.clip)
                for optimizer in state.optimizers:
                    optimizer.step()
                state.zero_grad()
                state.progress.step += 1
                if (step + 1) % 10 == 0:
                    notify(f"step {step + 1} of at most {steps}: lr {lr:.2e}, loss {now:.4g}")
                if step + 1 >= steps:
                    break
    if len(lrs) < 5:
        raise ConfigError("the loss is not finite even at the lowest learning rates", hint="check the data and the checkpoint")
    found = FoundLr(lrs=tuple(lrs), losses=tuple(losses), suggested=suggestion(lrs, losses), recipe=peak, files=())
    return _written(found, out, figure)


def _written(found: FoundLr, out: Path, figure: Any) -> FoundLr:
    """The curve as find_lr.png and its points as find_lr.json."""
    image, points = out / "find_lr.png", out / "find_lr.json"
    found = replace(found, files=(image, points))
    drawn = figure.Figure(figsize=(7, 4), layout="constrained")
    axes = drawn.subplots()
    axes.plot(found.lrs, found.losses, color="0.8", label="loss")
    axes.plot(found.lrs, smoothed(found.losses), color="tab:blue", label="smoothed")
    axes.axvline(found.suggested, color="tab:orange", label=f"suggested {found.suggested:.1e}")
    axes.axvline(found.recipe, color="tab:green", linestyle=":", label=f"the recipe's {found.recipe:.1e}")
    axes.set_xscale("log")
    axes.set_ylim(top=1.2 * max(found.losses[: max(1, len(found.losses) // 2)]))
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss, nats per image")
    axes.legend()
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=120)
    out.mkdir(parents=True, exist_ok=True)
    for path, content in ((image, buffer.getvalue()), (points, (json_text(found.to_json(), indent=2) + "\n").encode())):
        with replacing(path, needed=len(content)) as file:
            file.write(content)
    return found
