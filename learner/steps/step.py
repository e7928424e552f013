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
from learner.models.adapters import ModelAdapter, same_structure, same_tree
from learner.steps.axis import Axis
from learner.steps.evaluated import evaluated
from learner.steps.finite import RAISES, NonFinitePolicy, mark_overflow
from learner.steps.measure import MetricCollection
from learner.steps.optimizer import OptimizerFn, Schedule, init_optimizer, rate_at, update_params
from learner.steps.outputs import TrainOutput, has_wrong_labels
from learner.steps.precision import FLOAT32, Policy, with_matmul
from learner.steps.remat import rematerialised
from learner.steps.state import TrainState
from learner.util.trees import named_leaves

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


def _kind_of(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__


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
      grads: `Σ weight·grad`, or the gradients themselves where a step has one micro-batch on one device.
      weight: `Σ weight`, float32.
      loss: `Σ weight·loss`, or the loss itself.
      model_state: as the last micro-batch left it.
      metrics: the states of the step's metrics.
      wrong_labels: int32, how many micro-batches had labels that are none of the classes.
    """

    grads: PyTree
    weight: Array
    loss: Array
    model_state: PyTree
    metrics: PyTree
    wrong_labels: Array


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
      policy: the dtypes of parameters, computing and outputs.
      matmul: the precision of matrix products, if it is not JAX's default.
      remat: a policy of `jax.checkpoint`, by which the backward pass computes parts of the forward pass again.
      axis: of devices that have rows of their own each; `None`: a batch is whole.
      gather: puts together what steps compute with of arrays that are split over devices, `None`: they are as they are.
    """

    family: ModelAdapter
    optimizer: OptimizerFn | None
    schedule: Schedule | None
    train: StepFn | None
    update: Callable[..., Any] | None
    valid: StepFn | None
    train_measure: MetricCollection
    valid_measure: MetricCollection
    accumulate: int = 1
    own_grads: bool = False
    watch: NonFinitePolicy = RAISES
    policy: Policy = FLOAT32
    matmul: str | None = None
    remat: Callable[..., Any] | None = None
    axis: Axis | None = None
    gather: Callable[[str, PyTree], PyTree] | None = None

    @property
    def adds_up(self) -> bool:
        """Whether a step is a sum, over micro-batches or devices."""
        return self.accumulate > 1 or self.axis is not None

    def init(self, lr_scale: float, seed: int, places: Any = None) -> TrainState:
        """The state before the first step. Every leaf is a copy of its own, strongly typed.

        Args:
          lr_scale: the first rate, where there is no schedule.
          seed: of the root random key.
          places: has `shardings(state)`, where each leaf belongs, and `place(tree, shardings)`; each leaf is made
            there. Default: JAX's first device.
        """
        program, given = self.beginning(lr_scale, seed, places)
        state: TrainState = program(*given)
        return state

    def beginning(self, lr_scale: float, seed: int, places: Any = None) -> tuple[Any, tuple[Any, ...]]:
        """The jitted program that makes the state, and its arguments; see `init`."""
        tree: Any
        leaves, tree = jax.tree.flatten((self.family.params, self.family.model_state))
        there = {i: x for i, x in enumerate(leaves) if not isinstance(x, jax.ShapeDtypeStruct)}

        def make(there: dict[int, Array], scale: Array, rng: Array) -> TrainState:
            """What is not there is made inside of the program, each part of it on the device where it belongs."""
            made = leaves if self.family.fresh is None else jax.tree.leaves(self.family.fresh())
            params, model_state = tree.unflatten([there.get(i, x) for i, x in enumerate(made)])
            params = self.policy.kept(params)
            opt_state, extra = self._begun(params, scale)
            state: TrainState = _copied(TrainState(jnp.int32(0), params, model_state, opt_state, scale, rng, extra))
            return state

        # As one program: op by op, every shape in it would be compiled by itself.
        given = there, jnp.float32(lr_scale), jax.random.key(seed)
        if places is None:
            return jax.jit(make), given
        where = places.shardings(jax.eval_shape(make, *given))
        of_model = jax.tree.leaves((where.params, where.model_state))
        given = places.place(given, ({i: of_model[i] for i in there}, where.lr_scale, where.rng))
        return jax.jit(make, out_shardings=where), given

    def _begun(self, params: PyTree, scale: Array) -> tuple[PyTree, dict[str, PyTree]]:
        """`opt_state` and `extra` before the first step."""
        opt_state: PyTree = ()
        if self.optimizer is not None:
            opt_state = init_optimizer(self.optimizer, self.schedule, params, scale)
        extra: dict[str, PyTree] = {"nonfinite": self.watch.fresh()}
        if self.policy.scaling is not None:
            extra["loss_scale"] = self.policy.scaling.fresh()
        return opt_state, extra

    def filled(self, state: TrainState) -> TrainState:
        """The state with new arrays where `opt_state` and `extra` have only shapes with shardings."""
        tree: Any
        leaves, tree = jax.tree.flatten((state.opt_state, state.extra))
        where = {i: x.sharding for i, x in enumerate(leaves) if isinstance(x, jax.ShapeDtypeStruct)}
        if not where:
            return state

        def make(params: PyTree, scale: Array) -> dict[int, Array]:
            begun = jax.tree.leaves(self._begun(params, scale))
            lacking: dict[int, Array] = _copied({i: begun[i] for i in where})
            return lacking

        made = jax.jit(make, out_shardings=where)(state.params, state.lr_scale)
        opt_state, extra = tree.unflatten([made.get(i, x) for i, x in enumerate(leaves)])
        return dataclasses.replace(state, opt_state=opt_state, extra=extra)

    # -- training ------------------------------------------------------------------------------------------------------

    def begin(self, state: TrainState) -> Accumulated:
        """Nothing added yet."""
        zero = jnp.float32(0)
        grads = jax.tree.map(lambda p: jnp.zeros(p.shape, _sum_dtype(p.dtype)), state.params)
        return Accumulated(grads, zero, zero, state.model_state, self.train_measure.init(), jnp.int32(0))

    @with_matmul
    def micro(
        self, state: TrainState, acc: Accumulated, batch: Batch, index: Array, whole: bool = False
    ) -> tuple[Accumulated, PyTree]:
        """Adds one micro-batch, the `index`-th of its step; also returns the rows that metrics collect.

        With an axis, `batch` has the device's own rows of it, or is `whole` on each device.
        """
        axis = None if whole else self.axis
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), index)
        key = key if axis is None else axis.fold(key)
        scale = state.extra["loss_scale"]["scale"] if self.policy.scaling is not None else None
        grads, output, model_state, weighted = self._differentiate(
            state.params, acc.model_state, batch, key, scale, axis
        )
        weight = jnp.asarray(weight_of(output, batch), jnp.float32)
        info = Info(state.step, weight, rate_at(self.schedule, state.step, state.lr_scale))
        metrics = self.train_measure.update(acc.metrics, output, info)
        rows = self.train_measure.collect(output)
        rows = rows if axis is None else axis.rows(rows)
        loss = jnp.asarray(output.loss, jnp.float32)
        wrong_labels = has_wrong_labels(output).astype(jnp.int32)
        if not self.adds_up:
            return Accumulated(grads, weight, loss, model_state, metrics, wrong_labels), rows
        if self.accumulate > 1:
            # Batch statistics of all rows count on every device, be it that none of its own rows has a weight.
            total = weight if axis is None or _same(model_state, acc.model_state) else axis.sum(weight)
            model_state = _keep_if(total > 0, model_state, acc.model_state)
        if self.axis is not None and whole:
            weight, metrics = self.axis.once((weight, metrics), (jnp.zeros_like(weight), acc.metrics))
        if not weighted:
            grads = jax.tree.map(lambda g: _weighted(g, weight), grads)
        grads = jax.tree.map(lambda s, g: s + g.astype(s.dtype), acc.grads, grads)
        loss, wrong_labels = acc.loss + _weighted(loss, weight), acc.wrong_labels + wrong_labels
        return Accumulated(grads, acc.weight + weight, loss, model_state, metrics, wrong_labels), rows

    def _together(self, state: TrainState, acc: Accumulated) -> Accumulated:
        """What all devices have added up to, the same on each."""
        if self.axis is None:
            return acc
        grads, total, loss, wrong_labels = self.axis.sum((acc.grads, acc.weight, acc.loss, acc.wrong_labels))
        model_state = self.axis.averaged(acc.model_state, state.model_state, acc.weight, total)
        metrics = self.train_measure.over(self.axis, acc.metrics)
        return Accumulated(grads, total, loss, model_state, metrics, wrong_labels)

    def _differentiate(
        self,
        params: PyTree,
        model_state: PyTree,
        batch: Batch,
        key: Array,
        scale: Array | None = None,
        axis: Axis | None = None,
    ) -> tuple[PyTree, Any, PyTree, bool]:
        """The gradients, the output, the model's state after the step, and whether the gradients are multiplied by the
        weight: where the statistics of a batch are those of all devices, the rows of each have a part in the gradients
        of the others, which count by the weights of those.
        """
        synced: list[bool] = []

        def forward(params: PyTree) -> tuple[Array, tuple[Any, Any, PyTree]]:
            returned, new_state = self.run_train(params, model_state, batch, key, axis, synced)
            grads, output = (returned.grads, returned.output) if self.own_grads else (None, returned)
            loss, output = jnp.asarray(output.loss), self.policy.returned(output)
            if any(synced):
                weight = jax.lax.stop_gradient(jnp.asarray(weight_of(output, batch), jnp.float32))
                loss = _weighted(loss, weight)
            if scale is not None:
                loss = loss.astype(jnp.float32) * scale
            return loss, (grads, output, new_state)

        if self.own_grads:
            _, (grads, output, new_state) = forward(params)
            if any(synced):
                raise LearnerError(
                    "the train step computes its own gradients, and those of its model's BatchNorm go through all "
                    "devices: use strategy(Sharded()), or Replicated(sync_batch_norm=False)"
                )
            grads = self.grads_like(params, grads)
            return self.policy.kept(grads), output, new_state, False
        differentiated = forward if self.remat is None else rematerialised(forward, self.remat)
        (_, (_, output, new_state)), grads = jax.value_and_grad(differentiated, has_aux=True)(params)
        if scale is not None:
            grads = jax.tree.map(lambda g: g / scale.astype(g.dtype), grads)
        return grads, output, new_state, any(synced)

    def run_train(
        self,
        params: PyTree,
        model_state: PyTree,
        batch: Batch,
        key: Array,
        axis: Axis | None = None,
        synced: list[bool] | None = None,
    ) -> tuple[Any, PyTree]:
        """What the train step returns, computed as `policy` says, and the model's state after it. `synced` is told
        whether the statistics of its batches are those of all devices.
        """
        assert self.train is not None
        with self.policy.mixing():
            computed = self._computed(params, model_state)
            model = self.family.merge(*computed, jax.random.fold_in(key, 1), train=True)
            if axis is not None and axis.sync_batch_norm:
                self.family.sync_batch_norm(model, axis.name)
            returned, new_model = self.train(model, self.policy.computed(batch), key)
            if new_model is not None and not (hasattr(returned, "loss") or isinstance(returned, TrainOutput)):
                raise LearnerError(
                    f"{self.train.name} returned a pair whose first element, {_kind_of(returned)}, has no field "
                    "'loss'; a step returns an output, such as ClassificationOutput.from_logits(logits, labels), or "
                    "(output, model). What jax.grad takes as aux (has_aux=True) are fields of the output"
                )
            if axis is not None and synced is not None:
                synced.append(self.family.is_synced(model))
            return returned, self.model_state_after(model, new_model, model_state, computed[1])

    def _computed(self, params: PyTree, model_state: PyTree) -> tuple[PyTree, PyTree]:
        """What a model is made of, as steps compute with it."""
        parts = self.policy.computed(params), self.policy.computed_state(model_state, self.family.frozen)
        if self.gather is None:
            return parts
        return self.gather("params", parts[0]), self.gather("model_state", parts[1])

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

    def model_state_after(self, given: Any, returned: Any, before: PyTree, computed: PyTree) -> PyTree:
        """The model's state after a step that was `given` a model and `returned` one, or `None`. `computed` is the
        state `before` it, as it was cast for the step.
        """
        if returned is None and not self.family.changes_in_place:
            return before
        after = self.family.read(given if returned is None else returned)
        return like(self.policy.state_again(after, computed, before), before, "the model's state")

    @with_matmul
    def finish(
        self, state: TrainState, acc: Accumulated, value_fn: Callable[[PyTree], Array] | None = None
    ) -> tuple[TrainState, PyTree, Array]:
        """The update: the state after the step, the states of the step's metrics, and its weight. A step of weight 0
        changes no parameters, and one with a loss or gradients that are not finite does what `watch` says.
        """
        rate = rate_at(self.schedule, state.step, state.lr_scale)
        acc = self._together(state, acc)
        grads, loss, weight = acc.grads, acc.loss, acc.weight
        if self.adds_up:
            divisor = jnp.where(weight > 0, weight, 1)
            grads = jax.tree.map(lambda g, p: (g / divisor.astype(g.dtype)).astype(p.dtype), grads, state.params)
            loss = loss / divisor
        norm = global_norm(grads)
        extra, changes = self._look(state, weight, loss, norm, acc.wrong_labels > 0)
        old = (state.params, state.opt_state, state.model_state)

        def updated() -> tuple[PyTree, PyTree, PyTree]:
            assert self.optimizer is not None
            given = self.optimizer, rate, grads, state.opt_state, state.params
            params, opt_state = update_params(*given, loss=loss, value_fn=value_fn, step=state.step)
            params = like(params, state.params, "the parameters")
            opt_state = like(opt_state, state.opt_state, "the optimizer's state")
            new: tuple[PyTree, PyTree, PyTree] = _keep_if(weight > 0, (params, opt_state, acc.model_state), old)
            return new

        # A branch, because a choice between arrays is compiled into the update, and changes its last bits.
        holds = self.watch.holds or self.policy.scaling is not None
        new = jax.lax.cond(changes, updated, lambda: old) if holds else updated()
        made = jnp.where(changes, weight, 0) if holds else weight  # or no step was made of these gradients
        info = Info(state.step, made, rate, norm, **self._asked(state.params, new[0]))
        metrics = self.train_measure.update_step(acc.metrics, info)
        return (
            dataclasses.replace(
                state, step=state.step + 1, params=new[0], opt_state=new[1], model_state=new[2], extra=extra
            ),
            metrics,
            weight,
        )

    def _asked(self, old: PyTree, new: PyTree) -> dict[str, Array]:
        """What metrics ask for of a step that made `new` parameters of the `old` ones."""
        norms = {}
        for name in self.train_measure.asks:
            norms[name] = global_norm(new if name == "param_norm" else _difference(new, old))
        return norms

    def _look(
        self, state: TrainState, weight: Array, loss: Array, norm: Array, wrong_labels: Array
    ) -> tuple[dict[str, PyTree], Array]:
        """`extra` after a step, and whether the step may change anything else."""
        mark, scaling = state.extra["nonfinite"], self.policy.scaling
        if scaling is None:
            mark, changes = self.watch.look(mark, state.step, weight, loss, norm, wrong_labels)
            return {**state.extra, "nonfinite": mark}, changes
        scale = state.extra["loss_scale"]
        overflows = scaling.overflows(scale, weight, loss, norm)
        # A step that only lowers the scale is none to the watch.
        mark, changes = self.watch.look(mark, state.step, jnp.where(overflows, 0, weight), loss, norm, wrong_labels)
        overflows = overflows & changes
        scale = scaling.after(scale, overflows, changes & (weight > 0) & jnp.isfinite(norm))
        mark = mark_overflow(mark, overflows, scale["scale"])
        return {**state.extra, "nonfinite": mark, "loss_scale": scale}, changes & ~overflows

    def value_fn(self, state: TrainState, batch: Batch) -> Callable[[PyTree], Array]:
        """The loss of a step's only batch as a function of the parameters, for optimizers that search along a line."""
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), 0)

        def value(params: PyTree) -> Array:
            output, _ = self.run_train(params, state.model_state, batch, key)
            return self.policy.returned(output.output if self.own_grads else output).loss

        return value

    @with_matmul
    def custom(self, state: TrainState, batch: Batch) -> tuple[TrainState, PyTree, Array, PyTree]:
        """A step of `update=`: the state, the metrics' states, the weight, and the rows that metrics collect."""
        assert self.update is not None
        rate = rate_at(self.schedule, state.step, state.lr_scale)
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), 0)
        model = self.family.merge(state.params, state.model_state, jax.random.fold_in(key, 1), train=True)
        model, output = self.update(model, batch, rate, key)
        params, model_state = self.updated(model, state)
        weight = jnp.asarray(weight_of(output, batch), jnp.float32)
        loss = jnp.asarray(output.loss, jnp.float32)
        extra, changes = self._look(state, weight, loss, jnp.float32(0), has_wrong_labels(output))
        if self.watch.holds:
            params, model_state = _keep_if(changes, (params, model_state), (state.params, state.model_state))
        info = Info(state.step, weight, rate, jnp.float32(jnp.nan), **self._asked(state.params, params))
        metrics = self.train_measure.update_step(
            self.train_measure.update(self.train_measure.init(), output, info), info
        )
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
        return self.finish(state, acc, self.value_fn(state, batches[0]) if self.accumulate == 1 else None)

    # -- validation ----------------------------------------------------------------------------------------------------

    @with_matmul
    def evaluate(self, state: TrainState, batch: Batch, index: Array, whole: bool = True) -> Any:
        """The valid step's output for the `index`-th batch of a split, with the model in eval mode. It changes
        nothing. See `micro` for `whole`.
        """
        return self.policy.returned(self.run_valid(state, batch, index, whole))

    def run_valid(self, state: TrainState, batch: Batch, index: Array, whole: bool = True) -> Any:
        """The same in the dtypes that the step returns."""
        assert self.valid is not None
        key = jax.random.fold_in(jax.random.fold_in(state.rng, VALID_STREAM), index)
        key = key if whole or self.axis is None else self.axis.fold(key)
        with self.policy.mixing():
            parts = self._computed(evaluated(state.params, state.opt_state), state.model_state)
            model = self.family.merge(*parts, jax.random.fold_in(key, 1), train=False)
            output, _ = self.valid(model, self.policy.computed(batch), key)
        return output

    def valid_metrics(
        self, state: TrainState, batch: Batch, index: Array, whole: bool = False
    ) -> tuple[PyTree, Array, PyTree]:
        """The metrics' states of one validation batch, its weight, and the rows that metrics collect. See `micro` for
        `whole`.
        """
        output = self.evaluate(state, batch, index, whole)
        weight = jnp.asarray(weight_of(output, batch), jnp.float32)
        metrics = self.valid_measure.update(self.valid_measure.init(), output, Info(state.step, weight))
        rows = self.valid_measure.collect(output)
        if self.axis is None or whole:
            return metrics, weight, rows
        return self.valid_measure.over(self.axis, metrics), self.axis.sum(weight), self.axis.rows(rows)


def weight_of(output: Any, batch: Batch) -> Any:
    """An output's `weight`, or the number of rows of the batch."""
    weight = getattr(output, "weight", None)
    return float(rows_of(batch)) if weight is None else weight


def rows_of(batch: Batch) -> int:
    """The length of a batch's leading axis."""
    return int(jax.tree.leaves(batch)[0].shape[0])


def global_norm(grads: PyTree) -> Array:
    """float32: the square root of the sum of squares of all gradients, or parameters."""
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


def _copied(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.array(x, jnp.asarray(x).dtype, copy=True), tree)


def _strong(x: Array) -> Array:
    x = jnp.asarray(x)
    return jax.lax.convert_element_type(x, x.dtype) if x.aval.weak_type else x


def _weighted(value: Array, weight: Array) -> Array:
    value = value.astype(_sum_dtype(value.dtype))
    return jnp.where(weight > 0, value * weight.astype(value.dtype), jnp.zeros((), value.dtype))


def _difference(new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: a.astype(_sum_dtype(a.dtype)) - b.astype(_sum_dtype(b.dtype)), new, old)


def _sum_dtype(dtype: Any) -> Any:
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.float32


def _same(a: PyTree, b: PyTree) -> bool:
    return all(x is y for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _keep_if(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), new, old)


__all__ = ["Accumulated", "Step", "StepFn", "TrainOutput", "global_norm", "like", "rows_of", "step_fn", "weight_of"]
