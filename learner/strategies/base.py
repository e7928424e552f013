"""What a strategy does."""

import abc
from collections.abc import Callable
from typing import Any

import numpy as np

PyTree = Any


class Strategy(abc.ABC):
    """Places arrays on devices and compiles programs for them.

    Everything that a program is given is committed to its devices once: an argument that is not would cost a
    compilation of its own.
    """

    def __init__(self) -> None:
        self._scalars: dict[int, Any] = {}

    @property
    @abc.abstractmethod
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """For the application log."""

    @abc.abstractmethod
    def place(self, tree: PyTree) -> PyTree:
        """Arrays on the devices, the same on each: state, scalars, row numbers, data that is gathered."""

    @abc.abstractmethod
    def put(self, tree: PyTree) -> PyTree:
        """A buffer of batches, NumPy arrays of the same shapes each time, on the devices."""

    @abc.abstractmethod
    def compile(self, program: Callable[..., Any], donate: tuple[int, ...] = ()) -> Any:
        """The jitted program for the devices; it compiles at its first call for each shape."""

    def scalar(self, value: int) -> Any:
        """A placed int32, from a table: placing one costs more than the dispatch it is for."""
        if value not in self._scalars:
            self._scalars[value] = self.place(np.int32(value))
        return self._scalars[value]
