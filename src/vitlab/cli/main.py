"""`vitlab VERB`: the table of verbs, and what every verb's end means to the shell.

Exit codes: 0 done; 1 a VitlabError, told in `error:` and `hint:` lines; 2 a command line that was not understood;
130 Ctrl-C; 141 the reader of our output left (`| head`), as for any program that a closed pipe ends; 143 SIGTERM ended a run,
which keeps a checkpoint.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from importlib import import_module

from vitlab import __version__
from vitlab.cli import output, talk
from vitlab.errors import VitlabError

# verb -> (its line in `vitlab --help`, its module). A verb's module holds `run(words)` and `Arguments` (or, as that of data, a
# table ACTIONS with several, or, as that of study, a table STUDIES of further modules), and is imported only when the verb is
# called, so that help and version answer at once.
VERBS: dict[str, tuple[str, str]] = {
    "quickstart": ("pre-train, fine-tune and compare a small ViT in minutes, and write a report", "vitlab.cli.quickstart"),
    "pretrain": ("train a model from random values by a recipe", "vitlab.cli.pretrain"),
    "finetune": ("make a classifier of your own images out of a checkpoint", "vitlab.cli.finetune"),
    "train": ("train exactly as a config file says", "vitlab.cli.train"),
    "describe": ("say what a variant or a checkpoint is: parameters, MACs, tokens, ...", "vitlab.cli.describe"),
    "convert": ("write a checkpoint in another format, bit for bit", "vitlab.cli.convert"),
    "export": ("write a model for ONNX Runtime, OpenVINO or torch.export, and check it", "vitlab.cli.export"),
    "bench": ("measure how fast a model is here, in each runtime", "vitlab.cli.bench"),
    "data": ("list, fetch, check, pack and show data sets", "vitlab.cli.data"),
    "predict": ("say what is in images, one or a million", "vitlab.cli.predict"),
    "evaluate": ("judge a checkpoint by labelled images, every one counted", "vitlab.cli.evaluate"),
    "inspect": ("draw a model's inside: filters, positions, attention, rollout, ...", "vitlab.cli.inspect"),
    "report": ("write all that is known of a run as one HTML file", "vitlab.cli.report"),
    "embed": ("write the features of images, for search and clustering", "vitlab.cli.embed"),
    "similar": ("find the images that are most like one", "vitlab.cli.similar"),
    "study": ("several runs that together answer a question: noisy-student, ...", "vitlab.cli.study"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` unless given) and return its exit code."""
    try:
        code = _call(sys.argv[1:] if words is None else words)
        sys.stdout.flush()  # here, where a failure can still be told
    except talk.UsageError as fault:
        talk.error(fault)
        return 2
    except VitlabError as fault:
        talk.error(fault)
        return 1
    except KeyboardInterrupt:
        talk.note("interrupted")
        return 130
    except BrokenPipeError:
        if not output.reader_left():
            raise  # some other pipe broke, and that is a bug to be seen
        return 141
    except OSError as fault:
        if fault.errno != errno.ENOSPC:
            raise
        output.give_up()
        talk.error(VitlabError(f"cannot write {fault.filename or 'the output'}: no space left on the device"))
        return 1
    return code


def _call(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_help())
    elif words[0] == "--version":
        print(f"vitlab {__version__}")
    elif words[0] in VERBS:
        try:
            return import_module(VERBS[words[0]][1]).run(words[1:]) or 0
        except SystemExit as leaving:  # `vitlab VERB --help` ends the parser this way
            if leaving.code not in (None, 0):
                raise
    else:
        raise _unknown(words[0])
    return 0


def _help() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:{width}}  {line}" for verb, (line, _) in VERBS.items()]
    return "\n".join(
        [
            "usage: vitlab VERB ...",
            "",
            "The Vision Transformer, whole: models, everybody's checkpoints, one command line.",
            "",
            "verbs:",
            *lines,
            "",
            "vitlab VERB --help says what a verb takes; vitlab --version says which vitlab this is.",
        ]
    )


def _unknown(word: str) -> talk.UsageError:
    from vitlab.errors import did_you_mean

    ways = "vitlab --help lists the verbs"
    if word.startswith("-"):
        return talk.UsageError(f"no option called {word}", hint=ways)
    return talk.UsageError(f"no verb called {word!r}", hint=did_you_mean(word, list(VERBS)) or ways)
