"""Random generators of the host. What a traced function draws from them is a constant of its program."""

import inspect
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

GENERATORS = np.random.Generator | np.random.RandomState | random.Random


def generator_states(functions: Iterable[Callable[..., Any]]) -> dict[str, Any]:
    """Return the states of the generators that functions can draw from, by name: the global ones of NumPy and Python,
    and those that the code of a function names.

    >>> rng = np.random.default_rng(0)
    >>> functions = [lambda x: x + rng.normal()]
    >>> before = generator_states(functions)
    >>> _ = rng.normal(), random.random()
    >>> after = generator_states(functions)
    >>> [name for name in before if before[name] != after[name]]
    ['random', 'rng']
    """
    states = {"np.random": _mersenne_twister(np.random.get_state()), "random": random.getstate()}
    for function in functions:
        try:
            variables = inspect.getclosurevars(inspect.unwrap(function))
        except TypeError:  # of an object that is called
            continue
        for name, value in {**variables.globals, **variables.nonlocals}.items():
            if isinstance(value, GENERATORS):
                states[name] = _state(value)
    return states


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return str(generator.bit_generator.state)
    return generator.getstate() if isinstance(generator, random.Random) else _mersenne_twister(generator.get_state())


def _mersenne_twister(state: Any) -> Any:
    _, words, *rest = state
    return words.tobytes(), rest
