"""Losses and gradients that are not finite: detected inside of the step, and recorded in the state.

Regardless of the number of steps in flight, the mark in the state names the step, no checkpoint is made of later steps,
and with `stop` and `skip` the parameters are those before the step.
"""

import dataclasses
import enum
from typing import Any

import jax.numpy as jnp

Array = Any

POLICIES = ("raise", "stop", "skip", "ignore")
LOSS, NORM, LABELS, WEIGHT = "loss", "gradient norm", "labels", "weight"
KINDS = {1: LOSS, 2: NORM, 3: LABELS, 4: WEIGHT}  # LABELS: a loss that is not finite because of labels
CODES = {kind: code for code, kind in KINDS.items()}
HALTS = 8  # added to the kind by the step that ends the run
# Instead of the kind, for a step whose gradients overflowed in half precision: the negated loss scale after it.
ADVICE = {
    LABELS: "Give the labels of the classes numbers from 0 on, and the model a logit for each of them. If some are "
    "not to count, give from_logits their ignore_label, such as -100, or a mask",
    WEIGHT: "Give the output a weight that is a number: how many rows or tokens its loss is the mean over",
}


class Mark(enum.IntEnum):
    """The entries of a mark, an int32 `[4]`. It is one array, as each array of a state costs every dispatch time.

    Attributes:
      HALTED_AT: the step that ended the run, from 1; 0 if none did.
      SKIPPED: steps skipped so far.
      IN_A_ROW: the length of the current row of skipped steps.
      KIND: the code of the newest step, one of `KINDS`, plus `HALTS` if it ended the run; 0 if it is finite; the
        negated loss scale if its gradients overflowed.
    """

    HALTED_AT = 0
    SKIPPED = 1
    IN_A_ROW = 2
    KIND = 3


@dataclasses.dataclass(frozen=True)
class NonFinitePolicy:
    """The response to losses and gradients that are not finite.

    Attributes:
      policy: `raise`: the run ends with an error. `stop`: it ends, and the parameters do not change from that step on.
        `skip`: that step does not change them. `ignore`: nothing is checked.
      in_a_row: the number of consecutive skipped steps that ends the run.
    """

    policy: str = "raise"
    in_a_row: int = 10

    @property
    def holds(self) -> bool:
        """True if such steps must not change the parameters, which requires a branch around the update."""
        return self.policy in ("stop", "skip")

    def fresh(self) -> Array:
        """Return the mark of a new state; see `Mark`."""
        return jnp.zeros(len(Mark), jnp.int32)

    def look(
        self, mark: Array, step: Array, weight: Array, loss: Array, norm: Array, wrong_labels: Array | bool = False
    ) -> tuple[Array, Array]:
        """Return the mark after a step, and True if the step may change the parameters.

        Args:
          mark: int32 `[4]`, the mark before the step.
          step: int32 scalar, the number of steps before it.
          weight: the weight of the step; a step with weight 0 has no loss and no gradients.
          loss: scalar.
          norm: scalar, the norm of its gradients; 0 if unknown.
          wrong_labels: bool scalar, True if labels are outside of the classes, so that its loss is NaN.

        >>> watch, mark = NonFinitePolicy("skip", in_a_row=2), NonFinitePolicy().fresh()
        >>> for loss in (0.5, jnp.nan, 0.25, jnp.inf, jnp.nan):
        ...     mark, changes = watch.look(mark, jnp.int32(6), jnp.float32(1), jnp.float32(loss), jnp.float32(1))
        ...     print(mark, changes)
        [0 0 0 0] True
        [0 1 1 1] False
        [0 1 0 0] True
        [0 2 1 1] False
        [7 3 2 9] False
        """
        if self.policy == "ignore":
            return mark.at[Mark.KIND].set(0), jnp.bool_(True)
        over = mark[Mark.HALTED_AT] > 0
        of_loss = jnp.where(wrong_labels, CODES[LABELS], CODES[LOSS])
        kind = jnp.where(~jnp.isfinite(loss), of_loss, jnp.where(~jnp.isfinite(norm), CODES[NORM], 0))
        kind = jnp.where(~jnp.isfinite(weight), CODES[WEIGHT], kind).astype(jnp.int32)
        kind = jnp.where((weight <= 0) | over, 0, kind)  # a weight of NaN is neither
        bad = (kind > 0).astype(jnp.int32)
        in_a_row = jnp.where(over | (weight <= 0), mark[Mark.IN_A_ROW], (mark[Mark.IN_A_ROW] + 1) * bad)
        halts = bad * (in_a_row >= (self.in_a_row if self.policy == "skip" else 1)).astype(jnp.int32)
        halted = jnp.where(over, mark[Mark.HALTED_AT], halts * (step + 1))
        # In the order of `Mark`.
        return jnp.stack([halted, mark[Mark.SKIPPED] + bad, in_a_row, kind + HALTS * halts]), ~over & (bad == 0)


def nonfinite_text(kind: str, step: int) -> str:
    """Return the sentence that names a step and its non-finite quantity, one of `KINDS`.

    >>> nonfinite_text("gradient norm", 7)
    'the gradient norm of step 7 is not finite'
    """
    if kind == LABELS:
        return (
            f"the loss of step {step} is not finite, because its batch has labels outside of 0..C-1 (of C classes; of "
            "several labels for each row: not between 0 and 1)"
        )
    return f"the {kind} of step {step} is not finite"


def advice(kind: str, bad_rows: str | None, integers: str = "") -> str:
    """Return advice for a non-finite quantity. `bad_rows` names non-finite rows of the training data; None if unknown,
    and empty if there are none. `integers`: the ranges of the data's integers, if known.
    """
    ranges = f" ({integers})" if integers else ""
    if kind in ADVICE:
        return f"{ADVICE[kind]}{ranges if kind == LABELS else ''}"
    usual = "a lower learning rate or clipped gradients (learner.optimizers.Clipped(optimizer, norm=1.0))"
    if bad_rows:
        return (
            f"The training data has NaN or infinite values in {bad_rows}: leave such rows out, or replace the values. "
            f"If the loss does not depend on them, try {usual}"
        )
    data = "" if bad_rows is not None else ", or data without NaN, which `learner data` and DatasetReport count"
    at_zero = "The loss is finite; derivatives of a square root and of a norm at 0 are not: add a number such as 1e-12 "
    at_zero = f"{at_zero}inside of it. " if kind == NORM else ""
    return (
        f"{at_zero}Try {usual}{data}. Indices beyond an embedding's table{ranges} and means without rows (a "
        "micro-batch, or a device's part, that is all masked) are NaN, too. on_nonfinite has other policies"
    )


def valid_advice(bad_rows: str | None = None, integers: str = "") -> str:
    """Return advice for a validation loss that is not finite. The arguments are those of `advice`, of that split.

    >>> print(valid_advice("", "label is from 0 to 11"))
    look for labels outside of the classes (label is from 0 to 11), masks that keep nothing, or outputs that overflow
    """
    data = "NaN or infinite values in that data (`learner data`, DatasetReport), " if bad_rows is None else ""
    rows = f"that data has NaN or infinite values in {bad_rows}. If the loss does not depend on them, "
    ranges = f" ({integers})" if integers else ""
    causes = f"{data}labels outside of the classes{ranges}, masks that keep nothing, or outputs that overflow"
    return f"{rows if bad_rows else ''}look for {causes}"


def mark_overflow(mark: Array, overflows: Array, scale: Array) -> Array:
    """Return the mark after a step, with an entry if its gradients overflowed. `scale`: the loss scale from here on.

    >>> print(mark_overflow(NonFinitePolicy().fresh(), jnp.bool_(True), jnp.float32(512)))
    [   0    0    0 -512]
    """
    return mark.at[Mark.KIND].set(jnp.where(overflows, -scale.astype(jnp.int32), mark[Mark.KIND]))


RAISES = NonFinitePolicy()
