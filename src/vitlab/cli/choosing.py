"""From a command line to a complete run: which recipe, told what, and said why on stderr."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitlab.cli.changes import Changes
from vitlab.cli.talk import UsageError, note
from vitlab.config.data import SplitRule
from vitlab.config.overrides import DataFacts, RunFacts, StartFacts
from vitlab.config.run import RunConfig
from vitlab.recipes.reasons import reasons
from vitlab.recipes.table import recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A recipe by name, and why this one; what it is told beside the shared options."""

    name: str
    why: str
    data: DataFacts | None
    start: StartFacts | None = None
    model: str | None = None
    epochs: float | None = None
    preset: str | None = None
    rule: SplitRule | None = None


def chosen_run(choice: Choice, changes: Changes) -> RunConfig:
    """The run, after saying on stderr what was chosen and why."""
    from vitlab.training.distributed import is_main_process
    from vitlab.training.plan import this_machine

    facts = RunFacts(data=choice.data, start=choice.start, machine=this_machine())
    overrides = changes.overrides(model=choice.model, epochs=choice.epochs, preset=choice.preset, rule=choice.rule)
    run = recipe(choice.name, overrides, data=facts.data, start=facts.start, machine=facts.machine)
    if is_main_process():
        note(f"recipe: {choice.name}, {choice.why}")
        for sentence in reasons(run, facts, overrides):
            note(sentence)
    return run


def rule_of(val: float | None, test: float | None) -> SplitRule | None:
    """The rule that these shares make, None where neither is given."""
    if val is None and test is None:
        return None
    plain = SplitRule()
    return SplitRule(val=plain.val if val is None else val, test=plain.test if test is None else test)


def checkpoint_in(path: str) -> str:
    """The checkpoint that a path means: itself, or in a run's folder the model it kept, else its last checkpoint's."""
    folder = Path(path)
    if not (folder / "run.json").is_file():
        return path
    for place in (folder / "model.safetensors", folder / "last" / "model.safetensors", folder / "last"):  # the last may be in parts
        if place.exists():
            return str(place)
    raise UsageError(f"--from: the run in {path} has no checkpoint yet")
