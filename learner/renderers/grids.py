"""Tables for terminals."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from learner.events import Overview
from learner.renderers.overview import facts, tree_table


def grid(rows: Sequence[Sequence[str]]) -> Table:
    """Rows of texts as a table, the first of them titles: the first column to the left, the others to the right."""
    titles, *rest = rows
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, title in enumerate(titles):
        made.add_column(Text(title), justify="right" if number else "left", overflow="fold")
    for row in rest:
        made.add_row(*map(Text, row))
    return made


def render_overview(overview: Overview, width: int) -> RenderableType:
    """What a run is going to be, as something that a rich console prints.

    Args:
      overview: of the run.
      width: of the console, in characters.
    """
    told = Table.grid(padding=(0, 2, 0, 0))
    told.add_column(style="bold", no_wrap=True)
    told.add_column(overflow="fold")
    for what, text in facts(overview):
        told.add_row(Text(what), Text(text))
    return Group(grid(tree_table(overview, width)), told)
