"""Tracing a step on a batch, with errors that describe the batch, or name the key that it lacks."""

import dataclasses
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeGuard

import jax

from learner.errors import LearnerError
from learner.steps import batch_transforms
from learner.training.feed.group import listed
from learner.util.code_location import code_location
from learner.util.device_errors import is_device_error
from learner.util.text import join_names
from learner.util.traced_values import OF_VALUES, REMEDY, first_line

PyTree = Any
GIVEN = "the batch"  # in place of a split
CALLERS = 3  # further lines of the user's code in an error


def trace_step(once: Any, arguments: tuple[Any, ...], name: str, batch: PyTree, split: str) -> Any:
    """Return the `ClosedJaxpr` of a step.

    Args:
      once: a function that JAX has not traced before.
      arguments: its arguments, the batch last.
      name: the name of the step, in messages.
      batch: the batch that the user gave.
      split: the split of the batch, or `GIVEN`.

    Raises:
      LearnerError: the step reads a key that the batch lacks, or does not fit the batch; see `Tracing`.
    """
    try:
        with Tracing(name, split, lambda: batch):
            return jax.make_jaxpr(once)(*arguments)
    except KeyError as error:
        if missed := _missed(once, arguments):
            what, key, keys = missed
            which = "a batch" if what == "batch" else what
            if any(frame.filename == batch_transforms.__file__ for frame in traceback.extract_tb(error.__traceback__)):
                name = "on_batch"
            elif what == "batch" and set(keys) != set(batch):
                which = "on_batch returns a batch that"
            raise LearnerError(
                f"{name} reads {what}[{key!r}], which is not there; {which} has {', '.join(map(repr, keys))}",
                code="batch-missing-key",
                name=name,
                key=key,
            ) from error
        raise


def _missed(once: Any, arguments: tuple[Any, ...]) -> tuple[str, Any, list[Any]] | None:
    """Return the name of the batch's dict that lacks a key that the step reads, the key, and the existing keys, or None
    if a KeyError has another cause. The step is traced again with dicts that record missing keys; everywhere else a
    batch has plain dicts.
    """
    *others, batch = arguments
    misses: list[tuple[str, Any, list[Any]]] = []
    try:
        jax.eval_shape(lambda *given: once(*given[:-1], watched(given[-1], misses)), *others, batch)
    except KeyError as error:
        if misses and error.args == (misses[-1][1],):
            return misses[-1]
    except Exception:  # another error than before: the cause is unknown
        return None
    return None


@jax.tree_util.register_pytree_with_keys_class
class WatchedDict(dict[Any, Any]):
    """A dict of a batch that records the keys that are missing."""

    def __init__(self, content: dict[Any, Any], name: str, misses: list[tuple[str, Any, list[Any]]]):
        super().__init__(content)
        self.name, self.misses = name, misses

    def __missing__(self, key: Any) -> Any:
        self.misses.append((self.name, key, list(self)))
        raise KeyError(key)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Return the values with their keys, and the name and the list of missing keys as auxiliary data."""
        keys = sorted(self)
        return [(jax.tree_util.DictKey(key), self[key]) for key in keys], (tuple(keys), self.name, _Same(self.misses))

    @classmethod
    def tree_unflatten(cls, fixed: Any, children: Any) -> "WatchedDict":
        """Return the dict of these values."""
        keys, name, same = fixed
        return cls(dict(zip(keys, children, strict=True)), name, same.value)


@dataclasses.dataclass(frozen=True, eq=False)
class _Same:
    """A wrapper that is equal only to itself."""

    value: Any


def watched(batch: PyTree, misses: list[tuple[str, Any, list[Any]]], name: str = "batch") -> PyTree:
    """Return the batch with watched dicts, including those inside dicts, tuples and lists."""
    if type(batch) is dict:
        inner = {key: watched(value, misses, f"{name}[{key!r}]") for key, value in batch.items()}
        return WatchedDict(inner, name, misses)
    if type(batch) in (tuple, list):
        return type(batch)(watched(x, misses, f"{name}[{i}]") for i, x in enumerate(batch))
    return batch


OF_TRACED_CONSTANTS = "Computation compiled for"  # JAX's error about more inputs than the call has
OF_DEBUG_NANS = (
    "jax.debug_nans also stops at a metric that is undefined for a batch, whose value is NaN: leave metrics out to "
    "find a NaN of the model"
)


class Tracing:
    """A context manager for code that may trace a step. If the model does not fit the batch, the error describes the
    batch.

    Args:
      name: the name of the step.
      split: the split of the data, or `GIVEN`.
      batch: returns the batch, or its shapes; only called after an error.

    Raises:
      LearnerError: replaces the errors of JAX and flax about mismatched shapes, dtypes or structures. Other exceptions
        get a note, those of `jax.debug_nans`, which reports undefined metrics as well, another one.

    >>> with Tracing("train_step", "train", lambda: {"x": jax.ShapeDtypeStruct((2, 3), "float32")}):
    ...     raise TypeError("mine")
    Traceback (most recent call last):
    learner.errors.LearnerError: train_step cannot be traced with a train batch (x: float32[2, 3]): TypeError: mine ...
    """

    def __init__(self, name: str, split: str, batch: Callable[[], PyTree]) -> None:
        self._name, self._split, self._batch = name, split, batch

    def __enter__(self) -> None:
        """Do nothing, as only errors are handled."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        """Add the batch to the error."""
        # Errors of a device are about memory, hardware or other processes, and not about the step.
        if not isinstance(error, Exception) or isinstance(error, LearnerError) or is_device_error(error):
            return
        if isinstance(error, OF_VALUES):
            raise LearnerError(
                f"{self._name} needs the value of an array ({code_location(error)}), and it is traced, before there "
                f"are values: {first_line(error)}. {REMEDY}",
                code="step-needs-value",
            ) from error
        if isinstance(error, jax.errors.UnexpectedTracerError) or str(error).startswith(OF_TRACED_CONSTANTS):
            raise LearnerError(
                f"{self._name} (or a metric) uses a value that an earlier call kept, in a list, a global variable, a "
                "closure or an attribute: it was traced, and has no number. Return it instead, as a field of the "
                "output or in the model. `with jax.checking_leaks():` around the run shows what keeps it",
                code="step-keeps-tracer",
            ) from error
        if isinstance(error, RuntimeError) and "requires a key" in str(error):  # of Equinox
            raise LearnerError(
                f"{self._name} runs a layer that needs a random key ({code_location(error)}): {error} Let the step "
                "take a third argument, (model, batch, rng), and pass the model a key for each row: "
                "jax.random.split(rng, len(x))",
                code="step-needs-key",
            ) from error
        if isinstance(error, NameError) and "unbound axis name" in str(error):
            raise LearnerError(
                f"{self._name} exchanges arrays over an axis that is not mapped ({code_location(error)}): "
                f"{str(error).partition(chr(10))[0].partition('. ')[0]}. Gradients, metrics and batch statistics of "
                "several devices are averaged for you: leave pmean and psum out. With strategy(Sharded()) a step has "
                "all rows of the batch: leave all_gather, axis_index, all_to_all and ppermute out, too",
                code="step-axis-unbound",
            ) from error
        if type(error).__name__ == "TraceContextError" and "Cannot mutate" in str(error):  # of flax.nnx
            raise LearnerError(
                f"{self._name} changes an object of flax.nnx from outside of the function that JAX traces "
                f"({code_location(error)}): {str(error).partition(' (http')[0]}. {_nnx_remedy(str(error))}",
                code="step-changes-nnx-object",
            ) from error
        batch = self._batch()
        if _takes_dict_for_arrays(error, batch):
            key = error.name if error.name in batch else next(iter(batch))
            raise LearnerError(
                f"{self._name} uses the batch or one of its keys as an array: {error} "
                f"({code_location(error, callers=CALLERS)}). The batch is a dict with "
                f"{join_names([*map(repr, batch)], 8)}: read batch[{key!r}]; unpacking a dict gives its keys",
                code="batch-is-dict",
                name=self._name,
            ) from error
        which = GIVEN if self._split == GIVEN else f"a {self._split} batch"
        which = f"{which} ({listed(batch)})"
        if isinstance(error, FloatingPointError) and "(nan)" in str(error):  # not of jax.debug_infs or NumPy
            error.add_note(f"in {self._name} with {which}. {OF_DEBUG_NANS}")
            return
        # The user's exceptions keep their type, by which they may be caught.
        if not _may_be_of_shapes(error):
            error.add_note(f"while tracing {self._name} with {which}")
            return
        # Notes of this package, not those of JAX.
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()) if note.startswith("while "))
        raise LearnerError(
            f"{self._name} cannot be traced with {which}: {type(error).__name__}: {error} "
            f"({code_location(error, callers=CALLERS)}){notes}",
            code="step-trace-failed",
        ) from error


def _nnx_remedy(message: str) -> str:
    """Return the remedy for the change of an nnx object from outside, by the kind of its variable."""
    if "Opt" in message:
        return "The learner computes the gradients and updates the model: return the output with the loss only"
    if "Metric" in message:
        return "Pass the metric to metrics() of the builder, which reads the fields of the output"
    remedy = "Make the object an attribute of the model"
    if "Rng" in message:
        remedy = "Let the step take a third argument, (model, batch, rng), and draw with jax.random from this key"
    return (
        f"{remedy}. A layer of the model inside of jax.checkpoint, jax.vmap or jax.lax.scan needs nnx.remat, nnx.vmap "
        "or nnx.scan instead, with the layer as an argument"
    )


def _takes_dict_for_arrays(error: Exception, batch: PyTree) -> TypeGuard[AttributeError]:
    """Return True if an attribute is missing in a dict with the batch's keys, or in one of the keys."""
    if not isinstance(error, AttributeError) or not isinstance(batch, dict):
        return False
    owner = error.obj
    return owner.keys() == batch.keys() if isinstance(owner, dict) else isinstance(owner, str) and owner in batch


def _may_be_of_shapes(error: Exception) -> bool:
    """Return True for the exceptions that JAX and flax raise if shapes, dtypes or structures do not match."""
    # Not imported here, as models of other libraries do not need flax.
    flax = sys.modules.get("flax.errors")
    return isinstance(error, TypeError | ValueError) or (flax is not None and isinstance(error, flax.FlaxError))
