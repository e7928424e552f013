"""Groups of parameters with their own optimizer, learning rate or weight decay."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from learner.errors import LearnerError, near, one_error
from learner.models.matching import Match, matcher, matching_paths
from learner.optimizers.base import Change, OptimizerFactory, refuse_no_function
from learner.optimizers.partition import in_parts
from learner.schedules.base import needs_run_length
from learner.schedules.plateau import ReduceOnPlateau
from learner.steps.extra import accepting
from learner.steps.optimizer import with_injected_rate
from learner.steps.optimizer_checks import check_schedule, no_schedule
from learner.util.number_checks import is_number
from learner.util.text import join_names
from learner.util.trees import named_leaves

REST = "rest"
MOST_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Group:
    """Parameters with their own training settings.

    Args:
      match: the parameters: a regular expression to search for in their paths, several expressions, or a predicate
        `(path, array)`.
      lr: a factor of the run's learning rate; or a separate schedule, a function of the optimizer step, independent of
        the run's rate and `ReduceOnPlateau`. Like the run's schedule it may count epochs or fractions of the run.
      weight_decay: replaces the optimizer's weight decay. `None` keeps it.
      optimizer: a function of the learning rate. `None`: the optimizer of the other parameters.

    Raises:
      LearnerError: a factor or a decay is negative or not finite, or a schedule does not return rates.
    """

    match: Match
    lr: float | Callable[[Any], Any] = 1.0
    weight_decay: float | None = None
    optimizer: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        matcher(self.match)
        decay = self.weight_decay
        if decay is not None and not (is_number(decay) and 0 <= decay < math.inf):
            raise LearnerError(
                f"weight_decay of a group is {decay!r}; it needs a number, 0 or more, such as 0.001",
                code="optimizer-group-weight-decay",
                decay=decay,
            )
        if self.optimizer is not None:
            refuse_no_function(self.optimizer, "the optimizer of a group")
        if isinstance(self.lr, ReduceOnPlateau):
            raise LearnerError(
                "lr of a group is ReduceOnPlateau, which follows the run as a whole: give it as the run's lr, and the "
                "group a factor of that",
                code="optimizer-group-plateau",
            )
        if callable(self.lr):
            if problem := no_schedule(self.lr):
                raise LearnerError(f"lr of a group is {problem}", code="optimizer-group-lr")
            if not needs_run_length(self.lr) and (problems := check_schedule(self.lr)):
                raise one_error([f"lr of a group: {problem}" for problem in problems], code="optimizer-group-lr")
            return
        if not is_number(self.lr) or not 0 <= self.lr < math.inf:
            raise LearnerError(
                f"lr of a group is {self.lr!r}; it needs a factor of the run's rate, 0 or more, or a schedule",
                code="optimizer-group-lr",
            )

    def with_schedules(self, change: Change, place: str) -> "Group":
        """See `OptimizerFactory`; `place` is that of the group."""
        lr = change(place, self.lr) if callable(self.lr) else self.lr
        optimizer: Any = self.optimizer
        if isinstance(optimizer, OptimizerFactory):
            optimizer = optimizer.with_schedules(lambda inner, schedule: change(f"{place}, {inner}", schedule))
        return dataclasses.replace(self, lr=lr, optimizer=optimizer)


@dataclasses.dataclass(frozen=True)
class Groups(OptimizerFactory):
    """An optimizer for most parameters, and groups of other parameters. Every parameter is in at most one group.

    To exclude parameters from training, use `LearnerBuilder.freeze`, which keeps neither gradients nor an optimizer
    state for them.

    Args:
      optimizer: a function of the learning rate, for the parameters that are in no group.
      groups: `Group`s, or their arguments as mappings.

    Raises:
      LearnerError: there are no groups. At `build`: a group matches nothing, or two groups match the same parameters,
        which the message names.

    >>> grouped = Groups(optax.sgd, [Group("conv1", lr=2.0), {"match": "bias$", "lr": 0.1}])
    >>> params = {"conv1": {"kernel": jnp.ones(2)}, "out": {"kernel": jnp.ones(2), "bias": jnp.ones(2)}}
    >>> made = grouped(0.5)
    >>> updates, _ = made.update(params, made.init(params))
    >>> {path: float(x[0]) for path, x in named_leaves(updates).items()}
    {'conv1.kernel': -1.0, 'out.bias': -0.05000000074505806, 'out.kernel': -0.5}
    """

    optimizer: Callable[[Any], Any]
    groups: Any  # a sequence; values from a config are checked here

    def __post_init__(self) -> None:
        refuse_no_function(self.optimizer, "the optimizer of Groups")
        if not isinstance(self.groups, Sequence) or isinstance(self.groups, str) or not self.groups:
            raise LearnerError(
                f"groups of Groups is {self.groups!r}; it needs a list of Group(match, ...)",
                code="optimizer-groups-type",
            )
        object.__setattr__(self, "groups", tuple(map(_group, self.groups)))

    def __call__(self, lr: Any) -> optax.GradientTransformation:
        """See `OptimizerFactory`."""
        transformations = {
            str(number): _transformation(group, self.optimizer, lr) for number, group in self._numbered()
        }
        return in_parts({REST: self.optimizer(lr), **transformations}, self.labels)

    def with_schedules(self, change: Change) -> "Groups":
        """See `OptimizerFactory`."""
        groups = [group.with_schedules(change, f"group {number}") for number, group in self._numbered()]
        rest: Any = self.optimizer
        if isinstance(rest, OptimizerFactory):
            rest = rest.with_schedules(lambda inner, schedule: change(f"the rest, {inner}", schedule))
        return dataclasses.replace(self, optimizer=rest, groups=groups)

    def labels(self, params: Any) -> Any:
        """Return the tree of the parameters' groups: `"0"`, `"1"`, ... in order, or `"rest"`."""
        leaves = named_leaves(params)
        paths_of_group = {
            number: matching_paths(group.match, leaves, f"among the trained parameters, group {number} of Groups,")
            for number, group in self._numbered()
        }
        label: dict[str, str] = {}
        twice: dict[tuple[str, str], list[str]] = {}
        for number, paths in paths_of_group.items():
            for path in paths:
                if path in label:
                    twice.setdefault((label[path], str(number)), []).append(path)
                label.setdefault(path, str(number))
        if twice:
            rows = "; ".join(
                f"{join_names(paths, MOST_NAMED)} in groups {a} and {b}" for (a, b), paths in twice.items()
            )
            raise LearnerError(
                f"the groups of Groups overlap: {rows}. A parameter can be in one only",
                code="optimizer-groups-overlap",
                rows=rows,
            )
        return jax.tree.unflatten(jax.tree.structure(params), [label.get(path, REST) for path in leaves])

    def _numbered(self) -> list[tuple[int, Group]]:
        return [(number, group) for number, group in enumerate(self.groups) if isinstance(group, Group)]


def _group(given: Any) -> Group:
    if isinstance(given, Group):
        return given
    if not isinstance(given, Mapping):
        raise LearnerError(f"a group of Groups is {given!r}; it needs Group(match, ...)", code="optimizer-group-type")
    names = [field.name for field in dataclasses.fields(Group)]
    if unknown := [name for name in given if name not in names]:
        hints = "; ".join(f"{name!r}: {near(str(name), names)}" for name in unknown)
        raise LearnerError(f"a group of Groups is {dict(given)}; it has no {hints}", code="optimizer-group-key-unknown")
    if "match" not in given:
        raise LearnerError(
            f"a group of Groups is {dict(given)}; it needs match, which selects its parameters",
            code="optimizer-group-match-missing",
        )
    return Group(**given)


def _transformation(group: Group, rest: Callable[[Any], Any], lr: Any) -> optax.GradientTransformation:
    optimizer = rest if group.optimizer is None else group.optimizer
    if group.weight_decay is not None:
        optimizer = with_weight_decay(optimizer, group.weight_decay)
    if needs_run_length(group.lr):
        raise LearnerError(
            f"the schedule of a group is {group.lr!r}, which depends on the length of the run. `fit` resolves it, but "
            "not inside a function of your own (lambda lr: Groups(...)(lr)): pass the Groups itself, or "
            "schedule.resolved(num_steps=..., steps_per_epoch=...)",
            code="optimizer-group-length-unknown",
        )
    if callable(group.lr):
        return scheduled(optimizer, group.lr)
    return optimizer(lr * group.lr)


def with_weight_decay(optimizer: Any, value: float) -> Callable[[Any], Any]:
    """Return the optimizer with another weight decay.

    Raises:
      LearnerError: it has no weight decay.

    >>> with_weight_decay(functools.partial(optax.adamw, b1=0.8), 0.0).keywords
    {'b1': 0.8, 'weight_decay': 0.0}
    """
    if not isinstance(optimizer, type) and "weight_decay" in getattr(optimizer, "__dataclass_fields__", ()):
        changed: Callable[[Any], Any] = dataclasses.replace(optimizer, weight_decay=value)
        return changed
    if isinstance(optimizer, OptimizerFactory) and callable(getattr(optimizer, "optimizer", None)):
        around: Any = optimizer
        outer: Callable[[Any], Any] = dataclasses.replace(around, optimizer=with_weight_decay(around.optimizer, value))
        return outer
    try:
        has = "weight_decay" in inspect.signature(optimizer).parameters
    except (TypeError, ValueError):
        has = False
    if not has:
        name = getattr(optimizer, "__name__", repr(optimizer))
        raise LearnerError(
            f"a group has weight_decay={value:g}, and its optimizer ({name}) has no such argument",
            code="optimizer-group-no-weight-decay",
            value=value,
            name=name,
        )
    with_decay: Callable[[Any], Any] = functools.partial(optimizer, weight_decay=value)
    return with_decay


class ScheduledState(NamedTuple):
    """Optimizer steps so far, int32, and the state of the optimizer."""

    count: Any
    inner: Any


def scheduled(optimizer: Callable[[Any], Any], schedule: Callable[[Any], Any]) -> optax.GradientTransformationExtraArgs:
    """Return the optimizer with a learning rate from its own schedule, evaluated at the number of the step if `update`
    gets it (it also counts skipped steps), otherwise at its own count of updates.

    >>> halving = scheduled(optax.sgd, lambda step: 1.0 / 2**step)
    >>> state = halving.init(jnp.ones(()))
    >>> one, state = halving.update(jnp.float32(1), state)
    >>> two, state = halving.update(jnp.float32(1), state)
    >>> later, state = halving.update(jnp.float32(1), state, step=jnp.int32(4))
    >>> float(one), float(two), float(later)
    (-1.0, -0.5, -0.0625)
    """

    def rate_at(count: Any) -> Any:
        return jnp.asarray(schedule(count), jnp.float32)

    def init(params: Any) -> ScheduledState:
        count = jnp.zeros((), jnp.int32)
        return ScheduledState(count, optimizer(rate_at(count)).init(params))

    def update(updates: Any, state: ScheduledState, params: Any = None, **extra: Any) -> tuple[Any, ScheduledState]:
        count = extra.get("step", state.count)
        rate = rate_at(count)
        inner = with_injected_rate(optimizer, rate, state.inner, updates if params is None else params)
        updates, inner = accepting(optimizer(rate)).update(updates, inner, params, **extra)
        return updates, ScheduledState(optax.safe_increment(count), inner)

    return optax.GradientTransformationExtraArgs(init, update)
