"""Warnings about a step that was traced: likely mistakes that are no errors."""

from collections.abc import Sequence

from learner.training.checks.step_checks import TracedTrainStep, warning_of_draws
from learner.util.text import join_names

MOST_NAMED = 3


def step_warnings(traced: TracedTrainStep, name: str, in_place: bool) -> list[str]:
    """Return the warnings about a train step, or about `update=`.

    Args:
      traced: the traced step.
      name: `train_step` or `update=`.
      in_place: True if the step changes its model in place. A step that returns a model means all that it changes.
    """
    return [*_of_training(traced, name), *_of_assignments(traced, name, in_place), *_of_random_numbers(traced, name)]


def _of_training(traced: TracedTrainStep, name: str) -> list[str]:
    """Return the warnings about the loss, and about parts of the model that do not train as given."""
    warnings = []
    if traced.is_unchanged:
        warnings.append(
            "update= returns its parameters unchanged, so nothing is trained: return (state, output) with a state of "
            "the new parameters and the new state of the optimizer. Ignore this warning if it is meant to change other "
            "variables only, such as statistics"
        )
    if traced.switched:
        layers = join_names([path or "a layer" for path in traced.switched], MOST_NAMED)
        warnings.append(
            f"{layers} of the model {'was' if len(traced.switched) == 1 else 'were'} in eval mode, but {name} runs the "
            "whole model in train mode, where Dropout drops and statistics change. To keep a layer in eval mode, use "
            "learner.eval_mode(layer) in the step. Ignore this warning if it is meant to be in train mode"
        )
    if moving := [layer for layer in traced.moving if layer not in traced.switched]:
        warnings.append(
            f"{join_names(moving, MOST_NAMED)} of the model {'is' if len(moving) == 1 else 'are'} frozen, but {name} "
            "changes the statistics, as the whole model is in train mode: call layer.eval() of flax.nnx in the step, "
            "or use learner.eval_mode(layer), or use_running_average=True of flax.linen. Ignore this warning if the "
            "statistics are meant to follow the data"
        )
    if traced.loses_state:
        warnings.append(
            "the model has an eqx.nn.State, and train_step returns its output alone, so the state, such as the "
            "statistics of BatchNorm, never changes: return (output, (model, state)). Ignore this warning if it is not "
            "meant to change"
        )
    if traced.is_constant:
        warnings.append(
            "the loss of train_step depends on no parameter of its model, so nothing is trained: it is computed from "
            "the batch alone, or jax.lax.stop_gradient wraps the model's output"
        )
    if traced.broadcast is not None:
        warnings.append(
            "the loss of train_step combines each row of the model's output with all rows of the batch "
            f"({traced.broadcast}), as happens if predictions and targets differ in shape: give both the same shape, "
            "such as model(x)[:, 0] and targets [batch]. Ignore this warning if the loss compares all pairs"
        )
    if traced.activation is not None:
        warnings.append(
            f"the logits of train_step are already the output of a {traced.activation}, and losses and metrics of "
            "logits apply it again: return the values before it. Ignore this warning if your own loss takes "
            "probabilities"
        )
    return warnings


def _of_assignments(traced: TracedTrainStep, name: str, in_place: bool) -> list[str]:
    """Return the warnings about values that the step assigns to its model."""
    warnings = []
    if traced.written:
        warnings.append(_of_written(traced.written))
    warnings += assignment_warnings(traced.assigned, name)
    if traced.lost:
        warnings.append(
            f"{name} assigns {join_names(traced.lost, MOST_NAMED)} in the containers of its model, which has no effect "
            "after the step: return the model with its output, (output, model), to keep state that is not a parameter. "
            "Ignore this warning if only the same step reads the value"
        )
    if traced.rounded:
        warnings.append(
            f"train_step assigns {join_names(traced.rounded, MOST_NAMED)} of its model, which are frozen, and fails "
            "with their float32 values: half precision rounds them in each step, so that a moving average stands "
            "still. Let after_step move them"
        )
    elif traced.unfrozen and in_place:
        warnings.append(
            f"train_step assigns {join_names(traced.unfrozen, MOST_NAMED)} of its model: no optimizer changes frozen "
            "parameters, but each assigned value is kept, as layers such as nnx.SpectralNorm and nnx.WeightNorm assign "
            "them. Ignore this warning if the step is meant to change them; after_step does so once per optimizer step"
        )
    return warnings


def assignment_warnings(names: Sequence[str], function: str) -> list[str]:
    """Return a warning about attributes that a user's function assigns to its model, if there are any.

    >>> assignment_warnings([], "train_step")
    []
    """
    if not names:
        return []
    return [
        f"{function} assigns {join_names(names, MOST_NAMED)} of its model, which has no effect: attributes that are "
        "not variables are constants of the compiled program, and each step starts with the original ones. Keep state "
        "in a variable that __init__ creates, such as nnx.Variable(jnp.array(0)); on_batch receives the number of the "
        "step. It is harmless if only the same step reads the value"
    ]


def _of_random_numbers(traced: TracedTrainStep, name: str) -> list[str]:
    """Return the warnings about random numbers that are the same in each step."""
    warnings = []
    draws = "update(state, batch, lr, rng)" if name == "update=" else "train_step(model, batch, rng)"
    draws = f"Take a key, {draws} or on_batch(batch, rng), and draw"
    if traced.host_generators:
        remedy = f"{draws} with jax.random; augment(fn) gives items of a dataset a NumPy generator"
        warnings.append(warning_of_draws(f"{name} (or on_batch)", traced.host_generators, remedy))
    if traced.has_constant_key:
        warnings.append(
            f"{name} (or on_batch) draws random numbers for each row from a key that is the same in all steps, such as "
            f"jax.random.key(0), so every step has the same numbers. {draws} from it. Ignore this warning if the "
            "numbers are meant to be constant"
        )
    return warnings


def _of_written(names: Sequence[str]) -> str:
    """Return the warning about parameters that a train step replaces in its model."""
    return (
        f"train_step replaces {join_names(names, MOST_NAMED)} in its model, which has no effect: only the optimizer "
        "that build() received changes trained parameters. State that one step passes to the next is not a parameter: "
        "freeze it (freeze('^carry'), or trainable=), or keep it in a variable of another type (nnx). Changes other "
        "than by gradients belong in the optimizer, such as optax.keep_params_nonnegative(), or in after_step; a step "
        "with an optimizer of its own is update=. It is harmless if only the same step reads the values"
    )
