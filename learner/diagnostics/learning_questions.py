"""Questions of `Learner.check` about training on a few rows."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.diagnostics.check_result import FAILED, OK, WARNING, Finding
from learner.diagnostics.check_trial import CheckTrial
from learner.diagnostics.output_questions import NOT_FINITE
from learner.diagnostics.rate_range import RangeTest, diverged_after
from learner.steps.tree_math import rows_of
from learner.util.text import count

PyTree = Any
ROWS = 32  # of a batch to learn by heart
RECENT = 5  # losses whose mean is the last one: steps with dropout vary
LEARNED, ENOUGH, HARDLY = 0.1, 0.5, 0.9  # shares of the first loss
RATES, RANGE_STEPS = (1e-7, 10.0), 100  # of the range test
SMOOTHING, DIVERGES, LEAST_FALL = 0.8, 4.0, 1e-3
FAR = 1000  # times below the suggested rate


def one_batch(trial: CheckTrial) -> Finding:
    """Train on the same rows again and again. The number is the share of the first loss that is left."""
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


def remaining(losses: list[float]) -> float:
    """Return the share of the first loss that is left; below 0 if the loss fell below 0. Of a loss that begins below
    0, each fall by its size takes 1 away.

    >>> remaining([4.0]), remaining([4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]), remaining([-1.0, -2.0])
    (1.0, 0.25, 0.5)
    """
    first, recent = losses[0], losses[-RECENT:] if len(losses) > RECENT else losses
    if first == 0:
        return 1.0
    return 1.0 - (first - sum(recent) / len(recent)) / abs(first)


def learning_rate(trial: CheckTrial) -> Finding:
    """Run a range test on the rows of one batch, and compare the highest rate of the run with it. The number is the
    suggested rate.
    """
    rates, losses = np.geomspace(*RATES, RANGE_STEPS), list[float]()
    state, end, batch = trial.state, None, few_rows(trial)  # other rows in each step would hide a slow fall
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
    falls = losses[0] - test.smoothed.min() > LEAST_FALL * abs(losses[0])  # not by rounding only
    suggestion = test.suggestion if falls else None
    return _rate_finding(trial.definition.optimizer.lr, suggestion, highest, trial.has_schedule)


def _rate_finding(lr: float, suggestion: float | None, highest: float, has_schedule: bool) -> Finding:
    """Return the finding for a run's highest rate. `highest`: the rate at which the loss diverges."""
    if lr >= highest:
        number = math.nan if suggestion is None else suggestion
        text = f"The loss diverges at the rate {highest:.2g}, and that of the run is {lr:.2g}"
        if has_schedule:
            return Finding(WARNING, number, f"{text} after its warm-up: make sure that this is long enough.")
        return Finding(FAILED, number, f"{text}: lower it.")
    if suggestion is None:
        text = "The loss does not fall at any rate: look at the model and the data."
        return Finding(WARNING, math.nan, text)
    text = f"The loss falls fastest at the rate {suggestion:.2g}, and that of the run is {lr:.2g}"
    if lr < suggestion / FAR:
        return Finding(WARNING, suggestion, f"{text}: try a higher one.")
    return Finding(OK, suggestion, f"{text}.")
