"""What an evaluation looks like: for eyes a page of numbers, for programs all of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vitlab.cli.table import print_facts, print_rows
from vitlab.config.serialize import Json

if TYPE_CHECKING:
    from vitlab.evaluation.classify import Classification, MultiLabel, Share
    from vitlab.evaluation.evaluation import Evaluation, Robustness

_SHOWN = 10
_FEW = 5  # images below which a class's accuracy says nothing


def print_evaluation(found: Evaluation) -> None:
    """The shares with their intervals, then the classes that went worst and what they were taken for."""
    from vitlab.evaluation.classify import Classification

    result = found.result
    if isinstance(result, Classification):
        print_facts(_facts(result), json=False)
        _print_classes(result)
        _print_confusions(result, found.targets.labels, found.targets.names)
        return
    facts: dict[str, Json] = {"images": result.images}
    if result.unreadable:
        facts["unreadable"] = f"{result.unreadable:,}, ranked last"
    facts["mean_average_precision"] = _percent(result.mean_average_precision) + _between(result.interval)
    facts["loss"] = f"{result.loss:.4f} nats an image, over all classes"
    print_facts(facts, json=False)
    rows: list[dict[str, Json]] = [
        {"class": label, "images": count, "average_precision": _percent(value)}
        for label, value, count in sorted(result.per_class, key=lambda row: (row[1] is None, row[1]))[:_SHOWN]
    ]
    print()
    print_rows(rows, json=False)


def json_of(found: Evaluation) -> dict[str, Json]:
    """Every number of an evaluation; what is not a number is null."""
    from vitlab.evaluation.classify import Classification

    result = found.result
    told = _classification_json(result, found) if isinstance(result, Classification) else _multi_label_json(result)
    failures: list[Json] = [{"name": failure.name, "reason": failure.reason} for failure in found.answers.failures]
    return told | {"failures": failures}


def print_robustness(harder: Robustness) -> None:
    """A line for each corruption, a column for each severity."""
    rows: list[dict[str, Json]] = [
        {"corruption": name, **_columns(harder.severities, values), "mean": _percent(sum(values) / len(values))}
        for name, values in harder.rows
    ]
    print_rows(rows, json=False)
    print()
    called = harder.measure.replace("_", " ")
    facts: dict[str, Json] = {
        f"{called} clean": _percent(harder.clean),
        f"{called} corrupted": _percent(harder.mean),
        "kept": _percent(harder.mean / harder.clean if harder.clean else math.nan),
    }
    print_facts(facts, json=False)


def _columns(severities: tuple[int, ...], values: tuple[float, ...]) -> dict[str, Json]:
    return {f"severity_{severity}": _percent(value) for severity, value in zip(severities, values, strict=True)}


def robustness_json(harder: Robustness) -> dict[str, Json]:
    """The same as numbers."""
    rows: list[Json] = [
        {"corruption": name, "values": [number(value) for value in values], "mean": number(sum(values) / len(values))}
        for name, values in harder.rows
    ]
    return {
        "measure": harder.measure,
        "clean": number(harder.clean),
        "mean": number(harder.mean),
        "severities": list(harder.severities),
        "corruptions": rows,
    }


def number(value: float | None) -> float | None:
    """JSON has no word for what is not a number."""
    return value if value is not None and math.isfinite(value) else None


def _facts(result: Classification) -> dict[str, Json]:
    facts: dict[str, Json] = {"images": result.images}
    if result.unreadable:
        facts["unreadable"] = f"{result.unreadable:,}, counted as wrong"
    shares = {
        "top-1": result.top1,
        "top-5": result.top5,
        "ReaL": result.real,
        "top-1 among the data's classes": result.within_top1,
        "top-5 among the data's classes": result.within_top5,
    }
    facts |= {name: _share(share) for name, share in shares.items() if share is not None}
    facts["mean of classes"] = _percent(result.mean_class_accuracy)
    facts["loss"] = f"{result.loss:.4f} nats an image{_between(result.loss_interval, percent=False)}"
    facts["calibration error"] = _percent(result.calibration.error)
    if result.temperature is not None:
        facts["best temperature"] = f"{result.temperature:.3f}"
    return facts


def _share(share: Share) -> str:
    return f"{_percent(share.value)}  {share.right:,} of {share.of:,}{_between(share.interval)}"


def _percent(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.2f} %"


def _between(interval: tuple[float, float] | None, *, percent: bool = True) -> str:
    if interval is None:
        return ""
    low, high = (f"{100 * end:.2f}" if percent else f"{end:.4f}" for end in interval)
    return f"  (95 %: {low} to {high})"


def _print_classes(result: Classification) -> None:
    seen = [score for score in result.per_class if score.of >= _FEW]
    worst = sorted(seen, key=lambda score: (score.right / score.of, -score.of, score.label))[:_SHOWN]
    if not worst or worst[0].right == worst[0].of:
        return
    rows: list[dict[str, Json]] = [
        {"worst_class": score.label, "accuracy": _percent(score.right / score.of), "of": score.of} for score in worst
    ]
    print()
    print_rows(rows, json=False)


def _print_confusions(result: Classification, labels: tuple[str, ...], names: tuple[str, ...]) -> None:
    wrong = [(label, chosen, count) for label, chosen, count in result.confusion if count > 1 and labels[label] != names[chosen]]
    rows: list[dict[str, Json]] = [
        {"class": labels[label], "taken_for": names[chosen], "times": count}
        for label, chosen, count in sorted(wrong, key=lambda pair: (-pair[2], pair[0], pair[1]))[:_SHOWN]
    ]
    if rows:
        print()
        print_rows(rows, json=False)


def _classification_json(result: Classification, found: Evaluation) -> dict[str, Json]:
    bins = result.calibration
    told: dict[str, Json] = {"images": result.images, "unreadable": result.unreadable}
    told |= {
        name: None if share is None else _share_json(share)
        for name, share in (
            ("top1", result.top1),
            ("top5", result.top5),
            ("real", result.real),
            ("within_top1", result.within_top1),
            ("within_top5", result.within_top5),
        )
    }
    return told | {
        "loss": number(result.loss),
        "loss_interval": _interval_json(result.loss_interval),
        "mean_class_accuracy": number(result.mean_class_accuracy),
        "calibration_error": number(bins.error),
        "calibration": [
            {"confidence": number(confidence), "accuracy": number(accuracy), "count": count}
            for confidence, accuracy, count in zip(bins.confidence, bins.accuracy, bins.count, strict=True)
        ],
        "temperature": number(result.temperature),
        "per_class": [
            {"label": score.label, "right": score.right, "of": score.of, "accuracy": score.right / score.of if score.of else None}
            for score in result.per_class
        ],
        "classes": list(found.targets.names),
        "confusion": [{"label": label, "chosen": chosen, "count": count} for label, chosen, count in result.confusion],
    }


def _multi_label_json(result: MultiLabel) -> dict[str, Json]:
    return {
        "images": result.images,
        "unreadable": result.unreadable,
        "mean_average_precision": number(result.mean_average_precision),
        "interval": _interval_json(result.interval),
        "loss": number(result.loss),
        "per_class": [
            {"label": label, "average_precision": number(value), "images": count} for label, value, count in result.per_class
        ],
    }


def _share_json(share: Share) -> dict[str, Json]:
    return {
        "value": number(share.value),
        "right": share.right,
        "of": share.of,
        "interval": _interval_json(share.interval),
    }


def _interval_json(interval: tuple[float, float] | None) -> Json:
    return None if interval is None else [number(end) for end in interval]
