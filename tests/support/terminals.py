"""Run a program in a real terminal, and read the screen whenever the program pauses."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios

import pyte

PAUSE = """
import os, sys
def pause():
    sys.__stdout__.flush()
    os.write(int(sys.argv[1]), b"!")
    os.read(int(sys.argv[2]), 1)
"""


class Terminal:
    """Run a program that calls `pause()`.

    Attributes:
      screen: of pyte, with the lines that scrolled away.
      text: everything received.
    """

    def __init__(self, program, columns=80, lines=24, **environment):
        self.parent, child = pty.openpty()
        self.be(columns, lines)
        (self.ready, ready), (go, self.go) = os.pipe(), os.pipe()
        unset = {"COLUMNS", "LINES", "NO_COLOR", "TERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"}
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PAUSE + program, str(ready), str(go)],
            stdin=child, stdout=child, stderr=child, pass_fds=(ready, go),
            env={**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment},
        )  # fmt: skip
        for end in (child, ready, go):
            os.close(end)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for end in (self.parent, self.ready, self.go):
            os.close(end)

    def be(self, columns, lines):
        """Replace the terminal by an empty one of another size; (0, 0) leaves the size unknown."""
        fcntl.ioctl(self.parent, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen = pyte.HistoryScreen(columns or 80, lines or 24, history=10_000)
        self.text, self.stream = "", pyte.ByteStream(self.screen)

    def look(self):
        """Wait for a pause. Return the lines that scrolled away and the lines on the screen, down to the last text."""
        while self.ready not in (seen := select.select([self.parent, self.ready], [], [], 120)[0]):
            assert seen, f"nothing happens: {self.text[-2000:]}"
            assert self.take(), f"it ended: {self.text[-2000:]}"
        assert os.read(self.ready, 1), f"it ended: {self.text[-2000:]}"
        while select.select([self.parent], [], [], 0)[0]:
            self.take()
        return self.lines()

    def go_on(self):
        os.write(self.go, b"!")

    def take(self):
        with contextlib.suppress(OSError):  # Linux raises this after the other side was closed
            part = os.read(self.parent, 65536)
            self.stream.feed(part)
            self.text += part.decode(errors="replace")
            return part
        return b""

    def lines(self):
        shown = [line.rstrip() for line in self.screen.display]
        while shown and not shown[-1]:
            shown.pop()
        scrolled = [
            "".join(row[x].data for x in range(self.screen.columns)).rstrip() for row in self.screen.history.top
        ]
        return [*scrolled, *shown]
