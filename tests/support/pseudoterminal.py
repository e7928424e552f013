"""Run a command in a pseudo-terminal, and read its screen."""

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds, enough for a slow machine


class Terminal:
    """Run `learner ...` in a terminal of a given size.

    Attributes:
      screen: the text on the screen.
      codes: everything received, to check which modes a program set and reset.
    """

    def __init__(self, words, columns, rows, **environment):
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.codes = b""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        settings = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": path, **environment}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):  # would describe another terminal
            settings.pop(name, None)
        self._end, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(inner)
        streams = {"stdin": inner, "stdout": inner, "stderr": inner}
        command = [sys.executable, "-m", "learner", *words]
        self._process = subprocess.Popen(command, env=settings, start_new_session=True, **streams)
        self._inner = inner

    def wait_for(self, *texts):
        """Wait until all of the texts are on the screen, and return the screen."""
        return self._wait(lambda: all(text in self.text for text in texts), f"{texts} never came")

    def wait_for_keys(self, begin):
        """Wait until the last line, which is drawn last, begins with the text, and return the screen."""
        return self._wait(lambda: self.screen.display[-1].startswith(begin), f"no last line begins with {begin!r}")

    def press(self, keys):
        """Send keys."""
        os.write(self._end, keys.encode())

    def kill(self, number):
        """Send a signal."""
        self._process.send_signal(number)

    def hang_up(self):
        """Close the terminal's side without the signal that a shell's terminal sends, and return the exit code."""
        os.close(self._end)
        try:
            return self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            os.close(self._inner)

    @property
    def text(self):
        """Return the screen as lines."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def end(self):
        """Wait for the end, and return the exit code."""
        self._wait(lambda: self._process.poll() is not None, "it did not end")
        self._take()
        self.after = termios.tcgetattr(self._inner)
        os.close(self._inner)
        os.close(self._end)
        return self._process.returncode

    def _wait(self, done, problem):
        until = time.monotonic() + PATIENCE
        while not done():
            self._take()
            if time.monotonic() > until:
                self._process.kill()
                self._process.wait()
                raise AssertionError(f"{problem}: {self.text}")
        return self.text

    def _take(self):
        while select.select([self._end], [], [], 0.05)[0]:
            content = os.read(self._end, 1 << 16)
            self.codes += content
            self._stream.feed(content)
