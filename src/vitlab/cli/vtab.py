"""`vitlab evaluate CHECKPOINT --vtab FOLDER`: the 19 tasks beside the paper's Table 9."""

from __future__ import annotations

from vitlab.cli.progress import bar
from vitlab.cli.table import print_json
from vitlab.cli.talk import UsageError, note
from vitlab.cli.transfer import Judging, TransferOptions
from vitlab.config.evaluation import VtabConfig
from vitlab.config.serialize import Json, to_json


def run_vtab(arguments: TransferOptions, judging: Judging) -> None:
    """Do the tasks whose data is there, and print what was reached, what is missing and what the paper has."""
    if judging.data is not None:
        raise UsageError("--vtab FOLDER is in place of DATA", hint="vitlab evaluate CHECKPOINT --vtab FOLDER")
    for option, given in (
        ("--fewshot", arguments.fewshot),
        ("--knn", arguments.knn),
        ("--probe", arguments.probe),
        ("--split", judging.split is not None),
        ("--label-column", judging.label_column is not None),
    ):
        if given:
            raise UsageError(f"{option} is for DATA, and --vtab has a protocol of its own")
    from pathlib import Path

    from vitlab.evaluation.vtab import vtab, with_vtab_preprocess

    assert arguments.vtab is not None
    config = VtabConfig(test=arguments.vtab_test)
    checkpoint = arguments.open()
    if arguments.resize is None:
        checkpoint = with_vtab_preprocess(checkpoint)
    with bar() as tell:
        found = vtab(
            checkpoint,
            Path(arguments.vtab),
            config,
            splits=None if arguments.vtab_splits is None else Path(arguments.vtab_splits),
            reading=judging.config,
            cache=not arguments.no_cache,
            progress=tell,
        )
    if judging.json:
        opened: dict[str, Json] = {"checkpoint": arguments.checkpoint, "vtab": arguments.vtab}
        print_json(opened | found.to_json() | {"preprocess": to_json(checkpoint.preprocess), "notes": list(checkpoint.notes)})
        return
    for line in found.notes():
        note(f"note: {line}")
    if config.test is not None:
        note(f"note: evaluated on at most {config.test:,} test images of each task")
    for result in found.results:
        for failure in result.failures:
            note(f"unreadable: {result.task.name}: {failure}")
    print(found)
