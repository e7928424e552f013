"""Functions for custom loops: gradients of a step, their weighted mean, and the update of a part of a model.

    opt = Optimizer(optax.adamw)

    @jax.jit
    def train_step(model, opt_state, batch):
        output, grads = value_and_grad(step)(model, batch)
        model, opt_state = opt.step(1e-3, model, grads, opt_state)
        return model, opt_state, output.loss

    opt_state = opt.init(model)
    for batch in train:
        model, opt_state, loss = train_step(model, opt_state, batch)

They are pure, except for models that a library changes in place, and work inside and outside of `jax.jit`.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.models.adapters import adapter_of
from learner.models.base import GRADIENTS_REMEDY, Trainable, same_structure, same_tree
from learner.steps.key_streams import MODEL_STREAM
from learner.steps.outputs import TrainOutput
from learner.steps.step_definition import step_fn
from learner.steps.tree_math import like, scale_by_weight, sum_dtype
from learner.util.trees import named_leaves

Array = Any
PyTree = Any
OutputT = TypeVar("OutputT")
_Converted = TrainOutput | dict[str, Any]
Converted = _Converted | tuple[_Converted, Any]  # which the function returns as other types


@overload
def value_and_grad(
    step: Callable[..., Converted], trainable: Trainable = None
) -> Callable[..., tuple[Any, PyTree]]: ...


@overload
def value_and_grad(
    step: Callable[..., OutputT], trainable: Trainable = None
) -> Callable[..., tuple[OutputT, PyTree]]: ...


def value_and_grad(step: Callable[..., Any], trainable: Trainable = None) -> Callable[..., tuple[Any, PyTree]]:
    """Return a function `(model, batch)` or `(model, batch, rng)` that returns the output and the gradients of a step.

    The step runs in train mode, as in `fit`. Running statistics and other state change as in a direct call of the step:
    in the given model if its library changes models in place (nnx, `Linen`), else in the model that the step returns.
    Random streams of an nnx model start from `rng`, as in `fit`; without `rng` they continue.

    Args:
      step: a function `(model, batch)` or `(model, batch, rng)` that returns an output with a `loss`, or the loss; also
        `(output, model)` and `TrainOutput`, as for `build`.
      trainable: the parameters to differentiate; see `trainable_params`.

    Returns:
      A function that returns `(output, grads)`: the result of the step (for a `TrainOutput`, its output), and a tree
      like `trainable_params(model, trainable)`.

    Raises:
      LearnerError: the model or the step is invalid, the step lacks its random key, or the output has no scalar loss.

    >>> def step(model, batch):
    ...     return ((model["w"] * batch["x"] - batch["y"]) ** 2).mean()
    >>> loss, grads = value_and_grad(step)({"w": jnp.float32(2)}, {"x": jnp.ones(4), "y": jnp.zeros(4)})
    >>> print(loss, grads["w"])
    4.0 4.0
    """
    fn = step_fn(None, "the step", step)
    assert fn is not None

    def value_and_grads(model: Any, batch: Any, rng: Array | None = None) -> tuple[Any, PyTree]:
        if fn.takes_rng and rng is None:
            raise LearnerError(
                f"the step {fn.name} takes a random key: call it with (model, batch, rng)", code="step-needs-random-key"
            )
        adapter, returns_model = adapter_of(model, trainable), []
        before = jax.tree.map(jnp.asarray, adapter.model_state)
        key = None if rng is None else jax.random.fold_in(rng, MODEL_STREAM)  # as in `StepFunctions.run_train`

        def forward(params: PyTree) -> tuple[Array, tuple[Any, Any, PyTree, PyTree]]:
            running = adapter.merge(params, before, key, train=True)
            returned, new = fn(running, batch, rng)
            grads, output = (returned.grads, returned.output) if isinstance(returned, TrainOutput) else (None, returned)
            returns_model.append(new is not None)
            carried = before
            if new is not None or adapter.changes_in_place:
                carried = like(adapter.read(running if new is None else new), carried, "the model's state")
            return _loss_of(output, fn.name), (grads, output, carried, adapter.streams_of(running))

        if fn.returns_gradients:
            _, (own, output, carried, streams) = forward(adapter.params)
            grads = own
        else:
            (_, (own, output, carried, streams)), grads = jax.value_and_grad(forward, has_aux=True)(adapter.params)
        if own is not None:
            grads = same_structure(
                adapter.grads(own), adapter.params, f"{fn.name} returned other gradients", GRADIENTS_REMEDY
            )
        after = adapter.put(model, carried, adapter.streams if key is not None else streams)
        return (output, after) if returns_model[-1] else output, grads

    return value_and_grads


def _loss_of(output: Any, name: str) -> Array:
    loss = getattr(output, "loss", output)
    if not isinstance(loss, jax.Array | float) or jnp.shape(loss) != ():
        what = f"shape {list(jnp.shape(loss))}" if isinstance(loss, jax.Array) else type(output).__name__
        raise LearnerError(
            f"the step {name} returned {what}; it needs an output with a `loss`, one number, or that",
            code="step-output-without-loss",
            name=name,
        )
    return loss


@jax.tree_util.register_pytree_node_class
class GradientsAccumulator:
    """A weighted sum of gradients, which returns their weighted mean, `Σ(weight·grads) / Σweight`.

    Gradients with weight 0 contribute nothing, even if they are NaN. Sums have at least 32 bits. It is a pytree, so a
    jitted function may take and return it. A loop inside of a program (`jax.lax.scan`) needs an accumulator with the
    structure of the gradients from the start: `GradientsAccumulator(trainable_params(model))`.

    Attributes:
      weight: float32 scalar, `Σweight` so far.

    >>> accumulator = GradientsAccumulator()
    >>> for gradient, weight in ((1.0, 3), (5.0, 1), (jnp.nan, 0)):
    ...     accumulator.accumulate({"w": jnp.float32(gradient)}, weight)
    >>> print(accumulator.grads()["w"], accumulator.weight)
    2.0 0.0
    """

    def __init__(self, like: PyTree = None):
        """Begin without gradients. `like`: arrays with their shapes and dtypes; default: as in the first call."""
        self.weight: Array = jnp.float32(0)
        self._sums: PyTree = None
        self._dtypes: tuple[Any, ...] = ()
        if like is not None:
            self._begin(like)

    def _begin(self, grads: PyTree) -> None:
        self._dtypes = tuple(jnp.result_type(g) for g in jax.tree.leaves(grads))
        self._sums = jax.tree.map(lambda g: jnp.zeros(jnp.shape(g), sum_dtype(jnp.result_type(g))), grads)

    def accumulate(self, grads: PyTree, weight: Any = 1.0) -> None:
        """Add gradients.

        Args:
          grads: arrays of the same shapes at each call.
          weight: the weight of the gradients, such as the output's `weight`, the number of rows that the loss is the
            mean over. A number of 0 or more.

        Raises:
          LearnerError: the weight is invalid, or the structure of the gradients has changed.
        """
        given = weight
        weight = jnp.asarray(weight, jnp.float32)
        if weight.shape != () or (isinstance(given, int | float) and not 0 <= given < math.inf):
            what = given if weight.shape == () else f"shape {list(weight.shape)}"
            raise LearnerError(
                f"the weight of gradients is {what}; it needs one number, 0 or more", code="step-weight-value"
            )
        if self._sums is None:
            self._begin(grads)
        if differences := _differences(grads, self._sums):
            raise LearnerError(
                f"these are not the gradients that were accumulated before: {'; '.join(differences)}",
                code="step-gradients-differ",
            )

        def add(total: Array, g: Array) -> Array:
            return total + scale_by_weight(jnp.asarray(g).astype(total.dtype), weight)

        self._sums = jax.tree.map(add, self._sums, grads)
        self.weight = self.weight + weight

    def grads(self) -> PyTree:
        """Return the weighted mean in the dtypes of the gradients, or zeros if all weights were 0. The accumulator is
        empty afterwards.

        Raises:
          LearnerError: nothing was ever accumulated.
        """
        if self._sums is None:
            raise LearnerError(
                "the accumulator has no gradients: call accumulate(grads, weight) before grads()",
                code="step-gradients-missing",
            )
        leaves, tree = jax.tree.flatten(self._sums)
        divisor = jnp.where(self.weight > 0, self.weight, 1)
        means = [(s / divisor.astype(s.dtype)).astype(d) for s, d in zip(leaves, self._dtypes, strict=True)]
        self._sums, self.weight = jax.tree.map(jnp.zeros_like, self._sums), jnp.zeros_like(self.weight)
        return jax.tree.unflatten(tree, means)

    def tree_flatten(self) -> tuple[Any, Any]:
        """Return the arrays and the rest, for JAX."""
        return (self._sums, self.weight), self._dtypes

    @classmethod
    def tree_unflatten(cls, dtypes: Any, children: Any) -> "GradientsAccumulator":
        """Return the accumulator of these arrays, for JAX."""
        accumulator = object.__new__(cls)
        (accumulator._sums, accumulator.weight), accumulator._dtypes = children, dtypes
        return accumulator


def _differences(new: PyTree, old: PyTree) -> list[str]:
    """Return the differences between two trees of gradients."""
    shapes = [{name: list(jnp.shape(x)) for name, x in named_leaves(tree).items()} for tree in (new, old)]
    texts = [
        f"{name} is {shapes[0].get(name, 'not there')} and was {shapes[1].get(name, 'not there')}"
        for name in {**shapes[1], **shapes[0]}
        if shapes[0].get(name) != shapes[1].get(name)
    ]
    return texts if texts or same_tree(new, old) else ["their containers are of other types"]
