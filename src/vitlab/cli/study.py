"""`vitlab study NAME ...`: several runs that together answer a question. One file for each study; this one chooses."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from vitlab.cli.talk import UsageError
from vitlab.errors import did_you_mean

# study -> (its line in `vitlab study --help`, its module). A study's module holds `Arguments` and `run(words)`, as a verb's does,
# and is imported only when the study is asked for.
STUDIES: dict[str, tuple[str, str]] = {
    "compare": ("models side by side: cost, published accuracy, speed here", "vitlab.cli.compare"),
    "transfer": ("a ViT, a hybrid, a ResNet, a ConvNeXt and an LSTM, with and without pre-training", "vitlab.cli.families"),
    "positions": ("Table 8 in small: every way of telling a ViT where a patch is", "vitlab.cli.positions"),
    "noisy-student": ("a teacher labels images, a student learns them with noise, and teaches next", "vitlab.cli.noisy_student"),
}


def run(words: Sequence[str]) -> int:
    """Do the study that the first word names."""
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if words[0] not in STUDIES:
        ways = "vitlab study --help lists what there is"
        if words[0].startswith("-"):
            raise UsageError(f"no option called {words[0]}", hint=ways)
        raise UsageError(f"no study called {words[0]!r}", hint=did_you_mean(words[0], list(STUDIES)) or ways)
    code: int = import_module(STUDIES[words[0]][1]).run(words[1:]) or 0
    return code


def _help() -> str:
    width = max(map(len, STUDIES))
    lines = [f"  {study:{width}}  {line}" for study, (line, _) in STUDIES.items()]
    return "\n".join(
        [
            "usage: vitlab study STUDY ...",
            "",
            "Several runs that together answer a question.",
            "",
            "studies:",
            *lines,
            "",
            "vitlab study STUDY --help says what a study takes.",
        ]
    )
