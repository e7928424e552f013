"""Questions of `Learner.check` about training on a few rows."""

import dataclasses
import itertools
import math
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.diagnostics.check_result import FAILED, OK, WARNING, Finding, skipped
from learner.diagnostics.check_trial import CheckTrial, bytes_by_leaf
from learner.diagnostics.output_questions import NOT_FINITE
from learner.diagnostics.rate_range import RangeTest, diverged_after
from learner.steps.tree_math import rows_of, weight_of
from learner.util.text import count, join_names
from learner.util.trees import named_leaves, path_name

PyTree = Any
ROWS = 32  # of a batch to memorize
RECENT = 5  # losses whose mean counts as the last one, because steps with dropout vary
LEARNED, ENOUGH, HARDLY = 0.1, 0.5, 0.9  # shares of the first loss
SHUFFLED_BATCHES, LEAST_GAIN = 8, 0.05  # batches of each split; share of the loss
ROUNDING = 1e-6  # of a sum in another order, relative
PREDICTIONS = "logits", "predictions"  # of an output
RATES, RANGE_STEPS = (1e-7, 10.0), 100  # of the range test
SMOOTHING, DIVERGES, LEAST_FALL = 0.8, 4.0, 1e-3
FAR = 1000  # times below the suggested rate


def one_batch(trial: CheckTrial) -> Finding:
    """Train on the same rows repeatedly. The number is the remaining share of the first loss."""
    batch = few_rows(trial)
    state, losses, left = trial.state, list[float](), 1.0
    while len(losses) < trial.steps and left > LEARNED and math.isfinite(left):
        state, loss = trial.train(state, batch)
        losses.append(loss)
        left = remaining(losses)
    lr = trial.definition.optimizer.lr
    steps, rows = count(len(losses), "step"), count(rows_of(batch), "row")
    text = f"The loss of {rows} goes from {losses[0]:.3g} to {losses[-1]:.3g} in {steps} at the rate {lr:.2g}"
    if not math.isfinite(losses[0]):
        return Finding(FAILED, left, f"The first loss is {losses[0]}: {NOT_FINITE}.")
    if not math.isfinite(left):
        return Finding(FAILED, left, f"{text}: lower the learning rate, or clip gradients.")
    if left > HARDLY:
        remedy = "look at the loss, at the labels of these rows, and with learner find-lr at the learning rate"
        return Finding(FAILED, left, f"{text}: {remedy}.")
    if left > ENOUGH:
        return Finding(WARNING, left, f"{text}: it falls slowly; try a higher learning rate, or more steps.")
    return Finding(OK, left, f"{text}.")


def few_rows(trial: CheckTrial) -> PyTree:
    """Return the first rows of the first training batch."""
    first = trial.inputs.first_batches["train"]
    return jax.tree.map(lambda x: x[: min(ROWS, rows_of(first))], first)


def label_shuffle(trial: CheckTrial) -> Finding:
    """Train on the unchanged data, and with labels shuffled within each batch. The number is the validation loss after
    the former divided by the validation loss after the latter.
    """
    split = trial.valid_split
    if split is None or trial.definition.step.valid is None:
        return skipped("There is no validation data.")
    batches = trial.regular_batches(SHUFFLED_BATCHES)
    if set(named_leaves(trial.inputs.first_batches[split])) - set(named_leaves(batches[0])):
        return skipped("Training and validation batches have other fields.")
    if rows_of(batches[0]) == 1:
        return skipped("Batches have one row, within which labels cannot be shuffled.")
    labels = _labels_of(trial, batches[0])
    if not labels:
        return skipped("No field of the batches changes the loss and not the predictions, as labels do.")
    held_out = list(itertools.islice(trial.batches(split), SHUFFLED_BATCHES))

    def loss_after(shuffled: bool) -> tuple[float, float]:
        """Return the remaining share of the first training loss, and the validation loss."""
        state, losses, rng = trial.state, list[float](), np.random.default_rng(0)
        for number in range(trial.steps):
            batch = batches[number % len(batches)]
            state, loss = trial.train(state, _with_rows(batch, labels, rng) if shuffled else batch)
            losses.append(loss)
        outputs = [trial.evaluate(state, batch, jnp.int32(0)) for batch in held_out]
        weights = [float(weight_of(output, rows_of(batch))) for output, batch in zip(outputs, held_out, strict=True)]
        return remaining(losses), float(np.average([float(output.loss) for output in outputs], weights=weights))

    (left, loss), (_, of_shuffled) = loss_after(False), loss_after(True)
    ratio = loss / of_shuffled if of_shuffled else math.nan
    names = join_names(sorted(labels), 3)
    text = (
        f"After {count(trial.steps, 'step')} the validation loss is {loss:.3g}, and {of_shuffled:.3g} with {names} "
        "shuffled"
    )
    if not math.isfinite(loss):
        return Finding(WARNING, ratio, f"{text}: lower the learning rate, or clip gradients.")
    if loss < of_shuffled - LEAST_GAIN * abs(of_shuffled):
        return Finding(OK, ratio, f"{text}.")
    if left > HARDLY:
        return Finding(WARNING, ratio, f"{text}: too little was learned in these steps to decide; try more steps.")
    remedy = "the labels may belong to other rows than the inputs, in the training or in the validation data"
    return Finding(FAILED, ratio, f"{text}: {remedy}, or the model only learns its rows by heart.")


def _labels_of(trial: CheckTrial, batch: PyTree) -> set[str]:
    """Return the names of the fields whose row order changes the loss of the valid step but none of its predictions.
    Fields of 0 and 1, from which the step makes the mask of its output, are no labels.
    """
    state, _ = trial.train(trial.state, batch)  # predictions that are equal for all rows hide the order of the labels

    def outputs(batch: PyTree) -> tuple[list[bytes], float, list[bytes]]:
        output = trial.evaluate(state, batch, jnp.int32(0))
        predicted = [getattr(output, name) for name in PREDICTIONS if getattr(output, name, None) is not None]
        return bytes_by_leaf(predicted), float(output.loss), bytes_by_leaf(getattr(output, "mask", None))

    predictions, loss, mask = outputs(batch)
    labels = set()
    for name, values in named_leaves(batch).items() if predictions else ():
        moved = outputs(_with_rows(batch, {name}, None))
        is_mask = moved[2] != mask and bool(np.isin(values, (0, 1)).all())
        if moved[0] == predictions and not math.isclose(moved[1], loss, rel_tol=ROUNDING) and not is_mask:
            labels.add(name)
    return labels


def _with_rows(batch: PyTree, names: Collection[str], rng: np.random.Generator | None) -> PyTree:
    """Return the batch with the rows of some fields reordered, all in the same way: shuffled, or shifted by one if
    there is no generator.
    """
    rows = rows_of(batch)
    order = np.roll(np.arange(rows), 1) if rng is None else rng.permutation(rows)
    return jax.tree_util.tree_map_with_path(lambda path, x: x[order] if path_name(path) in names else x, batch)


def remaining(losses: list[float]) -> float:
    """Return the remaining share of the first loss; below 0 if the loss fell below 0. If the first loss is below 0,
    each decrease by its absolute value subtracts 1.

    >>> remaining([4.0]), remaining([4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]), remaining([-1.0, -2.0])
    (1.0, 0.25, 0.5)
    """
    first, recent = losses[0], losses[-RECENT:] if len(losses) > RECENT else losses
    if first == 0:
        return 1.0
    return 1.0 - (first - sum(recent) / len(recent)) / abs(first)


def learning_rate(trial: CheckTrial) -> Finding:
    """Run a range test on the rows of one batch, and compare the run's highest learning rate with the result. The
    number is the suggested rate.
    """
    if trial.ignored_rate is not None:
        part, remedy = trial.ignored_rate
        lr = trial.definition.optimizer.lr
        text = f"The learning rate is not used, as {part} ignores it"
        return Finding(WARNING, math.nan, f"{text}: {remedy}.") if lr else skipped(f"{text}.")
    rates, losses = np.geomspace(*RATES, RANGE_STEPS), list[float]()
    state, end, batch = trial.state, None, few_rows(trial)  # other rows in each step would hide a slow decrease
    for rate in rates:
        state, loss = trial.train(dataclasses.replace(state, lr_scale=jnp.float32(rate)), batch)
        losses.append(loss)
        end = diverged_after(np.array(losses), SMOOTHING, DIVERGES)
        if end is not None:
            break
    if end == 0:
        return Finding(FAILED, losses[0], f"The first loss is {losses[0]}: {NOT_FINITE}.")
    kept = len(losses) if end is None else end
    test = RangeTest(rates[:kept], np.array(losses[:kept]), RANGE_STEPS, SMOOTHING)
    highest = math.inf if end is None else float(rates[end - 1])
    falls = losses[0] - test.smoothed.min() > LEAST_FALL * abs(losses[0])  # not only by rounding
    suggestion = test.suggestion if falls else None
    return _rate_finding(trial.definition.optimizer.lr, suggestion, highest, trial.has_schedule)


def _rate_finding(lr: float, suggestion: float | None, highest: float, has_schedule: bool) -> Finding:
    """Return the finding for a run's highest rate. `highest`: the rate at which the loss diverges."""
    if lr >= highest:
        number = math.nan if suggestion is None else suggestion
        text = f"The loss diverges at the rate {highest:.2g}, and the run's rate is {lr:.2g}"
        if has_schedule:
            return Finding(WARNING, number, f"{text} after its warm-up: make sure that this is long enough.")
        return Finding(FAILED, number, f"{text}: lower it.")
    if suggestion is None:
        text = "The loss does not fall at any rate: look at the model and the data."
        return Finding(WARNING, math.nan, text)
    text = f"The loss falls fastest at the rate {suggestion:.2g}, and the run's rate is {lr:.2g}"
    if lr < suggestion / FAR:
        return Finding(WARNING, suggestion, f"{text}: try a higher one.")
    return Finding(OK, suggestion, f"{text}.")
