"""The base class of metrics of classes, averages over classes, and a table of all classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.metrics.base import Array, MetricBase
from learner.metrics.class_arguments import (
    as_int,
    binary_problem,
    class_names,
    classes_problem,
    ignore_label_problem,
    refuse,
)
from learner.util.text import aligned


class MetricOfClasses(MetricBase):
    """The arguments that metrics of classes share, and the text of a value for each class.

    Attributes:
      classes: the names of the classes, or None if they are unknown.
      ignore_label: the label that does not count, or None.
      base: the name without the arguments.
    """

    classes: Any
    ignore_label: int | None
    base: str = ""
    unit = ""
    fields: tuple[str, ...] = ("logits", "targets")

    def set_classes(
        self,
        classes: Any,
        ignore_label: Any,
        problems: Sequence[str | None],
        average: str | None = None,
        *,
        may_be_unknown: bool = False,
    ) -> None:
        """Check the arguments, and set `classes`, `ignore_label` and, with an average, `numeric` (False for a table of
        all classes).

        Args:
          classes: the number of classes, or their names.
          ignore_label: the label to ignore, or None.
          problems: of further arguments.
          average: one of `AVERAGES`, for metrics that have one.
          may_be_unknown: accept None for classes.

        Raises:
          LearnerError: an argument is invalid; the message lists all problems.
        """
        what = type(self).__name__
        of_classes = None if classes is None and may_be_unknown else classes_problem(what, classes)
        binary = None if average is None else binary_problem(what, average, classes)
        refuse(what, [of_classes, *problems, binary, ignore_label_problem(what, ignore_label)])
        self.classes = None if classes is None else class_names(classes)
        self.ignore_label = as_int(ignore_label)
        if average is not None:
            self.numeric = average != "none"

    def text(self, value: Any) -> str:
        """Return the number, or the table of `average="none"`: a line for each class."""
        if self.numeric:
            return super().text(value)
        return per_class(class_names(len(value)) if self.classes is None else self.classes, value)


def averaged(values: Any, average: str, support: Any, xp: Any = np) -> Any:
    """Return the average of the defined (not NaN) values of the classes; NaN if no value is defined.

    If none of these classes has a label, `"weighted"` weights them equally, as scikit-learn does.

    Args:
      values: float `[classes]`.
      average: `"macro"` weights all classes equally, `"weighted"` by their numbers of labels, `"binary"` is class 1
        alone, and `"none"` returns the values unchanged.
      support: `[classes]`, the number of labels of each class, in the values' dtype.
      xp: `numpy`, or `jax.numpy` inside programs.

    >>> values, support = np.array([1.0, 0.5, np.nan]), np.array([1.0, 3.0, 0.0])
    >>> print(averaged(values, "macro", support), averaged(values, "weighted", support))
    0.75 0.625
    """
    if average == "none":
        return values
    if average == "binary":
        return values[-1]
    equal = xp.where(xp.isnan(values), 0, xp.ones_like(values))
    weights = equal * support if average == "weighted" else equal
    weights = xp.where(weights.sum() > 0, weights, equal)
    total = weights.sum()
    mean = xp.where(weights > 0, values * weights, 0).sum() / xp.where(total > 0, total, 1)
    return xp.where(total > 0, mean, xp.nan)


def per_class(names: Sequence[str], values: Array) -> str:
    """Return a table with a value for each class.

    >>> print(per_class(["cat", "dog"], np.array([0.5, np.nan])))
    cat  0.5000
    dog     nan
    """
    return "\n".join(aligned([[name, f"{float(value):.4f}"] for name, value in zip(names, values, strict=True)]))
