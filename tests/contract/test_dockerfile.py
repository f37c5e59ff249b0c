"""The Dockerfile starts the server as it is, without rights, with a health check that the server answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

from vitlab import api
from vitlab.cli.options import parse
from vitlab.serving.app import create_app
from vitlab.serving.config import ServeConfig
from vitlab.serving.models import Models
from vitlab.serving.service import Metrics, Service


def test_the_dockerfile_is_short_without_rights_and_starts_the_server(checkout: Path) -> None:
    text = (checkout / "Dockerfile").read_text()
    lines = dict(line.split(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert len(lines) <= 10
    assert lines["USER"] not in ("root", "0")
    words = json.loads(lines["ENTRYPOINT"]) + json.loads(lines["CMD"])
    assert words[:4] == ["python", "-m", "vitlab", "serve"]
    arguments, _ = parse(api.serve, words[4:], verb="serve", notice=print)
    assert arguments["host"] == "0.0.0.0"
    assert arguments["port"] == int(lines["EXPOSE"])
    extras = re.findall(r"\[([a-z,]+)\]", lines["RUN"])[0].split(",")
    project = (checkout / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in project for extra in extras)


def test_its_health_check_asks_a_path_that_is_served(checkout: Path) -> None:
    asked = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", (checkout / "Dockerfile").read_text())
    service = Service(ServeConfig(), Models([]), Metrics(lambda: 0), log=None)  # type: ignore[arg-type]
    assert asked
    assert set(asked) <= {route.path for route in create_app(service).routes}  # type: ignore[attr-defined]
