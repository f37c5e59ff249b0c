"""`vitlab train --config RUN.json --out FOLDER`: exactly the run that a file says, such as another run's run.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from vitlab.cli.changes import Changes, Shared
from vitlab.cli.parse import one, parse
from vitlab.cli.training import Job, perform
from vitlab.config.overrides import with_overrides
from vitlab.config.run import RunConfig
from vitlab.config.serialize import from_text
from vitlab.errors import ConfigError


def file(word: str) -> str:
    """A file that is there."""
    if not Path(word).is_file():
        raise ValueError(f"no file called {word!r}")
    return word


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Train as a config file says: another run's run.json, or what `--dry-run --json` of pretrain or finetune calls `run`."""

    config: Annotated[str, one("FILE", file)]
    """the run as JSON"""

    out: Annotated[str, one("FOLDER", str)]
    """where the run is kept; an unfinished run there goes on"""

    changes: Shared = field(default_factory=Changes)
    """otherwise than the config has it"""

    json: bool = False
    """print one JSON object at the end"""


def run(words: Sequence[str]) -> int:
    """Train, and print where the model is."""
    arguments = parse(Arguments, words, verb="train")
    try:
        told = from_text(RunConfig, Path(arguments.config).read_text(encoding="utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{arguments.config}: {error.message}", hint=error.hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{arguments.config} cannot be read: {error}") from error
    made = with_overrides(told, arguments.changes.overrides())
    return perform(Job(run=made, out=arguments.out, changes=arguments.changes, json=arguments.json))
