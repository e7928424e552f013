"""The card of one run and the table of many."""

import pytest

from learner.reports.report_runs import MOST_SHOWN, card, colour, runs_table
from learner.runs import find_runs
from tests.support.pages import Page
from tests.support.written import write_run


def contrast(one, other):
    """As WCAG 2 defines it."""
    first, second = sorted(map(luminance, (one, other)))
    return (second + 0.05) / (first + 0.05)


def luminance(text):
    channels = [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_run_has_a_colour_of_its_own():
    colours = [colour(index) for index in range(200)]
    assert len(set(colours)) == 200
    assert min(contrast(each, back) for each in colours for back in ("#ffffff", "#16181c")) >= 3


@pytest.mark.parametrize(
    ("ending", "word", "kind"),
    [
        ("num_epochs", "ended", "ended"),
        ("early stopping: valid/Loss", "ended", "ended"),
        ("ctrl-c", "ended", "stopped"),
        (None, "died", "died"),
    ],
)
def test_the_status_has_a_word_and_a_colour(tmp_path, ending, word, kind):
    (run,) = find_runs([write_run(tmp_path / "a", ending=ending)])
    page = Page(card(run))
    assert [attrs["class"] for attrs in page.all("span")] == [f"chip {kind}"]
    assert word in page.texts


def test_a_hostile_run(tmp_path):
    runs = find_runs([write_run(tmp_path / "<b>a", config="'<i>': 1\n", ending="<u>"), write_run(tmp_path / "b")])
    page = Page(card(runs[0]) + runs_table(runs, ["<i>"], ["valid/Loss"]))
    assert page.count("b") == 1  # the best value
    assert page.count("u") == 0
    assert page.count("i") == 2  # the colours
    assert {"<b>a", "<i>"} <= set(page.texts)


def test_the_best_runs_are_shown_at_first(tmp_path):
    count = MOST_SHOWN + 5
    for number in range(count):
        write_run(tmp_path / f"run-{number:02}", {"valid/Loss": [float(count - number)]})
    page = Page(runs_table(find_runs([tmp_path]), [], ["valid/Loss"]))
    boxes = [attrs for attrs in page.all("input") if "show run" in attrs["aria-label"]]
    assert [attrs["aria-label"] for attrs in boxes if "checked" not in attrs] == [f"show run-0{n}" for n in range(5)]
    values = [attrs["data-value"] for attrs in page.all("td") if attrs.get("class") == "number"]
    assert values[:4] == ["25.0", "1", "2", "11.0"]  # the loss, epochs, steps and seconds, to be sorted by
