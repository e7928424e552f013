"""Programs in parts: equal random draws are compiled once."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from learner.steps.program_fingerprint import jaxpr_fingerprint
from learner.util.executables import compile_ahead, compile_threads
from learner.util.jaxprs import programs_in
from learner.util.trees import is_key

Atom = Any  # a `Var` or a `Literal`
Compiled = Callable[[Any], Any]
PyTree = Any
OF_KEYS = "random_bits", "random_fold_in", "random_split"
CompiledPart = tuple[Any, "_Part"]  # a program and its part
LEAST_REPEATED = 4  # arrays whose draws share a program; with fewer, a single program compiles faster


def call_in_parts(
    function: Callable[..., PyTree], arguments: Sequence[PyTree], compiled: Compiled = lambda jitted: jitted
) -> PyTree:
    """Return the results of a function of arrays. If it has many random draws, they are separate programs.

    In a single program, each draw is compiled separately, which takes about 0.2 CPU seconds, even if the layers of a
    model are equal. Here each kind of draw is compiled once and called for each of its arrays. The computations before
    and after the draws are separate programs, too.

    Args:
      function: the function; it is traced once.
      arguments: its arguments, pytrees of arrays.
      compiled: turns jitted functions into programs.

    >>> def make(seed):
    ...     return [jax.random.normal(jax.random.fold_in(jax.random.key(seed), i), 3) for i in range(9)]
    >>> programs = []
    >>> in_parts = call_in_parts(make, [7], lambda jitted: programs.append(jitted) or jitted)
    >>> print((jax.numpy.stack(in_parts) == jax.numpy.stack(make(7))).all(), len(programs))
    True 5
    """
    programs = TracedCall(function, arguments).in_parts(arguments, compiled)
    with compile_threads() as threads:
        programs.compile_ahead(threads)
        return programs()


class TracedCall:
    """A function of arrays, traced with its arguments or their shapes; see `call_in_parts`.

    Attributes:
      shapes: the shapes of its results.
    """

    def __init__(self, function: Callable[..., PyTree], arguments: Sequence[PyTree]) -> None:
        self._function = function
        self._traced, self.shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)

    def fingerprint(self) -> str:
        """Return a hash of the traced program; see `jaxpr_fingerprint`."""
        return jaxpr_fingerprint(self._traced)

    def in_parts(self, arguments: Sequence[PyTree], compiled: Compiled) -> "PartPrograms":
        """Return its programs for these arguments. `compiled` turns jitted functions into programs."""
        traced, inputs = self._traced, jax.tree.leaves(arguments)
        if traced.effects:  # which have an order
            tree = jax.tree.structure(tuple(arguments))
            function = lambda *leaves: jax.tree.leaves(self._function(*jax.tree.unflatten(tree, leaves)))  # noqa: E731
            parts = [(compiled(jax.jit(function)), _Part(function, traced.jaxpr.invars, traced.jaxpr.outvars))]
        else:
            draws = [_draw(x).kind for x in traced.jaxpr.eqns if _is_draw(x) and x.primitive.name not in OF_KEYS]
            if len(draws) - len(set(draws)) < LEAST_REPEATED:
                parts = [_single(traced.jaxpr, compiled)]
            else:
                parts = list(_compiled_parts(traced.jaxpr, compiled))
        variables = [*traced.jaxpr.constvars, *traced.jaxpr.invars]
        values = dict(zip(variables, [*traced.consts, *inputs], strict=True))
        return PartPrograms(parts, values, jax.tree.structure(self.shapes))


class PartPrograms:
    """The programs of a traced function in the order in which they are called; see `call_in_parts`."""

    def __init__(self, parts: Sequence[CompiledPart], values: Mapping[Atom, Any], tree: Any) -> None:
        self._parts, self._values, self._tree = parts, values, tree

    def compile_ahead(self, threads: Executor) -> None:
        """Compile all programs in other threads. Each call waits for its own."""
        # Arguments committed to a device commit their results as well, which shapes do not show.
        if any(isinstance(x, jax.core.Tracer) or getattr(x, "committed", False) for x in self._values.values()):
            return
        for program, part in {id(program): (program, part) for program, part in self._parts}.values():
            compile_ahead(program, threads, *(_known(x, self._values) for x in part.inputs))

    def __call__(self) -> PyTree:
        """Return the results of the function."""
        return jax.tree.unflatten(self._tree, _call(self._parts, self._values))


def with_barriers(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return the function with barriers around its random draws, so that XLA does not fuse their last multiplication
    with the next one, which rounds differently.

    >>> key = jax.random.key(0)
    >>> make = lambda key: jax.random.normal(key, 99) * jax.numpy.sqrt(1 / 7)
    >>> print((jax.jit(make)(key) == make(key)).all(), (jax.jit(with_barriers(make))(key) == make(key)).all())
    False True
    """

    def separated(*arguments: PyTree) -> PyTree:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        if traced.effects:
            return function(*arguments)
        results = _call_inline(traced.jaxpr, [*traced.consts, *jax.tree.leaves(arguments)])
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return separated


def _with_barrier(program: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return the program with a barrier behind its results, but for random keys: they are integers, which nothing
    rounds, and `jax.debug_key_reuse` takes those behind a barrier for used ones.
    """

    def separated(*inputs: Any) -> list[Any]:
        results = program(*inputs)
        numbers = iter(jax.lax.optimization_barrier([x for x in results if not is_key(x)]))
        return [x if is_key(x) else next(numbers) for x in results]

    return separated


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a program.

    Attributes:
      function: a function of the values of `inputs` that returns a list.
      inputs, outputs: the inputs and outputs of the part in the whole program.
      kind: a key that is equal for parts with the same function.
    """

    function: Callable[..., list[Any]]
    inputs: Sequence[Atom]
    outputs: Sequence[Atom]
    kind: Hashable = None

    @classmethod
    def of(cls, jaxpr: Jaxpr, equations: list[JaxprEqn], outputs: Sequence[Atom]) -> "_Part":
        """Return the part with these equations."""
        own = {x for equation in equations for x in equation.outvars}
        read = [x for equation in equations for x in equation.invars] + [*outputs]
        inputs = list(dict.fromkeys(x for x in read if not isinstance(x, Literal) and x not in own))
        part = jaxpr.replace(constvars=[], invars=inputs, outvars=[*outputs], eqns=equations)
        return cls(functools.partial(jax.core.eval_jaxpr, part, []), inputs, outputs)


def _single(jaxpr: Jaxpr, compiled: Compiled) -> CompiledPart:
    """Return one program of everything, with barriers behind its draws."""

    def all_parts(*inputs: Any) -> list[Any]:
        return _call_inline(jaxpr, inputs)

    return compiled(jax.jit(all_parts)), _Part(all_parts, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars)


def _call_inline(jaxpr: Jaxpr, inputs: Sequence[Any]) -> list[Any]:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True))
    return _call(_compiled_parts(jaxpr, _with_barrier), values)


def _compiled_parts(jaxpr: Jaxpr, compiled: Compiled) -> Iterator[CompiledPart]:
    """Yield the parts in the order in which they are called, with their programs."""
    programs: dict[Hashable, Any] = {}
    for between, draws in _steps(jaxpr):
        yield compiled(jax.jit(between.function)), between
        for draw in draws:
            if draw.kind not in programs:
                programs[draw.kind] = compiled(jax.jit(draw.function))
            yield programs[draw.kind], draw


def _call(parts: Iterable[CompiledPart], values: Mapping[Atom, Any]) -> list[Any]:
    """Call the parts, and return the results of the last one. `values`: the values of the variables so far."""
    values, results = dict(values), list[Any]()
    for program, part in parts:
        results = program(*(_known(x, values) for x in part.inputs))
        values.update((x, y) for x, y in zip(part.outputs, results, strict=True) if not isinstance(x, Literal))
    return results


def _known(atom: Atom, values: Mapping[Atom, Any]) -> Any:
    """Return the value of an atom, or its shape if the value is not known yet."""
    if isinstance(atom, Literal):
        return _array(atom)
    if atom in values:
        return values[atom]
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype, weak_type=atom.aval.weak_type)


def _array(literal: Any) -> np.ndarray:
    return np.asarray(literal.val, literal.aval.dtype)


def _steps(jaxpr: Jaxpr) -> Iterator[tuple[_Part, list[_Part]]]:
    """Yield pairs of the computation before a group of independent draws, and these draws. The last pair has the
    results and no draws.
    """
    depths: dict[Atom, int] = collections.defaultdict(int)  # the number of consecutive draws that lead to a value
    step_of: list[int] = []
    for equation in jaxpr.eqns:
        step_of.append(max((depths[x] for x in _variables(equation)), default=0))
        depths.update(dict.fromkeys(equation.outvars, step_of[-1] + _is_draw(equation)))
    # Everything but draws belongs to the first step that needs it, so most of it is in the last program.
    last = max(depths.values(), default=0)
    needed: dict[Atom, int] = collections.defaultdict(lambda: last)
    for index, equation in reversed(list(enumerate(jaxpr.eqns))):
        if not _is_draw(equation):
            step_of[index] = min((needed[x] for x in equation.outvars), default=last)
        needed.update({x: min(needed[x], step_of[index]) for x in _variables(equation)})
    for step in range(last + 1):
        here = [equation for equation, at in zip(jaxpr.eqns, step_of, strict=True) if at == step]
        between = [equation for equation in here if not _is_draw(equation)]
        results = jaxpr.outvars if step == last else [x for equation in between for x in equation.outvars]
        yield _Part.of(jaxpr, between, results), [_draw(equation) for equation in here if _is_draw(equation)]


def _variables(equation: JaxprEqn) -> list[Atom]:
    return [x for x in equation.invars if not isinstance(x, Literal)]


def _is_draw(equation: JaxprEqn) -> bool:
    name = equation.primitive.name
    return name in OF_KEYS or (name in ("jit", "pjit") and _draws(equation))


def _draws(equation: JaxprEqn) -> bool:
    """Return True if there is a draw in an equation, at any depth."""
    inner = programs_in(equation)
    return equation.primitive.name in OF_KEYS or any(_draws(inside) for jaxpr in inner for inside in jaxpr.eqns)


def _draw(equation: JaxprEqn) -> _Part:
    """Return a draw as a function of all its inputs. Literals of the program are inputs, too, so that XLA does not fold
    them into it.
    """
    primitive, params, types = equation.primitive, equation.params, [str(x.aval) for x in equation.invars]
    if primitive.name in OF_KEYS:
        function = lambda *inputs: [primitive.bind(*inputs, **params)]  # noqa: E731
        return _Part(function, equation.invars, equation.outvars, (primitive.name, str(types), str(params)))
    # JAX traces a jitted function once for arguments of the same types.
    inner = params["jaxpr"]
    function = functools.partial(jax.core.eval_jaxpr, inner.jaxpr, inner.consts)
    return _Part(function, equation.invars, equation.outvars, (id(inner), str(types)))
