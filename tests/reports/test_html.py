"""Pieces of HTML."""

from learner.reports.html import details, heading, scrolled, table

HOSTILE = '<b title="x">&\''
ESCAPED = "&lt;b title=&quot;x&quot;&gt;&amp;&#x27;"


def test_everything_is_escaped():
    for made in (
        table([HOSTILE], [["x"]], "x"),
        table(["x"], [[HOSTILE]], "x"),
        table(["x", "y"], [["x", HOSTILE]], "x"),
        table(["x"], [], HOSTILE),
        scrolled("", HOSTILE),
        details(HOSTILE, ""),
        heading(HOSTILE),
    ):
        assert made.count(ESCAPED) == 1
        assert HOSTILE not in made


def test_details_are_closed():
    assert details("a", "<p>").startswith("<details><summary>")
    assert details("a", "<p>", opened=True).startswith("<details open><summary>")
