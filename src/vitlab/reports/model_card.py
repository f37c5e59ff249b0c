"""`vitlab push`: a folder with a model and a model card made from its file, and its upload to the Hugging Face Hub."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitlab.checkpoints import convert, describe
from vitlab.checkpoints.checkpoint import Description
from vitlab.checkpoints.hub import upload
from vitlab.checkpoints.reading import model_in
from vitlab.config.public_weights import public_weights
from vitlab.errors import CheckpointError, UsageError
from vitlab.io.address import is_address
from vitlab.io.display import printable
from vitlab.recipes.reasons import model_in_words

CARD = "README.md"
_SHOWN_LABELS = 60
_LIBRARIES = {"timm": "timm", "huggingface": "transformers", "native": "vitlab"}
_RATIOS = ("top1", "top5", "mean_average_precision")


def prepare(
    model: str, folder: Path, *, name: str, to: str, licence: str | None, dataset: str | None, intended_use: str | None
) -> tuple[str, ...]:
    """Write the model in the format `to` and its card into a new folder; returns the notes of the conversion."""
    place = str(model if model.startswith("hub:") or is_address(model) else model_in(Path(model)))
    found = describe(place)
    if licence is None:
        raise UsageError("say under which `licence` the weights are published", hint=_licence_hint(found))
    if to == "native":
        folder.mkdir(parents=True)
        notes = convert(place, folder / "model.safetensors", to=to)
    else:
        notes = convert(place, folder, to=to)
    (folder / CARD).write_text(
        card(found, name=name, to=to, licence=licence, dataset=dataset, intended_use=intended_use), encoding="utf-8"
    )
    return notes


def push(
    model: str,
    name: str,
    *,
    to: str,
    licence: str | None,
    dataset: str | None,
    intended_use: str | None,
    private: bool,
    folder: Path | None,
) -> tuple[str | None, tuple[str, ...]]:
    """Upload a model with its card; returns the address of the commit, and notes. With `folder`, write there and upload nothing."""
    if folder is not None:
        if folder.exists():
            raise CheckpointError(f"{folder} exists already", hint="give another folder")
        return None, prepare(model, folder, name=name, to=to, licence=licence, dataset=dataset, intended_use=intended_use)
    temporary = Path(tempfile.mkdtemp(prefix="vitlab-push-"))
    try:
        made = temporary / "model"
        notes = prepare(model, made, name=name, to=to, licence=licence, dataset=dataset, intended_use=intended_use)
        return upload(made, name, private=private), notes
    finally:
        shutil.rmtree(temporary)


def card(found: Description, *, name: str, to: str, licence: str, dataset: str | None, intended_use: str | None) -> str:
    """The model card in Markdown, with the metadata that the Hub reads in front of it."""
    recipe = found.metadata.get("recipe")
    metrics = found.metadata.get("metrics")
    run: Mapping[str, Any] = recipe if isinstance(recipe, dict) else {}
    measured: Mapping[str, Any] = metrics if isinstance(metrics, dict) else {}
    parts = [
        _front(found, name=name, to=to, licence=licence, dataset=dataset, run=run, measured=measured),
        f"# {name.partition('/')[2]}\n\n{_summary(found, run)}",
        "## Intended use\n\n" + (intended_use or _use(found)),
        _code(found, name, to),
        "## Training data\n\n" + "\n".join(_data(run, dataset)),
        "## Training recipe\n\n" + "\n".join(_recipe(run)),
        "## Results\n\n" + "\n".join(_results(run, measured)),
        "## Limits\n\n" + _limits(found),
        f"## Licence\n\nThe weights are published under {licence}.",
    ]
    return "\n\n".join(parts) + "\n"


def _front(
    found: Description,
    *,
    name: str,
    to: str,
    licence: str,
    dataset: str | None,
    run: Mapping[str, Any],
    measured: Mapping[str, Any],
) -> str:
    lines = ["---", f"license: {_yaml(licence)}", f"library_name: {_LIBRARIES[to]}", "pipeline_tag: image-classification"]
    lines += ["tags:", "- image-classification", "- vision-transformer", "- vitlab"]
    if dataset is not None:
        lines += ["datasets:", f"- {_yaml(dataset)}"]
    if measured and isinstance(top1 := measured.get("top1"), int | float):
        lines += ["model-index:", f"- name: {_yaml(name.partition('/')[2])}", "  results:", "  - task:"]
        lines += ["      type: image-classification", "    dataset:", f"      name: {_yaml(dataset or _dataset(run) or 'unknown')}"]
        lines += [f"      type: {_yaml(dataset or 'custom')}", "    metrics:", "    - type: accuracy", f"      value: {top1:.4f}"]
    return "\n".join([*lines, "---"])


def _summary(found: Description, run: Mapping[str, Any]) -> str:
    height, width = found.config.image_size
    classes = f"{found.config.num_classes:,} classes" if found.config.num_classes else "no head (features only)"
    start = run.get("start")
    begun = (
        f" It was fine-tuned from `{_base(start)}`." if isinstance(start, str) else " It was trained from scratch." if run else ""
    )
    title = model_in_words(found.config)
    return f"{title}: {found.parameters:,} parameters, images of {height} x {width} pixels, {classes}.{begun}"


def _base(start: str) -> str:
    """A starting checkpoint without the folders of the machine that it was on."""
    if start.startswith("hub:") or is_address(start):
        return start
    return "/".join(Path(start).parts[-2:]) if "last" in start else Path(start).name


def _use(found: Description) -> str:
    if not found.config.num_classes:
        return "Features of images: for search, clustering, or as a start for fine-tuning."
    names = [printable(label) for label in found.labels or ()]
    if not names:
        return f"Classify images into its {found.config.num_classes:,} classes."
    more = f", and {len(names) - _SHOWN_LABELS:,} more" if len(names) > _SHOWN_LABELS else ""
    return f"Classify images into {len(names):,} classes: {', '.join(names[:_SHOWN_LABELS])}{more}."


def _code(found: Description, name: str, to: str) -> str:
    text = f"""## How to use

```python
import vitlab

vitlab.predict("hub:{name}", "image.jpg").top(5)
```
"""
    if to == "timm":
        text += f"""
```python
import timm

model = timm.create_model("hf-hub:{name}", pretrained=True).eval()
```
"""
    if to == "huggingface":
        text += f"""
```python
from transformers import AutoModelForImageClassification

model = AutoModelForImageClassification.from_pretrained("{name}")
```
"""
    fed = found.preprocess
    text += (
        f"\nImages: {fed.resize} to {fed.image_size[0]} x {fed.image_size[1]} pixels ({fed.interpolation}), "
        f"mean {_numbers(fed.mean)}, std {_numbers(fed.std)}."
    )
    return text


def _data(run: Mapping[str, Any], dataset: str | None) -> Iterator[str]:
    data = run.get("data")
    if not isinstance(data, dict):
        yield dataset or "The file does not say what the model was trained on."
        return
    yield f"- dataset: {dataset or _dataset(run)}"
    yield f"- trained on the split {data.get('train_split')}, evaluated on {data.get('evaluate_split') or 'none'}"
    rule = data.get("rule")
    if isinstance(rule, dict):
        said = ", ".join(f"{key} {value}" for key, value in rule.items() if value not in (None, ""))
        yield f"- splits, if the dataset declares none: {said}"


def _dataset(run: Mapping[str, Any]) -> str:
    """The name of the training data, without the folders of the machine that it was on; empty if the file does not say."""
    data = run.get("data")
    place = str(data.get("dataset", "")) if isinstance(data, dict) else ""
    return Path(place).name or place


def _recipe(run: Mapping[str, Any]) -> Iterator[str]:
    train = run.get("train")
    if not isinstance(train, dict):
        yield "The file does not say how the model was trained."
        return
    optimizer, data, schedule = train.get("optimizer"), run.get("data"), train.get("schedule")
    rows: dict[str, Any] = {"recipe": run.get("name"), "steps": train.get("steps")}
    if train.get("head") == "fitted":
        rows["head"] = "fitted to the features of the training images before the first step"
    if train.get("steps") != 0:  # else the optimizer trained nothing
        if isinstance(data, dict) and isinstance(loader := data.get("loader"), dict):
            rows["batch size"] = loader.get("batch_size")
        if isinstance(optimizer, dict):
            lr = optimizer.get("lr")
            rows |= {"optimizer": optimizer.get("kind"), "peak learning rate": f"{lr:.3g}" if isinstance(lr, float) else lr}
            rows["weight decay"] = optimizer.get("weight_decay")
        if isinstance(schedule, dict):
            rows |= {"schedule": schedule.get("kind"), "warm-up steps": schedule.get("warmup")}
        rows["precision"] = train.get("precision")
    rows["seed"] = train.get("seed")
    yield "| setting | value |"
    yield "|---|---|"
    yield from (f"| {key} | {value} |" for key, value in rows.items() if value is not None)


def _results(run: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[str]:
    if not measured:
        yield "The file has no results."
        return
    data = run.get("data")
    split = data.get("evaluate_split") if isinstance(data, dict) else None
    yield f"| metric | {f'on the split {split}' if split else 'value'} |"
    yield "|---|---|"
    for key, value in measured.items():
        number = isinstance(value, int | float)
        yield f"| {key} | {f'{100 * value:.2f} %' if number and key in _RATIOS else f'{value:.4g}' if number else value} |"


def _limits(found: Description) -> str:
    if not found.config.num_classes:
        return "The features carry the biases of the images that the model was trained on."
    return (
        "The model answers with one of its classes for every image, also for one that shows none of them. Its accuracy holds for "
        "images like those that it was evaluated on; evaluate it on your own images (`vitlab evaluate`) before you rely on it."
    )


def _licence_hint(found: Description) -> str:
    recipe = found.metadata.get("recipe")
    start = recipe.get("start") if isinstance(recipe, dict) else None
    known = next((row for row in public_weights() if row.address == start), None)
    if known is not None and known.licence is not None:
        return f"for example `licence` {known.licence}, which is that of {known.name}, the weights it started from"
    return "for example `licence` apache-2.0; check the licences of the data and of the weights that it started from"


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _yaml(text: str) -> str:
    """A word as it is, anything else in quotes."""
    plain = text.replace("-", "").replace(".", "").replace("_", "").replace("/", "")
    return text if plain.isalnum() and plain.isascii() else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
