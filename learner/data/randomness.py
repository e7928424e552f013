"""The order of an iterable that shuffles by itself: its random generators, and its method `set_epoch`.

A checkpoint stores the states that the generators had when the epoch began, so that the epoch can be repeated.
Generators are found among the attributes of the iterable and of its `sampler`, `batch_sampler` and `dataset` (the names
of PyTorch's `DataLoader`), among the outer variables that a function uses, and in small containers there:
`torch.Generator`, NumPy's `Generator` and `RandomState`, Python's `random.Random`. The global generators of those
libraries are not touched. Loaders of ours count as generators, too: their order depends on the number of iterations.
"""

import contextlib
import functools
import inspect
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

MOST_IN_CONTAINER = 64  # a longer one holds data
_PARTS = ("", "sampler", "batch_sampler", "batch_sampler.sampler", "dataset")


def generators_of(data: Any) -> dict[str, Any]:
    """Return the random generators of an iterable by the names of their attributes.

    >>> class Shuffled:
    ...     def __init__(self):
    ...         self.rng, self.size = np.random.default_rng(0), 4
    >>> list(generators_of(Shuffled()))
    ['rng']
    """
    found: dict[str, Any] = {}
    for prefix, part in _parts(data):
        for name, value in _generators_in(getattr(part, "__dict__", {})).items():
            if not any(value is other for other in found.values()):
                found[f"{prefix}.{name}" if prefix else name] = value
    return found


def generators_of_function(function: Any) -> dict[str, Any]:
    """Return the random generators that a function uses, by name: variables of modules and of functions around it, the
    arguments of a `functools.partial`, and attributes of the object of a method.

    >>> rng = np.random.default_rng(0)
    >>> list(generators_of_function(lambda: rng.permutation(3)))
    ['rng()']
    """
    found: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        given = {**{str(i): value for i, value in enumerate(function.args)}, **function.keywords}
        found = _generators_in(given)
        return {f"{name}()": value for name, value in found.items()} | generators_of_function(function.func)
    if inspect.ismethod(function):
        found = generators_of(function.__self__)
        function = function.__func__
    if inspect.isfunction(function):
        with contextlib.suppress(ValueError):  # a variable around it has no value yet
            variables = inspect.getclosurevars(function)
            found |= _generators_in({**variables.globals, **variables.nonlocals})
    return {f"{name}()": value for name, value in found.items()}


def states_of(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the generators' states."""
    return {name: _state_of(generator) for name, generator in generators.items()}


def restore(generators: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Set generators to the states that `states_of` returned.

    Raises:
      Exception: one of the generators is missing, or does not accept its state.

    >>> generators = {"rng": np.random.default_rng(3)}
    >>> states = states_of(generators)
    >>> first = generators["rng"].random()
    >>> restore(generators, states)
    >>> generators["rng"].random() == first
    True
    """
    for name, state in states.items():
        _set_state(generators[name], state)


def set_epoch(data: Any, epoch: int) -> bool:
    """Call `set_epoch` of an iterable and of its parts with the number of the epoch, which they count from 0. Return
    True if one has the method.
    """
    methods = [method for _, part in _parts(data) if callable(method := getattr(part, "set_epoch", None))]
    for method in methods:
        method(epoch - 1)
    return bool(methods)


def restart_loaders(generators: Mapping[str, Any]) -> None:
    """Make the next iteration of loaders of ours the first one, as in a run that gets the loader itself."""
    for generator in generators.values():
        if _is_loader(generator):
            generator.iterations = 0


def draws(generators: Mapping[str, Any]) -> bool:
    """Return True if there are random generators, apart from loaders."""
    return not all(map(_is_loader, generators.values()))


def _generators_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generators among values by name, and in the containers among them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        items: dict[Any, Any] = {}
        if isinstance(value, dict | list | tuple) and len(value) <= MOST_IN_CONTAINER:
            items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
        named = {name: value, **{f"{name}.{key}": item for key, item in items.items()}}
        found |= {key: item for key, item in named.items() if _is_generator(item)}
    return found


def _parts(data: Any) -> Iterator[tuple[str, Any]]:
    for path in _PARTS:
        part = data
        for name in filter(None, path.split(".")):
            part = getattr(part, name, None)
        if part is not None:
            yield path, part


def _is_generator(value: Any) -> bool:
    try:
        is_known = isinstance(value, np.random.Generator | np.random.RandomState | random.Random)
        return is_known or _is_loader(value) or _is_torchs(value)
    except Exception:  # from a proxy whose object does not exist now
        return False


def _is_loader(value: Any) -> bool:
    return getattr(type(value), "counts_iterations", False) is True


def _is_torchs(value: Any) -> bool:
    methods = ("get_state", "set_state", "manual_seed")
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in methods)


def _state_of(generator: Any) -> Any:
    match generator:
        case np.random.Generator():
            return generator.bit_generator.state
        case np.random.RandomState():
            return generator.get_state(legacy=False)
        case random.Random():
            return generator.getstate()
    if _is_loader(generator):
        return generator.iterations
    state = generator.get_state()
    return np.asarray(state) if hasattr(state, "new_tensor") else state


def _set_state(generator: Any, state: Any) -> None:
    match generator:
        case np.random.Generator():
            generator.bit_generator.state = state
        case np.random.RandomState():
            generator.set_state(state)
        case random.Random():
            generator.setstate(state)
        case _ if _is_loader(generator):
            generator.iterations = int(state)
        case _:
            now = generator.get_state()
            # The new tensor is made from an existing one, so that PyTorch need not be imported.
            generator.set_state(now.new_tensor(state.tolist()) if hasattr(now, "new_tensor") else state)
