"""How the runs of a study are trained and evaluated, and on which images: small models of every family, the paper's settings in
miniature.

A model is pre-trained with AdamW, warm-up and linear decay (Table 3), evaluated several times on the validation split, and the best
of its weights are kept, as the paper does for its smaller datasets (section 4.3). Then its frozen features are evaluated with 5
labels of each class of another dataset, and it is fine-tuned there with SGD (Table 4).

There is one pack of images to pre-train on and one to transfer to, small enough for many runs:

    images = prepare(Path("runs/scaling"), PackPlan(data="cifar10.npz"))
    subset(images, count=1000, seed=0)      # nested: the first 1,000 of the order that the seed draws

Each image is scaled and cropped to one size once, so that no run decodes it again. The packs are written to `OUT/data` and reused
when the study is resumed.

Axes: N images, H height, W width, C channels.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from vitlab.checkpoints import load
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import Augment, DecodeLimits, LoaderConfig, Preprocess, Split, SplitRule
from vitlab.config.evaluation import EvaluateConfig, FewShotConfig
from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.run import RunConfig, RunData
from vitlab.config.serialize import Json, to_json
from vitlab.config.train import Masked, Optimizer, OptimizerKind, Schedule, TrainConfig, every, warmup_of
from vitlab.config.vit import ViTConfig
from vitlab.config.vit_parts import ResNetStem
from vitlab.data.dataset import Dataset, ImageDataset, listed
from vitlab.data.opening import open_dataset
from vitlab.data.readers.joined import JoinedEntry, Taken, names_digest, open_member, write_joined
from vitlab.data.transforms import EvaluationTransform
from vitlab.errors import ConfigError, DataError, at_least
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.features import labels_of
from vitlab.evaluation.frozen import FrozenConfig, TrainTest, draw, evaluate_frozen
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.interpretation.drawing import Panel
from vitlab.io.atomic import write_bytes, write_text
from vitlab.io.display import ProgressCallback, silent
from vitlab.io.files import read_bytes
from vitlab.recipes.rules import fitted_model, plain_preprocess
from vitlab.studies.study import Counts, Job, counts_of
from vitlab.training.plan import survey
from vitlab.training.run_folder import RunDirectory

# --- the images ---------------------------------------------------------------------------------------------------------------

LETTERS = "synthetic:kind=strokes,classes=100,image_size=32,variety=0.5"
"""The built-in images to pre-train on; `digits` are those to transfer to."""
_HELD_OUT = 0.3  # of the classes, if no other dataset to transfer to is given
_FEWEST_CLASSES = 2  # of a pack
_RULE = SplitRule(val=0.05, test=0.1)  # where the data declares no splits
_SEED = 0  # of the choice of images, if there are more than the plan takes
_PLAN = "images.json"
_SPLITS: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """What is taken from `data` and from `transfer`, as pixels of `side` x `side`.

    `data` None takes synthetic letters and transfers to digits. `transfer` None holds out the last three tenths of the classes of
    `data`. The other numbers are the most images that are taken: `train`, `val` and `test` of `data`; of `transfer`, `each` of a
    class to train on (a quarter of that to validate), and `test`.
    """

    data: str | None = None
    transfer: str | None = None
    side: int = 32
    train: int = 32_000
    val: int = 500
    test: int = 3_000
    each: int = 200

    def __post_init__(self) -> None:
        at_least("side", self.side, 8, 512)
        for name in ("train", "val", "test", "each"):
            at_least(name, getattr(self, name), 1)
        if self.transfer is not None and self.data is None:
            raise ConfigError("transfer needs data to pre-train on", hint="give `data` too")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyImages:
    """The two packs of a study, and sentences about how they were made."""

    pretrain: DataFacts
    transfer: DataFacts
    notes: tuple[str, ...]


def prepare(out: Path, plan: PackPlan, *, progress: ProgressCallback = silent) -> StudyImages:
    """Write both packs to `out/data`, unless they are there. DataError if that folder holds those of another plan."""
    folder = out / "data"
    described = json.dumps(to_json(plan), indent=2)
    known = folder / _PLAN
    if known.exists():
        before = json.loads(read_bytes(known))
        if before.pop("images", None) is None or before != json.loads(described):
            raise DataError(f"{folder} holds the images of a study with other data or another budget", hint="choose another `out`")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        counts = _write(folder, plan, progress)
        write_text(known, json.dumps({**json.loads(described), "images": counts}, indent=2))
    pretrain, transfer = (survey(str(folder / f"{name}.npz")) for name in ("pretrain", "transfer"))
    return StudyImages(pretrain=pretrain, transfer=transfer, notes=tuple(_notes(plan, pretrain, transfer)))


def subset(images: StudyImages, *, count: int, seed: int) -> DataFacts:
    """`count` training images of the pack to pre-train on, the first of the order that `seed` draws; all of val and test."""
    there = images.pretrain.images
    if count > there:
        raise ConfigError(f"{count:,} images to pre-train on are more than the {there:,} there are", hint="use smaller sizes")
    order = np.random.default_rng([_SEED, seed]).permutation(there)
    return _part(images.pretrain, np.sort(order[:count]), f"pretrain-{count}-{seed}")


def few(images: StudyImages, *, shots: int, seed: int) -> DataFacts:
    """`shots` training images of each class of the pack to transfer to, as `seed` draws them; all of val and test."""
    labels_N = labels_of(open_dataset(images.transfer.dataset, split="train"))
    orders = draw(labels_N, classes=images.transfer.classes, seed=seed)
    return _part(images.transfer, np.sort(np.concatenate([order[:shots] for order in orders])), f"transfer-{shots}-{seed}")


def _part(pack: DataFacts, rows: NDArray[np.int64], name: str) -> DataFacts:
    """Some training images of a pack, and its other splits, as a dataset of its own."""
    path = Path(pack.dataset).with_name(f"{name}.json")
    if not path.exists():
        entries = [JoinedEntry(dataset=pack.dataset, split=split, as_split=split) for split in _SPLITS if split in pack.splits]
        opened = [open_member(entry) for entry in entries]
        taken = [Taken(rows=rows.astype(np.int64)) if entry.as_split == "train" else None for entry in entries]
        named = [replace(entry, names=names_digest(dataset)) for entry, dataset in zip(entries, opened, strict=True)]
        write_joined(path, opened[0].labels, list(zip(named, taken, strict=True)))
    return replace(pack, dataset=f"joined:{path}", images=len(rows))


def _notes(plan: PackPlan, pretrain: DataFacts, transfer: DataFacts) -> list[str]:
    data = "synthetic images" if (plan.data or LETTERS).startswith("synthetic") else plan.data
    other = "digits" if plan.data is None else plan.transfer or f"the last {transfer.classes} classes of the same data"
    return [
        f"pre-training: {pretrain.images:,} images of {pretrain.classes} classes of {data}, {plan.side} px",
        f"transfer: to {other}, {transfer.images:,} images of {transfer.classes} classes to fine-tune on",
    ]


def _write(folder: Path, plan: PackPlan, progress: ProgressCallback) -> dict[str, int]:
    """Write both packs; the number of images in each of their splits."""
    spec, other = plan.data or LETTERS, plan.transfer or ("digits" if plan.data is None else None)
    whole = open_dataset(spec, split="all")
    if whole.multi_label:
        raise DataError(f"{spec}: a study needs images of one class each")
    channels = survey(spec, dataset=whole).channels
    kept, held = _classes(whole.labels, spec, hold_out=other is None)
    most = {"train": plan.train, "val": plan.val, "test": plan.test}
    counts = _write_pack(folder / "pretrain.npz", spec, kept, most, plan.side, channels, progress)
    labels = held if other is None else open_dataset(other, split="all").labels
    few = {"train": plan.each * len(labels), "val": max(1, plan.each // 4) * len(labels), "test": plan.test}
    counts |= _write_pack(folder / "transfer.npz", other or spec, labels, few, plan.side, channels, progress)
    return counts


def _classes(labels: tuple[str, ...], spec: str, *, hold_out: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes to pre-train on, and those that are held out to transfer to."""
    held = max(_FEWEST_CLASSES, math.ceil(_HELD_OUT * len(labels))) if hold_out else 0
    if len(labels) - held < _FEWEST_CLASSES:
        raise DataError(
            f"{spec} has {len(labels)} classes, too few to hold some out for the transfer",
            hint="name another dataset with `transfer`",
        )
    return labels[: len(labels) - held], labels[len(labels) - held :]


def _write_pack(
    path: Path, spec: str, labels: tuple[str, ...], most: dict[str, int], side: int, channels: int, progress: ProgressCallback
) -> dict[str, int]:
    """Write the images of these classes, at most so many of each split, and count them."""
    rule = _RULE
    declared = open_dataset(spec, split="all", rule=rule)
    splits: dict[str, Split] = {"train": "train", "val": "val", "test": "test"}
    if isinstance(declared, ImageDataset) and set(declared.splits.tolist()) == {0, 1}:  # a val split, but no test split
        splits["test"] = "val"
        splits.pop("val")
        rule = SplitRule(val=0.0)
    transform = EvaluationTransform(
        preprocess=Preprocess(
            image_size=(side, side), resize_to=side, interpolation="bicubic", mean=(0.5,) * channels, std=(0.5,) * channels
        ),
        limits=DecodeLimits(),
    )
    arrays: dict[str, NDArray[np.generic]] = {"classes": np.array(labels)}
    counts = dict[str, int]()
    for name, split in splits.items():
        dataset = open_dataset(spec, split=split, rule=rule)
        chosen, codes_N = _chosen(dataset, labels, most[name], spec)
        pixels_NHWC = np.empty((len(chosen), side, side, channels), np.uint8)
        for place, index in enumerate(chosen.tolist()):
            sample = dataset.read(index)
            pixels_NHWC[place] = transform.apply(sample.content, name=sample.name)
            if place % 500 == 0 or place + 1 == len(chosen):
                progress(f"{path.stem}: {name} images", place + 1, len(chosen))
        arrays |= {f"{name}_images": pixels_NHWC, f"{name}_labels": codes_N}
        counts[f"{path.stem} {name}"] = len(chosen)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    write_bytes(path, file.getvalue())
    return counts


def _chosen(dataset: Dataset, labels: tuple[str, ...], most: int, spec: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """At most so many images of these classes, drawn at random and equally often, and the class of each."""
    code_of = {label: code for code, label in enumerate(labels)}
    new_C = np.array([code_of.get(label, -1) for label in dataset.labels], np.int64)
    codes_N = new_C[labels_of(dataset)]
    found = np.random.default_rng(_SEED).permutation(np.flatnonzero(codes_N >= 0))
    turn_N = np.zeros(len(found), np.int64)  # the first image of each class, then the second of each, ...
    for code in range(len(labels)):
        of_class = np.flatnonzero(codes_N[found] == code)
        turn_N[of_class] = np.arange(len(of_class))
    chosen = np.sort(found[np.argsort(turn_N, kind="stable")[:most]])
    if not len(chosen):
        raise DataError(f"{spec}: a split has no image of the classes {listed(labels)}")
    return chosen, codes_N[chosen]


# --- models and training ------------------------------------------------------------------------------------------------------

SIDE = 32  # pixels
BATCH = 64
SHOTS = 5
DRAWS = 20  # of 5 labels a class; their mean is one accuracy

_EVALUATIONS = 6  # of the validation split in a run
_PATIENCE = 3  # of them without improvement end a run
_WARMUP = 0.1  # of the steps
_FINETUNE_LR = 0.01
_EVALUATION = EvaluateConfig(workers=0, resamples=0, backend="torch", batch_size=128)


def vit(width: int, depth: int, heads: int, patch: int = 8) -> ViTConfig:
    """A small ViT that averages its tokens."""
    return ViTConfig(
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=4 * width,
        patch_size=(patch, patch),
        image_size=(SIDE, SIDE),
        pool="mean",
        class_token=False,
    )


def _hybrid(width: int, depth: int, heads: int, stem: int) -> ViTConfig:
    return replace(vit(width, depth, heads, 2), stem=ResNetStem(blocks=(1,), width=stem, groups=16))


def _bit(first: int) -> ResNetConfig:
    widths = (first, 2 * first, 4 * first)
    return ResNetConfig(blocks=(1, 1, 1), stage_widths=widths, root_width=32, groups=16, image_size=(SIDE, SIDE))


def _convnext(depths: tuple[int, ...], first: int) -> ConvNeXtConfig:
    widths = (first, 2 * first, 4 * first)
    return ConvNeXtConfig(depths=depths, widths=widths, patch_size=4, layer_scale=0.1, image_size=(SIDE, SIDE))


def _lstm(width: int, depth: int) -> RecurrentConfig:
    return RecurrentConfig(cell="lstm", width=width, depth=depth, patch_size=(8, 8), image_size=(SIDE, SIDE))


# Each family in sizes of about 6, 14 and 30 million multiply-adds an image, smallest first.
MODELS: dict[str, dict[str, ModelConfig]] = {
    "ViT": {"ViT 96/8": vit(96, 3, 3), "ViT 128/8": vit(128, 4, 4), "ViT 192/8": vit(192, 4, 6)},
    "hybrid": {"hybrid 96": _hybrid(96, 3, 3, 16), "hybrid 128": _hybrid(128, 4, 4, 32), "hybrid 192": _hybrid(192, 4, 6, 32)},
    "BiT": {"BiT 128": _bit(128), "BiT 192": _bit(192), "BiT 320": _bit(320)},
    "ConvNeXt": {
        "ConvNeXt 48": _convnext((1, 2, 1), 48),
        "ConvNeXt 64": _convnext((2, 3, 1), 64),
        "ConvNeXt 96": _convnext((2, 3, 1), 96),
    },
    "LSTM": {"LSTM 192": _lstm(192, 1), "LSTM 224": _lstm(224, 2), "LSTM 352": _lstm(352, 2)},
}  # fmt: skip

# The peak learning rate of AdamW for batches of 64: the best of those tried on validation images (docs/log.md).
LEARNING_RATES: dict[str, float] = {"ViT": 1e-3, "hybrid": 1e-3, "BiT": 2e-3, "ConvNeXt": 2e-3, "LSTM": 2e-3}


def family_of(name: str) -> str:
    """The family of a model of `MODELS`."""
    return next(family for family, models in MODELS.items() if name in models)


def config_of(name: str) -> ModelConfig:
    """The config of a model of `MODELS`."""
    return MODELS[family_of(name)][name]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """The length of a study: its images, the images `seen` by each pre-training run in all, the `steps` of each fine-tuning."""

    images: PackPlan = field(default_factory=PackPlan)
    seen: int = 24_000
    seeds: int = 3
    steps: int = 60

    def __post_init__(self) -> None:
        for name in ("seen", "seeds", "steps"):
            at_least(name, getattr(self, name), 1)


_LETTERS = "synthetic:kind=strokes,classes=20,samples_per_class=80,image_size=32,variety=0.5"
TINY = PackPlan(data=_LETTERS, transfer="digits", train=640, val=80, test=200, each=10)
LONG = PackPlan(train=100_000, test=10_000, each=500)
PLANS: dict[str, StudyPlan] = {
    "tiny": StudyPlan(images=TINY, seen=256, seeds=2, steps=4),
    "default": StudyPlan(),
    "long": StudyPlan(images=LONG, seen=200_000, seeds=5, steps=500),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regularisation:
    """The three settings that the paper varies for small datasets (section 4.3)."""

    name: str
    weight_decay: float
    dropout: float
    smoothing: float


LIGHT = Regularisation(name="light", weight_decay=0.1, dropout=0.0, smoothing=0.0)
STRONG = Regularisation(name="strong", weight_decay=0.3, dropout=0.1, smoothing=0.1)


def pretraining(
    model: ModelConfig,
    data: DataFacts,
    *,
    seen: int,
    seed: int,
    lr: float,
    regularisation: Regularisation = LIGHT,
    optimizer: OptimizerKind = "adamw",
    masked: Masked | None = None,
) -> RunConfig:
    """Train from scratch on `seen` images in all, evaluate six times on the validation split, and keep the best weights."""
    model = _regularised(for_data(model, data), regularisation)
    batch = min(BATCH, data.images)
    steps = max(2, round(seen / batch))
    interval = every(steps, times=_EVALUATIONS)
    decay = regularisation.weight_decay if optimizer == "adamw" else 1e-4  # SGD's is not decoupled in the BiT paper
    return RunConfig(
        name="study",
        model=model,
        data=_run_data(model, data, batch, seed, evaluate="val"),
        train=TrainConfig(
            steps=steps,
            optimizer=Optimizer(kind=optimizer, lr=lr, weight_decay=decay),
            schedule=Schedule(kind="linear", warmup=warmup_of(steps, fraction=_WARMUP, most=steps)),
            smoothing=0.0 if masked else regularisation.smoothing,
            masked=masked,
            evaluate_every=interval,
            save_every=interval,
            patience=0 if masked else _PATIENCE,
            seed=seed,
        ),
        preprocess=plain_preprocess(model, margin=1.0, interpolation="bicubic"),
    )


def finetuning(
    model: ModelConfig,
    data: DataFacts,
    *,
    steps: int,
    seed: int,
    start: Path | None,
    optimizer: Optimizer = Optimizer(kind="sgd", lr=_FINETUNE_LR),  # noqa: B008 (a frozen value)
) -> RunConfig:
    """Fine-tune the model in the folder `start`, or train from scratch, on all training images of `data`; cosine decay."""
    model = fitted_model(for_data(model, data), (SIDE, SIDE), data.classes)
    return RunConfig(
        name="study-finetune",
        model=model,
        data=_run_data(model, data, min(BATCH, data.images), seed, evaluate=None),
        train=TrainConfig(
            steps=steps,
            optimizer=optimizer,
            schedule=Schedule(kind="cosine", warmup=warmup_of(steps, fraction=_WARMUP, most=steps)),
            seed=seed,
        ),
        preprocess=plain_preprocess(model, margin=1.0, interpolation="bicubic"),
        start=None if start is None else str(start / "model.safetensors"),
    )


def for_data(model: ModelConfig, data: DataFacts) -> ModelConfig:
    """The model for the channels and classes of the data."""
    return replace(model, channels=data.channels, num_classes=data.classes)


def _regularised(model: ModelConfig, regularisation: Regularisation) -> ModelConfig:
    """The model with dropout, if its family has it: a BiT has none."""
    if isinstance(model, ViTConfig | ConvNeXtConfig | RecurrentConfig):
        return replace(model, dropout=regularisation.dropout)
    return model


def _run_data(model: ModelConfig, data: DataFacts, batch: int, seed: int, *, evaluate: Split | None) -> RunData:
    flip = 0.0 if data.channels == 1 else 0.5  # a mirrored letter is another letter
    augment = Augment(image_size=model.image_size, crop="pad", padding=SIDE // 8, flip=flip, fill=0 if data.channels == 1 else 128)
    loader = LoaderConfig(batch_size=batch, seed=seed, workers=0)
    return RunData(dataset=data.dataset, evaluate_split=evaluate, augment=augment, loader=loader)


# --- evaluation ---------------------------------------------------------------------------------------------------------------


def pretrained_job(name: str, title: str, run: RunConfig, out: Path, transfer: DataFacts) -> Job:
    """A pre-training run that is evaluated on its own data and with 5 labels a class of `transfer`."""
    return Job(name=name, title=title, run=run, out=out / name, evaluate=partial(evaluate_pretrained, transfer=transfer.dataset))


def finetuned_job(name: str, title: str, run: RunConfig, out: Path, *, after: Sequence[str] = ()) -> Job:
    """A fine-tuning run that is evaluated on the test split."""
    return Job(name=name, title=title, run=run, out=out / name, evaluate=evaluate_finetuned, after=tuple(after))


def evaluate_pretrained(job: Job, *, transfer: str) -> dict[str, Json]:
    """Accuracy on val and test, 5-shot accuracies on another dataset, and the images that the run has seen."""
    found: dict[str, Json] = {}
    if job.run.train.masked is None:
        for split in ("val", "test"):
            found[split] = _counted(job, split)
    found["few_shot"] = list(_few_shot(job, transfer))
    found["seen"] = max(RunDirectory(job.out).steps(), default=0) * job.run.data.loader.batch_size
    return found


def evaluate_finetuned(job: Job) -> dict[str, Json]:
    """Accuracy on the test split."""
    return {"test": _counted(job, "test")}


def _counted(job: Job, split: Split) -> Json:
    checkpoint = load(job.out / "model.safetensors")
    dataset = open_dataset(job.run.data.dataset, split=split, rule=job.run.data.rule)
    targets = match_by_name(dataset.labels, checkpoint.labels, classes=checkpoint.config.num_classes)
    result = evaluate(checkpoint, dataset, targets, config=_EVALUATION).result
    assert isinstance(result, Classification)
    return to_json(Counts(correct=result.top1.correct, total=result.top1.total))


def _few_shot(job: Job, transfer: str) -> Sequence[float]:
    checkpoint = load(job.out / "model.safetensors")
    splits = TrainTest(train=open_dataset(transfer, split="train"), test=open_dataset(transfer, split="test"))
    methods = FrozenConfig(few_shot=FewShotConfig(shots=(SHOTS,), seeds=tuple(range(DRAWS))))
    return evaluate_frozen(checkpoint, splits, methods, config=_EVALUATION, cache=False).few_shot[0].accuracies


def few_shot_of(result: dict[str, Json]) -> float:
    """The mean 5-shot accuracy that `evaluate_pretrained` measured."""
    accuracies = result["few_shot"]
    assert isinstance(accuracies, list)
    return fmean(value for value in accuracies if isinstance(value, float | int))


def accuracy_of(result: dict[str, Json], split: str) -> float:
    """The accuracy on a split, 0 to 1."""
    return counts_of(result, split).accuracy


def seen_of(result: dict[str, Json]) -> int:
    """The images that a pre-training run has seen before it ended."""
    seen = result["seen"]
    assert isinstance(seen, int)
    return seen


def refuse_unknown(families: Sequence[str]) -> None:
    """ConfigError if a family is not in `MODELS`."""
    for family in families:
        if family not in MODELS:
            raise ConfigError(f"no family called {family!r}", hint=f"they are {', '.join(MODELS)}")


def seeds_panel(axis: str, values: Sequence[Sequence[float]]) -> Panel:
    """A panel of a dot chart: the mean over the seeds in percent and, of several seeds, their deviation."""
    seeds = max(map(len, values), default=0)
    return Panel(
        axis=axis,
        title="" if seeds < 2 else f"mean of {seeds} seeds ± deviation",
        values=[100 * fmean(row) for row in values],
        spread=None if seeds < 2 else [100 * stdev(row) for row in values],
    )
