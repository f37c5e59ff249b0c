"""How the runs of a study are trained and evaluated: small models of every family, the paper's settings in miniature.

A model is pre-trained with AdamW, warm-up and linear decay (Table 3), evaluated several times on the validation split, and the best
of its weights are kept, as the paper does for its smaller datasets (section 4.3). Then its frozen features are evaluated with 5
labels of each class of another dataset, and it is fine-tuned there with SGD (Table 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from vitlab.checkpoints import load
from vitlab.config.convnext import ConvNeXtConfig
from vitlab.config.data import Augment, LoaderConfig, Split
from vitlab.config.evaluation import EvaluateConfig, FewShotConfig
from vitlab.config.model import ModelConfig
from vitlab.config.overrides import DataFacts
from vitlab.config.recurrent import RecurrentConfig
from vitlab.config.resnet import ResNetConfig
from vitlab.config.run import RunConfig, RunData
from vitlab.config.scaling import every, warmup_of
from vitlab.config.serialize import Json, to_json
from vitlab.config.stems import ResNetStem
from vitlab.config.train import Masked, Optimizer, OptimizerKind, Schedule, TrainConfig
from vitlab.config.vit import ViTConfig
from vitlab.data.opening import open_dataset
from vitlab.errors import ConfigError, at_least
from vitlab.evaluation.classification import Classification
from vitlab.evaluation.evaluation import evaluate
from vitlab.evaluation.frozen import FrozenConfig, TrainTest, evaluate_frozen
from vitlab.evaluation.label_mapping import match_by_name
from vitlab.interpretation.drawing import Panel
from vitlab.recipes.rules import fitted_model, plain_preprocess
from vitlab.studies.packs import PackPlan
from vitlab.studies.runner import Counts, Job, counts_of
from vitlab.training.run_folder import RunDirectory

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
