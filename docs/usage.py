"""The directive `usage`: the help of the command `learner`, and a section for each of its commands."""

import contextlib
import io
import os
from typing import Any
from unittest import mock

from docutils import nodes
from docutils.parsers.rst import Directive

from learner.cli.main import COMMANDS, main
from learner.cli.usage import TOPICS

COLUMNS = "100"  # the width of a page


def usage(*words: str) -> nodes.literal_block:
    """Return the output of `learner WORDS --help`; a last word that is a topic selects a topic of the help."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch.dict(os.environ, COLUMNS=COLUMNS):
        main([*words, "--help"])
    text = printed.getvalue()
    return nodes.literal_block(text, text, language="text")


class Usage(Directive):
    """The directive `{usage}`."""

    def run(self) -> list[nodes.Node]:
        """Return the text of the command, and a section for each other text."""
        return [usage(), *map(self._section, COMMANDS)]

    def _section(self, name: str) -> nodes.section:
        topics = [usage(name, topic) for topic in TOPICS] if name == "fit" else []
        section = nodes.section("", nodes.title(name, name), usage(name), *topics, names=[name])
        self.state.document.note_implicit_target(section)
        return section


def setup(app: Any) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("usage", Usage)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
