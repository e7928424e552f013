"""Optimizer steps and validation batches, as pure functions.

A step is `begin`, `accumulate_micro_batch` for each of its micro-batches, and `finish`. Every program, looped or not,
consists of these three, so that all of them compute the same bits.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Info
from learner.models.base import same_structure
from learner.steps.finite import mark_overflow
from learner.steps.key_streams import AFTER_STEP, MODEL_STREAM
from learner.steps.optimizer import OptimizerFn, Schedule, init_optimizer, lr_at, may_evaluate_loss, update_params
from learner.steps.outputs import as_output, has_wrong_labels
from learner.steps.parts import with_barriers
from learner.steps.precision import with_matmul
from learner.steps.run_key import run_keys
from learner.steps.step_definition import StepDefinition, changed_attributes
from learner.steps.train_state import TrainState
from learner.steps.tree_math import (
    copied,
    difference,
    global_norm,
    keep_if,
    like,
    loss_dtype,
    rows_of,
    same_leaves,
    scale_by_weight,
    split_rows,
    sum_dtype,
    weight_of,
)

Array = Any
PyTree = Any
Batch = Any


HYPERPARAMETERS = "hyperparameters"  # in `extra`: the optimizer's keywords that differ between members of a population
ACTIVE = "active"  # in `extra` of a member of a population: False once it has ended


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Accumulated:
    """The sums over the micro-batches of a step.

    Attributes:
      grads: `Σ weight·grad`, or the gradients themselves if a step has one micro-batch on one device.
      weight: `Σ weight`, float32.
      loss: `Σ weight·loss`, or the loss itself.
      model_state: as the last micro-batch left it.
      metrics: the states of the step's metrics.
      wrong_labels: int32, the number of micro-batches with labels outside of the classes.
    """

    grads: PyTree
    weight: Array
    loss: Array
    model_state: PyTree
    metrics: PyTree
    wrong_labels: Array


@dataclasses.dataclass(frozen=True)
class StepFunctions(StepDefinition):
    """The steps of a run, as pure functions: a definition with an optimizer and its learning rate.

    Attributes:
      optimizer: a function of the learning rate. None with `update`.
      schedule: a function of the optimizer step. None if the learning rate is `lr_scale`.
    """

    optimizer: OptimizerFn | None = None
    schedule: Schedule | None = None

    @classmethod
    def of(
        cls, definition: StepDefinition, optimizer: OptimizerFn | None, schedule: Schedule | None
    ) -> "StepFunctions":
        """Return the steps of this definition with an optimizer, whose schedules are resolved."""
        fields = {field.name: getattr(definition, field.name) for field in dataclasses.fields(StepDefinition)}
        return cls(**fields, optimizer=optimizer, schedule=schedule)

    def init(self, lr_scale: float, seed: int, places: Any = None) -> TrainState:
        """Return the state before the first step. Every leaf is a separate copy with a strong type.

        Args:
          lr_scale: the first rate, if there is no schedule.
          seed: the seed of the root random key, and of the random streams for a function that makes the model.
          places: has `shardings(state)`, the shardings of the leaves, and `place(tree, shardings)`. Each leaf is made
            in its place. Default: JAX's first device.
        """
        program, arguments = self.init_program(lr_scale, seed, places)
        state: TrainState = program(*arguments)
        return state

    def init_program(self, lr_scale: float, seed: int, places: Any = None) -> tuple[Any, tuple[Any, ...]]:
        """Return the jitted program that makes the state, and its arguments; see `init`."""
        make, arguments = self.init_function(lr_scale, seed)
        if places is None:
            # As one program: op by op, every shape in it would be compiled separately.
            return jax.jit(with_barriers(make)), arguments
        shardings = places.shardings(jax.eval_shape(make, *arguments))
        of_model = jax.tree.leaves((shardings.params, shardings.model_state))
        of_arguments: Any = {i: of_model[i] for i in arguments[0]}, shardings.lr_scale, shardings.rng, {}
        return jax.jit(with_barriers(make), out_shardings=shardings), places.place(arguments, of_arguments)

    def init_function(
        self, lr_scale: float, seed: int, hyperparameters: Mapping[str, float] | None = None
    ) -> tuple[Callable[..., TrainState], tuple[Any, ...]]:
        """Return the function that makes the state on one device, and its arguments; see `init`.

        Args:
          lr_scale: see `init`.
          seed: see `init`.
          hyperparameters: keyword arguments of the optimizer that are part of the state, as they differ between members
            of a population.
        """
        tree: Any
        leaves, tree = jax.tree.flatten((self.adapter.params, self.adapter.model_state))
        existing = {i: x for i, x in enumerate(leaves) if not isinstance(x, jax.ShapeDtypeStruct)}

        def make(existing: dict[int, Array], scale: Array, rng: Array, traced: dict[str, Array]) -> TrainState:
            """Make the state. Arrays that do not exist yet are initialised in place, inside of the program."""
            all_leaves = leaves if self.adapter.fresh is None else jax.tree.leaves(self.adapter.fresh(rng))
            params, model_state = tree.unflatten([existing.get(i, x) for i, x in enumerate(all_leaves)])
            params = self.policy.to_param_dtype(params)
            with run_keys(rng):
                opt_state, extra = self.init_optimizer_state(params, scale, traced)
            state: TrainState = copied(TrainState(jnp.int32(0), params, model_state, opt_state, scale, rng, extra))
            return state

        traced = {name: jnp.float32(value) for name, value in (hyperparameters or {}).items()}
        return make, (existing, jnp.float32(lr_scale), jax.random.key(seed), traced)

    def init_optimizer_state(
        self, params: PyTree, scale: Array, hyperparameters: Mapping[str, Array]
    ) -> tuple[PyTree, dict[str, PyTree]]:
        """Return `opt_state` and `extra` before the first step."""
        opt_state: PyTree = ()
        if self.optimizer is not None:
            opt_state = init_optimizer(self._optimizer_of(hyperparameters), self.schedule, params, scale)
        extra: dict[str, PyTree] = {"nonfinite": self.watch.fresh()}
        if self.policy.scaling is not None:
            extra["loss_scale"] = self.policy.scaling.fresh()
        if hyperparameters:
            extra[HYPERPARAMETERS] = dict(hyperparameters)
        return opt_state, extra

    def _optimizer_of(self, hyperparameters: Mapping[str, Array]) -> OptimizerFn:
        """Return the optimizer with its keywords that are part of the state."""
        assert self.optimizer is not None
        return functools.partial(self.optimizer, **hyperparameters) if hyperparameters else self.optimizer

    def fill_missing(self, state: TrainState) -> TrainState:
        """Return the state with new arrays where `opt_state` and `extra` have only shapes with shardings."""
        tree: Any
        leaves, tree = jax.tree.flatten((state.opt_state, state.extra))
        missing = {i: x.sharding for i, x in enumerate(leaves) if isinstance(x, jax.ShapeDtypeStruct)}
        if not missing:
            return state

        def make(params: PyTree, scale: Array, rng: Array) -> dict[int, Array]:
            with run_keys(rng):
                first = jax.tree.leaves(self.init_optimizer_state(params, scale, state.extra.get(HYPERPARAMETERS, {})))
            arrays: dict[int, Array] = copied({i: first[i] for i in missing})
            return arrays

        new_leaves = jax.jit(make, out_shardings=missing)(state.params, state.lr_scale, state.rng)
        opt_state, extra = tree.unflatten([new_leaves.get(i, x) for i, x in enumerate(leaves)])
        return dataclasses.replace(state, opt_state=opt_state, extra=extra)

    # -- training ------------------------------------------------------------------------------------------------------

    def begin(self, state: TrainState) -> Accumulated:
        """Return the empty accumulator."""
        grads = jax.tree.map(lambda p: jnp.zeros(p.shape, sum_dtype(p.dtype)), state.params)
        weight, loss = jnp.float32(0), jnp.zeros((), loss_dtype(state.params))
        return Accumulated(grads, weight, loss, state.model_state, self.train_metrics.init(), jnp.int32(0))

    @with_matmul
    def accumulate_micro_batch(
        self, state: TrainState, acc: Accumulated, batch: Batch, index: Array, replicated: bool = False
    ) -> tuple[Accumulated, PyTree]:
        """Add one micro-batch, the `index`-th of its step. Also return the rows that metrics collect.

        With an axis, `batch` has the device's own rows of it, or is `replicated` on each device.
        """
        acc, rows = self._accumulate_parts(state, acc, batch, index, replicated)
        # For all parts at once, as the rows of a device are consecutive in the batch.
        return acc, rows if replicated or self.axis is None else self.axis.rows(rows)

    def _accumulate_parts(
        self, state: TrainState, acc: Accumulated, batch: Batch, index: Array, replicated: bool
    ) -> tuple[Accumulated, PyTree]:
        if self.split == 1:
            return self._accumulate_part(state, acc, batch, index, replicated)
        parts, rest = split_rows(batch, self.split)
        first, count = index * self.split, jax.tree.leaves(parts)[0].shape[1]

        def add(acc: Accumulated, number: Array) -> tuple[Accumulated, PyTree]:
            part = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, number, 1, keepdims=False), parts)
            return self._accumulate_part(state, acc, part, first + number, replicated)

        acc, rows = jax.lax.scan(add, acc, jnp.arange(count, dtype=jnp.int32))
        rows = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), rows)  # in the order of the batch
        if rest is not None:
            acc, more = self._accumulate_part(state, acc, rest, first + count, replicated)
            rows = jax.tree.map(lambda *given: jnp.concatenate(given), rows, more)
        return acc, rows

    def _accumulate_part(
        self, state: TrainState, acc: Accumulated, batch: Batch, index: Array, replicated: bool
    ) -> tuple[Accumulated, PyTree]:
        axis = None if replicated else self.axis
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), index)
        key = key if axis is None else axis.fold(key)
        count = rows_of(batch)  # as the data has them: `on_batch` may add arrays without rows
        batch = self.train_batch(state, batch, key)
        scale = state.extra["loss_scale"]["scale"] if self.policy.scaling is not None else None
        grads, output, model_state, weighted = self.differentiate(
            state.params, acc.model_state, batch, key, count, scale, axis
        )
        weight = jnp.asarray(weight_of(output, count), jnp.float32)
        info = Info(state.step, weight, lr_at(self.schedule, state.step, state.lr_scale))
        metrics = self.train_metrics.update(acc.metrics, output, info)
        rows = self.train_metrics.collect(output)
        loss = jnp.asarray(output.loss, loss_dtype(state.params))
        wrong_labels = has_wrong_labels(output).astype(jnp.int32)
        if not self.needs_reduction:
            return Accumulated(grads, weight, loss, model_state, metrics, wrong_labels), rows
        if self.accumulates:
            # Batch statistics of all rows count on every device, even if none of its own rows has a weight.
            total = weight if axis is None or same_leaves(model_state, acc.model_state) else axis.sum(weight)
            model_state = keep_if(total > 0, model_state, acc.model_state)
        if self.axis is not None and replicated:
            weight, metrics = self.axis.once((weight, metrics), (jnp.zeros_like(weight), acc.metrics))
        if weighted:
            assert axis is not None
            # Without a weight on any device, padding that is not finite must not enter the sum.
            grads = keep_if(axis.sum(weight) > 0, grads, jax.tree.map(jnp.zeros_like, grads))
        else:
            grads = jax.tree.map(lambda g: scale_by_weight(g, weight), grads)
        grads = jax.tree.map(lambda s, g: s + g.astype(s.dtype), acc.grads, grads)
        loss, wrong_labels = acc.loss + scale_by_weight(loss, weight), acc.wrong_labels + wrong_labels
        return Accumulated(grads, acc.weight + weight, loss, model_state, metrics, wrong_labels), rows

    def _all_reduce(self, state: TrainState, acc: Accumulated) -> Accumulated:
        """Return the sums over all devices, the same on each."""
        if self.axis is None:
            return acc
        grads, total, loss, wrong_labels = self.axis.sum((acc.grads, acc.weight, acc.loss, acc.wrong_labels))
        model_state = self.axis.averaged(acc.model_state, state.model_state, acc.weight, total)
        metrics = self.train_metrics.all_reduce(self.axis, acc.metrics)
        return Accumulated(grads, total, loss, model_state, metrics, wrong_labels)

    def value_fn(self, state: TrainState, batch: Batch) -> Callable[[PyTree], Array]:
        """Return the loss of a step's only batch as a function of the parameters, for optimizers with a line search."""
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), 0)
        optimizer = self._optimizer_of(state.extra.get(HYPERPARAMETERS, {}))
        # Before the search, whose loops would change the batch again in each evaluation. Other optimizers evaluate
        # nothing, and `on_batch` is not traced for them.
        if self.on_batch and may_evaluate_loss(optimizer, state.params):
            batch = self.train_batch(state, batch, key)
        step = self
        if self.gather is not None:  # optimizers of second order differentiate the loss in forward mode
            step = dataclasses.replace(self, gather=functools.partial(self.gather, forward_mode=True))

        def value(params: PyTree) -> Array:
            output, *_ = step.run_train(params, state.model_state, batch, key)
            loss = self.policy.to_output_dtype(output.output if self.own_grads else output).loss
            return jnp.asarray(loss, loss_dtype(params))  # like the loss of the step, as a search compares the two

        return value

    @with_matmul
    def finish(
        self, state: TrainState, acc: Accumulated, value_fn: Callable[[PyTree], Array] | None = None
    ) -> tuple[TrainState, PyTree, Array]:
        """Return the state after the update, the states of the step's metrics, and its weight. A step of weight 0
        changes no parameters. If the loss or the gradients are not finite, `watch` decides.
        """
        lr = lr_at(self.schedule, state.step, state.lr_scale)
        acc = self._all_reduce(state, acc)
        grads, loss, weight = acc.grads, acc.loss, acc.weight
        if self.needs_reduction:
            divisor = jnp.where(weight > 0, weight, 1)
            grads = jax.tree.map(lambda g, p: (g / divisor.astype(g.dtype)).astype(p.dtype), grads, state.params)
            loss = loss / divisor.astype(loss.dtype)
        norm = global_norm(grads)
        extra, changes = self._check_finite(state, weight, loss, norm, acc.wrong_labels > 0)
        old = (state.params, state.opt_state, state.model_state)

        def updated() -> tuple[PyTree, PyTree, PyTree]:
            optimizer = self._optimizer_of(state.extra.get(HYPERPARAMETERS, {}))
            given = optimizer, lr, grads, state.opt_state, state.params
            params, opt_state = update_params(*given, loss=loss, value_fn=value_fn, step=state.step)
            params = like(params, state.params, "the parameters")
            opt_state = like(opt_state, state.opt_state, "the optimizer's state")
            params, model_state = self.transform_model(params, acc.model_state, state)
            new: tuple[PyTree, PyTree, PyTree] = keep_if(weight > 0, (params, opt_state, model_state), old)
            return new

        # A branch, because a selection between arrays is compiled into the update, and changes its last bits.
        holds = self.watch.holds or self.policy.scaling is not None
        new = jax.lax.cond(changes, updated, lambda: old) if holds else updated()
        counted_weight = jnp.where(changes, weight, 0) if holds else weight  # a step that changes nothing counts none
        info = Info(state.step, counted_weight, lr, norm, **self._required_norms(state.params, new[0]))
        metrics = self.train_metrics.update_step(acc.metrics, info)
        return (
            dataclasses.replace(
                state, step=state.step + 1, params=new[0], opt_state=new[1], model_state=new[2], extra=extra
            ),
            metrics,
            weight,
        )

    def transform_model(
        self, params: PyTree, model_state: PyTree, state: TrainState, assigned: list[str] | None = None
    ) -> tuple[PyTree, PyTree]:
        """Return the parameters and the model's state after the functions of `after_step`. They get the new values in
        the dtypes between steps.

        Args:
          params: the parameters after the update.
          model_state: the model's state after the micro-batches.
          state: the state before the step.
          assigned: a list that gets the names of attributes that the functions assign, which has no effect.
        """
        if not self.after_step:
            return params, model_state
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), AFTER_STEP)
        model = self.adapter.merge(params, model_state, key, train=True)
        attributes = {} if assigned is None else self.adapter.attributes(model)
        for transform in self.after_step:
            model = transform(model, state.step + 1, self.adapter.changes_in_place)
        if assigned is not None:
            assigned.extend(changed_attributes(attributes, self.adapter.attributes(model)))
        what = "the model of after_step"
        remedy = "Return all that it got; to variables, assign values (x[...] = y[...])"
        try:
            new, new_state = self.adapter.read_all(model)
        except LearnerError as error:
            raise LearnerError(f"after_step: {error}", code=error.code, **error.fields) from error
        for tree, needed in ((new, params), (new_state, model_state)):
            same_structure(tree, needed, "after_step changed the variables of its model", remedy)
        return like(new, params, what), like(new_state, model_state, what)

    def _required_norms(self, old: PyTree, new: PyTree) -> dict[str, Array]:
        """Return the norms that metrics require, for a step that replaced the `old` parameters by the `new` ones."""
        requires = self.train_metrics.requires
        return {name: global_norm(new if name == "param_norm" else difference(new, old)) for name in requires}

    def _check_finite(
        self, state: TrainState, weight: Array, loss: Array, norm: Array, wrong_labels: Array
    ) -> tuple[dict[str, PyTree], Array]:
        """Return `extra` after a step, and False if the step may change nothing else."""
        mark, scaling = state.extra["nonfinite"], self.policy.scaling
        if scaling is None:
            mark, changes = self.watch.look(mark, state.step, weight, loss, norm, wrong_labels)
            return {**state.extra, "nonfinite": mark}, changes
        scale = state.extra["loss_scale"]
        overflows = scaling.overflows(scale, weight, loss, norm)
        # A step that only lowers the scale does not count for the policy.
        mark, changes = self.watch.look(mark, state.step, jnp.where(overflows, 0, weight), loss, norm, wrong_labels)
        overflows = overflows & changes
        scale = scaling.after(scale, overflows, changes & (weight > 0) & jnp.isfinite(norm))
        mark = mark_overflow(mark, overflows, scale["scale"])
        return {**state.extra, "nonfinite": mark, "loss_scale": scale}, changes & ~overflows

    @with_matmul
    def custom(self, state: TrainState, batch: Batch) -> tuple[TrainState, PyTree, Array, PyTree]:
        """Make a step with `update=`. Return the state, the metrics' states, the weight, and the collected rows."""
        assert self.update is not None
        lr = lr_at(self.schedule, state.step, state.lr_scale)
        key = jax.random.fold_in(jax.random.fold_in(state.rng, state.step), 0)
        count = rows_of(batch)
        batch = self.train_batch(state, batch, key)
        model = self.adapter.merge(state.params, state.model_state, jax.random.fold_in(key, MODEL_STREAM), train=True)
        model, returned = self.update(model, batch, lr, key)
        output = as_output(returned)
        params, model_state = self.updated(model, state)
        weight = jnp.asarray(weight_of(output, count), jnp.float32)
        loss = jnp.asarray(output.loss, jnp.float32)
        extra, changes = self._check_finite(state, weight, loss, jnp.float32(0), has_wrong_labels(output))
        if self.watch.holds:
            params, model_state = keep_if(changes, (params, model_state), (state.params, state.model_state))
        info = Info(state.step, weight, lr, jnp.float32(jnp.nan), **self._required_norms(state.params, params))
        metrics = self.train_metrics.update_step(
            self.train_metrics.update(self.train_metrics.init(), output, info), info
        )
        new = dataclasses.replace(state, step=state.step + 1, params=params, model_state=model_state, extra=extra)
        return new, metrics, weight, self.train_metrics.collect(output)

    def updated(self, model: Any, state: TrainState) -> tuple[PyTree, PyTree]:
        """Return `(params, model_state)` of the model that `update=` returned. Raise if its structure changed."""
        params, model_state = self.adapter.read_all(model)
        model_state = same_structure(model_state, state.model_state, "update= changed the variables of its state")
        what = "the state of update="
        return like(params, state.params, what), like(model_state, state.model_state, what)

    def unrolled_step(self, state: TrainState, batches: list[Batch]) -> tuple[TrainState, PyTree, Array]:
        """Make an optimizer step on a list of micro-batches, unrolled. Return the state, the metrics' states and the
        weight.
        """
        if self.update is not None:
            state, metrics, weight, _ = self.custom(state, batches[0])
            return state, metrics, weight
        acc = self.begin(state)
        for index, batch in enumerate(batches):
            acc, _ = self.accumulate_micro_batch(state, acc, batch, jnp.int32(index))
        return self.finish(state, acc, None if self.accumulates else self.value_fn(state, batches[0]))

    # -- validation ----------------------------------------------------------------------------------------------------

    @with_matmul
    def evaluate(self, state: TrainState, batch: Batch, index: Array, replicated: bool = True) -> Any:
        """Return the valid step's output for the `index`-th batch of a split, with the model in eval mode. It changes
        nothing. See `micro` for `replicated`.
        """
        return self.policy.to_output_dtype(self.run_valid(state, batch, index, replicated))

    @with_matmul
    def predictions(self, state: TrainState, batch: Batch, index: Array) -> Any:
        """Return the output of the predict step for the `index`-th batch, with the model in eval mode."""
        return self.policy.to_output_dtype(self.run_valid(state, batch, index, step=self.predict))

    def validate(
        self, state: TrainState, batch: Batch, index: Array, replicated: bool = False
    ) -> tuple[PyTree, Array, PyTree]:
        """Return the metrics' states of one validation batch, its weight, and the rows that metrics collect. See
        `micro` for `replicated`.
        """
        output = self.evaluate(state, batch, index, replicated)
        weight = jnp.asarray(weight_of(output, rows_of(batch)), jnp.float32)
        metrics = self.valid_metrics.update(self.valid_metrics.init(), output, Info(state.step, weight))
        rows = self.valid_metrics.collect(output)
        if self.axis is None or replicated:
            return metrics, weight, rows
        return self.valid_metrics.all_reduce(self.axis, metrics), self.axis.sum(weight), self.axis.rows(rows)
