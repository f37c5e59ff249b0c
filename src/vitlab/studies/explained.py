"""What the talks explain: shifts, shuffled patches, positions and receptive fields of vision; gradients through time and time
against length and cores, of LSTM and attention; attention between words. Small experiments, run when asked.

Each returns `Explained`: rows of numbers, a sentence that says what they show, and a drawing.

Of words: in "The animal didn't cross the street because it was too tired", what does "it" attend to? A Transformer of two layers,
made of the blocks of `vitlab.models.vit`, learns in less than a minute to say what "it" means. The sentences are made from lists of
words: an adjective that only animals have, or only places, decides. The talk's two sentences are never trained on, nor any other
sentence with their two nouns together.

Axes: B batch, C channels or classes, H height or heads, W width, N tokens or words, D width, G x J patches down and across, V
vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config.model import ModelConfig, variant
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.vit import Position, ViTConfig
from vitlab.data.digits import open_digits
from vitlab.inference.backends import evaluating
from vitlab.interpretation.attention import Floats, attention_distance
from vitlab.interpretation.drawing import (
    COLOURS,
    INK,
    MARKS,
    Axis,
    DotRow,
    Line,
    Panel,
    Style,
    draw_dots,
    draw_lines,
    draw_sheet,
    entitle,
    new_paper,
    tint,
    written,
)
from vitlab.interpretation.features import field_distance, receptive_fields
from vitlab.interpretation.paint import field_pixels, position_tiles
from vitlab.interpretation.weights import position_similarity
from vitlab.io.display import ProgressCallback, silent
from vitlab.models import Record, build
from vitlab.models.attention_variants import AttentionContext
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.models.position import resize_grid
from vitlab.models.vit import Block, ViT, patchify
from vitlab.training.plan import this_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The result of an experiment: rows (what a row is about, numbers by name), what they show, and how it is drawn."""

    rows: tuple[tuple[Mapping[str, str], Mapping[str, float | int | None]], ...]
    finding: str
    draw: Callable[[Style], bytes]


# --- shift equivariance -------------------------------------------------------------------------------------------------------

_SIDE, _PATCH = 64, 8


class _Convolutions(nn.Module):
    """Three convolutions of 3x3 with ReLU on a map without edges (it continues on the other side)."""

    def __init__(self, stride: int, width: int = 32) -> None:
        super().__init__()
        channels = (3, width, width, width)
        self.layers = nn.ModuleList(
            nn.Conv2d(channels[place], channels[place + 1], 3, stride=stride, padding=1, padding_mode="circular")
            for place in range(3)
        )

    def forward(self, images_BCHW: Tensor) -> Tensor:
        for layer in self.layers:
            images_BCHW = F.relu(layer(images_BCHW))
        return images_BCHW


def _tokens_on_grid(model: ViT, images_BCHW: Tensor) -> Tensor:
    z_BND = model.encode_images(images_BCHW)
    return z_BND.transpose(1, 2).reshape(len(z_BND), -1, *model.config.grid)


def _natural_noise(count: int, side: int, *, seed: int) -> Tensor:
    """Random images with the spectrum of photographs, amplitude 1 / frequency, which continue on the other side; variance 1."""
    noise_BCHW = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))
    frequency_HW = torch.hypot(torch.fft.fftfreq(side)[:, None] * side, torch.fft.fftfreq(side) * side).clamp(min=1)
    images_BCHW: Tensor = torch.fft.ifft2(torch.fft.fft2(noise_BCHW) / frequency_HW).real
    images_BCHW /= images_BCHW.std()
    return images_BCHW


def shift_equivariance(progress: ProgressCallback = silent, *, most: int = 16) -> Explained:
    """How far a shift of the image is from the same shift of the features, for shifts of 0 to `most` pixels."""
    plain = ViTConfig(
        width=64, depth=4, heads=4, mlp_width=128, patch_size=(_PATCH, _PATCH), image_size=(_SIDE, _SIDE), num_classes=0,
        class_token=False, pool="mean", position=Position(kind="none"),
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convolution, strided = _Convolutions(1), _Convolutions(2)
    none = build(plain, seed=0)
    placed = build(replace(plain, position=Position(kind="sincos-2d")), seed=0)
    assert isinstance(none, ViT)
    assert isinstance(placed, ViT)
    subjects: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
        "convolutions, stride 1": (1, convolution),
        f"convolutions, stride {_PATCH} in all": (_PATCH, strided),
        "ViT without positions": (_PATCH, lambda images_BCHW: _tokens_on_grid(none, images_BCHW)),
        "ViT with positions": (_PATCH, lambda images_BCHW: _tokens_on_grid(placed, images_BCHW)),
    }
    images_BCHW = _natural_noise(4, _SIDE, seed=1)
    rows, errors = [], dict[str, list[float]]({name: [] for name in subjects})
    with torch.no_grad():
        for shift in range(most + 1):
            progress("shifting images", shift, most + 1)
            moved_BCHW = images_BCHW.roll(shift, dims=3)
            for name, (step, features) in subjects.items():
                still_BDGJ = features(images_BCHW)
                expected_BDGJ = still_BDGJ.roll(round(shift / step), dims=3)
                errors[name].append(float((features(moved_BCHW) - expected_BDGJ).norm() / still_BDGJ.norm()))
            rows.append(({"shift": f"{shift} px"}, {name: round(found[-1], 7) for name, found in errors.items()}))
    finding = (
        "a convolution commutes with every shift, one with a stride with shifts by whole strides, a ViT without positions with"
        f" shifts by whole patches ({_PATCH} px), a ViT with positions with none"
    )

    def draw(style: Style) -> bytes:
        lines = [Line(name=name, x=range(most + 1), y=found) for name, found in errors.items()]
        return draw_lines(
            lines, Axis(name="shift of the image, pixels", at=range(0, most + 1, 4)), Axis(name="relative error of the features"),
            style, title="Is a shift of the image a shift of the features?",
        )  # fmt: skip

    return Explained(rows=tuple(rows), finding=finding, draw=draw)


# --- small models on the built-in digits --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Digits:
    """The built-in digits, normalised: training and test images of 8 x 8 pixels."""

    train_BCHW: Tensor
    train_B: Tensor
    test_BCHW: Tensor
    test_B: Tensor


def _digits() -> _Digits:
    whole = open_digits()
    pixels = [whole.read(index).content for index in range(len(whole))]
    assert not isinstance(pixels[0], bytes)
    images_BCHW = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 127.5 - 1
    labels_B = torch.tensor([whole.label(index) for index in range(len(whole))])
    train_B = torch.from_numpy(whole.splits == 0)
    return _Digits(
        train_BCHW=images_BCHW[train_B], train_B=labels_B[train_B], test_BCHW=images_BCHW[~train_B], test_B=labels_B[~train_B]
    )


def _digit_vit(patch: int, *, position: Position, width: int = 64, depth: int = 3) -> ViT:
    config = ViTConfig(
        width=width, depth=depth, heads=4, mlp_width=2 * width, patch_size=(patch, patch), image_size=(8, 8), channels=1,
        num_classes=10, position=position,
    )  # fmt: skip
    model = build(config, seed=0)
    assert isinstance(model, ViT)
    return model


def _fit(
    model: nn.Module,
    images_BCHW: Tensor,
    labels_B: Tensor,
    steps: int,
    *,
    lr: float = 2e-3,
    weight_decay: float = 0.05,
    seed: int = 0,
    watch: Callable[[int], None] = lambda step: None,
) -> None:
    """Train with AdamW, a cosine schedule after a warm-up, and batches of 64; `watch` is called before each step and at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for step in range(steps):
        watch(step)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / (0.1 * steps)) * (1 + np.cos(np.pi * step / steps)) / 2
        chosen = torch.randint(0, len(images_BCHW), (64,), generator=generator)
        loss = F.cross_entropy(model(images_BCHW[chosen]), labels_B[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    watch(steps)


def _logits(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    with torch.inference_mode():
        logits_BC: Tensor = model(images_BCHW)
    return logits_BC


def _percent(logits_BC: Tensor, labels_B: Tensor) -> float:
    return round(100 * float((logits_BC.argmax(1) == labels_B).float().mean()), 1)


# --- shuffled patches ---------------------------------------------------------------------------------------------------------


def _in_other_order(images_BCHW: Tensor, order_BN: Tensor, patch: int) -> Tensor:
    """The images with their patches in another order, one for each image."""
    b, c, h, w = images_BCHW.shape
    patches_BNV = patchify(images_BCHW, (patch, patch))
    moved_BNV = patches_BNV.gather(1, order_BN[:, :, None].expand_as(patches_BNV))
    return moved_BNV.view(b, h // patch, w // patch, c, patch, patch).permute(0, 3, 1, 4, 2, 5).reshape(b, c, h, w)


class _SmallCnn(nn.Module):
    """A small convolutional network for the digits, with weights drawn by a seed."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
                nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
            )  # fmt: skip

    def forward(self, images_BCHW: Tensor) -> Tensor:
        logits_BC: Tensor = self.body(images_BCHW)
        return logits_BC


def shuffled_patches(progress: ProgressCallback = silent, *, steps: int = 400) -> Explained:
    """Accuracy on digits whose patches are shuffled, of models that know positions and of those that do not.

    Each model is trained twice: on digits as they are, and on digits whose patches all have one other, fixed order.
    """
    patch, digits = 2, _digits()
    generator = torch.Generator().manual_seed(2)
    test_orders_BN = torch.stack([torch.randperm(16, generator=generator) for _ in digits.test_B])
    fixed_N = torch.randperm(16, generator=generator)
    fixed_train_BCHW, fixed_test_BCHW = (
        _in_other_order(images_BCHW, fixed_N.expand(len(images_BCHW), -1), patch)
        for images_BCHW in (digits.train_BCHW, digits.test_BCHW)
    )
    shuffled_BCHW = _in_other_order(digits.test_BCHW, test_orders_BN, patch)
    makers: dict[str, Callable[[], nn.Module]] = {
        "ViT with positions": lambda: _digit_vit(patch, position=Position()),
        "ViT without positions": lambda: _digit_vit(patch, position=Position(kind="none")),
        "convolutions": _SmallCnn,
    }
    rows, places = [], list[DotRow]()
    for number, (name, make) in enumerate(makers.items()):
        progress(f"training {name}", 2 * number, 2 * len(makers))
        plain = make()
        _fit(plain, digits.train_BCHW, digits.train_B, steps)
        intact_BC, moved_BC = _logits(plain, digits.test_BCHW), _logits(plain, shuffled_BCHW)
        progress(f"training {name} on another order", 2 * number + 1, 2 * len(makers))
        other = make()
        _fit(other, fixed_train_BCHW, digits.train_B, steps)
        numbers = {
            "as they are, %": _percent(intact_BC, digits.test_B),
            "patches shuffled, %": _percent(moved_BC, digits.test_B),
            "trained and tested in one other order, %": _percent(_logits(other, fixed_test_BCHW), digits.test_B),
            "largest change of a logit": float(f"{float((intact_BC - moved_BC).abs().max()):.3g}"),
        }
        rows.append(({"model": name}, numbers))
        places.append(DotRow(name=name, group=number))
    finding = "accuracy as they are, shuffled, and in one other order that was trained on: " + "; ".join(
        f"{about['model']} {' / '.join(str(value) for name, value in numbers.items() if name.endswith('%'))} %"
        for about, numbers in rows
    )

    def draw(style: Style) -> bytes:
        names = [name for name in rows[0][1] if name.endswith("%")]
        return draw_dots(places, [Panel(axis=name, values=[float(numbers[name]) for _, numbers in rows]) for name in names], style)

    return Explained(rows=tuple(rows), finding=finding, draw=draw)


# --- positions over training time ---------------------------------------------------------------------------------------------


def positions_over_time(
    progress: ProgressCallback = silent, *, moments: Sequence[int] = (0, 30, 100, 300, 900), larger: int = 16
) -> Explained:
    """Similarity of learned positions while a ViT is trained on digits, each pixel a patch, and for a larger grid (Fig. 10)."""
    digits = _digits()
    model = _digit_vit(1, position=Position(), width=48, depth=2)
    seen = dict[int, Floats]()
    rows = []

    def look(step: int) -> None:
        progress("training a ViT on digits", step, moments[-1])
        if step not in moments:
            return
        model.eval()
        seen[step] = position_similarity(model)
        rows.append(
            (
                {"steps": f"{step:,}"},
                _likeness(seen[step]) | {"accuracy, %": _percent(_logits(model, digits.test_BCHW), digits.test_B)},
            )
        )
        model.train()

    _fit(model, digits.train_BCHW, digits.train_B, moments[-1], lr=3e-3, weight_decay=0.3, watch=look)
    with torch.inference_mode():
        table_1ND = model.position.added(0, (8, 8))
        assert table_1ND is not None
        grown_1ND = resize_grid(table_1ND[:, 1:], (8, 8), (larger, larger), "official")
        unit_ND = F.normalize(grown_1ND[0].double(), dim=1)
        grown = (unit_ND @ unit_ND.T).view(larger, larger, larger, larger).float().numpy()
    rows.append(({"steps": f"{moments[-1]:,}, grid {larger} x {larger}"}, _likeness(grown) | {"accuracy, %": None}))
    begun, ended = rows[0][1], rows[-2][1]
    finding = "mean cosine of two positions, before and after training: " + "; ".join(
        f"{name.removeprefix('cosine, ')} {begun[name]} and {ended[name]}" for name in begun if name.startswith("cosine")
    )

    def draw(style: Style) -> bytes:
        tiles = [position_tiles(array, scale=4) for array in seen.values()] + [position_tiles(grown, scale=2)]
        words = [f"{step:,} steps" for step in seen] + [f"grid {larger} x {larger}"]
        return draw_sheet(
            [tiles[:3], tiles[3:]], style, captions=[words[:3], words[3:]], inches=2.6,
            title="Similarity of each position to all others, while a ViT is trained on digits",
        )  # fmt: skip

    return Explained(rows=tuple(rows), finding=finding, draw=draw)


def _likeness(similarity_GJGJ: Floats) -> dict[str, float | int | None]:
    """Mean cosine of a position with its neighbours, with the rest of its row and column, and with all others."""
    g, j = similarity_GJGJ.shape[:2]
    down, across = (np.abs(np.subtract.outer(np.arange(count), np.arange(count))) for count in (g, j))
    down_GJGJ, across_GJGJ = (
        down[:, None, :, None] + 0 * across[None, :, None, :],
        across[None, :, None, :] + 0 * down[:, None, :, None],
    )
    steps_GJGJ = down_GJGJ + across_GJGJ
    near = steps_GJGJ == 1
    line = ((down_GJGJ == 0) | (across_GJGJ == 0)) & (steps_GJGJ > 1)
    far = (down_GJGJ > 0) & (across_GJGJ > 0)
    means = {name: similarity_GJGJ[mask].mean() for name, mask in (("neighbours", near), ("row and column", line), ("others", far))}
    return {f"cosine, {name}": round(float(mean), 3) for name, mean in means.items()}


# --- receptive fields ---------------------------------------------------------------------------------------------------------


def receptive_field(
    progress: ProgressCallback = silent, *, names: Sequence[str] = ("ViT-Ti/16", "R26+ViT-S/32", "BiT-R50x1"), side: int = 224
) -> Explained:
    """Effective receptive field and attention distance of a ViT, a hybrid and a CNN, layer by layer, randomly initialised."""
    images_BCHW = _natural_noise(2, side, seed=0)
    rows, fields, fractions = [], dict[str, Floats](), list[tuple[str, list[float], list[float], list[float] | None]]()
    for number, name in enumerate(names):
        progress(f"receptive field of {name}", number, len(names))
        model = _with_open_branches(build(variant(name, image_size=side, num_classes=0), seed=0))
        layers, array_LHW = receptive_fields(model, images_BCHW)
        attention = attention_distance(model, images_BCHW).mean(1).tolist() if isinstance(model, ViT) else None
        reach = [field_distance(field_HW, _grid_of(model, side, layer)) for layer, field_HW in zip(layers, array_LHW, strict=True)]
        depth = [(layer + 1) / len(layers) for layer in layers]
        fields[name] = array_LHW[-1]
        fractions.append((name, depth, reach, attention))
        for layer in layers:
            numbers: dict[str, float | int | None] = {"depends on pixels at, px": round(reach[layer], 1)}
            numbers["attends to patches at, px"] = None if attention is None else round(attention[layer], 1)
            rows.append(({"model": name, "layer or stage": str(layer)}, numbers))
    first = {name: (reach[0], reach[-1]) for name, _, reach, _ in fractions}
    finding = "mean distance from the middle to what it depends on, first and last layer: " + "; ".join(
        f"{name} {low:.0f} and {high:.0f} px" for name, (low, high) in first.items()
    )

    def draw(style: Style) -> bytes:
        return _draw_fields(fields, fractions, style)

    return Explained(rows=tuple(rows), finding=finding, draw=draw)


def _with_open_branches(model: Model) -> Model:
    """The model with 1 for each GroupNorm scale that is 0 at the start: a hybrid's ResNet would else consist of its shortcuts."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.GroupNorm) and not module.weight.any():
                module.weight.fill_(1)
    return model


def _grid_of(model: nn.Module, side: int, stage: int) -> tuple[int, int]:
    """Places down and across of a layer: a ViT's patches; a ResNet's maps, which a stride of 4 and one of 2 a stage divide."""
    step = model.config.step[0] if isinstance(model, ViT) else 4 << stage
    return -(-side // step), -(-side // step)


def _draw_fields(
    fields: Mapping[str, Floats], curves: Sequence[tuple[str, list[float], list[float], list[float] | None]], style: Style
) -> bytes:
    figure = new_paper(2.9 * len(fields), 6.2, style)
    parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.1))
    top, bottom = parts
    for part in (top, bottom):
        part.set_facecolor(figure.get_facecolor())
    for panel, (name, field_HW) in zip(top.subplots(1, len(fields), squeeze=False)[0], fields.items(), strict=True):
        panel.imshow(field_pixels(field_HW), interpolation="nearest")
        panel.axis("off")
        entitle(panel, f"{name}: last layer", style, size=9)
    axes = bottom.subplots()
    for number, (name, depth, reach, attention) in enumerate(curves):
        colour, mark = COLOURS[style.theme][number], MARKS[number]
        axes.plot(depth, reach, color=colour, marker=mark, markersize=4.5, linewidth=1.4, label=f"{name}: depends on")
        if attention is not None:
            axes.plot(
                depth,
                attention,
                color=colour,
                marker=mark,
                markersize=4.5,
                linewidth=1.2,
                linestyle="--",
                label=f"{name}: attends to",
            )
    axes.set_xlabel("depth, fraction of the layers or stages")
    axes.set_ylabel("mean distance, pixels")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25)
    tint(axes, style)
    for text in axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5)).get_texts():
        text.set_color(INK[style.theme])
    top.suptitle("Which pixels the middle of the image depends on, randomly initialised", color=INK[style.theme], fontsize=10)
    return written(figure, style)


# --- sequences: images one patch high, read by an RNN, an LSTM, and a ViT without a class token -------------------------------

_HIGH = 4


def _models(length: int, width: int, depth: int) -> dict[str, ModelConfig]:
    """An RNN, an LSTM and a ViT of one width and depth that read `length` patches in a row."""
    size, patch = (_HIGH, _HIGH * length), (_HIGH, _HIGH)
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
            images_BCHW = torch.randn(8, 3, _HIGH, _HIGH * length, generator=generator).double().requires_grad_()
            signs_D = torch.randint(0, 2, (width,), generator=generator) * 2.0 - 1
            with evaluating(model), torch.enable_grad():
                (gradient_BCHW,) = torch.autograd.grad((_last_token(model, images_BCHW) * signs_D).sum(), images_BCHW)
            total_N += gradient_BCHW.reshape(8, 3, _HIGH, length, _HIGH).square().sum((1, 2, 4)).sqrt().mean(0)
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
            images_BCHW = torch.randn(1, 3, _HIGH, _HIGH * length, generator=torch.Generator().manual_seed(0))
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


# --- attention between words --------------------------------------------------------------------------------------------------

_ANIMALS = ("animal", "dog", "horse", "child", "hen", "sheep", "goat", "cow", "duck", "man", "woman", "boy")
_PLACES = ("street", "road", "river", "field", "bridge", "square", "valley", "lake", "track", "yard", "canal", "park")
_OF_ANIMALS = ("tired", "scared", "hungry", "lazy", "weak", "sick", "shy", "sleepy")
_OF_PLACES = ("wide", "busy", "long", "crowded", "steep", "deep", "muddy", "icy")
_VERBS = ("cross", "reach", "leave", "enter")
_WORDS = ("The", "didn't", "the", "because", "it", "was", "too", *_ANIMALS, *_PLACES, *_OF_ANIMALS, *_OF_PLACES, *_VERBS)
_NUMBERS = {word: number for number, word in enumerate(_WORDS)}
_IT, _ANIMAL, _PLACE, _ADJECTIVE = 7, 1, 5, 10

SENTENCES = (
    "The animal didn't cross the street because it was too tired",
    "The animal didn't cross the street because it was too wide",
)


class SentenceTransformer(nn.Module):
    """Word and position embeddings, two blocks of a ViT, and the word that "it" means: logits over the vocabulary."""

    def __init__(self, *, width: int = 48, depth: int = 2, heads: int = 4, seed: int = 0) -> None:
        super().__init__()
        config = ViTConfig(width=width, depth=depth, heads=heads, mlp_width=2 * width)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.words = nn.Embedding(len(_WORDS), width)
            self.positions = nn.Parameter(0.1 * torch.randn(11, width))
            self.blocks = nn.ModuleList(Block(config, layer) for layer in range(depth))
            self.head = nn.Linear(width, len(_WORDS))

    def forward(self, words_BN: Tensor, record: Record | None = None) -> Tensor:
        z_BND = self.words(words_BN) + self.positions
        if record is not None:
            record.start(len(self.blocks))
        for layer, block in enumerate(self.blocks):
            z_BND = block(z_BND, AttentionContext(layer=layer, grid=(1, z_BND.shape[1]), prefix=0), record)
        logits_BV: Tensor = self.head(F.layer_norm(z_BND[:, _IT], z_BND.shape[2:]))
        return logits_BV


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sentences:
    """Sentences as numbers of words, (B, N), and the word that "it" means in each."""

    words_BN: Tensor
    meant_B: Tensor


def sentences() -> tuple[Sentences, Sentences]:
    """Training and test sentences: a seventh of the pairs of nouns, the talk's among them, is for the test alone."""
    train, test = list[tuple[list[int], int]](), list[tuple[list[int], int]]()
    for (a, animal), (b, place) in product(enumerate(_ANIMALS), enumerate(_PLACES)):
        held_out = (a + 3 * b) % 7 == 0
        for verb, (adjectives, meant) in product(_VERBS, ((_OF_ANIMALS, animal), (_OF_PLACES, place))):
            for adjective in adjectives:
                made = _numbers(f"The {animal} didn't {verb} the {place} because it was too {adjective}")
                (test if held_out else train).append((made, _NUMBERS[meant]))
    return _stacked(train), _stacked(test)


def _numbers(sentence: str) -> list[int]:
    return [_NUMBERS[word] for word in sentence.split()]


def _stacked(rows: Sequence[tuple[list[int], int]]) -> Sentences:
    return Sentences(words_BN=torch.tensor([words for words, _ in rows]), meant_B=torch.tensor([meant for _, meant in rows]))


def words(progress: ProgressCallback = silent, *, steps: int = 600) -> Explained:
    """Train the small Transformer: what "it" attends to in the talk's sentences, and how often it is right on new sentences."""
    train, test = sentences()
    model = SentenceTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        progress("training a Transformer on sentences", step, steps)
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - step / steps)
        chosen = torch.randint(0, len(train.meant_B), (128,), generator=generator)
        loss = F.cross_entropy(model(train.words_BN[chosen]), train.meant_B[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    rows, seen = [], list[Tensor]()
    with torch.inference_mode():
        right = 100 * float((model(test.words_BN).argmax(1) == test.meant_B).float().mean())
        for sentence in SENTENCES:
            record = Record()
            logits_1V = model(torch.tensor([_numbers(sentence)]), record)
            maps_LHN = torch.stack([attention_1HNN[0, :, _IT] for attention_1HNN in record.attention_BHNN])
            seen.append(maps_LHN)
            mean_N = maps_LHN[-1].mean(0)
            rows.append(
                (
                    {"sentence": f"... it was too {sentence.split()[-1]}", '"it" means': _WORDS[int(logits_1V.argmax())]},
                    {
                        "attends to animal": round(float(mean_N[_ANIMAL]), 3),
                        "to street": round(float(mean_N[_PLACE]), 3),
                        "first layer, to the adjective": round(float(maps_LHN[0].mean(0)[_ADJECTIVE]), 3),
                        "best head, to what it means": round(
                            float(maps_LHN[-1][:, _PLACE if sentence.endswith("wide") else _ANIMAL].max()), 3
                        ),
                    },
                )
            )
    finding = f"{right:.1f} % of {len(test.meant_B):,} sentences with pairs of nouns it never saw together are answered correctly"

    def draw(style: Style) -> bytes:
        return _draw_words(seen, style)

    return Explained(rows=tuple(rows), finding=finding, draw=draw)


def _draw_words(seen: Sequence[Tensor], style: Style) -> bytes:
    """For each sentence and layer the words twice, and a line from "it" to each word as thick as the attention, a colour a head."""
    layers = seen[0].shape[0]
    figure = new_paper(1.8 * len(seen) * layers, 4.4, style)
    panels = figure.subplots(1, len(seen) * layers, squeeze=False)[0]
    for place, axes in enumerate(panels):
        maps_HN = seen[place // layers][place % layers]
        _draw_sentence(axes, SENTENCES[place // layers].split(), maps_HN, style)
        entitle(axes, f"too {SENTENCES[place // layers].split()[-1]}: layer {place % layers}", style, size=9)
    figure.suptitle('What "it" attends to, a colour for each head', color=INK[style.theme], fontsize=10)
    return written(figure, style)


def _draw_sentence(axes: Any, sentence: Sequence[str], maps_HN: Tensor, style: Style) -> None:
    ink = INK[style.theme]
    for number, word in enumerate(sentence):
        asking = number == _IT
        axes.text(
            0.30,
            -number,
            word,
            ha="right",
            va="center",
            fontsize=8,
            color=ink,
            fontweight="bold" if asking else "normal",
            parse_math=False,
        )
        axes.text(0.70, -number, word, ha="left", va="center", fontsize=8, color=ink, parse_math=False)
    heads = len(maps_HN)
    for head, row_N in enumerate(maps_HN.tolist()):
        for number, weight in enumerate(row_N):
            end = -number + 0.5 * ((head + 0.5) / heads - 0.5)
            axes.plot(
                (0.32, 0.68), (-_IT, end), color=COLOURS[style.theme][head], linewidth=4 * weight, alpha=0.8, solid_capstyle="butt"
            )
    axes.set_xlim(0, 1)
    axes.set_ylim(-len(sentence) + 0.4, 0.6)
    axes.axis("off")
