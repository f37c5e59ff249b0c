"""What the talks explain: each experiment has the property it shows, in small; `vitlab paper` runs, prints and draws it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from vitlab.cli.main import main
from vitlab.interpretation.drawing import Style
from vitlab.models.vit import patchify
from vitlab.studies import explained, paper
from vitlab.studies.explained import Explained

LIVE = [item for item in paper.ITEMS if item.live]


def drawn(found: Explained, tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_bytes(found.draw(Style()))
    with Image.open(path) as image:
        assert image.width > 300


def test_a_convolution_commutes_with_shifts_and_a_vit_only_without_positions_and_by_whole_patches(tmp_path: Path) -> None:
    found = explained.shift_equivariance(most=8)
    by = {about["shift"]: dict(numbers) for about, numbers in found.rows}
    convolution, strided, none, placed = by["0 px"]
    assert all(value == pytest.approx(0, abs=1e-6) for value in by["0 px"].values())
    for shift in range(1, 9):
        errors: Any = by[f"{shift} px"]
        assert errors[convolution] < 1e-5
        assert errors[placed] > 0.05
        assert (errors[strided] < 1e-5) == (errors[none] < 1e-5) == (shift == 8)
    drawn(found, tmp_path)


def test_patches_move_whole_and_none_is_lost() -> None:
    images_BCHW = torch.arange(2 * 64.0).view(2, 1, 8, 8)
    order_BN = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(seed)) for seed in range(2)])
    moved_BCHW = explained._in_other_order(images_BCHW, order_BN, 2)
    before_BNV, after_BNV = patchify(images_BCHW, (2, 2)), patchify(moved_BCHW, (2, 2))
    for image in range(2):
        assert torch.equal(after_BNV[image], before_BNV[image, order_BN[image]])


def test_without_positions_shuffling_changes_nothing_but_rounding(tmp_path: Path) -> None:
    found = explained.shuffled_patches(steps=12)
    numbers = {about["model"]: dict(row) for about, row in found.rows}
    change = "largest change of a logit"
    none: dict[str, Any] = numbers["ViT without positions"]
    placed: dict[str, Any] = numbers["ViT with positions"]
    assert none[change] < 1e-4 < placed[change]
    assert none["as they are, %"] == none["patches shuffled, %"]
    drawn(found, tmp_path)


def test_similarity_of_positions_is_looked_at_before_during_and_after_training_and_for_a_larger_grid(tmp_path: Path) -> None:
    found = explained.positions_over_time(moments=(0, 3, 6), larger=16)
    assert [about["steps"] for about, _ in found.rows] == ["0", "3", "6", "6, grid 16 x 16"]
    begun, grown = found.rows[0][1], found.rows[-1][1]
    assert abs(begun["cosine, neighbours"] or 0) < 0.1  # drawn independently
    assert (grown["cosine, neighbours"] or 0) > 0.5  # interpolated positions resemble their neighbours
    drawn(found, tmp_path)


def test_a_cnn_depends_on_nearer_pixels_than_a_vit_and_only_a_vit_attends(tmp_path: Path) -> None:
    found = explained.receptive_field(names=("ViT-Ti/16", "BiT-R50x1"), side=64)
    first = {about["model"]: dict(row) for about, row in found.rows if about["layer or stage"] == "0"}
    assert (first["BiT-R50x1"]["depends on pixels at, px"] or 0) < (first["ViT-Ti/16"]["depends on pixels at, px"] or 0)
    assert first["BiT-R50x1"]["attends to patches at, px"] is None
    drawn(found, tmp_path)


def test_the_gradient_vanishes_in_an_rnn_faster_than_in_an_lstm_and_not_in_attention(tmp_path: Path) -> None:
    found = explained.gradients_through_time(length=40, width=16, seeds=1)
    last: Any = dict(found.rows[-1][1])
    assert 0 < last["RNN"] < 0.1 * last["LSTM"]
    assert last["LSTM"] < 0.1 < last["attention"] < 10
    drawn(found, tmp_path)


def test_time_is_measured_for_each_length_and_number_of_cores_and_the_threads_are_restored(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    found = explained.sequence_length(lengths=(4, 8), cores=(1, 2), width=16, repeats=1)
    assert torch.get_num_threads() == before
    for (about, row), length in zip(found.rows, (4, 8), strict=True):
        assert about["tokens"] == str(length)
        assert {"LSTM, 1 core, ms", "LSTM, 2 cores, ms", "attention, 1 core, ms", "attention, 2 cores, ms"} <= set(row)
        assert row["LSTM: steps in turn"] == 2 * length
    drawn(found, tmp_path)


def test_sentences_of_the_talk_are_held_out_with_their_pair_of_nouns() -> None:
    train, test = explained.sentences()
    spoken = {tuple(explained._numbers(sentence)) for sentence in explained.SENTENCES}
    assert spoken <= set(map(tuple, test.words_BN.tolist()))
    pairs = {(row[1], row[5]) for row in train.words_BN.tolist()}
    assert not pairs & {(row[1], row[5]) for row in test.words_BN.tolist()}
    meant = {tuple(row): int(answer) for row, answer in zip(test.words_BN.tolist(), test.meant_B, strict=True)}
    tired, wide = (meant[tuple(explained._numbers(sentence))] for sentence in explained.SENTENCES)
    assert (explained._WORDS[tired], explained._WORDS[wide]) == ("animal", "street")


def test_the_words_experiment_measures_what_it_attends_to(tmp_path: Path) -> None:
    found = explained.words(steps=4)
    assert len(found.rows) == 2
    for _, row in found.rows:
        assert all(0 <= (value or 0) <= 1 for value in row.values())
    drawn(found, tmp_path)


def small(progress: object) -> Explained:
    return explained.gradients_through_time(length=12, width=8, seeds=1)


@pytest.mark.parametrize("item", LIVE, ids=lambda item: item.name)
def test_a_live_item_has_an_experiment(item: paper.Item) -> None:
    assert item.state == "run when asked"
    assert callable(paper._experiment(item.name))


def test_a_live_item_prints_its_finding_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(paper, "_experiment", lambda name: small)
    path = tmp_path / "gradients.png"
    assert main(["paper", "gradients-through-time", "--figure", str(path)]) == 0
    out = capsys.readouterr().out
    assert "finding" in out
    assert "attention" in out
    assert "computed:" not in out  # all of it was run just now
    assert path.read_bytes().startswith(b"\x89PNG")
    assert main(["paper", "gradients-through-time", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finding"].startswith("the first of 12 inputs")
    assert main(["paper", "gradients-through-time", "--figure", str(path)]) == 1  # it exists: refused before anything runs
