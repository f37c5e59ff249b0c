"""The page of `vitlab data check --model`: likely wrong labels and outliers, each with its image. One file, without a network."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

from PIL import Image

from vitlab.config.data import DecodeLimits
from vitlab.data.dataset import Dataset
from vitlab.data.decode import as_rgb, decode
from vitlab.errors import DataError
from vitlab.evaluation.label_errors import LabelCheck
from vitlab.io.atomic import replacing
from vitlab.io.names import printable
from vitlab.io.progress import ProgressCallback, silent

_SIDE = 160  # pixels of a thumbnail
_MOST = 500  # images of a kind
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 1rem }
h1 { overflow-wrap: anywhere } figure { margin: 0; overflow-wrap: anywhere }
img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: #8882; margin-bottom: .4rem }
b { display: block } small { opacity: .75 } s { opacity: .75 }
"""


def write_page(path: Path, found: LabelCheck, dataset: Dataset, *, progress: ProgressCallback = silent) -> None:
    """Write the page; an image that cannot be shown is a grey square with its name."""
    suspects, outliers = found.suspects[:_MOST], found.outliers[:_MOST]
    total, data = len(suspects) + len(outliers), found.check.report.data
    cards = []
    for place, one in enumerate(suspects):
        label, suggested = (
            f"<small>{100 * value:.1f}&nbsp;%</small>" for value in (one.label_probability, one.suggested_probability)
        )
        classes = f"<s>{_text(one.label)}</s> {label}<b>{_text(one.suggested)}? {suggested}</b>"
        words = f"{classes}<small>{_place(one.name, data)}</small>"
        cards.append(f"<figure>{_image(dataset, one.index, one.name)}{words}</figure>")
        progress("page", place + 1, total)
    far = []
    for place, odd in enumerate(outliers):
        remark = f"{odd.deviations:.1f} deviations from its neighbours"
        words = f"<b>{_text(odd.label)}</b><small>{remark}<br>{_place(odd.name, data)}</small>"
        far.append(f"<figure>{_image(dataset, odd.index, odd.name)}{words}</figure>")
        progress("page", len(suspects) + place + 1, total)
    title = _text(data)
    count = len(found.suspects)
    wrong = "1 label is likely wrong" if count == 1 else f"{count:,} labels are likely wrong"
    more = f" The first {_MOST:,} are shown." if len(found.suspects) > _MOST else ""
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Labels of {title}</title>
<style>{_STYLE}</style></head><body>
<h1>Labels of {title}</h1>
<p>{found.images:,} images; {100 * found.accuracy:.1f} % of their labels are predicted by a classifier fitted to the others.</p>
<h2>{wrong}</h2>
<p>The label is struck out; the suggestion below it is the class that a classifier predicts. Both have their probability. The most
certain come first.{more}</p>
<main>{"".join(cards)}</main>
<h2>{len(found.outliers):,} {"outlier" if len(found.outliers) == 1 else "outliers"}</h2>
<p>Images that are far from their nearest neighbours, the farthest first: look whether they belong here.</p>
<main>{"".join(far)}</main>
</body></html>
"""
    content = text.encode()
    with replacing(path, needed=len(content)) as file:
        file.write(content)


def _text(words: str) -> str:
    return html.escape(printable(words))


def _place(name: str, data: str) -> str:
    """Where an image is inside the data; the page's title says where the data is."""
    return _text(name.removeprefix(data).lstrip("/") or name)


def _image(dataset: Dataset, index: int, name: str) -> str:
    sample = dataset.read(index)
    try:
        content = sample.content
        pixels = (
            decode(content, name=name, limits=DecodeLimits(), channels=None, scale="percentile")
            if isinstance(content, bytes)
            else content
        )
    except DataError:
        return "<img alt='cannot be read'>"
    thumb = Image.fromarray(as_rgb(pixels))
    thumb.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    thumb.convert("RGB").save(buffer, "JPEG", quality=80)
    return f'<img alt="{_text(name)}" src="data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
