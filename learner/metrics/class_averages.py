"""Averages over classes, and a table of all classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.metrics.base import Array
from learner.util.text import aligned


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
