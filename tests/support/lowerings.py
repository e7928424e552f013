"""Lower equal programs once per process.

Every run traces and lowers its programs before `learner.util.executables` finds them compiled. Lowering took a third of
the processor time of a small run; comparing programs takes a tenth of that.
"""

import collections
import threading
import weakref

import numpy as np
from jax._src import config, core, literals
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir

MOST = 512  # modules in memory
IGNORED = {  # rules of differentiation, which lowering does not read
    "custom_jvp_call": {"jvp_jaxpr_fun"},
    "custom_vjp_call": {"fwd_jaxpr_thunk", "bwd"},
}
LOWER, PRINT = mlir.lower_jaxpr_to_module, mlir.module_to_string

_lowered = collections.OrderedDict()  # the result, its bytecode and its texts, by the key of a program
_texts = weakref.WeakKeyDictionary()  # by module
_lock = threading.Lock()


class UnknownError(Exception):
    """Raised for a program that cannot be compared with others."""


def share():
    """Let JAX lower and print equal programs once."""
    mlir.lower_jaxpr_to_module, mlir.module_to_string = lower_once, print_once


def clear():
    """Drop all lowered programs."""
    with _lock:
        _lowered.clear()


def lower_once(name, jaxpr, **options):
    """Lower a program, or copy the module of an equal one: JAX compiles each module object only once."""
    try:
        key = name, config.trace_context(), _program_key(jaxpr), _value_key(options)
        hash(key)
    except (UnknownError, TypeError):
        return LOWER(name, jaxpr, **options)
    with _lock:
        if key in _lowered:
            _lowered.move_to_end(key)
            result, bytecode, texts = _lowered[key]
            copy = ir.Module.parse(bytecode, result.module.context)
            _texts[copy] = texts
            return result._replace(module=copy)
    result = LOWER(name, jaxpr, **options)
    if not result.keepalive and not result.host_callbacks:
        with _lock:
            texts = _texts[result.module] = {}
            _lowered[key] = result, mlir.module_to_bytecode(result.module), texts
            if len(_lowered) > MOST:
                _lowered.popitem(last=False)
    return result


def print_once(module, enable_debug_info=None):
    """Print a module, or return the text of an equal one."""
    texts = _texts.get(module, {})
    if enable_debug_info not in texts:
        texts[enable_debug_info] = PRINT(module, enable_debug_info)
    return texts[enable_debug_info]


def _program_key(closed):
    """Return a value that is equal for programs that lower to equal modules."""
    if closed.effects:
        raise UnknownError
    return _jaxpr_key(closed.jaxpr), tuple(map(_array_key, closed.consts))


def _jaxpr_key(jaxpr):
    numbers = {variable: n for n, variable in enumerate((*jaxpr.constvars, *jaxpr.invars))}
    inputs = tuple(variable.aval for variable in numbers)
    equations = []
    for eqn in jaxpr.eqns:
        read = tuple(_atom_key(x, numbers) for x in eqn.invars)
        for variable in eqn.outvars:
            numbers[variable] = len(numbers)
        ignored = IGNORED.get(eqn.primitive.name, ())
        params = tuple((name, _value_key(value)) for name, value in eqn.params.items() if name not in ignored)
        written = tuple(variable.aval for variable in eqn.outvars)
        equations.append((eqn.primitive, read, written, params, eqn.ctx, eqn.source_info.name_stack))
    return len(jaxpr.constvars), inputs, tuple(equations), tuple(_atom_key(x, numbers) for x in jaxpr.outvars)


def _atom_key(atom, numbers):
    return (atom.aval, _value_key(atom.val)) if isinstance(atom, core.Literal) else numbers[atom]


def _array_key(array):
    if isinstance(array, np.ndarray | np.generic) and not array.dtype.hasobject:
        return type(array), array.dtype, array.shape, array.tobytes()
    raise UnknownError


def _value_key(value):
    """Return a value that is equal for equal parameters. Numbers of different types, and signed zeros, differ."""
    if isinstance(value, float | complex):
        return type(value), repr(value)
    if isinstance(value, tuple | list):
        return type(value), *map(_value_key, value)
    if isinstance(value, dict):
        return dict, *((key, _value_key(x)) for key, x in value.items())
    if isinstance(value, core.ClosedJaxpr):
        return _program_key(value)
    if isinstance(value, core.Jaxpr):
        return _jaxpr_key(value)
    if isinstance(value, literals.TypedNdArray):
        return literals.TypedNdArray, value.weak_type, _array_key(np.asarray(value))
    if isinstance(value, np.ndarray | np.generic):
        return _array_key(value)
    if isinstance(value, core.Tracer) or hasattr(value, "addressable_shards"):
        raise UnknownError
    return type(value), value
