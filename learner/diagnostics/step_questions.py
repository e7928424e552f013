"""Questions of `Learner.check` about single steps."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from learner.diagnostics.check_result import FAILED, OK, WARNING, Finding, skipped
from learner.diagnostics.check_trial import CheckTrial, bytes_by_leaf
from learner.diagnostics.overview import memory_by_part
from learner.models.freezing import frozen_leaves
from learner.steps.train_state import TrainState
from learner.strategies.device_lookup import memory_limit
from learner.training.programs.program_memory import memory_of
from learner.training.setup.dispatch_plan import planned
from learner.util.text import count, join_names, size
from learner.util.trees import named_leaves

PyTree = Any
GRADIENT_STEPS = 4
MOST_NAMED = 6
NEARLY_FULL = 0.9


def gradients(trial: CheckTrial) -> Finding:
    """Find the parameters whose gradient is 0 in each of some steps, or not finite. The number counts them."""
    step = trial.definition.step
    if step.train is None:
        return skipped("The step computes its own update.")

    def largest(state: TrainState, batch: PyTree) -> PyTree:
        sums, _ = step.accumulate_micro_batch(state, step.begin(state), batch, jnp.int32(0))
        return jax.tree.map(lambda g: jnp.abs(g).max(initial=0).astype(jnp.float32), sums.grads)

    compiled, state = jax.jit(largest), trial.state

    def probe(state: TrainState, batch: PyTree) -> dict[str, float]:
        return {name: float(x) for name, x in named_leaves(jax.device_get(compiled(state, batch))).items()}

    batches = trial.regular_batches(GRADIENT_STEPS)
    norms = {name: 0.0 for name, x in named_leaves(state.params).items() if x.size}
    # Updates in between, because a zero-initialized layer passes on no gradient in the first step.
    for number in range(GRADIENT_STEPS):
        batch = batches[number % len(batches)]
        new = probe(state, batch)
        # In float16 the first steps may only lower the loss scale, until the gradients are finite.
        while not all(map(math.isfinite, new.values())) and (lowered := _with_lower_scale(trial, state, batch)):
            state, new = lowered, probe(lowered, batch)
        norms = {name: max(norm, new[name]) for name, norm in norms.items()}
        if not all(map(math.isfinite, new.values())):
            norms = {name: new[name] for name in norms}
            break  # the update would spread it to all parameters
        state, _ = trial.train(state, batch)
    return _gradient_finding(norms, len(frozen_leaves(step.adapter, trial.state.model_state)))


def _with_lower_scale(trial: CheckTrial, state: TrainState, batch: PyTree) -> TrainState | None:
    """Return the state after a step that lowers the loss scale, or None if the step does not lower it."""
    if trial.definition.step.policy.scaling is None:
        return None
    new, _ = trial.train(state, batch)
    before, after = (float(each.extra["loss_scale"]["scale"]) for each in (state, new))
    return new if after < before else None


def _gradient_finding(norms: dict[str, float], frozen: int) -> Finding:
    bad = [name or "the array" for name, norm in norms.items() if not math.isfinite(norm)]
    zero = [name or "the array" for name, norm in norms.items() if norm == 0]
    trained = count(len(norms), "trained array")
    if bad:
        text = f"The gradients of {join_names(bad, MOST_NAMED)} are not finite: look for log, sqrt or division at 0."
        return Finding(FAILED, float(len(bad)), text)
    if zero:
        remedy = "use these parameters in the loss, look for stop_gradient and argmax before them, or freeze them"
        text = f"{len(zero)} of {trained} have no gradient ({join_names(zero, MOST_NAMED)}): {remedy}."
        return Finding(FAILED, float(len(zero)), text)
    also = f"; {count(frozen, 'frozen array')} not looked at" if frozen else ""
    return Finding(OK, 0.0, f"Gradients reach all of {trained}{also}.")


def determinism(trial: CheckTrial) -> Finding:
    """Run a step twice. The number counts the arrays of the state that differ."""
    batch = trial.inputs.first_batches["train"]
    first, second = (bytes_by_leaf(trial.train(trial.state, batch)[0]) for _ in range(2))
    different = sum(a != b for a, b in zip(first, second, strict=True))
    if not different:
        return Finding(OK, 0.0, "The same step twice has the same bits.")
    text = f"The same step twice differs in {different} of {count(len(first), 'array')}"
    if trial.definition.strategy.platform == "cpu":
        return Finding(FAILED, float(different), f"{text}: look for callbacks that use more than their arguments.")
    remedy = "to resume to the bit, set XLA_FLAGS=--xla_gpu_deterministic_ops=true in the environment"
    return Finding(WARNING, float(different), f"{text}: {remedy}.")


def memory(trial: CheckTrial) -> Finding:
    """Compile the training and compare its peak with the memory of the device. The number is the peak in bytes."""
    plan = planned(trial.definition, trial.inputs)
    peak = max(program.peak for program in memory_of(plan.runner, plan.feed(), plan.feeder.loop))
    limit = memory_limit(trial.definition.strategy.devices[0])
    parts = memory_by_part(plan, plan.feed())
    parts["activations and others"] = max(0, peak - sum(parts.values()))
    listed = ", ".join(
        f"{name} {size(parts[name])}" for name in sorted(parts, key=lambda name: -parts[name]) if parts[name]
    )
    text = f"Training needs at most {size(peak)} on each device ({listed})"
    if limit is None:
        return Finding(OK, float(peak), f"{text}; the device does not report how much it has.")
    text = f"{text}; the device has {size(limit)}"
    if peak <= NEARLY_FULL * limit:
        return Finding(OK, float(peak), f"{text}.")
    remedy = 'use grads_accumulation("auto"), lower precision, or remat'
    return Finding(FAILED if peak > limit else WARNING, float(peak), f"{text}: {remedy}.")
