"""Tables for terminals."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from learner.events import Overview
from learner.renderers.overview_text import facts, tree_table


def grid(rows: Sequence[Sequence[str]]) -> Table:
    """Return rows of texts, with titles first, as a table. The first column is left-aligned, the others
    right-aligned.
    """
    titles, *rest = rows
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, title in enumerate(titles):
        result.add_column(Text(title), justify="right" if number else "left", overflow="fold")
    for row in rest:
        result.add_row(*map(Text, row))
    return result


def render_overview(overview: Overview, width: int) -> RenderableType:
    """Return the overview of a run as a rich renderable.

    Args:
      overview: the overview of the run.
      width: the width of the console in characters.
    """
    fact_table = Table.grid(padding=(0, 2, 0, 0))
    fact_table.add_column(style="bold", no_wrap=True)
    fact_table.add_column(overflow="fold")
    for what, text in facts(overview):
        fact_table.add_row(Text(what), Text(text))
    return Group(grid(tree_table(overview, width)), fact_table)
