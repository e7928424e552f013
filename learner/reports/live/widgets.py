"""The parts of the screen: a plot, and lines of text."""

import itertools
from collections.abc import Callable, Iterator

from rich.text import Text
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Footer
from textual_plotext import PlotextPlot

from learner.reports.live.drawing import Drawing
from learner.reports.live.keys import KEYS, SHOWN
from learner.reports.plots import MARKS, set_axes

# The first six are Okabe and Ito's, which are distinguishable with any color vision, a little lighter for the dark
# screen. Any two colours are at least 0.11 apart in OKLab. They suffice for two splits of 13 runs.
# fmt: off
COLOURS = (
    "#56b4e9", "#e69f00", "#00be8c", "#f0e442", "#dc8cbe", "#e6691e", "#fcdef6", "#9072fc", "#c65ac6",
    "#009684", "#78f096", "#ccfccc", "#bac0fc", "#188ade", "#fc2484", "#907ea2", "#ea00fc", "#0ca800",
    "#fc72f6", "#c6cc90", "#06fcf6", "#a8a27e", "#8a8a12", "#fca896", "#a2c600", "#06f006",
)
# fmt: on
SHADES = ((1.0, 0), (0.55, 115), (0.6, 0))
"""Factors and summands for further curves: unchanged, paler, darker."""
LEAST = 16, 5
"""Columns and rows of a plot."""


class TextPanel(Widget):
    """A panel of text that is generated for its size.

    Args:
      source: returns the text for a width and a height.
      title: the title above the panel.
      id: the id of the widget.
    """

    DEFAULT_CSS = "TextPanel { height: 1fr; }"

    def __init__(self, source: Callable[[int, int], Text | list[str]], title: str = "", id: str | None = None):
        super().__init__(id=id)
        self._source = source
        self.border_title = Text(title) if title else None

    def render(self) -> Text:
        """Return the current text."""
        width, height = self.size
        found = self._source(width, height)
        return found if isinstance(found, Text) else Text("\n".join(found[:height]), no_wrap=True, overflow="ellipsis")


class PlotPanel(Vertical):
    """A plot under its title and its legend.

    Args:
      source: returns the drawing for a number of columns, or `None` if there is none.
      log: returns True if the vertical axis is logarithmic.
      colours: True if colours distinguish the lines.
    """

    DEFAULT_CSS = """
    PlotPanel { height: 1fr; width: 1fr; }
    PlotPanel > .legend { height: 1; }
    """

    def __init__(self, source: Callable[[int], Drawing | None], log: Callable[[], bool], colours: bool):
        super().__init__()
        self.canvas = Canvas(source, log, colours)
        self.legend = TextPanel(lambda width, _: legend(self.canvas.drawing, width, colours))
        self.legend.add_class("legend")

    def compose(self) -> list[Widget]:
        """Return the legend and the plot."""
        return [self.legend, self.canvas]

    def redraw(self) -> None:
        """Redraw from the source."""
        self.canvas.look()
        self.canvas.refresh()
        self.legend.refresh()


class FittingFooter(Footer):
    """A footer with as many keys as fit. The last one, which lists all keys, is always shown."""

    def compose(self) -> Iterator[Widget]:
        """Yield the keys."""
        keys = list(super().compose())
        widths = [len(f"{SHOWN.get(key, key)} {label} ") for key, _, label, _ in KEYS if label]
        while len(keys) > 1 and sum(widths) - 1 > self.app.size.width:
            del keys[-2], widths[-2]
        yield from keys

    async def on_resize(self) -> None:
        """Choose the keys for the new width."""
        await self.recompose()


class Canvas(PlotextPlot):
    """The plot itself."""

    def __init__(self, source: Callable[[int], Drawing | None], log: Callable[[], bool], colours: bool):
        super().__init__()
        self.drawing: Drawing | None = None
        self._source, self._log, self._colours = source, log, colours

    def look(self) -> None:
        """Get the drawing from the source."""
        self.drawing = self._source(self.size.width)

    def on_resize(self) -> None:
        """Redraw with the number of points that fits the new size."""
        self.look()
        self.refresh()

    def render(self) -> Text:
        """Return the current plot, or the reason why there is none."""
        drawing = self.drawing
        if drawing is None or self.size.width < LEAST[0] or self.size.height < LEAST[1]:
            return Text("")
        if not drawing.curves or drawing.window is None:
            return Text(f"\n  {drawing.note}", "dim")
        self.plt.clear_figure()
        for curve in drawing.curves:
            colour = colour_of(curve.number) if self._colours else None
            plain = self._colours or len(drawing.curves) == 1
            mark = "braille" if plain else MARKS[curve.number % len(MARKS)]
            points = curve.x.tolist(), curve.y.tolist()
            self.plt.plot(*points, marker="●" if len(curve.x) == 1 and plain else mark, color=colour)
        if self.size.height > 8:
            self.plt.xlabel(drawing.x)
        lines = [(curve.x.tolist(), curve.y.tolist()) for curve in drawing.curves]
        set_axes(self.plt, lines, self.size.width, self.size.height, window=drawing.window, log_y=self._log())
        return super().render()  # type: ignore[return-value]


def colour_of(number: int) -> tuple[int, int, int]:
    """Return the colour of a curve as red, green and blue; the first 78 differ.

    >>> colour_of(0), colour_of(26), colour_of(52)
    ((86, 180, 233), (162, 214, 243), (51, 108, 139))
    """
    factor, summand = SHADES[number // len(COLOURS) % len(SHADES)]
    channels = bytes.fromhex(COLOURS[number % len(COLOURS)][1:])
    red, green, blue = (int(factor * channel) + summand for channel in channels)
    return red, green, blue


def legend(drawing: Drawing | None, width: int, colours: bool) -> Text:
    """Return the title of a drawing, its note, and as many lines of the legend as fit."""
    if drawing is None:
        return Text("")
    text = Text.assemble((drawing.title, "bold"), no_wrap=True)
    if drawing.curves and drawing.note:
        text.append(f"  {drawing.note}", "dim")
    for curve, following in itertools.zip_longest(drawing.curves, drawing.curves[1:]):
        r, g, b = colour_of(curve.number)
        mark = "━━" if colours else MARKS[curve.number % len(MARKS)] if len(drawing.curves) > 1 else ""
        entry = Text.assemble("  ", (mark, f"rgb({r},{g},{b})" if colours else ""), " ", curve.label)
        if len(text) + len(entry) + (4 if following else 0) > width:
            text.append("  …")
            break
        text.append_text(entry)
    text.truncate(width, overflow="ellipsis")
    return text
