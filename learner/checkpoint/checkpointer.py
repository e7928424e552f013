"""Checkpoints for custom training loops: any tree of arrays, by step.

They are written as in `fit`: with checksums, first under a temporary name, and renamed once complete. The newest are
kept, and optionally the best.
"""

import dataclasses
import math
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsIndex

import jax
import numpy as np

from learner.checkpoint.items import loaded_leaves, stored_leaves
from learner.checkpoint.manifest import DamagedError
from learner.checkpoint.retention import CheckpointOptions, Retention
from learner.checkpoint.store import FORMAT, CheckpointStore
from learner.errors import LearnerError
from learner.util.addresses import is_address, refuse_store
from learner.util.number_checks import check_int
from learner.util.text import join_names, short
from learner.util.trees import named_leaves
from learner.util.user_warnings import warn

PyTree = Any
SHOWN = 5  # arrays that an error names
NO_NUMBERS = "OSUmM"  # kinds of NumPy's dtypes: objects, texts, times
PYTHON_NUMBERS = (bool, int, float, complex)  # and no subclass, such as an IntEnum


@dataclasses.dataclass(frozen=True)
class RestoredState:
    """The state and the metadata that `Checkpointer.restore` returns.

    Attributes:
      step: the step of the checkpoint.
      state: a new tree with the arrays and numbers of the checkpoint.
      info: the saved `info`.
      score: the saved `score`.
    """

    step: int
    state: Any
    info: Mapping[str, Any]
    score: float | None


class Checkpointer:
    """Save and restore `(step, state)` in one process.

    A state is any pytree: a `TrainState`, a model, a dict of models and optimizer states. JAX and NumPy arrays of any
    numeric dtype, random keys and Python numbers are saved; everything else (functions, texts) comes from the tree
    passed to `restore`. `save` waits until the checkpoint is complete.

    Args:
      directory: the directory of the checkpoints, or `gs://...` (with gcsfs).
      keep_last: the number of newest checkpoints to keep.
      keep_best: the number of best checkpoints by `score` to keep as well.
      higher_is_better: the direction of `score`.

    >>> import tempfile
    >>> with Checkpointer(tempfile.mkdtemp(), keep_last=1) as checkpointer:
    ...     checkpointer.save(10, {"w": np.float32([1, 2])}, info={"epoch": 1})
    ...     checkpointer.save(20, {"w": np.float32([3, 4])}, info={"epoch": 2})
    ...     restored = checkpointer.restore({"w": np.zeros(2, np.float32)})
    >>> print(restored.step, restored.state["w"], restored.info["epoch"], checkpointer.steps)
    20 [3. 4.] 2 [20]
    """

    def __init__(
        self, directory: str | Path, keep_last: int = 2, keep_best: int = 0, *, higher_is_better: bool = False
    ):
        options = CheckpointOptions(keep_last, keep_best)  # which checks them
        refuse_store(directory)
        path = directory if is_address(directory) else Path(directory).absolute()
        keep = Retention(options.keep_last, options.keep_best, None, higher_is_better)
        self._store, self._higher_is_better = CheckpointStore(path, keep), higher_is_better
        self._is_prepared = False
        self._damaged: set[int] = set()  # steps of checkpoints that `restore` has skipped

    @property
    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first."""
        return self._store.steps

    def save(
        self, step: int, state: PyTree, *, score: float | None = None, info: Mapping[str, Any] | None = None
    ) -> None:
        """Write a checkpoint, and remove those that are no longer kept.

        Args:
          step: the number of the checkpoint, 0 or more.
          state: a tree of arrays.
          score: the value for `keep_best`; NaN means no score.
          info: further JSON data that a loop needs to resume: the epoch, the position in the data.

        Raises:
          LearnerError: there already is a checkpoint of this or a later step, or the state has nothing to save, or
            arrays of texts or objects.
          TypeError: `info` is not JSON-serializable.
        """
        step = check_int("the step of a checkpoint", step, least=0, code="checkpoint-step-value")
        # Older than another, it would be the first that retention removes: with this save.
        if newer := [number for number in self._store.steps if number > step and number not in self._damaged]:
            raise LearnerError(
                f"there is a checkpoint of step {newer[-1]} in {self._store.place.root}, and step {step} comes "
                f"before it: restore the newest one and continue from there, or call rewind({step}), which removes the "
                "later ones",
                code="checkpoint-step-behind",
                step=step,
                newest=newer[-1],
            )
        arrays, plain = _arrays_and_numbers(state)
        if not arrays:
            raise LearnerError(
                f"there are no arrays in the state, so nothing can be saved: it is {type(state).__name__}",
                code="checkpoint-state-empty",
            )
        number = None if score is None else float(score)
        progress = {
            "format": FORMAT,
            "step": step,
            "score": number if number is not None and math.isfinite(number) else None,
            "higher_is_better": self._higher_is_better,
            "info": dict(info or {}),
            "numbers": {name: repr(x) for name, x in plain.items()},  # JSON has no NaN
        }
        # Not each time, as it lists the directory.
        if not (self._is_prepared and os.path.isdir(self._store.place.root)):
            self._store.prepare()
            self._is_prepared = True
        for number in self._store.steps:
            if number >= step and number in self._damaged:
                self._store.remove(number)
        self._store.save(step, {"model": {"state": stored_leaves(arrays)}}, progress)

    def rewind(self, step: int) -> None:
        """Remove the checkpoints of later steps, to continue from this one, or with 0 to start over."""
        for number in self._store.steps:
            if number > step:
                self._store.remove(number)

    def restore(self, like: PyTree, step: int | str = "latest") -> RestoredState:
        """Read a checkpoint.

        Args:
          like: a tree with the same structure, shapes and dtypes. The new arrays are placed on the devices of its
            arrays; NumPy arrays are restored as new NumPy arrays.
          step: its number, `"latest"` or `"best"`; without any score, `"best"` is the newest. With `"latest"`, damaged
            checkpoints are skipped with a warning; the next save that comes before them removes them.

        Raises:
          DamagedError: the requested checkpoint is damaged.
          LearnerError: there is no checkpoint, or its tree differs; the message lists all differences.
        """
        if not (step in ("latest", "best") if isinstance(step, str) else _is_integer(step)):
            raise LearnerError(
                f"the step of restore(like, step) is {short(repr(step))}; it needs the number of a checkpoint, "
                "'latest' or 'best'",
                code="checkpoint-restore-step",
            )
        if not _arrays_and_numbers(like)[0]:
            raise LearnerError(
                f"the first argument of restore(like, step) is {short(repr(like))}, which has no arrays; it needs a "
                "tree such as the one that was saved",
                code="checkpoint-restore-like",
            )
        if step != "latest":
            entry = self._store.find(epoch=step) if step == "best" else self._store.find(step=int(step))
            return self._read(like, entry.step)
        for number in reversed(self._store.steps):
            try:
                if number in self._store.damaged:
                    raise DamagedError(self._store.damaged[number], code="checkpoint-damaged", step=number)
                return self._read(like, number)
            except DamagedError as error:
                self._damaged.add(number)
                warn(f"{error}; it is skipped")
        kind = "intact checkpoint" if self._store.steps else "checkpoint"
        raise LearnerError(f"there is no {kind} in {self._store.place.root}", code="checkpoint-missing")

    def _read(self, like: PyTree, step: int) -> RestoredState:
        progress = self._store.progress(step)
        arrays, plain = _arrays_and_numbers(like)
        if {"info", "numbers"} - progress.keys():
            raise LearnerError(
                f"{self._store.path(step)} is a checkpoint of a run: use learner.load_checkpoint",
                code="checkpoint-of-run",
            )
        saved = progress["numbers"]
        # Earlier checkpoints are without complex numbers, which then come from the given tree.
        plain = {name: x for name, x in plain.items() if name in saved or type(x) is not complex}
        if plain.keys() != saved.keys():
            names = ", ".join(sorted(plain.keys() ^ saved.keys()))
            raise LearnerError(
                f"the checkpoint {self._store.path(step)} and the tree differ in the numbers {names}",
                code="checkpoint-numbers-differ",
                names=names,
            )
        items = self._store.restore(step, {"model": {"state": stored_leaves(arrays)}})
        new = loaded_leaves(items["model"]["state"] or {}, arrays)
        # A NumPy scalar comes back as an array without axes.
        new |= {name: new[name][()] for name, x in arrays.items() if isinstance(x, np.generic)}
        new |= {name: _number(saved[name], x) for name, x in plain.items()}
        leaves = [new.get(name, leaf) for name, leaf in named_leaves(like).items()]
        state = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return RestoredState(step, state, progress["info"], progress["score"])

    def close(self) -> None:
        """End Orbax's threads."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _arrays_and_numbers(tree: PyTree) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays and the Python numbers of a tree, by path."""
    named = named_leaves(tree)
    if len(named) != len(jax.tree.leaves(tree)):
        raise LearnerError(
            "two leaves of the state have the same path, as {'a.b': x} and {'a': {'b': y}} would: rename",
            code="checkpoint-path-twice",
        )
    arrays = {name: x for name, x in named.items() if isinstance(x, jax.Array | np.ndarray | np.generic)}
    kinds = {name: x.dtype for name, x in arrays.items() if isinstance(x, np.ndarray | np.generic)}
    if other := [f"{name} ({dtype})" for name, dtype in kinds.items() if not _is_storable(dtype)]:
        raise LearnerError(
            f"a checkpoint holds arrays of numbers in this machine's byte order, of 64 bits at most, and the state has "
            f"others: {join_names(other, SHOWN)}; convert them, or save them as JSON in `info`",
            code="checkpoint-array-dtype",
            names=other,
        )
    return arrays, {name: x for name, x in named.items() if type(x) in PYTHON_NUMBERS}


def _is_integer(value: Any) -> bool:
    """Return True for a whole number, also one of NumPy or JAX."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:  # an array of other numbers, or with axes
        return False
    return True


def _is_storable(dtype: np.dtype[Any]) -> bool:
    is_long = dtype.char in "gG"  # long doubles
    return dtype.isnative and dtype.names is None and not is_long and dtype.kind not in NO_NUMBERS


def _number(text: str, given: Any) -> Any:
    """Return a saved number; a whole one as a float if the given number is one."""
    if text in ("True", "False"):
        return text == "True"
    if "j" in text:
        return complex(text)
    return int(text) if text.lstrip("-").isdecimal() and type(given) is not float else float(text)
