"""Transformations of gradients before an optimizer sees them, and the choice of parameters that decay."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from learner.errors import LearnerError
from learner.optimizers.base import OptimizerFactory, refuse_no_function
from learner.steps.extra import accepting
from learner.steps.run_key import run_key
from learner.steps.tree_math import sum_dtype
from learner.util.number_checks import is_int, is_number
from learner.util.trees import path_name

FREE = ("bias", "scale", "b", "beta", "gamma", "offset")
"""The names of biases and the parameters of norms in flax, Equinox and Haiku."""


@dataclasses.dataclass(frozen=True)
class Clipped(OptimizerFactory):
    """An optimizer with gradient clipping. Several limits are applied in the order of the arguments.

    Args:
      optimizer: a function of the learning rate.
      value: the maximum absolute value of each element.
      tensor_norm: the maximum norm of each array.
      norm: the maximum global norm (`optax.clip_by_global_norm`).
      adaptive: the maximum norm of each unit, relative to that of its parameters (`optax.adaptive_grad_clip`, Brock et
        al. 2021).

    Raises:
      LearnerError: no limit is given, or a limit is not positive.

    >>> made = Clipped(optax.sgd, tensor_norm=5.0)(1.0)
    >>> grads = {"w": jnp.array([6.0, 8.0]), "b": jnp.array([3.0])}
    >>> updates, _ = made.update(grads, made.init(grads), grads)
    >>> updates["w"].tolist(), updates["b"].tolist()
    ([-3.0, -4.0], [-3.0])
    """

    optimizer: Callable[[Any], Any]
    norm: float | None = None
    tensor_norm: float | None = None
    value: float | None = None
    adaptive: float | None = None

    def __post_init__(self) -> None:
        refuse_no_function(self.optimizer, "the optimizer of Clipped")
        limits = {name: getattr(self, name) for name in ("norm", "tensor_norm", "value", "adaptive")}
        if not any(limit is not None for limit in limits.values()):
            raise LearnerError(
                f"Clipped got no limit; it needs one of {', '.join(limits)}", code="optimizer-clip-limit-missing"
            )
        for name, limit in limits.items():
            if limit is not None and not (is_number(limit) and limit > 0):
                raise LearnerError(
                    f"{name} of Clipped is {limit!r}; it needs a positive number",
                    code="optimizer-clip-limit-value",
                    name=name,
                    limit=limit,
                )

    def __call__(self, lr: Any) -> optax.GradientTransformation:
        """See `OptimizerFactory`."""
        limits = [
            (optax.clip, self.value),
            (clip_by_tensor_norm, self.tensor_norm),
            (optax.clip_by_global_norm, self.norm),
            (optax.adaptive_grad_clip, self.adaptive),
        ]
        clips: list[Any] = [function(limit) for function, limit in limits if limit is not None]
        return optax.chain(*clips, accepting(self.optimizer(lr)))


def clip_by_tensor_norm(limit: float) -> optax.GradientTransformation:
    """Scale down each array whose own norm exceeds `limit`."""

    def clip(g: Any, _: Any) -> Any:
        size = jnp.abs(g)
        norm = jnp.sqrt(jnp.sum(jnp.square(size.astype(sum_dtype(size.dtype)))))
        return g * (limit / jnp.maximum(norm, limit)).astype(g.dtype)

    return optax.stateless_with_tree_map(clip)


@dataclasses.dataclass(frozen=True)
class Noisy(OptimizerFactory):
    """An optimizer with gradient noise: normal, of variance `eta / (1 + step) ** gamma` (Neelakantan et al. 2015,
    `optax.add_noise`).

    Args:
      optimizer: a function of the learning rate.
      eta: the variance at the first step.
      gamma: the exponent of the variance's decay.
      seed: the seed of the noise; None for noise that follows from the seed of the run, or of the member of a
        population.

    Raises:
      LearnerError: eta or gamma is negative or not finite.
    """

    optimizer: Callable[[Any], Any]
    eta: float
    gamma: float = 0.55
    seed: int | None = None

    def __post_init__(self) -> None:
        refuse_no_function(self.optimizer, "the optimizer of Noisy")
        for name, value in (("eta", self.eta), ("gamma", self.gamma)):
            if not is_number(value) or not 0 <= value < math.inf:
                raise LearnerError(
                    f"{name} of Noisy is {value!r}; it needs a number, 0 or more",
                    code="optimizer-noise-value",
                    name=name,
                    value=value,
                )
        if self.seed is not None and not is_int(self.seed):
            raise LearnerError(
                f"seed of Noisy is {self.seed!r}; it needs a whole number, or None for the seed of the run",
                code="optimizer-seed-value",
            )

    def __call__(self, lr: Any) -> optax.GradientTransformation:
        """See `OptimizerFactory`."""
        noise = optax.add_noise(self.eta, self.gamma, key=self.seed or 0)

        def init(params: Any) -> Any:
            state = noise.init(params)
            return state if self.seed is not None else state._replace(rng_key=run_key())

        return optax.chain(optax.GradientTransformation(init, noise.update), accepting(self.optimizer(lr)))


def kernels(params: Any) -> Any:
    """Return the mask for weight decay that excludes biases and the parameters of norms: a tree of bools.

    These are arrays with less than two axes, and arrays with such names (stacked layers have biases of two axes).

    >>> adamw = lambda lr: optax.adamw(lr, weight_decay=0.1, mask=kernels)
    >>> kernels({"out": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}})
    {'out': {'bias': False, 'kernel': True}}
    """

    def decays(path: tuple[Any, ...], x: Any) -> bool:
        of_variable = len(path) > 1 and path[-1] == jax.tree_util.GetAttrKey("value")  # of nnx, in another tree
        return jnp.ndim(x) > 1 and path_name(path[-2:-1] if of_variable else path[-1:]).strip(".") not in FREE

    return jax.tree_util.tree_map_with_path(decays, params)
