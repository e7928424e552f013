"""Tests of FieldMean and MeanMetric in runs with batches of different lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerBuilder, LearnerError, Output, TrainOutput
from learner.metrics import FieldMean, Info, MeanMetric, rows_mask
from tests.support.codes import raises_code

X = np.array([[1.0], [2.0], [3.0], [4.0], [10.0]], np.float32)


def dict_step(model, batch):
    values = batch["x"][:, 0]
    return {"loss": (model["w"] * values).mean(), "scalar": values.mean(), "rows": values, "twice": batch["x"] * 2}


def output_step(model, batch):
    return Output(**dict_step(model, batch))


def history(tmp_path, step, *metrics, **data):
    builder = LearnerBuilder(tmp_path).metrics(*metrics).with_batch_size(4).renderer(None)
    learner = builder.build({"w": jnp.ones(())}, optax.sgd, 0.0, train_step=step, valid_step=step)
    return learner.fit({"x": X, **data}, {"x": X, **data}).history


@pytest.mark.full
@pytest.mark.parametrize("step", [dict_step, pytest.param(output_step, marks=pytest.mark.full)])
def test_batches_are_weighted_by_their_rows(tmp_path, step):
    values = history(tmp_path, step, FieldMean("scalar"), FieldMean("rows", name="Rows"), FieldMean("twice"))
    for split in ("train", "valid"):
        names = "Loss", "scalar", "Rows", "twice"
        assert [values[f"{split}/{name}"] for name in names] == [[4.0], [4.0], [4.0], [8.0]]


def gradients_step(model, batch) -> TrainOutput:
    return TrainOutput({"w": jnp.zeros(())}, dict_step(model, batch))


def custom_update(state, batch, lr, rng):
    return state, dict_step(state, batch)


@pytest.mark.full
@pytest.mark.parametrize(
    "steps",
    [{"train_step": gradients_step}, pytest.param({"update": custom_update}, marks=pytest.mark.full)],
    ids=["own gradients", "own update"],
)
def test_dict_as_output_of_custom_steps(tmp_path, steps):
    builder = LearnerBuilder(tmp_path).metrics(FieldMean("scalar")).with_batch_size(4).renderer(None)
    optimizer = None if "update" in steps else optax.sgd
    values = builder.build({"w": jnp.ones(())}, optimizer, 0.1, **steps).fit({"x": X}).history
    assert (values["train/Loss"], values["train/scalar"]) == ([4.0], [4.0])


class OwnRows(MeanMetric):
    name, fields = "Own", ("rows",)

    def update(self, state, output, info):
        return state.add(output.rows, rows_mask(output))


@pytest.mark.full
def test_masked_rows_do_not_count(tmp_path):
    def step(model, batch):
        values, mask = batch["x"][:, 0], batch["mask"]
        return Output(model["w"], weight=mask.sum(), mask=mask, rows=jnp.where(mask > 0, values, jnp.nan))

    mask = np.array([0.5, 0, 2, 0, 1], np.float32)  # weights of the loss; metrics count each row once
    values = history(tmp_path, step, FieldMean("rows"), OwnRows(), mask=mask)
    assert [values["valid/rows"], values["valid/Own"]] == [[pytest.approx((1 + 3 + 10) / 3)]] * 2


@pytest.mark.full
def test_custom_mean_of_a_scalar_needs_a_weight(tmp_path):
    class Own(MeanMetric):
        name, fields, weighted = "Own", ("scalar",), False

        def update(self, state, output, info):
            return state.add(output.scalar, info.weight if self.weighted else None)

    with raises_code("metric-scalar-weight", "rows_mask(output).sum()"):
        history(tmp_path, dict_step, Own())
    assert not (tmp_path / "train").exists()
    Own.weighted = True
    assert history(tmp_path, dict_step, Own())["train/Own"] == [4.0]


def test_missing_field(tmp_path):
    with pytest.raises(LearnerError, match="nope"):
        history(tmp_path, dict_step, FieldMean("nope"))


@pytest.mark.parametrize("field", ["", None, 3])
def test_wrong_field_names(field):
    with pytest.raises(LearnerError) as error:
        FieldMean(field)
    assert error.value.code == "metric-field-name"


def test_direction():
    assert (FieldMean("a").higher_is_better, FieldMean("a", higher_is_better=True).higher_is_better) == (None, True)


def test_output_is_a_pytree():
    out = Output(jnp.float32(1), b=jnp.zeros(2), a=None)
    after = jax.jit(lambda out: jax.tree.map(lambda x: x + 1, out))(out)
    assert (after.loss, after.b.tolist(), after.a) == (2, [1, 1], None)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(out)[0]]
    assert paths == [".b", ".loss"]


def test_a_field_of_rows_beside_a_mask_of_tokens_is_refused():
    out = Output(jnp.float32(1), topic=jnp.ones(2), mask=jnp.ones((2, 3)))
    with raises_code("metric-field-mask", "[2]", "[2, 3]", field="topic"):
        FieldMean("topic").update(FieldMean("topic").init(), out, Info(step=jnp.int32(0), weight=jnp.float32(2)))
