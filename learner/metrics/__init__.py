"""Metrics: the values that are logged about a split, exact over all of it.

Fractions such as accuracies go from 0 to 1, without a unit, for every metric of this package: the numbers are those
that scikit-learn gives. A value that is not defined, because nothing was counted, is NaN.

`base` says what a metric is and how to write one's own. States to build it from are `Sum`, `Mean`, `Count`, `Fraction`
and `Moments`.
"""

from learner.metrics.adaptors import Adapted
from learner.metrics.aggregates import Aggregate
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
from learner.metrics.bleu import BLEU
from learner.metrics.calibration import BrierScore, CalibrationError
from learner.metrics.classes import BalancedAccuracy, FBeta, Jaccard, Precision, Recall, Specificity
from learner.metrics.classification import Accuracy, TopKAccuracy
from learner.metrics.correlation import PearsonCorrelation, SpearmanCorrelation
from learner.metrics.counts import Count, Fraction
from learner.metrics.edits import CharacterErrorRate, WordErrorRate
from learner.metrics.explained import R2, ExplainedVariance
from learner.metrics.groups import By, Subset
from learner.metrics.hamming import Hamming
from learner.metrics.images import MSSSIM, PSNR, SSIM
from learner.metrics.kappa import CohenKappa, Matthews
from learner.metrics.losses import Loss, Perplexity
from learner.metrics.matrix import ConfusionMatrix
from learner.metrics.means import MeanMetric
from learner.metrics.moments import Moments
from learner.metrics.overlaps import Dice, DicePerClass, IoU, IoUPerClass
from learner.metrics.ranking import AUROC, AveragePrecision
from learner.metrics.ranking_bins import BinnedAUROC, BinnedAveragePrecision
from learner.metrics.regression import (
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    QuantileLoss,
    RootMeanSquaredError,
)
from learner.metrics.rouge import RougeL
from learner.metrics.rows import kept_rows
from learner.metrics.sequences import BitsPerCharacter, ExactMatch, TokenAccuracy
from learner.metrics.speed import IterationSpeed, RowsPerSecond, TokensPerSecond
from learner.metrics.system import DeviceMemory, GPUUse, HostCPU, HostMemory
from learner.metrics.texts import OnText
from learner.metrics.training import GradientNorm, LearningRate, ParameterNorm, UpdateRatio

__all__ = [  # noqa: RUF022 - sorted as `sorted` does
    "AUROC",
    "Accuracy",
    "Adapted",
    "Aggregate",
    "AveragePrecision",
    "BLEU",
    "BalancedAccuracy",
    "BinnedAUROC",
    "BinnedAveragePrecision",
    "BitsPerCharacter",
    "BrierScore",
    "By",
    "CalibrationError",
    "CharacterErrorRate",
    "CohenKappa",
    "CollectingMetric",
    "ConfusionMatrix",
    "Count",
    "DeviceMemory",
    "Dice",
    "DicePerClass",
    "ExactMatch",
    "ExplainedVariance",
    "FBeta",
    "Fraction",
    "GPUUse",
    "GradientNorm",
    "Hamming",
    "HostCPU",
    "HostMemory",
    "HostMetric",
    "Info",
    "IoU",
    "IoUPerClass",
    "IterationSpeed",
    "Jaccard",
    "LearningRate",
    "Loss",
    "MSSSIM",
    "Matthews",
    "Mean",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanMetric",
    "MeanSquaredError",
    "Metric",
    "MetricBase",
    "Moments",
    "OnText",
    "PSNR",
    "ParameterNorm",
    "PearsonCorrelation",
    "Perplexity",
    "Precision",
    "QuantileLoss",
    "R2",
    "Recall",
    "RootMeanSquaredError",
    "RougeL",
    "RowsPerSecond",
    "SSIM",
    "SpearmanCorrelation",
    "Specificity",
    "Subset",
    "Sum",
    "TokenAccuracy",
    "TokensPerSecond",
    "TopKAccuracy",
    "UpdateRatio",
    "WordErrorRate",
    "kept_rows",
    "rows_mask",
]
