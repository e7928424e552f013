"""Tests of the functions that make pieces of HTML."""

from learner.reports.html import details, heading, scrolled, table

HOSTILE = '<b title="x">&\''
ESCAPED = "&lt;b title=&quot;x&quot;&gt;&amp;&#x27;"


def test_texts_are_escaped():
    for markup in (
        table([HOSTILE], [["x"]], "x"),
        table(["x"], [[HOSTILE]], "x"),
        table(["x", "y"], [["x", HOSTILE]], "x"),
        table(["x"], [], HOSTILE),
        scrolled("", HOSTILE),
        details(HOSTILE, ""),
        heading(HOSTILE),
    ):
        assert markup.count(ESCAPED) == 1
        assert HOSTILE not in markup


def test_details_are_closed_by_default():
    assert details("a", "<p>").startswith("<details><summary>")
    assert details("a", "<p>", opened=True).startswith("<details open><summary>")
