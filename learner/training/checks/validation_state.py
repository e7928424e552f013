"""Detection of valid steps that carry state: a validation discards it, so the run warns."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from learner.steps.step import StepFunctions
from learner.steps.step_definition import ModelChanges
from learner.steps.train_state import TrainState
from learner.training.checks.step_checks import TracedValidStep
from learner.util.jaxprs import forwarded_inputs
from learner.util.text import join_names
from learner.util.trees import named_leaves

PyTree = Any
MOST_NAMED = 3


def carried_state(step: StepFunctions, state: TrainState, batch: PyTree) -> list[str]:
    """Return the names of state in the model that a valid step both changes and reads for its output, such as the state
    of a recurrent cell. Counters and statistics that it only writes do not count.
    """
    names = list(named_leaves(state.model_state))
    outputs: list[int] = []

    def once(model_state: PyTree, state: TrainState, batch: PyTree) -> list[Any]:
        changes = ModelChanges()
        given = dataclasses.replace(state, model_state=model_state)
        output = jax.tree.leaves(step.run_valid(given, batch, jnp.int32(0), changes=changes))
        outputs[:] = [len(output)]
        assert changes.written is not None
        before, after = map(named_leaves, changes.written)
        return output + [after.get(name, before[name]) for name in names]

    program = jax.make_jaxpr(once)(state.model_state, state, batch).jaxpr
    (count,) = outputs
    sources = forwarded_inputs(program)[count:]
    changed = [index for index, source in enumerate(sources) if source != index]
    # For a scan over layers, whose statistics are among its results, only this shows if the output needs them.
    _, used = partial_eval.dce_jaxpr(program, [index < count for index in range(len(program.outvars))])
    return [names[index] for index in changed if used[index]]


def warnings_of_valid(step: StepFunctions, state: TrainState, batch: PyTree, traced: TracedValidStep) -> list[str]:
    """Return the warnings about a valid step that was traced on this batch."""
    # The state that it carries is only known from a second trace.
    carried = carried_state(step, state, batch) if traced.changes_state and not traced.problems else []
    return [*([_warning_of_carried(carried)] if carried else []), *traced.draw_warnings]


def _warning_of_carried(names: Sequence[str]) -> str:
    return (
        f"valid_step reads and changes {join_names(names, MOST_NAMED)} of its model, and the changes are discarded: "
        "each validation batch begins with the state that training has left. Pass whole sequences as rows of a batch, "
        "or begin valid_step with a fresh state"
    )
