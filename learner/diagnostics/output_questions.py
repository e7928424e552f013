"""Questions of `Learner.check` about the outputs of an untrained model."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.diagnostics.check_result import FAILED, OK, WARNING, Finding, skipped
from learner.diagnostics.check_trial import CheckTrial, bytes_by_leaf
from learner.models.nnx_modules import has_dropout
from learner.steps.outputs import OF_LABELS, MultiLabelOutput, TrainOutput
from learner.steps.train_state import TrainState
from learner.steps.tree_math import rows_of
from learner.util.text import join_names
from learner.util.trees import named_leaves

PyTree = Any
LOW = 0.5  # below this share of a uniform guess's loss, a loss is unusual before training
HIGH, MUCH_TOO_HIGH = 1.0, 4.0  # excess over the loss of a uniform guess, in units of that loss or of 1 if that is more
TOLERANCE = 1e-4  # relative to the largest output of a field
MODE_TOLERANCE = 1e-3  # relative; programs of the two modes may round differently
MOST_NAMED = 4
NOT_FINITE = "look for NaN in the data, and for log or division"


def initial_loss(trial: CheckTrial) -> Finding:
    """Compare the first loss with the cross-entropy of a uniform guess, log C for C classes. The number is the
    difference.
    """
    if trial.definition.step.train is None:
        return skipped("The step computes its own update.")
    if trial.definition.options.initial is not None:
        return skipped("The model begins with the arrays of a checkpoint.")
    loss, classes = _train_output(trial, trial.inputs.first_batches["train"])
    if not math.isfinite(loss):
        return Finding(FAILED, loss, f"The first loss is {loss}: {NOT_FINITE}.")
    if classes is None:
        return skipped("The expected loss is known for outputs with class or label logits only.")
    uniform, name = math.log(classes), f"log({classes})"
    excess, room = loss - uniform, max(1.0, uniform)
    text = f"The first loss is {loss:.3g}; a uniform guess has {name} = {uniform:.3g}"
    if excess > HIGH * room:
        verdict = FAILED if excess > MUCH_TOO_HIGH * room else WARNING
        return Finding(verdict, excess, f"{text}. Confident errors: scale the inputs, or the last layer, down.")
    if loss < LOW * uniform:
        why = "A model that is not trained cannot know the labels: look for them in the inputs, or for a rare class"
        return Finding(WARNING, excess, f"{text}. {why}.")
    return Finding(OK, excess, f"{text}.")


def _train_output(trial: CheckTrial, batch: PyTree, key: int = 0) -> tuple[float, int | None]:
    """Return the loss of the train step in train mode, and the number of classes of its output, if known. `key`: the
    number of its random key.
    """
    step, classes = trial.definition.step, list[int | None]()

    def loss_of(state: TrainState, batch: PyTree, key: Any) -> Any:
        rng = jax.random.fold_in(state.rng, key)
        output, *_ = step.run_train(state.params, state.model_state, step.train_batch(state, batch, rng), rng)
        output = output.output if isinstance(output, TrainOutput) else output
        if isinstance(output, OF_LABELS):
            classes.append(output.logits.shape[-1])
        else:
            classes.append(2 if isinstance(output, MultiLabelOutput) else None)
        return jnp.asarray(output.loss, jnp.float32)

    return float(jax.jit(loss_of)(trial.state, batch, jnp.int32(key))), classes[-1]


def eval_mode(trial: CheckTrial) -> Finding:
    """Run the valid step repeatedly, with the same and with another random key. The number counts the arrays that
    differ.
    """
    if (reason := reason_without_outputs(trial)) is not None:
        return skipped(reason)
    step, batch = trial.definition.step, trial.inputs.first_batches[trial.valid_split or ""]
    assert step.valid is not None
    first, again, other = (bytes_by_leaf(trial.evaluate(trial.state, batch, jnp.int32(key))) for key in (0, 0, 1))
    repeated = sum(a != b for a, b in zip(first, again, strict=True))
    if repeated:
        text = "Two calls of the valid step with the same arguments differ: look for callbacks and unordered sums."
        return Finding(FAILED, float(repeated), text)
    random = sum(a != b for a, b in zip(first, other, strict=True))
    if not random:
        return Finding(OK, 0.0, "The valid step returns the same bits at each call.")
    if step.valid.takes_rng:
        text = (
            "The valid step draws from its random key. Each validation has the same numbers, but metrics depend on the "
            "seed: leave the key out unless sampling is intended."
        )
        return Finding(WARNING, float(random), text)
    text = "The model draws random numbers in eval mode: dropout must follow the mode that the model is set to."
    return Finding(FAILED, float(random), text)


def train_mode(trial: CheckTrial) -> Finding:
    """Compare the loss of one batch between train and eval mode. The number is their difference."""
    if (reason := reason_without_outputs(trial)) is not None:
        return skipped(reason)
    definition, batches = trial.definition, trial.inputs.first_batches
    if definition.step.train is None:
        return skipped("The step computes its own update.")
    batch = batches[trial.valid_split or ""]
    if _fields(batch) != _fields(batches["train"]):
        return skipped("Training and validation batches have other fields.")
    train = _train_output(trial, batch)[0]
    valid = float(trial.evaluate(trial.state, batch, jnp.int32(0)).loss)
    adapter, difference = definition.step.adapter, train - valid
    if not math.isfinite(difference):
        return skipped(f"The loss of a batch is {train:.4g} in train mode and {valid:.4g} in eval mode.")
    text = f"The loss of a batch is {train:.4g} in train mode and {valid:.4g} in eval mode"
    tolerance = MODE_TOLERANCE * max(abs(train), abs(valid))
    if abs(difference) > tolerance:
        other = _train_output(trial, batch, key=1)[0]
        why = "dropout, batch statistics or steps differ between the modes"
        if abs(other - train) > tolerance:
            why = f"random numbers, such as dropout, may be all of it, as another key gives {other:.4g} in train mode"
        return Finding(OK, difference, f"{text}: {why}.")
    model = adapter.rebuild(trial.state.params, trial.state.model_state)
    if "batch_stats" in jax.tree.leaves(adapter.kinds) or has_dropout(model):
        # Weak dropout changes the mean over many rows by less than rounding may.
        if _train_output(trial, batch, key=1)[0] != train:
            return Finding(OK, difference, f"{text}, and it draws random numbers in train mode.")
        text = f"{text}, although the model has dropout or batch statistics: pass the mode on to its layers"
        return Finding(WARNING, difference, f"{text}.")
    return Finding(OK, difference, f"{text}.")


def _fields(batch: PyTree) -> dict[str, tuple[Any, ...]]:
    return {name: (x.shape[1:], x.dtype) for name, x in named_leaves(batch).items()}


def row_leak(trial: CheckTrial) -> Finding:
    """Replace the second half of a batch, and compare the outputs of the first half in eval mode. The number is the
    largest difference, relative to the outputs.
    """
    if (reason := reason_without_outputs(trial)) is not None:
        return skipped(reason)
    batch = trial.inputs.first_batches[trial.valid_split or ""]
    rows = rows_of(batch)
    kept = rows // 2
    if not kept:
        return skipped("The validation batch has a single row.")
    # Rows of the batch itself, because values such as labels must be valid.
    order = np.concatenate([np.arange(kept), np.arange(rows - kept)[::-1] % kept])
    replaced = jax.tree.map(lambda x: x[order], batch)
    if bytes_by_leaf(replaced) == bytes_by_leaf(batch):
        return skipped("The rows of the validation batch are equal.")
    outputs = [named_leaves(jax.device_get(trial.evaluate(trial.state, b, jnp.int32(0)))) for b in (batch, replaced)]
    inputs = {x.tobytes() for x in named_leaves(batch).values()}
    names = [name for name, x in outputs[0].items() if _is_row_output(x, rows, inputs)]
    if not names:
        return skipped("The valid step has no outputs per row.")
    differences = {name: _difference(outputs[0][name][:kept], outputs[1][name][:kept]) for name in names}
    largest, shown = max(differences.values()), join_names(names, MOST_NAMED)
    if largest <= TOLERANCE:
        return Finding(OK, largest, f"Outputs of a row ({shown}) do not depend on the other rows of its batch.")
    leaks = join_names([name for name in names if differences[name] > TOLERANCE], MOST_NAMED)
    remedy = "compare reductions and reshapes over the first axis, unless rows are meant to interact"
    return Finding(FAILED, largest, f"Outputs of a row ({leaks}) change with the other rows of its batch: {remedy}.")


def _is_row_output(x: Any, rows: int, inputs: set[bytes]) -> bool:
    """Return True for numbers per row that are not copied from the batch, unlike targets and masks."""
    x = np.asarray(x)
    return x.shape[:1] == (rows,) and jnp.issubdtype(x.dtype, jnp.number) and x.tobytes() not in inputs


def _difference(a: Any, b: Any) -> float:
    """Return the largest difference relative to the largest value; 1 if the positions of NaN differ."""
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    a, b = np.asarray(a).astype(wide), np.asarray(b).astype(wide)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return 1.0
    scale = np.abs(a[finite]).max(initial=0.0)
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0) / (scale or 1.0))


def reason_without_outputs(trial: CheckTrial) -> str | None:
    """Return the reason why there are no outputs of the valid step, or None."""
    if trial.definition.step.valid is None:
        return "There is no valid step."
    return "There is no validation data." if trial.valid_split is None else None
