"""Metrics of subsets and groups of the rows."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.adaptors import Adapted
from learner.metrics.base import Array, CollectingMetric, Info, Metric, MetricBase, all_within, rows_mask
from learner.metrics.rows import MaskedOutput, as_int32, combine_masks
from learner.metrics.wrapped import SameKindMetric, WrappedCollectingMetric, WrappedMetric


class _Grouped(MetricBase):
    """A metric of rows, and the field of the output with their groups."""

    def __init__(self, what: str, metric: Any, by: str) -> None:
        _check(metric, what)
        self.higher_is_better, self.unit, self.splits = metric.higher_is_better, metric.unit, metric.splits
        self.fields, self.inner = tuple(dict.fromkeys((*metric.fields, by))), (metric,)
        self._metric: Any = metric
        self._by = by

    def _groups(self, output: Any, most: int) -> Array:
        """Return int32: the group of each row, or of each token if there may be two axes."""
        by = self._by
        group = jnp.asarray(getattr(output, by))
        if not (jnp.issubdtype(group.dtype, jnp.integer) or group.dtype == bool) or not 1 <= group.ndim <= most:
            raise LearnerError(
                f"{self.name} got {by} {group.dtype}{list(group.shape)}; it needs the number of a group for each "
                f"row: integers [batch]{', or [batch, length]' if most == 2 else ''}",
                code="metric-group-type",
                name=self.name,
                by=by,
            )
        return as_int32(group)

    def _part(self, output: Any, value: int) -> MaskedOutput:
        """Return the output with the rows (or tokens) of other groups masked."""
        by, own = self._by, self._groups(output, most=2) == value
        outer = rows_mask(output)
        if outer is None:
            return MaskedOutput(output, own)
        if (mask := combine_masks(own, outer)) is None:
            raise LearnerError(
                f"{self.name} got {by} of shape {own.shape} and a mask of shape {outer.shape}; they do not fit",
                code="metric-group-mask-shape",
                name=self.name,
                by=by,
            )
        return MaskedOutput(output, mask)


class _CollectedGroups(_Grouped, CollectingMetric):
    """A metric that collects rows with their groups, which the host separates."""

    def collect(self, output: Any) -> dict[str, Any]:
        """Return the rows that the metric collects, and their groups `[rows]`."""
        by, rows, groups = self._by, self._metric.collect(output), self._groups(output, most=1)
        for leaf in jax.tree.leaves(rows):
            if leaf.shape[:1] != groups.shape:
                raise LearnerError(
                    f"{self.name} got {by} of shape {groups.shape}, and {self._metric.name} collects "
                    f"{leaf.dtype}{list(leaf.shape)}; it needs one group for each row",
                    code="metric-group-shape",
                    name=self.name,
                    by=by,
                )
        return {"groups": groups, "rows": rows}

    def paddings(self, rows: Any) -> list[int | None]:
        """Return those of the wrapped metric; the groups have one shape."""
        return [None, *self._metric.paddings(rows["rows"])]

    def _value_of(self, rows: Any, value: int) -> Any:
        """Return the value of the rows of one group; NaN if there are none."""
        own = rows["groups"] == value
        if self._metric.numeric and not own.any():
            return np.nan
        return self._metric.compute(jax.tree.map(lambda x: x[own], rows["rows"]))


class _OneGroup(_Grouped):
    """The arguments of a `Subset`."""

    def __init__(self, metric: Any, by: str, value: int, name: str | None = None) -> None:
        super().__init__("Subset", metric, by)
        number = _number(value)
        if number is None:
            raise LearnerError(
                f"value of Subset is {value!r}; it needs the number of a group: Subset({type(metric).__name__}(...), "
                f"{by!r}, 0, 'cats')",
                code="metric-subset-value",
                value=value,
                by=by,
            )
        self.name = f"{metric.name} of {f'{by} {value}' if name is None else name}"
        self.undefined = f"no row of it has {by} = {value}, or {metric.undefined}"
        self.numeric, self.description = metric.numeric, metric.description
        self._of = number


class _CollectedSubset(_OneGroup, _CollectedGroups, WrappedCollectingMetric):
    """A `Subset` of a metric that collects rows."""

    def compute(self, rows: Any) -> Any:
        """Compute the wrapped metric; NaN if the subset has no rows."""
        return self._value_of(rows, self._of)


class Subset(_OneGroup, WrappedMetric):
    """A metric over the rows for which a field of the output has a given value: `Accuracy of cats`.

    Args:
      metric: a metric that reads rows and honours the output's `mask`, like all metrics of this package. An `Adapted`
        metric needs the mask among its arguments. For a `CollectingMetric`, such as `AUROC`, the result is one, too.
      by: the name of the field: integers or booleans, `[batch]`, or per token `[batch, length]`.
      value: the field's value for the rows of the subset: an integer, True or False.
      name: the name of the subset; default: `group 0`.

    Raises:
      LearnerError: the metric does not read rows or the mask; the value is not an integer; when updated with a field of
        another shape or dtype.

    >>> import types
    >>> from learner.metrics.classification import Accuracy
    >>> out = types.SimpleNamespace(logits=jnp.eye(3), targets=jnp.array([0, 1, 0]), group=jnp.array([0, 0, 1]))
    >>> metric, info = Subset(Accuracy(), "group", 0, "cats"), Info(step=jnp.int32(0), weight=jnp.float32(3))
    >>> print(metric.name, metric.compute(metric.update(metric.init(), out, info)))
    Accuracy of cats 1.0
    """

    _collecting = _CollectedSubset

    def __init__(self, metric: Metric | CollectingMetric, by: str, value: int, name: str | None = None) -> None:
        super().__init__(metric, by, value, name)

    def update(self, state: Any, output: Any, info: Info) -> Any:
        """Add the rows of a batch that belong to the subset."""
        return self._metric.update(state, self._part(output, self._of), info)


class _EachGroup(_Grouped):
    """The arguments of a `By`, and the text of its values."""

    numeric = False

    def __init__(self, metric: Any, by: str, names: Mapping[int, str] | Sequence[str]) -> None:
        super().__init__("By", metric, by)
        if not metric.numeric:
            raise LearnerError(
                f"By got {metric.name}, which is not a number; it needs one that is, or use Subset",
                code="metric-group-not-a-number",
            )
        known = _named(names)
        if known is None:
            raise LearnerError(
                f"names of By is {names!r}; it needs a name for each group, by its number: {{0: 'cats', 1: 'dogs'}}, "
                "or a list of the names of 0, 1 and so on: ['cats', 'dogs']",
                code="metric-group-names",
            )
        self.name, self.description = f"{metric.name} by {by}", f"{metric.description}, by {by}"
        self._names = known

    def text(self, value: Any) -> str:
        """Return the name of each group with the text of the wrapped metric."""
        pairs = zip(self._names.values(), np.asarray(value), strict=True)
        return ", ".join(f"{name} {self._metric.text(x)}" for name, x in pairs)


class _CollectedBy(_EachGroup, _CollectedGroups):
    """`By` of a metric that collects rows."""

    def compute(self, rows: Any) -> np.ndarray:
        """Return float64 `[groups]`; NaN for a group without rows."""
        return np.array([self._value_of(rows, value) for value in self._names], np.float64)


class By(_EachGroup, SameKindMetric):
    """A metric of each group of rows, as a text at the end of a split: `cats 0.5, dogs 0.75`.

    For numbers that can be plotted and monitored, use `Subset`.

    Args:
      metric: a numeric metric; otherwise as for `Subset`.
      by: the field of the output with the group.
      names: the names of the groups by value (an integer, or its text, as in JSON), or a list of the names of groups 0,
        1, 2 and so on. Rows of other groups do not count.

    Raises:
      LearnerError: as for `Subset`; there are no names, or two equal ones; the metric is not numeric.

    >>> import types
    >>> from learner.metrics.classification import Accuracy
    >>> out = types.SimpleNamespace(logits=jnp.eye(3), targets=jnp.array([0, 1, 0]), group=jnp.array([0, 0, 1]))
    >>> metric, info = By(Accuracy(), "group", ["cats", "dogs"]), Info(step=jnp.int32(0), weight=jnp.float32(3))
    >>> metric.text(metric.compute(metric.update(metric.init(), out, info)))
    'cats 1, dogs 0'
    """

    _collecting = _CollectedBy

    def __init__(self, metric: Metric | CollectingMetric, by: str, names: Mapping[int, str] | Sequence[str]) -> None:
        super().__init__(metric, by, names)

    def init(self) -> Any:
        """Return the state of no rows."""
        return tuple(self._metric.init() for _ in self._names)

    def update(self, state: Any, output: Any, info: Info) -> Any:
        """Add the rows of a batch, each to its group."""
        parts = (self._part(output, value) for value in self._names)
        return tuple(self._metric.update(s, part, info) for s, part in zip(state, parts, strict=True))

    def merge(self, a: Any, b: Any) -> Any:
        """Merge two states."""
        return tuple(self._metric.merge(x, y) for x, y in zip(a, b, strict=True))

    def compute(self, state: Any) -> Array:
        """Return float32 `[groups]`; NaN for a group without rows."""
        return jnp.stack([jnp.asarray(self._metric.compute(s), jnp.float32) for s in state])


def _number(value: Any) -> int | None:
    """Return the number of a group if an output can contain it, otherwise None."""
    if isinstance(value, str) and re.fullmatch("-?[0-9]+", value):  # as keys in JSON are
        value = int(value)
    fits = isinstance(value, int | np.integer | np.bool_) and -(2**31) <= value < 2**31
    return int(value) if fits else None


def _named(names: Any) -> dict[int, str] | None:
    """Return the names by group number if all are texts and different, otherwise None."""
    if isinstance(names, str) or not isinstance(names, Mapping | Sequence):
        return None
    given = list(names.items() if isinstance(names, Mapping) else enumerate(names))
    known = {number: name for value, name in given if (number := _number(value)) is not None and isinstance(name, str)}
    return known if given and len(set(known.values())) == len(given) else None


def _check(metric: Any, what: str) -> None:
    if not isinstance(metric, Metric | CollectingMetric):
        raise LearnerError(
            f"{what} got {metric!r}; it needs an instance of a learner.metrics.Metric", code="metric-type"
        )
    parts = list(all_within(metric))
    if getattr(metric, "per_step", False) or any("loss" in getattr(part, "fields", ()) for part in parts):
        raise LearnerError(
            f"{what} got {metric.name}, which is a number of the whole batch; it needs a metric of rows (the loss of a "
            "group needs the losses of its rows)",
            code="metric-group-whole-batch",
        )
    for part in parts:
        if isinstance(part, Adapted) and not part.masked:
            raise LearnerError(
                f"{what} got {part.name}, which does not read the output's mask and would count the rows of all "
                "groups; name its argument for the mask: Adapted(metric, mask='mask', ...), or sample_weights='mask' "
                "for those of metrax",
                code="metric-group-mask-unread",
            )
