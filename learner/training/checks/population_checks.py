"""Checks that the steps of one member can be mapped over the members of a population, before anything is compiled."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from learner.data.abstract_source import Source
from learner.errors import Problem
from learner.metrics.base import MetricBase
from learner.steps.measure import MetricCollection
from learner.steps.run_key import run_keys
from learner.steps.step import HYPERPARAMETERS, StepFunctions
from learner.steps.train_state import TrainState
from learner.strategies.base import Strategy
from learner.strategies.device_lookup import memory_limit
from learner.training.checks.step_checks import trace_train, trace_valid
from learner.training.feed.group import bytes_of
from learner.training.feed.inputs import Inputs
from learner.util.text import count, first_line, join_names, size
from learner.util.trees import is_key, named_leaves

MEMBERS = 2  # of the traced population; any number will do


def population_problems(step: StepFunctions, state: TrainState, inputs: Inputs) -> Iterator[str]:
    """Yield the problems of the traced steps of one member with a population.

    Args:
      step: the definition of the steps.
      state: the shapes of the state of a member.
      inputs: the data, with the traced steps.
    """
    for split, program in inputs.programs.items():
        if program.effects:
            effects = ", ".join(sorted(map(str, program.effects)))
            yield Problem(
                f"the {_kind(split)} step has effects on the host ({effects}), as jax.debug.print and io_callback "
                "have them, and members of a population cannot have them one after another: leave them out",
                code="population-step-effects",
                split=split,
            )
        elif reason := _not_mappable(program, state):
            yield _explain(step, state, inputs, split, reason)


def shared_key_warnings(step: StepFunctions, state: TrainState) -> list[str]:
    """Return a warning if the optimizer's state has random keys that do not follow from the seed of a member: all
    members would draw the same numbers.

    Args:
      step: the definition of the steps.
      state: the shapes of the state of a member.
    """
    names = [name for name, x in named_leaves(state.opt_state).items() if is_key(x)]
    if not names:
        return []

    def keys(rng: Any, value: Any) -> list[Any]:
        """Return the keys of a member; XLA removes the rest of the state."""
        params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state.params)
        hyperparameters = dict.fromkeys(state.extra.get(HYPERPARAMETERS, ()), value)
        with run_keys(rng):
            opt_state, _ = step.init_optimizer_state(params, jnp.float32(1), hyperparameters)
        return [jax.random.key_data(x) for x in jax.tree.leaves(opt_state) if is_key(x)]

    program = jax.jit(keys)
    pairs = zip(program(jax.random.key(1), jnp.float32(1)), program(jax.random.key(2), jnp.float32(2)), strict=True)
    shared = [name for name, pair in zip(names, pairs, strict=True) if np.array_equal(*pair)]
    if not shared:
        return []
    return [
        f"the optimizer draws from {join_names(shared, 3)} of its state, which is the same for each seed: all members "
        "get the same random numbers. A key from learner.optimizers.run_key() in its init follows the seed, as that "
        "of Noisy does"
    ]


def data_order_problems(source: Source) -> list[str]:
    """Return the problem of training data for which members cannot have their own orders."""
    if source.has_rows and source.fingerprint().get("order") == "shuffled":
        return []
    return [
        Problem(
            "data_order='own' needs training data in memory that is shuffled, by with_batch_size(n) or by "
            "DataLoaderBuilder().shuffle(seed): give such data, or leave data_order out",
            code="population-data-order",
        )
    ]


def memory_problems(state: TrainState, members: int, strategy: Strategy) -> list[str]:
    """Return the problem of members that do not fit into the memory of their device, if that is known.

    Args:
      state: the shapes of the state of a member.
      members: the number of members.
      strategy: their devices.
    """
    limit, shares = memory_limit(strategy.devices[0]), strategy.member_shares
    each = state_bytes(state)
    if limit is None or each * (members // shares) <= limit:
        return []
    most = limit // each * shares
    advice = f"at most {most} members fit; devices(n) spreads them over more devices, and population(..., waves=True) "
    advice += "trains them in groups that fit, one after another"
    return [
        Problem(
            f"{count(members, 'member')} need at least {size(each * members // shares)} on each device, {size(each)} "
            f"of parameters, gradients and optimizer state a member, and a device has {size(limit)}: "
            f"{advice if most else 'not even one fits'}",
            code="population-memory",
            members=members,
            most=most,
        )
    ]


def state_bytes(state: TrainState) -> int:
    """Return the memory that a member needs for its state and its gradients, in bytes."""
    return bytes_of(state) + bytes_of(state.params)


def _kind(split: str) -> str:
    return "train" if split == "train" else "valid"


def _not_mappable(program: Any, state: TrainState) -> str | None:
    """Return why a traced step cannot be mapped over members, or None."""
    of_state = len(jax.tree.leaves(state))
    inputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.in_avals]
    stacked = [jax.ShapeDtypeStruct((MEMBERS, *x.shape), x.dtype) for x in inputs[:of_state]]
    axes = [0] * of_state + [None] * (len(inputs) - of_state)
    try:
        jax.eval_shape(jax.vmap(jaxpr_as_fun(program), axes), *stacked, *inputs[of_state:])
    except Exception as error:
        return first_line(error)
    return None


def _explain(step: StepFunctions, state: TrainState, inputs: Inputs, split: str, reason: str) -> Problem:
    """Return the problem of a step that cannot be mapped: a metric, if the step can be mapped without it."""
    kind, batch = _kind(split), inputs.first_batches[split]
    measure = step.train_metrics if kind == "train" else step.valid_metrics
    traced: Callable[[StepFunctions], Any] = (
        (lambda step: trace_train(step, state, batch).program)
        if kind == "train"
        else (lambda step: trace_valid(step, state, batch, split).program)
    )

    def fails(metrics: list[MetricBase]) -> bool:
        changed: Any = {f"{kind}_metrics": MetricCollection.of(metrics)}
        return _not_mappable(traced(dataclasses.replace(step, **changed)), state) is not None

    if not fails([]):
        every: list[MetricBase] = [*measure.metrics, *measure.collecting]
        names = [metric.name for metric in every if fails([metric])]
        return Problem(
            f"the metric {', '.join(names)} of the {kind} split cannot be mapped over the members of a population "
            f"({reason}): write it with jax.numpy, collect its rows (CollectingMetric), or leave it out",
            code="population-metric-not-mappable",
            name=", ".join(names),
        )
    return Problem(
        f"the {kind} step cannot be mapped over the members of a population by jax.vmap ({reason}): a callback needs "
        "vmap_method, and a custom primitive needs a batching rule",
        code="population-step-not-mappable",
        split=split,
    )
