"""What the talks explain about sequences: gradients through time, and time against length and cores, of LSTM and attention.

The sequences are images one patch high, read by vitlab's own models: an RNN, an LSTM, and a ViT without a class token.

Axes: B batch, C channels, H height, W width, N tokens, D width.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitlab.config.model import ModelConfig
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.vit import ViTConfig
from vitlab.inference.backends import evaluating
from vitlab.interpretation.drawing import Axis, Line, Style, draw_lines
from vitlab.io.progress import ProgressCallback, silent
from vitlab.models import Record, build
from vitlab.models.cost import cost
from vitlab.models.vit import ViT
from vitlab.studies.explained import Explained
from vitlab.training.plan import this_machine

_PATCH = 4


def _models(length: int, width: int, depth: int) -> dict[str, ModelConfig]:
    """An RNN, an LSTM and a ViT of one width and depth that read `length` patches in a row."""
    size, patch = (_PATCH, _PATCH * length), (_PATCH, _PATCH)
    attention = ViTConfig(
        width=width, depth=depth, heads=4, mlp_width=4 * width, patch_size=patch, image_size=size, num_classes=0, class_token=False,
        pool="mean",
    )  # fmt: skip
    recurrent = RecurrentConfig(cell="rnn", width=width, depth=depth, patch_size=patch, image_size=size, num_classes=0)
    lstm = RecurrentConfig(cell="lstm", width=width, depth=depth, patch_size=patch, image_size=size, num_classes=0)
    return {"RNN": recurrent, "LSTM": lstm, "attention": attention}


def _last_token(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    """The last layer's output for the last patch, (B, D)."""
    record = Record(layers=[-1], attention=False, tokens=True)
    if isinstance(model, ViT):
        model.encode_images(images_BCHW, record)
    else:
        model.features(images_BCHW, record)  # type: ignore[operator]
    return record.tokens_BND[0][:, -1]


def gradients_through_time(progress: ProgressCallback = silent, *, length: int = 128, width: int = 64, seeds: int = 3) -> Explained:
    """The gradient of the last output with respect to each input of a sequence, in one layer, randomly initialised."""
    sizes = dict[str, Tensor]()
    for number, name in enumerate(_models(length, width, 1)):
        progress(f"gradients of {name}", number, 3)
        total_N = torch.zeros(length, dtype=torch.float64)
        for seed in range(seeds):
            model = build(_models(length, width, 1)[name], seed=seed).double()
            generator = torch.Generator().manual_seed(seed)
            images_BCHW = torch.randn(8, 3, _PATCH, _PATCH * length, generator=generator).double().requires_grad_()
            signs_D = torch.randint(0, 2, (width,), generator=generator) * 2.0 - 1
            with evaluating(model), torch.enable_grad():
                (gradient_BCHW,) = torch.autograd.grad((_last_token(model, images_BCHW) * signs_D).sum(), images_BCHW)
            total_N += gradient_BCHW.reshape(8, 3, _PATCH, length, _PATCH).square().sum((1, 2, 4)).sqrt().mean(0)
        sizes[name] = total_N.flip(0) / total_N[-2]  # from the last input back, the last but one is 1
    back = sorted({1, 2, 4, 8, 16, 32, 64, length - 1} & set(range(length)))
    rows = tuple(
        ({"steps back": str(steps)}, {name: float(f"{float(found_N[steps]):.3g}") for name, found_N in sizes.items()})
        for steps in back
    )
    first = ", ".join(f"{name} {float(found_N[-1]):.1e}" for name, found_N in sizes.items())
    finding = f"the first of {length} inputs gets of the gradient, if the last but one gets 1: {first}"

    def draw(style: Style) -> bytes:
        lines = [Line(name=name, x=range(1, length, 3), y=found_N[1::3].tolist()) for name, found_N in sizes.items()]
        return draw_lines(
            lines, Axis(name="steps back from the last input"), Axis(name="gradient, that one step back is 1", log=True), style,
            title="How much of the gradient reaches an earlier input",
        )  # fmt: skip

    return Explained(rows=rows, finding=finding, draw=draw)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    name: str
    length: int
    threads: int
    seconds: float


def sequence_length(
    progress: ProgressCallback = silent,
    *,
    lengths: Sequence[int] = (32, 64, 128, 256, 512, 1024),
    cores: Sequence[int] | None = None,
    width: int = 128,
    repeats: int = 5,
) -> Explained:
    """Time of a training step (forward and backward) on one sequence, by its length and the number of cores, measured now.

    The least of several tries counts: other programs only make it longer.
    """
    before, most = torch.get_num_threads(), this_machine().cores
    chosen = sorted({1, most, *(1 << power for power in range(most.bit_length()))}) if cores is None else list(cores)
    timed = list[_Timed]()
    try:
        for number, length in enumerate(lengths):
            progress(f"timing sequences of {length}", number, len(lengths))
            models = {name: build(config, seed=0).train() for name, config in _models(length, width, 2).items() if name != "RNN"}
            images_BCHW = torch.randn(1, 3, _PATCH, _PATCH * length, generator=torch.Generator().manual_seed(0))
            spent = {(name, threads): list[float]() for threads in chosen for name in models}
            for _ in range(repeats + 1):  # in turn, so that other load meets all; the first round warms up
                for name, threads in spent:
                    torch.set_num_threads(threads)
                    spent[name, threads].append(_step_seconds(models[name], images_BCHW))
            timed += [
                _Timed(name=name, length=length, threads=threads, seconds=min(found[1:]))
                for (name, threads), found in spent.items()
            ]
    finally:
        torch.set_num_threads(before)
    by = {(row.name, row.length, row.threads): row.seconds for row in timed}
    names = list(dict.fromkeys(row.name for row in timed))
    rows = tuple(
        (
            {"tokens": f"{length:,}"},
            {
                f"{name}, {threads} core{'s' * (threads > 1)}, ms": _ms(by[name, length, threads])
                for name in names
                for threads in chosen
            }
            | {f"{name}: steps in turn": length * 2 if name == "LSTM" else 2 for name in names}
            | {f"{name}, MMACs": round(cost(_models(length, width, 2)[name]).macs / 1e6) for name in names},
        )
        for length in lengths
    )
    longest = lengths[-1]
    gains = {name: by[name, longest, chosen[0]] / by[name, longest, chosen[-1]] for name in names}
    finding = f"at {longest:,} tokens, {chosen[-1]} core{'s' * (chosen[-1] > 1)} against {chosen[0]}: " + ", ".join(
        f"{name} {gain:.2f} times as fast" for name, gain in gains.items()
    )

    def draw(style: Style) -> bytes:
        lines = [
            Line(
                name=f"{name}, {threads} core{'s' * (threads > 1)}",
                x=lengths,
                y=[1000 * by[name, length, threads] for length in lengths],
                dashed=threads != chosen[0],
                like=names.index(name),
            )
            for name in names
            for threads in chosen
        ]
        return draw_lines(
            lines, Axis(name="tokens", log=True, at=lengths), Axis(name="ms for a step on one sequence", log=True), style,
            title="Time against the length of the sequence",
        )  # fmt: skip

    return Explained(rows=rows, finding=finding, draw=draw)


def _ms(seconds: float) -> float:
    return float(f"{1000 * seconds:.3g}")


def _step_seconds(model: nn.Module, images_BCHW: Tensor) -> float:
    began = time.perf_counter()
    features_BD: Tensor = model(images_BCHW)
    features_BD.sum().backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - began
