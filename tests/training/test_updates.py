"""Tests of `Updates`: hooks that change the model and the learning rate of a run."""

import contextlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import Learner, LearnerWarning, Updates
from learner.distributed.consensus import Consensus
from learner.optimizers import Ema
from learner.schedules import ReduceOnPlateau
from learner.strategies import Replicated, Sharded, fsdp
from learner.training.hooks import HookCaller
from learner.training.progress.position import Position
from learner.training.stopping import StopController, StopRequest
from tests.support.codes import raises_code
from tests.support.process_groups import errors_of_all, groups
from tests.support.runs import (
    Net,
    T,
    X,
    batches,
    build_line,
    build_net,
    checkpoint_bits,
    journal_of,
    line,
    line_step,
    logs_of,
    model_bits,
    quiet,
    shuffled,
)

pytestmark = pytest.mark.usefixtures("compiled_once")
BOUND = 0.15


def clip(info, model):
    return Updates(model={**model, "w": jnp.clip(model["w"], -BOUND, BOUND)}, values={"step": info.step})


@pytest.mark.parametrize(
    ("updates", "text"),
    [
        ([None, {"lr_scale": 0.1}], "none in process 0; lr_scale=0.1 in process 1"),
        ([{"lr_scale": 0.1, "values": {"a": 1}}, {"lr_scale": 0.1, "values": {"a": 2}}], ""),
        ([{"model": 1.0}, {"model": 2.0}], "model=<checksum "),
        ([{"model": 1.0}, {"model": 1.0, "lr_scale": 1.0}], "lr_scale=1.0, model=<checksum "),
        ([{"stop": "here, at 1"}, {"stop": "here, at 2"}], ""),
    ],
    ids=["one", "values", "model", "more", "stop"],
)
def test_processes_whose_hooks_return_other_updates_end(updates, text):
    members, _ = groups(2)

    def run(index):
        stop = StopController(StopRequest(), consensus=Consensus(members[index], clock=lambda: 0.0))
        ignore = lambda *arguments, **fields: None  # noqa: E731
        runner = SimpleNamespace(model=float, arrays_of=lambda model: {"w": np.float32(model)})
        runner.attributes_of, runner.replace_model, runner.scale_lr = lambda model: {}, ignore, ignore
        reporter = SimpleNamespace(newest=dict, halted=None, journal=ignore)
        numbers, validator = SimpleNamespace(log=ignore), SimpleNamespace(sets_lr=False)

        def change(info, model):
            return None if updates[index] is None else Updates(**updates[index])

        HookCaller(runner, reporter, numbers, stop, validator).call([change], Position(epoch=1, step=20), None)
        stop.compare_processes()

    errors = errors_of_all(2, run)
    assert {getattr(error, "code", "") for error in errors} == {"process-updates-differ" if text else ""}
    if text:
        assert all("the hook change" in str(error) and text in str(error) for error in errors)


def numpy_descent(steps, *, lr=lambda step: 0.05, bound=np.inf, every=1, rows=4):
    """Train the line by gradient descent in NumPy, clipping after every `every` steps; an epoch has 6 batches."""
    w, b = np.zeros((3, 1)), np.zeros(1)
    for step in range(1, steps + 1):
        i = (step - 1) % 6 * rows
        x, t = X[i : i + rows].astype(np.float64), T[i : i + rows].astype(np.float64)
        error = 2 * (x @ w + b - t) / rows
        w, b = w - lr(step) * x.T @ error, b - lr(step) * error.sum(0)
        if step % every == 0:
            w = np.clip(w, -bound, bound)
    return w, b


@pytest.mark.parametrize("every", [1, 3])
def test_clipped_weights_equal_numpy(tmp_path, every):
    builder = quiet(tmp_path).num_epochs(2).every(every, clip)
    result = build_line(builder).fit(batches())
    w, b = numpy_descent(12, bound=BOUND, every=every)
    np.testing.assert_allclose(result.model["w"], w, atol=1e-6)
    np.testing.assert_allclose(result.model["b"], b, atol=1e-6)
    assert [point.step for point in result.history.points("custom/step")][:2] == [every, 2 * every]
    lines = [line for line in journal_of(tmp_path) if line["event"] == "update"]
    assert [line["step"] for line in lines] == list(range(every, 13, every))
    assert (lines[0]["hook"], lines[0]["model"], lines[0]["lr_scale"]) == ("clip", True, None)


def test_lr_scale_applies_from_the_next_step_on(tmp_path):
    def halve(info, model):
        return Updates(lr_scale=0.5**info.epoch)

    result = build_line(quiet(tmp_path).num_epochs(3).on_epoch_end(halve)).fit(batches())
    w, b = numpy_descent(18, lr=lambda step: 0.05 * 0.5 ** ((step - 1) // 6))
    np.testing.assert_allclose(result.model["w"], w, atol=1e-6)
    np.testing.assert_allclose(result.model["b"], b, atol=1e-6)


class Halving(Learner):
    """A learner whose loop halves the rate every four steps."""

    def loop(self, run):
        run.catch_up()
        with contextlib.closing(run.dispatches()) as dispatches:
            for dispatch in dispatches:
                run.check()
                run.train(dispatch)
                if run.position.step % 4 == 0:
                    run.scale_lr(0.5 ** (run.position.step // 4))
                run.end_step(ends_epoch=dispatch.ends_epoch)
                run.save_if_due()
                if run.stop_reason() is not None:
                    break
        return run.finish(run.stop_reason() or "num_epochs")


@pytest.mark.parametrize("stop", [4, 6])
def test_factor_of_a_loop_is_that_of_a_resumed_run(tmp_path, stop):
    for steps in (stop, 12):
        builder = quiet(tmp_path / "run", saves=True).num_epochs(9).num_steps(steps).resume().steps_per_dispatch(1)
        result = build_line(builder.learner_class(Halving)).fit(batches())
    w, b = numpy_descent(12, lr=lambda step: 0.05 * 0.5 ** ((step - 1) // 4))
    np.testing.assert_allclose(result.model["w"], w, atol=1e-6)
    np.testing.assert_allclose(result.model["b"], b, atol=1e-6)


@pytest.mark.parametrize(
    ("factor", "lr", "code"),
    [(-0.5, 0.05, "run-lr-scale"), (0.5, ReduceOnPlateau(0.05, "valid/Loss"), "run-lr-scale-plateau")],
)
def test_factor_of_a_loop_that_no_run_can_have_is_refused(tmp_path, factor, lr, code):
    class Scaling(Learner):
        def loop(self, run):
            run.scale_lr(factor)

    learner = build_line(quiet(tmp_path).learner_class(Scaling), lr)
    with raises_code(code):
        learner.fit(batches(), batches())


def test_a_hook_sees_the_changes_of_the_previous_hook(tmp_path):
    seen = []
    builder = quiet(tmp_path).every(6, clip).every(6, lambda info, model: seen.append(float(abs(model["w"]).max())))
    build_line(builder).fit(batches())
    assert seen == [np.float32(BOUND)]


def test_the_arrays_of_the_hook_are_not_changed(tmp_path):
    mine = {"w": jnp.ones((3, 1)), "b": np.zeros(1)}  # b is float64
    result = build_line(quiet(tmp_path).every(3, lambda info, model: Updates(model=mine))).fit(batches())
    assert (np.asarray(mine["w"]) == 1).all()
    assert result.model["b"].dtype == jnp.float32


@pytest.mark.full
@pytest.mark.parametrize("steps", [1, pytest.param(5, marks=pytest.mark.full)])
def test_a_resumed_run_applies_each_update_once(tmp_path, steps):
    def update(info, model):
        return Updates(model=jax.tree.map(lambda x: 0.9 * x, model), lr_scale=0.9**info.step)

    def fit(name, stop_after, per_dispatch):
        builder = quiet(tmp_path / name, saves=True).num_epochs(3).every(4, update).on_epoch_end(update).resume()
        builder.with_file_checkpointer(keep_last=99, keep_best=0, every_steps=3).steps_per_dispatch(per_dispatch)
        return build_line(builder.num_steps(stop_after)).fit(shuffled())

    whole = fit("whole", 18, 4)
    for stop_after in (steps, steps + 3, 8, 12, 18):
        again = fit("again", stop_after, 1)
    assert model_bits(again.model) == model_bits(whole.model)
    assert logs_of(tmp_path / "again") == logs_of(tmp_path / "whole")
    assert checkpoint_bits(tmp_path / "again", 18) == checkpoint_bits(tmp_path / "whole", 18)


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(None, marks=pytest.mark.full),
        lambda: Replicated(jax.devices()[:2]),
        pytest.param(lambda: Sharded(rules=fsdp(1), devices=jax.devices()[:2]), marks=pytest.mark.full),
    ],
)
def test_returning_the_unchanged_model_changes_nothing(tmp_path, strategy):
    """The model has running statistics, dropout and an Adam state, on one device and on several."""

    def fit(name, hook):
        builder = quiet(tmp_path / name).num_epochs(2).every(2, hook)
        if strategy is not None:
            builder.strategy(strategy())
        return build_net(builder).fit(shuffled())

    same = fit("same", lambda info, model: Updates(model=model))
    assert model_bits(same.model) == model_bits(fit("none", lambda info, model: None).model)


@pytest.mark.full
def test_a_hook_may_change_an_nnx_model_in_place(tmp_path):
    def reset(info, model):
        model.out.kernel[...] = jnp.zeros_like(model.out.kernel[...])
        return Updates(model=model)

    result = build_net(quiet(tmp_path).num_epochs(1).on_epoch_end(reset), Net()).fit(batches(rows=24))
    assert not np.asarray(result.model.out.kernel[...]).any()
    assert np.asarray(result.model.hidden.kernel[...]).any()


@pytest.mark.parametrize(
    ("update", "code"),
    [
        (lambda model: Updates(model={**model, "w": jnp.zeros((2, 1))}), "step-hook-model"),
        (lambda model: Updates(model={"w": model["w"]}), "step-hook-model"),
        (lambda model: Updates(model=3.0), "step-hook-model"),
        (lambda model: Updates(model={**model, "w": jnp.zeros((3, 1), jnp.int32)}), "step-hook-model"),
        (lambda model: Updates(lr_scale=-1.0), "step-hook-lr-scale"),
        (lambda model: Updates(lr_scale=float("nan")), "step-hook-lr-scale"),
        (lambda model: Updates(values=3), "step-hook-returns"),
        (lambda model: Updates(stop=True), "step-hook-stop"),
        (lambda model: Updates(stop=""), "step-hook-stop"),
        (lambda model: Updates(stop=np.ones(2)), "step-hook-stop"),
    ],
)
def test_invalid_updates_are_refused(tmp_path, update, code):
    with raises_code(code):
        build_line(quiet(tmp_path).every(2, lambda info, model: update(model))).fit(batches())


@pytest.mark.full
def test_lr_scale_with_a_plateau_scheduler_is_refused(tmp_path):
    builder = quiet(tmp_path).on_epoch_end(lambda info, model: Updates(lr_scale=0.5))
    with raises_code("step-hook-plateau"):
        build_line(builder, lr=ReduceOnPlateau(0.1)).fit(batches(), batches())


@pytest.mark.full
def test_updating_an_averaged_model_is_refused(tmp_path):
    learner = quiet(tmp_path).every(2, clip).build(line(), Ema(optax.sgd, 0.9), 0.05, train_step=line_step)
    with raises_code("step-hook-averaged"):
        learner.fit(batches())


def test_statistics_of_an_averaged_model_may_change(tmp_path):
    """No average stands for them, unlike for parameters."""

    def reset(info, model):
        model.norm.mean[...] = jnp.full(4, 7.0)
        return Updates(model=model)

    def fit(name, *hooks):
        builder = quiet(tmp_path / name).num_epochs(2)
        for hook in hooks:
            builder.on_epoch_end(hook)
        return builder.build(Net(), Ema(optax.sgd, 0.9), 0.05).fit(batches(rows=24)).model

    changed, same = fit("changed", reset), fit("same")
    np.testing.assert_array_equal(changed.norm.mean[...], np.full(4, 7.0))
    np.testing.assert_array_equal(changed.hidden.kernel[...], same.hidden.kernel[...])


def test_a_returned_attribute_that_is_no_variable_is_warned_about_once(tmp_path):
    class Dropping(nnx.Module):
        def __init__(self):
            self.inner, self.drop = Net(), nnx.Dropout(0.5, rngs=nnx.Rngs(0))

        def train_step(self, batch):
            return self.inner.train_step({**batch, "x": self.drop(batch["x"])})

    def anneal(info, model):
        model.drop.rate *= 0.5
        return Updates(model=model)

    learner = quiet(tmp_path / "run").num_epochs(3).on_epoch_end(anneal).build(Dropping(), optax.sgd, 0.05)
    with pytest.warns(LearnerWarning, match=r"anneal .* drop\.rate") as caught:
        learner.fit(batches(rows=24))
    assert len(caught) == 1


def in_place(info, model):
    model.out.bias[...] = model.out.bias[...] + 1


def compiled(info, model):
    """Assign each array to itself, as `nnx.jit` does."""
    nnx.jit(lambda model: model.hidden(X[:2]))(model)


@pytest.mark.parametrize(("hook", "count"), [(in_place, 1), (compiled, 0)])
def test_a_change_that_a_hook_does_not_return_is_warned_about_once(tmp_path, hook, count):
    build_net(quiet(tmp_path).num_epochs(2).on_epoch_end(hook), Net()).fit(batches(rows=24))
    log = (tmp_path / "experiment.log").read_text()
    assert log.count("WARNING the hook") == log.count("changed out.bias of its model") == count


def test_a_hook_gets_no_change_that_another_one_did_not_return(tmp_path):
    def lost(info, model):
        model["w"] = model["w"] + 7

    def counted(info, model):
        return Updates(model={**model, "b": model["b"] + 1})

    def fit(name, *hooks):
        builder = quiet(tmp_path / name).num_epochs(1)
        for hook in hooks:
            builder.every(3, hook)
        return model_bits(build_line(builder).fit(batches()).model)

    assert fit("both", lost, counted) == fit("one", counted)


def test_a_hook_may_end_the_run(tmp_path):
    """The run resumes behind the step of the hook."""

    def end(info, model):
        return Updates(stop=np.bool_(info.step == 4) and "enough", values={"n": info.step})

    result = build_line(quiet(tmp_path, saves=True).num_epochs(2).every(2, end)).fit(batches())
    assert (result.summary["stopped_by"], result.summary["steps"]) == ("hook end: enough", 4)
    assert result.history["custom/n"] == [2, 4]
    resumed = build_line(quiet(tmp_path, saves=True).num_epochs(2).every(2, end).resume()).fit(batches())
    whole = build_line(quiet(tmp_path / "whole").num_epochs(2)).fit(batches())
    assert (resumed.summary["stopped_by"], resumed.summary["steps"]) == ("num_epochs", 12)
    assert model_bits(resumed.model) == model_bits(whole.model)
