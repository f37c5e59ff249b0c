"""The explorer as a file: what is in it, how large it is, and that nothing in it is markup that a name brought."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vitlab
from tests.inference import small
from tests.interpretation.test_exploration import checkpoint_of, explored, pixels_of
from tests.models.test_contract import CLASSIFIERS
from tests.reports.small import HOSTILE
from vitlab.checkpoints import Checkpoint
from vitlab.config.data import Preprocess
from vitlab.errors import DataError, UsageError
from vitlab.inference.images import NamedImage
from vitlab.interpretation.exploration import explore_model
from vitlab.io.arrays import unpack_arrays
from vitlab.models import build
from vitlab.reports.explorer import MODULES, builtin_images, coded, file_page, image_bytes, page_files, write_explorer

Pack = tuple[dict[str, Any], dict[str, NDArray[Any]]]


def blocks_of(page: str) -> dict[str, Pack]:
    """The data of a page, by the name of its block."""
    found = re.findall(r'<script type="text/plain" id="([^"]+)">([^<]*)</script>', page)
    return {name: unpack_arrays(gzip.decompress(base64.b64decode(text))) for name, text in found}


def start_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="start">(.*?)</script>', page)
    assert found is not None
    start: dict[str, Any] = json.loads(found[1])
    return start


@cache
def page_of(name: str, folder: Path, *, cover: bool = True) -> str:
    path = folder / f"{name}.html"
    write_explorer(path, {name: checkpoint_of(name)}, [pixels_of(name), pixels_of(name)[::-1].copy()], cover=cover)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explorers")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_model_has_an_explorer_with_its_numbers(name: str, folder: Path) -> None:
    page, found = page_of(name, folder), explored(name)
    blocks = blocks_of(page)
    assert set(blocks) == {"image-0-0", "image-0-1", "model-0"}
    facts, arrays = blocks["image-0-0"]
    np.testing.assert_allclose(facts["probabilities"], found.probabilities_C[list(found.classes)], atol=1e-6)
    for kind, map_GJ in found.maps.items():
        np.testing.assert_allclose(arrays[f"map.{kind}"], map_GJ, atol=1e-6)
    if found.attention_RLHN is not None:
        restored = np.concatenate([decoded(facts, arrays, group) for group in range(len(facts["attention"]))])
        np.testing.assert_allclose(restored, found.attention_RLHN, atol=1e-4)
        assert [query for group in facts["attention"] for query in group["queries"]] == list(found.queries)
    assert facts["missing"] == found.missing


def decoded(facts: dict[str, Any], arrays: dict[str, NDArray[Any]], group: int) -> NDArray[np.float64]:
    """Attention as the page computes it from its codes."""
    levels = facts["attention"][group]["levels"]
    restored: NDArray[np.float64] = (arrays[f"attention.{group}"] / levels) ** 2 * arrays[f"largest.{group}"][..., None]
    return restored.transpose(2, 0, 1, 3)


@pytest.mark.parametrize("levels", [65_535, 255, 31])
def test_coded_attention_is_off_by_at_most_one_step_of_its_largest(levels: int) -> None:
    attention = explored("token").attention_RLHN
    assert attention is not None
    codes, largest = coded(attention, levels)
    restored = (codes / levels) ** 2 * largest[..., None]
    assert np.abs(restored - attention).max() <= largest.max() * 1.01 / levels
    exact, _ = coded(attention, 0)
    np.testing.assert_array_equal(exact, attention)


@pytest.mark.parametrize("allowed", [2_500_000, 1_500_000])
def test_a_file_that_grows_too_large_keeps_fewer_queries(folder: Path, allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CLASSIFIERS["token"], image_size=(128, 128))
    checkpoint = Checkpoint(model=build(config).eval(), config=config, preprocess=Preprocess(image_size=(128, 128)))
    monkeypatch.setattr("vitlab.reports.explorer.FILE_BYTES", allowed)
    noise = np.random.default_rng(0).integers(0, 256, (12, 128, 128, 3), dtype=np.uint8)
    written = write_explorer(folder / f"{allowed}.html", {"large": checkpoint}, list(noise), cover=False)
    assert written.stride is not None
    assert written.stride > 1
    assert written.bytes == (folder / f"{allowed}.html").stat().st_size < allowed


def test_the_policy_allows_this_script_and_this_style_and_no_request(folder: Path) -> None:
    page = page_of("token", folder)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    for tag, rule in (("style", "style-src"), ('script type="module"', "script-src")):
        found = re.search(rf"<{tag}>(.*?)</{tag.split()[0]}>", page, re.DOTALL)
        assert found is not None
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_names_are_text_and_never_markup(folder: Path) -> None:
    checkpoint = replace(checkpoint_of("token"), labels=(*HOSTILE, "</script><b>", "<!--"))
    image = NamedImage(name="</script><script>x</script>.png", read=lambda: pixels_of("token"))
    write_explorer(folder / "hostile.html", {"<b>model": checkpoint}, [image], title="</title><b>", cover=False)
    page = (folder / "hostile.html").read_text(encoding="utf-8")
    start = start_of(page)
    assert start["title"] == "</title><b>"
    assert start["models"][0]["name"] == "<b>model"
    assert start["images"] == ["script>.png"]
    assert page.count("<script") == 4  # start, two blocks, and the module
    assert "</title><b>" not in page
    facts, _ = blocks_of(page)["image-0-0"]
    assert set(facts["labels"]) == set(checkpoint.labels or ())


def test_modules_import_only_modules_before_them_and_their_names_do_not_clash() -> None:
    texts = {name: content.decode() for name, content in page_files() if name.endswith(".js")}
    assert tuple(texts) == MODULES
    defined: dict[str, str] = {}
    for place, (name, text) in enumerate(texts.items()):
        for imported in re.findall(r'from "\./([a-z]+\.js)"', text):
            assert imported in MODULES[:place]
        for own in re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", text, re.MULTILINE):
            assert own not in defined, f"{own} is in {name} and in {defined[own]}"
            defined[own] = name
    page = file_page({"title": "t"}, {})
    assert "import {" not in page
    assert "export " not in page


def test_the_two_models_of_a_page_have_their_own_blocks(folder: Path) -> None:
    path = folder / "two.html"
    written = write_explorer(
        path, {"ViT": checkpoint_of("hybrid"), "ResNet": checkpoint_of("resnet")}, [pixels_of("resnet")], cover=False
    )
    blocks = blocks_of(path.read_text(encoding="utf-8"))
    assert set(blocks) == {"image-0-0", "model-0", "image-1-0", "model-1"}
    assert written.models == ("ViT", "ResNet")
    assert "relevance" in blocks["image-0-0"][0]["maps"]
    assert "activation" in blocks["image-1-0"][0]["maps"]


def test_an_image_for_a_server_is_exact() -> None:
    found = explored("token")
    facts, arrays = unpack_arrays(image_bytes(explore_model(checkpoint_of("token")), checkpoint_of("token"), found))
    assert found.attention_RLHN is not None
    np.testing.assert_array_equal(arrays["attention.0"].transpose(2, 0, 1, 3), found.attention_RLHN[:1])
    np.testing.assert_array_equal(arrays["embedding"], found.embedding_ND)
    assert facts["attention"][0]["levels"] == 0


def test_the_verb_shows_the_builtin_images_or_yours(tmp_path: Path) -> None:
    own = small.photos(tmp_path / "photos", 5)
    written = vitlab.explore(small.checkpoint(), out=tmp_path / "a.html", no_cover=True)
    assert (written.images, written.stride) == (len(builtin_images()), 1)
    several = vitlab.explore(small.checkpoint(), tmp_path / "photos", out=tmp_path / "b.html", count=3, no_cover=True)
    assert several.images == 3
    assert start_of((tmp_path / "b.html").read_text())["images"][0] == own[0].name
    with pytest.raises(DataError, match="exists already"):
        vitlab.explore(small.checkpoint(), out=tmp_path / "a.html")
    with pytest.raises(DataError, match="there is no folder"):
        vitlab.explore(small.checkpoint(), out=tmp_path / "none" / "a.html")
    with pytest.raises(UsageError, match="nothing"):
        vitlab.explore(small.checkpoint(), str(tmp_path / "nothing"), out=tmp_path / "c.html")


def test_nearest_images_are_those_of_the_index(tmp_path: Path) -> None:
    small.photos(tmp_path / "photos" / "x", 6)
    model = small.saved(tmp_path / "model.safetensors")
    vitlab.embed(model, f"images:{tmp_path / 'photos'}", tmp_path / "index.npz", workers=0)
    query = tmp_path / "photos" / "x" / "photo-002.jpg"
    vitlab.explore(model, query, out=tmp_path / "e.html", index=tmp_path / "index.npz", no_cover=True)
    blocks = blocks_of((tmp_path / "e.html").read_text())
    facts, _ = blocks["image-0-0"]
    own = vitlab.similar(query, tmp_path / "index.npz", top=6)
    assert [entry["name"] for entry in facts["neighbours"]["images"]] == [row["name"] for row in own]
    np.testing.assert_allclose(
        [entry["similarity"] for entry in facts["neighbours"]["images"]], [row["similarity"] for row in own], atol=1e-5
    )
    model_facts, model_arrays = blocks["model-0"]
    assert model_facts["neighbours"]["count"] == len(model_arrays["map"]) == 6
    place = model_arrays["map"][2]
    np.testing.assert_allclose(facts["neighbours"]["at"], place, atol=1e-3)
    with pytest.raises(DataError, match="did not make"):
        vitlab.explore(small.checkpoint(seed=1), query, out=tmp_path / "f.html", index=tmp_path / "index.npz")
