"""Tests of errors: codes, messages and fields."""

import collections
import copy
import pickle
import re

import jax.numpy as jnp
import pytest

from learner.data.batcher import ItemError
from learner.errors import LearnerError, OutOfMemoryError, Problem, near, one_error
from learner.loggers.posts import RefusedError
from learner.models.adapters import adapter_of
from learner.models.base import NothingToTrainError
from tests.support.codes import documented, raises_code


def test_single_problem_keeps_its_message():
    assert str(one_error(["the rate is -1"], code="learner-unbuildable")) == "the rate is -1"


def test_several_problems_are_counted_and_numbered():
    error = one_error(
        ["the rate is -1", "there is no model", "num_epochs is 0"],
        "this learner cannot be built",
        code="learner-unbuildable",
    )
    assert str(error).splitlines() == [
        "this learner cannot be built, 3 problems:",
        "  1. the rate is -1",
        "  2. there is no model",
        "  3. num_epochs is 0",
    ]


def test_learner_error_is_a_value_error():
    error = one_error(["x"], code="learner-unbuildable")
    assert type(error) is LearnerError
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("valid/Acuracy", ["train/Loss", "valid/Accuracy"], "did you mean 'valid/Accuracy'?"),
        ("adam", ["adamw", "adam_w", "adamx", "sgd"], "did you mean 'adamx' or 'adamw' or 'adam_w'?"),
        ("nothing like it", ["Loss", "Accuracy"], "choose from 'Loss', 'Accuracy'"),
        ("anything", [], "there are none"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_ones_or_all(name, known, hint):
    assert near(name, known) == hint


# -- codes -------------------------------------------------------------------------------------------------------------


def test_every_error_has_a_code_in_the_source():
    """A literal, or the code of another error that is passed on."""
    sites = documented().sites()
    assert len(sites) > 600
    assert [f"{site.path}:{site.line}" for site in sites if site.code is None] == []


def test_codes_are_in_kebab_case():
    codes = {site.code for site in documented().sites() if site.code}
    assert [code for code in codes if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", code)] == []


def test_one_message_has_one_code_in_a_part():
    """Messages that consist of values only belong to several faults."""
    codes_of = collections.defaultdict(set)
    for site in documented().sites():
        if site.code and re.sub(r"\{\w*(\.\.\.)?\}", "", site.template).strip(" :;,"):
            codes_of[site.code.split("-")[0], site.template].add(site.code)
    assert {template: codes for (_, template), codes in codes_of.items() if len(codes) > 1} == {}


def test_the_pages_of_errors_are_up_to_date():
    errors = documented()
    pages = errors.pages()
    assert {path: path.read_text() for path in pages} == pages, "look at the change, then run python docs/errors.py"
    assert set(errors.REFERENCE.glob("errors*.md")) == set(pages)


def test_errors_can_be_pickled():
    for error in (
        LearnerError("the rate is -1", code="optimizer-rate-value", value=-1),
        OutOfMemoryError("no room", "train", code="device-out-of-memory", needed=3),
        ItemError(["item ", 1, " is empty"], code="batch-items-differ", name="x"),
        RefusedError(503, "busy", code="logger-post-refused"),
        NothingToTrainError("no parameters", adapter_of({"w": jnp.ones(2)}), code="model-nothing-to-train"),
        one_error(["a", Problem("b", code="data-type")], code="config-unusable"),
    ):
        for again in (copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))):
            assert (str(again(error)), state_of(again(error))) == (str(error), state_of(error))


def state_of(error):
    return type(error), error.args, error.code, error.fields, error.problems, error.codes, sorted(error.__dict__)


def test_problems_keep_their_codes():
    inner = Problem("b is 2", code="data-type", name="b")
    assert one_error(["a is 1", inner], code="config-unusable").codes == ("config-unusable", "data-type")
    only = one_error([inner], code="config-unusable")
    assert (only.code, only.fields, str(only)) == ("data-type", {"name": "b"}, "b is 2")


def test_errors_of_users_need_no_code():
    error = LearnerError("no camera")
    assert (error.code, error.fields, error.codes) == ("user", {}, ("user",))


def test_fields_are_plain_values(tmp_path):
    with raises_code("data-type", path=str(tmp_path), value=1.5, name=None) as raised:
        raise LearnerError("x", code="data-type", path=tmp_path, value=1.5, name=None, array=jnp.zeros(1000), fn=len)
    assert raised.value.fields["fn"] == "<built-in function len>"
    assert len(raised.value.fields["array"]) <= 200


def test_items_of_a_dataset_keep_the_code():
    error = ItemError(["item ", 1, " is empty"], code="batch-items-differ", name="x").in_dataset([7, 12])
    assert (str(error), error.code, error.fields) == ("item 12 is empty", "batch-items-differ", {"name": "x"})
