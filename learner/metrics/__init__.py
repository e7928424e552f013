"""Metrics: what is logged about a split, exact over all of it.

Fractions such as accuracies go from 0 to 1, without a unit, for every metric of this package: the numbers are those
that scikit-learn gives. A value that is not defined, because nothing was counted, is NaN.

`base` says what a metric is and how to write one's own. States to build it from are `Sum`, `Mean`, `Count` and
`Fraction`.
"""

from learner.metrics.base import (
    CollectingMetric,
    HostMetric,
    Info,
    Mean,
    Metric,
    MetricBase,
    Sum,
    rows_mask,
)
from learner.metrics.classification import Accuracy, TopKAccuracy
from learner.metrics.counts import Count, Fraction
from learner.metrics.losses import Loss, Perplexity
from learner.metrics.means import MeanMetric
from learner.metrics.regression import MeanAbsoluteError, MeanSquaredError
from learner.metrics.rows import kept_rows
from learner.metrics.training import GradientNorm, IterationSpeed, LearningRate

__all__ = [
    "Accuracy",
    "CollectingMetric",
    "Count",
    "Fraction",
    "GradientNorm",
    "HostMetric",
    "Info",
    "IterationSpeed",
    "LearningRate",
    "Loss",
    "Mean",
    "MeanAbsoluteError",
    "MeanMetric",
    "MeanSquaredError",
    "Metric",
    "MetricBase",
    "Perplexity",
    "Sum",
    "TopKAccuracy",
    "kept_rows",
    "rows_mask",
]
