"""Listeners that display a run."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from learner.events import Listener, Overview
from learner.renderers.kernel import in_notebook
from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.renderers.notebook import NotebookRenderer as NotebookRenderer
    from learner.renderers.plain import PlainRenderer as PlainRenderer
    from learner.renderers.rich import RichRenderer as RichRenderer
    from learner.renderers.rich import render_summary as render_summary

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)


def default_renderer(metrics: str | Sequence[str] = ()) -> Listener:
    """Return a `NotebookRenderer` in the kernel of a notebook, a `RichRenderer` if standard output is a terminal that
    can move its cursor, and a `PlainRenderer` elsewhere. The last two show the selected `metrics`, by default all.
    """
    if in_notebook():
        from learner.renderers.notebook import NotebookRenderer

        return NotebookRenderer()
    if not _is_terminal(sys.stdout):
        from learner.renderers.plain import PlainRenderer

        return PlainRenderer(metrics=metrics)
    from learner.renderers.rich import RichRenderer

    return RichRenderer(metrics=metrics)


def print_summary(
    summary: Mapping[str, Any], stream: TextIO | None = None, directory: str | os.PathLike[str] | None = None
) -> None:
    """Print the content of `summary.json`: with rich on a terminal, else as text without control characters.

    Args:
      summary: the result of `learner.runs.history.summarize`, also after a round trip through JSON.
      stream: the stream to print to; default: `sys.stdout`.
      directory: the run directory, shown with the files.
    """
    from learner.renderers.plain import write_lines
    from learner.renderers.summary_text import heading

    write_lines([heading(summary)], stream)
    print_values(summary, stream, directory)


def print_values(
    summary: Mapping[str, Any], stream: TextIO | None = None, directory: str | os.PathLike[str] | None = None
) -> None:
    """Print a summary without its heading; see `print_summary`."""
    from learner.renderers.plain import write_lines
    from learner.renderers.summary_text import summary_lines

    if not _is_terminal(stream or sys.stdout):
        write_lines(summary_lines(summary, directory), stream)
        return
    from learner.renderers.consoles import print_rich
    from learner.renderers.rich import render_summary

    print_rich(lambda _: render_summary(summary, directory), stream)


def print_overview(overview: Overview, stream: TextIO | None = None) -> None:
    """Print the overview of a run: with rich on a terminal, else as text without control characters.

    Args:
      overview: the result of `Learner.overview`.
      stream: the stream to print to; default: `sys.stdout`.
    """
    if not _is_terminal(stream or sys.stdout):
        from learner.renderers.overview_text import overview_lines
        from learner.renderers.plain import write_lines

        write_lines(overview_lines(overview), stream)
        return
    from learner.renderers.consoles import print_rich
    from learner.renderers.grids import render_overview

    print_rich(lambda width: render_overview(overview, width), stream)


def _is_terminal(stream: TextIO | None) -> bool:
    """Return True for a terminal that can move its cursor. A closed standard output is None in Python."""
    return stream is not None and stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
