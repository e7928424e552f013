"""Tests of confusion matrices in a report."""

import base64
import io

import numpy as np
from PIL import Image

from learner.reports.report_matrix import confusion
from learner.runs import find_runs
from tests.support.pages import Page
from tests.support.written import write_run

SMALL = ["label  cat  dog\ncat      3    1\ndog      0   10", "label  cat  dog\ncat      4    0\ndog      5    5"]


def table_of(counts, names=None):
    """Return the table that a run writes for these counts. Names and numbers have up to 8 characters."""
    names = names or [f"class{number:03}" for number in range(len(counts))]
    rows = [[name, *map(str, row)] for name, row in zip(names, counts, strict=True)]
    lines = [["label", *names], *rows]
    return "\n".join("  ".join([line[0].ljust(8), *(cell.rjust(8) for cell in line[1:])]) for line in lines)


def page_of(tmp_path, tables, losses=(1.0, 2.0), runs=1):
    for number in range(runs):
        write_run(tmp_path / f"run-{number}", {"valid/Loss": list(losses), "valid/Matrix": tables})
    return Page("".join(confusion(find_runs([tmp_path]))))


def test_newest_and_best_matrix(tmp_path):
    page = page_of(tmp_path, SMALL)
    assert page.rows == [
        ["label", "cat", "dog", "right"],
        ["cat", "4", "0", "100.0 %"],
        ["dog", "5", "5", "50.0 %"],
        ["label", "cat", "dog", "right"],
        ["cat", "3", "1", "75.0 %"],
        ["dog", "0", "10", "100.0 %"],
    ]
    text = "".join(page.texts)
    assert "after epoch 2 (step 4), the newest" in text
    assert "after epoch 1 (step 2), the best by valid/Loss" in text
    assert page.count("details") == 0


def test_colors_show_shares_of_labels(tmp_path):
    page = page_of(tmp_path, SMALL[:1], losses=(1.0,))
    cells = [attrs.get("style") for attrs in page.all("td")]
    assert cells == ["--p:0.87", "--p:0.50", None, None, "--p:1.00", None]  # the roots of 3/4, 1/4 and 1


def test_matrices_of_several_runs_are_closed(tmp_path):
    page = page_of(tmp_path, SMALL, runs=2)
    assert page.all("details") == [{}, {}]
    assert {"run-0", "run-1"} <= set(page.texts)


def test_matrix_of_many_classes_is_a_picture(tmp_path):
    counts = np.eye(31, dtype=int) * 4
    counts[2, 5] = 12
    page = page_of(tmp_path, [table_of(counts)], losses=(1.0,))
    assert page.rows == [["label", "taken for", "rows", "of the label's"], ["class002", "class005", "12", "75.0 %"]]
    (image,) = page.all("img")
    assert image["alt"].endswith(": 31 classes, 91.2 % of the rows on the diagonal")  # 124 of 136
    kind, content = image["src"].split(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
        assert (str(picture.height), str(picture.width)) == (image["height"], image["width"])
        greys = np.asarray(picture)[::12, ::12]
    assert (greys[0, 0], greys[0, 1], greys[2, 2], greys[2, 5]) == (0, 255, 128, 34)


def test_size_of_the_page_is_bounded(tmp_path):
    counts = np.random.default_rng(0).integers(0, 9, (200, 200))
    content = "".join(confusion(find_runs([write_run(tmp_path / "a", {"valid/M": [table_of(counts)]})])))
    assert len(content) < 100_000


def test_rows_outside_of_the_classes_are_named_none(tmp_path):
    text = "label  cat  dog  none\ncat      3    1     0\ndog      0    4     0\nnone     0    0     5"
    page = page_of(tmp_path, [text], losses=(1.0,))
    assert [row[-1] for row in page.rows] == ["right", "75.0 %", "100.0 %", "-"]
    hits = [attrs.get("class") == "hit" for attrs in page.all("td")]
    assert hits == [True, False, False, False, False, True, False, False, False, False, False, False]


def test_number_of_pictures_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.reports.report_matrix.MOST_PICTURES", 1)
    counts = np.eye(31, dtype=int)
    counts[2, 5] = 3
    page = page_of(tmp_path, [table_of(counts), table_of(counts)])
    assert page.count("img") == 1
    assert len(page.rows) == 4
    assert "Only the first 1 have pictures." in page.texts


def test_run_without_a_matrix_has_no_section(tmp_path):
    assert confusion(find_runs([write_run(tmp_path / "a")])) == []


def test_names_of_classes_are_escaped(tmp_path):
    page = page_of(tmp_path, [table_of([[1, 0], [0, 1]], ["<script>", "<i x='>"])], losses=(1.0,))
    assert page.count("script") + page.count("i") == 0
    assert page.rows[0] == ["label", "<script>", "<i x='>", "right"]
