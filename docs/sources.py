"""Make links out of `docs/`, such as to `../examples/gan.py`, work in the site: they lead to a page that shows the file
or lists the directory.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes

LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".md": "markdown", ".yaml": "yaml", ".toml": "toml"}
LONGEST = 200_000  # maximum number of characters of a shown file


def linked(page: Path, docs: Path) -> dict[str, Path]:
    """Return the targets of a page's links outside `docs/`, by the text of the link.

    Raises:
      FileNotFoundError: a target does not exist.
    """
    targets = {}
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / link).resolve()
        if not target.is_relative_to(docs):
            targets[link] = target.relative_to(docs.parent)
            if not target.exists():
                raise FileNotFoundError(f"{page} links to {link}, which is not there")
    return targets


def _read(app: Any, docname: str, source: list[str]) -> None:
    for link, target in linked(Path(app.env.doc2path(docname)), Path(app.srcdir).resolve()).items():
        source[0] = source[0].replace(f"]({link}", f"](source:{target.as_posix()}")


def _resolve(app: Any, doctree: nodes.document, docname: str) -> None:
    for node in doctree.findall(nodes.reference):
        if node.get("refuri", "").startswith("source:"):
            target = node["refuri"].removeprefix("source:").partition("#")[0]
            node["refuri"] = app.builder.get_relative_uri(docname, f"source/{target}")
            node["classes"], node["internal"] = [], True


def _pages(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    docs = Path(app.srcdir).resolve()
    targets: set[Path] = set()
    for docname in app.env.found_docs:
        targets |= set(linked(Path(app.env.doc2path(docname)), docs).values())
    for target in sorted(targets):
        place = docs.parent / target
        if place.is_dir():
            files = sorted(
                entry for entry in place.iterdir() if entry.suffix in LANGUAGES and entry.name != "__init__.py"
            )
            listed = "".join(f'<li><a href="{target.name}/{f.name}.html">{html.escape(f.name)}</a></li>' for f in files)
            yield _page(target, f"<ul>{listed}</ul>")
            yield from (_file(app, target / entry.name, entry) for entry in files if target / entry.name not in targets)
        else:
            yield _file(app, target, place)


def _file(app: Any, target: Path, place: Path) -> tuple[str, dict[str, Any], str]:
    text = place.read_text(encoding="utf-8")[:LONGEST]
    return _page(target, app.builder.highlighter.highlight_block(text, LANGUAGES.get(place.suffix, "text")))


def _page(target: Path, body: str) -> tuple[str, dict[str, Any], str]:
    title = target.as_posix()
    return f"source/{title}", {"title": title, "body": f"<h1>{html.escape(title)}</h1>{body}"}, "page.html"


def setup(app: Any) -> dict[str, bool]:
    """Rewrite the links when a page is read, and add the pages at the end."""
    app.connect("source-read", _read)
    app.connect("doctree-resolved", _resolve)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
