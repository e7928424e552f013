"""Tests of matching arrays of a file to a model by path, and of the report of the others."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest

from learner.errors import LearnerError
from learner.records import JsonRecorder

FILE = {
    "encoder": [{"w": np.ones((2, 3), np.float32)}, {"w": np.full((3, 3), 2.0, np.float32)}],
    "head": {"w": np.ones((3, 10), np.float32), "b": np.ones(10, np.float32)},
}
MODEL = {
    "backbone": [{"w": np.zeros((2, 3), np.float32)}, {"w": np.zeros((3, 3), np.float32)}],
    "head": {"w": np.zeros((3, 4), np.float32), "bias": np.zeros(4, np.float16)},
}
RULES = [(r"^encoder\.", "backbone.")]
SOURCE = "the record (JSON, version 2, full precision)"


def load(model=MODEL, file=FILE, **options):
    return JsonRecorder().from_bytes(JsonRecorder().to_bytes(file), model, **options)


def error(**options):
    with pytest.raises(LearnerError) as caught:
        load(**options)
    return str(caught.value).split("\n")


def test_differing_paths_are_listed_with_both_sides():
    assert error(rename=RULES) == [
        f"{SOURCE} does not fit the model; 3 arrays differ:",
        "  head.bias: not in the file, float16[4] in the model; did you mean 'head.b'?",
        "  head.w: float32[3, 10] in the file, float32[3, 4] in the model",
        "  head.b: float32[10] in the file, not in the model",
        "strict=False loads the others and leaves these as they are; rename= gives them other paths",
    ]


def test_surplus_array_with_a_similar_path():
    assert error(model={"b": np.zeros(2)}, file={"b": np.ones(2), "bb": np.ones(2)})[:2] == [
        f"{SOURCE} does not fit the model; 1 array differs:",
        "  bb: float64[2] in the file, not in the model; did you mean 'b'?",
    ]


def test_no_match_raises_even_if_not_strict():
    for strict in (True, False):
        first, *rows, advice = error(strict=strict)
        assert first == f"nothing in {SOURCE} fits the model, by path, shape and dtype:"
        assert "  encoder.0.w: float32[2, 3] in the file, not in the model" in rows
        assert "rename=" in advice
        assert "layout='torch'" in advice


def test_partial_load_is_reported():
    reports = []
    loaded = load(rename=RULES, strict=False, report=reports.append)
    assert loaded["backbone"][0]["w"].tolist() == np.ones((2, 3)).tolist()
    assert loaded["backbone"][1]["w"].tolist() == np.full((3, 3), 2.0).tolist()
    assert loaded["head"]["w"].tolist() == np.zeros((3, 4)).tolist()
    (report,) = reports
    assert report.source == SOURCE
    assert report.loaded == ("backbone.0.w", "backbone.1.w")
    assert report.renamed == {"backbone.0.w": "encoder.0.w", "backbone.1.w": "encoder.1.w"}
    assert list(report.left) == ["head.bias", "head.w"]
    assert report.unused == {"head.b": "float32[10]"}
    assert not report.complete
    assert str(report).split("\n") == [
        f"loaded 2 of 4 arrays from {SOURCE}; 1 array of it unused",
        "  renamed: encoder.0.w -> backbone.0.w",
        "  renamed: encoder.1.w -> backbone.1.w",
        "  not loaded: head.bias: not in the file, float16[4] in the model",
        "  not loaded: head.w: float32[3, 10] in the file, float32[3, 4] in the model",
        "  unused: head.b: float32[10]",
    ]


def test_partial_load_without_a_callback_is_logged(caplog):
    with caplog.at_level(logging.INFO):
        load(rename=RULES, strict=False)
        load(model=FILE)
        load(model=FILE, strict=False)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("learner.records", "WARNING")
    assert record.getMessage().startswith("loaded 2 of 4 arrays")


def test_report_of_a_complete_load():
    reports = []
    load(model=FILE, report=reports.append)
    assert reports[0].complete
    assert str(reports[0]) == f"loaded 4 of 4 arrays from {SOURCE}"


def test_rules_apply_in_turn():
    model = {"body": {"0": jnp.zeros((2, 3)), "1": jnp.zeros((3, 3))}, **{"head": FILE["head"]}}  # noqa: PIE800
    loaded = load(model=model, rename=[("encoder", "trunk"), (r"^trunk\.(\d)\.w$", r"body.\1")])
    assert loaded["body"]["1"].tolist() == np.full((3, 3), 2.0).tolist()


@pytest.mark.parametrize(
    ("rules", "messages"),
    [
        ([("^encodr", "x"), ("head", "h"), ("^tail", "t")], ["rename is wrong, 2 problems", "'^encodr'", "'^tail'"]),
        ([(r"^encodr\.0\.w$", "x")], ["matches no path of the record", "did you mean 'encoder.0.w'"]),
        ([("(", "x")], ["'(', 'x'", "which is not a rule", "needs pairs of a regular expression"]),
        ([("head", r"\7")], ["which is not a rule (invalid group reference 7"]),
        ([("head",)], ["which is not a rule"]),
        ([3], ["rename has 3, which is not a rule"]),
        ([("head", 3)], ["which is not a rule"]),
        ([(r"encoder\.\d", "e")], ["rename makes 'e.w' of both 'encoder.0.w' and 'encoder.1.w'"]),
        ([("head.w", "head.b")], ["rename makes 'head.b' of both"]),
    ],
)
def test_wrong_rules(rules, messages):
    for strict in (True, False):
        lines = "\n".join(error(rename=rules, strict=strict))
        for message in messages:
            assert message in lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "pytorch"}, "layout is 'pytorch'; it needs 'torch', or None"),
        ({"strict": "no"}, "strict is 'no'; it needs True or False"),
    ],
)
def test_wrong_options(options, message):
    assert message in error(**options)[0]


def test_errors_contain_no_control_characters():
    lines = error(model={"w": np.zeros(1)}, file={"\x1b[2Jw": np.zeros(1)})
    assert all(line.isprintable() for line in lines)


def test_long_errors_are_cut():
    file = {f"x{i}": np.zeros(1) for i in range(3000)}
    lines = error(model={"x0": np.zeros(1)}, file=file)
    assert lines[-2] == "  and 2000 more"
