"""Tests of the check of a learner: arguments, result, and that nothing changes."""

import json
import types

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from learner import Answer, CheckResult, ClassificationOutput, LearnerError
from learner.diagnostics.check import FUNCTIONS
from learner.diagnostics.check_result import QUESTIONS
from learner.loggers import MemoryLogger
from learner.schedules import Linear
from tests.support.codes import raises_code
from tests.support.runs import Net, batches, build_line, line_step, model_bits, quiet, shuffled, valid_data
from tests.support.small_models import BATCH, CASES, other_batch
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")

RESULT = CheckResult(
    (
        Answer("overlap", "ok", 0.0, "None of 20 validation rows is in the training data."),
        Answer("one-batch", "failed", float("nan"), "The loss is NaN."),
        Answer("pipeline", "skipped", None, "The training data is in memory."),
        Answer("row-leak", "warning", 0.25, "A long finding " + "that takes several lines " * 6),
    )
)


def test_table_of_a_result():
    lines = str(RESULT).splitlines()
    assert lines[:4] == [
        "question      verdict      number  finding",
        "overlap       ok                0  None of 20 validation rows is in the training data.",
        "one-batch     failed          nan  The loss is NaN.",
        "pipeline      skipped           -  The training data is in memory.",
    ]
    assert lines[-1] == "1 ok, 1 warning, 1 failed, 1 skipped"
    assert max(map(len, lines)) <= 120
    assert lines[5].startswith(" " * 35 + "lines that takes")
    assert "<td" in RESULT._repr_html_()


def test_result_for_programs():
    assert not RESULT.ok
    assert CheckResult(RESULT.answers[2:]).ok  # a warning, and a skipped question
    assert RESULT["one-batch"].text == "The loss is NaN."
    with pytest.raises(KeyError):
        RESULT["memory"]
    content = json.loads(json.dumps(RESULT.to_json(), allow_nan=False))
    assert content["ok"] is False
    assert [answer["verdict"] for answer in content["answers"]] == ["ok", "failed", "skipped", "warning"]
    assert [answer["number"] for answer in content["answers"]] == [0.0, "NaN", None, 0.25]


def test_each_question_has_a_function():
    assert list(FUNCTIONS) == [question.name for question in QUESTIONS]


def test_questions_are_selected_and_answers_are_reported_one_by_one(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    answers = []
    result = learner.check(
        batches(),
        valid_data(),
        only=["one-batch", "overlap", "memory"],
        skip=["memory"],
        steps=3,
        on_answer=answers.append,
    )
    assert [answer.name for answer in result.answers] == ["overlap", "one-batch"]  # cheap questions first
    assert tuple(answers) == result.answers
    assert "in 3 steps" in result["one-batch"].text


def test_single_question_by_name(tmp_path):
    result = build_line(quiet(tmp_path / "run")).check(batches(), only="memory", skip="overlap")
    assert [answer.name for answer in result.answers] == ["memory"]


def test_invalid_arguments_are_reported_together(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    with raises_code("check-question-unknown", "'gradient'", "'gradients'") as error:
        learner.check(batches(), only=["gradient"], steps=0)
    assert error.value.codes == ("check-question-unknown", "check-steps-value")
    with raises_code("check-question-none"):
        learner.check(batches(), only=["memory"], skip=["memory"])
    with raises_code("data-training-missing"):
        learner.check()


def test_data_that_fit_refuses_is_refused(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    with pytest.raises(LearnerError):
        learner.check([{"x": np.ones((4, 3), np.float32)}])  # without the field `t`


def test_data_that_can_be_read_once_is_not_consumed(tmp_path):
    learner, rows = build_line(quiet(tmp_path / "run").num_epochs(1)), iter(batches())
    with raises_code("check-data-read-once", split="train"):
        learner.check(rows, only=["gradients"])
    with raises_code("check-data-read-once", split="valid"):
        learner.check(batches(), rows, only=["gradients"])
    assert len(list(rows)) == len(batches())


@pytest.mark.full
def test_check_changes_nothing(tmp_path):
    """A check writes no file, calls no hook and no logger, and leaves the model as it is. A later `fit` has the bits of
    one without the check.
    """
    memory, calls = MemoryLogger(), []

    def learner(directory, *loggers):
        builder = quiet(tmp_path / directory, saves=True).num_epochs(2).metric_loggers(*loggers)
        builder = builder.on_epoch_end(lambda info, model: calls.append(info))
        return builder.build(model, optax.adam, Linear(0.05, 0.01), shuffled(), valid_data())

    model = Net()
    before = model_bits(model)
    checked = learner("one", memory)
    result = checked.check(steps=2)
    assert [answer.name for answer in result.answers] == list(FUNCTIONS)
    assert (calls, memory.events, list(tmp_path.iterdir())) == ([], [], [])
    assert model_bits(model) == before
    assert model_bits(checked.fit().model) == model_bits(learner("two").fit().model)


@pytest.mark.full
def test_accumulation_and_half_precision(tmp_path):
    builder = quiet(tmp_path / "run").grads_accumulation(2).precision("bfloat16")
    result = build_line(builder).check(
        batches(), valid_data(), only=["gradients", "determinism", "one-batch", "row-leak"], steps=50
    )
    assert {answer.verdict for answer in result.answers} == {"ok"}, str(result)


@pytest.mark.full
def test_model_made_by_a_function(tmp_path):
    learner = quiet(tmp_path / "run").build(lambda rngs: Dropped(rngs), optax.adam, 1e-2)
    result = learner.check(batches(), valid_data(), only=["eval-mode", "train-mode", "gradients", "determinism"])
    assert {answer.verdict for answer in result.answers} == {"ok"}, str(result)
    assert result["train-mode"].number != 0


class Dropped(nnx.Module):
    def __init__(self, rngs):
        self.line, self.drop = nnx.Linear(3, 3, rngs=rngs), nnx.Dropout(0.3, rngs=rngs)

    def train_step(self, batch):
        return ClassificationOutput.from_logits(self.line(self.drop(batch["x"])), batch["y"])

    valid_step = train_step


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.diagnostics.check.hosts", lambda: types.SimpleNamespace(count=2))
    with raises_code("process-check-several"):
        build_line(quiet(tmp_path / "run")).check(batches())


def test_population_is_refused(tmp_path):
    learner = build_line(quiet(tmp_path / "run").population(lr=[0.1, 0.2]))
    with raises_code("population-method", method="check"):
        learner.check(batches())


@pytest.mark.full
def test_model_starts_from_a_checkpoint(tmp_path):
    build_line(quiet(tmp_path / "first", saves=True).num_epochs(3)).fit(batches())
    learner = build_line(quiet(tmp_path / "second").initial_from(tmp_path / "first"))
    answer = learner.check(batches(), only=["one-batch"], steps=1)["one-batch"]
    loss = float(line_step(learner.init().params, jax.tree.map(np.asarray, batches()[0])).loss)
    assert f"The loss of 4 rows goes from {loss:.3g}" in answer.text
    assert learner.check(batches(), only=["initial-loss"])["initial-loss"].verdict == "skipped"


CHOSEN = [case for case in CASES if str(case) in ("linen", "dict")]


@pytest.mark.full
@pytest.mark.parametrize("case", some(CASES, CHOSEN), ids=str)
def test_model_of_each_library_has_no_failure(tmp_path, case):
    """The valid step of a dict is an exception: it draws random numbers, as a dict has no mode."""
    learner = quiet(tmp_path / "run").build(case.make(), optax.adam, 1e-2, **case.steps)
    result = learner.check(
        [BATCH, other_batch(1)], [other_batch(2)], skip=["memory", "pipeline", "one-batch", "label-shuffle"]
    )
    verdicts = {answer.name: answer.verdict for answer in result.answers}
    assert {name: verdict for name, verdict in verdicts.items() if verdict not in ("ok", "skipped")} == (
        {"eval-mode": "warning"} if case.name == "dict" else {}
    ), str(result)
