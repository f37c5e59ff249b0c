"""The page of `vitlab data check --model`: likely wrong labels and outliers, each with its image. One file, without a network."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

from PIL import Image

from vitlab.config.data import DecodeLimits
from vitlab.data.dataset import Dataset
from vitlab.data.decode import decode
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
figure { margin: 0; overflow-wrap: anywhere } img { width: 160px; height: 160px; object-fit: contain; background: #8882 }
b { display: block } small { opacity: .75 } s { opacity: .75 }
"""


def write_page(path: Path, found: LabelCheck, dataset: Dataset, *, progress: ProgressCallback = silent) -> None:
    """Write the page; an image that cannot be shown is a grey square with its name."""
    suspects, outliers = found.suspects[:_MOST], found.outliers[:_MOST]
    total = len(suspects) + len(outliers)
    cards = []
    for place, one in enumerate(suspects):
        remark = f"{one.label_probability:.1%} against {one.suggested_probability:.1%}"
        words = f"<s>{_text(one.label)}</s><b>{_text(one.suggested)}?</b><small>{_text(one.name)}<br>{remark}</small>"
        cards.append(f"<figure>{_image(dataset, one.index, one.name)}{words}</figure>")
        progress("page", place + 1, total)
    far = []
    for place, odd in enumerate(outliers):
        words = f"<b>{_text(odd.label)}</b><small>{_text(odd.name)}<br>{odd.deviations:.1f} deviations from its neighbours</small>"
        far.append(f"<figure>{_image(dataset, odd.index, odd.name)}{words}</figure>")
        progress("page", len(suspects) + place + 1, total)
    data = _text(found.check.report.data)
    more = f" The first {_MOST:,} are shown." if len(found.suspects) > _MOST else ""
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Labels of {data}</title>
<style>{_STYLE}</style></head><body>
<h1>Labels of {data}</h1>
<p>{found.images:,} images; {100 * found.accuracy:.1f} % of their labels are predicted by a classifier fitted to the others.</p>
<h2>{len(found.suspects):,} labels are likely wrong</h2>
<p>The label is struck out, the class that is predicted stands below it; the most certain first.{more}</p>
<main>{"".join(cards)}</main>
<h2>{len(found.outliers):,} outliers</h2>
<p>Images that are far from their nearest neighbours, the farthest first: look whether they belong here.</p>
<main>{"".join(far)}</main>
</body></html>
"""
    content = text.encode()
    with replacing(path, needed=len(content)) as file:
        file.write(content)


def _text(words: str) -> str:
    return html.escape(printable(words))


def _image(dataset: Dataset, index: int, name: str) -> str:
    sample = dataset.read(index)
    try:
        pixels = (
            sample.content if not isinstance(sample.content, bytes) else decode(sample.content, name=name, limits=DecodeLimits())
        )
    except DataError:
        return "<img alt='cannot be read'>"
    thumb = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels[..., :3])
    thumb.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    thumb.convert("RGB").save(buffer, "JPEG", quality=80)
    return f'<img alt="{_text(name)}" src="data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
