"""Emulate a terminal's screen."""

import re

SHOW, HIDE = "\x1b[?25h", "\x1b[?25l"


class Screen:
    """A small terminal that interprets the control codes of rich."""

    def __init__(self, text):
        self.rows, self.row, self.column = [""], 0, 0
        for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            self.take(part)

    def take(self, part):
        if part == "\n":
            self.row += 1
            self.column = 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        elif part == "\r":
            self.column = 0
        elif part == "\x1b[2K":
            self.rows[self.row] = ""
        elif part.startswith("\x1b[") and part.endswith("A"):
            self.row -= int(part[2:-1] or 1)
        elif part.startswith("\x1b["):
            assert part.endswith("m") or part in (SHOW, HIDE), f"unknown code {part!r}"
        else:
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + part + line[self.column + len(part) :]
            self.column += len(part)

    def lines(self):
        """Return the lines down to the cursor."""
        return [row.rstrip() for row in self.rows[: self.row + 1]]
