"""Metrics of one head of a model with several heads."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import CollectingMetric, Info, Metric, MetricBase, rows_mask
from learner.metrics.rows import MaskedOutput, combine_masks
from learner.metrics.wrapped import WrappedCollectingMetric, WrappedMetric


class _OfHead(MetricBase):
    """The arguments of a `Head`, and the head of an output."""

    def __init__(self, metric: Any, head: str, name: str | None = None) -> None:
        if not isinstance(metric, Metric | CollectingMetric) or getattr(metric, "per_step", False):
            raise LearnerError(
                f"Head got {metric!r}; it needs an instance of a learner.metrics.Metric that reads the step's output",
                code="metric-head-type",
            )
        same = ("higher_is_better", "unit", "splits", "numeric", "description", "undefined")
        vars(self).update({attribute: getattr(metric, attribute) for attribute in same})
        self.name = f"{metric.name} of {head}" if name is None else name
        self.fields = tuple(f"{head}.{field}" for field in metric.fields) or (head,)
        self.inner = (metric,)
        self._metric: Any = metric
        self._head = head

    def _part(self, output: Any) -> Any:
        """Return the output of the head, with the whole output's mask applied."""
        head = self._head
        part = getattr(output, head)
        part = types.SimpleNamespace(**part) if isinstance(part, Mapping) else part
        outer, own = rows_mask(output), rows_mask(part)
        if outer is None:
            return part
        if own is None:
            return MaskedOutput(part, outer)
        if (mask := combine_masks(outer, own)) is None:
            raise LearnerError(
                f"{self.name} got a mask of the output of shape {outer.shape} and one of {head} of shape "
                f"{own.shape}; they do not fit",
                code="metric-head-mask-shape",
                name=self.name,
                head=head,
            )
        return MaskedOutput(part, mask)


class _CollectedHead(_OfHead, WrappedCollectingMetric):
    """A `Head` of a metric that collects rows."""

    def collect(self, output: Any) -> Any:
        """Return the values that the wrapped metric collects from the head."""
        return self._metric.collect(self._part(output))


class Head(_OfHead, WrappedMetric):
    """A metric of one head of a model with several heads. It reads its fields from an output inside the step's output.

    The head is an `Output`, or a dict or object with the fields that the metric reads. A mask of the head applies to
    the head's metrics only, a mask of the whole output to all heads. The loss of a head is weighted by the head's
    `weight`, or by that of the output if the head has none.

    Args:
      metric: a metric that reads an output. If it is a `CollectingMetric`, such as `AUROC`, the result is one, too.
      head: the name of the head's field in the step's output.
      name: the metric's name; default: `Accuracy of genre`.

    Raises:
      LearnerError: the metric is of the optimizer step or of the host; when updated with masks that do not fit.

    >>> from learner.metrics.classification import Accuracy
    >>> from learner.steps.outputs import ClassificationOutput, Output
    >>> genre = ClassificationOutput.from_logits(jnp.eye(3), jnp.array([0, 1, 0]), mask=jnp.array([1, 0, 1]))
    >>> metric, info = Head(Accuracy(), "genre"), Info(step=jnp.int32(0), weight=jnp.float32(3))
    >>> print(metric.name, metric.compute(metric.update(metric.init(), Output(genre.loss, genre=genre), info)))
    Accuracy of genre 0.5
    """

    _collecting = _CollectedHead

    def __init__(self, metric: Metric | CollectingMetric, head: str, name: str | None = None) -> None:
        super().__init__(metric, head, name)

    def update(self, state: Any, output: Any, info: Info) -> Any:
        """Add the head of a batch."""
        part = self._part(output)
        weight = getattr(part, "weight", None)
        own = info if weight is None else dataclasses.replace(info, weight=jnp.asarray(weight, jnp.float32))
        return self._metric.update(state, part, own)
