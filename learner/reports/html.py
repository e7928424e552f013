"""Elements of an HTML page. Texts are escaped, because they are untrusted."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

Rows = Iterable[Sequence[str]]


def table(head: Sequence[str], rows: Rows, about: str, numbers: Collection[int] = ()) -> str:
    """Return a table that can be scrolled with the keyboard if it is wider than the page.

    Args:
      head: titles of the columns.
      rows: texts; the first text is the header of its row.
      about: a description for screen readers.
      numbers: the right-aligned columns.

    >>> print(table(["run", "steps"], [["<a>", "6"]], "runs", [1]))
    <div class="scroll" tabindex="0" role="region" aria-label="runs"><table><thead><tr><th scope="col">run</th>\
<th scope="col" class="number">steps</th></tr></thead><tbody><tr><th scope="row">&lt;a&gt;</th>\
<td class="number">6</td></tr></tbody></table></div>
    """
    kinds = [' class="number"' if column in numbers else "" for column in range(len(head))]
    titles = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for text, kind in zip(head, kinds, strict=True))
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td{kind}>{escape(text)}</td>" for text, kind in zip(others, kinds[1:], strict=True))
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    return scrolled(f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>", about)


def scrolled(content: str, about: str) -> str:
    """Return HTML that can be scrolled with the keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(about)}">{content}</div>'


def details(title: str, content: str, opened: bool = False) -> str:
    """Return HTML that is hidden until its title is selected."""
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{content}</details>"


def heading(text: str, level: int = 2) -> str:
    """Return a heading.

    >>> heading("a & b", 3)
    '<h3>a &amp; b</h3>'
    """
    return f"<h{level}>{escape(text)}</h{level}>"


def sections(contents: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Return the sections of a page that are not empty, by their titles, and a list of links to them.

    >>> sections({"Use of time": ["<p>1 s</p>"], "Texts": []})
    ('<section id="use-of-time"><h2>Use of time</h2><p>1 s</p></section>', '<a href="#use-of-time">Use of time</a>')
    """
    named = {title: re.sub(r"\W+", "-", title.lower()) for title, pieces in contents.items() if any(pieces)}
    bodies = [
        f'<section id="{anchor}">{heading(title)}{"".join(contents[title])}</section>'
        for title, anchor in named.items()
    ]
    links = [f'<a href="#{anchor}">{escape(title)}</a>' for title, anchor in named.items()]
    return "\n".join(bodies), "\n".join(links)


def percent(share: float) -> str:
    """Return a share as a percentage.

    >>> [percent(share) for share in (0.1234, 1.0, 0.0, 0.0001, float("nan"))]
    ['12.3 %', '100.0 %', '0.0 %', '< 0.1 %', '-']
    """
    if share != share:
        return "-"
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.1f} %"
