"""`vitlab VERB ...`: each verb is a function of `vitlab.api`, called with the options of the command line; its result is printed.

Exit codes: 0 success; 1 a VitlabError, printed as `error:` and `hint:` lines; 2 wrong usage; 130 Ctrl-C; 141 the reader of the
output closed the pipe (`| head`); 143 SIGTERM stopped a run, which saves a checkpoint.
"""

from __future__ import annotations

import errno
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from vitlab import __version__, api
from vitlab.cli import console
from vitlab.errors import OutOfMemoryError, UsageError, VitlabError, did_you_mean
from vitlab.io.machine import is_out_of_memory

VERBS: dict[str, Callable[..., Any]] = {
    "quickstart": api.quickstart,
    "models": api.list_models,
    "describe": api.describe,
    "predict": api.predict,
    "finetune": api.finetune,
    "pretrain": api.pretrain,
    "train": api.train,
    "watch": api.watch,
    "evaluate": api.evaluate,
    "inspect": api.inspect,
    "explore": api.explore,
    "report": api.report,
    "convert": api.convert,
    "export": api.export,
    "push": api.push,
    "bench": api.bench,
    "serve": api.serve,
    "embed": api.embed,
    "similar": api.similar,
    "paper": api.paper,
    "plan": api.plan,
    "data list": api.list_data,
    "data fetch": api.fetch_data,
    "data check": api.check_data,
    "data pack": api.pack_data,
    "data show": api.show_data,
    "study compare": api.study_compare,
    "study scaling": api.study_scaling,
    "study shape": api.study_shape,
    "study transfer": api.study_transfer,
    "study positions": api.study_positions,
    "study optimizer": api.study_optimizer,
    "study self-supervision": api.study_self_supervision,
    "study noisy-student": api.study_noisy_student,
}
GROUPS = {
    "data": "List, download, check, pack and show datasets",
    "study": "Run a study",
}
# Error numbers of the disk, its files and the machine, not of vitlab.
_SURROUNDINGS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.EISDIR}
    | {errno.ENAMETOOLONG, errno.ELOOP, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
)
_ENDINGS = {"interrupted": 130, "terminated": 143}


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` unless given) and return its exit code."""
    console.accept_any_text()
    if words is None:
        _share_cores()
    try:
        code = _call(list(sys.argv[1:] if words is None else words))
        sys.stdout.flush()  # here, where an error can still be reported
    except VitlabError as fault:
        if fault.result is not None:
            console.show(fault.result, as_json="--json" in (sys.argv if words is None else words))
        _report(fault, list(sys.argv[1:] if words is None else words))
        return 2 if isinstance(fault, UsageError) else 1
    except KeyboardInterrupt:
        console.note("interrupted")
        return 130
    except BrokenPipeError:
        if not console.reader_left():
            raise  # another pipe broke: a bug
        return 141
    except OSError as fault:
        if fault.errno not in _SURROUNDINGS:
            raise
        console.give_up()
        console.error(_no_memory(fault) if is_out_of_memory(fault) else _no_access(fault))
        return 1
    except Exception as fault:
        if not is_out_of_memory(fault):
            raise
        console.error(_no_memory(fault))
        return 1
    return code


def _share_cores() -> None:
    """Threads that wait for work give their core away soon. By default they hold it for a millisecond, time and again: beside other
    programs a small run took 2 to 27 times as long, and on an idle machine it is no faster (docs/log.md)."""
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = "10000"  # read when torch is imported


def _report(fault: VitlabError, words: list[str]) -> None:
    """Print the error in the words of the command line."""
    verb = next((verb for verb in (" ".join(words[:2]), *words[:1]) if verb in VERBS), None)
    if verb is None:
        console.error(fault)
        return
    options = [name for name, one in inspect.signature(VERBS[verb]).parameters.items() if one.kind is one.KEYWORD_ONLY]
    said = {word.partition("=")[0].replace("_", "-") for word in words}
    given = [name for name in options if f"--{console.NAMES.get(name, name).replace('_', '-')}" in said]
    console.error(fault, options=options, given=given, ways=f"vitlab {verb} --help lists what it takes")


def _no_access(fault: OSError) -> VitlabError:
    if fault.errno == errno.ENOSPC:
        return VitlabError(f"cannot write {fault.filename or 'the output'}: no space left on the device")
    return VitlabError(f"cannot read or write {fault.filename or 'a file'}: {os.strerror(fault.errno or 0)}")


def _no_memory(fault: Exception) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"out of memory: {str(fault).partition(chr(10))[0] or 'no more can be allocated'}",
        hint="use a smaller model, image size or batch size, or a machine with more memory",
    )


def _call(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if words[0] == "--version":
        print(f"vitlab {__version__}")
        return 0
    if words[0] in GROUPS:
        if len(words) == 1 or words[1] in ("-h", "--help"):
            print(_help(words[0]))
            return 0
        words = [" ".join(words[:2]), *words[2:]]
    if words[0] not in VERBS:
        raise _unknown(words[0])
    try:
        return _run(words[0], words[1:])
    except SystemExit as leaving:  # `vitlab VERB --help` ends the parser this way, SIGTERM a study
        if leaving.code in (None, 0):
            return 0
        return int(leaving.code)


def _run(verb: str, words: list[str]) -> int:
    """Call the verb's function and print its result; the exit code."""
    from vitlab.cli.options import parse

    function = VERBS[verb]
    with console.logged():
        arguments, as_json = parse(function, words, verb=verb, notice=console.note)
        if verb == "predict":
            _to_stdout(arguments, as_json)
        if verb == "inspect" and arguments["out"] is None:
            raise UsageError("missing --out", hint="vitlab inspect MODEL IMAGE... --figure rollout --out figures")
        beside = verb == "predict" and arguments["out"] is sys.stdout and sys.stdout.isatty()  # results scroll by
        takes = "progress" in function.__annotations__ and not beside
        with console.bar(of_bytes=verb == "data fetch") if takes else nullcontext() as progress:
            result = function(**arguments, **({"progress": progress} if takes else {}))
        if verb == "train":
            result = result.run_to_end()
    # `watch` only shows how another command ended.
    code = 0 if verb == "watch" else _ENDINGS.get(getattr(result, "reason", None) or "", 0)
    if code == 0 and verb != "predict" and os.environ.get("RANK", "0") == "0":
        console.show(result, as_json=as_json)
    return code


def _to_stdout(arguments: dict[str, Any], as_json: bool) -> None:
    """Write results of `predict` to standard output as they come; `-` reads paths, or one image, from standard input."""
    images = arguments["images"]
    if not images:
        raise UsageError("missing IMAGE...", hint="vitlab predict --help lists what it takes")
    if "-" in images:
        if len(images) > 1:
            raise UsageError("- (a list or an image on stdin) cannot be combined with other images")
        from vitlab.inference.writing import images_on

        arguments["images"] = images_on(sys.stdin)
    if as_json:
        if arguments["format"] not in (None, "jsonl"):
            raise UsageError(f"--json and --format {arguments['format']} contradict each other", hint="leave one out")
        arguments["format"] = "jsonl"
    if arguments["out"] is None:
        if arguments["resume"]:
            raise UsageError("--resume continues the JSON lines of --out", hint="use --out results.jsonl --resume")
        arguments["out"] = sys.stdout


def _help(group: str | None = None) -> str:
    chosen = {
        verb.removeprefix(f"{group} "): console.summary(run) for verb, run in VERBS.items() if verb.partition(" ")[1] == "" or group
    }
    if group is not None:
        chosen = {verb: text for verb, text in chosen.items() if f"{group} {verb}" in VERBS}
        head = [f"usage: vitlab {group} VERB ...", "", f"{GROUPS[group]}."]
    else:
        chosen |= {name: f"{text}: {', '.join(_verbs_of(name))}" for name, text in GROUPS.items()}
        head = [
            "usage: vitlab VERB ...",
            "",
            "The Vision Transformer: models, training, evaluation, interpretation, conversion, inference.",
        ]
    width = max(map(len, chosen))
    lines = [f"  {verb:{width}}  {text}" for verb, text in chosen.items()]
    last = f"vitlab {f'{group} ' if group else ''}VERB --help lists the options of a verb."
    return "\n".join([*head, "", "verbs:", *lines, "", last])


def _verbs_of(group: str) -> list[str]:
    return [verb.partition(" ")[2] for verb in VERBS if verb.startswith(f"{group} ")]


def _unknown(word: str) -> UsageError:
    group, _, name = word.partition(" ")
    ways = f"vitlab {group + ' ' if name else ''}--help lists the verbs"
    asked = name or word
    if asked.startswith("-"):
        return UsageError(f"no option called {asked}", hint=ways)
    known = _verbs_of(group) if name else [*(verb for verb in VERBS if " " not in verb), *GROUPS]
    where = f"{group} has no verb" if name else "no verb"
    return UsageError(f"{where} called {asked!r}", hint=did_you_mean(asked, known) or ways)
