"""`vitlab predict`: every format has the same results, files can be continued, and unreadable images are reported."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests import processes
from tests.inference import small
from vitlab.checkpoints import load
from vitlab.cli.main import main
from vitlab.inference import Predictor


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.saved(tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six photographs."""
    small.photos(tmp_path / "photos", 6)
    return tmp_path / "photos"


def predicted(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> tuple[str, list[str]]:
    """What is on stdout and the lines on stderr."""
    assert main(["predict", *map(str, words)]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err.splitlines()


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_form_says_what_the_predictor_says(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(folder.iterdir())
    expected = {str(file): found.top(3) for file, found in zip(files, Predictor(model)(files), strict=True)}

    out, _ = predicted(capsys, model, folder, "--json", "--top", "3")
    stated = {line["name"]: [(best["label"], best["probability"]) for best in line["top"]] for line in lines(out)}
    assert list(stated) == [str(file) for file in files]
    for name, best in expected.items():
        assert stated[name] == [(label, pytest.approx(chance, abs=1e-5)) for label, chance in best]

    out, _ = predicted(capsys, model, folder, "--format", "csv", "--top", "3")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(out))}
    assert {name: row["label_1"] for name, row in rows.items()} == {name: best[0][0] for name, best in expected.items()}

    predicted(capsys, model, folder, "--out", tmp_path / "out.parquet", "--top", "3")
    table = {row["name"]: row["labels"] for row in pq.read_table(tmp_path / "out.parquet").to_pylist()}
    assert table == {name: [label for label, _ in best] for name, best in expected.items()}

    out, _ = predicted(capsys, model, folder, "--top", "3")
    for name, best in expected.items():
        block = out.split(f"{name}\n")[1].split("\n")[:3]
        assert [line.split("%")[1].strip() for line in block] == [label for label, _ in best]


def test_more_labels_than_classes_are_all_of_them(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = predicted(capsys, model, folder / "photo-000.jpg", "--json", "--top", "100")
    assert len(lines(out)[0]["top"]) == len(small.LABELS)


def test_a_list_on_stdin_is_read_line_by_line(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{folder}/photo-003.jpg\n\n{folder}/gone.jpg\r\n{folder}/photo-001.jpg"))
    out, said = predicted(capsys, model, "-", "--json")
    names = [Path(line["name"]).name for line in lines(out)]
    assert names == ["photo-003.jpg", "gone.jpg", "photo-001.jpg"]
    assert "does not exist" in lines(out)[1]["error"]
    assert said[-1] == "note: 1 of 3 images could not be read"


def test_what_cannot_be_read_is_reported_and_is_an_error_only_when_asked(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.jpg").write_bytes(b"junk")
    out, said = predicted(capsys, model, folder, "--json")
    assert len(lines(out)) == 7
    assert any("bad.jpg" in line and line.startswith("unreadable: ") for line in said)
    assert "note: 1 of 7 images could not be read" in said
    out, said = predicted(capsys, model, folder, "--json", "--strict", code=1)
    assert len(lines(out)) == 7
    assert said[-2] == "error: 1 of 7 images could not be read"


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 7, 32])
def test_a_resumed_file_equals_the_uninterrupted_one_wherever_it_was_cut(
    batch_size: int, model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "photo-002a.jpg").write_bytes(b"junk")
    small.photos(folder / "more", 9)
    out = tmp_path / "out.jsonl"
    words = (model, folder, "--out", out, "--batch-size", str(batch_size), "--backend", "torch")
    predicted(capsys, *words)
    whole = out.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 16
    for cut in {0, ends[0], ends[0] + 9, ends[3], ends[6] + 30, ends[9] - 1, ends[-2], ends[-1] - 1, ends[-1]}:
        out.write_bytes(whole[:cut])
        _, said = predicted(capsys, *words, "--resume")
        assert out.read_bytes() == whole
        assert any("already" in line for line in said) == (cut >= ends[0])


def test_a_file_that_is_there_is_neither_overwritten_nor_continued_unasked(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    predicted(capsys, model, folder, "--out", out)
    _, said = predicted(capsys, model, folder, "--out", out, code=1)
    assert said[-2].endswith("exists already")
    predicted(capsys, model, folder / "photo-002.jpg", "--out", out, "--overwrite")
    assert len(out.read_text().splitlines()) == 1


def test_work_in_two_sittings_counts_what_could_not_be_read_in_either(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a-bad.jpg").write_bytes(b"junk")
    out = tmp_path / "out.jsonl"
    predicted(capsys, model, folder, "--out", out)
    _, said = predicted(capsys, model, folder, "--out", out, "--resume", "--strict", code=1)
    assert said[-2] == "error: 1 of 7 images could not be read"


def test_another_models_file_is_not_continued(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    predicted(capsys, small.saved(tmp_path / "other.safetensors", seed=1), folder, "--out", out)
    before = out.read_bytes()
    _, said = predicted(capsys, model, folder, "--out", out, "--resume", code=1)
    assert "another model" in said[-2]
    assert out.read_bytes() == before


def test_an_interrupt_keeps_what_is_done_and_the_rest_follows(model: Path, warm: Path, tmp_path: Path) -> None:
    small.photos(tmp_path / "photos", 40)
    out = tmp_path / "out.jsonl"
    words = ["predict", str(model), "-", "--out", str(out), "--resume", "--batch-size", "1"]
    paths = [str(path) for path in sorted((tmp_path / "photos").iterdir())]
    with processes.started([warm / "vitlab", *words], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("\n".join(paths[:36]) + "\n")
        process.stdin.flush()
        processes.eventually(lambda: out.exists() and out.stat().st_size > 0, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(processes.LIMIT) == 130
        said = process.stderr.read()
    assert said.splitlines()[-1] == "interrupted"
    done = len(out.read_text().splitlines())
    assert 1 <= done <= 36
    assert main(["predict", str(model), str(tmp_path / "photos"), "--out", str(out), "--resume"]) == 0
    assert sorted(line["name"] for line in lines(out.read_text())) == paths


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere.jpg",), "no file or folder called 'nowhere.jpg'"),
        (("*.jgp",), "nothing matches '*.jgp'"),
        ((), "missing IMAGE..."),
        (("-", "a.jpg"), "- (a list or an image on stdin) cannot be combined"),
        ((".", "--json", "--format", "csv"), "--json and --format csv contradict each other"),
        ((".", "--resume"), "--resume continues the JSON lines of --out"),
        ((".", "--out", "a", "--format", "csv", "--resume"), "--resume continues the JSON lines of --out"),
        ((".", "--out", "a", "--overwrite", "--resume"), "--resume keeps what is there"),
        ((".", "--top", "0"), "--top 0 must be at least 1"),
        ((".", "--top", "x"), "--top: 'x' is not a whole number"),
        ((".", "--resize", "crop"), "--resize: 'crop' is not one of short-side, squash, pad"),
        ((".", "--resize", "squash", "--resize-to", "40"), "--resize-to needs --resize short-side"),
    ],
)
def test_a_command_line_that_cannot_be_meant_exits_2(
    model: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    import torch

    monkeypatch.chdir(folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out, said = predicted(capsys, model, *words, code=2)
    assert out == ""
    assert said[0].startswith(f"error: {message}")


@pytest.mark.parametrize(("words", "message"), [(("--device", "cuda"), "cuda"), (("--device", "tpu"), "tpu")])
def test_a_value_that_cannot_be_exits_1(
    model: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out, said = predicted(capsys, model, folder, *words, code=1)
    assert out == ""
    assert message in said[0]


@pytest.mark.parametrize(("old", "new"), [(("--csv",), ("--format", "csv")), (("--parquet", "{}"), ("--out", "{}"))])
def test_an_option_of_version_0_1_is_taken_with_a_notice(
    old: tuple[str, ...], new: tuple[str, ...], model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    was, said = predicted(capsys, model, folder, *(word.format(tmp_path / "a.parquet") for word in old))
    assert sum("is now" in line for line in said) == 1
    now, said = predicted(capsys, model, folder, *(word.format(tmp_path / "b.parquet") for word in new))
    assert was == now
    assert not any("is now" in line for line in said)


def test_a_folder_without_images_and_a_model_without_a_head_are_errors(
    tmp_path: Path, folder: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vitlab.checkpoints import save

    (tmp_path / "empty").mkdir()
    assert "no image" in predicted(capsys, model, tmp_path / "empty", code=1)[1][0]
    save(small.checkpoint(None, classes=0), tmp_path / "headless.safetensors")
    assert any("no head" in line for line in predicted(capsys, tmp_path / "headless.safetensors", folder, code=1)[1])


def test_size_crop_and_labels_can_be_overridden(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual, _ = predicted(capsys, model, folder, "--json")
    for words in (("--image-size", "48"), ("--resize", "squash"), ("--resize-to", "64"), ("--interpolation", "bilinear")):
        other, _ = predicted(capsys, model, folder, "--json", *words)
        assert [line["top"] for line in lines(other)] != [line["top"] for line in lines(usual)]
        assert lines(other)[0]["checkpoint"] != lines(usual)[0]["checkpoint"]
    (tmp_path / "names.txt").write_text("\n".join(name.upper() for name in small.LABELS))
    named, _ = predicted(capsys, model, folder, "--json", "--labels", tmp_path / "names.txt")
    assert lines(named)[0]["top"][0]["label"] == lines(usual)[0]["top"][0]["label"].upper()
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    _, said = predicted(capsys, model, folder, "--labels", tmp_path / "few.txt", code=1)
    assert said[-2].startswith("error: ")


def test_names_with_control_characters_are_escaped_for_eyes(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "photo-000.jpg").rename(folder / "a\x1b[31m\n.jpg")
    out, _ = predicted(capsys, model, folder)
    assert "\x1b" not in out
    assert "\\n.jpg" in out


def test_a_backend_and_merging_are_chosen_and_said(model: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, _ = predicted(capsys, model, folder, "--json", "--backend", "torch")
    auto, _ = predicted(capsys, model, folder, "--json")
    assert lines(plain) == lines(auto)
    merged, stated = predicted(capsys, model, folder, "--json", "--merge", "2")
    assert any("2" in line and "merge" in line for line in stated)
    assert lines(merged)[0]["checkpoint"] != lines(plain)[0]["checkpoint"]
    _, stated = predicted(capsys, model, folder, "--backend", "torhc", code=2)
    assert stated[0].startswith("error: --backend: 'torhc' is not one of")


def test_the_bytes_of_an_image_on_stdin_are_an_image_and_lines_are_paths(model: Path, folder: Path, warm: Path) -> None:
    first = sorted(folder.iterdir())[0]
    words = [str(warm / "vitlab"), "predict", str(model), "-", "--json"]
    answers = [
        subprocess.run(words, input=given, capture_output=True, timeout=processes.LIMIT, check=True).stdout
        for given in (first.read_bytes(), f"{first}\n".encode())
    ]
    image, path = (json.loads(answer) for answer in answers)
    assert (image["name"], path["name"]) == ("-", str(first))
    assert image["top"] == path["top"]


def test_nothing_on_stdin_is_refused(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b""))))
    _, said = predicted(capsys, model, "-", code=1)
    assert "nothing on standard input" in said[-2]


def test_bytes_on_stdin_that_are_no_image_are_refused_once(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"\0\0\0\x18ftypheic" + bytes(range(256)) * 9
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    _, said = predicted(capsys, model, "-", code=1)
    assert "HEIC" in said[-2]
    assert not any("unreadable" in line for line in said)


def test_a_dicom_file_on_stdin_is_an_image(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pydicom")
    from tests.data.test_scientific import dicom

    content = dicom(np.arange(256, dtype=np.uint8).reshape(16, 16))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
    out, _ = predicted(capsys, model, "-", "--json")
    assert lines(out)[0]["name"] == "-"


def test_the_formats_are_a_hint_for_what_is_no_image_alone(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.jpg").write_bytes(b"<html>")
    _, said = predicted(capsys, model, tmp_path / "page.jpg", code=1)
    assert "JPEG, PNG" in said[-1]
    monkeypatch.setattr("sys.stdin", io.StringIO("gone.jpg"))
    _, said = predicted(capsys, model, "-", code=1)
    assert "gone.jpg does not exist" in said[-1]


def test_if_no_image_can_be_read_the_exit_code_says_so(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"no image")
    _, said = predicted(capsys, model, tmp_path, code=1)
    assert said[-2] == "error: none of 2 images could be read"
    assert any("a.jpg" in line for line in said)


def test_a_patch_size_predicts_as_the_checkpoint_loaded_at_it(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [found.top(1)[0] for found in Predictor(load(model, patch_size=(4, 8)))(sorted(folder.iterdir()))]
    out, notes = predicted(capsys, model, folder, "--json", "--top", "1", "--patch-size", "4x8")
    stated = [(line["top"][0]["label"], line["top"][0]["probability"]) for line in lines(out)]
    assert stated == [(label, pytest.approx(chance, abs=1e-5)) for label, chance in expected]
    assert any("pseudo-inverse" in line for line in notes)
