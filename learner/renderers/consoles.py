"""Capabilities of a terminal, as rich detects them."""

import dataclasses
import os
import shutil
import sys
from typing import IO, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from learner.renderers.stream_proxy import StreamProxy, wrapped_stream
from learner.renderers.trends import BLOCKS


@dataclasses.dataclass
class Encodable:
    """A renderable with question marks for characters outside the console's encoding.

    >>> import io
    >>> file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    >>> Console(file=file).print(Encodable("Präzision"))
    >>> file.buffer.getvalue()
    b'Pr?zision\\n'
    """

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            text = segment.text.encode(options.encoding, "replace").decode(options.encoding)
            yield Segment(text, segment.style, segment.control)


class CachedRenderable:
    """A renderable that is drawn once and can be shown again cheaply, such as below each printed line.

    >>> console = Console(width=20)
    >>> drawn = CachedRenderable("a bar", console)
    >>> console.print(drawn)
    a bar
    """

    def __init__(self, content: RenderableType, console: Console) -> None:
        self._segments = list(console.render(content))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self._segments


def standard_output() -> Console:
    """Return a console on the current standard output: a block that redirects it later must not receive what is drawn.

    Where somebody draws on it already it is no terminal: a second run at once has its lines above the bar of the first.
    """
    size, environment = shutil.get_terminal_size(), os.environ.get
    width = size.columns if environment("COLUMNS") == "0" else None  # rich would take the 0 at its word
    height = size.lines if environment("LINES") == "0" else None
    stream = wrapped_stream(sys.stdout)
    force_terminal = False if isinstance(stream, StreamProxy) else None
    return Console(file=cast("IO[str]", stream), width=width, height=height, force_terminal=force_terminal)


def shows_blocks(console: Console) -> bool:
    """Return True if the console can display `BLOCKS`. Old Windows consoles accept them but show squares.

    >>> import io
    >>> [shows_blocks(Console(file=io.TextIOWrapper(io.BytesIO(), encoding=name))) for name in ("utf-8", "cp1252")]
    [True, False]
    """
    try:
        BLOCKS.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return not console.legacy_windows
