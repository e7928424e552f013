"""Metrics: the values that are logged for a split, exact over the whole split.

Fractions such as accuracies go from 0 to 1, without a unit, for every metric of this package, as in scikit-learn. A
value that is undefined, because nothing was counted, is NaN.

`base` defines the contract of a metric, also of your own ones. States to build them from are `CompensatedSum`,
`WeightedMean`, `Count`, `Fraction` and `Moments`.
"""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.metrics.adaptors import Adapted as Adapted
    from learner.metrics.aggregates import Aggregate as Aggregate
    from learner.metrics.base import CollectingMetric as CollectingMetric
    from learner.metrics.base import CompensatedSum as CompensatedSum
    from learner.metrics.base import HostMetric as HostMetric
    from learner.metrics.base import Info as Info
    from learner.metrics.base import Metric as Metric
    from learner.metrics.base import MetricBase as MetricBase
    from learner.metrics.base import WeightedMean as WeightedMean
    from learner.metrics.base import rows_mask as rows_mask
    from learner.metrics.bleu import BLEU as BLEU
    from learner.metrics.calibration import BrierScore as BrierScore
    from learner.metrics.calibration import CalibrationError as CalibrationError
    from learner.metrics.classes import BalancedAccuracy as BalancedAccuracy
    from learner.metrics.classes import FBeta as FBeta
    from learner.metrics.classes import Jaccard as Jaccard
    from learner.metrics.classes import Precision as Precision
    from learner.metrics.classes import Recall as Recall
    from learner.metrics.classes import Specificity as Specificity
    from learner.metrics.classification import Accuracy as Accuracy
    from learner.metrics.classification import TopKAccuracy as TopKAccuracy
    from learner.metrics.correlation import PearsonCorrelation as PearsonCorrelation
    from learner.metrics.correlation import SpearmanCorrelation as SpearmanCorrelation
    from learner.metrics.counts import Count as Count
    from learner.metrics.counts import Fraction as Fraction
    from learner.metrics.edits import CharacterErrorRate as CharacterErrorRate
    from learner.metrics.edits import WordErrorRate as WordErrorRate
    from learner.metrics.explained import R2 as R2
    from learner.metrics.explained import ExplainedVariance as ExplainedVariance
    from learner.metrics.hamming import Hamming as Hamming
    from learner.metrics.heads import Head as Head
    from learner.metrics.image_quality import MSSSIM as MSSSIM
    from learner.metrics.image_quality import PSNR as PSNR
    from learner.metrics.image_quality import SSIM as SSIM
    from learner.metrics.kappa import CohenKappa as CohenKappa
    from learner.metrics.kappa import Matthews as Matthews
    from learner.metrics.losses import Loss as Loss
    from learner.metrics.losses import Perplexity as Perplexity
    from learner.metrics.matrix import ConfusionMatrix as ConfusionMatrix
    from learner.metrics.means import FieldMean as FieldMean
    from learner.metrics.means import MeanMetric as MeanMetric
    from learner.metrics.moments import Moments as Moments
    from learner.metrics.on_text import OnText as OnText
    from learner.metrics.optimizer_step import GradientNorm as GradientNorm
    from learner.metrics.optimizer_step import LearningRate as LearningRate
    from learner.metrics.optimizer_step import ParameterNorm as ParameterNorm
    from learner.metrics.optimizer_step import UpdateRatio as UpdateRatio
    from learner.metrics.overlaps import Dice as Dice
    from learner.metrics.overlaps import DicePerClass as DicePerClass
    from learner.metrics.overlaps import IoU as IoU
    from learner.metrics.overlaps import IoUPerClass as IoUPerClass
    from learner.metrics.ranking import AUROC as AUROC
    from learner.metrics.ranking import AveragePrecision as AveragePrecision
    from learner.metrics.ranking_bins import BinnedAUROC as BinnedAUROC
    from learner.metrics.ranking_bins import BinnedAveragePrecision as BinnedAveragePrecision
    from learner.metrics.regression import MeanAbsoluteError as MeanAbsoluteError
    from learner.metrics.regression import MeanAbsolutePercentageError as MeanAbsolutePercentageError
    from learner.metrics.regression import MeanSquaredError as MeanSquaredError
    from learner.metrics.regression import QuantileLoss as QuantileLoss
    from learner.metrics.regression import RootMeanSquaredError as RootMeanSquaredError
    from learner.metrics.retrieval import MRR as MRR
    from learner.metrics.retrieval import NDCG as NDCG
    from learner.metrics.rouge import RougeL as RougeL
    from learner.metrics.rows import kept_rows as kept_rows
    from learner.metrics.sequences import BitsPerCharacter as BitsPerCharacter
    from learner.metrics.sequences import ExactMatch as ExactMatch
    from learner.metrics.sequences import TokenAccuracy as TokenAccuracy
    from learner.metrics.speed import FlopsPerSecond as FlopsPerSecond
    from learner.metrics.speed import IterationSpeed as IterationSpeed
    from learner.metrics.speed import ModelFlopsUtilization as ModelFlopsUtilization
    from learner.metrics.speed import RowsPerSecond as RowsPerSecond
    from learner.metrics.speed import TokensPerSecond as TokensPerSecond
    from learner.metrics.subsets import By as By
    from learner.metrics.subsets import Subset as Subset
    from learner.metrics.system import DeviceMemory as DeviceMemory
    from learner.metrics.system import GPUUse as GPUUse
    from learner.metrics.system import HostCPU as HostCPU
    from learner.metrics.system import HostMemory as HostMemory

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__, "learner.metrics.base.MetricBase")
