"""End-to-end tests of training: results and files of `fit`, for every kind of data and length."""

import contextlib
import dataclasses
import functools
import itertools
import platform
import re

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import Learner
from learner.data import ArrayDataset, DataLoaderBuilder
from learner.metrics import AUROC, Accuracy, LearningRate
from learner.runs.history import read_history
from tests.support.codes import raises_code
from tests.support.redrawn import REDRAWN
from tests.support.runs import (
    BATCH,
    ROWS,
    STEPS,
    LastRow,
    T,
    X,
    arrays,
    batches,
    bits,
    build_line,
    line,
    line_step,
    logs_of,
    model_bits,
    numbers_in,
    numbers_of,
    quiet,
    saved_steps,
    shuffled,
    tree_of,
    valid_data,
)
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("optimized", "compiled_once")

RATE = 0.05
ragged = functools.partial(batches, rows=ROWS)


class ByHand:
    """The linear model, trained with gradient descent in NumPy's float64."""

    def __init__(self):
        self.w, self.b = np.zeros((3, 1)), np.zeros(1)

    def loss(self, batch):
        return np.mean((batch["x"] @ self.w + self.b - batch["t"]) ** 2)

    def step(self, parts, rate=RATE):
        """Perform one step over micro-batches, as if they were one batch. Return the loss before it, and the number of
        rows.
        """
        batch = {k: np.concatenate([part[k] for part in parts]).astype(np.float64) for k in ("x", "t")}
        loss, error = self.loss(batch), batch["x"] @ self.w + self.b - batch["t"]
        rows = len(error)
        self.w -= rate * 2 / rows * batch["x"].T @ error
        self.b -= rate * 2 / rows * error.sum(0)
        return loss, rows


# -- what is computed --------------------------------------------------------------------------------------------------


def test_every_number_of_a_run_equals_the_same_loop_in_numpy(tmp_path):
    result = build_line(quiet(tmp_path / "run").num_epochs(3), RATE).fit(ragged(), ragged(9))
    model, logs = ByHand(), logs_of(tmp_path / "run")
    for epoch in (1, 2, 3):
        steps = [model.step([batch]) for batch in ragged()]
        values, weights, last = numbers_in(logs[f"train/epoch-{epoch}/Loss.log"])
        np.testing.assert_allclose(values, [loss for loss, _ in steps], rtol=1e-5)
        assert weights.tolist() == [rows for _, rows in steps] == [4, 4, 4, 4, 4, 2]
        mean = sum(loss * rows for loss, rows in steps) / ROWS
        np.testing.assert_allclose(float(last[0]), mean, rtol=1e-5)
        values, weights, last = numbers_in(logs[f"valid/epoch-{epoch}/Loss.log"])
        np.testing.assert_allclose(values, [model.loss(batch) for batch in ragged(9)], rtol=1e-5)
        assert weights.tolist() == [9, 9, 4]
        np.testing.assert_allclose(float(last[0]), model.loss(arrays(ROWS)), rtol=1e-5)
    np.testing.assert_allclose(result.model["w"], model.w, rtol=1e-5)
    np.testing.assert_allclose(result.model["b"], model.b, rtol=1e-5)


def test_a_hand_written_loop_of_the_same_steps_has_the_same_bits(tmp_path):
    result = build_line(quiet(tmp_path / "run"), 0.1, optax.adamw).fit(batches()[:5])
    optimizer, stacked = optax.adamw(0.1), jax.tree.map(lambda *x: np.stack(x), *batches()[:5])

    @jax.jit
    def train(params, opt_state, stacked, count):
        def body(i, carry):
            params, opt_state, losses = carry
            batch = jax.tree.map(lambda x: x[i], stacked)
            loss, grads = jax.value_and_grad(lambda p: line_step(p, batch).loss)(params)
            with jax.numpy_dtype_promotion("standard"):
                updates, opt_state = optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, losses.at[i].set(loss)

        return jax.lax.fori_loop(0, count, body, (params, opt_state, jnp.zeros(5)))

    params, _, losses = train(line(), optimizer.init(line()), stacked, np.int32(5))
    logged, _, _ = numbers_in(logs_of(tmp_path / "run")["train/epoch-1/Loss.log"])
    if platform.machine() == "x86_64" and jax.default_backend() == "cpu":
        assert bits(result.model) == bits(params)
        assert logged.astype(np.float32).tolist() == losses.tolist()
    np.testing.assert_array_max_ulp(np.asarray(result.model["w"]), np.asarray(params["w"]), maxulp=10)


@pytest.mark.full
def test_learning_rate_of_each_step_is_logged(tmp_path):
    schedule = optax.linear_schedule(0.1, 0.01, 9)
    builder = quiet(tmp_path / "run").num_epochs(2).metric_train(LearningRate())
    build_line(builder, schedule).fit(batches(), batches())
    texts = [logs_of(tmp_path / "run")[f"train/epoch-{epoch}/Learning_Rate.log"] for epoch in (1, 2)]
    values = np.concatenate([numbers_in(text)[0] for text in texts])
    np.testing.assert_allclose(values, [0.1 - 0.01 * min(step, 9) for step in range(12)], rtol=1e-6)


@pytest.mark.full
def test_the_epoch_of_a_metric_that_collects_sees_each_row_once_in_order(tmp_path):
    loader = shuffled(rows=ROWS)
    builder = quiet(tmp_path / "run").num_epochs(2).metrics(LastRow()).grads_accumulation(2)
    history = build_line(builder).fit(loader, valid_data(9)).history
    for epoch in (1, 2):
        expected = np.dot(np.arange(1, ROWS + 1), T[loader.order(epoch), 0].astype(np.float64))
        assert history["train/Last Row"][epoch - 1] == pytest.approx(expected, rel=1e-5)
        expected = np.dot(np.arange(1, 21), T[:20, 0].astype(np.float64))
        assert history["valid/Last Row"][epoch - 1] == pytest.approx(expected, rel=1e-5)


# -- the model -------------------------------------------------------------------------------------------------------


def test_a_function_that_makes_the_model_and_data_given_to_build(tmp_path):
    calls = []

    def make():
        calls.append(line())
        return calls[-1]

    learner = quiet(tmp_path / "run").build(
        make, optax.sgd, RATE, batches(), batches(9), train_step=line_step, valid_step=line_step
    )
    expected, result = build_line(quiet(tmp_path / "given"), RATE).fit(batches(), batches(9)), learner.fit()
    assert bits(result.model) == bits(expected.model)
    assert result.history == expected.history
    assert len(calls) == 1


def test_one_epoch_without_validation_and_no_second_fit(tmp_path):
    learner = build_line(quiet(tmp_path / "run").with_file_checkpointer(keep_best=1))
    result = learner.fit(batches())
    assert result.summary["epochs"] == 1  # the default
    assert set(result.history) == {"train/Loss"}
    assert {path.split("/")[0] for path in logs_of(tmp_path / "run")} == {"train"}
    before = tree_of(tmp_path)
    with raises_code("learner-already-fitted"):
        learner.fit(batches())
    assert tree_of(tmp_path) == before


# -- data of every kind ------------------------------------------------------------------------------------------------


class Unsized:
    """An iterable without a length."""

    def __iter__(self):
        return iter(ragged())


class Sized:
    """An iterable with a length, like other libraries' loaders."""

    def __iter__(self):
        return iter(ragged())

    def __len__(self):
        return STEPS


def items():
    return [{k: v[i] for k, v in arrays(ROWS).items()} for i in range(ROWS)]


def stack(rows):
    return {k: np.stack([row[k] for row in rows]) for k in rows[0]}


def grain_map():
    return grain.MapDataset.source(items()).batch(BATCH, batch_fn=stack)


DATA = {
    "list": ragged,
    "tuple": lambda: tuple(ragged()),
    "unsized iterable": Unsized,
    "sized iterable": Sized,
    "generator function": lambda: lambda: (batch for batch in ragged()),
    "loader of arrays": lambda: DataLoaderBuilder().batch_size(BATCH).build(arrays(ROWS)),
    "loader of items": lambda: DataLoaderBuilder().batch_size(BATCH).build(items()),
    "grain map": grain_map,
    "grain iter": lambda: grain_map().to_iter_dataset(),
    "jax arrays": lambda: [jax.tree.map(jnp.asarray, batch) for batch in ragged()],
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, compiled_once):
    directory = tmp_path_factory.mktemp("reference") / "run"
    result = build_line(quiet(directory).num_epochs(2).grads_accumulation(2)).fit(ragged(), ragged(9))
    return model_bits(result.model), logs_of(directory)


MOST = {"unsized iterable", "loader of arrays"}


@pytest.mark.full
@pytest.mark.parametrize("kind", some(DATA, MOST))
def test_form_of_the_data_does_not_change_the_run(tmp_path, reference, kind):
    learner = build_line(quiet(tmp_path / "run").num_epochs(2).grads_accumulation(2))
    result = learner.fit(DATA[kind](), ragged(9))
    assert (model_bits(result.model), logs_of(tmp_path / "run")) == reference


@pytest.mark.full
@pytest.mark.parametrize("kind", some(DATA, {"grain map"}))
def test_validation_data_in_any_form(tmp_path, reference, kind):
    learner = build_line(quiet(tmp_path / "run").num_epochs(2))
    history = learner.fit(ragged()[:2], DATA[kind]()).history
    assert len(set(history["valid/Loss"])) == 2
    values, weights, last = numbers_in(logs_of(tmp_path / "run")["valid/epoch-2/Loss.log"])
    assert weights.tolist() == [4, 4, 4, 4, 4, 2]
    assert float(last[0]) == pytest.approx((values * weights).sum() / ROWS, rel=1e-5)


@pytest.mark.full
def test_a_dataset_with_a_batch_size_is_shuffled_by_the_seed(tmp_path):
    dataset, models = ArrayDataset(arrays()), []
    for number, (seed, data) in enumerate(
        [(4, dataset), (4, DataLoaderBuilder().batch_size(BATCH).shuffle(4).build(dataset)), (5, dataset)]
    ):
        builder = quiet(tmp_path / str(number)).num_epochs(2).seed(seed).with_batch_size(BATCH)
        models.append(model_bits(build_line(builder).fit(data, dataset).model))
        weights = numbers_in(logs_of(tmp_path / str(number))["valid/epoch-1/Loss.log"])[1]
        assert weights.tolist() == [4] * 6
    assert models[0] == models[1] != models[2]


@pytest.mark.full
def test_several_validation_sets(tmp_path):
    first, second = batches(8)[:1], batches(8)[1:]
    builder = quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer(monitor="valid-ood/Loss")
    result = build_line(builder).fit(batches(), {"dev": first, "ood": second})
    assert set(result.history) == {"train/Loss", "valid-dev/Loss", "valid-ood/Loss"}
    logs = logs_of(tmp_path / "run")
    assert numbers_in(logs["valid-dev/epoch-2/Loss.log"])[1].tolist() == [8]
    assert numbers_in(logs["valid-ood/epoch-2/Loss.log"])[1].tolist() == [8, 8]
    alone = build_line(quiet(tmp_path / "alone").num_epochs(2)).fit(batches(), second)
    assert alone.history["valid/Loss"] == result.history["valid-ood/Loss"]


# -- length ------------------------------------------------------------------------------------------------------------


def endless():
    return itertools.cycle(batches())


RUNS_BY_STEPS = {
    "endless generator function": lambda: endless,
    "one-shot iterator": endless,
    "generator": lambda: (batch for batch in endless()),
    "list, over epochs": batches,
}


@pytest.mark.parametrize("kind", some(RUNS_BY_STEPS, {"endless generator function", "generator"}))
def test_num_steps(tmp_path, kind):
    result = build_line(quiet(tmp_path / "run", saves=True).num_steps(14), RATE).fit(RUNS_BY_STEPS[kind](), batches(8))
    model = ByHand()
    for batch in itertools.islice(endless(), 14):
        model.step([batch])
    np.testing.assert_allclose(result.model["w"], model.w, rtol=1e-5)
    assert (result.stopped_by, result.summary["steps"]) == ("num_steps", 14)
    assert result.history["valid/Loss"][-1] == pytest.approx(model.loss(arrays()), rel=1e-5)
    assert result.history.points("train/Loss")[-1].step == 14
    assert saved_steps(tmp_path / "run")[-1] == 14


def test_num_steps_at_the_end_of_an_epoch(tmp_path):
    result = build_line(quiet(tmp_path / "run").num_steps(12)).fit(batches(), batches(8))
    assert [point.step for point in result.history.points("valid/Loss")] == [6, 12]
    assert result.summary["epochs"] == 2


@pytest.mark.full
def test_num_steps_counts_optimizer_steps(tmp_path):
    learner = build_line(quiet(tmp_path / "run").num_steps(3).grads_accumulation(4))
    assert learner.fit(batches()).summary["steps"] == 3
    assert numbers_in(logs_of(tmp_path / "run")["train/epoch-2/Loss.log"])[1].tolist() == [16]


@pytest.mark.parametrize(("epochs", "steps", "ended_by"), [(2, 50, "num_epochs"), (9, 7, "num_steps")])
def test_run_ends_at_the_earlier_of_epochs_and_steps(tmp_path, epochs, steps, ended_by):
    result = build_line(quiet(tmp_path / "run").num_epochs(epochs).num_steps(steps)).fit(batches())
    assert result.stopped_by == ended_by
    assert result.summary["steps"] == min(epochs * STEPS, steps)


def test_a_one_shot_iterator_is_one_epoch(tmp_path):
    result = build_line(quiet(tmp_path / "run")).fit(iter(batches()), iter(batches(8)))
    assert result.summary["steps"] == STEPS
    assert len(result.history["valid/Loss"]) == 1


def test_rejected_fit_consumes_no_batch_of_a_generator(tmp_path):
    data = (batch for batch in batches())
    with raises_code("learner-valid-every-without-data"):
        build_line(quiet(tmp_path / "refused").valid_every(steps=1)).fit(data)
    assert build_line(quiet(tmp_path / "run")).fit(data).summary["steps"] == STEPS


def refused_fit(learner, data, valid):
    with raises_code("learner-untrainable"):
        learner.fit(data, {"one": valid})


LOOKS = {
    "overview": lambda learner, data, valid: learner.overview(data),
    "sharding_report": lambda learner, data, valid: learner.sharding_report(data),
    "find_lr": lambda learner, data, valid: learner.find_lr(data, steps=3),
    "profile": lambda learner, data, valid: learner.profile(data, steps=(1, 2)),
    "check": lambda learner, data, valid: learner.check(data, {"one": valid}, only=["overlap"]),
    "refused fit": refused_fit,
}
EACH_LOOK = list(itertools.product(LOOKS, REDRAWN))


@pytest.mark.parametrize(("look", "make"), some(EACH_LOOK, [*EACH_LOOK[:1], *EACH_LOOK[-3:]]))
def test_a_look_at_the_data_does_not_change_it(tmp_path, monkeypatch, look, make):
    """Otherwise the numbers of a `fit` depend on what was called before it."""
    monkeypatch.chdir(tmp_path)
    builder = quiet(tmp_path / "run").num_epochs(3)
    builder = builder.metrics(Accuracy()) if look == "refused fit" else builder
    data, valid = make(), make()
    LOOKS[look](build_line(builder), data, valid)
    for given in (data, valid):
        expected = make()
        for _ in range(2):
            epochs = [list(each() if callable(each) else each) for each in (given, expected)]
            np.testing.assert_array_equal(*([batch["x"] for batch in epoch] for epoch in epochs))


def test_validation_inside_epochs(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(2).valid_every(steps=4)
    result = build_line(builder, RATE).fit(batches(), batches(8))
    assert [(p.epoch, p.step) for p in result.history.points("valid/Loss")] == [(1, 4), (1, 6), (2, 8), (2, 12)]
    lines = logs_of(tmp_path / "run")["valid/epoch-1/Loss.log"].splitlines()
    assert [line.split(",")[1] for line in lines] == ["8", "8", "8", "final@4", "8", "8", "8", "final"]
    assert [(line["event"], line["step"]) for line in numbers_of(tmp_path / "run")] == [
        ("validation", 4),
        ("epoch", 6),
        ("validation", 8),
        ("epoch", 12),
    ]
    assert read_history(tmp_path / "run") == result.history
    model = ByHand()
    for batch in batches()[:4]:
        model.step([batch])
    assert result.history["valid/Loss"][0] == pytest.approx(model.loss(arrays()), rel=1e-5)


def test_validation_without_epochs(tmp_path):
    builder = quiet(tmp_path / "run").num_steps(11).valid_every(steps=4)
    result = build_line(builder).fit(endless, batches(8))
    assert [p.step for p in result.history.points("valid/Loss")] == [4, 8, 11]
    assert [p.step for p in result.history.points("train/Loss")] == [11]
    assert read_history(tmp_path / "run") == result.history


# -- numbers that are none ---------------------------------------------------------------------------------------------


def test_nan_raises_and_keeps_the_previous_checkpoint(tmp_path):
    spoilt = [dict(batch) for batch in batches()]
    epochs = iter([batches(), batches(), spoilt, spoilt])
    spoilt[2]["t"] = np.full_like(spoilt[2]["t"], np.nan)
    builder = quiet(tmp_path / "run").num_epochs(4).with_file_checkpointer(keep_last=1, keep_best=1)
    result = build_line(builder.on_nonfinite("ignore")).fit(lambda: iter(next(epochs)), batches(8))
    losses = result.history["train/Loss"]
    assert np.isfinite(losses[:2]).all()
    assert np.isnan(losses[2:]).all()
    text = logs_of(tmp_path / "run")["train/epoch-3/Loss.log"]
    assert [line.split(",")[0] == "nan" for line in text.splitlines()] == [False, False, *[True] * 5]
    assert saved_steps(tmp_path / "run") == [12, 24]
    assert np.isfinite(result.best_model["w"]).all()
    assert np.isnan(result.model["w"]).all()
    assert result.summary["metrics"]["valid/Loss"]["best"]["epoch"] == 2


# -- without fit -------------------------------------------------------------------------------------------------------


def test_evaluate_and_predict_after_training(tmp_path):
    learner = build_line(quiet(tmp_path / "run").num_epochs(2).metrics(LastRow()))
    result = learner.fit(batches(), valid_data())
    before = tree_of(tmp_path)
    assert learner.evaluate(valid_data()) == {key: result.history[f"valid/{key}"][-1] for key in ("Last Row", "Loss")}
    rows = np.concatenate([output.predictions for output in learner.predict(batches(5))])
    model = {name: np.asarray(x) for name, x in result.model.items()}
    np.testing.assert_allclose(rows, X @ model["w"] + model["b"], rtol=1e-5, atol=1e-6)
    assert tree_of(tmp_path) == before


def test_predict_refuses_integers_that_the_device_would_wrap(tmp_path):
    batch = {**batches(8)[0], "id": np.full(8, 2**40)}
    with raises_code("batch-integer-too-large", "'id'", "1099511627776", split="given"):
        list(build_line(quiet(tmp_path / "run")).predict([batch]))


def test_impossible_evaluation_does_not_train(tmp_path):
    learner = build_line(quiet(tmp_path / "run").metrics(Accuracy(), AUROC()))
    with raises_code("learner-untrainable", "this cannot be evaluated, 2 problems"):
        learner.evaluate(batches(8))


def test_evaluate_before_training_uses_the_given_model(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    assert learner.evaluate(batches(8)) == {"Loss": pytest.approx(np.mean(T.astype(np.float64) ** 2), rel=1e-5)}
    assert list(tmp_path.iterdir()) == []
    assert learner.fit(batches()).summary["steps"] == STEPS


@pytest.mark.full
@pytest.mark.parametrize("start", some(["resume", "best", "epoch"], {"best"}))
def test_evaluate_uses_the_requested_checkpoint(tmp_path, start):
    builder = quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer(keep_last=3)
    history = build_line(builder, 0.3).fit(batches(), batches(8)).history["valid/Loss"]
    builder = quiet(tmp_path / "run")
    builder = builder.resume() if start == "resume" else builder.checkpoint(epoch=1 if start == "epoch" else "best")
    expected = {"resume": history[-1], "epoch": history[0], "best": min(history)}[start]
    assert build_line(builder).evaluate(batches(8)) == {"Loss": expected}


@pytest.mark.full
def test_the_pure_functions_train_the_same_model(tmp_path):
    learner = build_line(quiet(tmp_path / "run"), RATE)
    step, state, model = jax.jit(learner.train_step), learner.init(), ByHand()
    for batch in batches():
        state, values = step(state, batch)
        loss, rows = model.step([batch])
        assert float(values["Loss"]) == pytest.approx(loss, rel=1e-5)
        assert float(values["weight"]) == rows
    np.testing.assert_allclose(state.params["w"], model.w, rtol=1e-5)
    valid = jax.jit(learner.valid_step)(state, batches(8)[0])
    assert float(valid["Loss"]) == pytest.approx(model.loss(batches(8)[0]), rel=1e-5)
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_allclose(learner.fit(batches()).model["w"], model.w, rtol=1e-5)


@pytest.mark.full
def test_many_rates_at_once(tmp_path):
    """A program is pure in its state, so `vmap` trains several rates at once."""
    learner = build_line(quiet(tmp_path / "run"), RATE)
    rates = np.float32([0.01, RATE])
    state = learner.init()
    states = jax.vmap(lambda rate: dataclasses.replace(state, lr_scale=rate))(rates)
    step = jax.jit(jax.vmap(learner.train_step, in_axes=(0, None)))
    models = [ByHand(), ByHand()]
    for batch in batches():
        states, _ = step(states, batch)
        for rate, model in zip(rates, models, strict=True):
            model.step([batch], rate)
    for number, model in enumerate(models):
        np.testing.assert_allclose(states.params["w"][number], model.w, rtol=1e-4, atol=1e-6)


class Thoughtful(Learner):
    """A learner whose loop logs a value between dispatches, and otherwise equals that of `fit`."""

    def loop(self, run):
        run.catch_up()
        dispatches = run.dispatches()
        with contextlib.closing(dispatches):
            for dispatch in dispatches:
                run.check()
                run.train(dispatch)
                run.log_numbers({"Norm": jnp.abs(run.model()["w"]).sum()})
                run.end_step(ends_epoch=dispatch.ends_epoch)
                run.save_if_due()
        return run.finish("as it thought")


@pytest.mark.full
def test_learner_with_a_custom_loop(tmp_path):
    """Its values are logged at their steps, all else equals the usual run, and it can be resumed."""
    plain = build_line(quiet(tmp_path / "plain", saves=True).num_epochs(2)).fit(batches(), batches(8))
    for epochs in (1, 2):
        builder = quiet(tmp_path / "own", saves=True).num_epochs(epochs).learner_class(Thoughtful).resume()
        learner = build_line(builder)
        result = learner.fit(batches(), batches(8))
    assert type(learner) is Thoughtful
    assert result.stopped_by == "as it thought"
    assert model_bits(result.model) == model_bits(plain.model)
    for key, values in plain.history.items():
        assert result.history[key] == values
    norms = result.history["custom/Norm"]
    assert len(norms) >= 2
    assert norms[-1] == pytest.approx(float(np.abs(plain.model["w"]).sum()), rel=1e-6)


def test_loop_without_a_result_is_an_error(tmp_path):
    class Forgets(Thoughtful):
        def loop(self, run):
            super().loop(run)

    with raises_code("learner-loop-result"):
        build_line(quiet(tmp_path / "run").num_epochs(1).learner_class(Forgets)).fit(batches())


def test_the_repr_of_a_learner_is_short(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    assert repr(learner) == f"Learner(dict, 4 parameters, {str(tmp_path / 'run')!r})"
    unmade = quiet(tmp_path / "run").build(lambda: line(), optax.sgd, 0.1, train_step=line_step)
    assert repr(unmade) == repr(learner)


def test_a_notebook_shows_the_model(tmp_path):
    """Data that can be read only once is not read, and nothing is computed."""
    learner = build_line(quiet(tmp_path / "run"), train=iter([]))
    content = learner._repr_html_()
    rows = [re.findall("<t[hd][^>]*>([^<]*)<", row) for row in content.split("<tr>")]
    assert [row for row in rows if row[:1] in (["w"], ["b"])] == [
        ["b", "[1]", "float32", "", "1", "4 bytes"],
        ["w", "[3, 1]", "float32", "", "3", "12 bytes"],
    ]
    assert not (tmp_path / "run").exists()
