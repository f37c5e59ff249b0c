"""Other runtimes give the model's own numbers, are refused where they do not, and `auto` never takes a slower one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache as once
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.inference.test_folded import close, noise, vit
from vitlab.checkpoints import Checkpoint
from vitlab.errors import ConfigError, ExportError
from vitlab.inference import Predictor
from vitlab.inference import auto as auto_backend
from vitlab.inference import backends as converted
from vitlab.inference.auto import AutoBackend, Choice, fewer_threads, for_one_image, measure, saved_choice
from vitlab.inference.backends import (
    Backend,
    FoldedBackend,
    GraphFiles,
    OpenVINOBackend,
    Outputs,
    TorchBackend,
    verify,
    with_threads,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vitlab"


@pytest.fixture(scope="module", autouse=True)
def _traced_once(onnx_operators: None) -> Iterator[None]:
    """A model is traced and converted once, which takes seconds, however many tests make files of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converted, "traced", once(converted.traced))
        patch.setattr(converted, "onnx_proto", once(converted.onnx_proto))
        yield


@pytest.fixture(scope="module")
def shallow() -> Checkpoint:
    return vit({"depth": 1, "register_tokens": 1})


class Fake:
    """A backend that takes a given time, by a clock of its own, and gives zeros."""

    def __init__(self, name: str, seconds: float, clock: list[float]) -> None:
        self.name = name
        self.runs = 0
        self._seconds, self._clock = seconds, clock

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        self.runs += 1
        self._clock[0] += self._seconds
        return Outputs(logits_BK=np.zeros((len(images_BHWC), 7), np.float32))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("vitlab.inference.auto.time.perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_another_runtime_gives_the_same_numbers_and_its_graph_is_made_once(
    backend: str, shallow: Checkpoint, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(backend)
    checkpoint = shallow
    images_BHWC = noise(checkpoint, 7)
    expected = TorchBackend(checkpoint.model, checkpoint.preprocess).run(images_BHWC, features=True)
    predictor = Predictor(checkpoint, backend=backend)  # type: ignore[arg-type]
    assert predictor.backend.name == backend
    for count in (1, 2, 7):
        found = predictor.backend.run(images_BHWC[:count], features=True)
        close(found.logits_BK, expected.logits_BK[:count])
        assert expected.features_BD is not None
        close(found.features_BD, expected.features_BD[:count])
    assert len(list((cache / "graphs").iterdir())) == 1

    def twice(checkpoint: Checkpoint, *, merge: int) -> None:
        raise AssertionError("the graph is in the cache")

    monkeypatch.setattr(converted, "traced", twice)
    again = Predictor(checkpoint, backend=backend)  # type: ignore[arg-type]
    close(again.backend.run(images_BHWC).logits_BK, expected.logits_BK)


@pytest.mark.slow
def test_torch_compile_gives_the_same_numbers() -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    checkpoint = vit({"depth": 1})
    images_BHWC = noise(checkpoint, 7)
    expected = TorchBackend(checkpoint.model, checkpoint.preprocess).run(images_BHWC, features=True)
    found = Predictor(checkpoint, backend="compile").backend.run(images_BHWC, features=True)
    close(found.logits_BK, expected.logits_BK)
    close(found.features_BD, expected.features_BD)


def test_a_runtime_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("vitlab.io.optional.import_module", absent)
    for backend, extra in (("openvino", "openvino"), ("onnxruntime", "export")):
        with pytest.raises(ConfigError, match=f"need {backend}, which is not installed") as caught:
            Predictor(vit(), backend=backend)  # type: ignore[arg-type]
        assert caught.value.hint == f"pip install 'vitlab[{extra}]'"


def test_a_runtime_with_other_numbers_is_refused() -> None:
    checkpoint = vit()

    class Wrong(TorchBackend):
        def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
            out = super().run(images_BHWC, features=features)
            return Outputs(logits_BK=out.logits_BK * 1.01, features_BD=out.features_BD)

    with pytest.raises(ExportError, match="gives other logits"):
        verify(Wrong(checkpoint.model, checkpoint.preprocess), checkpoint)  # type: ignore[arg-type]


def test_every_stream_is_verified_and_a_wrong_compilation_is_made_again(
    shallow: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO now and then compiles one of its streams wrongly."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    real, compiled = OpenVINOBackend.run, []

    def run(self: OpenVINOBackend, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        out = real(self, images_BHWC, features=features)
        compiled.append(self._queue)
        if len(compiled) > 1:
            return out
        wrong = out.logits_BK.copy()
        wrong[-1] += 1  # in the last of the streams
        return Outputs(logits_BK=wrong, features_BD=out.features_BD)

    monkeypatch.setattr(OpenVINOBackend, "run", run)
    Predictor(shallow, backend="openvino")
    assert len(compiled) == 2
    assert compiled[0] is not compiled[1]


def makers(clock: list[float], seconds: dict[str, float]) -> dict[str, Callable[[], Backend]]:
    return {name: lambda name=name, spent=spent: Fake(name, spent, clock) for name, spent in seconds.items()}  # type: ignore[misc]


def test_the_fastest_is_chosen_and_none_for_a_hair(clock: list[float]) -> None:
    choice, _ = measure(makers(clock, {"torch": 1.0, "quick": 0.8, "slow": 2.0}), vit())
    assert (choice.one, choice.many) == ("quick", "quick")
    choice, _ = measure(makers(clock, {"torch": 1.0, "quick": 0.99}), vit())
    assert choice.many == "torch"
    assert "torch" in choice.summary()


def test_what_was_faster_by_luck_alone_is_not_chosen(clock: list[float]) -> None:
    class Lucky(Fake):
        def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
            out = super().run(images_BHWC, features=features)
            self._seconds = 0.5 if self.runs % 1000 == 3 else 2.0
            return out

    choice, _ = measure(makers(clock, {"torch": 1.0}) | {"lucky": lambda: Lucky("lucky", 2.0, clock)}, vit())
    assert choice.seconds_one["lucky"] == 0.5
    assert choice.one == "torch"


def test_what_cannot_be_made_is_left_out_with_its_reason(clock: list[float]) -> None:
    def broken() -> Backend:
        raise ExportError("it does not match")

    choice, made = measure(makers(clock, {"torch": 1.0}) | {"broken": broken}, vit())
    assert choice.many == "torch"
    assert "broken" not in made
    assert choice.absent == {"broken": "it does not match"}


def test_auto_runs_torch_until_measuring_pays_then_says_and_remembers_what_it_found(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    checkpoint, said = vit(), list[str]()
    first, images_BHWC = Fake("torch", 10.0, clock), noise(checkpoint)
    monkeypatch.setattr(
        auto_backend,
        "candidates",
        lambda checkpoint, first, digest, **_: {"torch": lambda: first} | makers(clock, {"quick": 1.0}),
    )
    auto = AutoBackend(checkpoint, first, lambda: "digest", notify=said.append)
    for _ in range(7):
        assert auto.name == "torch"
        auto.run(images_BHWC)
    auto.run(images_BHWC)
    assert auto.name == "quick"
    assert any("quick" in sentence for sentence in said)
    (file,) = (cache / "backends").iterdir()
    assert json.loads(file.read_text())["many"] == "quick"
    runs = first.runs
    later = AutoBackend(checkpoint, first, lambda: "digest", notify=said.append)
    for _ in range(3):  # 30 s of work: another runtime takes a while to start, so what is remembered is not used at once
        later.run(images_BHWC)
        assert later.name == "torch"
    later.run(images_BHWC)
    assert later.name == "quick"
    assert first.runs == runs + 3  # nothing is measured again
    other = AutoBackend(checkpoint, first, lambda: "another digest", notify=said.append)
    for _ in range(4):
        other.run(images_BHWC)
    assert other.name == "torch"


def test_settling_measures_once_and_other_weights_of_the_same_config_take_the_choice_over(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, said = vit(), list[str]()
    first = Fake("torch", 10.0, clock)
    monkeypatch.setattr(
        auto_backend,
        "candidates",
        lambda checkpoint, first, digest, **_: {"torch": lambda: first} | makers(clock, {"quick": 1.0}),
    )

    def settled(digest: str, like: AutoBackend | None = None) -> AutoBackend:
        auto = AutoBackend(checkpoint, first, lambda: digest, notify=said.append)
        auto.settle(like)
        assert auto.name == "quick"
        return auto

    auto = settled("digest")
    runs = first.runs
    settled("digest")
    settled("of other weights", auto)
    settled("of other weights")  # kept
    assert first.runs == runs
    settled("of a third")
    assert first.runs > runs


def test_a_few_images_never_wait_for_a_lookup(clock: list[float]) -> None:
    def digest() -> str:
        raise AssertionError("the digest reads all weights")

    checkpoint = vit()
    auto = AutoBackend(checkpoint, Fake("torch", 1.0, clock), digest, notify=print)
    auto.run(noise(checkpoint, 1))
    auto.run(noise(checkpoint, 3))


def test_what_is_remembered_and_cannot_be_had_or_read_leaves_torch(cache: Path, clock: list[float]) -> None:
    checkpoint, said = vit(), list[str]()
    place = auto_backend._file("digest")
    place.parent.mkdir(parents=True)
    for content in ("not JSON", "{}", '{"one": 1}', "[]"):
        place.write_text(content)
        assert saved_choice(place) is None
    gone = Choice(one="gone", many="gone", seconds_one={"gone": 1.0}, seconds_many={"gone": 1.0}, absent={})
    auto_backend._save(place, gone)
    assert saved_choice(place) == gone
    auto = AutoBackend(checkpoint, Fake("torch", 30.0, clock), lambda: "digest", notify=said.append)
    auto.run(noise(checkpoint))
    auto.run(noise(checkpoint))
    assert auto.name == "torch"
    assert any("cannot be made now" in sentence for sentence in said)


def test_the_candidates_are_torch_and_what_is_installed() -> None:
    checkpoint = vit()
    names = set(auto_backend.candidates(checkpoint, FoldedBackend(checkpoint), "digest", notify=print))
    assert "torch" in names
    if converted.installed("openvino"):
        assert {"openvino/4", "openvino/4 unpinned"} <= names


def test_one_image_is_tried_once_a_backend_with_all_threads_and_with_fewer() -> None:
    names = ["torch", "openvino/2", "openvino/4", "openvino/4 unpinned"]
    assert for_one_image(names, 1) == {
        "torch": ("torch", 1),
        "openvino": ("openvino/2", 1),
        "openvino unpinned": ("openvino/4 unpinned", 1),
    }
    assert for_one_image(names, 2) == {
        "torch": ("torch", 2),
        "torch with 1 thread": ("torch", 1),
        "openvino": ("openvino/2", 2),
        "openvino with 1 thread": ("openvino/2", 1),
        "openvino unpinned": ("openvino/4 unpinned", 2),
    }
    assert fewer_threads(12) == [6, 3, 1]


class Crowded(Fake):
    """A backend that takes the longer, the more threads torch has."""

    def run(self, images_BHWC: NDArray[np.uint8], *, features: bool = False) -> Outputs:
        self._clock[0] += torch.get_num_threads()
        return super().run(images_BHWC, features=features)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_fewer_threads_for_one_image_are_found_reported_kept_and_used_again(clock: list[float]) -> None:
    checkpoint, said = vit(), list[str]()
    auto = AutoBackend(checkpoint, Crowded("torch", 0.0, clock), lambda: "digest", notify=said.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto_backend, "candidates", lambda checkpoint, first, digest, **_: {"torch": lambda: first})
        choice = auto.measure_now()
        assert (choice.one, choice.many) == ("torch with 1 thread", "torch")
        assert choice.seconds_one == {"torch": 2.0, "torch with 1 thread": 1.0}
        assert "for one image torch with 1 thread" in said[-1]
        later = AutoBackend(checkpoint, Crowded("torch", 0.0, clock), lambda: "digest", notify=said.append)
        for _ in range(12):
            later.run(noise(checkpoint, 2))
        for backend in (auto, later):
            began = clock[0]
            backend.run(noise(checkpoint, 1))
            assert clock[0] - began == 1.0
            assert torch.get_num_threads() == 2
    torch.set_num_threads(1)  # of another number of threads nothing is known
    assert saved_choice(auto_backend._file("digest")) is None


def test_more_threads_are_kept_where_they_are_the_faster(clock: list[float], two_threads: None) -> None:
    choice, _ = measure(makers(clock, {"torch": 1.0}), vit())
    assert choice.one == "torch"


def test_single_images_alone_come_to_what_is_remembered_too(clock: list[float]) -> None:
    checkpoint, said = vit(), list[str]()
    known = Choice(one="torch", many="torch", seconds_one={"torch": 1.0}, seconds_many={"torch": 1.0}, absent={})
    auto_backend._save(auto_backend._file("digest"), known)
    auto = AutoBackend(checkpoint, Fake("torch", 2.0, clock), lambda: "digest", notify=said.append)
    for _ in range(11):
        auto.run(noise(checkpoint, 1))
        assert not said
    auto.run(noise(checkpoint, 1))
    assert "the backend is torch" in said[0]


def test_what_another_format_remembered_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    before = auto_backend._file("digest")
    monkeypatch.setattr(auto_backend, "_FORMAT", 99)
    assert auto_backend._file("digest") != before


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("backend", ["torch", "openvino", "onnxruntime"])
def test_a_backend_with_fewer_threads_gives_the_same_numbers(backend: str, shallow: Checkpoint) -> None:
    if backend != "torch":
        pytest.importorskip(backend)
    checkpoint = shallow
    images_BHWC = noise(checkpoint, 1)
    expected = TorchBackend(checkpoint.model, checkpoint.preprocess).run(images_BHWC, features=True)
    found = with_threads(Predictor(checkpoint, backend=backend).backend, 1)  # type: ignore[arg-type]
    assert found.name == backend
    out = found.run(images_BHWC, features=True)
    close(out.logits_BK, expected.logits_BK)
    close(out.features_BD, expected.features_BD)
    assert torch.get_num_threads() == 2


def test_openvino_gives_the_same_numbers_pinned_or_not(shallow: Checkpoint) -> None:
    pytest.importorskip("openvino")
    checkpoint = shallow
    images_BHWC = noise(checkpoint, 5)
    found = OpenVINOBackend(checkpoint, GraphFiles(checkpoint, "digest", "openvino"), pinned=False)
    close(found.run(images_BHWC).logits_BK, TorchBackend(checkpoint.model, checkpoint.preprocess).run(images_BHWC).logits_BK)
    assert found._request_for_one.get_compiled_model().get_property("ENABLE_CPU_PINNING") is False


def test_other_runtimes_run_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match="runs on the CPU"):
        Predictor(vit(), backend="openvino", device="meta")
