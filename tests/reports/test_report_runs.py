"""Tests of the card of one run, and of the table of several."""

import pytest

from learner.reports.report_runs import MOST_SHOWN, card, colour, runs_table
from learner.runs import find_runs
from tests.support.colours import channels, contrast, smallest_distance
from tests.support.pages import Page
from tests.support.written import write_run


def test_colors_of_the_first_runs_differ_visibly():
    """Distances are measured in OKLab."""
    assert smallest_distance(list(map(channels, map(colour, range(MOST_SHOWN))))) >= 0.12


def test_colors_are_distinct_and_have_contrast():
    colours = [colour(index) for index in range(200)]
    assert len(set(colours)) == 200
    backs = ("#ffffff", "#16181c")
    assert min(contrast(channels(color), channels(back)) for color in colours for back in backs) >= 3


@pytest.mark.parametrize(
    ("ending", "word", "kind"),
    [
        ("num_epochs", "ended", "ended"),
        ("early stopping: valid/Loss", "ended", "ended"),
        ("ctrl-c", "stopped", "stopped"),
        (None, "died", "died"),
    ],
)
def test_status_has_a_word_and_a_color(tmp_path, ending, word, kind):
    (run,) = find_runs([write_run(tmp_path / "a", ending=ending)])
    page = Page(card(run))
    assert [attrs["class"] for attrs in page.all("span")] == [f"chip {kind}"]
    assert word in page.texts


def test_names_and_settings_are_escaped(tmp_path):
    runs = find_runs([write_run(tmp_path / "<b>a", config="'<i>': 1\n", ending="<u>"), write_run(tmp_path / "b")])
    page = Page(card(runs[0]) + runs_table(runs, ["<i>"], ["valid/Loss"]))
    assert page.count("b") == 1  # the best value
    assert page.count("u") == 0
    assert page.count("i") == 2  # the color marks
    assert {"<b>a", "<i>"} <= set(page.texts)


def test_best_runs_are_checked(tmp_path):
    count = MOST_SHOWN + 5
    for number in range(count):
        write_run(tmp_path / f"run-{number:02}", {"valid/Loss": [float(count - number)]})
    page = Page(runs_table(find_runs([tmp_path]), [], ["valid/Loss"]))
    boxes = [attrs for attrs in page.all("input") if "show run" in attrs["aria-label"]]
    assert [attrs["aria-label"] for attrs in boxes if "checked" not in attrs] == [f"show run-0{n}" for n in range(5)]
    values = [attrs["data-value"] for attrs in page.all("td") if attrs.get("class") == "number"]
    assert values[:4] == ["25.0", "1", "2", "11.0"]  # loss, epochs, steps and seconds, by which the table sorts
