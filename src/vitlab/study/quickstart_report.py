"""The quickstart's report: that of the pre-trained run, with all runs compared in it."""

from __future__ import annotations

from pathlib import Path

from vitlab.data.care.progress import Tell, silent
from vitlab.inspect.report import Written, write_report
from vitlab.inspect.report_numbers import Comparison, percent
from vitlab.study.quickstart import SEEDS, SHOTS, Outcome, Row


def write_quickstart_report(outcome: Outcome, path: Path, *, tell: Tell = silent) -> Written:
    """Write the report as `path`."""
    return write_report(
        outcome.pretrained,
        path,
        comparison=_comparison(outcome),
        title="Quickstart: what pre-training is worth",
        cores=1,
        tell=tell,
    )


def _comparison(outcome: Outcome) -> Comparison:
    return Comparison(
        title="With what the letters taught it, and without",
        heads=("", f"{SHOTS} labels a digit", "all 1,347 labels"),
        rows=tuple(_cells(row) for row in outcome.rows),
        sentences=_sentences(outcome),
        courses=(("pre-trained", outcome.pretrained), ("from random values", outcome.random)),
    )


def _sentences(outcome: Outcome) -> tuple[str, ...]:
    fitted = min(row.fitted for row in outcome.rows if row.fitted is not None)
    few, whole = 100 * outcome.gain_few, 100 * outcome.gain_all
    what = f"""Shares of the 450 test digits told right. With {SHOTS} labels a digit: the mean of {len(SEEDS)} draws of the labels,
        and the deviation between them."""
    gain = f"""Pre-training is worth {few:.1f} points with {SHOTS} labels a digit and {whole:.1f} points with all of them. Both
        models are the same ViT, fine-tuned alike: as many updates, no augmentation, each at the best of the learning rates tried
        for it on training digits that were held out."""
    learned = "all" if fitted == 1 else f"at least {percent(fitted)}"
    end = f"""Both end with {learned} of the digits they learned from told right. Pre-training saw nothing but invented letters:
        among 100 kinds it tells {percent(outcome.letters)} of those it has not seen."""
    reference = """Digits of 8 x 8 pixels, all in the same place and of the same size, are easy for nearest neighbours: they are
        the plain reference."""
    return tuple(" ".join(words.split()) for words in (what, gain, end, reference))


def _cells(row: Row) -> tuple[str, str, str]:
    return row.name, f"{100 * row.few_mean:.1f} ± {100 * row.few_deviation:.1f} %", percent(row.all)
