"""What workers of a cluster do, in one process: chunk by chunk, the same rows; and what is refused before a cluster is asked."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

import vitlab
from tests.inference import small
from vitlab.config.hardware import Cut, RayConfig
from vitlab.data.opening import open_dataset
from vitlab.errors import ClusterError, ConfigError, DataError, UsageError, VitlabError
from vitlab.inference import Predictor, on_ray
from vitlab.inference.images import find_images
from vitlab.io.parts import Parts, open_parts
from vitlab.io.ray_cluster import Attempts, Resources, error_text, explained, raise_error

BATCH = 3


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and photos of which two are broken, loose and in a zip."""
    folder = tmp_path_factory.mktemp("work")
    for label in ("cat", "dog"):
        photos = small.photos(folder / "images" / label, 7)
        photos[2].write_bytes(b"no image")
    small.zipped(folder / "more.zip", small.photos(folder / "loose", 2, start=20))
    small.saved(folder / "model.safetensors", ("cat", "dog"))
    return folder


def in_this_process(
    predictor: Predictor, source: on_ray.Source, work: on_ray.Work, cut: Cut, parts: Parts, names: list[str] | None
) -> None:
    """The pipeline without Ray: the rows that pass between workers, through the same functions."""
    place = Path.cwd()
    opened = source.opened()
    os.chdir(place)
    for row in reversed(list(on_ray._rows(cut, parts.missing, names))):
        batches = list(opened.read(row["first"], row["count"], on_ray._names(row)))
        (found,) = on_ray._unpacked(on_ray._packed(row, batches))
        parts.add(row["part"], row["place"], work.chunk(predictor, found["batches"]))


def test_predictions_in_parts_are_those_of_one_process(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(work)
    words = ["images", "more.zip"]
    predictor = Predictor("model.safetensors", batch_size=BATCH, workers=0, backend="torch")
    mark = predictor.digest[:16]
    digest, count = on_ray.data_digest(find_images(words))
    cut = Cut(images=count, batch_size=BATCH, part_size=2 * BATCH)
    source = on_ray.FileSource(transform=predictor.engine.transform, batch_size=BATCH, base=str(work))
    assert (count, cut.parts) == (16, 3)
    for format, rows in (  # noqa: A001
        ("jsonl", on_ray.PredictLines(top=2, mark=mark)),
        ("parquet", on_ray.PredictTable(top=2, mark=mark)),
    ):
        one, many = tmp_path / f"one.{format}", tmp_path / f"many.{format}"
        vitlab.predict("model.safetensors", words, out=one, batch_size=BATCH, backend="torch", workers=0)
        with open_parts(tmp_path / format, {"data": digest}, on_ray.chunk_counts(cut), on_ray.PREDICTIONS[format]) as parts:
            in_this_process(predictor, source, rows, cut, parts, list(find_images(words)))
            parts.join(many)
            assert [Path(name).name for name, _ in parts.failures] == ["photo-002.jpg"] * 2
        assert _content(many) == _content(one)


def test_features_in_parts_are_those_of_one_process(work: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    dataset = open_dataset(str(work / "images"), split="all")
    predictor = Predictor(work / "model.safetensors", batch_size=BATCH, workers=0, backend="torch")
    vitlab.embed(work / "model.safetensors", work / "images", tmp_path / "one.parquet", batch_size=BATCH, workers=0)
    cut = Cut(images=len(dataset), batch_size=BATCH, part_size=BATCH)
    from vitlab.config.evaluation import EvaluateConfig

    loader = EvaluateConfig(batch_size=BATCH, workers=0, corrupt="skip").loader()
    source = on_ray.DatasetSource(dataset=dataset, transform=predictor.engine.transform, loader=loader, base=str(work))
    rows = on_ray.EmbedTable(digest=predictor.features_digest, made_by=str(work / "model.safetensors"))
    with open_parts(tmp_path / "parts", {}, on_ray.chunk_counts(cut), on_ray.FEATURES) as parts:
        in_this_process(predictor, source, rows, cut, parts, None)
        parts.join(tmp_path / "many.parquet")
    assert _content(tmp_path / "many.parquet") == _content(tmp_path / "one.parquet")


def _content(path: Path) -> Any:
    """Bytes of text; schema, groups and rows of Parquet."""
    if path.suffix == ".jsonl":
        return path.read_bytes()
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    return file.schema_arrow.to_string(), file.schema_arrow.metadata, groups, file.read().to_pylist()


def test_the_digest_of_data_changes_with_names_order_and_labels(work: Path) -> None:
    assert on_ray.data_digest(["a", "b"])[0] != on_ray.data_digest(["b", "a"])[0] != on_ray.data_digest(["ab"])[0]
    whole = open_dataset(str(work / "images"), split="all")
    part = open_dataset(str(work / "images"), split="train")
    assert (
        on_ray.dataset_digest(whole)
        == on_ray.dataset_digest(open_dataset(str(work / "images"), split="all"))
        != on_ray.dataset_digest(part)
    )


def test_an_error_in_a_worker_is_the_same_error_here() -> None:
    with pytest.raises(DataError, match="broken") as caught:
        raise_error(error_text(DataError("broken", hint="mend it")))
    assert caught.value.hint == "mend it"
    raise_error(error_text(None))


@pytest.mark.parametrize(
    ("gpus", "device", "actors", "expected"),
    [(0, "auto", 0, (8, 1, False)), (0, "auto", 2, (2, 1, False)), (3, "auto", 0, (3, 1, True)), (3, "cpu", 0, (8, 1, False))],
)
def test_models_run_on_gpus_where_there_are_some_and_else_on_cores(
    gpus: int, device: str, actors: int, expected: tuple[int, int, bool]
) -> None:
    have = Resources(nodes=2, cores=8, node_cores=4, gpus=gpus)
    settings = on_ray.ModelSettings(batch_size=32, device=device)
    layout = on_ray.Layout.of(have, RayConfig(actors=actors), settings)
    assert (layout.actors, layout.threads, layout.gpu) == expected  # tests have one thread


def test_more_models_than_cores_and_gpus_that_are_not_there_are_refused() -> None:
    have = Resources(nodes=2, cores=8, node_cores=4, gpus=0)
    with pytest.raises(ConfigError, match="8 cores"):
        on_ray.Layout.of(have, RayConfig(actors=9), on_ray.ModelSettings(batch_size=32))
    with pytest.raises(ConfigError, match="no node of the cluster has a GPU"):
        on_ray.Layout.of(have, RayConfig(), on_ray.ModelSettings(batch_size=32, device="cuda"))


def test_a_chunk_that_kills_every_worker_ends_the_work_and_names_its_first_image(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Attempts()
    actor = SimpleNamespace(begin=SimpleNamespace(remote=counter.begin))
    monkeypatch.setitem(sys.modules, "ray", cast(ModuleType, SimpleNamespace(get=lambda value: value)))
    row = {"part": 1, "place": 2, "count": 64}
    for _ in range(5):
        on_ray._begin(actor, "ran", row, "a.jpg")
    on_ray._begin(actor, "ran", row | {"place": 3}, "b.jpg")  # another chunk
    on_ray._begin(actor, "read", row, "a.jpg")  # another worker
    with pytest.raises(ClusterError, match=r"5 workers died while they ran 64 images, the first a\.jpg"):
        on_ray._begin(actor, "ran", row, "a.jpg")


def test_what_ray_says_becomes_one_sentence() -> None:
    own = DataError("broken", hint="mend it")
    wrapped = RuntimeError("task failed")
    wrapped.__cause__ = own
    assert explained(wrapped, doing="predicting on Ray failed") is own
    missing = RuntimeError("remote traceback\nModuleNotFoundError: No module named 'vitlab'")
    assert "same vitlab" in str(explained(missing, doing="predicting on Ray failed"))
    assert explained(RuntimeError("a\nthe node died"), doing="x").message == "x: the node died"


def test_without_ray_the_extra_is_named_and_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr("vitlab.io.ray_cluster.find_spec", lambda name: None if name == "ray" else known(name))
    with pytest.raises(ConfigError, match="clusters need ray, which is not installed") as caught:
        vitlab.predict("absent.safetensors", "absent", out="x.jsonl", engine="ray")
    assert caught.value.hint == "pip install 'vitlab[ray]'"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "results from Ray go to files"),
        ({"out": "x.csv"}, "a cluster writes"),
        ({"out": "x.jsonl", "format": "parquet"}, "a cluster writes"),
        ({"out": "x.jsonl", "address": "ray://host:1"}, "Ray Client"),
        ({"out": "x.jsonl", "address": "nonsense"}, "neither auto nor host:port"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("vitlab.io.ray_cluster.find_spec", lambda name: object())
    monkeypatch.setattr("vitlab.io.ray_cluster.optional_import", lambda name, purpose: _NoRay())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VitlabError, match=words):
        vitlab.predict(work / "model.safetensors", work / "images", engine="ray", **options)


class _NoRay:
    """Stands for a Ray that is not asked."""

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        raise AssertionError("Ray was started")


def test_options_of_a_cluster_without_it_are_refused(work: Path) -> None:
    with pytest.raises(UsageError, match="needs `engine='ray'`"):
        vitlab.predict(work / "model.safetensors", work / "images", address="auto")
    with pytest.raises(UsageError, match="needs `engine='ray'`"):
        vitlab.evaluate(work / "model.safetensors", work / "images", parts=work / "parts")
