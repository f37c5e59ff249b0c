"""The job files of docs/jobs are valid for Slurm, Kubernetes and KubeRay, and start commands that vitlab and torchrun know."""

from __future__ import annotations

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests import processes
from vitlab.cli.main import VERBS, main

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "docs" / "jobs"
SCHEMA = json.loads((Path(__file__).with_name("schemas") / "kubernetes.json").read_text())

SBATCH = {  # what sbatch accepts of each option that is used, from its manual
    "job-name": r"\S+",
    "nodes": r"\d+(-\d+)?",
    "ntasks-per-node": r"\d+",
    "gpus-per-node": r"(\w+:)?\d+",
    "cpus-per-task": r"\d+",
    "mem": r"\d+[KMGT]?",
    "time": r"(\d+-)?\d{1,2}:\d{2}(:\d{2})?|\d+",
    "signal": r"([BR]+:)?[A-Z0-9]+(@\d+)?",
    "requeue": r"",
    "open-mode": r"append|truncate",
    "output": r"\S+",
    "partition": r"\S+",
}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((JOBS / name).read_text()))


def sbatch_faults(text: str) -> list[str]:
    """What is wrong with the #SBATCH lines of a script."""
    lines = text.splitlines()
    commands = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    faults = []
    for number, line in enumerate(lines):
        if not line.startswith("#SBATCH"):
            continue
        if number > commands[0]:
            faults.append(f"{line}: after the first command, where sbatch does not read it")
        for word in shlex.split(line)[1:]:
            option, _, value = word.removeprefix("--").partition("=")
            if not word.startswith("--") or option not in SBATCH or not re.fullmatch(SBATCH[option], value):
                faults.append(f"{word} is no option of sbatch, or has a value that it refuses")
    return faults


def commands_of(name: str) -> list[list[str]]:
    """The commands that a job file starts, word by word."""
    if name.endswith(".sh"):
        joined = (JOBS / name).read_text().replace("\\\n", " ")
        return [shlex.split(line) for line in joined.splitlines() if "-m vitlab" in line]
    found = []
    for document in documents(name):
        if document["kind"] == "RayJob":
            found.append(shlex.split(document["spec"]["entrypoint"]))
        if document["kind"] == "Job":
            container = document["spec"]["template"]["spec"]["containers"][0]
            found.append([*container["command"], *container["args"]])
    return found


def test_the_slurm_script_is_bash_and_every_option_is_one_of_sbatch() -> None:
    processes.run(["bash", "-n", JOBS / "slurm.sh"])
    text = (JOBS / "slurm.sh").read_text()
    assert text.startswith("#!/bin/bash\n#SBATCH")
    assert sbatch_faults(text) == []


@pytest.mark.parametrize("line", ["#SBATCH --gpus-per-nodes=8", "#SBATCH --time=soon", "#SBATCH -N 4", "#SBATCH --requeue=yes"])
def test_a_wrong_option_of_sbatch_is_found(line: str) -> None:
    assert sbatch_faults(f"#!/bin/bash\n{line}\ntrue\n")
    assert sbatch_faults("#!/bin/bash\ntrue\n#SBATCH --nodes=4\n")


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kuberay.yaml"])
def test_the_documents_for_kubernetes_fit_their_schema(name: str) -> None:
    for document in documents(name):
        jsonschema.Draft202012Validator(SCHEMA).validate(document)


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kuberay.yaml"])
def test_a_field_that_kubernetes_does_not_know_is_found_at_every_depth(name: str) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    document = next(document for document in documents(name) if document["kind"] in ("Job", "RayJob"))
    free = {"metadata", "labels", "annotations", "rayStartParams", "limits", "requests", "selector", "nodeSelector"}
    tried = 0
    for path in places(document, free):
        changed = copy.deepcopy(document)
        inner: Any = changed
        for key in path:
            inner = inner[key]
        inner["replicaz"] = 1
        assert not validator.is_valid(changed), path
        tried += 1
    assert tried > 8


def places(value: Any, free: set[str], path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all mappings, but for those that hold names of the user's own."""
    if isinstance(value, dict):
        below = [found for key, item in value.items() if key not in free for found in places(item, free, (*path, key))]
        return [path, *below]
    if isinstance(value, list):
        return [found for number, item in enumerate(value) for found in places(item, free, (*path, number))]
    return []


@pytest.mark.parametrize("name", ["slurm.sh", "kubernetes.yaml", "kuberay.yaml"])
def test_a_job_starts_a_command_that_torchrun_and_vitlab_know(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (words,) = commands_of(name)
    if "torchrun" in words:
        launched = words[words.index("torchrun") + 1 :]
        module = launched.index("-m")
        options = get_args_parser().parse_args([*launched[:module], "-m", launched[module + 1]])
        assert options.training_script == "vitlab"
        assert options.max_restarts > 0
        verb, *own = launched[module + 2 :]
    else:
        assert words[0] == "vitlab"
        verb, *own = words[1:]
    assert verb in VERBS
    assert main([verb, "--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    assert {word for word in own if word.startswith("--")} <= known


def test_job_files_are_short_and_name_no_machine() -> None:
    for path in JOBS.iterdir():
        text = path.read_text()
        assert len(text.splitlines()) < 70
        assert not re.search(r"/(?:home|tmp|mnt)/|\b\d+\.\d+\.\d+\.\d+\b|\.com\b(?!/gpu)", text)
