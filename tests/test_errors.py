"""How wrong input is told."""

import pytest

from learner.errors import LearnerError, near, one_error


def test_one_problem_is_told_as_it_is():
    assert str(one_error(["the rate is -1"])) == "the rate is -1"


def test_several_problems_are_counted_and_numbered():
    error = one_error(["the rate is -1", "there is no model", "num_epochs is 0"], "this learner cannot be built")
    assert str(error).splitlines() == [
        "this learner cannot be built, 3 problems:",
        "  1. the rate is -1",
        "  2. there is no model",
        "  3. num_epochs is 0",
    ]


def test_wrong_input_is_a_value_error_of_its_own_kind():
    error = one_error(["x"])
    assert type(error) is LearnerError
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("valid/Acuracy", ["train/Loss", "valid/Accuracy"], "did you mean 'valid/Accuracy'?"),
        ("adam", ["adamw", "adam_w", "adamx", "sgd"], "did you mean 'adamx' or 'adamw' or 'adam_w'?"),
        ("nothing like it", ["Loss", "Accuracy"], "there are: 'Loss', 'Accuracy'"),
        ("anything", [], "there are none"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_ones_or_all(name, known, hint):
    assert near(name, known) == hint
