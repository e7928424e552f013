"""The mean of a field of the output, in runs with batches of different lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerBuilder, LearnerError, Output, TrainOutput
from learner.metrics import FieldMean, MeanMetric, rows_mask

X = np.array([[1.0], [2.0], [3.0], [4.0], [10.0]], np.float32)


def returning_a_dict(model, batch):
    values = batch["x"][:, 0]
    return {"loss": (model["w"] * values).mean(), "scalar": values.mean(), "rows": values, "twice": batch["x"] * 2}


def returning_an_output(model, batch):
    return Output(**returning_a_dict(model, batch))


def history(tmp_path, step, *metrics, **data):
    builder = LearnerBuilder(tmp_path).metrics(*metrics).with_batch_size(4).renderer(None)
    learner = builder.build({"w": jnp.ones(())}, optax.sgd, 0.0, train_step=step, valid_step=step)
    return learner.fit({"x": X, **data}, {"x": X, **data}).history


@pytest.mark.parametrize("step", [returning_a_dict, pytest.param(returning_an_output, marks=pytest.mark.full)])
def test_batches_count_by_their_rows(tmp_path, step):
    found = history(tmp_path, step, FieldMean("scalar"), FieldMean("rows", name="Rows"), FieldMean("twice"))
    for split in ("train", "valid"):
        names = "Loss", "scalar", "Rows", "twice"
        assert [found[f"{split}/{name}"] for name in names] == [[4.0], [4.0], [4.0], [8.0]]


def own_gradients(model, batch) -> TrainOutput:
    return TrainOutput({"w": jnp.zeros(())}, returning_a_dict(model, batch))


def own_update(state, batch, lr, rng):
    return state, returning_a_dict(state, batch)


@pytest.mark.parametrize(
    "steps", [{"train_step": own_gradients}, {"update": own_update}], ids=["own gradients", "own update"]
)
def test_a_dict_is_an_output_wherever_there_is_one(tmp_path, steps):
    builder = LearnerBuilder(tmp_path).metrics(FieldMean("scalar")).with_batch_size(4).renderer(None)
    optimizer = None if "update" in steps else optax.sgd
    found = builder.build({"w": jnp.ones(())}, optimizer, 0.1, **steps).fit({"x": X}).history
    assert (found["train/Loss"], found["train/scalar"]) == ([4.0], [4.0])


class OwnRows(MeanMetric):
    name, fields = "Own", ("rows",)

    def update(self, state, output, info):
        return state.add(output.rows, rows_mask(output))


def test_masked_rows_do_not_count(tmp_path):
    def step(model, batch):
        values, mask = batch["x"][:, 0], batch["mask"]
        return Output(model["w"], weight=mask.sum(), mask=mask, rows=jnp.where(mask > 0, values, jnp.nan))

    mask = np.array([0.5, 0, 2, 0, 1], np.float32)  # weights of the loss: a metric counts each row once
    found = history(tmp_path, step, FieldMean("rows"), OwnRows(), mask=mask)
    assert [found["valid/rows"], found["valid/Own"]] == [[pytest.approx((1 + 3 + 10) / 3)]] * 2


def test_an_own_mean_of_a_scalar_needs_its_weight(tmp_path):
    class Own(MeanMetric):
        name, fields, weighted = "Own", ("scalar",), False

        def update(self, state, output, info):
            return state.add(output.scalar, info.weight if self.weighted else None)

    with pytest.raises(LearnerError) as error:
        history(tmp_path, returning_a_dict, Own())
    assert "metric-scalar-weight" in str(error.value) or "info.weight" in str(error.value)
    assert not (tmp_path / "train").exists()
    Own.weighted = True
    assert history(tmp_path, returning_a_dict, Own())["train/Own"] == [4.0]


def test_a_field_that_the_output_lacks(tmp_path):
    with pytest.raises(LearnerError, match="nope"):
        history(tmp_path, returning_a_dict, FieldMean("nope"))


@pytest.mark.parametrize("field", ["", None, 3])
def test_a_field_is_a_name(field):
    with pytest.raises(LearnerError) as error:
        FieldMean(field)
    assert error.value.code == "metric-field-name"


def test_a_direction_for_monitors():
    assert (FieldMean("a").higher_is_better, FieldMean("a", higher_is_better=True).higher_is_better) == (None, True)


def test_an_output_is_a_pytree():
    out = Output(jnp.float32(1), b=jnp.zeros(2), a=None)
    after = jax.jit(lambda out: jax.tree.map(lambda x: x + 1, out))(out)
    assert (after.loss, after.b.tolist(), after.a) == (2, [1, 1], None)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(out)[0]]
    assert paths == [".b", ".loss"]
