"""The definition of a run's steps: the user's functions, the model, and all settings except for the optimizer.

It runs the train step, its gradients and the valid step. `learner.steps.step` adds the optimizer and its learning rate
for complete steps.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.models.base import GRADIENTS_REMEDY, ModelAdapter, same_structure, same_tree
from learner.steps.axis import Axis
from learner.steps.batch_transforms import BatchTransform, transformed
from learner.steps.eval_params import eval_params
from learner.steps.finite import RAISES, NonFinitePolicy
from learner.steps.key_streams import MODEL_STREAM, VALID_STREAM
from learner.steps.measure import MetricCollection
from learner.steps.outputs import TrainOutput, as_output
from learner.steps.precision import FLOAT32, Policy
from learner.steps.remat import rematerialised
from learner.steps.train_state import TrainState
from learner.steps.tree_math import like, scale_by_weight, weight_of
from learner.util.trees import named_leaves

Array = Any
PyTree = Any
Batch = Any

ARGUMENT_ORDER = ("model", "batch", "rng")
KEY_NAMES = ("rng", "rngs", "key", "prng_key", "rng_key")  # usual names for a random key


@dataclasses.dataclass(frozen=True)
class StepFn:
    """A user's step, with a uniform call for all signatures.

    Attributes:
      fn: `(model, batch)` or `(model, batch, rng)`.
      takes_rng: True for `(model, batch, rng)`.
      name: the name in error messages.
    """

    fn: Callable[..., Any]
    takes_rng: bool
    name: str

    @property
    def returns_gradients(self) -> bool:
        """True if the signature is annotated `-> TrainOutput`."""
        annotation = getattr(self.fn, "__annotations__", {}).get("return")
        if isinstance(annotation, str):
            return annotation.split(".")[-1] == TrainOutput.__name__
        return annotation is TrainOutput

    def __call__(self, model: Any, batch: Batch, rng: Array) -> tuple[Any, Any]:
        """Return `(output, model)`. The model is the one that the step returned, or None if it returned only the
        output.
        """
        returned = self.fn(model, batch, rng) if self.takes_rng else self.fn(model, batch)
        pair = isinstance(returned, tuple) and len(returned) == 2 and not hasattr(returned, "loss")
        output, after = returned if pair else (returned, None)
        return as_output(output), after


def _kind_of(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__


def is_model_like(returned: Any, model: Any) -> bool:
    """Return True if the second element of a step's result is a model like the given one. It may have further
    variables, as a valid step adds some, such as caches.
    """
    if isinstance(model, Mapping):
        return isinstance(returned, Mapping) and model.keys() <= returned.keys()
    if isinstance(model, jax.Array | list | tuple):
        shapes = [[getattr(leaf, "shape", None) for leaf in jax.tree.leaves(tree)] for tree in (returned, model)]
        return same_tree(returned, model) and shapes[0] == shapes[1]
    return type(returned) is type(model)


def changed_attributes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of the attributes of a model that a step has changed. New ones do not count, as they are scratch
    for the same step; nor do arrays, which are state, and flags, as a step may set the mode of a part of its model each
    time.
    """
    constants = {name: value for name, value in before.items() if not isinstance(value, jax.Array)}
    pairs = {name: (value, after[name]) for name, value in constants.items() if name in after}
    flags = {name for name, pair in pairs.items() if all(isinstance(value, bool | None) for value in pair)}
    replaced = {name for name in constants.keys() - after.keys() if any(x.startswith(f"{name}.") for x in after)}
    changed = {name for name, pair in pairs.items() if name not in flags and not _are_same(*pair)}
    return [name for name in before if name in replaced | changed]


def _are_same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return bool(a == b)  # `nnx.jit` and the like put equal values in place
    except Exception:  # of objects of the user
        return False


def step_fn(model: Any, method: str, given: Callable[..., Any] | None) -> StepFn | None:
    """Return the step that was given, or the model's method of that name, or None."""
    fn = given if given is not None else getattr(type(model), method, None)
    if fn is None:
        return None
    name = getattr(fn, "__qualname__", None) or method
    if not callable(fn):
        raise LearnerError(
            f"{method} is {fn!r}; it needs a function (model, batch) or (model, batch, rng)", code="step-function-type"
        )
    first = "self" if given is None else "model"
    try:
        parameters = [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return StepFn(fn, False, name)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters if p.kind in kinds and (p.default is p.empty or p.name == "rng")]
    names = [p.name for p in parameters if p.kind in kinds]
    problem = "" if len(positional) in (2, 3) else f"takes {len(positional)} arguments"
    if len(positional) < 2 and any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        problem = "takes any arguments, as a decorator without functools.wraps does"
    known = [name for name in ARGUMENT_ORDER[: len(positional)] if name in names]
    if any(names.index(name) != ARGUMENT_ORDER.index(name) for name in known):
        problem = f"takes ({', '.join(names)})"
    # They would keep their defaults, and the step would do without random numbers.
    unset = [p.name for p in parameters[2:] if (p.default is None or p.default is p.empty) and p.name not in positional]
    keys = [name for name in unset if name in KEY_NAMES]
    if keys and not problem:
        problem = f"has the argument {keys[0]}, which would get no key: make it the third one, rng"
    if problem:
        raise LearnerError(
            f"{method} ({name}) {problem}; it needs ({first}, batch) or ({first}, batch, rng), in this order",
            code="step-function-signature",
            name=name,
        )
    return StepFn(fn, len(positional) == 3, name)


@dataclasses.dataclass
class ModelChanges:
    """The changes that a step makes to its model, for checks that trace it.

    Attributes:
      written: the parameters, in a valid step the model's state, before and after it; None if it returns no model that
        has them.
      assigned: the names of the attributes that it assigns.
      items: the values in containers before and after a step that returns no model.
    """

    written: tuple[PyTree, PyTree] | None = None
    assigned: list[str] = dataclasses.field(default_factory=list)
    items: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})


@dataclasses.dataclass(frozen=True)
class StepDefinition:
    """The parts of a step that are fixed when a program is traced, except for the optimizer.

    Attributes:
      adapter: assembles the model from its arrays, and takes it apart.
      train: the train step.
      update: replaces the whole update: `(model, batch, lr, rng) -> (model, output)`.
      valid: the valid step.
      train_metrics: metrics of the train split.
      valid_metrics: metrics of the validation splits.
      accumulate: micro-batches per optimizer step.
      split: parts that each micro-batch is computed in, one after the other.
      own_grads: True if the train step returns `TrainOutput`.
      unfrozen: the names of frozen parameters that the train step assigns. They are not cast for it, as half precision
        would round a moving average to the value that it had before.
      watch: the response to a loss or a gradient that is not finite.
      policy: the dtypes of parameters, computation and outputs.
      matmul: the precision of matrix products, if it is not JAX's default.
      remat: a policy of `jax.checkpoint`, by which the backward pass recomputes parts of the forward pass.
      on_batch: changes micro-batches before the train step.
      after_step: changes the model after each update.
      axis: the axis of devices, each with its own rows. None if each device has the whole batch, or XLA partitions it.
      gather: gathers sharded arrays before a step computes with them, see `Strategy.gather`. None if no arrays are
        sharded.
      predict: the predict step, whose output needs no loss. None: the valid step.
    """

    adapter: ModelAdapter
    train: StepFn | None
    update: Callable[..., Any] | None
    valid: StepFn | None
    train_metrics: MetricCollection
    valid_metrics: MetricCollection
    accumulate: int = 1
    split: int = 1
    own_grads: bool = False
    unfrozen: tuple[str, ...] = ()
    watch: NonFinitePolicy = RAISES
    policy: Policy = FLOAT32
    matmul: str | None = None
    remat: Callable[..., Any] | None = None
    on_batch: tuple[BatchTransform, ...] = ()
    after_step: tuple[Callable[[Any, Array, bool], Any], ...] = ()  # `ModelTransform`
    axis: Axis | None = None
    gather: Callable[..., PyTree] | None = None
    predict: StepFn | None = None

    @property
    def needs_reduction(self) -> bool:
        """True if a step is a sum over micro-batches, their parts or devices."""
        return self.accumulates or self.axis is not None

    @property
    def accumulates(self) -> bool:
        """True if a step is a sum over micro-batches, or over parts of one."""
        return self.accumulate * self.split > 1

    def differentiate(
        self,
        params: PyTree,
        model_state: PyTree,
        batch: Batch,
        key: Array,
        rows: int,
        scale: Array | None = None,
        axis: Axis | None = None,
    ) -> tuple[PyTree, Any, PyTree, bool]:
        """Return the gradients, the output, the model's state after the step, and True if the gradients are multiplied
        by the weight: if batch statistics are over all devices, the rows of each device contribute to the gradients of
        the others, which count by the weights of the others.
        """
        is_synced = False

        def forward(params: PyTree) -> tuple[Array, tuple[Any, Any, PyTree]]:
            nonlocal is_synced
            returned, new_state, is_synced = self.run_train(params, model_state, batch, key, axis)
            grads, output = (returned.grads, returned.output) if self.own_grads else (None, returned)
            loss, output = jnp.asarray(output.loss), self.policy.to_output_dtype(output)
            if is_synced:
                weight = jax.lax.stop_gradient(jnp.asarray(weight_of(output, rows), jnp.float32))
                loss = scale_by_weight(loss, weight)
            if scale is not None:
                loss = loss.astype(jnp.float32) * scale
            return loss, (grads, output, new_state)

        if self.own_grads:
            _, (grads, output, new_state) = forward(params)
            if is_synced:
                raise LearnerError(
                    "the train step computes its own gradients, and its model's BatchNorm needs those of all "
                    "devices: use strategy(Sharded()), or Replicated(sync_batch_norm=False)",
                    code="step-sync-batch-norm",
                )
            grads = self.grads_like(params, grads)
            return self.policy.to_param_dtype(grads), output, new_state, False
        differentiated = forward if self.remat is None else rematerialised(forward, self.remat)
        (_, (_, output, new_state)), grads = jax.value_and_grad(differentiated, has_aux=True)(params)
        if scale is not None:
            grads = jax.tree.map(lambda g: g / scale.astype(g.dtype), grads)
        return grads, output, new_state, is_synced

    def run_train(
        self,
        params: PyTree,
        model_state: PyTree,
        batch: Batch,
        key: Array,
        axis: Axis | None = None,
        changes: ModelChanges | None = None,
    ) -> tuple[Any, PyTree, bool]:
        """Return the output of the train step, computed by `policy`, the model's state after it, and True if its batch
        statistics are over all devices. `changes` gets the changes of the parameters, attributes and containers.
        """
        assert self.train is not None
        with self.policy.allow_promotion():
            computed = self._computed(params, model_state, self.unfrozen)
            model = self.adapter.merge(*computed, jax.random.fold_in(key, MODEL_STREAM), train=True)
            if axis is not None and axis.sync_batch_norm:
                self.adapter.sync_batch_norm(model, axis.name)
            given = self.adapter.with_own_containers(model)
            attributes = {} if changes is None else self.adapter.attributes(model)
            returned, new_model = self.train(model, self.policy.to_compute_dtype(batch), key)
            if new_model is not None:
                self._check_pair(returned, new_model, model, computed[0])
            after = given if self.adapter.changes_in_place else new_model
            if changes is not None:
                changes.assigned = changed_attributes(attributes, self.adapter.attributes(model))
                if new_model is None:
                    changes.items = self.adapter.items(given), self.adapter.items(model)
                if after is not None:
                    changes.written = computed[0], self.adapter.read_all(after)[0]
            is_synced = axis is not None and self.adapter.is_synced(model)
            return returned, self.model_state_after(given, new_model, model_state, computed[1]), is_synced

    def _check_pair(self, returned: Any, new_model: Any, model: Any, params: PyTree) -> None:
        """Raise `LearnerError` if the pair that a train step returned is not an output and a model."""
        assert self.train is not None
        if not (hasattr(returned, "loss") or isinstance(returned, TrainOutput)):
            are_grads = new_model is not model and same_tree(self.adapter.grads(new_model), params)
            advice = (
                "Gradients that a step computes are returned as TrainOutput(grads, output)"
                if are_grads
                else "What jax.grad takes as aux (has_aux=True) are fields of the output"
            )
            raise LearnerError(
                f"{self.train.name} returned a pair whose first element, {_kind_of(returned)}, has no field "
                "'loss'; a step returns an output, such as ClassificationOutput.from_logits(logits, labels), or "
                f"(output, model). {advice}",
                code="step-output-without-loss",
            )
        dicts = isinstance(new_model, Mapping) and isinstance(model, Mapping)
        if (dicts and model.keys().isdisjoint(new_model)) or (
            hasattr(new_model, "loss") and type(new_model) is not type(model)
        ):
            raise LearnerError(
                f"{self.train.name} returned a pair of outputs, {type(returned).__name__} and "
                f"{type(new_model).__name__}; a step returns one output, or (output, model). The outputs of several "
                "heads are its fields: {'loss': ..., 'genre': output, 'rating': output}",
                code="step-output-pair",
            )

    def _computed(self, params: PyTree, model_state: PyTree, uncast: Sequence[str] = ()) -> tuple[PyTree, PyTree]:
        """Return the parameters and the model's state in the compute dtypes of steps, but for some arrays."""
        casts = self.adapter.frozen
        if uncast:
            marks, tree = jax.tree.flatten(casts)
            pairs = zip(marks, named_leaves(model_state), strict=True)
            casts = jax.tree.unflatten(tree, [fixed and name not in uncast for fixed, name in pairs])
        parts = (
            self.policy.to_compute_dtype(params),
            self.policy.state_to_compute_dtype(model_state, casts),
        )
        if self.gather is None:
            return parts
        return self.gather("params", parts[0]), self.gather("model_state", parts[1])

    def grads_like(self, params: PyTree, grads: Any) -> PyTree:
        """Return the gradients of the train step's result, by the names of `params`."""
        assert self.train is not None
        what = f"{self.train.name} returned other gradients than the model's"
        grads = same_structure(self.adapter.grads(grads), params, what, GRADIENTS_REMEDY)
        each_example = self.train.returns_gradients and not self.accumulates  # may then be `[examples, ...]`
        for name, g, p in zip(named_leaves(params), jax.tree.leaves(grads), jax.tree.leaves(params), strict=True):
            if jnp.shape(g) != p.shape and not (each_example and jnp.shape(g)[1:] == p.shape):
                raise LearnerError(
                    f"{what}: the gradient of {name} has shape {list(jnp.shape(g))}, but {name} has {list(p.shape)}",
                    code="step-gradient-shapes",
                    name=name,
                )
        return grads

    def model_state_after(self, given: Any, returned: Any, before: PyTree, computed: PyTree) -> PyTree:
        """Return the model's state after a step with the model `given`, which `returned` a model or None. `computed` is
        the state `before` the step, cast for the step.
        """
        if returned is None and not self.adapter.changes_in_place:
            return before
        after = self.adapter.read(given if returned is None else returned)
        return like(self.policy.restore_state_dtypes(after, computed, before), before, "the model's state")

    def eval_model(self, state: TrainState) -> Any:
        """Return the user's model of a state, in eval mode. It uses the state's arrays."""
        return self.adapter.rebuild(eval_params(state.params, state.opt_state), state.model_state)

    def train_batch(self, state: TrainState, batch: Batch, key: Array) -> Batch:
        """Return a micro-batch for the train step. `key`: the key of the micro-batch."""
        with self.policy.allow_promotion():
            return transformed(self.on_batch, batch, key, state.step)

    def run_valid(
        self,
        state: TrainState,
        batch: Batch,
        index: Array,
        replicated: bool = True,
        step: StepFn | None = None,
        changes: ModelChanges | None = None,
    ) -> Any:
        """Return the output of `step`, by default the valid step, in the output dtypes; see `StepFunctions.evaluate`.
        `changes` gets the change of the model's state.
        """
        step = step or self.valid
        assert step is not None
        key = jax.random.fold_in(jax.random.fold_in(state.rng, VALID_STREAM), index)
        key = key if replicated or self.axis is None else self.axis.fold(key)
        with self.policy.allow_promotion():
            parts = self._computed(eval_params(state.params, state.opt_state), state.model_state)
            model = self.adapter.merge(*parts, jax.random.fold_in(key, MODEL_STREAM), train=False)
            given = self.adapter.with_own_containers(model)
            output, returned = step(model, self.policy.to_compute_dtype(batch), key)
        if returned is not None and not is_model_like(returned, given):
            if step is not self.predict:
                raise LearnerError(
                    f"{step.name} returned a pair whose second element, {_kind_of(returned)}, is not the model; a step "
                    "returns one output, whose fields metrics read and predict returns, or (output, model)",
                    code="step-output-pair",
                )
            output, returned = (output, returned), None
        if changes is not None:
            after = given if self.adapter.changes_in_place else returned
            is_model = bool(jax.tree.structure(after) == jax.tree.structure(given))  # type: ignore[operator]
            # Unlike those of a train step, the variables that it adds, such as caches of a decoder, are discarded.
            changes.written = parts[1], self.adapter.read_all(after)[1] if is_model else parts[1]
        return output
