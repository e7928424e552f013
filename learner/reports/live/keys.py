"""The keys, and the screen that lists them."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = (  # key, action, in the footer, in the help
    ("q", "quit", "Quit", "quit; the runs continue"),
    ("n", "next", "Next", "the next metric"),
    ("p", "previous", "", "the previous metric"),
    ("x", "axis", "Axis", "the axis: optimizer steps, epochs, minutes of training"),
    ("e", "each", "Each", "training values at each step, or over whole epochs"),
    ("l", "log", "Log", "logarithmic or linear"),
    ("s", "smooth", "Smooth", "smoother; after the smoothest, unsmoothed"),
    ("plus,equals_sign", "zoom_in", "Zoom", "closer; at the end of a run that trains the window follows it"),
    ("minus", "zoom_out", "", "less close"),
    ("0", "zoom_off", "", "all of it"),
    ("left", "earlier", "", "earlier values, when closer"),
    ("right", "later", "", "later values, when closer"),
    ("down", "next_run", "", "the next run: of the table, the log and the system figures"),
    ("up", "previous_run", "", "the previous run"),
    ("o", "alone", "", "this run only, or all"),
    ("g", "many", "", "one plot, or as many as there is room for"),
    ("v", "panel", "Panel", "the next panel, if it does not fit beside this one"),
    ("w", "save", "Save", "ask the run to save a checkpoint now"),
    ("k", "stop", "Stop", "ask the run to stop, as Ctrl-C does; press it twice"),
    ("question_mark", "help", "Keys", "this list"),
)
SHOWN = {"plus,equals_sign": "+", "question_mark": "?", "minus": "-", "left": "←", "right": "→", "up": "↑", "down": "↓"}
"""Keys whose names differ from their characters."""


class Keys(ModalScreen[None]):
    """The screen that lists the keys."""

    CSS = """
    Keys { align: center middle; }
    Keys > Static { width: 76; max-width: 100%; height: auto; max-height: 100%; border: round $primary; padding: 0 1; }
    """
    BINDINGS = [Binding("escape,q,question_mark,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Yield the list."""
        yield Static("\n".join(f"{SHOWN.get(key, key):>5}  {about}" for key, _, _, about in KEYS), markup=False)
