"""Tests of problems of a config that are reported together, each with its place."""

import pytest

from learner.cli.configs.problems import Problems, at_path
from learner.errors import LearnerError, one_error
from tests.support.codes import raises_code


def noted_error():
    error = LearnerError("it has no rows", code="data-without-rows")
    error.add_note("while calling large in filter")
    error.add_note("of another library")
    return error


def test_problems_of_several_errors_are_one_list():
    problems = Problems()
    problems.raise_all()
    with problems.collect():
        raise one_error(["a is 1", "b is 2"], code="config-unusable")
    with problems.collect(key="train"):
        raise noted_error()
    with problems.collect():
        pass
    with raises_code("config-unusable", "3 problems") as raised:
        problems.raise_all()
    assert raised.value.problems == ("a is 1", "b is 2", "train: it has no rows (while calling large in filter)")
    assert raised.value.codes == ("config-unusable", "config-unusable", "data-without-rows")


def test_every_problem_has_its_place():
    with pytest.raises(LearnerError) as raised, at_path("train.views.1"):
        raise one_error(["a is 1", "b is 2"], code="config-unusable")
    assert raised.value.problems == ("train.views.1: a is 1", "train.views.1: b is 2")
    with pytest.raises(LearnerError) as raised, at_path("train"):
        raise noted_error()
    assert str(raised.value) == "train: it has no rows (while calling large in filter)"
    assert (raised.value.code, raised.value.fields) == ("data-without-rows", {})


def test_single_problem_keeps_its_fields_unless_they_may_be_secret():
    for problems, secrets, kept in (
        (Problems(), (), {"path": "abcd"}),
        (Problems(), ("abcd",), {}),
        (Problems(with_fields=False), (), {}),
    ):
        with problems.collect(secrets=secrets), at_path("train"):
            raise LearnerError("no file", code="data-file-missing", path="abcd")
        with pytest.raises(LearnerError, match="train: no file") as raised:
            problems.raise_all()
        assert raised.value.fields == kept


def test_the_key_is_added_to_texts_that_lack_it():
    problems = Problems()
    for key, text in (("freeze", "'[' is malformed"), ("lr", "lr is 'fast'"), ("seed", "seeds are"), (3, "3 is none")):
        with problems.collect(key=key):
            raise LearnerError(text, code="user")
    with pytest.raises(LearnerError) as raised:
        problems.raise_all()
    assert raised.value.problems == ("freeze: '[' is malformed", "lr is 'fast'", "seed: seeds are", "3 is none")


def test_other_exceptions_gain_a_note():
    with pytest.raises(OSError, match="full") as raised, at_path("valid.dev.dataset"):
        raise OSError("full")
    assert raised.value.__notes__ == ["while making valid.dev.dataset"]
