"""The page at `/` and its endpoints, without a browser."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import vitlab
from tests.inference import small
from tests.interpretation.test_exploration import checkpoint_of
from tests.serving.small import Reply, ask, photo, serving
from vitlab.interpretation.exploration import attention_of, changed_answer, explore_image
from vitlab.io.arrays import unpack_arrays
from vitlab.reports.explorer import BUILTIN, MODULES, model_reader
from vitlab.serving.config import ServeConfig
from vitlab.serving.server import Server

MODEL = small.checkpoint()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving({"tiny": MODEL, "resnet": checkpoint_of("resnet")}) as started:
        yield started


def test_the_page_and_everything_it_names_come_from_this_server_alone(server: Server) -> None:
    page = ask(server.url, "/")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    named = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    assert set(named) == {"data:,", "explorer/style.css", "explorer/main.js"}
    for name in ("style.css", *MODULES, *BUILTIN):
        assert ask(server.url, f"/explorer/{name}").status == 200
    for name in ("../report.py", "index.html", "%2e%2e%2fexplorer.py", "LICENCES.txt"):
        assert ask(server.url, f"/explorer/{name}").status == 404


def test_an_image_gets_the_numbers_of_the_library(server: Server) -> None:
    facts, arrays = unpack_arrays(ask(server.url, "/v1/explorer/image?model=tiny&name=mine", photo(3)).body)
    pixels = model_reader(MODEL)(photo(3), "photo")
    found = explore_image(MODEL, pixels, name="mine")
    np.testing.assert_allclose(facts["probabilities"], found.probabilities_C[list(found.classes)], atol=1e-5)
    np.testing.assert_allclose(arrays["map.rollout"], found.maps["rollout"], atol=1e-5)
    assert facts["name"] == "mine"
    _, rows = unpack_arrays(ask(server.url, "/v1/explorer/attention?model=tiny&token=7", photo(3)).body)
    np.testing.assert_allclose(rows["attention"], attention_of(MODEL, pixels, 7), atol=1e-5)
    changed, _ = unpack_arrays(ask(server.url, "/v1/explorer/change?model=tiny&covered=1,2", photo(3)).body)
    own = changed_answer(MODEL, pixels, covered=[1, 2]).probabilities_C
    np.testing.assert_allclose([entry["probability"] for entry in changed["answer"]], np.sort(own)[::-1][:5], atol=1e-5)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/explorer/image?model=none", "not_found"),
        ("/v1/explorer/image?unknown=1", "invalid_option"),
        ("/v1/explorer/attention?token=99", "invalid_option"),
        ("/v1/explorer/attention?token=x", "invalid_option"),
        ("/v1/explorer/attention?model=resnet&token=0", "invalid_option"),
        ("/v1/explorer/change?covered=99", "invalid_option"),
        ("/v1/explorer/change?covered=1,,2", "invalid_option"),
        ("/v1/explorer/change?side=3", "invalid_option"),
    ],
)
def test_what_makes_no_sense_is_the_clients_mistake(server: Server, path: str, code: str) -> None:
    found = ask(server.url, path, photo(0))
    assert 400 <= found.status < 500
    assert found.code == code


def test_no_image_is_refused(server: Server) -> None:
    assert 400 <= ask(server.url, "/v1/explorer/image", b"no image").status < 500
    assert ask(server.url, "/v1/explorer/image", b"").code == "no_image"


def test_with_keys_the_page_opens_and_its_numbers_need_one() -> None:
    with serving(config=ServeConfig(port=0, keys=("k" * 16,))) as server:
        page = ask(server.url, "/")
        assert page.status == 200
        assert '"keyed": true' in page.body.decode()
        assert ask(server.url, "/v1/explorer/model").status == 401
        assert ask(server.url, "/v1/explorer/model", headers={"authorization": f"Bearer {'k' * 16}"}).status == 200


def test_an_index_brings_the_nearest_images_unless_another_model_made_it(tmp_path: Path) -> None:
    small.photos(tmp_path / "photos" / "x", 4)
    vitlab.embed(MODEL, f"images:{tmp_path / 'photos'}", tmp_path / "index.npz", workers=0)
    config = ServeConfig(port=0, index=tmp_path / "index.npz")
    with serving({"tiny": MODEL}, config=config, log=io.StringIO()) as server:
        facts, arrays = unpack_arrays(_image(server).body)
        assert facts["neighbours"]["images"][0]["name"].endswith("photo-002.jpg")
        assert facts["neighbours"]["images"][0]["similarity"] == pytest.approx(1, abs=1e-4)
        assert "neighbour.0" in arrays
    with serving({"tiny": small.checkpoint(seed=1)}, config=config) as server:
        facts, _ = unpack_arrays(_image(server).body)
        assert "neighbours" not in facts
        model, _ = unpack_arrays(ask(server.url, "/v1/explorer/model").body)
        assert "did not make" in model["missing"]["nearest images"]


def _image(server: Server) -> Reply:
    return ask(server.url, "/v1/explorer/image", photo(2))
