"""Precision: the dtypes of parameters, computation and outputs, and the loss scale that float16 needs.

The casts are part of the differentiated function, so gradients have the dtype of the parameters. With `"float32"`
nothing is cast: the programs are the same as without this option.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError, Problem
from learner.util.number_checks import check_int

Array = Any
PyTree = Any
P = ParamSpec("P")
R = TypeVar("R")

DTYPES = ("float32", "bfloat16", "float16")
MATMUL = ("default", "high", "highest")
MOST = 2.0**24  # the largest loss scale: only gradients of zero would lead to a larger one


def _dtype_name(field: str, given: Any) -> str:
    name = given
    if not isinstance(given, str):
        try:
            name = np.dtype(given).name
        except TypeError:
            name = None
    if given is None or name not in DTYPES:
        raise LearnerError(
            f"{field} of Policy is {given!r}; it needs {' or '.join(map(repr, DTYPES))}",
            code="precision-dtype-unknown",
            field=field,
        )
    return str(name)


def _is_float(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize >= 2


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    """Return `tree` with its floating-point arrays in another dtype. 8-bit arrays are quantised, and stay."""
    to = jnp.dtype(dtype)
    return jax.tree.map(lambda x: x.astype(to) if _is_float(x) and x.dtype != to else x, tree)


@dataclasses.dataclass(frozen=True)
class LossScale:
    """A factor that multiplies the loss before differentiation, so that small gradients are not zero in float16.

    It is halved at each step whose gradients are not finite, down to 1, and doubled after `every` consecutive steps
    with finite gradients, up to 2²⁴. The gradients are divided by it again, which is exact for a power of two.

    Attributes:
      start: the initial scale, a power of two.
      every: the number of consecutive good steps after which it is doubled.

    >>> scaling = LossScale(start=4.0, every=2)
    >>> state = scaling.fresh()
    >>> for overflows in (False, True, False, False, True, True):
    ...     state = scaling.after(state, jnp.bool_(overflows), jnp.bool_(not overflows))
    ...     print(state["scale"], state["good"])
    4.0 1
    2.0 0
    2.0 1
    4.0 0
    2.0 0
    1.0 0
    """

    start: float = 2.0**15
    every: int = 2000

    def __post_init__(self) -> None:
        number = isinstance(self.start, int | float) and not isinstance(self.start, bool)
        if not number or not 1 <= self.start <= MOST or math.frexp(self.start)[0] != 0.5:
            raise LearnerError(
                f"start of LossScale is {self.start!r}; it needs a power of two from 1 to 2**24",
                code="precision-loss-scale-start",
            )
        every = check_int("every", self.every, least=1, of="LossScale", code="precision-loss-scale-every")
        object.__setattr__(self, "every", every)

    def fresh(self) -> dict[str, Array]:
        """Return the initial state: `scale`, float32, and `good`, int32, the good steps since it changed."""
        return {"scale": jnp.float32(self.start), "good": jnp.int32(0)}

    def overflows(self, state: dict[str, Array], weight: Array, loss: Array, norm: Array) -> Array:
        """Return True if the gradients of a step overflowed and a lower scale may help: the loss is finite, the norm of
        the gradients is not, and the scale is above 1.
        """
        return (weight > 0) & jnp.isfinite(loss) & ~jnp.isfinite(norm) & (state["scale"] > 1)

    def after(self, state: dict[str, Array], overflows: Array, good: Array) -> dict[str, Array]:
        """Return the state after a step that overflowed, was good, or neither (a step with weight 0)."""
        count = state["good"] + good.astype(jnp.int32)
        grows = count >= self.every
        up = jnp.where(grows, jnp.minimum(state["scale"] * 2, MOST), state["scale"])
        scale = jnp.where(overflows, jnp.maximum(state["scale"] / 2, 1), up)
        return {"scale": scale, "good": jnp.where(overflows | grows, 0, count)}


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes in which a model is stored and computed: `float32`, `bfloat16` or `float16`, by name or as a dtype.

    Floating-point parameters and arrays of the batch are cast to `compute`, in training and validation; integers,
    booleans and random keys are not. The optimizer's state has the dtype of the parameters. Running statistics, the
    loss, the weights and the sums of the metrics stay float32, and in training also the frozen parameters that a train
    step assigns, such as those of a teacher. If all three are float32, nothing is cast.

    Attributes:
      param: the dtype of the trained parameters between steps; float32 or bfloat16.
      compute: the dtype of the forward and the backward pass.
      output: the dtype of a step's output, except for its loss and its weight, before metrics use it.
      loss_scale: default: a `LossScale()` if `compute` is float16, otherwise none.

    >>> Policy(compute="bfloat16").description
    'bfloat16 (parameters float32, outputs float32)'
    """

    param: str = "float32"
    compute: str = "float32"
    output: str = "float32"
    loss_scale: LossScale | None = None

    def __post_init__(self) -> None:
        for field in ("param", "compute", "output"):
            object.__setattr__(self, field, _dtype_name(field, getattr(self, field)))
        if self.param == "float16":
            raise LearnerError(
                "param of Policy is 'float16': small updates would be lost in it; keep the parameters in 'float32' (or "
                "'bfloat16'), and compute in float16",
                code="precision-float16-params",
            )
        if self.loss_scale is not None and not isinstance(self.loss_scale, LossScale):
            raise LearnerError(
                f"loss_scale of Policy is {self.loss_scale!r}; it needs LossScale(...) or None",
                code="precision-loss-scale-type",
            )
        if self.loss_scale is not None and not self.casts:
            raise LearnerError(
                "loss_scale of Policy is for computing in float16, and everything is float32 here",
                code="precision-loss-scale-unneeded",
            )

    @property
    def casts(self) -> bool:
        """True if anything is cast."""
        return (self.param, self.compute, self.output) != ("float32",) * 3

    @property
    def scaling(self) -> LossScale | None:
        """The loss scale, or None."""
        return LossScale() if self.loss_scale is None and self.compute == "float16" else self.loss_scale

    @property
    def description(self) -> str:
        """A description for logs."""
        return f"{self.compute} (parameters {self.param}, outputs {self.output})" if self.casts else "float32"

    @property
    def scaling_text(self) -> str | None:
        """A description of the loss scale for logs: None if it is the default of the compute dtype."""
        scaling, default = self.scaling, LossScale() if self.compute == "float16" else None
        if scaling is None or scaling == default:
            return None
        return f"from {int(scaling.start)}, doubled after {scaling.every} steps without overflow"

    def to_param_dtype(self, params: PyTree) -> PyTree:
        """Return parameters in the storage dtype."""
        return _cast(params, self.param) if self.casts else params

    def to_compute_dtype(self, tree: PyTree) -> PyTree:
        """Return parameters, or a batch, in the compute dtype."""
        return _cast(tree, self.compute) if self.casts else tree

    def state_to_compute_dtype(self, model_state: PyTree, frozen: PyTree) -> PyTree:
        """Return the rest of the model for computation: only untrained parameters (`frozen`) are cast."""
        if not self.casts:
            return model_state
        return jax.tree.map(lambda x, fixed: _cast(x, self.compute) if fixed else x, model_state, frozen)

    def restore_state_dtypes(self, after: PyTree, computed: PyTree, before: PyTree) -> PyTree:
        """Return the rest of the model after a step, in its own dtypes. Arrays that were cast but not changed keep
        their original values.
        """
        if computed is before:
            return after

        def again(new: Array, old: Array, kept: Array) -> Array:
            if new is old:
                return kept
            return _cast(new, kept.dtype) if _is_float(kept) else new

        return jax.tree.map(again, after, computed, before)

    def to_output_dtype(self, output: Any) -> Any:
        """Return a step's output for metrics. Its loss and its weight are float32."""
        if not self.casts:
            return output
        float32 = [x for x in (getattr(output, name, None) for name in ("loss", "weight")) if x is not None]
        return jax.tree.map(lambda x: _cast(x, "float32" if any(x is y for y in float32) else self.output), output)

    def problems(self, output: Any, name: str) -> list[str]:
        """Return the problems of the output of a step before it is cast."""
        weight: Any = getattr(output, "weight", None)
        if not _is_float(weight) or weight.dtype.itemsize >= 4:
            return []
        reason = ", as the batch is cast" if self.casts else ""
        return [
            Problem(
                f"the weight of {name}'s output is {weight.dtype}, in which large numbers are not exact{reason}; sum "
                "in float32, as batch['weight'].sum(dtype=jnp.float32) does, or keep masks as booleans or int32",
                code="step-weight-dtype",
                name=name,
            )
        ]

    @contextlib.contextmanager
    def allow_promotion(self) -> Iterator[None]:
        """Allow implicit promotion around the user's step if dtypes are cast, even under strict promotion: cast arrays
        meet other dtypes, as BatchNorm converts statistics of half precision to float32.
        """
        with jax.numpy_dtype_promotion("standard") if self.casts else contextlib.nullcontext():
            yield


FLOAT32 = Policy()
PRESETS = {name: Policy(compute=name) for name in DTYPES}
"""The policy for the name of a dtype: it is the compute dtype, and everything else is float32."""


def policy_of(given: Any) -> Policy:
    """Return the policy of an argument: a policy, or the name of a dtype.

    >>> policy_of("bfloat16")
    Policy(param='float32', compute='bfloat16', output='float32', loss_scale=None)
    """
    if isinstance(given, Policy):
        return given
    if isinstance(given, str) and given in PRESETS:
        return PRESETS[given]
    raise LearnerError(
        f"precision got {given!r}; it needs {' or '.join(map(repr, PRESETS))}, or Policy(param, compute, output)",
        code="precision-policy-unknown",
    )


def with_matmul(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method of a step that is traced with the step's precision of matrix products and convolutions."""

    @functools.wraps(method)
    def traced(*args: P.args, **kwargs: P.kwargs) -> R:
        matmul: str | None = args[0].matmul  # type: ignore[attr-defined]
        with jax.default_matmul_precision(matmul) if matmul is not None else contextlib.nullcontext():
            return method(*args, **kwargs)

    return traced
