"""Metrics: the values that are logged for a split, exact over the whole split.

Fractions such as accuracies go from 0 to 1, without a unit, for every metric of this package, as in scikit-learn. A
value that is undefined, because nothing was counted, is NaN.

`base` defines the contract of a metric, also of your own ones. States to build them from are `CompensatedSum`,
`WeightedMean`, `Count`, `Fraction` and `Moments`.
"""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.metrics.adaptors import Adapted
    from learner.metrics.aggregates import Aggregate
    from learner.metrics.base import (
        CollectingMetric,
        CompensatedSum,
        HostMetric,
        Info,
        Metric,
        MetricBase,
        WeightedMean,
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
    from learner.metrics.hamming import Hamming
    from learner.metrics.heads import Head
    from learner.metrics.image_quality import MSSSIM, PSNR, SSIM
    from learner.metrics.kappa import CohenKappa, Matthews
    from learner.metrics.losses import Loss, Perplexity
    from learner.metrics.matrix import ConfusionMatrix
    from learner.metrics.means import FieldMean, MeanMetric
    from learner.metrics.moments import Moments
    from learner.metrics.on_text import OnText
    from learner.metrics.optimizer_step import GradientNorm, LearningRate, ParameterNorm, UpdateRatio
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
    from learner.metrics.retrieval import MRR, NDCG
    from learner.metrics.rouge import RougeL
    from learner.metrics.rows import kept_rows
    from learner.metrics.sequences import BitsPerCharacter, ExactMatch, TokenAccuracy
    from learner.metrics.speed import (
        FlopsPerSecond,
        IterationSpeed,
        ModelFlopsUtilization,
        RowsPerSecond,
        TokensPerSecond,
    )
    from learner.metrics.subsets import By, Subset
    from learner.metrics.system import DeviceMemory, GPUUse, HostCPU, HostMemory

    __all__ = [
        "AUROC",
        "BLEU",
        "MRR",
        "MSSSIM",
        "NDCG",
        "PSNR",
        "R2",
        "SSIM",
        "Accuracy",
        "Adapted",
        "Aggregate",
        "AveragePrecision",
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
        "CompensatedSum",
        "ConfusionMatrix",
        "Count",
        "DeviceMemory",
        "Dice",
        "DicePerClass",
        "ExactMatch",
        "ExplainedVariance",
        "FBeta",
        "FieldMean",
        "FlopsPerSecond",
        "Fraction",
        "GPUUse",
        "GradientNorm",
        "Hamming",
        "Head",
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
        "Matthews",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "MeanMetric",
        "MeanSquaredError",
        "Metric",
        "MetricBase",
        "ModelFlopsUtilization",
        "Moments",
        "OnText",
        "ParameterNorm",
        "PearsonCorrelation",
        "Perplexity",
        "Precision",
        "QuantileLoss",
        "Recall",
        "RootMeanSquaredError",
        "RougeL",
        "RowsPerSecond",
        "SpearmanCorrelation",
        "Specificity",
        "Subset",
        "TokenAccuracy",
        "TokensPerSecond",
        "TopKAccuracy",
        "UpdateRatio",
        "WeightedMean",
        "WordErrorRate",
        "kept_rows",
        "rows_mask",
    ]

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__, "learner.metrics.base.MetricBase")
