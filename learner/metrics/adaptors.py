"""Metrics of other packages: CLU, metrax, and flax.nnx."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, Metric
from learner.util.promotion import standard_promotion

OPTIONAL = ("mask", "prediction_mask")
"""Optional fields of an output; the metric gets `None` for a missing one."""

CLU = ("empty", "from_model_output", "merge", "compute")
NNX = ("reset", "update", "compute")


class Adapted(Metric):
    """A metric of CLU, of metrax, or of `flax.nnx.metrics`, unmodified.

    Its state stays on the device, like that of this package's metrics, and is merged over steps and devices. Precision
    and the handling of masks depend on the metric: most sum in plain float32.

    Args:
      metric: a class with `empty`, `from_model_output`, `merge` and `compute` (CLU, metrax), or an instance of an nnx
        metric. Of the nnx metrics, `Average`, its subclasses without further variables (`Accuracy`), `Welford`, and
        those of metrax can be merged.
      name: the metric's name in `learner`; default: the name of its class.
      take: the attribute or key to use if the metric returns several values: `"mean"` for `nnx.metrics.Welford`.
      higher_is_better: the metric's direction, if it has one.
      unit: the unit of its value.
      arguments: for each argument of the metric, the field of the output to pass: `labels="targets"`. The field `mask`
        is passed as 0 and 1 in its dtype (of at least 32 bits, or bool), even if it holds weights, and as `None` if the
        output has none. To weight a metric, pass the weights in another field.

    Raises:
      LearnerError: `metric` is not such a metric, its states cannot be merged, or no arguments are given.

    >>> from flax import nnx
    >>> from learner.steps.outputs import ClassificationOutput
    >>> metric = Adapted(nnx.metrics.Accuracy(), higher_is_better=True, logits="logits", labels="targets")
    >>> logits = jnp.array([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0]])
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 1, 1]))
    >>> state = metric.update(metric.init(), out, Info(step=jnp.int32(0), weight=jnp.float32(3)))
    >>> print(metric.name, f"{metric.compute(state):.4f}")
    Accuracy 0.6667
    """

    description = "a metric of another package"
    undefined = "the metric itself says so"

    def __init__(
        self,
        metric: Any,
        name: str | None = None,
        take: str | None = None,
        higher_is_better: bool | None = None,
        unit: str = "",
        **arguments: str,
    ) -> None:
        self._kind = _kind_of(metric)
        self.name = self._kind.name if name is None else name
        if not arguments or not all(isinstance(field, str) for field in arguments.values()):
            raise LearnerError(
                f"the arguments of {self.name} are {arguments!r}; say which fields of the output it takes: "
                "Adapted(metric, labels='targets', logits='logits')",
                code="metric-adapted-arguments",
            )
        self._arguments, self._take = arguments, take
        needed = tuple(dict.fromkeys(field for field in arguments.values() if field not in OPTIONAL))
        self.higher_is_better, self.unit, self.fields = higher_is_better, unit, needed

    @property
    def masked(self) -> bool:
        """True if one of its arguments is the output's `mask`."""
        return "mask" in self._arguments.values()

    def init(self) -> Any:
        """Return the state of no rows."""
        return self._kind.init()

    def update(self, state: Any, output: Any, info: Info) -> Any:
        """Add a batch: pass the output's fields to the metric."""
        with standard_promotion():
            given = {name: _field(output, field) for name, field in self._arguments.items()}
            return _like(self._kind.update(state, given), state)

    def merge(self, a: Any, b: Any) -> Any:
        """Merge two states."""
        with standard_promotion():
            return _like(self._kind.merge(a, b), a)

    def compute(self, state: Any) -> Array:
        """Return a float32 scalar."""
        with standard_promotion():
            value = self._kind.compute(state)
        if self._take is not None:
            value = value[self._take] if isinstance(value, dict) else getattr(value, self._take)
        if jnp.ndim(value):
            raise LearnerError(
                f"{self.name} gives {list(jnp.shape(value))} numbers rather than one: derive a Metric with numeric = "
                "False from Adapted, and write its text",
                code="metric-adapted-not-a-number",
            )
        return jnp.asarray(value).astype(jnp.float32)


def _field(output: Any, field: str) -> Array | None:
    x = getattr(output, field, None)
    x = x if x is None else jnp.asarray(x)
    if x is None or field != "mask" or x.dtype == bool:
        return x
    # Numbers stay numbers: a metric may add them up, and einsum gives a boolean. Sums of less than 32 bits are rounded.
    dtype = jnp.promote_types(x.dtype, jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32)
    return x.astype(bool).astype(dtype)


class _Clu:
    """A class whose instances are states."""

    def __init__(self, kind: Any) -> None:
        self._kind, self.name = kind, kind.__name__
        # metrax counts in float32, and begins with an int32.
        self._floats = any(cls.__module__.split(".")[0] == "metrax" for cls in kind.__mro__)
        with standard_promotion():
            empty = _tried(kind.empty, self.name)
        if jax.tree_util.all_leaves([empty]):
            raise LearnerError(
                f"an instance of {self.name} is not a pytree; decorate the class with flax.struct.dataclass",
                code="metric-not-pytree",
            )
        empty = jax.tree.map(np.asarray, empty)
        self._empty = jax.tree.map(self._wide, empty)

    def _wide(self, leaf: np.ndarray) -> np.ndarray:
        return leaf.astype(np.float32) if self._floats and leaf.dtype.kind in "iu" else leaf

    def init(self) -> Any:
        return jax.tree.map(jnp.asarray, self._empty)

    def update(self, state: Any, given: dict[str, Any]) -> Any:
        return state.merge(self._kind.from_model_output(**given))

    def merge(self, a: Any, b: Any) -> Any:
        return a.merge(b)

    def compute(self, state: Any) -> Any:
        return state.compute()


class _Nnx:
    """An object that is updated in place; its variables are the state, a tuple of arrays."""

    def __init__(self, metric: Any) -> None:
        from flax import nnx

        self.name, self._nnx = type(metric).__name__, nnx
        self._merged = _merge_of(metric, self.name)
        own = copy.deepcopy(metric)
        with standard_promotion():
            own.reset()
        self._graph, variables = nnx.split(own)
        leaves: list[Any]
        self._tree: Any
        leaves, self._tree = jax.tree.flatten(variables)
        self._fresh = [np.asarray(x) for x in leaves]

    def _object(self, state: tuple[Array, ...]) -> Any:
        return self._nnx.merge(self._graph, self._tree.unflatten(state))

    def _state(self, metric: Any) -> tuple[Array, ...]:
        return tuple(jax.tree.leaves(self._nnx.state(metric)))

    def init(self) -> tuple[Array, ...]:
        return tuple(map(jnp.asarray, self._fresh))

    def update(self, state: tuple[Array, ...], given: dict[str, Any]) -> tuple[Array, ...]:
        metric = self._object(state)
        metric.update(**given)
        return self._state(metric)

    def merge(self, a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
        metric = self._object(a)
        self._merged(metric, self._object(b))
        return self._state(metric)

    def compute(self, state: tuple[Array, ...]) -> Any:
        return self._object(state).compute()


def _merge_of(metric: Any, name: str) -> Callable[[Any, Any], None]:
    """Return the function that merges the state of another nnx metric; nnx has none for it."""
    from flax import nnx

    ways: tuple[tuple[type, set[str], Callable[[Any, Any], None]], ...] = (
        (nnx.metrics.Average, {"total", "count"}, _add),
        (nnx.metrics.Welford, {"count", "mean", "m2"}, _add_moments),
    )
    hint = "give its parts one by one" if isinstance(metric, nnx.metrics.MultiMetric) else "derive from Average"
    for kind, known, way in ways:
        if isinstance(metric, kind):
            more = sorted({str(path[0]) for path, _ in nnx.to_flat_state(nnx.state(metric))} - known)
            if not more:
                return way
            hint = f"leave out what {kind.__name__} does not have ({', '.join(more)})"
    raise LearnerError(
        f"{name} cannot be merged: it does not define how to combine the values of two devices or batches. Of "
        f"flax.nnx.metrics, Average, its subclasses, and Welford are supported; {hint}, or write a "
        "learner.metrics.Metric",
        code="metric-not-mergeable",
        name=name,
    )


def _add(metric: Any, other: Any) -> None:
    metric.total[...] = metric.total[...] + other.total[...]
    metric.count[...] = metric.count[...] + other.count[...]


def _add_moments(metric: Any, other: Any) -> None:
    """Merge moments as in Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances", 1979.
    """
    a, b = (x.count[...].astype(jnp.float32) for x in (metric, other))
    both = jnp.maximum(a + b, 1)
    delta = other.mean[...] - metric.mean[...]
    metric.m2[...] = metric.m2[...] + other.m2[...] + delta * delta * a * b / both
    metric.mean[...] = metric.mean[...] + delta * b / both
    metric.count[...] = metric.count[...] + other.count[...]


def _kind_of(metric: Any) -> _Clu | _Nnx:
    within = getattr(metric, "clu_metric", None)  # metrax.nnx keeps one of its own
    if within is not None:
        metric = type(within)
    kind = metric if isinstance(metric, type) else type(metric)
    if all(callable(getattr(kind, name, None)) for name in CLU):
        return _Clu(kind)
    if all(callable(getattr(kind, name, None)) for name in NNX):
        if isinstance(metric, type):
            raise LearnerError(
                f"the metric {kind.__name__} is a class; pass an instance, {kind.__name__}()",
                code="metric-not-instance",
            )
        return _Nnx(metric)
    raise LearnerError(
        f"Adapted got {metric!r}; it needs a class with {', '.join(CLU)} (CLU, metrax), or an object with "
        f"{', '.join(NNX)} (flax.nnx.metrics)",
        code="metric-adapted-type",
    )


def _tried(make: Callable[[], Any], name: str) -> Any:
    try:
        return make()
    except NotImplementedError as error:
        raise LearnerError(f"{name} has no initial state: {error}", code="metric-stateless", name=name) from error


def _like(new: Any, old: Any) -> Any:
    """Cast to the dtypes of `old`: sums that begin as float32 stay float32."""
    return jax.tree.map(lambda a, b: jnp.asarray(a).astype(jnp.asarray(b).dtype), new, old)
