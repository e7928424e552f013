"""Averages of the parameters over the steps, which are evaluated and saved instead of the trained parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from learner.errors import LearnerError
from learner.optimizers.base import OptimizerFactory, refuse_no_function
from learner.steps.extra import accepting
from learner.util.number_checks import check_int, is_number
from learner.util.text import name_of


class AveragedState(NamedTuple):
    """The state of an average. `averaged_params`: like the parameters, float32 at least; `count`: updates so far,
    int32; `terms`: the number of parameters in the mean of `Swa`, int32, otherwise None.

    The learner finds the average by the name `averaged_params` (`learner.steps.eval_params`).
    """

    count: Any
    averaged_params: Any
    terms: Any = None


@dataclasses.dataclass(frozen=True)
class Ema(OptimizerFactory):
    """An exponential moving average of the parameters: `average = decay * average + (1 - decay) * params` after each
    step. Validation, hooks, `result.model`, `load_checkpoint` and records use the average; training does not.

    Args:
      optimizer: a function of the learning rate.
      decay: the decay, between 0 and 1. It averages over about 1 / (1 - decay) steps.
      warmup: use `min(decay, (1 + step) / (10 + step))` with `step` from 0, so that the first parameters are soon
        forgotten (Kingma's rule in TensorFlow's `ExponentialMovingAverage`). With `start`, steps count from there.
      start: the number of optimizer steps before averaging begins; until then the average equals the parameters.

    Raises:
      LearnerError: the decay is outside 0 to 1, or the start is negative.

    >>> made = Ema(optax.sgd, decay=0.75, warmup=False)(1.0)
    >>> params, state = jnp.float32(0), made.init(jnp.float32(0))
    >>> updates, state = made.update(jnp.float32(-8), state, params)  # the parameter becomes 8
    >>> float(state[1].averaged_params)
    2.0
    """

    optimizer: Callable[[Any], Any]
    decay: float = 0.999
    warmup: bool = True
    start: int = 0

    def __post_init__(self) -> None:
        if not is_number(self.decay) or not 0 <= self.decay < 1:
            shown = name_of(self.decay) if callable(self.decay) else repr(self.decay)
            raise LearnerError(
                f"decay of Ema is {shown}; it needs a number from 0 to below 1, as in Ema(optax.adamw, decay=0.999)",
                code="optimizer-ema-decay-value",
            )
        _check(self, start=0)

    def __call__(self, lr: Any) -> optax.GradientTransformation:
        """See `OptimizerFactory`."""
        return optax.chain(accepting(self.optimizer(lr)), _averaged(self._weight))

    def _weight(self, step: Any, terms: None) -> tuple[Any, None]:
        # Subtract before rounding to the array's dtype: 1 - float32(0.9999) has a relative error of 1e-4.
        weight: Any = 1 - self.decay
        if self.warmup:
            weight = jnp.maximum(weight, 9 / (10 + (step - self.start).astype(float)))
        return jnp.where(step < self.start, 1.0, weight), None


@dataclasses.dataclass(frozen=True)
class Swa(OptimizerFactory):
    """Stochastic weight averaging (Izmailov et al. 2018): the mean of the parameters after step `start`, step
    `start + every` and so on (step 0: the initial parameters); before that, the parameters. It is used as described in
    `Ema`. With a cyclic rate, set `every` to the length of a cycle and `start` to the end of one. A step that was
    skipped as not finite adds nothing to the mean.

    The statistics of BatchNorm are those of the trained parameters: with BatchNorm prefer `Ema`, or recompute the
    statistics from the data.

    Args:
      optimizer: a function of the learning rate, which should stay high or be cyclic from `start` on.
      start: the number of optimizer steps before the first parameters in the mean.
      every: the number of optimizer steps between parameters in the mean.

    Raises:
      LearnerError: the start is negative, or `every` is below 1.

    >>> made = Swa(optax.sgd, start=1)(1.0)
    >>> params, state = jnp.float32(0), made.init(jnp.float32(0))
    >>> for _ in range(4):  # the parameter becomes 1, 2, 3, 4
    ...     updates, state = made.update(jnp.float32(-1), state, params)
    ...     params = params + updates
    >>> float(state[1].averaged_params)
    2.5
    """

    optimizer: Callable[[Any], Any]
    start: int
    every: int = 1

    def __post_init__(self) -> None:
        _check(self, start=0, every=1)

    def __call__(self, lr: Any) -> optax.GradientTransformation:
        """See `OptimizerFactory`."""
        return optax.chain(accepting(self.optimizer(lr)), _averaged(self._weight, terms=1))

    def _weight(self, step: Any, terms: Any) -> tuple[Any, Any]:
        since = step + 1 - self.start  # the parameters are those after this step
        counts = since % self.every == 0
        # Terms are counted, not computed from the step: a skipped step adds no term.
        terms = jnp.where(since <= 0, 1, jnp.where(counts, terms + 1, terms))
        return jnp.where(since <= 0, 1.0, jnp.where(counts, 1 / terms.astype(float), 0.0)), terms


def describe_ineffective(optimizer: Any, steps: int) -> list[str]:
    """Return sentences about the averages of an optimizer that a run of `steps` steps ends too early for.

    >>> describe_ineffective(Swa(optax.sgd, start=500), 100)[0].partition(",")[0]
    'Swa averages the parameters from step 500 on'
    >>> describe_ineffective(Swa(optax.sgd, start=50), 100)
    []
    """
    texts = []
    while isinstance(optimizer, OptimizerFactory):
        if isinstance(optimizer, Ema | Swa) and steps <= optimizer.start:
            texts.append(
                f"{type(optimizer).__name__} averages the parameters from step {optimizer.start:,} on, and the run "
                f"ends at step {steps:,}: the trained parameters are evaluated"
            )
        elif isinstance(optimizer, Swa) and steps < optimizer.start + optimizer.every:
            texts.append(
                f"Swa averages the parameters after every {optimizer.every:,} steps from step {optimizer.start:,} on, "
                f"and the run ends at step {steps:,}: at its end, the parameters of step {optimizer.start:,} alone are "
                "evaluated"
            )
        optimizer = getattr(optimizer, "optimizer", None)
    return texts


def has_swa(optimizer: Any) -> bool:
    """Return True if `Swa` averages the parameters of an optimizer.

    >>> has_swa(Swa(optax.sgd, start=1)), has_swa(Ema(optax.sgd))
    (True, False)
    """
    return isinstance(optimizer, Swa) or (
        isinstance(optimizer, OptimizerFactory) and has_swa(getattr(optimizer, "optimizer", None))
    )


def _averaged(
    weight: Callable[[Any, Any], tuple[Any, Any]], terms: int | None = None
) -> optax.GradientTransformationExtraArgs:
    """Maintain `average += w * (params - average)` with `w, terms = weight(step, terms)`, step from 0 and params after
    the step, without changing updates. Like schedules, it counts skipped steps; without a step, it counts updates.
    """

    def init(params: Any) -> AveragedState:
        first = None if terms is None else jnp.full((), terms, jnp.int32)
        return AveragedState(jnp.zeros((), jnp.int32), jax.tree.map(lambda p: jnp.array(p, _kept(p)), params), first)

    def update(updates: Any, state: AveragedState, params: Any = None, **extra: Any) -> tuple[Any, AveragedState]:
        new = optax.apply_updates(params, updates)
        w, terms = weight(jnp.asarray(extra.get("step", state.count)), state.terms)
        averaged = jax.tree.map(lambda a, p: _towards(a, p.astype(a.dtype), w), state.averaged_params, new)
        return updates, AveragedState(optax.safe_increment(state.count), averaged, terms)

    return optax.GradientTransformationExtraArgs(init, update)


def _towards(average: Any, value: Any, weight: Any) -> Any:
    # A weight of 1 is separate: `average + 1 * (value - average)` is not `value` to the bit.
    return jnp.where(weight == 1, value, average + weight.astype(average.real.dtype) * (value - average))


def _kept(p: Any) -> Any:
    return p.dtype if jnp.dtype(p.dtype).itemsize >= 4 else jnp.float32


def _check(average: Any, **numbers: int) -> None:
    """Check the optimizer of a weight average, and its numbers, which have the given lower limits."""
    name = type(average).__name__
    refuse_no_function(average.optimizer, f"the optimizer of {name}")
    for argument, least in numbers.items():
        value = check_int(argument, getattr(average, argument), least, of=name, code="optimizer-number-value")
        object.__setattr__(average, argument, value)
