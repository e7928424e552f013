"""Tests of the warnings about losses that are not a mean over rows, where a step sees only a part of the batch."""

import dataclasses
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from learner import LearnerBuilder, LearnerWarning, Linen, RegressionOutput
from learner.steps.outputs import Output, as_output, weighted_mean
from learner.strategies import Replicated, Sharded, SingleDevice
from learner.training.checks.row_relations import warnings_of_batches, warnings_of_parts

ROWS, WIDTH = 8, 8  # equal, so that shapes alone do not identify rows
_rng = np.random.default_rng(4)
BATCH = {name: _rng.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in ("a", "b")}


def model():
    return {"w": jnp.eye(WIDTH)}


def output(losses):
    loss, weight = weighted_mean(losses, None)
    return RegressionOutput(loss, losses, losses, jnp.float32(weight))


def in_batch_negatives(model, batch):
    logits = (batch["a"] @ model["w"]) @ batch["b"].T
    return output(optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(len(logits))))


def two_views(model, batch):
    """NT-Xent: compare 2n rows with 2n rows inside a jitted function."""
    rows = jnp.concatenate([batch["a"], batch["b"]]) @ model["w"]
    logits = jax.jit(lambda x: jnp.where(jnp.eye(len(x), dtype=bool), -1e9, x @ x.T))(rows)
    positives = jnp.roll(jnp.arange(len(rows)), len(batch["a"]))
    return output(optax.softmax_cross_entropy_with_integer_labels(logits, positives))


def mean_over_rows(model, batch):
    """Return a mean over rows; weights and logits also have the shape `[8, 8]`."""
    hidden = jnp.tanh(batch["a"] @ (model["w"] @ model["w"]))
    return output(jnp.square(hidden - batch["b"]).mean(1))


def attention_of_tokens(model, batch):
    """Each row is a sequence with as many tokens as there are rows."""
    tokens = batch["a"][:, :, None] * jnp.ones((1, 1, 2))
    scores = jax.nn.softmax(tokens @ tokens.swapaxes(1, 2))
    return output((scores @ tokens).mean((1, 2)) * model["w"].sum())


def knows_its_rows(model, batch):
    return mean_over_rows(model, jax.tree.map(lambda x: x.reshape(ROWS, WIDTH), batch))


def step_of(train, accumulate=1):
    builder = LearnerBuilder("unused").grads_accumulation(accumulate)
    learner = builder.build(model(), optax.sgd, 0.1, train_step=train)
    return learner.definition.step, jax.eval_shape(learner.init)


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (in_batch_negatives, "float32[8, 8]"),
        (two_views, "[16, 16]"),
        (mean_over_rows, None),
        (attention_of_tokens, None),
        (knows_its_rows, None),
    ],
)
def test_rows_on_two_axes_are_found(train, expected):
    texts = warnings_of_parts(*step_of(train, 4), BATCH, SingleDevice())
    assert texts == [] if expected is None else expected in texts[0]


def of_tokens(model, batch):
    losses = jnp.square(batch["a"] @ model["w"] - batch["b"])
    return losses, (batch["b"] > 0).astype(jnp.float32)


def kept(model, batch):
    losses, mask = of_tokens(model, batch)
    return {"loss": (losses * mask).sum() / jnp.maximum(mask.sum(), 1)}


def kept_and_more(model, batch):
    losses, mask = of_tokens(model, batch)
    mean = jax.jit(lambda: jnp.where(mask.sum() > 0, jnp.mean(losses, where=mask > 0), 0.0))()
    return Output(0.5 * mean + 1e-4 * jnp.square(model["w"]).sum(), logits=losses)


def averaged(model, batch):
    losses, mask = of_tokens(model, batch)
    return {"loss": jax.checkpoint(lambda x: jnp.average(x, weights=mask))(losses)}


def kept_with_weight(model, batch):
    _, mask = of_tokens(model, batch)
    return kept(model, batch) | {"weight": jax.lax.stop_gradient(mask.sum())}


def kept_with_rows(model, batch):
    return kept(model, batch) | {"weight": len(batch["a"])}


def kept_and_multiplied(model, batch):
    """A sum of terms over the rows, each a mean over what it keeps, times their number."""
    losses, mask = of_tokens(model, batch)
    terms = [weighted_mean(losses, of_term) for of_term in (mask, 1 - mask)]
    return {"loss": sum(loss * number for loss, number in terms) / len(losses), "weight": len(losses)}


def kept_by_reciprocal(model, batch):
    losses, mask = of_tokens(model, batch)
    return {"loss": (losses * mask).sum() * (1 / mask.sum())}


def normed_weights(model, batch):
    """Weights of the rows that add up to 1."""
    losses, mask = of_tokens(model, batch)
    weights = mask.sum(1)
    return {"loss": (weights / weights.sum() * losses.mean(1)).sum()}


def normed_product(model, batch):
    losses, mask = of_tokens(model, batch)
    weights = jax.lax.stop_gradient(mask.sum(1) * (1 / jnp.maximum(mask.sum(), 1)))
    return {"loss": 0.5 * jnp.vdot(jnp.where(weights > 0, weights, 0), losses.mean(1))}


def scaled_by_the_batch(model, batch):
    losses, _ = of_tokens(model, batch)
    values = batch["b"][:, 0]
    return {"loss": (values * (1 / (values.std() + 1)) * losses.mean(1)).mean()}


def kept_in_each_column(model, batch):
    """No number is the weight of such a loss: each column has its own."""
    losses, mask = of_tokens(model, batch)
    return {"loss": ((losses * mask).sum(0) / jnp.maximum(mask.sum(0), 1)).mean()}


def kept_in_each_row(model, batch):
    losses, mask = of_tokens(model, batch)
    return {"loss": ((losses * mask).sum(1) / jnp.maximum(mask.sum(1), 1)).mean()}


def scaled_by_the_model(model, batch):
    losses, _ = of_tokens(model, batch)
    return {"loss": losses.mean() / (1 + jnp.square(model["w"]).sum())}


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (kept, True),
        (kept_and_more, True),
        (averaged, True),
        (kept_with_weight, False),
        (kept_with_rows, True),
        (kept_and_multiplied, False),
        (kept_by_reciprocal, True),
        (normed_weights, True),
        (normed_product, True),
        (kept_in_each_row, False),
        (scaled_by_the_model, False),
        (mean_over_rows, False),
    ],
)
def test_a_loss_divided_by_a_sum_over_the_batch_needs_a_weight(train, expected):
    """The arithmetic shows that the loss differs from the mean of the parts' losses weighted by rows."""
    texts = warnings_of_parts(*step_of(train, 2), BATCH, SingleDevice())
    assert ["weighted_mean" in text for text in texts] == [True] * expected
    assert warnings_of_parts(*step_of(train), BATCH, SingleDevice()) == []
    output = as_output(train(model(), BATCH))
    halves = [as_output(train(model(), {k: x[rows] for k, x in BATCH.items()})) for rows in (slice(4), slice(4, 8))]
    weights = [getattr(half, "weight", 4.0) for half in halves]
    mean = sum(w * half.loss for w, half in zip(weights, halves, strict=True)) / sum(weights)
    assert (abs(float(mean - output.loss)) > 1e-3) == expected


def summed(model, batch):
    losses, _ = of_tokens(model, batch)
    return {"loss": jax.jit(jnp.sum)(losses) + jnp.square(model["w"]).mean()}


def summed_by_shape(model, batch):
    losses, _ = of_tokens(model, batch)
    return {"loss": losses.sum() / losses.shape[0]}


def summed_and_divided_elsewhere(model, batch):
    losses, _ = of_tokens(model, batch)
    return {"loss": jax.jit(lambda total, count: total / count)(losses.sum(), len(losses))}


def summed_by_ones(model, batch):
    losses, _ = of_tokens(model, batch)
    return {"loss": losses.sum() / jnp.ones(losses.shape[0]).sum()}


def summed_with_weight(model, batch):
    losses, _ = of_tokens(model, batch)
    return {"loss": losses.sum(), "weight": jnp.float32(len(losses))}


def summed_with_count(model, batch):
    return summed_with_weight(model, batch) | {"weight": 1.0}


def softmax_weights(model, batch):
    losses, _ = of_tokens(model, batch)
    return {"loss": (jax.nn.softmax(batch["a"][:, 0]) * losses.mean(1)).sum()}


def smooth_greatest(model, batch):
    return {"loss": jax.nn.logsumexp(of_tokens(model, batch)[0])}


def noise_ratio(model, batch):
    return {"loss": jnp.log(of_tokens(model, batch)[0].sum() / jnp.square(batch["b"]).sum())}


def looped(model, batch):
    losses, _ = of_tokens(model, batch)
    return {"loss": jax.lax.scan(lambda total, row: (total + row.mean(), None), 0.0, losses)[0] / len(losses)}


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (summed, True),
        (summed_by_shape, False),
        (summed_by_ones, False),
        (summed_and_divided_elsewhere, False),
        (summed_with_weight, True),
        (summed_with_count, True),
        (softmax_weights, False),
        (looped, False),
        (mean_over_rows, False),
    ],
)
def test_a_loss_that_is_a_sum_over_rows_is_warned_about(train, expected):
    texts = warnings_of_parts(*step_of(train, 2), BATCH, SingleDevice())
    assert ["sums its loss over the rows" in text for text in texts] == [True] * expected
    assert warnings_of_parts(*step_of(train), BATCH, SingleDevice()) == []


@pytest.mark.parametrize(
    ("valid", "relation"),
    [
        (kept, "divides its loss"),
        (kept_with_rows, "divides its loss"),
        (kept_with_weight, None),
        (kept_and_multiplied, None),
        (kept_by_reciprocal, "divides its loss"),
        (normed_weights, "divides its loss"),
        (kept_in_each_row, None),
        (summed, "sums its loss"),
        (summed_with_count, "sums its loss"),
        (mean_over_rows, None),
        (knows_its_rows, None),
    ],
)
def test_a_validation_loss_that_depends_on_the_batch_size_is_warned_about(tmp_path, valid, relation):
    """The same rows in batches of 2, 4 and 8; weights are of rows unless the output has one."""
    builder = LearnerBuilder(tmp_path / "run").renderer(None).with_file_checkpointer(None)
    learner = builder.build(model(), optax.sgd, 0.1, train_step=mean_over_rows, valid_step=valid)
    step, state = learner.definition.step, jax.eval_shape(learner.init)
    assert warnings_of_batches(step, state, BATCH, "valid", 1) == []
    texts = warnings_of_batches(step, state, BATCH, "valid-ood", 2)
    assert [relation in text and "valid-ood/Loss" in text for text in texts] == [True] * (relation is not None)
    if valid is not knows_its_rows:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LearnerWarning)
            values = [
                learner.evaluate([{k: x[i : i + size] for k, x in BATCH.items()} for i in range(0, ROWS, size)])["Loss"]
                for size in (2, 4, 8)
            ]
        assert (np.ptp(values) < 1e-5) == (relation is None)
        assert len(caught) == (relation is not None)


def correlated(model, batch):
    """Barlow Twins: correlate features of two views, normalized over the rows."""
    one, two = (jax.nn.standardize(batch[name] @ model["w"], axis=0) for name in ("a", "b"))
    correlation = one.T @ two / len(one)
    return {"loss": jnp.square(correlation - jnp.eye(WIDTH)).sum()}


def balanced(model, batch):
    """The load-balancing term of a mixture of experts: shares of the rows times mean probabilities."""
    probabilities = jax.nn.softmax(batch["a"] @ model["w"])
    share = jax.nn.one_hot(probabilities.argmax(1), WIDTH).mean(0)
    return {"loss": of_tokens(model, batch)[0].mean() + jax.jit(jnp.vdot)(share, probabilities.mean(0))}


def dice(model, batch):
    losses, mask = of_tokens(model, batch)
    predicted = jax.nn.sigmoid(losses)
    loss = 1 - 2 * (predicted * mask).sum() / (predicted.sum() + mask.sum())
    return {"loss": loss, "weight": jnp.float32(len(losses))}


def root(model, batch):
    return {"loss": jax.checkpoint(jnp.sqrt)(of_tokens(model, batch)[0].mean())}


def normalised(model, batch):
    """Normalize over the batch as a part of the model, with statistics that the devices of `Replicated` share."""
    hidden = batch["a"] @ model["w"]
    mean, squares = hidden.mean(0, keepdims=True), jnp.square(hidden).mean(0, keepdims=True)
    hidden = (hidden - mean) * jax.lax.rsqrt(squares - jnp.square(mean) + 1e-5)
    return output(jnp.square(hidden - batch["b"]).mean(1))


def of_linear_terms(model, batch):
    losses, mask = of_tokens(model, batch)
    loss, weight = weighted_mean(losses.mean(1), mask[:, 0])
    scale = jnp.exp(-jnp.square(model["w"]).mean())
    loss = jnp.where(jnp.isfinite(loss), loss * scale, 0.0)
    return Output(0.5 * loss + jnp.square(model["w"]).sum() + jnp.vdot(losses, losses), weight=weight)


def greatest(model, batch):
    losses, mask = of_tokens(model, batch)
    return {"loss": losses.max(), "hits": mask.sum()}


def hardest(model, batch):
    return {"loss": jax.lax.top_k(of_tokens(model, batch)[0].mean(1), 3)[0].mean()}


def median(model, batch):
    return {"loss": jnp.median(of_tokens(model, batch)[0].mean(1))}


def sorted_rows(model, batch):
    return {"loss": jnp.abs(jnp.sort(batch["a"] @ model["w"], axis=0) - jnp.sort(batch["b"], axis=0)).mean()}


def trimmed(model, batch):
    """Leave out the rows above a threshold, which is the only part that compares rows."""
    losses = of_tokens(model, batch)[0].mean(1)
    return {"loss": jnp.where(losses > jax.lax.stop_gradient(jnp.sort(losses)[3]), 0.0, losses).mean()}


def cox(model, batch):
    """The partial likelihood of Cox: each row against those with a later time."""
    risk = (batch["a"] @ model["w"]).sum(1)[jnp.argsort(-batch["b"][:, 0])]
    return {"loss": -(risk - jax.lax.cumlogsumexp(risk)).mean()}


def cox_by_sums(model, batch):
    risk = (batch["a"] @ model["w"]).sum(1)[jnp.argsort(-batch["b"][:, 0])]
    return {"loss": -(risk - jnp.log(jnp.cumsum(jnp.exp(risk)))).mean()}


def histogram(model, batch):
    """A distance between the weights of eight bins and equal weights."""
    losses = of_tokens(model, batch)[0].mean(1)
    bins = jnp.zeros(8).at[(batch["a"][:, 0] > 0).astype(jnp.int32)].add(losses)
    return {"loss": jnp.square(bins / len(losses)).sum()}


def ranked_in_rows(model, batch):
    """Sort, rank and accumulate the values of each row, subtract the greatest value of all, and shuffle the rows."""
    hidden = batch["a"] @ model["w"]
    of_row = jnp.sort(hidden, axis=1) + jnp.cumsum(hidden, axis=1) + jax.lax.top_k(hidden, WIDTH)[0]
    shifted = jax.nn.softmax(of_row - jax.lax.stop_gradient(of_row.max()))
    order = jax.random.permutation(jax.random.key(0), len(hidden))
    scores = jax.random.permutation(jax.random.key(1), hidden[:, 0])
    _, by_data = jax.lax.sort((batch["b"][:, 0], hidden[:, 1]), num_keys=1)
    return output(shifted.max(1) + jnp.square(hidden - hidden[order]).mean(1) + scores + by_data)


MIXING = [greatest, hardest, median, sorted_rows, trimmed, cox, cox_by_sums, histogram]


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        *((train, True) for train in MIXING),
        (ranked_in_rows, False),
        (correlated, True),
        (balanced, True),
        (dice, True),
        (root, True),
        (normalised, False),
        (of_linear_terms, False),
        (summed, False),
        (kept, False),
        (scaled_by_the_model, False),
        (looped, False),
        (mean_over_rows, False),
    ],
)
def test_a_loss_that_is_nonlinear_in_sums_over_rows_is_warned_about(train, expected):
    texts = warnings_of_parts(*step_of(train, 2), BATCH, SingleDevice())
    assert ["a larger batch_size" in text for text in texts] == ([True] if expected else [False] * len(texts))
    assert warnings_of_parts(*step_of(train), BATCH, SingleDevice()) == []


@pytest.mark.parametrize("train", [correlated, balanced, dice, root, *MIXING])
def test_the_mean_of_nonlinear_losses_of_parts_differs(train):
    """The parts are two halves with weights of four rows each."""
    halves = [train(model(), {k: x[rows] for k, x in BATCH.items()}) for rows in (slice(4), slice(4, 8))]
    assert abs(float(sum(half["loss"] for half in halves) / 2 - train(model(), BATCH)["loss"])) > 1e-3


@pytest.mark.parametrize(
    ("strategy", "accumulate", "parts"),
    [
        (lambda: SingleDevice(), 1, None),
        (lambda: Sharded(devices=2), 1, None),
        (lambda: Replicated(2), 1, "each device of Replicated sees its own rows alone: .*strategy\\(Sharded"),
        (lambda: Sharded(devices=2), 4, "each of 4 micro-batches sees its own rows alone: .*a larger batch_size"),
        (lambda: Replicated(2), 4, "each device .* and each of 4 micro-batches sees its own rows alone: "),
    ],
    ids=["one device", "sharded", "replicated", "accumulated", "both"],
)
def test_splitting_a_batch_is_warned_about(strategy, accumulate, parts):
    texts = warnings_of_parts(*step_of(in_batch_negatives, accumulate), BATCH, strategy())
    assert warnings_of_parts(*step_of(mean_over_rows, accumulate), BATCH, strategy()) == []
    assert len(texts) == (parts is not None)
    assert parts is None or re.search(parts, texts[0]), texts


def fit(directory, strategy, accumulate=1):
    builder = LearnerBuilder(directory).renderer(None).with_file_checkpointer(None).strategy(strategy)
    learner = builder.grads_accumulation(accumulate).build(model(), optax.sgd, 0.1, train_step=in_batch_negatives)
    half = {name: x[: ROWS // accumulate] for name, x in BATCH.items()}
    result = learner.fit([half] * accumulate)
    log = (directory / "experiment.log").read_text()
    return result.history["train/Loss"][0], [line for line in log.splitlines() if "rows on two axes" in line]


@pytest.mark.full
def test_sharded_equals_one_device_and_replicated_warns(tmp_path):
    expected = float(in_batch_negatives(model(), BATCH).loss)
    alone, quiet = fit(tmp_path / "one", SingleDevice())
    sharded, also_quiet = fit(tmp_path / "sharded", Sharded(devices=2))
    replicated, warnings = fit(tmp_path / "replicated", Replicated(2))
    np.testing.assert_allclose([alone, sharded], expected, rtol=1e-5)
    assert abs(replicated - expected) > 0.1  # the reason for the warning
    assert quiet == also_quiet == []
    assert len(warnings) == 1
    assert "WARNING" in warnings[0]


@pytest.mark.parametrize("loss", [1.0, np.float32(1)])
def test_a_constant_loss_is_no_sum(loss):
    step, state = step_of(lambda model, batch: {"loss": loss}, accumulate=2)
    assert warnings_of_parts(step, state, BATCH, SingleDevice()) == []


@pytest.mark.parametrize(
    "valid", [softmax_weights, smooth_greatest, noise_ratio, dice, correlated, balanced, root, *MIXING]
)
def test_a_validation_loss_that_no_weight_makes_exact_is_not_warned_about(tmp_path, valid):
    builder = LearnerBuilder(tmp_path / "run")
    learner = builder.build(model(), optax.sgd, 0.1, train_step=mean_over_rows, valid_step=valid)
    step, state = learner.definition.step, jax.eval_shape(learner.init)
    assert warnings_of_batches(step, state, BATCH, "valid", 2) == []


def test_programs_of_one_and_of_two_rows_may_differ(tmp_path):
    """A batch of one row is broadcast in the loss."""
    one = {name: x[:1] for name, x in BATCH.items()}

    def step(model, batch):
        scores = batch["a"] @ model["w"]
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(scores)))
        return {"loss": losses.mean() + jax.jit(lambda x: jnp.take(x, jnp.arange(len(x)), axis=0).sum())(scores)}

    learner = LearnerBuilder(tmp_path / "run").build(model(), optax.sgd, 0.1, train_step=step, valid_step=step)
    definition, state = learner.definition.step, jax.eval_shape(learner.init)
    assert warnings_of_batches(definition, state, one, "valid", 2) == []
    assert warnings_of_parts(dataclasses.replace(definition, accumulate=2), state, one, SingleDevice()) == []


class Codebook(nnx.Module):
    """Averages of the rows next to each of two codes, and the number of steps."""

    def __init__(self):
        self.w = nnx.Param(jnp.eye(WIDTH))
        self.counts, self.sums = nnx.Variable(jnp.zeros(2)), nnx.Variable(jnp.zeros((2, WIDTH)))
        self.mean, self.steps = nnx.Variable(jnp.zeros(WIDTH)), nnx.Variable(jnp.zeros(()))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))


def quantized(model, batch, scale=1.0):
    hidden = model.dropout(batch["a"] @ model.w)
    code = (batch["b"][:, 0] > 0).astype(jnp.int32)
    model.counts[...] = 0.9 * model.counts + 0.1 * jnp.zeros(2).at[code].add(1.0) * scale
    model.sums[...] = 0.9 * model.sums + 0.1 * (jax.nn.one_hot(code, 2).T @ hidden) * scale
    model.mean[...] = 0.9 * model.mean + 0.1 * hidden.mean(0)
    model.steps[...] = model.steps + 1.0
    return output(jnp.square(hidden).mean(1))


@pytest.mark.parametrize(
    ("train", "strategy", "expected"),
    [
        (quantized, lambda: Replicated(2), ["counts, sums"]),
        (quantized, lambda: Sharded(devices=2), []),
        (lambda model, batch: quantized(model, batch, 1 / len(batch["a"])), lambda: Replicated(2), []),
    ],
    ids=["sums", "sharded", "means"],
)
def test_sums_over_rows_in_the_state_of_the_model_are_warned_about(train, strategy, expected):
    learner = LearnerBuilder("unused").build(Codebook(), optax.sgd, 0.1, train_step=train)
    texts = warnings_of_parts(learner.definition.step, jax.eval_shape(learner.init), BATCH, strategy())
    assert [names in text for names, text in zip(expected, texts, strict=True)] == [True] * len(expected)


class Kept(nnx.Module):
    """A value in the model's state, as an observer of activations or a counter has it."""

    def __init__(self, value):
        self.w, self.kept = nnx.Param(jnp.eye(WIDTH)), nnx.Variable(value)


def keeping(update):
    def train(model, batch):
        hidden = batch["a"] @ model.w
        model.kept[...] = update(model.kept[...], jax.lax.stop_gradient(hidden), batch["b"])
        return output(jnp.square(hidden).mean(1))

    return train


SUMS, NUMBER = "sums over the batch's rows (kept)", "the number of the batch's rows (kept)"
SELECTED, INTEGER, FLOAT = "the greatest or the least", jnp.int32(0), jnp.float32(0)


@pytest.mark.parametrize(
    ("value", "update", "expected"),
    [
        (INTEGER, lambda kept, h, b: kept + (b[:, 0] > 0).sum().astype(jnp.int32), SUMS),
        (jnp.zeros(2, jnp.int32), lambda kept, h, b: kept + jnp.bincount((b[:, 0] > 0).astype(int), length=2), SUMS),
        (INTEGER, lambda kept, h, b: kept + len(b), NUMBER),
        (INTEGER, lambda kept, h, b: (kept + len(b)) % 64, NUMBER),
        (FLOAT, lambda kept, h, b: jnp.maximum(kept, jnp.abs(h).max()), SELECTED),
        (FLOAT, lambda kept, h, b: 0.9 * kept + 0.1 * h.min(), SELECTED),
        (jnp.zeros(4), lambda kept, h, b: jnp.roll(kept, 1).at[0].set(h.max() / 127), SELECTED),
        (jnp.bool_(False), lambda kept, h, b: kept | (b > 3).any(), SELECTED),
        (INTEGER, lambda kept, h, b: kept + 1, None),
        (FLOAT, lambda kept, h, b: 0.9 * kept + 0.1 * h.mean(), None),
        (jnp.zeros(WIDTH), lambda kept, h, b: 0.9 * kept + 0.1 * h.var(0), None),
        (FLOAT, lambda kept, h, b: 0.9 * kept + 0.1 * jax.nn.softmax(h).max(1).mean(), None),
        (FLOAT, lambda kept, h, b: 0.9 * kept + 0.1 * jax.nn.logsumexp(h) / len(h), None),
    ],
)
def test_counters_and_extremes_in_the_state_of_the_model_are_warned_about(value, update, expected):
    learner = LearnerBuilder("unused").build(Kept(value), optax.sgd, 0.1, train_step=keeping(update))
    step, state = learner.definition.step, jax.eval_shape(learner.init)
    texts = warnings_of_parts(step, state, BATCH, Replicated(2))
    assert [expected in text for text in texts] == [True] * (expected is not None)
    assert warnings_of_parts(step, state, BATCH, Sharded(devices=2)) == []


def test_statistics_of_batch_norm_are_not_warned_about():
    model = nnx.Sequential(nnx.Linear(WIDTH, 4, rngs=nnx.Rngs(0)), nnx.BatchNorm(4, rngs=nnx.Rngs(0)))
    train = lambda model, batch: output(jnp.square(model(batch["a"])).mean(1))  # noqa: E731
    learner = LearnerBuilder("unused").build(model, optax.sgd, 0.1, train_step=train)
    assert warnings_of_parts(learner.definition.step, jax.eval_shape(learner.init), BATCH, Replicated(2)) == []


class Masked(nnx.Module):
    def __init__(self):
        self.linear, self.norm = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0)), nnx.BatchNorm(WIDTH, rngs=nnx.Rngs(0))

    def __call__(self, x, mask):
        return self.norm(self.linear(x), mask=mask)


class MaskedLinen(linen.Module):
    @linen.compact
    def __call__(self, x, mask):
        return linen.BatchNorm(use_running_average=False)(linen.Dense(WIDTH)(x), mask=mask)


def masked_norm(model, batch):
    mask = batch["b"][:, :1] > 0
    losses = jnp.square(model(batch["a"], mask)).mean(1)
    loss, weight = weighted_mean(losses, mask[:, 0])
    return {"loss": loss, "weight": weight}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Masked, "(norm.mean, norm.var)"),
        (
            lambda: Linen(MaskedLinen(), MaskedLinen().init(jax.random.key(0), BATCH["a"], BATCH["b"][:, :1] > 0)),
            "(collections.batch_stats.BatchNorm_0.mean, collections.batch_stats.BatchNorm_0.var)",
        ),
    ],
    ids=["nnx", "linen"],
)
def test_batch_norm_with_a_mask_is_warned_about(model, names):
    """Without synchronization, means that are weighted by the kept rows are those of all kept rows."""
    learner = LearnerBuilder("unused").build(model(), optax.sgd, 0.1, train_step=masked_norm)
    step, state = learner.definition.step, jax.eval_shape(learner.init)
    (text,) = warnings_of_parts(step, state, BATCH, Replicated(2))
    assert f"BatchNorm with a mask {names}" in text
    for strategy in (Replicated(2, sync_batch_norm=False), Sharded(devices=2), SingleDevice()):
        assert warnings_of_parts(step, state, BATCH, strategy) == []


def masked_mean(model, batch, weighted):
    hidden, mask = batch["a"] @ model.w, (batch["b"][:, :1] > 0).astype(jnp.float32)
    model.kept[...] = 0.9 * model.kept[...] + 0.1 * (hidden * mask).sum(0) / mask.sum()
    loss = weighted_mean(jnp.square(hidden).mean(1), mask[:, 0] if weighted else None)
    return {"loss": loss[0], "weight": loss[1]}


@pytest.mark.parametrize(("weighted", "warned"), [(True, False), (False, True)])
def test_a_masked_mean_in_the_state_of_the_model_needs_its_number_as_the_weight(weighted, warned):
    train = lambda model, batch: masked_mean(model, batch, weighted)  # noqa: E731
    learner = LearnerBuilder("unused").build(Kept(jnp.zeros(WIDTH)), optax.sgd, 0.1, train_step=train)
    texts = warnings_of_parts(learner.definition.step, jax.eval_shape(learner.init), BATCH, Replicated(2))
    assert ["ratios of sums over the batch's rows" in text for text in texts] == [True] * warned


@pytest.mark.parametrize("train", [kept_in_each_column, scaled_by_the_batch])
def test_no_weight_is_advised_that_would_not_mend_the_loss(train):
    assert warnings_of_parts(*step_of(train, 2), BATCH, SingleDevice()) == []


def test_one_device_has_all_rows():
    learner = LearnerBuilder("unused").build(Masked(), optax.sgd, 0.1, train_step=masked_norm)
    assert warnings_of_parts(learner.definition.step, jax.eval_shape(learner.init), BATCH, Replicated(1)) == []
