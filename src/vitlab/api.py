"""The functions of vitlab, one for each verb of the command line: `vitlab.predict(...)` is `vitlab predict ...`.

The command line is made from this file: `vitlab.cli` reads each function's signature and docstring, so options, defaults and
words are the same in both. Results are values that print as a table, have `to_json()`, and show themselves in a notebook. Their
`notes` say what vitlab guessed or chose for you; the logger "vitlab" (level INFO) has the same.

Importing this file imports neither torch nor numpy. Shared parameters are documented once: those of opening a checkpoint at
`predict`, those of training at `finetune`, those of studies at `study_scaling`.
"""

from __future__ import annotations

import inspect as inspect_module
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from vitlab.config.renamed import ELSEWHERE
from vitlab.errors import ConfigError, DataError, UsageError, masked, pair
from vitlab.io.address import address_of, is_address
from vitlab.io.display import silent

if TYPE_CHECKING:
    from typing import TextIO

    from vitlab.checkpoints import Checkpoint
    from vitlab.config.data import CorruptPolicy, Interpolation, OnBroken, PixelScale, Preprocess, Resize, Split, SplitRule
    from vitlab.config.evaluation import BackendName, EvaluateConfig, Tta
    from vitlab.config.grid_detector import DetectorKind
    from vitlab.config.hardware import EngineName, RayConfig
    from vitlab.config.model import Task
    from vitlab.config.overrides import DataFacts, Overrides, StartFacts
    from vitlab.config.run import RunConfig
    from vitlab.config.segmenter import Decoder
    from vitlab.config.train import HeadStart, Lora, LoraTarget, Offload, Precision, Strategy, Trainable
    from vitlab.data.check import DataCheck
    from vitlab.data.dataset import Dataset
    from vitlab.evaluation.detection import DetectionEvaluation
    from vitlab.evaluation.label_errors import LabelCheck
    from vitlab.evaluation.segmentation import SegmentationEvaluation
    from vitlab.evaluation.summary import Asked, EvaluationSummary
    from vitlab.exporters import Exported
    from vitlab.inference import Predictions
    from vitlab.inference.images import ImagesLike
    from vitlab.inference.writing import ResultFormat
    from vitlab.interpretation.config import FigureName, Form, Occluder, Overlay, Theme
    from vitlab.interpretation.figures import Figures
    from vitlab.io.display import Facts, ProgressCallback, Table
    from vitlab.models.cost import ModelList
    from vitlab.models.model import Model
    from vitlab.reports.explorer import WrittenExplorer
    from vitlab.reports.report import WrittenReport
    from vitlab.studies.config import PseudoLabels
    from vitlab.studies.paper import PaperItem, PaperList
    from vitlab.studies.protocol import StudyPlan
    from vitlab.studies.scaling import ScalingPlan
    from vitlab.studies.study import Study, Verdict
    from vitlab.training.callbacks import Progress
    from vitlab.training.hardware_plan import TrainingPlan
    from vitlab.training.run import EventStream, Run

    FileName = str | os.PathLike[str]
    Folder = str | os.PathLike[str]
    ModelLike = str | os.PathLike[str] | Checkpoint
    ModelsLike = ModelLike | Sequence[ModelLike]
    ModelOrName = ModelLike
    Existing = str | os.PathLike[str]
    Layer = int
    Size = int | tuple[int, int]
    Sizes = str | Sequence[int | tuple[int, int]]
    Names = str | Sequence[str]
    Numbers = Sequence[int]
    Layers = Sequence[int]
    LearningRates = Sequence[float]
    Severities = Sequence[int]
    Patch = Literal["class", "distill"] | tuple[int, int]
    RandAugment = tuple[int, float] | None
    RecipeName = str
    Fraction = float
    Positive = float

Format = Literal[
    "native",
    "jax-npz",
    "big-vision",
    "timm",
    "huggingface",
    "torchvision",
    "bit-npz",
    "swin",
    "convnext",
    "dinov2",
    "openai-clip",
    "dino",
    "mae",
    "moco-v3",
    "beit",
    "eva",
]
Profile = Literal["official", "timm", "huggingface", "torchvision"]
StudyBudget = Literal["tiny", "default", "long"]
OnOff = Literal["on", "off"]
PlanT = TypeVar("PlanT", "StudyPlan", "ScalingPlan")

Given = ParamSpec("Given")
Result = TypeVar("Result")

_log = logging.getLogger("vitlab")


def with_suggestions(verb: Callable[Given, Result]) -> Callable[Given, Result]:
    """The verb with a better TypeError: an unknown keyword, such as timm's `learning_rate`, is answered by the name here."""

    @wraps(verb)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        parameters = inspect_module.signature(verb).parameters
        known = list(parameters)
        for name in kwargs:
            if name not in known:
                meant = (word.replace("-", "_") for word in ELSEWHERE.get(name.replace("_", "-"), ()))
                near = [word for word in ("start" if word == "from" else word for word in meant) if word in known]
                near = near or get_close_matches(name, known, n=1)
                suggested = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{verb.__name__}() got an unexpected keyword argument {name!r}{suggested}")
        for name, value in {**dict(zip(known, args, strict=False)), **kwargs}.items():
            if needed := _other_type(str(parameters[name].annotation), value):
                raise TypeError(f"{verb.__name__}() needs {needed} for {name!r}, not {value!r}")
        return verb(*args, **kwargs)

    return call


_NUMBERS = {"int", "float", "Positive", "Fraction", "Layer"}
_SEVERAL = {"Numbers", "Layers", "LearningRates", "Severities"}
_PLACES = {"str", "os.PathLike[str]", "ModelLike", "ModelOrName", "Existing", "ImagesLike"}


def _other_type(annotation: str, value: object) -> str | None:
    """What the parameter takes, if the value is of another type: text in place of a number, and the reverse."""
    kinds = {kind.strip() for kind in annotation.split("|")}
    number = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    if isinstance(value, str) and kinds <= {*_NUMBERS, "None"}:
        return "a number"
    if isinstance(value, int | float) and kinds & _SEVERAL:
        return f"several numbers, such as ({value},),"
    if number and kinds <= _PLACES:
        return "a path or a name" if kinds.isdisjoint({"ImagesLike"}) else "images or their paths"
    return None


def _writes(*outputs: str) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """For a verb whose parameters of these names are files or folders to write: they may also be addresses (s3://...).

    The verb writes to a local path, and what it has written is copied to the address, verified, when it has succeeded.
    """

    def decorate(verb: Callable[Given, Result]) -> Callable[Given, Result]:
        @wraps(verb)
        def with_addresses(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            named: dict[str, Any] = dict(kwargs)
            named |= dict(zip(inspect_module.signature(verb).parameters, args, strict=False))
            targets = {name: os.fspath(named[name]) for name in outputs if isinstance(named.get(name), str | os.PathLike)}
            targets = {name: text for name, text in targets.items() if is_address(text)}
            if not targets:
                return verb(*args, **kwargs)
            from vitlab.io.display import Facts
            from vitlab.io.remote import staged

            found, paths = address_of, dict[str, str]()
            with ExitStack() as stack:
                for name, text in targets.items():
                    options = {key: bool(named.get(key)) for key in ("overwrite", "resume")}
                    place = stack.enter_context(staged(found(text), **options))
                    named[name], paths[str(place)] = place, masked(text)
                result = cast("Callable[..., Result]", verb)(**named)
            for text in paths.values():
                _log.info("written: %s", text)
            if isinstance(result, Facts):
                result = cast("Result", result.renamed(paths))
            return result

        return with_addresses

    return decorate


# --- models and checkpoints ---------------------------------------------------------------------------------------------------


def list_models(pattern: str = "*") -> ModelList:
    """List models with timm's name, parameters, multiply-adds, image size and public weights.

    Returns a sequence of names that prints as a table.

    Args:
        pattern: a glob (vit*) or part of a name, vitlab's or timm's (default: all)
    """
    from vitlab.models.cost import ModelList, model_rows

    return ModelList(model_rows(pattern))


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: Size | None = None,
    channels: int = 3,
    profile: Profile | None = None,
    pretrained: bool = False,
    seed: int = 0,
) -> Model:
    """Build a model by name, vitlab's (`ViT-B/16`) or timm's (`vit_base_patch16_224`).

    `model(images_BCHW)` gives logits, `model.features(images_BCHW)` the input of the head. The model is made on torch's current
    device; under `with torch.device("meta")` it has shapes and no values.

    Args:
        name: name of the model; `list_models()` lists all
        num_classes: classes of the head, 0 for no head (default: 1000)
        image_size: pixels, 224 or (160, 224) (default: the model's own)
        channels: channels of an image
        profile: numerics of the authors (official), timm, huggingface or torchvision (default: official)
        pretrained: download the default public weights of that name from the Hugging Face hub
        seed: seed of the initial weights
    """
    import torch

    from vitlab.config.model import variant

    size = None if image_size is None else pair("image_size", image_size)
    if pretrained:
        return _pretrained(name, num_classes=num_classes, image_size=size, channels=channels, profile=profile)
    from vitlab.models import build

    config = variant(name, image_size=size, num_classes=num_classes, channels=channels, profile=profile)
    return build(config, seed=seed, device=torch.get_default_device())


def _pretrained(
    name: str, *, num_classes: int | None, image_size: tuple[int, int] | None, channels: int, profile: str | None
) -> Model:
    from vitlab.checkpoints import load
    from vitlab.config.public_weights import weights_for

    found = [weights for weights in weights_for(name) if weights.loads]
    if not found:
        raise ConfigError(
            f"no public weights are known for {name}",
            hint="`vitlab models` lists the models that have some; vitlab.load reads a file",
        )
    fresh = num_classes is not None and num_classes != found[0].num_classes
    checkpoint = load(
        found[0].address, num_classes=num_classes, new_head=fresh, image_size=image_size, channels=channels, profile=profile
    )
    _note_all(checkpoint.notes)
    return checkpoint.model


def describe(
    model: str | os.PathLike[str],
    *,
    image_size: Size | None = None,
    num_classes: int | None = None,
    channels: int | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
    notes: bool = False,
) -> Facts:
    """Describe a model or a checkpoint: parameters, multiply-adds, tokens, sizes, preprocessing, labels.

    Only the header of a file is read.

    Args:
        model: a model's name (ViT-B/16, vit_base_patch16_224), a checkpoint's file, folder or address, a run, or hub:owner/name
        image_size: for a name: pixels, 224 or 160x224 (default: the model's own)
        num_classes: for a name: classes of the head, 0 for no head (default: 1000)
        channels: for a name: channels of an image (default: 3)
        heads: for a file: number of attention heads, if the file does not contain it (default: width / 64)
        grid: for a file: rows x columns of patches, if the file does not contain it (default: a square)
        profile: numerics profile (default: official for a name, that of the format for a file)
        notes: for a file: also show the notes from when it was made, such as guesses about the weights that it started from
    """
    text = os.fspath(model)
    if _is_checkpoint(text):
        _refuse_given(
            f"is for a model's name; {text} states its own", image_size=image_size, num_classes=num_classes, channels=channels
        )
        return _described_file(text, heads=heads, grid=grid, profile=profile, history=notes)
    _refuse_given(f"is for a file; there is none called {text}", heads=heads, grid=grid)
    return _described_name(
        text,
        image_size=None if image_size is None else pair("image_size", image_size),
        num_classes=num_classes,
        channels=3 if channels is None else channels,
        profile=profile,
    )


_FILE_ENDINGS = (".safetensors", ".npz", ".pt", ".pth", ".bin", ".json", ".onnx", "/")
_FILE_BEGINNINGS = (".", "/", "~")


def _described_name(
    name: str, *, image_size: tuple[int, int] | None, num_classes: int | None, channels: int, profile: str | None
) -> Facts:
    from vitlab.config.model import variant
    from vitlab.config.serialize import to_json
    from vitlab.io.display import Facts
    from vitlab.models.cost import model_facts

    try:
        config = variant(name, image_size=image_size, num_classes=num_classes, channels=channels, profile=profile)
    except ConfigError:
        if name.endswith(_FILE_ENDINGS) or name.startswith(_FILE_BEGINNINGS):
            raise UsageError(f"no file or folder called {name!r}") from None
        raise
    facts = {"name": config.name, **model_facts(config)}
    return Facts({**facts, "config": to_json(config)}, shown=facts)


def _described_file(path: str, *, heads: int | None, grid: Size | None, profile: str | None, history: bool) -> Facts:
    from vitlab.checkpoints import describe as describe_file
    from vitlab.config.serialize import to_json
    from vitlab.io.display import Facts
    from vitlab.models.cost import model_facts

    found = describe_file(path, heads=heads, grid=grid, profile=profile)
    _note_all(found.notes)
    facts: dict[str, Any] = {"file": masked(path), "format": found.format, "name": found.config.name}
    facts |= model_facts(found.config) | {"parameters": found.parameters, "dtypes": list(found.dtypes)}
    facts |= {"preprocess": to_json(found.preprocess), "labels": to_json(found.labels), "metadata": to_json(found.metadata)}
    short = {key: to_json(value) for key, value in found.metadata.items() if key != "recipe"}  # a whole config: JSON shows it
    shown = facts | {"labels": _first(found.labels), "metadata": short or None}
    shown |= {"history": "no notes"} if history and not found.history else {}
    more = {"config": to_json(found.config), "notes": list(found.notes), "history": list(found.history)}
    lines = [{"history": note} for note in found.history] if history else []
    return Facts(facts | more, shown=[shown, lines] if lines else shown)


def _first(labels: Sequence[str] | None, *, count: int = 4) -> str | None:
    """The first labels and how many there are."""
    if not labels:
        return None
    more = ", ..." if len(labels) > count else ""
    return f"{len(labels):,}: {', '.join(labels[:count])}{more}"


@_writes("destination")
def convert(
    source: Existing,
    destination: str | os.PathLike[str],
    *,
    to: Format,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
    overwrite: bool = False,
) -> Facts:
    """Convert a checkpoint to another format. No bit of a weight changes; the file is read back and compared.

    Args:
        source: a checkpoint of any format (recognised by its content), a run, or hub:owner/name
        destination: file to write. For huggingface, and for timm if the name has no ending, it is a folder; for the authors'
            code, a .pth file
        to: format to write
        heads: number of attention heads, if the file does not contain it (default: width / 64)
        grid: rows x columns of patches, if the file does not contain it (default: a square)
        profile: numerics profile: official, timm, huggingface or torchvision (default: that of the format)
        overwrite: replace the destination if it exists
    """
    from vitlab.checkpoints import convert as convert_file
    from vitlab.io.display import Facts

    start, end = os.fspath(source), os.fspath(destination)
    notes = convert_file(start, end, to=to, heads=heads, grid=grid, profile=profile, overwrite=overwrite)
    _note_all(notes)
    facts = {"from": masked(start), "to": end, "format": to}
    return Facts({**facts, "notes": list(notes)}, shown=facts, notes=notes)


@_writes("folder")
def push(
    model: ModelLike,
    repository: str,
    *,
    licence: str | None = None,
    dataset: str | None = None,
    intended_use: str | None = None,
    to: Literal["timm", "huggingface", "native"] = "timm",
    private: bool = False,
    folder: Folder | None = None,
) -> Facts:
    """Upload a model to the Hugging Face Hub, with a model card made from it: data, recipe, metrics, intended use, licence.

    Args:
        model: a run, or a checkpoint of any format
        repository: owner/name on the Hub; it is created if it does not exist
        licence: licence of the weights, such as apache-2.0 or cc-by-4.0 (default: none; it must be given)
        dataset: name of the training data for the card (default: the name of its folder)
        intended_use: a sentence for the card (default: a list of the classes)
        to: format of the weights: timm, huggingface (for transformers) or native (vitlab's own)
        private: make the repository private
        folder: write the files into this new folder and upload nothing, to look at them (default: upload)
    """
    from vitlab.io.display import Facts
    from vitlab.reports import model_card

    commit, notes = model_card.push(
        _stored(model),
        repository,
        to=to,
        licence=licence,
        dataset=dataset,
        intended_use=intended_use,
        private=private,
        folder=None if folder is None else Path(folder),
    )
    _note_all(notes)
    facts = {"model": _name_of(model), "repository": repository, "format": to, "commit": commit}
    facts |= {} if folder is None else {"folder": os.fspath(folder)}
    return Facts({**facts, "notes": list(notes)}, shown=facts, notes=notes)


# --- inference ----------------------------------------------------------------------------------------------------------------


@_writes("out")
def predict(
    model: ModelLike,
    images: ImagesLike,
    *,
    top: int = 5,
    threshold: float = 0.5,
    out: FileName | TextIO | None = None,
    format: ResultFormat | None = None,  # noqa: A002
    resume: bool = False,
    overwrite: bool = False,
    strict: bool = False,
    backend: BackendName = "auto",
    merge: int = 0,
    tta: Tta | None = None,
    batch_size: int = 32,
    workers: int = 2,
    device: str = "auto",
    engine: EngineName = "local",
    address: str | None = None,
    actors: int = 0,
    part_size: int = 4096,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    resize: Resize | None = None,
    resize_to: int | None = None,
    interpolation: Interpolation | None = None,
    labels: FileName | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
    windows: int = 0,
    refine: bool = False,
    allow_nonfinite: bool = False,
    progress: ProgressCallback | None = None,
) -> Predictions | Any:  # DetectedImages of a detector, MaskPredictions of a segmenter
    """Classify images: print the most probable classes of each image. A segmenter gives masks, a detector boxes.

    Returns the predictions: `predict(model, "cat.jpg").top(5)`, or `.boxes` of a detector. With `out` they go into a file and are
    not kept in memory. An image that cannot be read is reported and has no prediction. A segmenter gives each pixel a class; its
    `out` is a folder, which gets a mask (PNG) and an overlay of each image and masks.jsonl, or a .jsonl file of masks as run
    lengths. A detector's `out` is a .jsonl or .txt file, or a folder, which gets each image with its boxes drawn on it (PNG) and
    boxes.jsonl.

    Args:
        model: a checkpoint of any format (recognised by its content), a run's folder, an address of these (s3://bucket/runs/a),
            hub:owner/name, or the name of public weights (ViT-B/16, vit_base_patch16_224.augreg_in21k)
        images: images, folders, quoted patterns, zip archives or files inside them, addresses of these, or - for paths or one image
            on stdin
        top: number of classes to show for each image
        threshold: score above which a detector's boxes are shown, from 0 to below 1
        out: file or address to write results to (default: standard output; a Python call returns them)
        format: text, jsonl (one JSON object per line), csv or parquet (default: by the ending of `out`, else jsonl;
            text without `out`)
        resume: continue the JSON Lines file that `out` names, and skip the images that it contains; on Ray this is always so
        overwrite: replace the file that `out` names, if it exists
        strict: fail (exit code 1) if an image cannot be read
        backend: runtime of the model; auto is torch, until a measurement on this machine shows that another one is faster
        merge: token merging: number of pairs of similar patches to merge per layer of a ViT, on average; faster, less exact
        tta: test-time augmentation: average the outputs of several views of each image, which is a little more accurate. crops:
            both ends and the middle of the longer side, a third as fast; mirror: the image and its mirror image, half as fast
            (default: the model's own view alone)
        batch_size: images that go through the model at once
        workers: threads that read and decode images
        device: auto (a GPU if there is one), cpu, cuda, cuda:1 or mps
        engine: local (this process) or ray (a Ray cluster). On Ray, `out` is a .jsonl or .parquet file or a folder of such
            parts, and the same command resumes
        address: Ray: address of a running cluster, host:port, or auto for that of this machine (default: start a cluster on
            this machine)
        actors: Ray: number of copies of the model that run at once; each has `workers` processes that read its images, and with
            0 workers reads them itself (default: 0, one on each GPU, else one on each core)
        part_size: Ray: images in each part of the results, rounded up to whole batches; finished parts are kept if the command
            is interrupted
        image_size: input size of the model in pixels, 384 or 160x224; positions are interpolated (default: the checkpoint's own)
        patch_size: patch size of a ViT in pixels, 8, 32 or 16x32; larger patches are faster. The patch embedding is resized by
            pseudo-inverse (default: the checkpoint's own)
        resize: how to resize to the image size. short-side: resize the short side, then crop the centre; squash: change the
            aspect ratio; pad: keep the aspect ratio and pad; fit: keep the aspect ratio, crop nothing; native: keep each
            image's aspect ratio at about the same number of patches, and pack images of different shapes (NaViT) (default: the
            checkpoint's own)
        resize_to: with short-side: pixels of the short side before the crop (default: the checkpoint's own)
        interpolation: interpolation when an image is resized (default: the checkpoint's own)
        labels: file with the names of the classes, one per line; or imagenet1k, imagenet21k, cifar10, cifar100 or pets
            (default: the checkpoint's own; ImageNet's for a public model that has none)
        heads: number of attention heads, if the file does not contain it (default: width / 64)
        grid: rows x columns of patches, if the file does not contain it (default: a square)
        profile: numerics profile: official, timm, huggingface or torchvision (default: that of the format)
        windows: segmentation: sliding windows: resize the short side of each image to this many pixels, and run the model on
            overlapping windows of its own size (default: 0, the whole image at once)
        refine: segmentation: align the borders of masks with edges of the image (a dense CRF in a window); takes longer
        allow_nonfinite: accept NaN and Inf in weights and outputs, to look at a broken model
        progress: called with (description, done, total or None)
    """
    _at_least("top", top, 1)
    from vitlab.config.data import is_detector
    from vitlab.config.model import task_of
    from vitlab.errors import choice
    from vitlab.inference import Predictor
    from vitlab.inference.detections import Detector
    from vitlab.inference.segmentation import SegmentPredictor, segment_images
    from vitlab.inference.writing import ResultFormat, all_images, is_folder_of_boxes, predict_images

    if format is not None:
        choice("format", format, ResultFormat)
    ray = _ray_config(engine, address, actors, part_size, workers)
    images = images if _is_stream(images) else _listed(images)
    if not _is_stream(images):
        all_images(images)  # refuses what names nothing before a model is loaded
    checkpoint = _opened(
        model,
        _Opening(image_size, patch_size, resize, resize_to, interpolation, labels, heads, grid, profile, allow_nonfinite),
        device=device if ray is None else "cpu",
        boxes=True,
        native=True,
    )
    if ray is not None:
        from vitlab.inference.on_ray import ModelSettings, predict_on_ray

        _refuse_on_ray(checkpoint)
        _refuse_given("is for segmenters", windows=windows or None)
        if not isinstance(out, str | os.PathLike):
            raise UsageError("results from Ray go to files", hint="give `out` results.jsonl, results.parquet or a folder")
        if resume and overwrite:
            raise UsageError("`resume` keeps what is there and `overwrite` does not", hint="leave one out")
        return predict_on_ray(
            checkpoint,
            images,
            top=top,
            out=out,
            format=format,
            overwrite=overwrite,
            strict=strict,
            settings=ModelSettings(batch_size=batch_size, backend=backend, merge=merge, tta=tta, device=device),
            config=ray,
            progress=progress or silent,
            notify=_log.info,
        )
    if task_of(checkpoint.config) == "segment":
        _refuse_given(_OF_CLASSIFIERS, resume=resume or None, merge=merge or None, tta=tta, backend=_other_backend(backend))
        if format not in (None, "text", "jsonl"):
            raise UsageError(f"masks are not written as {format}", hint="jsonl, or a folder as `out`")
        return segment_images(
            SegmentPredictor(
                checkpoint,
                batch_size=batch_size,
                workers=workers,
                device=_device_of(checkpoint),
                windows=windows,
                refine=refine,
            ),
            images,
            out=out,
            as_json=None if format is None else format == "jsonl",
            overwrite=overwrite,
            strict=strict,
            progress=progress or silent,
            notify=_log.warning,
        )
    _refuse_given("is for segmenters", windows=windows or None, refine=refine or None)
    predictor: Predictor | Detector
    if is_detector(checkpoint.config):
        _refuse_given(_NOT_OF_DETECTORS, merge=merge or None, tta=tta, backend=_other_backend(backend))
        predictor = Detector(
            checkpoint,
            threshold=threshold,
            batch_size=batch_size,
            workers=workers,
            device=_device_of(checkpoint),
            keep_images=is_folder_of_boxes(out, format),
        )
    else:
        predictor = Predictor(
            checkpoint,
            backend=backend,
            batch_size=batch_size,
            workers=workers,
            device=_device_of(checkpoint),
            merge=merge,
            tta=tta,
            notify=_note,
        )
        _note_all(predictor.notes[len(checkpoint.notes) :])
    return predict_images(
        predictor,
        images,
        top=top,
        out=out,
        format=format,
        resume=resume,
        overwrite=overwrite,
        strict=strict,
        progress=progress or silent,
        notify=_log.warning,
    )


def _ray_config(
    engine: EngineName, address: str | None, actors: int = 0, part_size: int = 4096, workers: int = 1
) -> RayConfig | None:
    """The settings of a cluster; None where the work stays in this process. Ray itself must be installed."""
    from vitlab.config.hardware import EngineName, RayConfig
    from vitlab.errors import choice
    from vitlab.io.ray_cluster import check_installed

    choice("engine", engine, EngineName)
    if engine == "local":
        _refuse_given("needs `engine=ray`", address=address, actors=actors or None)
        return None
    config = RayConfig(address=address, actors=actors, readers=workers, part_size=part_size)
    check_installed()
    return config


def _refuse_on_ray(checkpoint: Checkpoint) -> None:
    from vitlab.config.data import is_detector
    from vitlab.config.model import task_of

    if task_of(checkpoint.config) == "segment" or is_detector(checkpoint.config):
        raise UsageError("detectors and segmenters run in one process, and not on Ray", hint="leave `engine` out")


_OF_CLASSIFIERS = "is for models that give each image a class, and this one gives each pixel a class"
_NOT_OF_DETECTORS = "is for models that give each image a class, and this one finds objects"


def _refuse_classifiers_settings(why: str, config: EvaluateConfig) -> None:
    backend = _other_backend(config.backend)
    _refuse_given(why, merge=config.merge or None, tta=config.tta, precision=config.precision, backend=backend)


def _other_backend(backend: str) -> str | None:
    """The backend, if it is one that runs no segmenter."""
    return None if backend in ("auto", "torch") else backend


def _is_stream(images: Any) -> bool:
    """Whether this is an iterator of images, which can be read only once."""
    return hasattr(images, "__next__")


def _listed(images: Any) -> Any:
    return list(images) if isinstance(images, set | frozenset | dict | range) else images


@_writes("out")
def embed(
    model: ModelLike,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    split: Split = "all",
    overwrite: bool = False,
    strict: bool = False,
    batch_size: int = 32,
    workers: int = 2,
    device: str = "auto",
    engine: EngineName = "local",
    address: str | None = None,
    actors: int = 0,
    part_size: int = 4096,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    resize: Resize | None = None,
    resize_to: int | None = None,
    interpolation: Interpolation | None = None,
    labels: FileName | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
    allow_nonfinite: bool = False,
    progress: ProgressCallback | None = None,
) -> Facts:
    """Write the features of images with their names and labels, for search and clustering.

    Features are the input of the model's head.

    Args:
        data: a folder of class folders, images:FOLDER without labels, a zip, a CSV list, shards, digits, reader:path, ...
        engine: local (this process) or ray (a Ray cluster, where the same command resumes)
        out: file to write, .npz or .parquet; on Ray, .parquet or a folder of such parts
        split: which split of the data
        overwrite: replace the file if it exists
    """
    from vitlab.inference.search_index import ENDINGS

    path = Path(out)
    ray = _ray_config(engine, address, actors, part_size, workers)
    if ray is None and path.suffix not in ENDINGS:
        raise UsageError(f"`out`: {os.fspath(out)} ends in neither {' nor '.join(ENDINGS)}")
    if ray is None:
        _refuse_present(path, overwrite)
    from vitlab.config.evaluation import EvaluateConfig
    from vitlab.data.opening import open_dataset
    from vitlab.inference import Predictor
    from vitlab.inference.search_index import embed as embed_dataset
    from vitlab.io.display import Facts

    dataset = open_dataset(os.fspath(data), split=split)
    checkpoint = _opened(
        model,
        _Opening(image_size, patch_size, resize, resize_to, interpolation, labels, heads, grid, profile, allow_nonfinite),
        device=device if ray is None else "cpu",
        native=True,
    )
    if ray is None:
        predictor = Predictor(checkpoint, batch_size=batch_size, workers=workers, device=_device_of(checkpoint))
        failures = embed_dataset(
            predictor.engine,
            dataset,
            path,
            made_by=_name_of(model),
            config=EvaluateConfig(batch_size=batch_size, workers=workers, corrupt="skip"),
            progress=progress or silent,
        )
    else:
        from vitlab.inference.on_ray import ModelSettings, embed_on_ray

        _refuse_on_ray(checkpoint)
        predictor = Predictor(checkpoint, backend="torch", device="cpu", workers=0)
        failures = embed_on_ray(
            checkpoint,
            dataset,
            path,
            made_by=_name_of(model),
            overwrite=overwrite,
            settings=ModelSettings(batch_size=batch_size, device=device),
            config=ray,
            progress=progress or silent,
            notify=_log.info,
        )
    for failure in failures:
        _log.warning("unreadable: %s", failure)
    facts = Facts(
        {
            "file": str(path),
            "images": len(dataset) - len(failures),
            "unreadable": len(failures),
            "width": checkpoint.config.feature_width,
            "checkpoint": predictor.features_digest,
        }
    )
    if failures and strict:
        raise _with_result(DataError(f"{len(failures):,} of {len(dataset):,} images could not be read"), facts)
    return facts


def similar(
    query: str | os.PathLike[str],
    index: Existing,
    *,
    checkpoint: ModelLike | None = None,
    top: int = 5,
    device: str = "auto",
    image_size: Size | None = None,
    patch_size: Size | None = None,
    resize: Resize | None = None,
    resize_to: int | None = None,
    interpolation: Interpolation | None = None,
    labels: FileName | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
) -> Table:
    """Find the images that are most similar to an image, in an index written by `embed`.

    Similarity is the cosine similarity of features.

    Args:
        query: an image, or an image inside a zip: photos.zip/cat.jpg
        index: an .npz or .parquet file of features
        checkpoint: checkpoint that made the index; another one is refused (default: the one that the index names)
        top: number of images to show
    """
    _at_least("top", top, 1)
    from vitlab.inference import Predictor, Unreadable
    from vitlab.inference.search_index import Index
    from vitlab.io.display import Table

    opened = Index(_local(index))
    made_by = checkpoint or opened.made_by
    if isinstance(made_by, str) and not _is_checkpoint(made_by):
        named = "" if checkpoint else f", which {index} names"
        raise UsageError(f"no file or folder called {made_by!r}{named}", hint="give the `checkpoint`")
    loaded = _opened(
        made_by,
        _Opening(image_size, patch_size, resize, resize_to, interpolation, labels, heads, grid, profile),
        device=device,
        native=True,
    )
    predictor = Predictor(loaded, batch_size=1, workers=0, device=_device_of(loaded))
    if predictor.features_digest != opened.digest:
        raise DataError(
            f"{made_by} did not make {index}: its features cannot be compared",
            hint=f"the index is of {opened.digest[:16]}, the checkpoint with its preprocessing is {predictor.features_digest[:16]}",
        )
    found = next(iter(predictor.stream([os.fspath(query)], features=True)))
    if isinstance(found, Unreadable):
        raise DataError(str(found))
    assert found.features is not None, "features were asked for"
    nearest = opened.nearest(found.features, top)
    return Table({"similarity": match.similarity, "label": match.label, "name": match.name} for match in nearest)


def bench(
    model: ModelOrName,
    *,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    backend: Names | None = None,
    batch: Numbers = (4, 16, 32),
    merge: int = 0,
    patch_sizes: Sizes | None = None,
    merges: Numbers | None = None,
    data: str | os.PathLike[str] | None = None,
    split: Split | None = None,
    plot: FileName | None = None,
    seconds: Positive = 10.0,
    threads: int | None = None,
    progress: ProgressCallback | None = None,
) -> Facts:
    """Measure the speed of a model on this machine: latency of one image, images/s in batches, memory, fraction of peak.

    The result for a checkpoint is stored: from then on `predict` with the backend auto uses the fastest backend. With
    `patch_sizes` or `merges`, one ViT is measured at each of these budgets instead, in PyTorch: images/s, and accuracy with `data`.

    Args:
        model: a model's name (random weights), a checkpoint's file or folder, a run, or hub:owner/name
        image_size: pixels, 384 or 160x224 (default: the model's own)
        backend: backends to measure, separated by commas: torch, compile, onnxruntime, openvino, plain (the model without folding),
            timm (default: torch and every other installed runtime)
        batch: batch sizes to try; the best is reported
        merge: also measure torch with token merging: average number of pairs of patches merged in each layer of a ViT
        patch_sizes: measure the model at these patch sizes: 16,24,32 (default: its own alone)
        merges: measure the model with token merging at these average numbers of merged pairs: 4,8,12 (default: none)
        data: with `patch_sizes` or `merges`: labelled images to evaluate each on, a folder, zip, list, ... (default: speed alone)
        split: which split of the data (default: test if the data declares it, else val, else all images)
        plot: with `data`: .png or .svg file to write, accuracy against images/s (default: none)
        seconds: total time of the measurement
        threads: number of threads (default: torch's own)
    """
    if threads is not None:
        _at_least("threads", threads, 1)
    import torch

    from vitlab.inference.bench import bench_checkpoint

    if threads is not None:
        torch.set_num_threads(threads)
    size = None if image_size is None else pair("image_size", image_size)
    names = None if backend is None else tuple(backend.split(",") if isinstance(backend, str) else backend)
    patch = None if patch_size is None else pair("patch_size", patch_size)
    if patch_sizes is not None or merges is not None:
        from vitlab.studies.compare import bench_budgets, budgets_of

        _refuse_given("is not for `patch_sizes` and `merges`, which run in torch", backend=backend, merge=merge or None)
        sizes = () if patch_sizes is None else _sizes_of("patch_sizes", patch_sizes)
        found = bench_budgets(
            budgets_of(lambda at: _named_or_opened(model, size, at or patch)[0], sizes, merges or ()),
            name=_name_of(model),
            data=None if data is None else os.fspath(data),
            split=split,
            plot=None if plot is None else Path(plot),
            batches=tuple(batch),
            seconds=seconds,
            progress=progress or silent,
        )
        _note_all(found.notes)
        return found
    _refuse_given("needs `patch_sizes` or `merges`", data=data, split=split, plot=plot)
    checkpoint, stored = _named_or_opened(model, size, patch)
    return bench_checkpoint(
        checkpoint,
        name=_name_of(model),
        stored=stored,
        backends=names,
        batches=tuple(batch),
        merge=merge,
        seconds=seconds,
        notify=_note,
    )


# --- serving ------------------------------------------------------------------------------------------------------------------


def serve(
    models: ModelsLike,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    batch_size: int = 16,
    batch_wait: float = 3.0,
    queue: int = 80,
    workers: int = 2,
    max_body: int = 16,
    max_images: int = 32,
    max_pixels: int = 50_000_000,
    receive_seconds: Positive = 20.0,
    answer_seconds: Positive = 30.0,
    keys: FileName | None = None,
    origins: Names | None = None,
    index: Existing | None = None,
    restart: bool = False,
    backend: BackendName = "auto",
    merge: int = 0,
    device: str = "auto",
    image_size: Size | None = None,
    patch_size: Size | None = None,
    resize: Resize | None = None,
    resize_to: int | None = None,
    interpolation: Interpolation | None = None,
    labels: FileName | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
    allow_nonfinite: bool = False,
) -> Facts:
    """Serve models over HTTP: predict, embed and explain. Images of different clients share batches.

    The server prints its address on standard output when it is ready, and a JSON line for each request on standard error. SIGTERM
    or Ctrl-C stops it after every accepted request is answered. SIGHUP loads the model files again. /openapi.json describes the
    endpoints.

    Args:
        models: checkpoints of any format, runs' folders, or hub:owner/name; clients choose one by its file name
        host: address to listen on; 0.0.0.0 is reachable from other machines
        port: port to listen on; 0 takes a free one
        batch_size: largest number of images that go through the model at once
        batch_wait: most milliseconds that a batch waits for images that are still being decoded
        queue: largest number of images that are accepted and not yet answered; further requests get status 429
        max_body: largest body of a request, in MiB
        max_images: largest number of images in a request
        max_pixels: largest number of pixels in an image
        receive_seconds: time limit for a request to arrive; then it gets status 408
        answer_seconds: time limit for the answer to an accepted request; then it gets status 504
        keys: file of API keys, one per line; only requests with one of these keys are answered (default: no key is needed)
        origins: origins of web pages whose scripts may call the server (CORS), separated by commas: https://example.org,...
            (default: none)
        index: a search index that `vitlab embed` made with the first model; the server's page then shows the nearest images and
            a map (default: none)
        restart: run the server in a child process, and start a new one if it is killed; only on the command line
        backend: runtime of the model; auto measures once, before the first request, which one is fastest on this machine
    """
    from vitlab.io.optional import optional_import

    for package in ("starlette", "uvicorn", "httptools", "python_multipart", "prometheus_client"):
        optional_import(package, purpose="servers")
    from vitlab.serving.config import ServeConfig, read_keys

    config = ServeConfig(
        host=host,
        port=port,
        batch_size=batch_size,
        batch_wait=batch_wait,
        workers=workers,
        queue=queue,
        max_body=max_body << 20,
        max_images=max_images,
        max_pixels=max_pixels,
        max_memory=max(256, 2 * max_body) << 20,
        receive_seconds=receive_seconds,
        answer_seconds=answer_seconds,
        keys=() if keys is None else read_keys(Path(keys)),
        origins=() if origins is None else tuple(origins.split(",") if isinstance(origins, str) else origins),
        index=None if index is None else _local(index),
    )
    bound = supervised = None
    if restart:  # before torch is imported: a process with its threads must not fork
        from vitlab.serving.port import bind, supervise

        bound = bind(config.host, config.port)
        supervised = supervise(bound)
    from vitlab.checkpoints import Checkpoint
    from vitlab.serving.models import Source
    from vitlab.serving.server import Server, announce

    opening = _Opening(image_size, patch_size, resize, resize_to, interpolation, labels, heads, grid, profile, allow_nonfinite)
    given: list[ModelLike] = [models] if isinstance(models, str | os.PathLike | Checkpoint) else list(models)
    sources = [Source(name=_short_name(model), open=partial(_opened, model, opening, device=device)) for model in given]
    server = Server(sources, config, backend=backend, device=device, merge=merge, bound=bound)
    if supervised is not None:
        supervised(server.stop)
    return server.run(on_ready=announce)


# --- evaluation, interpretation, export ---------------------------------------------------------------------------------------


@_writes("per_image", "vtab_plot")
def evaluate(
    model: ModelLike,
    data: str | os.PathLike[str] | None = None,
    *,
    split: Split | None = None,
    label_column: str | None = None,
    subset: bool = False,
    mapping: FileName | None = None,
    real: FileName | None = None,
    corrupt: CorruptPolicy = "fail",
    precision: Positive | None = None,
    corruptions: Names | None = None,
    severities: Severities = (1, 2, 3, 4, 5),
    per_image: FileName | None = None,
    fewshot: bool = False,
    knn: bool = False,
    probe: bool = False,
    vtab: Folder | None = None,
    shots: Numbers = (1, 5, 10, 25),
    seeds: int = 3,
    neighbours: Numbers | None = None,
    vtab_test: int | None = None,
    vtab_splits: FileName | None = None,
    vtab_finetune: Folder | None = None,
    vtab_steps: int | None = None,
    vtab_plot: FileName | None = None,
    no_cache: bool = False,
    backend: BackendName = "auto",
    merge: int = 0,
    tta: Tta | None = None,
    batch_size: int = 64,
    workers: int = 2,
    device: str = "auto",
    engine: EngineName = "local",
    address: str | None = None,
    actors: int = 0,
    part_size: int = 4096,
    parts: Folder | None = None,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    resize: Resize | None = None,
    resize_to: int | None = None,
    interpolation: Interpolation | None = None,
    labels: FileName | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
    windows: int = 0,
    refine: bool = False,
    allow_nonfinite: bool = False,
    progress: ProgressCallback | None = None,
) -> EvaluationSummary | Any:  # SegmentationEvaluation of a segmenter, DetectionEvaluation of a detector
    """Evaluate a checkpoint on labelled images: accuracy with intervals, loss, calibration, precision and recall, worst classes.

    A segmenter is evaluated on images with masks, at their own size: mean IoU with its interval, IoU of each class, pixel accuracy
    and boundary F. A detector is evaluated on images with boxes: AP, AP50, AP75 and AP by size of objects, as COCO defines them.
    With `fewshot`, `knn`, `probe` or `vtab`, train classifiers on the features of the model and evaluate these instead.

    Args:
        data: a folder of class folders, a zip, a CSV list, shards, digits, reader:path, ...; not with `vtab`
            (default: none)
        split: which split to evaluate on (default: test if the data declares it, else val, else all images)
        label_column: column of the labels, if a list has several (default: the first known one)
        subset: accept data with only some of the model's classes, or in another order; classes are matched by name
        mapping: JSON file that maps each class of the data to the model's classes that are correct, as for ObjectNet
            (default: the classes are the same)
        real: CSV or JSON file with the reassessed (ReaL) labels of each image, also inside a zip: data.zip/labels.csv
            (default: no ReaL accuracy)
        corrupt: what to do if an image cannot be read: fail stops; skip counts it as wrong and reports it
        precision: also report the lowest confidence above which this fraction of the predictions is correct, such as 0.95
            (default: none)
        corruptions: also evaluate on corrupted images: names separated by commas, such as fog,jpeg, or all (default: none)
        severities: severities of the corruptions, from 1 to 5
        per_image: CSV file to write, with a line for each image (default: not written)
        fewshot: fit a linear classifier to a few images of each class by least squares, as for the paper's few-shot accuracies
        knn: classify by the k nearest training images
        probe: train a linear classifier to convergence; its regularisation is chosen on held-out images
        vtab: folder with VTAB's datasets: 19 tasks with 1,000 training images each, in place of `data` (default: no VTAB)
        shots: few-shot: images of each class
        seeds: few-shot: number of random draws of these images
        neighbours: k-NN: values of k (default: 1,5,10,20,100, as far as there are images)
        vtab_test: VTAB: number of test images of each task (default: all)
        vtab_splits: VTAB: JSON file with the images of each split (default: FOLDER/vtab-splits.json, if it exists)
        vtab_finetune: VTAB: also fine-tune the model on each task, as in appendix B; folder for these runs. Finished runs are
            not repeated (default: the linear probe alone)
        vtab_steps: VTAB: steps of each fine-tuning (default: 2,500, at 384 px unless an image size is given)
        vtab_plot: VTAB: .png or .svg file to write: Figure 2, the means of the groups beside the paper's (default: none)
        no_cache: compute all features again, and do not store them
        engine: local (this process) or ray (a Ray cluster, where the same command resumes with `parts`)
        parts: Ray: folder for the logits of finished parts, from which the same command resumes (default: a temporary folder)
    """
    from vitlab.config.evaluation import EvaluateConfig
    from vitlab.config.model import task_of
    from vitlab.evaluation import summary

    if vtab is None:
        _refuse_given("needs `vtab`", vtab_finetune=vtab_finetune, vtab_plot=vtab_plot)
    if vtab_finetune is None:
        _refuse_given("needs `vtab_finetune`", vtab_steps=vtab_steps)

    _at_least("seeds", seeds, 1)
    ray = _ray_config(engine, address, actors, part_size, workers)
    if ray is None:
        _refuse_given("needs `engine=ray`", parts=parts)
    asked = summary.Asked(
        data=None if data is None else os.fspath(data),
        split=split,
        label_column=label_column,
        config=EvaluateConfig(
            batch_size=batch_size,
            workers=workers,
            corrupt=corrupt,
            backend=backend,
            device=device,
            merge=merge,
            tta=tta,
            precision=precision,
        ),
        subset=subset,
        mapping=None if mapping is None else Path(mapping),
        real=None if real is None else os.fspath(real),
        corruptions=tuple(corruptions.split(",") if isinstance(corruptions, str) else corruptions or ()),
        severities=tuple(severities),
        per_image=None if per_image is None else Path(per_image),
        fewshot=fewshot,
        knn=knn,
        probe=probe,
        vtab=None if vtab is None else Path(vtab),
        shots=tuple(shots),
        seeds=seeds,
        neighbours=None if neighbours is None else tuple(neighbours),
        vtab_test=vtab_test,
        vtab_splits=None if vtab_splits is None else Path(vtab_splits),
        cache=not no_cache,
        own_resize=resize is None,
        ray=ray,
        parts=None if parts is None else Path(parts),
    )
    asked.check()
    checkpoint = _opened(
        model,
        _Opening(image_size, patch_size, resize, resize_to, interpolation, labels, heads, grid, profile, allow_nonfinite),
        device=device if ray is None else "cpu",
        native=True,
    )
    if ray is not None:
        _refuse_on_ray(checkpoint)
    if task_of(checkpoint.config) == "segment":
        found_masks = _evaluated_masks(checkpoint, asked, windows, refine=refine, name=_name_of(model), progress=progress or silent)
        _note_all(found_masks.notes)
        return found_masks
    _refuse_given("is for segmenters", windows=windows or None, refine=refine or None)
    if task_of(checkpoint.config) == "detect" and not (fewshot or knn or probe or vtab):
        found_boxes = _evaluated_boxes(checkpoint, asked, name=_name_of(model), progress=progress or silent)
        _note_all(found_boxes.notes)
        return found_boxes
    found = summary.summarise(checkpoint, asked, name=_name_of(model), progress=progress or silent)
    if vtab_finetune is not None:
        found = _with_vtab_finetuned(found, asked, model, Path(vtab_finetune), vtab_steps, image_size, progress or silent)
    _note_all(found.notes[len(checkpoint.notes) :])
    for failure in found.failures:
        _log.warning("unreadable: %s", failure)
    if vtab_plot is not None and found.vtab is not None:
        from vitlab.studies.transfer import draw_vtab

        Path(vtab_plot).write_bytes(draw_vtab(found.vtab, Path(vtab_plot)))
        _log.info("plot: %s", vtab_plot)
    return found


def _evaluated_masks(
    checkpoint: Checkpoint, asked: Asked, windows: int, *, refine: bool, name: str, progress: ProgressCallback
) -> SegmentationEvaluation:
    """The evaluation of a segmenter; options of classifiers are refused."""
    from vitlab.data.dataset import ImageDataset
    from vitlab.evaluation.evaluation import open_split
    from vitlab.evaluation.segmentation import evaluate_segmentation
    from vitlab.inference.segmentation import SegmentPredictor

    config = asked.config
    for option in ("fewshot", "knn", "probe", "vtab", "mapping", "real", "corruptions", "label_column"):
        _refuse_given(_OF_CLASSIFIERS, **{option: getattr(asked, option) or None})
    _refuse_classifiers_settings(_OF_CLASSIFIERS, config)
    assert asked.data is not None
    dataset, notes = open_split(asked.data, asked.split, checkpoint)
    if not isinstance(dataset, ImageDataset):
        raise DataError(f"{asked.data} has no masks, and this model gives each pixel a class")
    predictor = SegmentPredictor(
        checkpoint,
        batch_size=config.batch_size,
        workers=config.workers,
        device=_device_of(checkpoint),
        windows=windows,
        refine=refine,
    )
    found = evaluate_segmentation(
        checkpoint,
        dataset,
        predictor=predictor,
        model=name,
        data=asked.data,
        subset=asked.subset,
        corrupt=config.corrupt,
        notes=notes,
        progress=progress,
    )
    if asked.per_image is not None:
        found.write_per_image(asked.per_image)
    return found


def _evaluated_boxes(checkpoint: Checkpoint, asked: Asked, *, name: str, progress: ProgressCallback) -> DetectionEvaluation:
    """The evaluation of a detector; options of classifiers are refused."""
    from vitlab.data.dataset import ImageDataset
    from vitlab.data.readers.recognise import for_task
    from vitlab.evaluation.detection import LEAST, evaluate_detection
    from vitlab.evaluation.evaluation import open_split
    from vitlab.inference.detections import Detector

    config = asked.config
    for option in ("mapping", "real", "corruptions", "label_column"):
        _refuse_given(_NOT_OF_DETECTORS, **{option: getattr(asked, option) or None})
    _refuse_classifiers_settings(_NOT_OF_DETECTORS, config)
    assert asked.data is not None
    dataset, notes = open_split(for_task(asked.data, "detect"), asked.split, checkpoint)
    if not isinstance(dataset, ImageDataset):
        raise DataError(f"{asked.data} has no boxes, and this model is an object detector")
    detector = Detector(
        checkpoint, threshold=LEAST, batch_size=config.batch_size, workers=config.workers, device=_device_of(checkpoint)
    )
    found = evaluate_detection(
        dataset,
        detector=detector,
        model=name,
        data=asked.data,
        subset=asked.subset,
        corrupt=config.corrupt,
        notes=notes,
        progress=progress,
    )
    if asked.per_image is not None:
        found.write_per_image(asked.per_image)
    return found


def _with_vtab_finetuned(
    found: EvaluationSummary,
    asked: Asked,
    model: ModelLike,
    out: Path,
    steps: int | None,
    image_size: Size | None,
    progress: ProgressCallback,
) -> EvaluationSummary:
    """The evaluation with the accuracy of the model fine-tuned on each task."""
    from vitlab.config.overrides import Overrides
    from vitlab.studies.transfer import finetune_vtab
    from vitlab.training.plan import start_facts

    assert found.vtab is not None
    assert asked.vtab is not None
    overrides = Overrides(image_size=None if image_size is None else pair("image_size", image_size), steps=steps)
    tuned = finetune_vtab(
        found.vtab,
        start_facts(_stored(model)),
        asked.vtab,
        out,
        overrides,
        asked.vtab_config,
        splits=asked.vtab_splits,
        reading=asked.config,
        notify=_log.info,
        progress=progress,
    )
    return replace(found, vtab=tuned)


@_writes("out")
def inspect(
    model: ModelLike,
    images: ImagesLike = (),
    *,
    figure: FigureName | Names = "all",
    out: Folder | None = None,
    layer: Layer | None = None,
    head: int | None = None,
    query: Patch | None = None,
    target: str | None = None,
    overlay: Overlay = "shade",
    occluder: Occluder = "fill",
    theme: Theme = "light",
    format: Form = "png",  # noqa: A002
    count: int | None = None,
    arrays: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    image_size: Size | None = None,
    patch_size: Size | None = None,
    resize: Resize | None = None,
    resize_to: int | None = None,
    interpolation: Interpolation | None = None,
    labels: FileName | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
    allow_nonfinite: bool = False,
    progress: ProgressCallback | None = None,
) -> Figures:
    """Draw what a model learned and attends to: filters, positions, attention maps, rollout, relevance, ...

    Returns the figures: `inspect(model, "cat.jpg", figure="rollout").save("rollout.png")`.

    Two figures need no images: filters (of the patch embedding) and positions (similarity of position embeddings).

    The others need images: distance (how far heads attend), rollout (which patches the prediction comes from), attention (what a
    patch attends to), class (what the class token attends to), filtered (attention as a filter, the values and the filtered
    values), relevance (which patches are evidence for a class), features (which patches are similar), receptive (which pixels the
    patch in the middle depends on, layer by layer) and occlusion (how much the class loses if a patch is covered).

    Args:
        images: images, folders, quoted patterns, zip archives or files inside them (default: none)
        figure: filters, positions, distance, rollout, attention, filtered, class, relevance, features, receptive, occlusion;
            several separated by commas; or all that the model supports
        out: folder to write the figures to; required on the command line (default: a Python call returns the figures)
        layer: layer, or stage of a ResNet; 0 is the first, -1 the last (default: the last, or all side by side)
        head: attention head, from 0 (default: all)
        query: token whose attention is drawn: row,column of a patch, class or distill (default: the patch in the middle)
        target: class that relevance and occlusion explain, by label or index from 0 (default: the most probable)
        overlay: shade darkens what is not attended to, colour lays a heat map over the image
        occluder: fill covers a patch with the mean colour, remove removes its token
        theme: light or dark background
        format: png or svg
        count: largest number of images to use, taken evenly from all that are found (default: 128 for distance, else 12)
        arrays: also write the values of each figure as .npy
        overwrite: replace figures that exist
    """
    from vitlab.interpretation.config import OF_THE_WEIGHTS, InspectConfig
    from vitlab.interpretation.figures import NAMES, figure_names, inspect_checkpoint, refuse_present

    names = figure_names(figure)
    given = not (isinstance(images, tuple | list) and not images)
    needing = [name for name in names if name not in OF_THE_WEIGHTS]
    if needing and not given and names != NAMES:
        raise UsageError(f"the figure {needing[0]} needs images", hint="give them after the model")
    if count is not None:
        _at_least("count", count, 1)
    if out is not None and not overwrite:
        refuse_present(Path(out), [name for name in names if given or name in OF_THE_WEIGHTS], format)
    checkpoint = _opened(
        model,
        _Opening(image_size, patch_size, resize, resize_to, interpolation, labels, heads, grid, profile, allow_nonfinite),
        device=device,
    )
    config = InspectConfig(
        layer=layer, head=head, query=query, target=target, occluder=occluder, overlay=overlay, theme=theme, form=format
    )
    found = inspect_checkpoint(_backbone(checkpoint), images, names, config, count=count, progress=progress or silent)
    _note_all(found.notes)
    return found if out is None else found.save(Path(out), arrays=arrays)


def _backbone(checkpoint: Checkpoint) -> Checkpoint:
    """The backbone of a segmenter or detector, with a note; any other checkpoint as it is."""
    from vitlab.config.backbone import OnBackbone
    from vitlab.inference.segmentation import backbone_of

    if isinstance(checkpoint.config, OnBackbone):
        _note(f"the figures are of the backbone of {checkpoint.config.title}")
    return backbone_of(checkpoint)


@_writes("out")
def explore(
    model: ModelLike,
    images: ImagesLike = (),
    *,
    out: FileName = "explorer.html",
    beside: ModelLike | None = None,
    index: Existing | None = None,
    count: int = 12,
    no_cover: bool = False,
    title: str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    image_size: Size | None = None,
    patch_size: Size | None = None,
    resize: Resize | None = None,
    resize_to: int | None = None,
    interpolation: Interpolation | None = None,
    labels: FileName | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
    allow_nonfinite: bool = False,
    progress: ProgressCallback | None = None,
) -> WrittenExplorer:
    """Write an interactive page that shows how a model sees images, as one HTML file.

    The page has a guided tour and free exploration: patches, positions, attention of every layer and head, rollout, relevance and
    features. It shows the prediction after each layer, and how it changes when patches are covered or shuffled. The file opens
    from disk in any browser and uses no network. `vitlab serve` shows the same page and accepts your own images.

    Args:
        images: images, folders, quoted patterns, zip archives or files inside them
            (default: four photographs that come with vitlab)
        out: file to write
        beside: a second model to show beside the first (default: none)
        index: a search index that `vitlab embed` made with the model, for the most similar images and a map of all (default: none)
        count: largest number of images to show, taken evenly from all that are found
        no_cover: leave out the predictions with a covered patch, which need a forward pass for each patch of each image
        title: title of the page (default: the model's name)
        overwrite: replace the file if it exists
        labels: file with the names of the classes, one per line; also for the second model, if it has as many classes (default: the
            checkpoint's own)
    """
    from vitlab.config.model import task_of
    from vitlab.inference.search_index import Index
    from vitlab.inference.writing import all_images
    from vitlab.interpretation.figures import spread
    from vitlab.io.atomic import check_parent
    from vitlab.reports.explorer import Neighbourhood, builtin_images, write_explorer

    _at_least("count", count, 1)
    path = Path(out)
    _refuse_present(path, overwrite)
    check_parent(path, DataError)
    given = not (isinstance(images, tuple | list) and not images)
    shown: list[Any] = spread(list(all_images(images)[0]), count) if given else builtin_images()
    opening = _Opening(image_size, patch_size, resize, resize_to, interpolation, labels, heads, grid, profile, allow_nonfinite)
    first = _opened(model, opening, device=device)
    if task_of(first.config) != "classify":
        raise UsageError("the explorer is for models that give each image a class", hint="vitlab inspect looks into this one")
    models = {_explored_name(model, first): first}
    if beside is not None:
        own = _Opening(None, None, resize, resize_to, interpolation, allow_nonfinite=allow_nonfinite)
        second = _opened(beside, own, device=device)
        if second.labels is None and second.config.num_classes == first.config.num_classes:
            second = replace(second, labels=first.labels)
        name = _explored_name(beside, second)
        models[f"{name} (2)" if name in models else name] = second
    near = None if index is None else Neighbourhood.of(Index(_local(index)), first)
    return write_explorer(path, models, shown, title=title, cover=not no_cover, neighbourhood=near, progress=progress or silent)


def _explored_name(model: ModelLike, checkpoint: Checkpoint) -> str:
    """A short name: the model's own, or the file's without its ending."""
    if checkpoint.config.name is not None:
        return checkpoint.config.name
    return Path(model).stem if isinstance(model, str | os.PathLike) else "the model"


def report(
    run: Existing | Run,
    *,
    out: FileName | None = None,
    split: Split | None = None,
    title: str | None = None,
    cores: int | None = None,
    progress: ProgressCallback | None = None,
) -> WrittenReport:
    """Write an HTML report of a run, with an evaluation on images that it was not trained on.

    Args:
        run: a run, its folder or its address, made by pretrain, finetune or train
        out: file to write (default: report.html in the run's folder)
        split: which split to evaluate on (default: test if the data has it, else val)
        title: title of the report (default: the folder's name)
        cores: number of CPU cores that the run used, for its cost (default: the number used now)
    """
    from vitlab.reports.report import write_report
    from vitlab.training.run import Run

    where = run.address if isinstance(run, Run) and run.address is not None else None if isinstance(run, Run) else os.fspath(run)
    target = None if out is None else os.fspath(out)
    if where is not None and is_address(where):
        from vitlab.checkpoints.remote_copy import copied_run

        folder = copied_run(address_of(where))
        target, title = target or str(address_of(where) / "report.html"), title or address_of(where).name
    else:
        folder = run.path if isinstance(run, Run) else Path(run)
    if target is not None and is_address(target):
        from vitlab.io.remote import staged

        with staged(address_of(target), overwrite=True) as path:
            written = write_report(folder, path, split=split, title=title, cores=cores, progress=progress or silent)
        _note_all(written.notes)
        _log.info("written: %s", masked(target))
        return replace(written, path=Path(address_of(target).name), address=masked(target))
    written = write_report(
        folder, None if target is None else Path(target), split=split, title=title, cores=cores, progress=progress or silent
    )
    _note_all(written.notes)
    return written


@_writes("out")
def export(
    model: ModelLike,
    out: str | os.PathLike[str],
    *,
    inside: bool = False,
    dynamic_size: bool = False,
    int8: bool = False,
    data: str | os.PathLike[str] | None = None,
    split: Split = "all",
    max_drop: float = 1.0,
    calibration: int = 512,
    overwrite: bool = False,
    device: str = "auto",
    image_size: Size | None = None,
    patch_size: Size | None = None,
    resize: Resize | None = None,
    resize_to: int | None = None,
    interpolation: Interpolation | None = None,
    labels: FileName | None = None,
    heads: int | None = None,
    grid: Size | None = None,
    profile: Profile | None = None,
    progress: ProgressCallback | None = None,
) -> Exported:
    """Export a model to ONNX, OpenVINO or torch.export. The file is compared with PyTorch before it is written.

    Args:
        out: file to write: .onnx, .xml (OpenVINO, with a .bin beside it) or .pt2 (torch.export)
        inside: include normalisation and softmax: the file takes uint8 images (batch, height, width, channels) and returns
            probabilities
        dynamic_size: allow any height and width
        int8: quantise matrix products to 8 bits; needs `data`
        data: images for the comparison with PyTorch and for int8 calibration: a folder, zip, list, shards, reader:path, ...
            (default: synthetic images)
        split: which split of the data
        max_drop: largest drop that int8 may cause, in points of accuracy (for images without labels, of agreement with float)
        calibration: largest number of images to use for int8 calibration and evaluation
        overwrite: replace the file if it exists
    """
    from vitlab.exporters import ExportConfig
    from vitlab.exporters import export as export_checkpoint
    from vitlab.exporters.files import ENDINGS

    if Path(out).suffix in ENDINGS:  # else the ending is what is wrong
        _refuse_present(Path(out), overwrite)
    config = ExportConfig(inside=inside, dynamic_size=dynamic_size, int8=int8, max_drop=max_drop, calibration=calibration)
    from vitlab.data.opening import open_dataset

    dataset = None if data is None else open_dataset(os.fspath(data), split=split)
    checkpoint = _opened(
        model,
        _Opening(image_size, patch_size, resize, resize_to, interpolation, labels, heads, grid, profile),
        device=device,
    )
    made = export_checkpoint(checkpoint, Path(out), config, dataset=dataset, progress=progress or silent)
    _note_all(made.notes)
    return made


# --- training -----------------------------------------------------------------------------------------------------------------


def finetune(
    data: str | os.PathLike[str],
    start: ModelLike | None = None,
    *,
    out: Folder | None = None,
    recipe: RecipeName | None = None,
    model: str | None = None,
    epochs: Positive | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: Positive | None = None,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    patch_sizes: Sizes | None = None,
    resize: Resize | None = None,
    channels: int | None = None,
    pixel_scale: PixelScale | None = None,
    seed: int | None = None,
    preset: str | None = None,
    val_fraction: Fraction | None = None,
    test_fraction: Fraction | None = None,
    sweep: bool = False,
    engine: EngineName = "local",
    address: str | None = None,
    lrs: LearningRates | None = None,
    find_lr: bool = False,
    micro_batch: int | None = None,
    precision: Precision | None = None,
    strategy: Strategy | None = None,
    offload: Offload | None = None,
    recompute: OnOff | None = None,
    hang_timeout: Positive | None = None,
    workers: int | None = None,
    evaluate_every: int | None = None,
    save_every: int | None = None,
    max_minutes: Positive | None = None,
    minutes: Positive | None = None,
    head: HeadStart | None = None,
    lora: int | None = None,
    lora_targets: Names | None = None,
    progressive_resizing: OnOff | None = None,
    trainable: Trainable | None = None,
    blocks: int | None = None,
    task: Task = "classify",
    decoder: Decoder | None = None,
    detector: DetectorKind | None = None,
    layers: Layers | None = None,
    dice: Positive | None = None,
    device: str = "auto",
    track: Names | None = None,
    override: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> Run:
    """Fine-tune a checkpoint on labelled images. An interrupted run resumes bit-exactly with the same command.

    Returns the run: `run.model`, `run.metrics`, `run.path`. `run.notes` says what was chosen for you, and why.

    Args:
        data: a folder of class folders, a zip, shards, an address of these (s3://bucket/shards), digits, cifar10:PATH, ...; for
            segmentation, a folder or zip of images/ and masks/; for detection, images with boxes
        start: checkpoint of any format, its address, hub:owner/name, a run, or the name of public weights: ViT-B/16
            (default: train from scratch with the recipe small-data)
        out: folder of the run, or its address; an unfinished run in it is resumed (default: runs/ and the data's name)
        recipe: finetune-imagenet, -cifar10, -cifar100, -pets, -flowers or -vtab as in the paper; or any other recipe
            (default: finetune-folder with a checkpoint, small-data without; segment-folder for segmentation, detect-folder for
                detection)
        model: model to train from scratch (default: the recipe's own)
        epochs: passes over the training images, in place of `steps` (default: the recipe's own)
        steps: total number of optimizer steps (default: the recipe's own)
        batch_size: images per step, over all devices (default: the recipe's own)
        lr: peak learning rate (default: the recipe's own)
        image_size: input size of the model in pixels, 160 or 160x224 (default: the recipe's own)
        patch_size: patch size of a ViT in pixels, 8, 32 or 16x32; the patch embedding of a checkpoint is resized by pseudo-inverse
            (default: the checkpoint's, or the model's own)
        patch_sizes: train one ViT for several patch sizes (FlexiViT): each step draws one of these, such as 8,12,16,24;
            predict, evaluate and export can then use any of them (default: the model's own patch size alone)
        resize: how evaluation and predict resize to the image size. short-side: resize the short side, then crop the centre;
            squash: change the aspect ratio; pad: keep the aspect ratio and pad; fit: keep the aspect ratio, crop nothing; native:
            keep each image's aspect ratio, also in training, and pack images of different shapes (NaViT) (default: the
            checkpoint's)
        channels: channels of the images: 1 is grey, 3 is RGB; TIFF files and NumPy arrays may have other numbers. The first
            layer of a checkpoint is adapted (default: those of the images, or the checkpoint's for grey and colour images)
        pixel_scale: scaling of images of more than 8 bits to 8 bits. full: 0 to 65,535 for 16 bits, 0 to 1 for floating point,
            the window of a DICOM file; percentile: the 0.5th to the 99.5th percentile of each channel of each image; file: the
            least to the largest number of each channel of each image. It is saved in the checkpoint, and predict does the same
            (default: the checkpoint's, else full)
        seed: seed of initial weights, sampler, augmentation and dropout (default: 0)
        preset: augmentation: none, light1, light2, medium1, medium2, strong1 or strong2 (default: the recipe's own)
        val_fraction: fraction of the images to hold out as val, if the data has no val split (default: the recipe's own)
        test_fraction: fraction of the images to hold out as test, if the data declares no splits (default: the recipe's own)
        sweep: try several learning rates on val, then train on train and val with the best one (appendix B.1.1)
        engine: with `sweep`: local, or ray: each run is a task of a Ray cluster, and learning rates are tried in parallel
        address: Ray: address of a running cluster, host:port, or auto for that of this machine (default: start a cluster on
            this machine)
        lrs: with `sweep`: learning rates to try (default: Table 4's in its recipes, else 0.3, 1 and 3 times the recipe's own)
        find_lr: learning rate range test in place of training: raise the learning rate for at most 100 steps, plot the loss in
            OUT-find-lr, and suggest a learning rate
        micro_batch: images that go through the model at once (gradient accumulation); the update stays the same (default: the
            whole batch)
        precision: precision of matrix products (default: the recipe's own)
        strategy: how the processes of torchrun divide the work (default: ddp under torchrun, else single)
        offload: with `strategy=fsdp`: cpu keeps the shards of weights, gradients and optimizer in host memory (default: none)
        recompute: activation checkpointing: on computes activations again in the backward pass, to save memory (default: off)
        hang_timeout: under torchrun: seconds to wait for a rank that does not respond; then the job ends and names it (default:
            60)
        workers: processes that read images; results do not depend on it (default: the recipe's own)
        evaluate_every: steps between two evaluations, 0 for one at the end (default: the recipe's own)
        save_every: steps between two checkpoints, 0 for one at the end (default: the recipe's own)
        max_minutes: save a checkpoint and stop after this many minutes; the same command resumes (default: no limit)
        minutes: time budget: choose image size, head and epochs for the best model in this time (default: none)
        head: initial weights of the new head: zero as in the paper, or fitted to the features of the training images before
            the first step (default: fitted with `minutes` and a checkpoint, else zero)
        lora: save memory: freeze the weights and train only the head and updates of this rank (8 is usual), which are merged into
            the saved model (default: train all weights)
        lora_targets: with `lora`: the layers that are updated, some of q, k, v, qkv, proj, mlp, separated by commas (default: q,v)
        progressive_resizing: train on images of three quarters of the image size for the first 70 % of the steps (default: on
            with `minutes` and a checkpoint; else the recipe's own)
        trainable: weights to train: all; head, on frozen features (segmentation: the decoder); or last-blocks, these and the
            head (default: all)
        blocks: with `trainable=last-blocks`: number of last blocks to train (default: none)
        task: classify: a class for each image. segment: a class for each pixel; needs masks: images/ beside masks/, VOC's
            layout, or masks.json. detect: boxes of objects; needs boxes: boxes.csv, COCO's JSON, VOC's XML, or boxes.json
        decoder: segmentation: linear (one dense layer on each patch) or mask-transformer (that of Segmenter) (default: linear)
        layers: segmentation: layers of a ViT, or stages of other models, whose features the decoder uses, numbered from 0; they
            include the last (default: the last layer of a ViT, all stages of others)
        detector: detection: grid (a light head on the patches) or tokens (the detection tokens of YOLOS, which need far more
            images) (default: grid; a YOLOS keeps its tokens)
        dice: segmentation: weight of the Dice loss, which is added to the cross-entropy and helps with small and rare classes
            (default: no Dice loss)
        device: auto (a GPU if there is one), cpu, cuda or mps
        track: send the curves to trackers, separated by commas: tensorboard (files in the run's folder), mlflow (a local store,
            or MLFLOW_TRACKING_URI), wandb (offline, or WANDB_MODE) (default: none)
        override: resume although the config of the run or its samples have changed
        dry_run: do not train; report steps, memory and measured time
        quiet: show no progress on stderr
    """
    from vitlab.config.model import Task
    from vitlab.errors import choice

    if lrs is not None and not sweep:
        raise UsageError("`lrs` needs `sweep`", hint="`lr` sets one learning rate")
    ray = _ray_config(engine, address)
    if ray is not None and not sweep:
        raise UsageError("`engine=ray` is for the runs of a `sweep`", hint="torchrun trains one run on several machines")
    if find_lr and (sweep or dry_run or minutes is not None):
        others = [name for name, given in (("sweep", sweep), ("dry_run", dry_run), ("minutes", minutes is not None)) if given]
        raise UsageError("`find_lr` only looks for a learning rate", hint=f"leave `{'` and `'.join(others)}` out")
    if sweep and lr is not None:
        raise UsageError("`lr` is one learning rate and `sweep` tries several", hint="`lrs` says which")
    if model is not None and os.path.isfile(model):  # noqa: PTH113 (Path.is_file raises on a name that is too long)
        raise UsageError(
            f"`model` is the name of a model to train from scratch, and {model} is a file", hint="a checkpoint is given as `start`"
        )
    began = time.monotonic()
    tracked = _tracked(track)
    if minutes is not None:
        _refuse_given(
            "excludes `minutes`, which chooses the length of one run",
            epochs=epochs,
            steps=steps,
            max_minutes=max_minutes,
            sweep=sweep or None,
        )
    choice("task", task, Task)
    if trainable != "last-blocks":
        _refuse_given("needs `trainable=last-blocks`", blocks=blocks)
    if task != "classify":
        _refuse_given(
            "is not for segmentation" if task == "segment" else "is not for detection",
            minutes=minutes,
            preset=preset,
            sweep=sweep or None,
            head=head,
            lora=lora,
            progressive_resizing=progressive_resizing,
        )
    from vitlab.config.overrides import Overrides
    from vitlab.data.opening import open_dataset as open_whole
    from vitlab.data.readers.recognise import for_task
    from vitlab.training.plan import start_facts, survey

    rule = _rule(val_fraction, test_fraction)
    place = for_task(os.fspath(data), task)
    with _in_words_of(task, place):
        dataset = open_whole(place, split="all", rule=rule)  # the one time that the run opens it
    place = masked(place)  # as it is stored
    _note_all(_data_notes(dataset))
    begins = None if start is None else start_facts(_stored(start))
    scale = pixel_scale or (begins.preprocess.pixel_scale if begins is not None else "full")
    facts = survey(place, rule=rule, dataset=dataset, channels=channels, scale=scale)
    if recipe is not None:
        name, why = recipe, "as asked"
    elif task == "segment":
        name, why = "segment-folder", "since each pixel gets a class"
    elif task == "detect":
        name, why = "detect-folder", "since objects get boxes"
    elif begins is not None:
        name, why = "finetune-folder", "since a checkpoint is given"
    else:
        name, why = (
            "small-data",
            "from scratch, since no checkpoint is given; a pretrained one (`start`) gives far better accuracy",
        )
    overrides = Overrides(
        model=model,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        lr=lr,
        image_size=None if image_size is None else pair("image_size", image_size),
        patch_size=None if patch_size is None else pair("patch_size", patch_size),
        patch_sizes=None if patch_sizes is None else _sizes_of("patch_sizes", patch_sizes),
        resize=resize,
        seed=seed,
        preset=preset,
        channels=channels,
        pixel_scale=pixel_scale,
        rule=rule,
        micro_batch=micro_batch,
        precision=precision,
        strategy=strategy,
        offload=offload,
        recompute=None if recompute is None else recompute == "on",
        hang_timeout=hang_timeout,
        workers=workers,
        evaluate_every=evaluate_every,
        save_every=save_every,
        max_minutes=max_minutes,
        head=head,
        lora=_lora(lora, lora_targets),
        progressive_resizing=None if progressive_resizing is None else progressive_resizing == "on",
        trainable=trainable,
        blocks=blocks,
        decoder=decoder,
        detector=detector,
        layers=None if layers is None else tuple(layers),
        dice=dice,
    )
    place_of_run = out or _default_out(place, after="-sweep" if sweep else "")
    _refuse_folder_of_data(place_of_run, place)
    asked, planned = overrides, None
    if minutes is not None:
        from vitlab.training.run_folder import RunDirectory
        from vitlab.training.time_budget import plan_minutes

        if not is_address(os.fspath(place_of_run)):
            RunDirectory(Path(place_of_run)).check_place()  # before the time is spent on measuring
        planned = plan_minutes(
            minutes,
            lambda tried: _recipe_run(name, why, tried, facts, begins)[0],
            overrides,
            facts,
            dataset=dataset,
            start=begins,
            device=device,
            began=began,
            stored=_stored_config(place_of_run),
        )
        overrides = planned.overrides
    config, notes = _recipe_run(name, why, overrides, facts, begins, asked=asked)
    if planned is not None:
        config, notes = planned.applied(config), (*notes, planned.sentence)
    tried = _lrs(config, lrs) if sweep else ()
    if tried:
        shown = ", ".join(f"{rate:.3g}" for rate in tried)
        notes = (
            *notes,
            f"sweep: learning rates {shown}, each evaluated on val; then the best of them on train and val together (app. B.1.1)",
        )
    _say_all(notes)
    if find_lr:
        from vitlab.training.run import Run as FinishedRun
        from vitlab.training.sweep import find_lr as search

        beside = _default_out(place) if is_address(place_of_run) else place_of_run  # its plot is written to disk
        found = search(
            config, out=Path(f"{beside}-find-lr"), dataset=dataset, device=device, notify=_log.debug if quiet else _log.info
        )
        return FinishedRun(path=Path(place_of_run), config=config, found_lr=found, notes=notes)
    return _stream(
        config,
        out=place_of_run,
        lrs=tried,
        ray=ray,
        data=facts,
        dataset=dataset,
        device=device,
        override=override,
        dry_run=dry_run,
        track=tracked,
        notes=notes,
    ).run_to_end(quiet=quiet)


@contextmanager
def _in_words_of(task: Task, place: str) -> Iterator[None]:
    """Data that is to be segmented and has no masks is refused for that, and not for its class folders."""
    from vitlab.data.readers.recognise import parse_spec
    from vitlab.io.display import printable

    try:
        yield
    except DataError as error:
        if task != "segment" or parse_spec(place)[0] == "masks":
            raise
        hint = "images/ beside masks/, VOC's folders, COCO's JSON with the images, or masks.json"
        raise DataError(f"{printable(place)} has no masks", hint=hint) from error


def pretrain(
    data: str | os.PathLike[str] | None = None,
    *,
    recipe: RecipeName | None = None,
    model: str | None = None,
    out: Folder | None = None,
    epochs: Positive | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: Positive | None = None,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    patch_sizes: Sizes | None = None,
    resize: Resize | None = None,
    channels: int | None = None,
    pixel_scale: PixelScale | None = None,
    seed: int | None = None,
    preset: str | None = None,
    val_fraction: Fraction | None = None,
    test_fraction: Fraction | None = None,
    micro_batch: int | None = None,
    precision: Precision | None = None,
    strategy: Strategy | None = None,
    offload: Offload | None = None,
    recompute: OnOff | None = None,
    hang_timeout: Positive | None = None,
    workers: int | None = None,
    evaluate_every: int | None = None,
    save_every: int | None = None,
    max_minutes: Positive | None = None,
    device: str = "auto",
    track: Names | None = None,
    override: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> Run:
    """Train a model from scratch, with a recipe of the paper or of vitlab.

    Returns the run, as `finetune` does.

    Args:
        data: a folder of class folders, shards, synthetic, images:PATH for images without labels, ...
            (default: synthetic letters)
        recipe: imagenet-scratch, imagenet21k, jft or masked as in the paper; augreg-i1k, augreg-i21k, s16-i1k; small-data,
            quickstart (default: by the size of the data)
        model: model to train: ViT-B/16, R50+ViT-B/16, BiT-R50x1, ... (default: the recipe's own)
        out: folder of the run; an unfinished run in it is resumed (default: runs/ and the names of data and recipe)
        preset: augmentation of AugReg: none, light1, light2, medium1, medium2, strong1 or strong2 (default: by model)
    """
    from vitlab.config.overrides import Overrides
    from vitlab.data.opening import open_dataset as open_whole
    from vitlab.recipes import recipe as recipe_called
    from vitlab.recipes.paper import PUBLISHED_DATA
    from vitlab.training.plan import survey

    tracked = _tracked(track)
    rule = _rule(val_fraction, test_fraction)
    place = None if data is None else os.fspath(data)
    if place is None and recipe in (None, "quickstart"):
        place = recipe_called("quickstart").data.dataset
    dataset = None if place is None else open_whole(place, split="all", rule=rule)  # the one time that the run opens it
    place = None if place is None else masked(place)  # as it is stored
    facts = None if place is None else survey(place, rule=rule, dataset=dataset, channels=channels, scale=pixel_scale or "full")
    name, why = (recipe, "as asked") if recipe is not None else _by_size(facts, given=data is not None)
    overrides = Overrides(
        model=model,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        lr=lr,
        image_size=None if image_size is None else pair("image_size", image_size),
        patch_size=None if patch_size is None else pair("patch_size", patch_size),
        patch_sizes=None if patch_sizes is None else _sizes_of("patch_sizes", patch_sizes),
        resize=resize,
        seed=seed,
        preset=preset,
        channels=channels,
        pixel_scale=pixel_scale,
        rule=rule,
        micro_batch=micro_batch,
        precision=precision,
        strategy=strategy,
        offload=offload,
        recompute=None if recompute is None else recompute == "on",
        hang_timeout=hang_timeout,
        workers=workers,
        evaluate_every=evaluate_every,
        save_every=save_every,
        max_minutes=max_minutes,
    )
    config, notes = _recipe_run(name, why, overrides, facts, None)
    place_of_run = out or _default_out(config.data.dataset, after=f"-{name}")
    _refuse_folder_of_data(place_of_run, config.data.dataset)
    _say_all(notes)
    if place is None and dry_run:
        facts = PUBLISHED_DATA.get(config.data.dataset)  # a plan needs its description only
    return _stream(
        config,
        out=place_of_run,
        data=facts,
        dataset=dataset,
        device=device,
        override=override,
        dry_run=dry_run,
        track=tracked,
        notes=notes,
    ).run_to_end(quiet=quiet)


def plan(
    model: str,
    *,
    recipe: RecipeName = "imagenet-scratch",
    hardware: Names | None = None,
    devices: int = 8,
    epochs: Positive | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    image_size: Size | None = None,
    images: int | None = None,
    classes: int | None = None,
    precision: Precision | None = None,
    recompute: OnOff | None = None,
    offload: Offload | None = None,
    lora: int | None = None,
    lora_targets: Names | None = None,
    efficiency: Fraction | None = None,
    tflops: Positive | None = None,
    memory_gib: Positive | None = None,
    watts: Positive | None = None,
    price: Positive | None = None,
    network_gbs: Positive | None = None,
    read_rate: Positive | None = None,
    overhead: Positive | None = None,
    carbon: float | None = None,
) -> TrainingPlan:
    """Plan the training of a model without data: compute, memory of a device, hours, energy, CO2 and price.

    Compute is 6 operations for each multiply-add of a forward pass, the rule of the paper's Table 6. With several devices a step of
    FSDP is simulated: computing, all-gather, reduce-scatter, reading. Each assumption is printed with the option that changes it.

    Args:
        model: name of the model: ViT-H/14, R50+ViT-B/16, BiT-R152x4, Swin-B, vit_base_patch16_224, ...
        recipe: recipe to train it with: jft, imagenet21k, imagenet-scratch, finetune-cifar10, ...
        hardware: TPUv3 (one core), V100, A100, H100, or this, which measures this machine; several separated by commas
            (default: all but this)
        devices: number of devices that share each batch
        batch_size: images per step, over all devices (default: the recipe's own)
        image_size: input size of the model in pixels, 384 or 160x224 (default: the recipe's own)
        images: number of training images (default: those of the recipe's own dataset)
        classes: number of classes, with `images` (default: those of the recipe's own dataset)
        precision: precision of matrix products and activations (default: bfloat16; float32 on a CPU)
        offload: cpu keeps the shards of weights, gradients and optimizer of FSDP in host memory (default: none)
        lora: with a recipe that fine-tunes: freeze the weights and train updates of this rank (default: train all weights)
        efficiency: fraction of the peak that training reaches (default: 0.38, the mean over the ViTs of the paper's Table 2)
        tflops: peak of one device in TFLOP/s (default: the data sheet's)
        memory_gib: memory of one device in GiB (default: the data sheet's)
        watts: power of one device (default: its thermal design power)
        price: price of one device in US dollars per hour (default: a typical price in a cloud)
        network_gbs: speed of the network between machines, one way, in GB/s for each device (default: the data sheet's)
        read_rate: images that can be read per second for each device (default: 1000)
        overhead: energy of the data centre divided by that of the devices, its PUE (default: 1.1)
        carbon: kg of CO2 per kWh (default: 0.43, about the mean of the US grid)
    """
    from vitlab.config.hardware import CARBON, EFFICIENCY, OVERHEAD
    from vitlab.config.overrides import DataFacts, Overrides
    from vitlab.training.hardware_plan import Assumptions, plan_training

    if classes is not None and images is None:
        raise UsageError("`classes` needs `images`", hint="`images=50000` `classes=20`")
    data = None if images is None else DataFacts(dataset="your data", images=images, classes=1000 if classes is None else classes)
    return plan_training(
        model,
        recipe,
        hardware.split(",") if isinstance(hardware, str) else hardware or (),
        Overrides(
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            image_size=None if image_size is None else pair("image_size", image_size),
            precision=precision,
            strategy="fsdp" if offload == "cpu" else None,
            recompute=None if recompute is None else recompute == "on",
            offload=offload,
            lora=_lora(lora, lora_targets),
        ),
        Assumptions(
            devices=devices,
            efficiency=EFFICIENCY if efficiency is None else efficiency,
            overhead=OVERHEAD if overhead is None else overhead,
            carbon=CARBON if carbon is None else carbon,
            tflops=tflops,
            memory_gib=memory_gib,
            watts=watts,
            price=price,
            network_gbs=network_gbs,
            read_rate=1000.0 if read_rate is None else read_rate,
        ),
        data=data,
    )


def train(
    config: RunConfig | str | os.PathLike[str],
    *,
    out: Folder,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: Positive | None = None,
    image_size: Size | None = None,
    seed: int | None = None,
    micro_batch: int | None = None,
    precision: Precision | None = None,
    strategy: Strategy | None = None,
    offload: Offload | None = None,
    recompute: OnOff | None = None,
    hang_timeout: Positive | None = None,
    workers: int | None = None,
    evaluate_every: int | None = None,
    save_every: int | None = None,
    max_minutes: Positive | None = None,
    device: str = "auto",
    track: Names | None = None,
    override: bool = False,
    dry_run: bool = False,
) -> EventStream:
    """Train with a complete config: a RunConfig, the run.json of another run, or the `run` of a dry run's JSON.

    Returns an iterator of events; training runs while you iterate: `for event in train(config, out="runs/a"): ...`.
    `.run_to_end()` runs it with a progress display and returns the `Run`; so does the command line.

    Args:
        config: JSON file with the config of a run
        out: folder of the run, or its address; an unfinished run in it is resumed
        steps: total number of optimizer steps (default: the config's)
        batch_size: images per step, over all devices; learning rate and steps do not change (default: the config's)
        lr: peak learning rate (default: the config's)
        image_size: input size of the model in pixels, 160 or 160x224 (default: the config's)
        seed: seed of initial weights, sampler, augmentation and dropout (default: the config's)
        precision: precision of matrix products (default: the config's)
        workers: processes that read images; results do not depend on it (default: the config's)
        evaluate_every: steps between two evaluations, 0 for one at the end (default: the config's)
        save_every: steps between two checkpoints, 0 for one at the end (default: the config's)
    """
    from vitlab.config.overrides import Overrides, with_overrides

    overrides = Overrides(
        steps=steps,
        batch_size=batch_size,
        lr=lr,
        image_size=None if image_size is None else pair("image_size", image_size),
        seed=seed,
        micro_batch=micro_batch,
        precision=precision,
        strategy=strategy,
        offload=offload,
        recompute=None if recompute is None else recompute == "on",
        hang_timeout=hang_timeout,
        workers=workers,
        evaluate_every=evaluate_every,
        save_every=save_every,
        max_minutes=max_minutes,
    )
    tracked = _tracked(track)
    run = with_overrides(_config_of(config), overrides)
    return _stream(run, out=out, device=device, override=override, dry_run=dry_run, track=tracked)


def watch(run: Existing | Run, *, every: Positive = 2.0, once: bool = False) -> Progress:
    """Show the progress of a run: step, time left, loss and its curve, speed, last evaluation. Only the run's folder is read.

    The command ends when the run ends. Ctrl-C ends the command; the run continues. A run at an address is shown as of its last
    checkpoint.

    Args:
        run: the folder of a run, made by pretrain, finetune or train; of a sweep, its latest run is shown
        every: seconds between two updates of the display
        once: show the run as it is now, and end
    """
    from vitlab.training.callbacks import watch as watch_folder
    from vitlab.training.run import Run

    if not isinstance(run, Run) and is_address(os.fspath(run)):
        from vitlab.checkpoints.remote_copy import copied_run

        address = address_of(os.fspath(run))
        return replace(watch_folder(copied_run(address, model=False), every=every, once=True), path=address)
    return watch_folder(run.path if isinstance(run, Run) else Path(run), every=every, once=once)


def _config_of(config: RunConfig | str | os.PathLike[str]) -> RunConfig:
    from vitlab.config.run import RunConfig
    from vitlab.config.serialize import from_text
    from vitlab.io.files import read_text

    if isinstance(config, RunConfig):
        return config
    path = Path(config)
    if is_address(os.fspath(config)):
        address = address_of(os.fspath(config))
        path = _local(str(address if address.suffix == ".json" else address / "run.json"))
    if path.is_dir():
        path = path / "run.json"
    if not path.exists():
        raise UsageError(f"no file called {str(config)!r}")
    text = read_text(path, error=ConfigError)
    try:
        found: RunConfig = from_text(RunConfig, text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
    return found


def _stream(
    config: RunConfig,
    *,
    out: str | os.PathLike[str],
    device: str,
    override: bool,
    dry_run: bool,
    track: tuple[str, ...],
    lrs: tuple[float, ...] = (),
    ray: RayConfig | None = None,
    data: DataFacts | None = None,
    dataset: Dataset | None = None,
    notes: tuple[str, ...] = (),
) -> EventStream:
    from vitlab.training.run import EventStream

    return EventStream(
        config,
        out=os.fspath(out),
        lrs=lrs,
        ray=ray,
        data=data,
        dataset=dataset,
        device=device,
        override=override,
        dry_run=dry_run,
        track=track,
        notes=notes,
    )


def _tracked(track: Names | None) -> tuple[str, ...]:
    """The names of trackers, known ones, before the data is read."""
    from vitlab.training.callbacks import check_trackers

    names = () if track is None else tuple(track.split(",") if isinstance(track, str) else track)
    check_trackers(names)
    return names


_SMALL = 100_000  # images below which `pretrain` takes the recipe small-data
_SPREAD = (0.3, 1.0, 3.0)  # times a recipe's own learning rate: a sweep where the paper has no grid


def _by_size(data: DataFacts | None, *, given: bool) -> tuple[str, str]:
    if data is None or not given:
        return "quickstart", "since no data is given"
    if not data.classes:
        return "masked", "since the images have no labels"
    if data.images < _SMALL:
        return "small-data", f"since there are fewer than {_SMALL:,} images"
    return "imagenet-scratch", f"since there are {data.images:,} images with labels"


def _recipe_run(
    name: str, why: str, overrides: Overrides, data: DataFacts | None, start: StartFacts | None, *, asked: Overrides | None = None
) -> tuple[RunConfig, tuple[str, ...]]:
    """The complete run, and a sentence for each choice with its reason.

    `asked` are the user's own overrides, if a time budget added some to them.
    """
    from vitlab.config.overrides import RunFacts
    from vitlab.recipes import recipe
    from vitlab.recipes.reasons import reasons
    from vitlab.training.plan import this_machine

    facts = RunFacts(data=data, start=start, machine=this_machine())
    run = recipe(name, overrides, data=data, start=start, machine=facts.machine)
    batch = run.data.loader.batch_size
    odd = (
        (f"batch size: {batch:,} is larger than the data, {data.images:,} images: each step repeats them; is this meant?",)
        if data is not None and overrides.batch_size is not None and batch > data.images
        else ()
    )
    return run, (f"recipe: {name}, {why}", *reasons(run, facts, asked or overrides, timed=asked not in (None, overrides)), *odd)


def _lrs(config: RunConfig, lrs: Sequence[float] | None) -> tuple[float, ...]:
    from vitlab.recipes.paper import TABLE_4, sweep_lrs

    if lrs is not None:
        return tuple(lrs)
    name = config.name.removesuffix("-table2")
    if name in TABLE_4:
        return sweep_lrs(name, config.model, batch=config.data.loader.batch_size)
    return tuple(config.train.optimizer.lr * factor for factor in _SPREAD)


def _lora(rank: int | None, targets: Names | None) -> Lora | None:
    from vitlab.config.train import Lora

    if rank is None:
        if targets is not None:
            raise UsageError("`lora_targets` needs `lora`", hint="`lora=8` sets the rank of the updates")
        return None
    if targets is None:
        return Lora(rank=rank)
    words = targets.split(",") if isinstance(targets, str) else targets
    return Lora(rank=rank, targets=cast("tuple[LoraTarget, ...]", tuple(word.strip() for word in words)))  # which checks the words


def _rule(val: float | None, test: float | None) -> SplitRule | None:
    """The rule of these fractions; None if neither is given."""
    if val is None and test is None:
        return None
    from vitlab.config.data import SplitRule
    from vitlab.errors import fraction

    for name, value in (("val_fraction", val), ("test_fraction", test)):
        if value is not None:
            fraction(name, value)
    plain = SplitRule()
    return SplitRule(val=plain.val if val is None else val, test=plain.test if test is None else test)


def _refuse_folder_of_data(out: str | os.PathLike[str], data: str) -> None:
    """Refuse to write into the folder of the images, where new files would be read as part of the data."""
    from vitlab.io.files import is_folder

    folder = Path(data.rpartition(":")[2])
    if is_folder(folder) and not is_address(os.fspath(out)) and Path(out).resolve() == folder.resolve():
        raise UsageError(f"{os.fspath(out)} is the folder of the data", hint=f"choose another one, such as {_default_out(data)}")


def _default_out(dataset: str, *, after: str = "") -> str:
    """`runs/pets` for `data/pets/`, `pets.zip` or `folder:data/pets`."""
    if is_address(dataset):
        dataset = address_of(dataset).path
    place = dataset.partition(":")[0] if dataset.startswith("synthetic") else dataset.rpartition(":")[2]
    stem = Path(place).name.partition(".")[0] or "run"
    return f"runs/{re.sub(r'[^A-Za-z0-9_-]+', '-', stem)}{after}"


# --- data ---------------------------------------------------------------------------------------------------------------------


def list_data(name: str | None = None) -> Table | Facts:
    """List the public datasets of the paper and of VTAB, or show the details of one.

    Args:
        name: dataset to show, with its files, checksums, licence, citation, splits and reader (default: list all)
    """
    from vitlab.data.catalog.sets import SETS, find_set, set_facts
    from vitlab.io.display import Facts, Table

    if name is not None:
        entry = find_set(name)
        return Facts(set_facts(entry, json=True), shown=set_facts(entry, json=False))
    return Table(
        {
            "name": entry.name,
            "title": entry.title,
            "images": sum(entry.counts.values()),
            "classes": entry.classes,
            "bytes": entry.size,
            "fetch": "not public" if not entry.public else "by hand" if entry.by_hand else "yes",
            "licence": entry.licence,
        }
        for entry in SETS
    )


def fetch_data(
    name: str, *, into: Folder | None = None, given: Sequence[str] = (), progress: ProgressCallback | None = None
) -> Facts:
    """Download a public dataset, verify its checksums and unpack it. An interrupted download resumes.

    Args:
        name: a dataset of `vitlab data list`
        into: folder for the dataset (default: data/NAME)
        given: files that you already have, or a folder of them; they are verified and used instead of a download (default:
            none)
    """
    from vitlab.config.serialize import to_json
    from vitlab.data.catalog.fetch import fetch
    from vitlab.data.catalog.sets import find_set
    from vitlab.io.display import Facts

    entry = find_set(name)
    folder = Path(into or f"data/{entry.name}").expanduser()
    fetched = fetch(entry, folder, given=[Path(word).expanduser() for word in given], progress=progress or silent)
    for file in fetched.files:
        if not file.trusted:
            _note(f"nobody publishes a checksum of {file.name}: its sha256 {file.sha256} is recorded and checked from now on")
    _log.info("licence: %s", entry.licence)
    facts: dict[str, Any] = {
        "name": entry.name,
        "folder": str(fetched.folder),
        "files": to_json(fetched.files),
        "data": fetched.data,
    }
    files = [f"{file.name} ({file.origin}, {file.bytes:,} bytes, sha256 {file.sha256})" for file in fetched.files]
    return Facts(facts, shown=facts | {"files": files})


@_writes("page", "corrections")
def check_data(
    data: str | os.PathLike[str],
    *,
    model: ModelLike | None = None,
    page: FileName | None = None,
    corrections: FileName | None = None,
    overwrite: bool = False,
    strict: bool = False,
    label_column: str | None = None,
    shown: int = 10,
    batch_size: int = 32,
    workers: int = 2,
    device: str = "auto",
    progress: ProgressCallback | None = None,
) -> DataCheck | LabelCheck:
    """Check a dataset: broken images, duplicates, leaks between splits, class balance, sizes. Every image is decoded.

    Args:
        data: a folder of class folders, a zip, a CSV list, shards, digits, reader:path, ...
        model: also find likely wrong labels (confident learning) and outliers, by the features of this model: a checkpoint of any
            format, a run, hub:owner/name or the name of public weights (default: no model)
        page: with `model`: HTML file to write, which shows these images (default: not written)
        corrections: with `model`: CSV file to write, with a suggested label for each of these images; for a folder it lists every
            image, so that you can train on the corrected list (default: not written)
        overwrite: replace the files that `page` and `corrections` name, if they exist
        strict: fail (exit code 1) if there is a problem
        label_column: column of the labels, if a list has several (default: the first known one)
        shown: number of findings of each type to print; JSON has all
    """
    from vitlab.data.check import DataCheck, check_dataset

    if model is None:
        _refuse_given("needs `model`", page=page, corrections=corrections)
    for path in (page, corrections):
        if path is not None:
            _refuse_present(Path(path), overwrite)
    report = check_dataset(os.fspath(data), label_column=label_column, progress=progress or silent)
    found: DataCheck | LabelCheck = DataCheck(report=report, shown=shown)
    if model is not None:
        assert isinstance(found, DataCheck)
        found = _checked_labels(
            os.fspath(data), found, model, page, corrections, label_column, batch_size, workers, device, progress or silent
        )
    if strict and found.problems:
        raise _with_result(DataError(f"{os.fspath(data)}: {'; '.join(found.problems)}"), found)
    return found


def _checked_labels(
    data: str,
    check: DataCheck,
    model: ModelLike,
    page: FileName | None,
    corrections: FileName | None,
    label_column: str | None,
    batch_size: int,
    workers: int,
    device: str,
    progress: ProgressCallback,
) -> LabelCheck:
    """The labels checked by a model, and the files that were asked for."""
    from vitlab.config.evaluation import EvaluateConfig
    from vitlab.data.opening import open_dataset
    from vitlab.evaluation.label_errors import check_labels, write_corrections, write_page

    dataset = open_dataset(data, split="all", label_column=label_column)
    checkpoint = _opened(model, _Opening(), device=device)
    config = EvaluateConfig(batch_size=batch_size, workers=workers, corrupt="skip", device=device)
    found, _ = check_labels(checkpoint, dataset, check, config=config, progress=progress)
    if corrections is not None:
        write_corrections(Path(corrections), found, dataset, data)
    if page is not None:
        write_page(Path(page), found, dataset, progress=progress)
    return replace(found, files=tuple(Path(path) for path in (page, corrections) if path is not None))


@_writes("folder")
def pack_data(
    data: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    split: Split = "all",
    name: str | None = None,
    shard_mib: int = 256,
    max_side: int | None = None,
    quality: int = 95,
    shuffle: int | None = None,
    broken: OnBroken = "fail",
    progress: ProgressCallback | None = None,
) -> Facts:
    """Pack a dataset into tar shards in the WebDataset layout. An interrupted call resumes; the bytes are reproducible.

    Args:
        data: a folder of class folders, a zip, a CSV list, digits, reader:path, ...
        folder: folder for the shards: a new one, or one where packing was interrupted
        split: which split to pack
        name: prefix of the shards' names: NAME-train-000000.tar (default: none)
        shard_mib: largest size of a shard in MiB
        max_side: resize images whose longer side has more pixels (default: images keep their bytes)
        quality: quality of resized JPEG and WebP images, 1 to 100
        shuffle: shuffle the images with this seed, for readers that cannot shuffle (default: keep the order)
        broken: what to do with an image that cannot be read
    """
    from vitlab.config.data import PackConfig
    from vitlab.config.serialize import to_json
    from vitlab.data.pack import pack
    from vitlab.io.display import Facts

    config = PackConfig(
        name=name, shard_bytes=shard_mib * 2**20, max_side=max_side, quality=quality, shuffle=shuffle, broken=broken
    )
    _refuse_folder_of_data(folder, os.fspath(data))
    packed = pack(os.fspath(data), Path(folder).expanduser(), split=split, config=config, progress=progress or silent)
    if packed.reused:
        _note(f"{packed.reused:,} shards were there already")
    for skipped in packed.skipped:
        _log.warning("skipped: %s", skipped)
    facts = {"folder": str(packed.folder), "images": packed.images, "skipped": list(packed.skipped), "reused": packed.reused}
    shards = [f"{shard.name} ({shard.images:,} images, {shard.bytes:,} bytes)" for shard in packed.shards]
    shown: dict[str, Any] = {"data": str(packed.folder), "images": packed.images, "skipped": len(packed.skipped), "shards": shards}
    return Facts({**facts, "shards": to_json(packed.shards)}, shown=shown)


@_writes("out")
def show_data(
    data: str | os.PathLike[str],
    *,
    out: FileName,
    count: int = 64,
    seed: int = 0,
    side: int = 96,
    split: Split = "all",
    progress: ProgressCallback | None = None,
) -> Facts:
    """Write a contact sheet: some images of each class with their labels, as one PNG.

    Args:
        data: a folder of class folders, a zip, a CSV list, shards, digits, synthetic, reader:path, ...
        out: PNG file to write
        count: approximate number of images
        seed: seed of the choice of images
        side: size of an image on the sheet in pixels
        split: which split to choose from
    """
    if Path(out).suffix.lower() != ".png":
        raise UsageError(f"{os.fspath(out)} does not end in .png", hint="a contact sheet is a PNG image")
    from vitlab.data.contact_sheet import write_sheet
    from vitlab.data.opening import open_dataset
    from vitlab.io.display import Facts

    dataset = open_dataset(os.fspath(data), split=split)
    _note_all(_data_notes(dataset))
    shown = write_sheet(
        dataset, Path(out).expanduser(), title=os.fspath(data), count=count, seed=seed, side=side, progress=progress or silent
    )
    if shown.undrawable:
        letters = f"{shown.undrawable[:8]}{'...' if len(shown.undrawable) > 8 else ''}"
        _note(f"no font here has {letters}: such letters are drawn as code points (U+{ord(letters[0]):04X}); a Noto font has them")
    facts = {"file": os.fspath(out), "images": shown.images, "classes": shown.classes, "broken": shown.broken}
    return Facts({**facts, "image_size": [shown.height, shown.width]})


# --- studies ------------------------------------------------------------------------------------------------------------------


@_writes("figure")
def paper(
    item: str | None = None,
    *,
    figure: FileName | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> PaperList | PaperItem:
    """Show a table or figure of the paper: published, computed and measured numbers, and the command for each.

    Without an item, list all of them: what vitlab reproduces, in which miniature, and what the full experiment would need.
    Parameters, multiply-adds and exaFLOPs are computed when you ask; measured numbers are those of docs/results.md. Some items
    are small experiments, which run for seconds or a few minutes when you ask.

    Args:
        item: table1 to table9, table2-v1, figure2, ..., objectnet, self-supervision, upstream, transformers-or-cnns,
            imagenet-years; receptive-field, shift-equivariance, shuffled-patches, gradients-through-time, sequence-length, words
            (default: list all)
        figure: .png or .svg file to write: the item as a chart (default: none)
        overwrite: replace the figure if it exists
    """
    from vitlab.studies.paper import PaperItem, PaperList, item_called

    if item is None:
        _refuse_given("needs an item: vitlab paper table6", figure=figure)
        return PaperList()
    if figure is not None:
        _refuse_present(Path(figure), overwrite)
    found = PaperItem(item_called(item), progress or silent)
    if figure is not None:
        from vitlab.io.atomic import replacing

        path = Path(figure)
        image = found.draw(path)
        with replacing(path, needed=len(image)) as file:
            file.write(image)
        _log.info("figure: %s", path)
    return found


def quickstart(
    *, out: Folder | None = None, budget: Literal["full", "tiny"] = "full", progress: ProgressCallback | None = None
) -> Facts:
    """Pre-train a small ViT, fine-tune it on digits, and compare it with one trained from scratch.

    It takes minutes on two CPU cores and needs no download: the ViT is pre-trained on synthetic letters. A report is written.

    Args:
        out: folder for all runs; unfinished ones are resumed (default: runs/quickstart, or runs/quickstart-tiny)
        budget: full takes minutes; tiny takes seconds and learns nothing: it only shows that everything works
    """
    from vitlab.studies.quickstart import run_quickstart

    folder = _on_disk(out or ("runs/quickstart" if budget == "full" else f"runs/quickstart-{budget}"))
    return run_quickstart(folder, budget, progress or silent, _log.info)


@_writes("plot")
def study_compare(
    models: Sequence[str] = (),
    *,
    image_size: str | Sequence[Size] | None = None,
    speed: bool = False,
    batch_size: int = 4,
    rounds: int = 5,
    checkpoints: Names | None = None,
    data: str | os.PathLike[str] | None = None,
    plot: FileName | None = None,
    progress: ProgressCallback | None = None,
) -> Table:
    """Compare models in one table: parameters, multiply-adds, activations, memory, published accuracy, speed.

    Args:
        models: names: ViT-B/16, R50+ViT-B/16, BiT-R50x1, Swin-T, ConvNeXt-B, EfficientNet-B0, LSTM-S/16, ...
            (default: Swin and ConvNeXt)
        image_size: image sizes to compare at: 224,384 (default: 224 and 384; each model's own if models are named)
        speed: measure images/s on this machine, all models in turn, and the memory of a process with each model
        batch_size: batch size of the measurement
        rounds: number of measurements of each model
        checkpoints: trained models to evaluate on data; the table gets a column with their accuracy (default: none)
        data: labelled images to evaluate checkpoints on (default: none)
        plot: .png or .svg file to write: accuracy (or, with speed, images/s) against multiply-adds (default: none)
    """
    if (checkpoints is None) != (data is None):
        raise UsageError("`checkpoints` and `data` go together")
    from vitlab.studies.compare import compare_models

    words = image_size.split(",") if isinstance(image_size, str) else image_size
    return compare_models(
        tuple(models),
        sizes=None if words is None else tuple(_size_of(word) for word in words),
        speed=speed,
        batch_size=batch_size,
        rounds=rounds,
        checkpoints=None if checkpoints is None else tuple(checkpoints.split(",") if isinstance(checkpoints, str) else checkpoints),
        data=None if data is None else os.fspath(data),
        plot=None if plot is None else Path(plot),
        notify=_log.info,
        progress=progress or silent,
    )


def study_scaling(
    *,
    data: str | os.PathLike[str] | None = None,
    transfer: str | os.PathLike[str] | None = None,
    out: Folder = "runs/scaling",
    budget: StudyBudget = "default",
    families: Names | None = None,
    seeds: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Compare architectures by pre-training images and by compute: Figures 3, 4 and 5 of the paper in miniature.

    Small models of each family are pre-trained on nested random subsets of the data, evaluated with 5 labels per class on other
    images, and fine-tuned there. Lines are fitted, with bootstrap intervals. An interrupted study resumes with the same command.

    Args:
        data: labelled images to pre-train on: a folder, a zip, cifar10:PATH, ... (default: synthetic letters)
        transfer: labelled images to transfer to (default: three tenths of the classes of data; digits if data is letters)
        out: folder for all runs, verdict.json and plots; unfinished runs are resumed
        budget: tiny shows in about a minute that everything works; default takes less than an hour on two cores; long takes days
        families: some of ViT,hybrid,BiT,ConvNeXt,LSTM (default: all)
        seeds: number of runs of each model, each with another seed (default: the budget's)
        engine: local (one run on each core of this machine), or ray: each run is a task of a Ray cluster
        address: Ray: address of a running cluster, host:port, or auto for that of this machine (default: start a cluster on
            this machine)
    """
    from vitlab.studies.scaling import BUDGETS, scaling

    plan = _study_plan(BUDGETS[budget], data, transfer, seeds)
    if families is not None:
        plan = plan.of_families(families.split(",") if isinstance(families, str) else families)
    return _run_study(
        lambda folder, report: scaling(folder, plan, progress=report), out, progress, ray=_ray_config(engine, address)
    )


def study_shape(
    *,
    data: str | os.PathLike[str] | None = None,
    transfer: str | os.PathLike[str] | None = None,
    out: Folder = "runs/shape",
    budget: StudyBudget = "default",
    seeds: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Compare shapes of a ViT at equal compute: Figures 8, 9 and 13 of the paper in miniature.

    The variants differ in depth, width, MLP width, patch size, aspect ratio, pooling (class token or mean) and attention (global,
    local or axial). Each is pre-trained with the compute of the base model, and evaluated with 5 labels per class on other images.
    An interrupted study resumes with the same command.
    """
    from vitlab.studies.ablations import shape
    from vitlab.studies.protocol import PLANS

    plan = _study_plan(PLANS[budget], data, transfer, seeds)
    return _run_study(lambda folder, report: shape(folder, plan, progress=report), out, progress, ray=_ray_config(engine, address))


def study_transfer(
    *,
    data: str | os.PathLike[str] | None = None,
    transfer: str | os.PathLike[str] | None = None,
    out: Folder = "runs/transfer",
    budget: StudyBudget = "default",
    shots: Numbers = (3, 10, 30, 100),
    images: int | None = None,
    steps: int | None = None,
    seeds: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Compare architectures with and without pre-training, by the number of labels.

    An interrupted study resumes with the same command.

    Args:
        shots: numbers of labels of each class to fine-tune on
        images: images that each model sees in pre-training (default: the budget's)
        steps: steps of each fine-tuning run (default: the budget's)
    """
    from vitlab.studies.protocol import PLANS
    from vitlab.studies.transfer import transfer as study

    plan = _study_plan(PLANS[budget], data, transfer, seeds)
    plan = replace(plan, seen=plan.seen if images is None else images, steps=plan.steps if steps is None else steps)
    return _run_study(
        lambda folder, report: study(folder, plan, shots=tuple(shots), progress=report),
        out,
        progress,
        ray=_ray_config(engine, address),
    )


def study_positions(
    *,
    data: str | os.PathLike[str] | None = None,
    transfer: str | os.PathLike[str] | None = None,
    out: Folder = "runs/positions",
    budget: StudyBudget = "default",
    images: int | None = None,
    seeds: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Compare position embeddings in a ViT: Table 8 of the paper in miniature, beside the paper's numbers.

    An interrupted study resumes with the same command.

    Args:
        images: images that each ViT sees in pre-training (default: the budget's)
    """
    from vitlab.studies.ablations import positions
    from vitlab.studies.protocol import PLANS

    plan = _study_plan(PLANS[budget], data, transfer, seeds)
    plan = replace(plan, seen=plan.seen if images is None else images)
    return _run_study(
        lambda folder, report: positions(folder, plan, progress=report), out, progress, ray=_ray_config(engine, address)
    )


def study_optimizer(
    *,
    data: str | os.PathLike[str] | None = None,
    transfer: str | os.PathLike[str] | None = None,
    out: Folder = "runs/optimizer",
    budget: StudyBudget = "default",
    seeds: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Compare Adam with SGD for pre-training a ResNet: Table 7 of the paper in miniature.

    Each optimizer tries three learning rates, and validation accuracy chooses one. An interrupted study resumes with the same
    command.
    """
    from vitlab.studies.ablations import optimizer
    from vitlab.studies.protocol import PLANS

    plan = _study_plan(PLANS[budget], data, transfer, seeds)
    return _run_study(
        lambda folder, report: optimizer(folder, plan, progress=report), out, progress, ray=_ray_config(engine, address)
    )


def study_self_supervision(
    *,
    data: str | os.PathLike[str] | None = None,
    transfer: str | os.PathLike[str] | None = None,
    out: Folder = "runs/self-supervision",
    budget: StudyBudget = "default",
    seeds: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Compare masked patch prediction with supervised pre-training and training from scratch, at equal compute (section 4.6).

    An interrupted study resumes with the same command.
    """
    from vitlab.studies.ablations import self_supervision
    from vitlab.studies.protocol import PLANS

    plan = _study_plan(PLANS[budget], data, transfer, seeds)
    return _run_study(
        lambda folder, report: self_supervision(folder, plan, progress=report), out, progress, ray=_ray_config(engine, address)
    )


def study_noisy_student(
    data: str | os.PathLike[str],
    *,
    unlabelled: str | os.PathLike[str] | None = None,
    shots: int | None = None,
    start: ModelLike | None = None,
    teacher: ModelLike | None = None,
    student: str | None = None,
    out: Folder | None = None,
    rounds: int = 2,
    labels: PseudoLabels = "soft",
    threshold: Fraction = 0.3,
    per_class: int | None = None,
    unbalanced: bool = False,
    labelled_fraction: Fraction = 0.25,
    randaugment: RandAugment = (2, 9.0),
    dropout: Fraction = 0.1,
    drop_path: Fraction = 0.1,
    steps: int | None = None,
    teacher_steps: int | None = None,
    epochs: Positive | None = None,
    batch_size: int | None = None,
    lr: Positive | None = None,
    image_size: Size | None = None,
    seed: int = 0,
    workers: int | None = None,
    quiet: bool = False,
    progress: ProgressCallback | None = None,
) -> Table:
    """Train on unlabelled images with Noisy Student: a teacher labels them, and a student trains on them with noise.

    Each student is the teacher of the next round (Xie et al. 2020). Accuracy is measured on the test split. An interrupted study
    resumes with the same command.

    Args:
        data: labelled images: class folders, a zip, cifar10:PATH, ...
        unlabelled: images without labels: any folder, a zip, ... (default: the images whose labels shots hides)
        shots: images of each class that keep their label; the others are used as unlabelled (default: all)
        start: checkpoint that the teacher and every student start from (default: see teacher and student)
        teacher: checkpoint of a teacher that knows the classes (default: train one on the labelled images)
        student: model of the students, which are then trained from scratch (default: the teacher's)
        out: folder for all runs (default: runs/ and the data's name)
        rounds: number of students
        labels: soft: the teacher's probabilities; hard: its prediction
        threshold: smallest confidence of the teacher for an image to be used, 0 to 1
        per_class: largest number of images of each class; the most confident ones are taken (default: all)
        unbalanced: draw classes as often as they occur, not equally often
        labelled_fraction: smallest fraction of images with true labels in a student's training data
        randaugment: noise: layers and magnitude of RandAugment, or none
        dropout: noise: dropout rate
        drop_path: noise: rate of stochastic depth in the last layer
        steps: optimizer steps of each run (default: the recipe's own)
        teacher_steps: optimizer steps of the teacher, which has fewer images and no noise (default: the same as steps)
        epochs: passes over the training images, in place of `steps` (default: the recipe's own)
        seed: seed of shots, initial weights, sampler, augmentation and dropout
        workers: processes that read images (default: at most 2)
    """
    from vitlab.studies.config import NoisyStudent, NoisyStudentConfig
    from vitlab.studies.noisy_student import run_noisy_student

    place = os.fspath(data)
    study = NoisyStudent(
        data=place,
        unlabelled=None if unlabelled is None else os.fspath(unlabelled),
        shots=shots,
        teacher=None if teacher is None else _stored(teacher),
        start=None if start is None else _stored(start),
        student=student,
        epochs=epochs,
        steps=steps,
        teacher_steps=teacher_steps,
        batch_size=batch_size,
        lr=lr,
        image_size=None if image_size is None else pair("image_size", image_size),
        seed=seed,
        noisy=NoisyStudentConfig(
            rounds=rounds,
            labels=labels,
            threshold=threshold,
            per_class=per_class,
            balanced=not unbalanced,
            labelled_fraction=labelled_fraction,
            randaugment=randaugment,
            dropout=dropout,
            drop_path=drop_path,
        ),
    )
    folder = _on_disk(out or _default_out(place, after="-noisy-student"))
    return run_noisy_student(study, folder, workers=workers, quiet=quiet, notify=_log.info, progress=progress or silent)


# --- what the functions above share -------------------------------------------------------------------------------------------


def _study_plan(
    plan: PlanT, data: str | os.PathLike[str] | None, transfer: str | os.PathLike[str] | None, seeds: int | None
) -> PlanT:
    """The plan of a budget with other images and another number of seeds, where they are given."""
    if data is None and transfer is not None:
        raise UsageError("`transfer` needs `data` to pre-train on")
    images = plan.images
    if data is not None:
        images = replace(images, data=os.fspath(data), transfer=None if transfer is None else os.fspath(transfer))
    return replace(plan, images=images, seeds=plan.seeds if seeds is None else seeds)


def _run_study(
    study: Callable[[Path, ProgressCallback], Study],
    out: Folder,
    progress: ProgressCallback | None,
    *,
    ray: RayConfig | None = None,
) -> Verdict:
    from vitlab.studies.study import run_study

    folder, report = _on_disk(out), progress or silent
    return run_study(study(folder, report), folder, notify=_log.info, progress=report, ray=ray)


class _Opening:
    """How to open a checkpoint and preprocess its images: the parameters of that name; None keeps the checkpoint's own."""

    def __init__(
        self,
        image_size: Size | None = None,
        patch_size: Size | None = None,
        resize: Resize | None = None,
        resize_to: int | None = None,
        interpolation: Interpolation | None = None,
        labels: FileName | None = None,
        heads: int | None = None,
        grid: Size | None = None,
        profile: str | None = None,
        allow_nonfinite: bool = False,
    ) -> None:
        self.loading: dict[str, Any] = {"image_size": image_size, "patch_size": patch_size}
        self.loading |= {"heads": heads, "grid": grid, "profile": profile}
        self.allow_nonfinite = allow_nonfinite
        self.feeding: dict[str, Any] = {"resize": resize, "resize_to": resize_to, "interpolation": interpolation}
        self.labels = labels

    def preprocess(self, own: Preprocess) -> Preprocess:
        """The checkpoint's preprocessing with the given changes."""
        given = {name: value for name, value in self.feeding.items() if value is not None}
        resize = given.pop("resize", own.resize)
        if "resize_to" in given and resize != "short-side":
            raise UsageError(f"`resize_to` needs `resize=short-side`, not {resize}")
        from vitlab.config.data import with_resize

        return replace(with_resize(own, resize), **given)


def _opened(model: ModelLike, opening: _Opening, *, device: str, boxes: bool = False, native: bool = False) -> Checkpoint:
    """The checkpoint on its device; guesses and changes are logged.

    With `boxes`, a detector sees images of any size; with `native`, resize may give each image its own shape.
    """
    from vitlab.checkpoints import Checkpoint, load
    from vitlab.checkpoints.checkpoint import check_preprocess, of_one_size
    from vitlab.models.device import resolve_device

    place = resolve_device(device)
    labels = None if opening.labels is None else _class_names(opening.labels)
    if isinstance(model, Checkpoint):
        _refuse_given("is for a file: give it to vitlab.load", **opening.loading, allow_nonfinite=opening.allow_nonfinite or None)
        checkpoint = model if labels is None else replace(model, labels=tuple(labels))
    else:
        checkpoint = load(os.fspath(model), **opening.loading, labels=labels, allow_nonfinite=opening.allow_nonfinite)
        _note_all(checkpoint.notes)
    if device == "auto" and place.type != "cpu":
        _note(f"device: {place}")
    checkpoint.model.to(place)
    checkpoint = replace(checkpoint, preprocess=opening.preprocess(checkpoint.preprocess))
    if checkpoint.preprocess.resize == "native":
        check_preprocess(checkpoint.preprocess, checkpoint.config)
    if not (native if checkpoint.preprocess.resize == "native" else boxes):
        checkpoint, notes = of_one_size(checkpoint)
        _note_all(notes)
    return checkpoint


def _named_or_opened(
    model: ModelLike, image_size: tuple[int, int] | None, patch_size: tuple[int, int] | None
) -> tuple[Checkpoint, bool]:
    """A checkpoint, or the model of that name with random weights; and whether it is a checkpoint."""
    from vitlab.checkpoints import Checkpoint

    if isinstance(model, Checkpoint) or _is_checkpoint(os.fspath(model)):
        return _opened(model, _Opening(image_size, patch_size), device="cpu"), True
    from vitlab.config.data import Preprocess
    from vitlab.config.model import variant
    from vitlab.models import build
    from vitlab.recipes.rules import with_patch_size

    config = variant(os.fspath(model), image_size=image_size)
    config = config if patch_size is None else replace(with_patch_size(config, patch_size), image_size=config.image_size)
    middle = (0.5,) * config.channels
    preprocess = Preprocess(image_size=config.image_size, resize_to=max(config.image_size), mean=middle, std=middle)
    return Checkpoint(model=build(config).eval(), config=config, preprocess=preprocess), False


def _data_notes(dataset: Dataset) -> tuple[str, ...]:
    """What was left out or decided when the dataset was opened; synthetic data has no notes."""
    from vitlab.data.dataset import ImageDataset

    return dataset.notes if isinstance(dataset, ImageDataset) else ()


def _device_of(checkpoint: Checkpoint) -> Any:
    return next(checkpoint.model.parameters()).device


def _class_names(path: FileName) -> Sequence[str]:
    """The labels in a file, or of a public label set."""
    from vitlab.config.class_names import LABEL_SETS, class_names
    from vitlab.data.readers.manifest import read_classes
    from vitlab.io.files import read_bytes

    text = os.fspath(path)
    if text in LABEL_SETS or not os.path.exists(text):  # noqa: PTH110
        return class_names(text)
    return read_classes(read_bytes(path), text)


def _is_checkpoint(text: str) -> bool:
    """Whether this names a file or folder that exists, an address, or a model on the hub."""
    return text.startswith("hub:") or is_address(text) or os.path.exists(text)  # noqa: PTH110 (Path.exists raises on a name that is too long)


def _name_of(model: ModelLike) -> str:
    """The name of the model in results: its path, or the format it came from."""
    return masked(os.fspath(model)) if isinstance(model, str | os.PathLike) else f"a checkpoint ({model.format})"


def _short_name(model: ModelLike) -> str:
    """The name by which clients of a server choose the model: that of its file or folder, without its ending."""
    if not isinstance(model, str | os.PathLike):
        return "model"
    text = os.fspath(model)
    if is_address(text):
        return address_of(text).name.removesuffix(address_of(text).suffix)
    return text.rpartition("/")[2] if text.startswith("hub:") else Path(text).resolve().name.removesuffix(Path(text).suffix)


def _stored(model: ModelLike) -> str:
    """The path or address of a checkpoint that a run starts from: a run stores it in its config."""
    from vitlab.checkpoints.hub import address_of
    from vitlab.checkpoints.reading import model_in

    if not isinstance(model, str | os.PathLike):
        raise UsageError("a run starts from a file", hint="vitlab.save(checkpoint, 'start.safetensors') writes one")
    address, notes = address_of(os.fspath(model))
    _note_all(notes)
    text = os.fspath(address)
    if is_address(text):
        return str(address_of(text))
    return text if text.startswith("hub:") else str(model_in(Path(text)))


def _local(file: FileName) -> Path:
    """A file on disk: itself, or a copy of what is at an address."""
    text = os.fspath(file)
    if not is_address(text):
        return Path(text)
    from vitlab.io.remote import fetch

    return fetch(address_of(text))


def _on_disk(folder: Folder) -> Path:
    """The folder of several runs, which is on disk."""
    if is_address(os.fspath(folder)):
        raise UsageError(
            f"{masked(os.fspath(folder))} is an address: studies and the quickstart write many runs, which are kept on disk",
            hint="give a folder as `out`, and copy it when the study is finished",
        )
    return Path(folder)


def _stored_config(out: Folder) -> RunConfig | None:
    """The config of the run in a folder or at an address, or None."""
    from vitlab.training.run_folder import RunDirectory

    if not is_address(os.fspath(out)):
        return RunDirectory(Path(out)).config()
    from vitlab.checkpoints.remote_copy import copied_run
    from vitlab.io.remote import is_file

    address = address_of(os.fspath(out))
    return RunDirectory(copied_run(address, model=False)).config() if is_file(address / "run.json") else None


def _size_of(word: str | Size) -> tuple[int, int]:
    """`224`, `160x224`, 224 or (160, 224)."""
    if not isinstance(word, str):
        return pair("image_size", word)
    match = re.fullmatch(r"([1-9][0-9]{0,8})(?:x([1-9][0-9]{0,8}))?", word)
    if match is None:
        raise UsageError(f"{word!r} is neither one number (224) nor height x width (160x224)")
    return int(match[1]), int(match[2] or match[1])


def _sizes_of(name: str, words: str | Sequence[Size]) -> tuple[tuple[int, int], ...]:
    """`8,16,16x32`, or a list of sizes."""
    found = tuple(_size_of(word) for word in (words.split(",") if isinstance(words, str) else words))
    if not found:
        raise UsageError(f"`{name}` names no size")
    return found


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"`{name}={value}` must be at least {least}")


def _refuse_given(why: str, **options: object) -> None:
    """UsageError for the first of these options that was given."""
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"`{option}` {why}")


def _refuse_present(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise DataError(f"{path} exists already", hint="`overwrite=True` replaces it")


def _with_result(error: DataError, result: Any) -> DataError:
    """The error of a strict call with its result, which the command line prints first."""
    error.result = result
    return error


def _note(text: str) -> None:
    _log.info("note: %s", masked(text))


def _note_all(notes: Iterable[str]) -> None:
    for line in notes:
        _note(line)


def _say_all(sentences: Iterable[str]) -> None:
    """Log sentences; under torchrun only the first rank does."""
    from vitlab.training.distributed import is_main_process

    if is_main_process():
        for sentence in sentences:
            _log.info("%s", sentence)
