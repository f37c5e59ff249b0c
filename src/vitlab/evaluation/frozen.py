"""Evaluate frozen features: few-shot least squares, k nearest neighbours, and a linear probe, with the model left as it is.

    splits = open_train_test("pets/", None, checkpoint)
    evaluate_frozen(checkpoint, splits, FrozenConfig(few_shot=FewShotConfig(), knn=KnnConfig(), probe=ProbeConfig()))

Features are extracted once for all three methods, and only of the images that are needed.

Few-shot (sec. 4.1): regularised least squares from features to {-1, 1}^K in closed form, as in big_vision: features are whitened
by the mean and deviation of the training images, a constant feature of 100 is appended and regularised like the others (so large
that its coefficient, the bias, hardly is), and the strength is fixed. k-NN: Wu et al. 2018, and DINO after it: the k nearest by
cosine vote for their classes, each with weight exp(cosine / temperature). Probe: multinomial logistic regression on whitened
features, to convergence, its regularisation chosen as in CLIP. It uses PyTorch's L-BFGS rather than scikit-learn: no further
package is needed, each fit of the search starts from the one before it, and the gradient at the end is reported. Both minimise the
same function; a test compares their probabilities.

Axes: N training images, M test images, B some of them, D width of the features, E = D + 1 with the constant, K classes, k
neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitlab.checkpoints.checkpoint import Checkpoint
from vitlab.config.data import Split, SplitRule
from vitlab.config.evaluation import EvaluateConfig, FewShotConfig, KnnConfig, ProbeConfig
from vitlab.config.serialize import Json
from vitlab.data.batch import Failure
from vitlab.data.dataset import SPLITS, Dataset, ImageDataset, LabelTable
from vitlab.data.opening import open_dataset
from vitlab.data.split import TRAIN, VAL, assign_splits
from vitlab.data.synthetic import SyntheticDataset
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.evaluation import engine_for, first_is_unlabelled, trained_on
from vitlab.evaluation.features import Features, FeatureStore, Subset, digests_of, extract_features, joined, labels_of, model_key
from vitlab.inference.backends import evaluating
from vitlab.io.display import Block, Displayed, ProgressCallback, silent

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONSTANT = 100.0
_SMALLEST = 1e-5  # added to a deviation, as in big_vision: a feature that never changes stays 0
_SCORED_AT_ONCE = 4096  # images whose few-shot scores are in memory
_COSINES_AT_ONCE = 2**25  # 128 MB
_HISTORY = 20  # of L-BFGS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTest:
    """A training set and a test set, and what was decided about them, a sentence each."""

    train: Dataset
    test: Dataset
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenConfig:
    """The methods to use; None leaves a method out."""

    few_shot: FewShotConfig | None = None
    knn: KnnConfig | None = None
    probe: ProbeConfig | None = None

    def __post_init__(self) -> None:
        if self.few_shot is None and self.knn is None and self.probe is None:
            raise ConfigError("no method is chosen", hint="choose few_shot, knn, probe, or several of them")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FrozenEvaluation(Displayed):
    """The accuracy of each method. There were `train_images` and `test_images`, of `classes` classes.

    `read` features were extracted now and `cached` were known; `seconds` says how long each step took.
    """

    classes: int
    train_images: int
    test_images: int
    read: int
    cached: int
    few_shot: tuple[FewShot, ...] = ()
    knn: tuple[Neighbours, ...] = ()
    probe: Probe | None = None
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: dict[str, float]

    @property
    def metrics(self) -> dict[str, float]:
        """The accuracies, from 0 to 1, by name."""
        found = {f"few_shot_{shot.shots}": shot.mean for shot in self.few_shot}
        found |= {f"knn_{near.k}": near.accuracy for near in self.knn}
        return found if self.probe is None else found | {"probe": self.probe.accuracy}

    def to_json(self) -> dict[str, Json]:
        """Everything but the weights of the probe, as plain values."""
        return {
            "classes": self.classes,
            "train_images": self.train_images,
            "test_images": self.test_images,
            "unreadable": [{"name": failure.name, "reason": failure.reason} for failure in self.failures],
            "features_extracted": self.read,
            "features_cached": self.cached,
            "few_shot": [
                {
                    "shots": shot.shots,
                    "accuracy": shot.mean,
                    "deviation": shot.deviation,
                    "accuracies": list(shot.accuracies),
                    "classes_with_fewer": list(shot.short),
                }
                for shot in self.few_shot
            ],
            "knn": [{"k": near.k, "accuracy": near.accuracy, "correct": near.correct, "total": near.total} for near in self.knn],
            "probe": None if self.probe is None else self.probe.to_json(),
            "seconds": dict(self.seconds),
        }

    def tables(self) -> Iterator[Block]:
        """A row for each method."""
        yield self._rows()

    def _rows(self) -> list[dict[str, Json]]:
        rows: list[dict[str, Json]] = []
        for shot in self.few_shot:
            each = " ".join(f"{100 * value:.2f}" for value in shot.accuracies)
            deviation = f"{100 * shot.deviation:.2f}" if len(shot.accuracies) > 1 else None
            rows.append({"method": f"{shot.shots}-shot", "accuracy": percent(shot.mean), "deviation": deviation, "details": each})
        for near in self.knn:
            counts = f"{near.correct:,} of {near.total:,}"
            rows.append({"method": f"{near.k}-NN", "accuracy": percent(near.accuracy), "deviation": None, "details": counts})
        if self.probe is not None:
            details = self.probe.details()
            rows.append({"method": "linear probe", "accuracy": percent(self.probe.accuracy), "deviation": None, "details": details})
        return rows


def percent(value: float) -> str:
    """A ratio as it is printed."""
    return f"{100 * value:.2f} %"


def open_train_test(spec: str, split: Split | None, checkpoint: Checkpoint, *, label_column: str | None = None) -> TrainTest:
    """The test set and, apart from it, a training set.

    If `split` is None the test set is the declared `test` split, else the declared `val`; data without declared splits is split by
    the hash of its content. The training set is everything else that may be trained on.
    """
    rule = trained_on(spec, checkpoint) or SplitRule()
    whole = open_dataset(spec, split="all", label_column=label_column)
    declared = {SPLITS[part] for part in set(whole.splits.tolist()) if part >= 0} if isinstance(whole, ImageDataset) else set()
    if split is None:
        split = "val" if "val" in declared and "test" not in declared else "test"
        if split == "test" and isinstance(whole, ImageDataset) and "val" in declared and first_is_unlabelled(whole, split):
            split = "val"
    if split not in ("test", "val"):
        raise ConfigError(f"split={split} leaves no images to train on", hint="use split=test or split=val")
    others: Split = "train+val" if split == "test" else "train"
    train = open_dataset(spec, split=others, rule=rule, label_column=label_column)
    test = open_dataset(spec, split=split, rule=rule, label_column=label_column)
    notes = [] if isinstance(whole, SyntheticDataset) else _notes(train, test)
    trained = "trained on all other images" if not declared else f"trained on {others}"
    return TrainTest(train=train, test=test, notes=(*notes, f"{trained}, evaluated on {split}"))


def _notes(*datasets: Dataset) -> list[str]:
    return list(dict.fromkeys(note for dataset in datasets if isinstance(dataset, ImageDataset) for note in dataset.notes))


def evaluate_frozen(
    checkpoint: Checkpoint,
    splits: TrainTest,
    methods: FrozenConfig,
    *,
    config: EvaluateConfig = EvaluateConfig(),  # noqa: B008 (a frozen value)
    cache: bool = True,
    progress: ProgressCallback = silent,
) -> FrozenEvaluation:
    """Evaluate the chosen methods; with `cache`, features are kept in the user's cache folder and found there the next time."""
    if splits.train.labels != splits.test.labels:
        raise DataError("the training set and the test set have different classes")
    labels_N, _ = labels_of(splits.train), labels_of(splits.test)
    store = FeatureStore(model_key(checkpoint)) if cache else None
    clock = _Clock()
    needed = splits.train
    if methods.knn is None and methods.probe is None and methods.few_shot is not None:
        drawn = drawn_by_any(labels_N, classes=len(splits.train.labels), config=methods.few_shot)
        needed = Subset(dataset=splits.train, indices=drawn)
    with evaluating(checkpoint.model):
        engine = engine_for(checkpoint, config)
        train, test = (
            extract_features(
                checkpoint, dataset, config=config, store=store, engine=engine, description=description, progress=progress
            )
            for dataset, description in ((needed, "training images"), (splits.test, "test images"))
        )
    if isinstance(needed, Subset):
        train = replace(train, indices_N=needed.indices[train.indices_N])
    clock.read("features")
    shots = () if methods.few_shot is None else tuple(few_shot(train, test, methods.few_shot, labels=labels_N))
    clock.read("few_shot")
    neighbours = () if methods.knn is None else knn(train, test, methods.knn)
    clock.read("knn")
    fitted = None if methods.probe is None else _probe(train, test, splits.train, methods.probe, progress)
    clock.read("probe")
    cached = train.cached + test.cached
    return FrozenEvaluation(
        classes=len(splits.train.labels),
        train_images=len(splits.train),
        test_images=test.total,
        read=len(train) + len(test) - cached,
        cached=cached,
        few_shot=shots,
        knn=neighbours,
        probe=fitted,
        failures=(*train.failures, *test.failures),
        notes=tuple(dict.fromkeys((*splits.notes, *train.notes, *test.notes, *_short_notes(shots)))),
        seconds=clock.seconds,
    )


def _probe(train: Features, test: Features, dataset: Dataset, config: ProbeConfig, progress: ProgressCallback) -> Probe:
    held_N = held_out(dataset)[train.indices_N]
    if held_N.all() or not held_N.any():
        raise DataError("too few images can be read to hold some out, which the probe needs to choose its regularisation")
    return probe(select(train, ~held_N), select(train, held_N), test, config, progress=lambda fits, _: progress("fits", fits, None))


def held_out(dataset: Dataset) -> NDArray[np.bool_]:
    """Which training images are held out to choose by: the declared `val` split, else a tenth by the hash of content."""
    if isinstance(dataset, ImageDataset) and set(np.unique(dataset.splits).tolist()) == {TRAIN, VAL}:
        return np.asarray(dataset.splits == VAL)
    table = LabelTable(codes=labels_of(dataset).astype(np.int32))
    splits = assign_splits(digests_of(dataset), table, SplitRule(test=0), labels=dataset.labels, where="the training set")
    return np.asarray(splits == VAL)


def select(features: Features, chosen_N: NDArray[np.bool_]) -> Features:
    """The chosen rows, without failures."""
    return replace(
        features,
        features_ND=features.features_ND[chosen_N],
        labels_N=features.labels_N[chosen_N],
        indices_N=features.indices_N[chosen_N],
        failures=(),
        cached=0,
    )


def _short_notes(shots: tuple[FewShot, ...]) -> Iterator[str]:
    for shot in shots:
        if shot.short:
            more = f" and {len(shot.short) - 3:,} more" if len(shot.short) > 3 else ""
            yield f"classes with fewer than {shot.shots} images use all they have: {', '.join(shot.short[:3])}{more}"


class _Clock:
    """Seconds since it was last read, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def read(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ridge:
    """A linear classifier: the scores of K classes are ((x - mean) / deviation, 100) @ weights."""

    mean_D: Floats
    deviation_D: Floats
    weights_EK: Floats

    def scores(self, x_MD: NDArray[np.floating]) -> Floats:
        """(M, K), near 1 for the class of an image and near -1 for the others."""
        scores_MK: Floats = _with_constant((x_MD - self.mean_D) / self.deviation_D) @ self.weights_EK
        return scores_MK

    def correct(self, features: Features) -> int:
        """How many images have their highest score in their own class."""
        rows = range(0, len(features), _SCORED_AT_ONCE)
        return sum(
            int(np.count_nonzero(self.scores(features.features_ND[row : row + _SCORED_AT_ONCE]).argmax(1) == labels))
            for row in rows
            for labels in [features.labels_N[row : row + _SCORED_AT_ONCE]]
        )


def ridge(x_ND: NDArray[np.floating], labels_N: Ints, *, classes: int, l2: float) -> Ridge:
    """Minimise ||x W - y||^2 + l2 ||W||^2 over the whitened images, with y = 1 for the class and -1 elsewhere.

    One symmetric matrix is decomposed, x'x or xx', whichever is smaller; in float64, so that the constant's 10^4 N beside the
    features' N costs no digits that matter.
    """
    wide_ND = x_ND.astype(np.float64)
    mean_D, deviation_D = wide_ND.mean(0), wide_ND.std(0) + _SMALLEST
    x_NE = _with_constant((wide_ND - mean_D) / deviation_D)
    y_NK = np.where(labels_N[:, None] == np.arange(classes), 1.0, -1.0)
    return Ridge(mean_D=mean_D, deviation_D=deviation_D, weights_EK=solve(x_NE, y_NK, l2, wide=len(x_NE) < x_NE.shape[1]))


def solve(x_NE: Floats, y_NK: Floats, l2: float, *, wide: bool) -> Floats:
    """(x'x + l2)^-1 x'y, or with `wide` the same as x'(xx' + l2)^-1 y, which is cheaper for fewer images than features."""
    values, vectors = np.linalg.eigh(x_NE @ x_NE.T if wide else x_NE.T @ x_NE)
    target = vectors.T @ (y_NK if wide else x_NE.T @ y_NK)
    # Rounding makes eigenvalues of 0 slightly negative; l2 > 0 keeps the division safe.
    weights = vectors @ (target / (np.maximum(values, 0.0) + l2)[:, None])
    weights_EK: Floats = x_NE.T @ weights if wide else weights
    return weights_EK


def draw(labels_N: Ints, *, classes: int, seed: int) -> list[Ints]:
    """The images of each class in the order in which they are drawn: few shots are the first of more.

    The order of a class depends only on (seed, class) and on its own images, so other classes do not change it.
    """
    in_order = np.argsort(labels_N, kind="stable")
    ends = np.searchsorted(labels_N[in_order], np.arange(1, classes))
    groups = np.split(in_order.astype(np.int64), ends)
    return [np.random.default_rng([seed, code]).permutation(group) for code, group in enumerate(groups)]


def drawn_by_any(labels_N: Ints, *, classes: int, config: FewShotConfig) -> Ints:
    """The images that any seed draws, in order: no other image need be read."""
    most = max(config.shots)
    orders = [order[:most] for seed in config.seeds for order in draw(labels_N, classes=classes, seed=seed)]
    return np.unique(np.concatenate(orders))


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot:
    """Accuracy, from 0 to 1, at one number of shots: of each seed, their mean, and their sample deviation (0 of one seed).

    `short` are classes with fewer images than that; they use all they have.
    """

    shots: int
    accuracies: tuple[float, ...]
    short: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """Between the seeds."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else 0.0


def few_shot(
    train: Features,
    test: Features,
    config: FewShotConfig = FewShotConfig(),  # noqa: B008 (a frozen value)
    *,
    labels: Ints | None = None,
) -> Iterator[FewShot]:
    """Train on a few images of each class and evaluate on all of `test`, where an unreadable image is wrong.

    `labels` are the classes of all images of the dataset that the indices of `train` refer to, if `train` has only some of them
    (those of `drawn_by_any`, or those that could be read): the same images are then drawn as if it had all.
    """
    _check_classes(train, test)
    classes = len(train.names)
    whole = train.labels_N if labels is None else labels
    places = np.arange(len(train)) if labels is None else train.indices_N
    row_of = {place: row for row, place in enumerate(places.tolist())}
    counts = np.bincount(whole, minlength=classes)
    if not counts.all():
        raise DataError(f"{train.names[int(counts.argmin())]} has no training image")
    orders = {seed: draw(whole, classes=classes, seed=seed) for seed in config.seeds}
    for shots in config.shots:
        accuracies = []
        for seed in config.seeds:
            rows = _rows(orders[seed], shots, row_of)
            rule = ridge(train.features_ND[rows], train.labels_N[rows], classes=classes, l2=config.l2)
            accuracies.append(rule.correct(test) / test.total)
        short = tuple(name for name, count in zip(train.names, counts.tolist(), strict=True) if count < shots)
        yield FewShot(shots=shots, accuracies=tuple(accuracies), short=short)


def _rows(orders: Sequence[Ints], shots: int, row_of: dict[int, int]) -> list[int]:
    """The rows of the first images of each class; one that could not be read is not replaced."""
    return [row_of[place] for order in orders for place in order[:shots].tolist() if place in row_of]


def _with_constant(x_ND: Floats) -> Floats:
    return np.concatenate([x_ND, np.full((len(x_ND), 1), CONSTANT)], axis=1)


def _check_classes(*several: Features) -> None:
    if len({features.names for features in several}) > 1:
        raise DataError("the training set and the test set have different classes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """How many test images are classified correctly by their `k` nearest; `total` counts unreadable ones too."""

    k: int
    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        """From 0 to 1."""
        return self.correct / self.total


def knn(
    train: Features,
    test: Features,
    config: KnnConfig = KnnConfig(),  # noqa: B008 (a frozen value)
) -> tuple[Neighbours, ...]:
    """Evaluate on every image of `test`, for each k; of equal votes the first class wins."""
    _check_classes(train, test)
    most = max(config.k)
    if most > len(train):
        raise DataError(f"k={most} neighbours of {len(train):,} images", hint="use fewer neighbours")
    correct = dict.fromkeys(config.k, 0)
    for rows, votes in _votes(unit(train.features_ND), train.labels_N, unit(test.features_ND), len(train.names), config):
        for k, votes_BK in votes:
            correct[k] += int(np.count_nonzero(votes_BK.argmax(1) == test.labels_N[rows]))
    return tuple(Neighbours(k=k, correct=correct[k], total=test.total) for k in config.k)


def unit(x_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows scaled to length 1; a row of zeros stays zero."""
    length_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
    rows_ND = np.zeros_like(x_ND)
    np.divide(x_ND, length_N1, out=rows_ND, where=length_N1 > 0)
    return rows_ND


_Votes = Iterator[tuple[int, Floats]]


def _votes(
    train_ND: NDArray[np.float32], labels_N: Ints, test_MD: NDArray[np.float32], classes: int, config: KnnConfig
) -> Iterator[tuple[slice, _Votes]]:
    """Test images a slice at a time, and for each k the votes of their neighbours."""
    step = max(1, _COSINES_AT_ONCE // len(train_ND))
    for start in range(0, len(test_MD), step):
        cosine_BN = test_MD[start : start + step] @ train_ND.T
        nearest_Bk = _nearest(cosine_BN, max(config.k))
        cosine_Bk = np.take_along_axis(cosine_BN, nearest_Bk, 1).astype(np.float64)
        # Relative to the nearest: the factor is the same for all neighbours of an image, and nothing overflows.
        weight_Bk = np.exp((cosine_Bk - cosine_Bk[:, :1]) / config.temperature)
        yield slice(start, start + len(cosine_BN)), _counted(labels_N[nearest_Bk], weight_Bk, classes, config.k)


def _counted(labels_Bk: Ints, weight_Bk: Floats, classes: int, several: tuple[int, ...]) -> _Votes:
    votes_BK = np.zeros((len(labels_Bk), classes))
    row_B = np.arange(len(labels_Bk))
    before = 0
    for k in several:
        for place in range(before, k):
            votes_BK[row_B, labels_Bk[:, place]] += weight_Bk[:, place]
        before = k
        yield k, votes_BK


def _nearest(cosine_BN: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """The k best of each row, best first; of equal ones the first in order."""
    if k < cosine_BN.shape[1]:
        some_Bk = np.sort(np.argpartition(-cosine_BN, k - 1, axis=1)[:, :k], axis=1)
    else:
        some_Bk = np.broadcast_to(np.arange(k), (len(cosine_BN), k))
    order_Bk = np.argsort(-np.take_along_axis(cosine_BN, some_Bk, 1), axis=1, kind="stable")
    return np.take_along_axis(some_Bk, order_Bk, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linear:
    """A fitted classifier: the logits of K classes are ((x - mean) / deviation) @ weights + bias.

    `gradient` is the largest entry of the gradient of the mean loss at the end, after `steps`; `converged` says whether it is below
    the tolerance.
    """

    mean_D: Floats
    deviation_D: Floats
    weights_DK: Floats
    bias_K: Floats
    l2: float
    gradient: float
    steps: int
    converged: bool

    def logits(self, x_ND: NDArray[np.floating]) -> Floats:
        """(N, K)"""
        logits_NK: Floats = ((x_ND - self.mean_D) / self.deviation_D) @ self.weights_DK + self.bias_K
        return logits_NK


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """The result of a probe: `correct` of `total` test images, unreadable ones counted as wrong.

    `tried` lists each strength that was fitted with its accuracy on the held-out images, weakest first; `classifier` is the fit to
    all training images with the best strength.
    """

    correct: int
    total: int
    classifier: Linear
    tried: tuple[tuple[float, float], ...]

    @property
    def accuracy(self) -> float:
        """From 0 to 1."""
        return self.correct / self.total

    def details(self) -> str:
        """Counts, strength and convergence in one line."""
        fitted = self.classifier
        converged = "converged" if fitted.converged else "NOT converged"
        return f"{self.correct:,} of {self.total:,}; l2 {fitted.l2:.3g}, {converged} (gradient {fitted.gradient:.1e})"

    def to_json(self) -> dict[str, Json]:
        """Everything but the weights."""
        return {
            "accuracy": self.accuracy,
            "correct": self.correct,
            "total": self.total,
            "l2": self.classifier.l2,
            "converged": self.classifier.converged,
            "gradient": self.classifier.gradient,
            "steps": self.classifier.steps,
            "tried": [{"l2": l2, "held_out_accuracy": accuracy} for l2, accuracy in self.tried],
        }


def probe(
    train: Features,
    val: Features,
    test: Features,
    config: ProbeConfig = ProbeConfig(),  # noqa: B008 (a frozen value)
    *,
    progress: Callable[[int, float], None] = lambda fits, l2: None,
) -> Probe:
    """Choose the strength on `val`, fit `train` and `val` together with it, and evaluate on `test`.

    `progress` is called with the number of fits done and the last strength.
    """
    _check_classes(train, val, test)
    start, tried = choose_strength(train, val, config, progress=progress)
    classifier = fit(joined([train, val]), classes=len(train.names), l2=start.l2, config=config, start=start)
    correct = int(np.count_nonzero(classifier.logits(test.features_ND).argmax(1) == test.labels_N))
    return Probe(
        correct=correct,
        total=test.total,
        classifier=classifier,
        tried=tried,
    )


def choose_strength(
    train: Features,
    val: Features,
    config: ProbeConfig,
    *,
    progress: Callable[[int, float], None] = lambda fits, l2: None,
) -> tuple[Linear, tuple[tuple[float, float], ...]]:
    """The fit to `train` whose strength is best on `val`, and each strength that was tried with its accuracy, weakest first."""
    grid = config.grid()
    tried: dict[int, tuple[float, float]] = {}
    before: dict[int, Linear] = {}

    def score(place: int) -> tuple[float, float]:
        """Accuracy on the held-out images, and minus the loss to separate equal ones."""
        if place not in tried:
            near = min(before.values(), key=lambda fitted: abs(np.log(fitted.l2 / grid[place])), default=None)
            before[place] = fit(train, classes=len(train.names), l2=grid[place], config=config, start=near)
            tried[place] = _score(before[place], val)
            progress(len(tried), grid[place])
        return tried[place]

    best = _search(score, len(grid), coarse=2 * config.per_decade)
    return before[best], tuple((grid[place], tried[place][0]) for place in sorted(tried))


def _search(score: Callable[[int], tuple[float, float]], places: int, *, coarse: int) -> int:
    """The best place of a grid: every `coarse`-th from the strong end, then around the best at half the distance, and again."""
    last = places - 1
    best: int = max(sorted({*range(last, -1, -coarse), 0}, reverse=True), key=score)
    step = coarse // 2
    while step >= 1:
        around = [place for place in (best, best + step, best - step) if 0 <= place <= last]
        best = max(around, key=score)
        step //= 2
    return best


def fit(train: Features, *, classes: int, l2: float, config: ProbeConfig, start: Linear | None = None) -> Linear:
    """Minimise the summed cross-entropy + l2 / 2 ||weights||^2; the bias is not regularised.

    This is scikit-learn's C = 1 / l2. It is convex, so the end does not depend on `start`.
    """
    wide_ND = train.features_ND.astype(np.float64)
    mean_D, deviation_D = wide_ND.mean(0), wide_ND.std(0) + _SMALLEST
    x_ND = torch.from_numpy((wide_ND - mean_D) / deviation_D)
    labels_N = torch.from_numpy(train.labels_N)
    width = x_ND.shape[1]
    weights_DK = torch.zeros(width, classes, dtype=torch.float64) if start is None else torch.from_numpy(start.weights_DK.copy())
    bias_K = torch.zeros(classes, dtype=torch.float64) if start is None else torch.from_numpy(start.bias_K.copy())
    # The sum and not the mean: L-BFGS drops updates whose curvature is below an absolute 1e-10.
    steps, gradient = _minimise(x_ND, labels_N, weights_DK, bias_K, l2=l2, config=config)
    return Linear(
        mean_D=mean_D,
        deviation_D=deviation_D,
        weights_DK=weights_DK.numpy(),
        bias_K=bias_K.numpy(),
        l2=l2,
        gradient=gradient,
        steps=steps,
        converged=gradient <= config.tolerance,
    )


def _minimise(
    x_ND: Tensor, labels_N: Tensor, weights_DK: Tensor, bias_K: Tensor, *, l2: float, config: ProbeConfig
) -> tuple[int, float]:
    """Fit weights and bias in place; returns the steps taken and the largest entry of the mean loss's gradient."""
    images = len(x_ND)
    optimizer = torch.optim.LBFGS(
        [weights_DK, bias_K],
        lr=1.0,
        max_iter=config.most_steps,
        max_eval=2 * config.most_steps,
        tolerance_grad=config.tolerance * images,
        tolerance_change=0.0,
        history_size=_HISTORY,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        # The gradient by hand: a softmax and two products, where autograd would build and walk a graph each time.
        log_NK = F.log_softmax(torch.addmm(bias_K, x_ND, weights_DK), dim=1)
        error_NK = log_NK.exp()
        error_NK[torch.arange(images), labels_N] -= 1
        weights_DK.grad = x_ND.T @ error_NK + l2 * weights_DK
        bias_K.grad = error_NK.sum(0)
        return float(F.nll_loss(log_NK, labels_N, reduction="sum") + l2 / 2 * weights_DK.square().sum())

    with torch.no_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it so
        closure()
    assert weights_DK.grad is not None
    assert bias_K.grad is not None
    steepest = max(float(weights_DK.grad.abs().max()), float(bias_K.grad.abs().max()))
    return int(optimizer.state[weights_DK]["n_iter"]), steepest / images


def _score(classifier: Linear, val: Features) -> tuple[float, float]:
    logits_NK = torch.from_numpy(classifier.logits(val.features_ND))
    labels_N = torch.from_numpy(val.labels_N)
    correct = int((logits_NK.argmax(1) == labels_N).sum())
    return correct / len(val), -float(F.cross_entropy(logits_NK, labels_N))
