"""Tests of parameters in a report."""

import json

from learner.reports.report_model import parameter_tables
from learner.runs import find_runs
from tests.support.pages import Page
from tests.support.written import write_run


def array(path, shape, dtype="float32", **others):
    return {"path": path, "shape": shape, "dtype": dtype, "kind": "params", "trainable": True, **others}


MODEL = [
    array("dense.kernel", [4, 10]),
    array("dense.bias", [10]),
    array("norm.<b>", [50], "bfloat16", kind="batch_stats", trainable=False),
]


def page_of(tmp_path, *models):
    for number, arrays in enumerate(models):
        run = write_run(tmp_path / f"run-{number}")
        if arrays is not None:
            (run / "model.json").write_text(json.dumps({"arrays": arrays}))
    return Page("".join(parameter_tables(find_runs([tmp_path]))))


def test_tables_of_one_run(tmp_path):
    page = page_of(tmp_path, MODEL)
    assert page.texts[:1] == ["100 numbers in 3 arrays, 300 bytes; 50 of them are trained."]
    assert page.rows == [
        ["part", "arrays", "numbers", "bytes", "share"],
        ["dense", "2", "50", "200 bytes", "50.0 %"],
        ["norm", "1", "50", "100 bytes", "50.0 %"],
        ["array", "shape", "dtype", "kind", "numbers", "bytes", "share"],
        ["dense.kernel", "[4, 10]", "float32", "params", "40", "160 bytes", "40.0 %"],
        ["dense.bias", "[10]", "float32", "params", "10", "40 bytes", "10.0 %"],
        ["array", "shape", "dtype", "kind", "numbers", "bytes", "share"],
        ["norm.<b>", "[50]", "bfloat16", "batch_stats, not trained", "50", "100 bytes", "50.0 %"],
    ]
    assert page.all("details") == [{"open": None}] * 2
    assert page.count("b") == 0


def test_tables_of_large_models_are_closed(tmp_path):
    page = page_of(tmp_path, [array(f"a.{number}", [1]) for number in range(13)])
    assert page.all("details") == [{}]


def test_equal_models_share_their_tables(tmp_path):
    other = [array("dense.kernel", [4, 11])]
    page = page_of(tmp_path, MODEL, other, MODEL)
    assert [text for text in page.texts if text.startswith("run-")] == ["run-0, run-2", "run-1"]
    assert page.rows.count(["part", "arrays", "numbers", "bytes", "share"]) == 2


def test_one_model_of_all_runs_has_no_title(tmp_path):
    assert page_of(tmp_path, MODEL, MODEL).texts[0].startswith("100 numbers")


def test_runs_without_parameters_are_skipped(tmp_path):
    assert page_of(tmp_path / "none", None).tags == []
    assert page_of(tmp_path / "one", None, MODEL).texts[0] == "run-1"


def test_number_of_rows_is_bounded(tmp_path):
    """The page counts the omitted parts and arrays."""
    arrays = [array(f"block{number % 300}.{number}", [1]) for number in range(6000)]
    page = page_of(tmp_path, arrays)
    assert len(page.rows) == (1 + 100) + (50 + 1000)  # 100 parts; 50 tables of 20 arrays, up to 1000
    assert "200 further parts." in page.texts
    assert page.texts.count("20 further arrays.") == 50


def test_models_share_the_bound(tmp_path):
    page = page_of(tmp_path, *([array(f"a.{kind}{number}", [1]) for number in range(600)] for kind in "xy"))
    assert len(page.rows) == 2 * (2 + 1 + 500)
    assert page.texts.count("100 further arrays.") == 2


def test_number_of_models_is_bounded(tmp_path):
    page = page_of(tmp_path, *([array("a", [number])] for number in range(1, 13)))
    assert sum(text.startswith("run-") for text in page.texts) == 10
    assert "2 further models." in page.texts


def test_title_names_at_most_eight_runs(tmp_path):
    page = page_of(tmp_path, None, *([MODEL] * 10))
    assert page.texts[0] == f"{', '.join(f'run-{n}' for n in range(1, 9))} and 2 others"


def test_model_without_numbers(tmp_path):
    page = page_of(tmp_path, [array("a", [0])])
    assert page.rows[1] == ["a", "1", "0", "0 bytes", "0.0 %"]
