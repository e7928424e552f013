"""User hooks: their arguments and their results."""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError
from learner.events import SamplesLogged
from learner.models.params import trainable_params
from learner.runs.appended import shortest
from learner.runs.file_names import file_name
from learner.steps.step_definition import changed_attributes
from learner.training.checks.agreement import digest
from learner.training.number_log import NumberLog
from learner.training.programs.executor import Runner
from learner.training.progress.position import Position
from learner.training.reporting.reporter import Reporter
from learner.training.stopping import StopController
from learner.training.validation import Validator
from learner.util.number_checks import is_finite
from learner.util.samples import Histogram, Image, Sample
from learner.util.text import join_names, printable
from learner.util.trees import gathered, named_leaves

UPDATE = "update"
"""The journal event about a hook's changes."""
CHECKED_CALLS = 3  # of each hook, in which its changes of the model are noticed: a comparison may take long
LONGEST_SHOWN = 500  # characters of a hook's result


@dataclasses.dataclass(frozen=True)
class EpochInfo:
    """The arguments of a hook.

    Attributes:
      epoch: the epoch that ended, or the current one.
      step: the number of optimizer steps so far.
      values: the newest value of every metric, by key, from the last epoch or validation that ended. Empty before the
        first has ended.
    """

    epoch: int
    step: int
    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Updates:
    """The result of a hook that changes the run. Changes apply before the next step. The checkpoint of this step
    contains them, so a resumed run has them or calls the hook again. In a run of several processes, all must return the
    same: another `lr_scale` or `model` ends them with an error before the next validation or save.

    Attributes:
      model: the hook's model, with other values in its arrays. The optimizer's state is kept.
      lr_scale: the factor of the builder's learning rate, a number or a schedule, from here on, 0 or more; at the start
        of a run it is 1. (`TrainState.lr_scale` is the product if the rate is a number.)
      values: values to log, as a hook without updates returns them.
      stop: a reason to end the run before the next step, with a checkpoint; None, or False, to continue.

    >>> def halve(info, model):
    ...     return Updates(lr_scale=0.5) if info.epoch == 10 else None
    """

    model: Any = None
    lr_scale: float | None = None
    values: Mapping[str, Any] | None = None
    stop: str | bool | None = None


class HookCaller:
    """Call the hooks of a run, apply the returned updates, and log the values. It belongs to the loop's thread.

    Args:
      runner: the state that hooks see, and may change.
      reporter: logs the values that are no numbers, as samples.
      numbers: logs the numbers.
      stop: the controller that a hook may ask to end the run.
      validator: may set the learning rate, which hooks then cannot scale.
    """

    def __init__(
        self, runner: Runner, reporter: Reporter, numbers: NumberLog, stop: StopController, validator: Validator
    ) -> None:
        self._runner, self._reporter, self._numbers = runner, reporter, numbers
        self._stop, self._validator = stop, validator
        self._calls: collections.Counter[int] = collections.Counter()
        self._changing: set[int] = set()
        self._shared: set[tuple[str, bool]] = set()
        self._warned: set[int] = set()

    def call(self, hooks: Sequence[Callable[..., Any]], p: Position, at_step: int | None) -> None:
        """Call each hook with `(info, model)`."""
        if not hooks:
            return
        if self._stop.records is not None:
            self._stop.records.call_hooks()
        numbers: dict[str, float] = {}
        samples: dict[str, Sample] = {}
        sources: dict[tuple[str, bool], Callable[..., Any]] = {}
        info = EpochInfo(p.epoch, p.step, self._reporter.newest())
        # After `newest`, which waits: the steps before the hook may have ended the run.
        if self._reporter.halted is not None:
            return
        model = self._runner.model()
        for hook in hooks:
            self._calls[id(hook)] += 1
            is_checked = self._calls[id(hook)] <= CHECKED_CALLS and id(hook) not in self._changing
            before = self._runner.arrays_of(model) if is_checked else {}
            attributes = self._runner.attributes_of(model) if self._calls[id(hook)] <= CHECKED_CALLS else {}
            returned = hook(info, model)
            is_returned = isinstance(returned, Updates) and returned.model is not None
            if before and not is_returned and self._changes(hook, before, model):
                self._changing.add(id(hook))
            if isinstance(returned, Updates):
                self._update(returned, hook, p)
                self._warn_of_attributes(returned, hook, attributes)
            # The next hook gets the current model, with arrays that no dispatch donates.
            if isinstance(returned, Updates) or id(hook) in self._changing:
                model = self._runner.model()
            returned = returned.values if isinstance(returned, Updates) else returned
            for name, value in _values(hook, returned).items():
                key = name, isinstance(value, float)  # numbers and samples have their own files
                if sources.get(key, hook) is not hook and key not in self._shared:
                    self._shared.add(key)
                    names = " and ".join(map(_name_of, (sources[key], hook)))
                    self._reporter.warn(
                        f"the hooks {names} return {name!r} at the same step, and only the last is logged"
                    )
                sources[key] = hook
                if isinstance(value, float):
                    numbers[name] = value
                else:
                    samples[name] = value
        self._numbers.log(numbers, p, at_step)
        if samples:
            self._reporter.put(SamplesLogged(time.time(), p.epoch, p.step, samples))

    def _update(self, updates: Updates, hook: Callable[..., Any], p: Position) -> None:
        name, scale = _name_of(hook), updates.lr_scale
        if scale is not None and not (is_finite(scale) and scale >= 0):
            raise LearnerError(
                f"the hook {name} returned Updates with lr_scale {scale!r}; it needs a number, 0 or more",
                code="step-hook-lr-scale",
                name=name,
            )
        # Of a condition, `value < bound and "why"`, False remains.
        stop = None if isinstance(updates.stop, bool | np.bool_) and not updates.stop else updates.stop
        if not (stop is None or (isinstance(stop, str) and stop)):
            raise LearnerError(
                f"the hook {name} returned Updates with stop {_shown(stop)}; it needs a text, the reason, or None",
                code="step-hook-stop",
                name=name,
            )
        if scale is not None and self._validator.sets_lr:
            raise LearnerError(
                f"the hook {name} returned Updates with lr_scale, and ReduceOnPlateau sets the learning rate: use one "
                "of them",
                code="step-hook-plateau",
                name=name,
            )
        if updates.model is not None:
            self._runner.replace_model(updates.model)
        if scale is not None:
            self._runner.scale_lr(scale)
            # Checkpoints contain the position: a resumed run scales its builder's learning rate by this factor.
            p.lr_factor = float(scale)
        replaced = updates.model is not None
        if replaced or scale is not None:
            self._reporter.journal(UPDATE, epoch=p.shown_epoch, step=p.step, hook=name, model=replaced, lr_scale=scale)
        if stop is not None:
            self._stop.decide(f"hook {name}: {printable(str(stop))}")
        if self._stop.records is not None and (replaced or scale is not None or stop is not None):
            self._stop.records.add_updates(name, p.step, self._described(updates, stop))

    def _described(self, updates: Updates, stop: str | None) -> dict[str, Any]:
        """Return what all processes must have changed alike, as JSON."""
        changes: dict[str, Any] = {}
        if updates.lr_scale is not None:
            changes["lr_scale"] = float(updates.lr_scale)
        if updates.model is not None:
            changes["model"] = f"<checksum {digest(self._runner.arrays_of(updates.model), sampled=True):08x}>"
        if stop is not None:
            changes["stop"] = True  # the texts of the reasons may differ, and that of one process counts
        return changes

    def _warn_of_attributes(self, updates: Updates, hook: Callable[..., Any], before: dict[str, Any]) -> None:
        """Warn once about attributes of a returned model that are no variables, and which the hook has changed."""
        if updates.model is None or not before or id(hook) in self._warned:
            return
        changed = changed_attributes(before, self._runner.attributes_of(updates.model))
        if changed:
            self._warned.add(id(hook))
            self._reporter.warn(
                f"the hook {_name_of(hook)} returned its model with another {join_names(changed, 4)}, which has no "
                "effect: attributes that are not variables are constants of the compiled programs. Keep the value in "
                "a variable that __init__ creates, such as nnx.Variable(jnp.array(0.5))"
            )

    def _changes(self, hook: Callable[..., Any], before: Mapping[str, Any], model: Any) -> bool:
        """Return True if a hook has changed its model, which it did not return, and warn about it once."""
        # The identity first: few hooks assign arrays, such as those that call the model in `nnx.jit`.
        pairs = {path: (before[path], x) for path, x in self._runner.arrays_of(model).items() if path in before}
        assigned = {path: pair for path, pair in pairs.items() if pair[0] is not pair[1]}
        changed = [path for path, pair in assigned.items() if not _are_equal(*pair)]
        if changed:
            self._reporter.warn(
                f"the hook {_name_of(hook)} changed {join_names(changed, 4)} of its model, which is a copy: to train "
                "on with these values, return learner.Updates(model=model). Ignore this warning if only the hook needs "
                "them"
            )
        return bool(changed)


def _are_equal(a: Any, b: Any) -> bool:
    # A comparison over several processes would wait for those whose hook changes nothing.
    if not all(getattr(x, "is_fully_addressable", True) for x in (a, b)):
        return True
    a, b = np.asarray(a), np.asarray(b)
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc" and b.dtype.kind in "fc"))


def parameter_histograms(info: EpochInfo, model: Any) -> dict[str, Histogram]:
    """Return a histogram of each trained parameter by path: a hook, for `builder.every(1000, parameter_histograms)`.

    >>> histograms = parameter_histograms(EpochInfo(1, 10, {}), {"w": np.float32([0, 1, 1]), "n": np.int32(3)})
    >>> {name: int(histogram.counts[-1]) for name, histogram in histograms.items()}
    {'w': 2}
    """
    return {name: Histogram(gathered(x)) for name, x in named_leaves(trainable_params(model)).items() if np.size(x)}


def _values(hook: Callable[..., Any], returned: Any) -> dict[str, float | Sample]:
    """Return the values in the result of a hook by name: numbers and samples."""
    if returned is None:
        return {}
    try:
        items = dict(returned)
    except (TypeError, ValueError):
        raise _refused(hook, _shown(returned)) from None
    for name in map(str, items):
        _check_name(hook, name)
    return {str(name): _value(hook, name, value) for name, value in items.items()}


def _check_name(hook: Callable[..., Any], name: str) -> None:
    """Raise `LearnerError` for a value's name that cannot be a file name: the reporter's error would not name the
    hook.
    """
    try:
        file_name(name)
    except LearnerError as error:
        raise LearnerError(
            f"the hook {_name_of(hook)} returned a value named {name!r}, and a file is named after it: "
            f"{error.fields['reason']}",
            code="run-metric-name-unusable",
            name=name,
            reason=error.fields["reason"],
            hook=_name_of(hook),
        ) from None


def _value(hook: Callable[..., Any], name: Any, value: Any) -> float | Sample:
    if isinstance(value, str | Image | Histogram):
        return value
    try:
        return shortest(value)
    except (TypeError, ValueError, OverflowError):  # OverflowError: of an integer beyond all floats
        raise _refused(hook, f"{_shown(value)} as {name!r}") from None


def _refused(hook: Callable[..., Any], shown: str) -> LearnerError:
    name = _name_of(hook)
    return LearnerError(
        f"the hook {name} returned {shown}; it may return values to log, by name, such as {{'norm': 1.5}}: numbers, "
        "texts, Image(array) and Histogram(array); Updates(model=...); or None",
        code="step-hook-returns",
        name=name,
    )


def _name_of(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__name__", type(hook).__name__)


class _Unquoted(str):
    """A text without quotes in the text of a container."""

    __repr__ = str.__str__


def _shown(returned: Any) -> str:
    """Return the result of a hook, or a value in it, as a text for an error, with shapes in place of arrays. Python
    refuses to print integers of thousands of digits.
    """

    def short(x: Any) -> Any:
        if isinstance(x, Image | Histogram):
            return _Unquoted(f"{type(x).__name__}(...)")
        is_array = isinstance(x, np.ndarray | jax.Array) and x.ndim
        return _Unquoted(f"{x.dtype}{list(x.shape)}") if is_array else x

    with contextlib.suppress(TypeError, ValueError):  # keys of several types have no order
        returned = jax.tree.map(short, returned)
    try:
        text = " ".join(repr(returned).split())
        return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    except Exception:  # from a `__repr__` of the user's
        return f"a {type(returned).__name__} that cannot be written out"
