"""Which pictures a model is judged by when nobody says: those it was not trained on, as far as can be known."""

from __future__ import annotations

from pathlib import Path

from vitlab.checkpoint.contents import Checkpoint
from vitlab.config.source import Split, SplitRule
from vitlab.config.text import Json, from_json
from vitlab.data.generated import GeneratedSource
from vitlab.data.listed import PARTS, UNDECLARED, ListedSource
from vitlab.data.source import Source, open_source
from vitlab.errors import ConfigError


def open_part(
    spec: str, split: Split | None, checkpoint: Checkpoint, *, label_column: str | None = None
) -> tuple[Source, tuple[str, ...]]:
    """The pictures to evaluate by, and what was decided, a sentence each.

    Where `split` is None: the declared `test`, else the declared `val`. Data that declares no part is taken whole, unless the
    checkpoint was trained on it: then its held-out `test` is taken, by the rule of that training.
    """
    rule = trained_on(spec, checkpoint)
    if split is not None:
        source = open_source(spec, split=split, rule=rule, label_column=label_column)
        return source, _notes(source)
    whole = open_source(spec, split="all", label_column=label_column)
    if isinstance(whole, GeneratedSource):
        return open_source(spec, split="test", rule=rule), ("evaluated by the test part",)
    assert isinstance(whole, ListedSource)
    declared = {PARTS[part] for part in set(whole.parts.tolist()) - {UNDECLARED}}
    chosen: Split
    if declared:
        chosen = "test" if "test" in declared else "val" if "val" in declared else "all"
        note = (
            f"evaluated by the {chosen} part" if chosen != "all" else "the data declares a train part alone: all of it is evaluated"
        )
    elif rule is not None:
        chosen, note = "test", "the model was trained on this data: evaluated by the test part, which training never sees"
    else:
        chosen, note = "all", f"the data declares no parts: all {len(whole):,} pictures are evaluated"
    if chosen == "test" and whole.labels and _unlabelled(whole, chosen) and "val" in declared:
        chosen, note = "val", "the test part has no labels: evaluated by the val part"
    source = whole if chosen == "all" else open_source(spec, split=chosen, rule=rule, label_column=label_column)
    return source, (*_notes(source), note)


def _notes(source: Source) -> tuple[str, ...]:
    return source.notes if isinstance(source, ListedSource) else ()


def _unlabelled(whole: ListedSource, part: str) -> bool:
    return any(whole.label(int(index)) is None for index in (whole.parts == PARTS.index(part)).nonzero()[0][:1])


def trained_on(spec: str, checkpoint: Checkpoint) -> SplitRule | None:
    """The rule by which the run that made the checkpoint divided this same data, or None where it was other data."""
    data = (checkpoint.recipe or {}).get("data")
    if not isinstance(data, dict) or not _same(spec, data.get("source")):
        return None
    try:
        rule = from_json(SplitRule, data.get("rule", {}), where="recipe.data.rule")
    except ConfigError:
        return SplitRule()
    assert isinstance(rule, SplitRule)
    return rule


def _same(spec: str, other: Json) -> bool:
    return isinstance(other, str) and (spec == other or Path(spec).resolve() == Path(other).resolve())
