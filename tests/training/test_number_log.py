"""Tests of the numbers that hooks return and loops log: they are monitored like metrics."""

import contextlib
import types

import numpy as np
import optax
import pytest

from learner import Interrupter, Learner, LearnerWarning, MetricEarlyStopping, ReduceOnPlateau, load_checkpoint
from learner.loggers import Webhook
from learner.metrics import LearningRate
from learner.training.number_log import NumberLog
from learner.training.progress.position import Position
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    batches,
    build_line,
    checkpoint_bits,
    line,
    line_step,
    model_bits,
    quiet,
    saved_steps,
    shuffled,
)

pytestmark = pytest.mark.usefixtures("compiled_once")

SCORES = (3.0, 2.0, 2.5, float("nan"), 1.9, 2.0, 2.1, 2.2)  # of the epochs 1, 2, ...


def score(info, model):
    return {"Score": SCORES[info.epoch - 1]}


def monitoring(directory, epochs=8, patience=3, hook=score, **checkpoints):
    """Return a builder whose best checkpoint and early stopping follow the number of a hook, lower is better."""
    builder = quiet(directory, saves=True).num_epochs(epochs).on_epoch_end(hook)
    builder.with_file_checkpointer(monitor="custom/Score", mode="min", **{"every_epochs": 99, **checkpoints})
    return builder.early_stopping(MetricEarlyStopping("custom/Score", patience=patience))


def test_a_number_of_a_hook_selects_the_best_and_stops_early(tmp_path):
    """Epoch 5 is the best, and 6 and 7 do not improve on it; 3 and 4 do not improve on 2, and NaN never does."""
    result = build_line(monitoring(tmp_path / "run").restore_best()).fit(batches(), batches(8))
    assert result.stopped_by.startswith("early stopping: custom/Score")
    assert result.summary["epochs"] == 8
    assert (result.best_epoch, result.best_step) == (5, 5 * STEPS)
    five = build_line(quiet(tmp_path / "five").num_epochs(5)).fit(batches(), batches(8))
    assert model_bits(result.model) == model_bits(five.model)
    assert load_checkpoint(tmp_path / "run", "best", line()).score == 1.9
    assert result.summary["metrics"]["custom/Score"]["higher_is_better"] is False
    assert result.summary["metrics"]["custom/Score"]["best"] == {"epoch": 5, "step": 5 * STEPS, "value": 1.9}


def test_early_stopping_counts_a_number_where_it_is_logged(tmp_path):
    """The hook logs in every second epoch: 3, 2.5, 2.6, 2.7 at the epochs 2, 4, 6 and 8."""
    numbers = {2: 3.0, 4: 2.5, 6: 2.6, 8: 2.7}
    sparse = lambda info, model: {"Score": numbers[info.epoch]} if info.epoch in numbers else None  # noqa: E731
    result = build_line(monitoring(tmp_path / "run", 20, patience=2, hook=sparse)).fit(batches(), batches(8))
    assert result.summary["epochs"] == 8
    assert result.best_epoch == 4


@pytest.mark.full
def test_a_number_inside_an_epoch_counts_once(tmp_path):
    """The hook logs at the steps 3, 6 (the end of epoch 1), 9, ...; validations follow at the ends of epochs."""
    numbers = iter([5.0, 4.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    builder = quiet(tmp_path / "run", saves=True).num_epochs(9).every(3, lambda info, model: {"Score": next(numbers)})
    builder.with_file_checkpointer(monitor="custom/Score", mode="min", every_epochs=99)
    builder.early_stopping(MetricEarlyStopping("custom/Score", patience=4))
    result = build_line(builder).fit(batches(), batches(8))
    assert [p.step for p in result.history.points("custom/Score")] == [3, 6, 9, 12, 15, 18, 21]
    assert result.best_step == 9
    assert result.summary["steps"] == 21


def test_the_learning_rate_follows_a_number_of_a_hook(tmp_path):
    """After epoch 3, the second without an improvement in a row is that of epoch 4: the rate halves after it."""
    plateau = ReduceOnPlateau(0.04, "custom/Score", mode="min", factor=0.5, patience=1)
    builder = quiet(tmp_path / "run").num_epochs(6).metric_train(LearningRate()).on_epoch_end(score)
    learner = builder.build(line(), optax.sgd, plateau, train_step=line_step)
    result = learner.fit(batches())
    assert result.history["train/Learning Rate"] == pytest.approx([0.04, 0.04, 0.04, 0.04, 0.02, 0.02])
    assert result.summary["metrics"]["custom/Score"]["best"] == {"epoch": 5, "step": 5 * STEPS, "value": 1.9}


@pytest.mark.full
def test_a_resumed_run_keeps_the_count_and_the_best(tmp_path):
    plain = build_line(monitoring(tmp_path / "plain")).fit(shuffled(), batches(8))
    interrupter = Interrupter()

    def stopping(info, model):
        if info.epoch == 3:
            interrupter.stop()
        return score(info, model)

    builder = monitoring(tmp_path / "run", hook=stopping).interrupter(interrupter)
    assert build_line(builder).fit(shuffled(), batches(8)).stopped_by == "interrupter: interrupted"
    result = build_line(monitoring(tmp_path / "run").resume()).fit(shuffled(), batches(8))
    assert result.stopped_by == plain.stopped_by
    assert result.best_epoch == plain.best_epoch == 5
    assert saved_steps(tmp_path / "run") == saved_steps(tmp_path / "plain")
    assert model_bits(result.model) == model_bits(plain.model)
    best = result.best_step
    assert checkpoint_bits(tmp_path / "run", best) == checkpoint_bits(tmp_path / "plain", best)


class Logging(Learner):
    """A loop that logs a number after each step."""

    def loop(self, run):
        run.catch_up()
        with contextlib.closing(run.dispatches()) as dispatches:
            for dispatch in dispatches:
                run.check()
                run.train(dispatch)
                run.log_numbers({"Norm": np.float32([4, 3, 5, 6][run.position.step - 1])})
                run.end_step(ends_epoch=dispatch.ends_epoch)
                run.save_if_due()
                if run.stop_reason() is not None:
                    break
        return run.finish(run.stop_reason() or "num_epochs")


@pytest.mark.full
def test_numbers_of_a_loop_are_monitored(tmp_path):
    builder = quiet(tmp_path / "run", saves=True).learner_class(Logging).steps_per_dispatch(1)
    builder.with_file_checkpointer(monitor="custom/Norm", mode="min", every_epochs=99)
    builder.early_stopping(MetricEarlyStopping("custom/Norm", patience=2))
    result = build_line(builder).fit(batches())
    assert (result.summary["steps"], result.best_step) == (4, 2)


def test_processes_decide_by_the_numbers_of_the_first():
    asked, logged, applied = [], [], []

    class Second:
        count = 2

        def all_reduce_json(self, value, combine, what):
            asked.append(value)
            return combine([{"Score": 0.5}, value])

    reporter = types.SimpleNamespace(put=logged.append)
    validator = types.SimpleNamespace(apply_numbers=lambda numbers, step: applied.append((numbers, step)))
    log = NumberLog(reporter, validator, Second(), ["Score"])
    for numbers in ({"Score": np.float32(0.75), "Other": 1}, {}):
        log.log(numbers, Position(epoch=2, step=7), None)
    assert asked == [{"Score": 0.75, "Other": 1.0}, {}]
    assert applied == [({"Score": 0.5}, 7)] * 2
    assert [(item.split, item.values) for item in logged] == [("custom", {"Score": 0.5})] * 2


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("named", "hint"), [("score", "'Score'"), ("FID", "returned Score")])
def test_a_monitored_number_that_no_hook_returns_is_warned_about_once(tmp_path, named, hint):
    builder = quiet(tmp_path / "run").num_epochs(2).on_epoch_end(score)
    builder.early_stopping(MetricEarlyStopping(f"custom/{named}", "min"))
    with pytest.warns(LearnerWarning, match=hint) as caught:
        build_line(builder).fit(batches())
    assert len(caught) == 1


def test_a_hook_may_return_the_monitored_number_later(tmp_path):
    """Another hook returns a number in each epoch."""
    late = lambda info, model: {"Score-1k": 1.0} | ({"Score": 1.0} if info.epoch == 2 else {})  # noqa: E731
    builder = quiet(tmp_path / "run").num_epochs(2).on_epoch_end(lambda info, model: {"Norm": 1.0}).on_epoch_end(late)
    builder.early_stopping(MetricEarlyStopping("custom/Score", "min"))
    assert build_line(builder).fit(batches()).history["custom/Score"] == [1.0]


def test_a_monitored_number_that_is_never_returned_is_warned_about_at_the_end(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(2).on_epoch_end(lambda info, model: None)
    builder.early_stopping(MetricEarlyStopping("custom/Score", "min"))
    with pytest.warns(LearnerWarning, match="custom/Score is monitored"):
        build_line(builder).fit(batches())


def test_an_interrupted_run_may_end_before_the_number_is_due(tmp_path):
    interrupter = Interrupter()
    builder = quiet(tmp_path / "run").num_epochs(2).on_epoch_end(lambda info, model: interrupter.stop("enough"))
    builder.early_stopping(MetricEarlyStopping("custom/Score", "min")).interrupter(interrupter)
    assert build_line(builder).fit(batches()).stopped_by == "interrupter: enough"


def test_a_monitored_number_needs_a_hook_and_a_direction(tmp_path):
    stopping = MetricEarlyStopping("custom/Score")
    with raises_code("monitor-metric", "there is no hook"):
        build_line(quiet(tmp_path / "run").early_stopping(stopping)).fit(batches())
    with raises_code("monitor-metric", "mode='min'"):
        build_line(quiet(tmp_path / "run").early_stopping(stopping).on_epoch_end(score)).fit(batches())


def test_the_direction_of_one_monitor_holds_for_the_others(tmp_path):
    builder = monitoring(tmp_path / "run", epochs=1).early_stopping(MetricEarlyStopping("custom/Score", patience=9))
    builder.metric_loggers(Webhook("http://localhost:1", ["failure"], monitors=["custom/Score"]))
    assert build_line(builder).fit(batches()).best_epoch == 1
