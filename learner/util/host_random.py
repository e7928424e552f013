"""Random generators of the host. Numbers that a traced function draws from them are constants of its program."""

import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import numpy as np

GENERATORS = np.random.Generator | np.random.RandomState | random.Random


def generator_states(functions: Iterable[Callable[..., Any]]) -> dict[tuple[str, int], Any]:
    """Return the states of the generators that functions can draw from, by name and identity: the global generators of
    NumPy and Python, and generators that a function's code names. An unknown state is None.

    >>> rng = np.random.default_rng(0)
    >>> functions = [lambda x: x + rng.normal()]
    >>> before = generator_states(functions)
    >>> _ = rng.normal(), random.random()
    >>> after = generator_states(functions)
    >>> [name for (name, _), state in before.items() if after[name, _] != state]
    ['random', 'rng']
    """
    states = {("np.random", 0): _state(np.random), ("random", 0): _state(random)}
    for function in functions:
        for name, value in _variables(function):
            if isinstance(value, GENERATORS):
                states[name, id(value)] = _state(value)
    return states


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of attributes, closure variables and globals that the code of a function names."""
    while isinstance(function, functools.partial):
        function = function.func
    yield from getattr(getattr(function, "__self__", function), "__dict__", {}).items()
    with contextlib.suppress(ValueError):  # from an endless chain of wrappers
        function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is empty until the variable is assigned
            yield name, cell.cell_contents
    yield from ((name, function.__globals__[name]) for name in _names(code) if name in function.__globals__)


def _names(code: CodeType) -> set[str]:
    """Return the names in the code of a function and of the functions defined in it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names}.union(*map(_names, inner))


def _state(generator: Any) -> Any:
    try:
        if isinstance(generator, np.random.Generator):
            return _frozen(generator.bit_generator.state)
        if hasattr(generator, "get_state"):
            return _frozen(generator.get_state(legacy=False))
        return generator.getstate()
    except Exception:  # from a generator of system entropy, or a user's generator
        return None


def _frozen(state: Any) -> Any:
    """Return a state with comparable values in place of arrays."""
    if isinstance(state, dict):
        return {name: _frozen(value) for name, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state
