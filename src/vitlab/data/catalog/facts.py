"""A set of the catalogue as the properties one asks for."""

from __future__ import annotations

from vitlab.config.serialize import Json, to_json
from vitlab.data.catalog.sets import PublicSet


def set_facts(entry: PublicSet, *, json: bool) -> dict[str, Json]:
    """All that is known of a set; as text its files are a line each and what is not there is left out."""
    facts: dict[str, Json] = {
        "name": entry.name,
        "title": entry.title,
        "images": dict(entry.counts),
        "classes": entry.classes,
        "pixels": entry.pixels,
        "bytes": entry.size,
        "page": entry.page,
        "licence": entry.licence,
        "citation": entry.citation,
        "split": entry.split,
        "data": entry.spelling,
        "by_hand": entry.by_hand,
        "remarks": list(entry.remarks),
    }
    if json:
        return facts | {"files": to_json(entry.files)}
    facts["data"] = "not read yet" if entry.spelling is None else entry.spelling.replace("{folder}", f"data/{entry.name}")
    facts["remarks"] = [remark.replace("{folder}", f"data/{entry.name}") for remark in entry.remarks]
    for number, file in enumerate(entry.files, start=1):
        size = "size not known" if file.size is None else f"{file.size:,} bytes"
        where = file.addresses[0] if file.addresses else file.name
        sum_ = f"{file.checksum} ({file.said_by})" if file.checksum else f"no checksum: {file.said_by}"
        facts[f"file_{number}"] = f"{where}  {size}  {sum_}"
    return {key: value for key, value in facts.items() if value not in (None, [], {})}
