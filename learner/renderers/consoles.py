"""rich consoles for standard output and for other texts."""

import os
import shutil
import sys
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

from learner.renderers.stream_proxy import StreamProxy, wrapped_stream


def rendered(content: RenderableType, console: Console) -> Segments:
    """Render content once, to be shown any number of times. Characters outside the console's encoding, for which rich
    raises `UnicodeEncodeError`, become question marks.

    >>> import io
    >>> file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    >>> console = Console(file=file)
    >>> console.print(rendered("Präzision", console))
    >>> file.buffer.getvalue()
    b'Pr?zision\\n'
    """
    encoding = console.encoding
    return Segments(
        Segment(segment.text.encode(encoding, "replace").decode(encoding), segment.style, segment.control)
        for segment in console.render(content)
    )


def print_rich(content: Callable[[int], RenderableType], stream: TextIO | None) -> None:
    """Print content on a terminal, by default `sys.stdout`; it is made for a width in characters."""
    console = Console(file=stream)
    console.print(rendered(content(console.width), console))


def standard_output() -> Console:
    """Return a console on the current standard output: a later redirection must not receive the drawing.

    If another run already draws on it, it is not a terminal: a second run writes its lines above the bar of the first.
    """
    size, environment = shutil.get_terminal_size(), os.environ.get
    width = size.columns if environment("COLUMNS") == "0" else None  # rich would take the 0 literally
    height = size.lines if environment("LINES") == "0" else None
    stream = wrapped_stream(sys.stdout)
    force_terminal = False if isinstance(stream, StreamProxy) else None
    return Console(file=stream, width=width, height=height, force_terminal=force_terminal)
