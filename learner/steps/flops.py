"""Floating-point operations of a step, counted in its traced program, equation by equation.

XLA's own count includes the body of a loop only once, and differs between kinds of devices. This one counts the traced
program, before XLA changes anything:

- `dot_general`: 2·batch·m·n·k; a convolution: two for each product of an input with a weight, without products with
  zeros of padding and dilation;
- arithmetic, a function such as `exp`, and each summed number: one;
- moving, comparing, selecting and casting numbers, random numbers and integers: none;
- `scan`: its body times its length; `cond`: its most expensive branch;
- unused results: none, as they are never computed.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.steps.step import StepFunctions
from learner.steps.train_state import TrainState
from learner.util.jaxprs import inner_jaxprs

PyTree = Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ONE_EACH = _words(
    """abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clamp cos cosh digamma div erf
    erf_inv erfc exp exp2 expm1 integer_pow lgamma log log1p logistic max min mul neg nextafter pow rem rsqrt sin sinh
    sqrt square sub tan tanh"""
)
ADDED_UP = _words(
    "argmax argmin cumlogsumexp cummax cummin cumprod cumsum reduce_max reduce_min reduce_prod reduce_sum"
)
UNKNOWN = _words(
    """cholesky custom_linear_solve eig eigh fft ffi_call geqrf hessenberg householder_product io_callback lu
    pallas_call pure_callback qr ragged_dot_general schur svd tpu_custom_call triangular_solve tridiagonal
    tridiagonal_solve"""
)


@dataclasses.dataclass(frozen=True)
class Flops:
    """A number of floating-point operations.

    Attributes:
      number: the number of operations.
      exact: `False` if there are more, in parts that cannot be counted: loops of unknown length (their bodies count
        once), matrix decompositions, Fourier transforms, kernels and callbacks.
    """

    number: int
    exact: bool = True

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.number + other.number, self.exact and other.exact)

    def __mul__(self, times: int) -> "Flops":
        return Flops(self.number * times, self.exact)


NONE = Flops(0)


def step_flops(step: StepFunctions, state: TrainState, batch: PyTree) -> Flops:
    """Return the operations of one optimizer step: forward, backward, update and metrics, over all devices together.
    The step is traced again, and nothing is compiled.

    Args:
      step: the definition of a run's steps.
      state: the state of the run, or its shapes.
      batch: the shapes of a whole micro-batch.
    """
    step = dataclasses.replace(step, axis=None, gather=None, split=1)  # whole batches and whole arrays
    if step.update is not None or step.accumulate == 1:
        return flops_of(jax.make_jaxpr(lambda state, batch: step.unrolled_step(state, [batch]))(state, batch).jaxpr)
    acc, index = jax.eval_shape(step.begin, state), jax.ShapeDtypeStruct((), jnp.int32)
    micro = jax.make_jaxpr(lambda *given: step.accumulate_micro_batch(*given))(state, acc, batch, index)
    finish = jax.make_jaxpr(lambda *given: step.finish(*given))(state, acc)
    return flops_of(micro.jaxpr) * step.accumulate + flops_of(finish.jaxpr)


def flops_of(jaxpr: Any, needed: Sequence[bool] | None = None) -> Flops:
    """Return the operations of a traced program.

    Args:
      jaxpr: the program.
      needed: for each result, True if it is needed; default: all are.

    >>> x, w = jnp.ones((8, 3)), jnp.ones((3, 4))
    >>> flops_of(jax.make_jaxpr(lambda x, w: jnp.tanh(x @ w))(x, w).jaxpr).number == 2 * 8 * 3 * 4 + 8 * 4
    True
    """
    total = NONE
    flags = needed or [True] * len(jaxpr.outvars)
    read = {id(x) for x, is_needed in zip(jaxpr.outvars, flags, strict=True) if is_needed}
    for equation in reversed(jaxpr.eqns):
        outputs_read = [id(x) in read for x in equation.outvars]
        if any(outputs_read) or equation.effects:
            total += _of(equation, outputs_read)
            read |= {id(x) for x in equation.invars}
    return total


def _of(equation: Any, needed: list[bool]) -> Flops:
    """Return the operations of one equation."""
    name, params = equation.primitive.name, equation.params
    if name in UNKNOWN or name.startswith("dot_product_attention"):  # the kernels of cuDNN have many names
        return Flops(0, exact=False)
    if name == "scan":
        return flops_of(params["jaxpr"].jaxpr) * int(params["length"])
    if name == "while":
        return Flops(sum(flops.number for flops in _inside(params)), exact=False)
    if name == "cond":
        branches = list(_inside(params))
        return Flops(max(flops.number for flops in branches), all(flops.exact for flops in branches))
    if name == "shard_map":
        return _sum(params) * int(params["mesh"].size)
    if (number := _arithmetic(name, params, equation.invars, equation.outvars)) is not None:
        return Flops(number)
    return _sum(params, needed)


def _sum(params: dict[str, Any], needed: list[bool] | None = None) -> Flops:
    """Return the operations of all programs inside of an equation."""
    total = NONE
    for flops in _inside(params, needed):
        total += flops
    return total


def _inside(params: dict[str, Any], needed: list[bool] | None = None) -> Iterator[Flops]:
    """Yield the operations of each program inside of an equation, of which only some results may be `needed`."""
    for value in params.values():
        for jaxpr in inner_jaxprs(value):
            same = needed is not None and len(needed) == len(jaxpr.outvars)
            yield flops_of(jaxpr, needed if same else None)


def _arithmetic(name: str, params: dict[str, Any], inputs: list[Any], outputs: list[Any]) -> int | None:
    """Return the operations of an equation without a program inside, or None if it is not arithmetic."""
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return 2 * _size(outputs[0]) * _product(inputs[0].aval.shape[i] for i in contracted)
    if name == "conv_general_dilated":
        return _convolution(params, inputs[0].aval.shape, inputs[1].aval.shape, outputs[0].aval.shape)
    if name in ONE_EACH:
        return _size(outputs[0]) if _inexact(outputs[0]) else 0
    if name in ADDED_UP:
        return _size(inputs[0]) if _inexact(inputs[0]) else 0
    if name.startswith("scatter"):
        return _size(inputs[2]) if name != "scatter" and _inexact(outputs[0]) else 0
    if name.startswith("reduce_window_"):
        return _size(outputs[0]) * _product(params["window_dimensions"])
    return None


def _convolution(params: dict[str, Any], lhs: tuple[int, ...], rhs: tuple[int, ...], out: tuple[int, ...]) -> int:
    numbers = params["dimension_numbers"]
    pairs = 1
    for axis in range(len(params["window_strides"])):
        sizes = tuple(
            shape[spec[2 + axis]]
            for shape, spec in ((lhs, numbers.lhs_spec), (rhs, numbers.rhs_spec), (out, numbers.out_spec))
        )
        pairs *= _pairs(*sizes, *(params[name][axis] for name in WINDOW))
    rows, features = int(out[numbers.out_spec[0]]), int(out[numbers.out_spec[1]])
    return 2 * rows * features * int(rhs[numbers.rhs_spec[1]]) * pairs


WINDOW = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")


def _pairs(
    inputs: int, weights: int, outputs: int, stride: int, padding: tuple[int, int], input_dilation: int, dilation: int
) -> int:
    """Return the number of products of an input and a weight along one axis, without products with zeros between and
    around the inputs.
    """
    at = np.arange(outputs)[:, None] * stride + np.arange(weights)[None] * dilation - padding[0]
    return int(((at >= 0) & (at <= (inputs - 1) * input_dilation) & (at % input_dilation == 0)).sum())


def _size(variable: Any) -> int:
    return _product(variable.aval.shape)


def _product(numbers: Iterable[int]) -> int:
    return math.prod(numbers)


def _inexact(variable: Any) -> bool:
    return bool(jnp.issubdtype(variable.aval.dtype, jnp.inexact))
