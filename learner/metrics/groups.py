"""Metrics of parts of the rows."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.adaptors import Adapted
from learner.metrics.base import Array, CollectingMetric, Info, Metric, all_within, rows_mask


class Subset(Metric):
    """A metric over the rows of which a field of the output has one value: `Accuracy of cats`.

    Args:
      metric: one that reads rows and honours the output's `mask`, as all of this package do. One that is `Adapted`
        needs an argument that is the mask.
      by: the field: integers or booleans, `[batch]`, or of each token `[batch, length]`.
      value: that rows of the subset have: a whole number, or True or False.
      name: of the subset; default: `group 0`.

    Raises:
      LearnerError: for a metric that is not of rows, or reads no mask; for a value that is no whole number; when
        updated with a field of another shape or dtype.

    >>> import types
    >>> from learner.metrics.classification import Accuracy
    >>> out = types.SimpleNamespace(logits=jnp.eye(3), targets=jnp.array([0, 1, 0]), group=jnp.array([0, 0, 1]))
    >>> metric, info = Subset(Accuracy(), "group", 0, "cats"), Info(step=jnp.int32(0), weight=jnp.float32(3))
    >>> print(metric.name, metric.compute(metric.update(metric.init(), out, info)))
    Accuracy of cats 1.0
    """

    def __init__(self, metric: Metric, by: str, value: int, name: str | None = None) -> None:
        _check(metric, type(self).__name__)
        number = _number(value)
        if number is None:
            raise LearnerError(
                f"value of Subset is {value!r}; it needs the number of a group: Subset({type(metric).__name__}(...), "
                f"{by!r}, 0, 'cats')"
            )
        self._metric, self._by, self._of = metric, by, number
        self.name = f"{metric.name} of {f'{by} {value}' if name is None else name}"
        told = ("higher_is_better", "unit", "description", "numeric", "splits")
        vars(self).update({what: getattr(metric, what) for what in told}, fields=_fields(metric, by), inner=(metric,))
        vars(self)["undefined"] = f"no row of it has {by} = {value}, or {metric.undefined}"

    def init(self) -> Any:
        """No rows."""
        return self._metric.init()

    def update(self, state: Any, output: Any, info: Info) -> Any:
        """Adds the rows of a batch that are of the subset."""
        return self._metric.update(state, _part(self.name, output, self._by, self._of), info)

    def merge(self, a: Any, b: Any) -> Any:
        """The rows of both."""
        return self._metric.merge(a, b)

    def compute(self, state: Any) -> Any:
        """As the metric's own; NaN where the subset has no rows."""
        return self._metric.compute(state)

    def text(self, value: Any) -> str:
        """As the metric's own."""
        return self._metric.text(value)


class By(Metric):
    """A metric of each group of rows, as a text at the end of a split: `cats 0.5, dogs 0.75`.

    `Subset` makes numbers of them that can be plotted and monitored.

    Args:
      metric: as for `Subset`; one that is a number.
      by: the field of the output that says the group.
      names: of the groups by value (a whole number, or its text, as in JSON), or a list of the names of 0, 1, 2 and
        so on. Rows of other groups do not count.

    Raises:
      LearnerError: as for `Subset`; without names, or for two that are the same; for a metric that is no number.

    >>> import types
    >>> from learner.metrics.classification import Accuracy
    >>> out = types.SimpleNamespace(logits=jnp.eye(3), targets=jnp.array([0, 1, 0]), group=jnp.array([0, 0, 1]))
    >>> metric, info = By(Accuracy(), "group", ["cats", "dogs"]), Info(step=jnp.int32(0), weight=jnp.float32(3))
    >>> metric.text(metric.compute(metric.update(metric.init(), out, info)))
    'cats 1, dogs 0'
    """

    numeric = False

    def __init__(self, metric: Metric, by: str, names: Mapping[int, str] | Sequence[str]) -> None:
        _check(metric, type(self).__name__)
        if not metric.numeric:
            raise LearnerError(f"By got {metric.name}, which is no number; it needs one that is, or use Subset")
        known = _named(names)
        if known is None:
            raise LearnerError(
                f"names of By is {names!r}; it needs a name for each group, by its number: {{0: 'cats', 1: 'dogs'}}, "
                "or a list of the names of 0, 1 and so on: ['cats', 'dogs']"
            )
        self._metric, self._by, self._names = metric, by, known
        self.name = f"{metric.name} by {by}"
        told = ("higher_is_better", "unit", "splits")
        vars(self).update({what: getattr(metric, what) for what in told}, fields=_fields(metric, by), inner=(metric,))
        vars(self)["description"] = f"{metric.description}, by {by}"

    def init(self) -> Any:
        """No rows."""
        return tuple(self._metric.init() for _ in self._names)

    def update(self, state: Any, output: Any, info: Info) -> Any:
        """Adds the rows of a batch, each to its group."""
        parts = (_part(self.name, output, self._by, value) for value in self._names)
        return tuple(self._metric.update(s, part, info) for s, part in zip(state, parts, strict=True))

    def merge(self, a: Any, b: Any) -> Any:
        """The rows of both."""
        return tuple(self._metric.merge(x, y) for x, y in zip(a, b, strict=True))

    def compute(self, state: Any) -> Array:
        """float32 `[groups]`; NaN for a group without rows."""
        return jnp.stack([jnp.asarray(self._metric.compute(s), jnp.float32) for s in state])

    def text(self, value: Any) -> str:
        """`cats 0.5, dogs 0.75`."""
        pairs = zip(self._names.values(), np.asarray(value), strict=True)
        return ", ".join(f"{name} {self._metric.text(x)}" for name, x in pairs)


class _Part:
    """An output with another mask."""

    def __init__(self, output: Any, mask: Array) -> None:
        self._output, self.mask = output, mask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def _number(value: Any) -> int | None:
    """The number of a group, if it is one that an output can have."""
    if isinstance(value, str) and re.fullmatch("-?[0-9]+", value):  # as keys in JSON are
        value = int(value)
    fits = isinstance(value, int | np.integer | np.bool_) and -(2**31) <= value < 2**31
    return int(value) if fits else None


def _named(names: Any) -> dict[int, str] | None:
    """The names by the numbers of groups, if each is a text of its own."""
    if isinstance(names, str) or not isinstance(names, Mapping | Sequence):
        return None
    given = list(names.items() if isinstance(names, Mapping) else enumerate(names))
    known = {number: name for value, name in given if (number := _number(value)) is not None and isinstance(name, str)}
    return known if given and len(set(known.values())) == len(given) else None


def _part(name: str, output: Any, by: str, value: int) -> _Part:
    """The output with the rows (or tokens) masked that are of another group."""
    group = jnp.asarray(getattr(output, by))
    if not (jnp.issubdtype(group.dtype, jnp.integer) or group.dtype == bool) or group.ndim not in (1, 2):
        raise LearnerError(
            f"{name} got {by} {group.dtype}{list(group.shape)}; it needs the number of a group for each row: integers "
            "[batch], or [batch, length]"
        )
    own = group.astype(jnp.int32) == value
    mask = rows_mask(output)
    if mask is None:
        return _Part(output, own)
    mask = mask.astype(bool)
    if own.shape != mask.shape[: own.ndim] and mask.shape != own.shape[: mask.ndim]:
        raise LearnerError(f"{name} got {by} of shape {own.shape} and a mask of shape {mask.shape}; they do not fit")
    axes = max(own.ndim, mask.ndim)
    own, mask = (x.reshape(x.shape + (1,) * (axes - x.ndim)) for x in (own, mask))
    shape = np.broadcast_shapes(own.shape, mask.shape)
    return _Part(output, jnp.broadcast_to(own, shape) & jnp.broadcast_to(mask, shape))


def _fields(metric: Metric, by: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*metric.fields, by)))


def _check(metric: Any, what: str) -> None:
    if isinstance(metric, CollectingMetric):
        raise LearnerError(f"{what} got {metric.name}, which collects rows; mask them in a step of your own")
    if not isinstance(metric, Metric):
        raise LearnerError(f"{what} got {metric!r}; it needs an instance of a learner.metrics.Metric")
    if metric.per_step or "loss" in metric.fields:
        raise LearnerError(
            f"{what} got {metric.name}, which is a number of the whole batch; it needs a metric of rows (the loss of a "
            "group needs the losses of its rows)"
        )
    for part in all_within(metric):
        if isinstance(part, Adapted) and not part.masked:
            raise LearnerError(
                f"{what} got {part.name}, which does not read the output's mask and would count the rows of all "
                "groups; say which of its arguments that is: Adapted(metric, mask='mask', ...), or "
                "sample_weights='mask' for those of metrax"
            )
