"""Correlation of predictions with their targets, linear and by rank."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from learner.metrics.base import Array, CollectingMetric
from learner.metrics.class_arguments import refuse
from learner.metrics.moments import Moments, measurable
from learner.metrics.pairs import PairMetric, outputs_problem, read_pairs


class PearsonCorrelation(PairMetric):
    """The linear correlation of predictions and targets, from -1 to 1:
    `Σ(t - t̄)(p - p̄) / √(Σ(t - t̄)² Σ(p - p̄)²)`.

    It is NaN for constant targets or predictions. For several outputs it is the mean, and NaN if one of them is NaN.
    It stays exact for numbers with a large offset, such as 10 000 and a little. Masks are `[batch]`.

    Args:
      outputs: the number of values per row.

    Source: Pearson, "Note on regression and inheritance in the case of two parents", 1895; `scipy.stats.pearsonr`.

    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import RegressionOutput
    >>> out = RegressionOutput.from_predictions(jnp.array([1.0, 2.0, 2.0]), jnp.array([1.0, 2.0, 3.0]))
    >>> metric, info = PearsonCorrelation(), Info(step=jnp.int32(0), weight=jnp.float32(3))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # 1 / √(2 · 2/3)
    0.8660
    """

    base = "Pearson Correlation"
    description = "linear correlation of predictions and targets, -1 to 1"

    def value(self, moments: Moments) -> Array:
        """Return float32 `[outputs]`. Each factor has its own root, as their product may overflow a float32."""
        spread = [jnp.sqrt(measurable(squares, moments.count)) for squares in (moments.xx, moments.yy)]
        return jnp.clip(moments.xy / spread[0] / spread[1], -1, 1)


class SpearmanCorrelation(CollectingMetric):
    """The correlation of the ranks of predictions and targets, from -1 to 1; equal numbers share their mean rank.

    It collects predictions, targets and a mask, 9 bytes for each pair (17 in float64), until the split ends. It is
    exact, and has no value per step. It is NaN for constant targets or predictions, and if a counted value is NaN. For
    several outputs it is the mean, and NaN if one of them is NaN. Masks are `[batch]`.

    Args:
      outputs: the number of values per row.

    Source: Spearman, "The proof and measurement of association between two things", 1904; `scipy.stats.spearmanr`.

    >>> from learner.steps.outputs import RegressionOutput
    >>> out = RegressionOutput.from_predictions(jnp.array([0.0, 1.0, 100.0]), jnp.array([0.0, 2.0, 3.0]))
    >>> metric = SpearmanCorrelation()
    >>> print(f"{metric.compute({name: np.asarray(x) for name, x in metric.collect(out).items()}):.4f}")
    1.0000
    """

    name = "Spearman Correlation"
    higher_is_better = True
    unit = ""
    description = "correlation of the ranks of predictions and targets, -1 to 1"
    fields = ("predictions", "targets")
    pads_rows = True  # zeros of the mask do not count
    undefined = "the targets or the predictions are constant, or one of them that counts is NaN"

    def __init__(self, outputs: int = 1) -> None:
        refuse("SpearmanCorrelation", [outputs_problem("SpearmanCorrelation", outputs)])
        self._outputs = int(outputs)

    def collect(self, output: Any) -> dict[str, Any]:
        """Return predictions, targets and the mask of the counted ones, `[rows, ..., outputs]`."""
        predictions, targets, counted = read_pairs(self.name, output, self._outputs)
        return {"predictions": predictions, "targets": targets, "counted": counted}

    def compute(self, rows: Any) -> float:
        """Return a number from -1 to 1, or NaN if it is undefined for one of the outputs."""
        columns = [rows[name].reshape(-1, self._outputs).T for name in ("predictions", "targets", "counted")]
        return float(np.mean([_rank_correlation(p[kept], t[kept]) for p, t, kept in zip(*columns, strict=True)]))


def _rank_correlation(predictions: np.ndarray, targets: np.ndarray) -> float:
    if not predictions.size or np.isnan(predictions).any() or np.isnan(targets).any():
        return np.nan
    x, y = (ranks - ranks.mean() for ranks in map(_ranks, (predictions, targets)))
    spread = np.sqrt((x * x).sum()) * np.sqrt((y * y).sum())
    return float(np.clip((x * y).sum() / spread, -1, 1)) if spread > 0 else np.nan


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return float64 ranks, from 1 for the smallest. Equal numbers have the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])
