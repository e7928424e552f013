"""One optimizer step and one validation batch, as pure functions.

A step is `begin`, `micro` for each of its micro-batches, and `finish`. Every program, looped or not, is made of these
three, so that all of them compute the same thing.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Info
from learner.steps.finite import RAISES, Watch
from learner.steps.measure import Measure
from learner.steps.model import Family, same_structure, same_tree
from learner.steps.optimizer import OptimizerFn, Schedule, init_optimizer, rate_at, update_params
from learner.steps.outputs import TrainOutput
from learner.steps.state import TrainState, named_leaves

Array = Any
PyTree = Any
Batch = Any

VALID_STREAM = 2**31 - 1  # folded into the root key for validation: no optimizer step has this number


@dataclasses.dataclass(frozen=True)
class StepFn:
    """A user's step, called in one way whatever its signature.

    Attributes:
      fn: `(model, batch)` or `(model, batch, rng)`.
      takes_rng: which of them.
      name: for error messages.
    """

    fn: Callable[..., Any]
    takes_rng: bool
    name: str

    @property
    def returns_gradients(self) -> bool:
        """Whether its signature says `-> TrainOutput`."""
        said = getattr(self.fn, "__annotations__", {}).get("return")
        return said is TrainOutput or (isinstance(said, str) and said.split(".")[-1] == TrainOutput.__name__)

    def __call__(self, model: Any, batch: Batch, rng: Array) -> tuple[Any, Any]:
        """`(output, model)`; the model is the one returned, or `None` when the step returned the output alone."""
        returned = self.fn(model, batch, rng) if self.takes_rng else self.fn(model, batch)
        if isinstance(returned, tuple) and len(returned) == 2 and not hasattr(returned, "loss"):
            return returned
        return returned, None


def step_fn(model: Any, method: str, given: Callable[..., Any] | None) -> StepFn | None:
    """The step that was given, or the model's method of that name, or `None`."""
    fn = given if given is not None else getattr(type(model), method, None)
    if fn is None:
        return None
    name = getattr(fn, "__qualname__", None) or method
    if not callable(fn):
        raise LearnerError(f"{method} is {fn!r}; it needs a function (model, batch) or (model, batch, rng)")
    try:
        kinds = [p.kind for p in inspect.signature(fn).parameters.values() if p.default is p.empty or p.name == "rng"]
    except (TypeError, ValueError):
        kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 2
    positional = [k for k in kinds if k in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    if len(positional) not in (2, 3):
        first = "self" if given is None else "model"
        raise LearnerError(
            f"{method} ({name}) takes {len(positional)} arguments; it needs ({first}, batch) or ({first}, batch, rng)"
        )
    return StepFn(fn, len(positional) == 3, name)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Accumulated:
    """What the micro-batches of a step have added up to.

    Attributes:
      grads: `Σ weight·grad`, or the gradients themselves where a step has one micro-batch.
      weight: `Σ weight`, float32.
      loss: `Σ weight·loss`, or the loss itself.
      model_state: as the last micro-batch left it.
      metrics: the states of the step's metrics.
    """

    grads: PyTree
    weight: Array
    loss: Array
    model_state: PyTree
    metrics: PyTree


@dataclasses.dataclass(frozen=True)
class Step:
    """The definition of a run's steps: everything that is fixed when a program is traced.

    Attributes:
      family: how the model is put together.
      optimizer: a function of the rate; `None` with `update`.
      schedule: a function of the optimizer step, or `None`: the rate is `lr_scale`.
      train: the train step.
      update: replaces the whole update: `(model, batch, lr, rng) -> (model, output)`.
      valid: the valid step.
      train_measure: metrics of the train split.
      valid_measure: metrics of the validation splits.
      accumulate: micro-batches per optimizer step.
      own_grads: whether the train step returns `TrainOutput`.
      watch: what a loss or a gradient does that is not finite.
    """

    family: Family
    optimizer: OptimizerFn | None
    schedule: Schedule | None
    train: StepFn | None
    update: Callable[..., Any] | None
    valid: StepFn | None
    train_measure: Measure
    valid_measure: Measure
    accumulate: int = 1
    own_grads: bool = False
    watch: Watch = RAISES

    def init(self, lr_scale: float, seed: int) -> TrainState:
        """The state before the first step. Every leaf is a copy of its own, strongly typed."""

        def make(params: PyTree, model_state: PyTree, scale: Array, rng: Array) -> TrainState:
            opt_state: PyTree = ()
            if self.optimizer is not None:
                opt_state = init_optimizer(self.optimizer, self.schedule, params, scale)
            extra = {"nonfinite": self.watch.fresh()}
            state = TrainState(jnp.int32(0), params, model_state, opt_state, scale, rng, extra)
            copied: TrainState = jax.tree.map(lambda x: jnp.array(x, jnp.asarray(x).dtype, copy=True), state)
            return copied

        # As one program: op by op, every shape in it would be compiled by itself.
        state: TrainState = jax.jit(make)(
            self.family.params, self.family.model_state, jnp.float32(lr_scale), jax.random.key(seed)
        )
        return state

    # -- training ------------------------------------------------------------------------------------------------------

    def begin(self, state: TrainState) -> Accumulated:
        """Nothing added yet."""
        zero = jnp.float32(0)
        grads = jax.tree.map(lambda p: jnp.zeros(p.shape, _sum_dtype(p.dtype)), state.params)
        return Accumulated(grads, zero, zero, state.model_state, self.train_measure.init())

    def micro(self, state: TrainState, acc: Accumulated, batch: Batch, index: Array) -> tuple[Accumulated, PyTree]:
        """Adds one micro-batch, the `index`-th of its step; also returns the rows that metrics collect."""
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), index)
        grads, output, model_state = self._differentiate(state.params, acc.model_state, batch, key)
        weight = jnp.asarray(weight_of(output, batch), jnp.float32)
        info = Info(state.step, weight, rate_at(self.schedule, state.step, state.lr_scale))
        metrics = self.train_measure.update(acc.metrics, output, info)
        rows = self.train_measure.collect(output)
        loss = jnp.asarray(output.loss, jnp.float32)
        if self.accumulate == 1:
            return Accumulated(grads, weight, loss, model_state, metrics), rows
        grads = jax.tree.map(lambda s, g: s + _weighted(g, weight), acc.grads, grads)
        model_state = _keep_if(weight > 0, model_state, acc.model_state)
        return Accumulated(grads, acc.weight + weight, acc.loss + _weighted(loss, weight), model_state, metrics), rows

    def _differentiate(
        self, params: PyTree, model_state: PyTree, batch: Batch, key: Array
    ) -> tuple[PyTree, Any, PyTree]:
        assert self.train is not None
        step = self.train

        def forward(params: PyTree) -> tuple[Array, tuple[Any, Any, PyTree]]:
            model = self.family.merge(params, model_state, jax.random.fold_in(key, 1), train=True)
            returned, new_model = step(model, batch, key)
            grads, output = (returned.grads, returned.output) if self.own_grads else (None, returned)
            new_state = self.model_state_after(model, new_model, model_state)
            return jnp.asarray(output.loss), (grads, output, new_state)

        if self.own_grads:
            _, (grads, output, new_state) = forward(params)
            grads = self.grads_like(params, grads)
        else:
            (_, (_, output, new_state)), grads = jax.value_and_grad(forward, has_aux=True)(params)
        return grads, output, new_state

    def grads_like(self, params: PyTree, grads: Any) -> PyTree:
        """The gradients that the train step returned, under the names of `params`."""
        assert self.train is not None
        what = f"{self.train.name} returned other gradients than the model's"
        grads = same_structure(self.family.grads(grads), params, what)
        each_example = self.train.returns_gradients and self.accumulate == 1  # may then be `[examples, ...]`
        for name, g, p in zip(named_leaves(params), jax.tree.leaves(grads), jax.tree.leaves(params), strict=True):
            if jnp.shape(g) != p.shape and not (each_example and jnp.shape(g)[1:] == p.shape):
                raise LearnerError(f"{what}: that of {name} is {list(jnp.shape(g))}, and {name} is {list(p.shape)}")
        return grads

    def model_state_after(self, given: Any, returned: Any, before: PyTree) -> PyTree:
        """The model's state after a step that was `given` a model and `returned` one, or `None`."""
        if returned is not None:
            return like(self.family.read(returned), before, "the model's state")
        if self.family.changes_in_place:
            return like(self.family.read(given), before, "the model's state")
        return before

    def finish(
        self, state: TrainState, acc: Accumulated, value_fn: Callable[[PyTree], Array] | None = None
    ) -> tuple[TrainState, PyTree]:
        """The update: the state after the step, and the states of the step's metrics. A step of weight 0 changes no
        parameters, and one with a loss or gradients that are not finite does what `watch` says.
        """
        rate = rate_at(self.schedule, state.step, state.lr_scale)
        grads, loss, weight = acc.grads, acc.loss, acc.weight
        if self.accumulate > 1:
            divisor = jnp.where(weight > 0, weight, 1)
            grads = jax.tree.map(lambda g, p: (g / divisor.astype(g.dtype)).astype(p.dtype), grads, state.params)
            loss = loss / divisor
        norm = global_norm(grads)
        extra, changes = self._look(state, weight, loss, norm)
        old = (state.params, state.opt_state, state.model_state)

        def updated() -> tuple[PyTree, PyTree, PyTree]:
            assert self.optimizer is not None
            params, opt_state = update_params(
                self.optimizer, rate, grads, state.opt_state, state.params, loss=loss, value_fn=value_fn
            )
            params = like(params, state.params, "the parameters")
            opt_state = like(opt_state, state.opt_state, "the optimizer's state")
            new: tuple[PyTree, PyTree, PyTree] = _keep_if(weight > 0, (params, opt_state, acc.model_state), old)
            return new

        # A branch, because a choice between arrays is compiled into the update, and changes its last bits.
        new = jax.lax.cond(changes, updated, lambda: old) if self.watch.holds else updated()
        info = Info(state.step, weight, rate, norm)
        metrics = self.train_measure.update_step(acc.metrics, info)
        return dataclasses.replace(
            state, step=state.step + 1, params=new[0], opt_state=new[1], model_state=new[2], extra=extra
        ), metrics

    def _look(self, state: TrainState, weight: Array, loss: Array, norm: Array) -> tuple[dict[str, PyTree], Array]:
        """`extra` after a step, and whether the step may change anything else."""
        mark, changes = self.watch.look(state.extra["nonfinite"], state.step, weight, loss, norm)
        return {**state.extra, "nonfinite": mark}, changes

    def value_fn(self, state: TrainState, batch: Batch) -> Callable[[PyTree], Array]:
        """The loss of a step's only batch as a function of the parameters, for optimizers that search along a line."""
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), 0)

        def value(params: PyTree) -> Array:
            assert self.train is not None
            model = self.family.merge(params, state.model_state, jax.random.fold_in(key, 1), train=True)
            output, _ = self.train(model, batch, key)
            return (output.output if self.own_grads else output).loss

        return value

    def custom(self, state: TrainState, batch: Batch) -> tuple[TrainState, PyTree, Array, PyTree]:
        """A step of `update=`: the state, the metrics' states, the weight, and the rows that metrics collect."""
        assert self.update is not None
        rate = rate_at(self.schedule, state.step, state.lr_scale)
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), 0)
        model = self.family.merge(state.params, state.model_state, jax.random.fold_in(key, 1), train=True)
        model, output = self.update(model, batch, rate, key)
        params, model_state = self.updated(model, state)
        weight = jnp.asarray(weight_of(output, batch), jnp.float32)
        info = Info(state.step, weight, rate, jnp.float32(jnp.nan))
        metrics = self.train_measure.update_step(
            self.train_measure.update(self.train_measure.init(), output, info), info
        )
        loss = jnp.asarray(output.loss, jnp.float32)
        extra, changes = self._look(state, weight, loss, jnp.float32(0))
        if self.watch.holds:
            params, model_state = _keep_if(changes, (params, model_state), (state.params, state.model_state))
        new = dataclasses.replace(state, step=state.step + 1, params=params, model_state=model_state, extra=extra)
        return new, metrics, weight, self.train_measure.collect(output)

    def updated(self, model: Any, state: TrainState) -> tuple[PyTree, PyTree]:
        """`(params, model_state)` of what `update=` returned, which must be as it was."""
        params, model_state = self.family.read_all(model)
        model_state = same_structure(model_state, state.model_state, "update= changed the variables of its state")
        what = "the state of update="
        return like(params, state.params, what), like(model_state, state.model_state, what)

    def whole(self, state: TrainState, batches: list[Batch]) -> tuple[TrainState, PyTree, Array]:
        """A whole optimizer step on a list of micro-batches, unrolled: the state, the metrics' states and the
        weight.
        """
        if self.update is not None:
            state, metrics, weight, _ = self.custom(state, batches[0])
            return state, metrics, weight
        acc = self.begin(state)
        for index, batch in enumerate(batches):
            acc, _ = self.micro(state, acc, batch, jnp.int32(index))
        new, metrics = self.finish(state, acc, self.value_fn(state, batches[0]) if self.accumulate == 1 else None)
        return new, metrics, acc.weight

    # -- validation ----------------------------------------------------------------------------------------------------

    def evaluate(self, state: TrainState, batch: Batch, index: Array) -> Any:
        """The valid step's output for the `index`-th batch of a split, with the model in eval mode. It changes
        nothing.
        """
        assert self.valid is not None
        key = jax.random.fold_in(jax.random.fold_in(state.rng, VALID_STREAM), index)
        model = self.family.merge(state.params, state.model_state, jax.random.fold_in(key, 1), train=False)
        output, _ = self.valid(model, batch, key)
        return output

    def valid_metrics(self, state: TrainState, batch: Batch, index: Array) -> tuple[PyTree, Array, PyTree]:
        """The metrics' states of one validation batch, its weight, and the rows that metrics collect."""
        output = self.evaluate(state, batch, index)
        weight = jnp.asarray(weight_of(output, batch), jnp.float32)
        metrics = self.valid_measure.update(self.valid_measure.init(), output, Info(state.step, weight))
        return metrics, weight, self.valid_measure.collect(output)


def weight_of(output: Any, batch: Batch) -> Any:
    """An output's `weight`, or the number of rows of the batch."""
    weight = getattr(output, "weight", None)
    return float(rows_of(batch)) if weight is None else weight


def rows_of(batch: Batch) -> int:
    """The length of a batch's leading axis."""
    return int(jax.tree.leaves(batch)[0].shape[0])


def global_norm(grads: PyTree) -> Array:
    """float32: the square root of the sum of squares of all gradients."""
    squares = [jnp.sum(jnp.square(jnp.abs(g).astype(jnp.float32))) for g in jax.tree.leaves(grads)]
    return jnp.sqrt(jnp.stack(squares).sum())


def like(new: PyTree, old: PyTree, what: str) -> PyTree:
    """`new` with the very types of `old` (a weak type becomes strong); another shape or dtype is an error that names
    it.
    """
    if not same_tree(new, old):
        same_structure(new, old, f"a step changed the structure of {what}")
    for name, a, b in zip(named_leaves(old), jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        a = jnp.asarray(a)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise LearnerError(
                f"a step changed {what}: {name} was {b.dtype}{list(b.shape)} and became {a.dtype}{list(a.shape)}; "
                "its shape and dtype must stay the same"
            )
    return jax.tree.map(_strong, new)


def _strong(x: Array) -> Array:
    x = jnp.asarray(x)
    return jax.lax.convert_element_type(x, x.dtype) if x.aval.weak_type else x


def _weighted(value: Array, weight: Array) -> Array:
    value = value.astype(_sum_dtype(value.dtype))
    return jnp.where(weight > 0, value * weight.astype(value.dtype), jnp.zeros((), value.dtype))


def _sum_dtype(dtype: Any) -> Any:
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.float32


def _keep_if(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), new, old)


__all__ = ["Accumulated", "Step", "StepFn", "TrainOutput", "global_norm", "like", "rows_of", "step_fn", "weight_of"]
