"""Tests of `on_batch`: functions that change training batches inside the programs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import Output, RegressionOutput
from learner.strategies import Sharded
from tests.support.codes import raises_code
from tests.support.runs import (
    arrays,
    batches,
    build_line,
    checkpoint_bits,
    line,
    line_predictions,
    line_step,
    model_bits,
    quiet,
    saved_steps,
    shuffled,
)

pytestmark = pytest.mark.usefixtures("compiled_once")


def growing(batch, rng, step):
    """Scale the inputs with the step, as a curriculum does."""
    return {**batch, "x": batch["x"] * (1 + step).astype(jnp.float32)}


def noisy(batch, rng):
    return {**batch, "x": batch["x"] + jax.random.normal(rng, batch["x"].shape)}


def mixed(batch, rng):
    """Mix each row with the next one (mixup)."""
    share = jax.random.uniform(rng)
    mixed = {name: share * batch[name] + (1 - share) * jnp.roll(batch[name], 1, 0) for name in ("x", "t")}
    return {**batch, **mixed}


def descend(transform, steps):
    """Return the parameters after steps of gradient descent, with the random keys that the documentation describes."""
    params = line()
    for step, batch in enumerate(batches()[:steps]):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), step), 0)
        changed = transform(batch, jax.random.fold_in(jax.random.fold_in(key, 2**31 - 2), 0), jnp.int32(step))
        grads = jax.grad(lambda p, batch=changed: line_step(p, batch).loss)(params)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
    return params


@pytest.mark.full
@pytest.mark.parametrize(
    ("fn", "transform"),
    [(growing, growing), (noisy, lambda b, k, s: noisy(b, k)), (mixed, lambda b, k, s: mixed(b, k))],
    ids=["with the step", "with the key", "mixup"],
)
def test_steps_train_on_the_changed_batches(fn, transform, tmp_path):
    builder = quiet(tmp_path / "run").on_batch(fn).num_steps(3)
    result = build_line(builder).fit(batches(), batches())
    expected = descend(transform, 3)
    for name in expected:
        np.testing.assert_allclose(result.model[name], expected[name], rtol=1e-5, atol=1e-6)
    # Validation reads unchanged batches.
    losses = [line_step(expected, batch).loss for batch in batches()]
    np.testing.assert_allclose(result.history["valid/Loss"][-1], np.mean(losses), rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("added", [jnp.ones(7), jnp.float32(0.5)], ids=["other rows", "a number"])
def test_added_fields_do_not_change_the_weight_of_a_batch(added, tmp_path):
    """The added name sorts first. Losses and gradients are weighted by the rows of the data, whose numbers differ."""
    rows = [{k: v[begin:end] for k, v in batches(16)[0].items()} for begin, end in ((0, 8), (8, 11), (11, 16))]
    for accumulate in (1, 3):
        builder = quiet(tmp_path / f"run-{accumulate}").grads_accumulation(accumulate)
        result = build_line(builder.on_batch(lambda batch, rng: {"added": added, **batch})).fit(rows)
        plain = build_line(quiet(tmp_path / f"plain-{accumulate}").grads_accumulation(accumulate)).fit(rows)
        assert model_bits(result.model) == model_bits(plain.model)
        assert result.history["train/Loss"] == plain.history["train/Loss"]
    whole = {k: np.concatenate([batch[k] for batch in rows]) for k in rows[0]}
    np.testing.assert_allclose(result.history["train/Loss"], [line_step(line(), whole).loss], rtol=1e-5)


@pytest.mark.full
def test_functions_are_called_in_order_with_different_keys(tmp_path):
    """The functions add noise, double it, and add different noise."""

    def doubled(batch, rng):
        return {**batch, "x": batch["x"] * 2.0}

    builder = quiet(tmp_path / "run").on_batch(noisy).on_batch(doubled).on_batch(noisy).num_steps(1)
    result = build_line(builder).fit(batches())
    batch = batches()[0]
    key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0), 2**31 - 2)
    first, last = (jax.random.normal(jax.random.fold_in(key, number), batch["x"].shape) for number in (0, 2))
    grads = jax.grad(lambda p: line_step(p, {**batch, "x": (batch["x"] + first) * 2 + last}).loss)(line())
    np.testing.assert_allclose(result.model["w"], -0.05 * grads["w"], rtol=1e-5)


def test_no_split_of_the_steps_key_is_a_key_of_a_function(tmp_path):
    """`jax.random.split(key, n)[i]` is `fold_in(key, i)`."""

    def drawn(batch, rng):
        return {**batch, "drawn": jax.random.uniform(rng, batch["x"].shape)}

    def step(model, batch, rng):
        keys = [key for part in jax.random.split(rng, 8) for key in jax.random.split(part, 2)]
        distances = [jnp.abs(jax.random.uniform(key, batch["x"].shape) - batch["drawn"]).max() for key in keys]
        return Output(jnp.stack(distances).min() + 0 * model["w"].sum())

    learner = quiet(tmp_path / "run").on_batch(drawn).build(line(), optax.sgd, 0.1, train_step=step)
    _, values = learner.train_step(learner.init(), batches()[0])
    assert values["Loss"] > 0.05


def noisy_run(directory, steps, **options):
    builder = quiet(directory, saves=True).on_batch(noisy).num_steps(steps).grads_accumulation(2).resume()
    if "dispatch" in options:
        builder.steps_per_dispatch(options["dispatch"])
    result = build_line(builder).fit(shuffled())
    return model_bits(result.model), checkpoint_bits(directory, saved_steps(directory)[-1])


@pytest.mark.full
def test_bits_do_not_depend_on_the_dispatch_or_on_a_checkpoint(tmp_path):
    whole = noisy_run(tmp_path / "whole", 7)
    assert noisy_run(tmp_path / "single", 7, dispatch=1) == whole
    noisy_run(tmp_path / "resumed", 4)
    assert noisy_run(tmp_path / "resumed", 7) == whole


@pytest.mark.full
def test_sharded_rows_are_changed_like_those_on_one_device(tmp_path):
    models = []
    for strategy in (None, Sharded(devices=2)):
        builder = quiet(tmp_path / str(strategy is None)).on_batch(noisy).num_steps(5)
        if strategy is not None:
            builder.strategy(strategy)
        models.append(build_line(builder).fit(shuffled()).model)
    for name in models[0]:
        np.testing.assert_allclose(models[0][name], models[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_an_update_receives_the_changed_batch(tmp_path):
    def update(model, batch, lr):
        loss, grads = jax.value_and_grad(lambda m: line_step(m, batch).loss)(model)
        output = RegressionOutput.from_predictions(line_predictions(model, batch["x"]), batch["t"])
        return jax.tree.map(lambda p, g: p - lr * g, model, grads), dataclasses.replace(output, loss=loss)

    def with_rng(model, batch, lr, rng):
        return update(model, batch, lr)

    builder = quiet(tmp_path / "run").on_batch(growing).num_steps(3)
    built = builder.build(line(), None, 0.05, update=with_rng)
    expected = descend(growing, 3)
    np.testing.assert_allclose(built.fit(batches()).model["w"], expected["w"], rtol=1e-5)


@pytest.mark.parametrize("fn", [None, "noise", lambda batch: batch, lambda a, b, c, d: a])
def test_unusable_functions_are_refused(fn, tmp_path):
    with raises_code("step-batch-transform"):
        quiet(tmp_path / "run").on_batch(fn)


def test_unusable_changed_batches_are_refused_before_the_run(tmp_path):
    builder = quiet(tmp_path / "run").on_batch(lambda batch, rng: {"y": batch["y"]})
    with raises_code("batch-missing-key", "train_step reads batch['x']", "on_batch returns a batch that has 'y'"):
        build_line(builder).fit(batches())
    builder = quiet(tmp_path / "run").on_batch(lambda batch, rng: {"x": batch["image"]})
    with raises_code("batch-missing-key", "a batch has 't', 'x', 'y'", name="on_batch", key="image"):
        build_line(builder).fit(batches())
    scales = {"x": 2.0}
    builder = quiet(tmp_path / "run").on_batch(lambda batch, rng: {**batch, "x": scales["y"] * batch["x"]})
    with pytest.raises(KeyError, match="'y'"):  # a dict other than the batch
        build_line(builder).fit(batches())
    builder = quiet(tmp_path / "run").on_batch(lambda batch, rng: batch.update(y=2 * batch["y"]))
    with raises_code("step-batch-transform-returns", "returned nothing"):
        build_line(builder).fit(batches())
    assert not (tmp_path / "run").exists()


def test_train_step_changes_batches(tmp_path):
    builder = quiet(tmp_path / "run").on_batch(growing)
    learner = builder.build(line(), optax.sgd, 0.05, train_step=line_step)
    state = learner.init()
    for batch in batches()[:3]:
        state, _ = learner.train_step(state, batch)
    np.testing.assert_allclose(learner.model_of(state)["w"], descend(growing, 3)["w"], rtol=1e-5)
    assert arrays(4)["x"].dtype == np.float32


@pytest.mark.full
def test_a_batch_is_changed_once_per_step_and_once_more_before_a_line_search(tmp_path):
    def traced_with(optimizer):
        calls = []

        def counted(batch, rng):
            calls.append(batch)
            return noisy(batch, rng)

        builder = quiet(tmp_path / "run").on_batch(counted)
        learner = builder.build(line(), optimizer, 1.0, train_step=line_step)
        first = learner.init()
        state, _ = learner.train_step(first, batches()[0])  # includes the checks of the step
        calls.clear()
        jax.eval_shape(learner.train_step, first, batches()[0])
        return learner.model_of(state), len(calls)

    assert traced_with(optax.sgd)[1] == 1
    model, count = traced_with(optax.lbfgs)
    assert count == 2  # once before the search, not in its loops
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 0), 0)
    changed = noisy(batches()[0], jax.random.fold_in(jax.random.fold_in(key, 2**31 - 2), 0))

    def loss(params):
        return line_step(params, changed).loss

    optimizer, first = optax.lbfgs(1.0), line()
    value, grads = jax.value_and_grad(loss)(first)
    given = grads, optimizer.init(first), first
    updates, _ = optimizer.update(*given, value=value, grad=grads, value_fn=loss)
    np.testing.assert_allclose(model["w"], optax.apply_updates(first, updates)["w"], rtol=1e-4)
