"""What a terminal can show, asked of rich."""

import dataclasses
import os
import shutil
import sys
from typing import IO, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

from learner.renderers.above import StreamProxy, beneath
from learner.renderers.trends import BLOCKS


@dataclasses.dataclass
class Encodable:
    """Something to draw, with question marks for what the console's encoding lacks.

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


class Drawn:
    """Something that is drawn once and can be shown again at little cost, as below each line that is printed.

    >>> console = Console(width=20)
    >>> drawn = Drawn("a bar", console)
    >>> console.print(drawn)
    a bar
    """

    def __init__(self, content: RenderableType, console: Console) -> None:
        self._segments = list(console.render(content))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self._segments


def standard_output() -> Console:
    """Standard output as it is now: a block that redirects it for a while shall not get what is drawn meanwhile.

    Where somebody draws on it already it is no terminal: a second run at once has its lines above the bar of the first.
    """
    size, said = shutil.get_terminal_size(), os.environ.get
    width = size.columns if said("COLUMNS") == "0" else None  # rich would take the 0 at its word
    height = size.lines if said("LINES") == "0" else None
    stream = beneath(sys.stdout)
    taken = False if isinstance(stream, StreamProxy) else None
    return Console(file=cast("IO[str]", stream), width=width, height=height, force_terminal=taken)


def shows_blocks(console: Console) -> bool:
    """Whether it can show `BLOCKS`. Old consoles of Windows take them, and show squares.

    >>> import io
    >>> [shows_blocks(Console(file=io.TextIOWrapper(io.BytesIO(), encoding=name))) for name in ("utf-8", "cp1252")]
    [True, False]
    """
    try:
        BLOCKS.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return not console.legacy_windows
