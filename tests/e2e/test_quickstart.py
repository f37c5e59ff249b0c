"""The quickstart from its command to its report, with a budget that learns nothing; stopped half way, it resumes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests import processes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

RUNS = {"letters"} | {
    f"{begun}-{what}" for begun in ("pretrained", "scratch") for what in ("all", *(f"10-labels-{n}" for n in range(3)))
}


def command(warm: Path, out: Path, *words: str) -> list[str | Path]:
    return [warm / "vitlab", "quickstart", "--budget", "tiny", "--out", out, *words]


def test_it_finishes_every_run_writes_a_report_and_resumes_after_a_stop(warm: Path, tmp_path: Path) -> None:
    out = tmp_path / "quick"
    with processes.started(command(warm, out)) as began:
        processes.eventually(lambda: any(out.glob("*/result.json")), began)
        began.send_signal(signal.SIGTERM)
        _, said = began.communicate(timeout=processes.LIMIT)
    assert began.returncode == 143, said
    assert "run the same command to resume" in said
    done = {path.parent.name: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    assert done
    assert not (out / "report.html").exists()

    ended = processes.run(command(warm, out, "--json"), check=False)
    assert ended.returncode == 0, ended.stderr
    assert "done before" in ended.stderr
    found = json.loads(ended.stdout)
    assert {path.parent.name for path in out.glob("*/result.json")} == RUNS
    assert all((out / name / "result.json").stat().st_mtime_ns == before for name, before in done.items())
    assert [len(row["few"]) for row in found["rows"]] == [3, 3, 3]
    assert found["rows"][2]["all"] > 0.98  # neighbours have nothing to learn
    page = Path(found["report"]).read_text()
    assert "What pre-training gains".lower() in page.lower()
    assert all(row["name"] in page for row in found["rows"])
    assert Path(found["model"]).exists()
    assert f'href="{Path(found["explorer"]).name}"' in page
    assert Path(found["explorer"]).parent == Path(found["report"]).parent
    assert "How the quickstart&#x27;s ViT sees digits" in Path(found["explorer"]).read_text()

    again = processes.run(command(warm, out), check=False)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("done before") == len(RUNS)
    assert again.stdout.splitlines()[1].startswith("ViT, pre-trained on letters")


def test_a_wrong_budget_is_a_usage_error(warm: Path, tmp_path: Path) -> None:
    ended = processes.run([warm / "vitlab", "quickstart", "--budget", "huge", "--out", tmp_path], check=False)
    assert ended.returncode == 2
    assert "'huge' is not one of full, tiny" in ended.stderr
