"""`vitlab VERB`: the table of verbs, and what every verb's end means to the shell.

Exit codes: 0 done; 1 a VitlabError, told in `error:` and `hint:` lines; 2 a command line that was not understood;
130 Ctrl-C; 141 the reader of our output left (`| head`), as for any program that a closed pipe ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vitlab import __version__
from vitlab.cli import talk
from vitlab.errors import VitlabError

# verb -> (its line in `vitlab --help`, its module). A verb's module holds `Arguments` and `run(words)`, and is imported
# only when the verb is called, so that help and version answer at once.
VERBS: dict[str, tuple[str, str]] = {
    "quickstart": ("build a small Vision Transformer, say what it is, run it once", "vitlab.cli.quickstart"),
    "describe": ("say what a variant or a checkpoint is: parameters, MACs, tokens, ...", "vitlab.cli.describe"),
    "convert": ("write a checkpoint in another format, bit for bit", "vitlab.cli.convert"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` unless given) and return its exit code."""
    try:
        code = _call(sys.argv[1:] if words is None else words)
        _flush()
        return code
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
        if not _reader_left():
            raise  # some other pipe broke, and that is a bug to be seen
        return 141


def _call(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    verb = words[0]
    if verb == "--version":
        print(f"vitlab {__version__}")
        return 0
    if verb not in VERBS:
        raise _unknown(verb)
    try:
        import_module(VERBS[verb][1]).run(words[1:])
    except SystemExit as leaving:  # `vitlab VERB --help` ends the parser this way
        if leaving.code not in (None, 0):
            raise
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
    from vitlab.config.check import did_you_mean  # only a mistake pays for this import

    hint = did_you_mean(word, list(VERBS)) or "vitlab --help lists the verbs"
    if word.startswith("-"):
        return talk.UsageError(f"no option called {word}", hint="vitlab --help lists the verbs")
    return talk.UsageError(f"no verb called {word!r}", hint=hint)


def _flush() -> None:
    """Write out what was printed now, where a failure can still be told."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as fault:
        _discard(sys.stdout.fileno())
        raise VitlabError(f"cannot write to standard output: {fault.strerror}") from fault


def _reader_left() -> bool:
    """Whether our own output is the broken pipe; if so, nothing more goes there, not even as the interpreter ends."""
    left = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _discard(stream.fileno())
            left = True
    return left


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
