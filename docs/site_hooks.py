"""Hooks of the documentation site (mkdocs.yml): the repository's own links work on the site as they do on a code host.

README.md and its neighbours become pages, so that nothing is written twice. A link that leaves `docs/` leads to such a page or to
a copy of the file it names.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

# Path in the repository -> path on the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
# What remains of a list or table that Python-Markdown did not recognise.
_LOST_LIST = re.compile(r"^(?:<p>)?(?:[-*] |\d+\. |\|).*", re.MULTILINE)
_PRE = re.compile(r"<pre.*?</pre>", re.DOTALL)
_log = logging.getLogger("mkdocs.hooks.vitlab")
_FENCE = re.compile(r"^ *(`{3,})")
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root, and the files outside `docs/` that any page links to."""
    root = _root(config)
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(root / source).read_text(encoding="utf-8")))
    linked = {
        target
        for file in files.documentation_pages()
        for target in _targets(file.content_string, _source(file.src_uri))
        if _published(root, target)
    }
    for target in sorted(linked):
        files.append(File.generated(config, f"files/{target}", content=(root / target).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page: from places in the repository to places on the site."""
    root = _root(config)
    source = _source(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        target = _resolve(link[2], source)
        if _published(root, target):
            place = f"files/{target}"
        elif target in PAGES:
            place = PAGES[target]
        elif target.startswith("docs/") and source in PAGES:
            place = target.removeprefix("docs/")
        else:
            return link[0]  # an address of the web, or a link within docs/, which mkdocs resolves and checks
        here = posixpath.dirname(page.file.src_uri) or "."
        return link[1] + posixpath.relpath(place, here) + (link[3] or "") + link[4]

    return "\n".join(line if fenced else _LINK.sub(rewritten, line) for line, fenced in _lines(markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Warn of a list or table that a code host renders and the site does not."""
    for lost in _LOST_LIST.findall(_PRE.sub("", html)):
        _log.warning(
            "%s: not rendered as a list: %s (put an empty line before it, indent by 4 spaces)", page.file.src_uri, lost[:80]
        )
    return html


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def _source(page: str) -> str:
    """Where a page of the site comes from, as a path in the repository."""
    return next((source for source, own in PAGES.items() if own == page), f"docs/{page}")


def _resolve(link: str, source: str) -> str:
    """The path in the repository that a link on this page names (nonsense for an address of the web)."""
    return posixpath.normpath(PurePosixPath(source).parent / link)


def _published(root: Path, target: str) -> bool:
    """Whether this is a file that the site has only as a copy: one outside `docs/` that is no page."""
    return not target.startswith(("docs/", "../")) and target not in PAGES and (root / target).is_file()


def _targets(markdown: str, source: str) -> set[str]:
    return {_resolve(link[2], source) for line, fenced in _lines(markdown) if not fenced for link in _LINK.finditer(line)}


def _lines(markdown: str) -> list[tuple[str, bool]]:
    """The lines of a page, each with whether it belongs to a fenced block."""
    lines, fence = [], ""
    for line in markdown.split("\n"):
        mark = _FENCE.match(line)
        inside = bool(fence) or mark is not None
        if mark is not None and not fence:
            fence = mark[1]
        elif mark is not None and len(mark[1]) >= len(fence):
            fence = ""
        lines.append((line, inside))
    return lines
